#include "engine/express.h"

#include <span>
#include <string>

namespace ring {
namespace {

// A Writer without a heap; what does not fit is left out and noticed.
class StackWriter {
 public:
  template <class T>
  void put(T value) {
    raw(&value, sizeof value);
  }
  void text(std::string_view value) {
    put(static_cast<uint32_t>(value.size()));
    raw(value.data(), value.size());
  }
  void raw(const void* data, size_t size) {
    fits_ = fits_ && size <= sizeof bytes_ - used_;
    if (!fits_ || size == 0) return;
    std::memcpy(bytes_ + used_, data, size);
    used_ += size;
  }
  bool fits() const { return fits_; }
  ByteView bytes() const { return {bytes_, used_}; }

 private:
  std::byte bytes_[512];
  size_t used_ = 0;
  bool fits_ = true;
};

}  // namespace

uint64_t Express::hash(uint64_t number) const {
  StackWriter writer;
  DescriptorFields fields;
  fields.name = name;
  fields.number = number;
  fields.kind = Kind::allreduce;
  fields.dtype = dtype;
  fields.op = op;
  fields.prescale = prescale;
  fields.postscale = postscale;
  write_fields(writer, fields, 1);
  write_shape(writer, shape, dims);
  if (writer.fits()) return hash_bytes(writer.bytes());
  Descriptor descriptor;
  descriptor.kind = Kind::allreduce;
  descriptor.name = std::string(name);
  descriptor.number = number;
  descriptor.dtype = dtype;
  descriptor.op = op;
  descriptor.prescale = prescale;
  descriptor.postscale = postscale;
  descriptor.shapes.emplace_back(shape, shape + dims);
  return hash_bytes(descriptor.encode());
}

Request Express::request() const {
  Request made;
  made.kind = Kind::allreduce;
  made.name = std::string(name);
  made.dtype = dtype;
  made.op = op;
  made.prescale = prescale;
  made.postscale = postscale;
  made.timeout = timeout;
  made.tensors.push_back({in, out, {shape, shape + dims}, bytes});
  return made;
}

}  // namespace ring
