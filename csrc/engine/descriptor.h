// What ranks compare before they work together: everything about an operation that has to agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"

namespace ring {

enum class Kind : uint8_t {
  allreduce,
  broadcast,
  allgather,
  reducescatter,
  barrier,
  alltoall,
  gather,
  scatter,
  join,
};
constexpr size_t kKinds = 9;

struct Descriptor {
  Kind kind = Kind::barrier;
  std::string name;     // empty: matched by `number`
  uint64_t number = 0;  // of the unnamed operation among those of its kind; 0 for named ones
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  int32_t root = -1;
  double prescale = 1;
  double postscale = 1;
  bool splits = false;  // alltoall: the ranks say how many rows go to whom, instead of equal parts
  // Without the first dimension where ranks may differ in it; none for scatter, which only the root knows.
  std::vector<std::vector<int64_t>> shapes;

  // Whether ranks may differ in the first dimension.
  bool any_rows() const { return kind == Kind::allgather || kind == Kind::gather || splits; }
  // Whether `root` means something.
  bool rooted() const { return kind == Kind::broadcast || kind == Kind::gather || kind == Kind::scatter; }

  Bytes encode() const;
  // Empty if the bytes are no descriptor, or one of an operation that cannot be.
  static std::optional<Descriptor> decode(Reader& reader);

  // Whether there is such an operation: as many tensors as its kind has, of countable bytes.
  bool sensible() const;

  // By what operations of different ranks are matched: the name, or kind and number.
  std::string key() const;
  // "allreduce 'grad.0'"
  std::string title() const;
  // "allreduce of float32 [100, 5], op sum"
  std::string details() const;
};

// The encoding of a descriptor, into any writer that has put, text and raw: its fields, then its shapes.
struct DescriptorFields {
  std::string_view name;
  uint64_t number = 0;
  Kind kind = Kind::barrier;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  int32_t root = -1;
  bool splits = false;
  double prescale = 1;
  double postscale = 1;
};

template <class W>
void write_fields(W& writer, const DescriptorFields& fields, uint32_t shapes) {
  writer.text(fields.name);
  writer.put(fields.number);
  writer.put(fields.kind);
  writer.put(fields.dtype);
  writer.put(fields.op);
  writer.put(fields.root);
  writer.put(static_cast<uint8_t>(fields.splits));
  writer.put(fields.prescale);
  writer.put(fields.postscale);
  writer.put(shapes);
}

template <class W>
void write_shape(W& writer, const int64_t* shape, size_t dims) {
  writer.put(static_cast<uint32_t>(dims));
  writer.raw(shape, dims * sizeof(int64_t));
}

}  // namespace ring
