// A list of operations from a peer: read, compared with this rank's own, and told in errors; what stands in
// for a joined rank is made from it.
#include "engine/agreement.h"
#include "engine/joined.h"
#include "fuzz.h"

using ring::Bytes;
using ring::Descriptor;
using ring::Kind;
using ring::Writer;

namespace {

constexpr int kSize = 3;

Descriptor describe(size_t kind, const std::string& name) {
  Descriptor one;
  one.kind = static_cast<Kind>(kind);
  one.name = name;
  one.number = name.empty() ? 4 : 0;
  one.dtype = ring::DType::float16;
  one.root = one.rooted() ? 1 : -1;
  const bool bare = one.kind == Kind::barrier || one.kind == Kind::join || one.kind == Kind::scatter;
  if (!bare) one.shapes = {{3, 5}};
  if (one.kind == Kind::allreduce) one.shapes.push_back({});
  if (one.kind == Kind::alltoall) one.splits = true;
  return one;
}

std::vector<Descriptor> everything(bool joined) {
  std::vector<Descriptor> all;
  for (size_t kind = 0; kind < ring::kKinds; ++kind) {
    if (static_cast<Kind>(kind) != Kind::join) all.push_back(describe(kind, "x" + std::to_string(kind)));
    if (static_cast<Kind>(kind) != Kind::join || joined) all.push_back(describe(kind, ""));
  }
  return all;
}

Bytes encode(const std::vector<Descriptor>& list) {
  Writer writer;
  writer.put(static_cast<uint32_t>(list.size()));
  for (const Descriptor& one : list) {
    const Bytes bytes = one.encode();
    writer.raw(bytes.data(), bytes.size());
  }
  return writer.take();
}

size_t bytes_of(const Descriptor& one) {
  size_t total = 0;
  for (const auto& shape : one.shapes) {
    size_t bytes = ring::item_size(one.dtype);
    for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
    total += bytes;
  }
  return total;
}

}  // namespace

std::vector<Bytes> fuzz::seeds() {
  std::vector<Bytes> all{encode({}), encode(everything(false)), encode(everything(true))};
  for (const Descriptor& one : everything(true)) all.push_back(encode({one}));
  return all;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  bool ok = false;
  const std::vector<Descriptor> list = ring::read_descriptors(fuzz::view(data, size), kSize, &ok);
  if (!ok) return 0;
  REQUIRE(encode(list) == Bytes(fuzz::view(data, size).begin(), fuzz::view(data, size).end()));
  const std::vector<std::vector<Descriptor>> lists{everything(false), list, everything(true)};
  for (const ring::Common& one : ring::find_common(lists)) {
    REQUIRE(one.descriptor != nullptr && one.rank < kSize);
    REQUIRE(one.disagreement.empty() == (one.rank < 0));
  }
  for (const Descriptor& one : list) {
    REQUIRE(!one.title().empty() && !one.details().empty());
    if (bytes_of(one) > (1 << 16) || one.kind == Kind::join) continue;
    const ring::OperationPtr stand_in = ring::make_stand_in(one, 0, kSize, ring::Deadline::after(1));
    for (const ring::Tensor& tensor : stand_in->request.tensors) {
      for (size_t i = 0; i < tensor.bytes; ++i) REQUIRE(tensor.in[i] == tensor.in[i]);
    }
  }
  return 0;
}
