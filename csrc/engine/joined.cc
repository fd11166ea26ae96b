#include "engine/joined.h"

#include <cstring>
#include <limits>

#include "collective/schedule.h"

namespace ring {
namespace {

size_t elements_of(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

template <class T>
uint64_t bits_of(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class T>
uint64_t extreme(bool largest) {
  return bits_of(largest ? std::numeric_limits<T>::max() : std::numeric_limits<T>::lowest());
}

// The element that changes nothing, as the lowest bytes of a number: of min the largest, of max the smallest.
uint64_t neutral_bits(DType dtype, ReduceOp op) {
  const bool largest = op == ReduceOp::min, one = op == ReduceOp::product;
  if (!largest && !one && op != ReduceOp::max) return 0;
  const float infinity = std::numeric_limits<float>::infinity();
  switch (dtype) {
    case DType::float32:
      return bits_of(one ? 1.0f : largest ? infinity : -infinity);
    case DType::float64:
      return bits_of(one ? 1.0 : static_cast<double>(largest ? infinity : -infinity));
    case DType::float16:
      return one ? 0x3c00 : largest ? 0x7c00 : 0xfc00;
    case DType::bfloat16:
      return one ? 0x3f80 : largest ? 0x7f80 : 0xff80;
    case DType::boolean:
      return op == ReduceOp::max ? 0 : 1;
    case DType::int8:
      return one ? 1 : extreme<int8_t>(largest);
    case DType::int16:
      return one ? 1 : extreme<int16_t>(largest);
    case DType::int32:
      return one ? 1 : extreme<int32_t>(largest);
    case DType::int64:
      return one ? 1 : extreme<int64_t>(largest);
    case DType::uint8:
      return one ? 1 : extreme<uint8_t>(largest);
    case DType::uint16:
      return one ? 1 : extreme<uint16_t>(largest);
    case DType::uint32:
      return one ? 1 : extreme<uint32_t>(largest);
    case DType::uint64:
      return one ? 1 : extreme<uint64_t>(largest);
  }
  return 0;
}

void fill(std::vector<std::byte>& memory, DType dtype, ReduceOp op) {
  const uint64_t bits = neutral_bits(dtype, op);
  if (bits == 0) return;
  const size_t item = item_size(dtype);
  for (size_t at = 0; at + item <= memory.size(); at += item) std::memcpy(memory.data() + at, &bits, item);
}

}  // namespace

OperationPtr make_stand_in(const Descriptor& descriptor, int rank, int size, Deadline deadline) {
  Request request;
  request.kind = descriptor.kind;
  request.name = descriptor.name;
  request.dtype = descriptor.dtype;
  request.op = descriptor.op;
  request.root = descriptor.root;
  request.prescale = descriptor.prescale;
  request.postscale = descriptor.postscale;
  if (descriptor.splits) request.splits.assign(static_cast<size_t>(size), 0);
  size_t total = 0;
  for (const auto& shape : descriptor.shapes) {
    Tensor tensor;
    tensor.shape = shape;
    if (descriptor.any_rows()) tensor.shape.insert(tensor.shape.begin(), 0);
    tensor.bytes = elements_of(tensor.shape) * item_size(descriptor.dtype);
    total += tensor.bytes;
    request.tensors.push_back(std::move(tensor));
  }
  std::vector<std::byte> memory(total);
  const bool reduced = descriptor.kind == Kind::allreduce || descriptor.kind == Kind::reducescatter;
  if (reduced) fill(memory, descriptor.dtype, descriptor.op);
  size_t at = 0;
  for (Tensor& tensor : request.tensors) {
    tensor.in = memory.data() + at;
    tensor.out = memory.data() + at;
    at += tensor.bytes;
  }
  std::vector<std::byte> output;
  if (descriptor.kind == Kind::reducescatter && !request.tensors.empty()) {
    const Tensor& tensor = request.tensors[0];
    const size_t rows = tensor.shape.empty() ? 0 : static_cast<size_t>(tensor.shape[0]);
    const size_t mine = rows == 0 ? 0 : scatter_rows(rows, size)[static_cast<size_t>(rank)];
    if (rows > 0) output.resize(tensor.bytes / rows * mine);
    request.tensors[0].out = output.data();
  }
  auto operation = std::make_shared<Operation>(std::move(request), deadline);
  operation->memory.push_back(std::move(memory));
  operation->memory.push_back(std::move(output));
  operation->descriptor = descriptor;
  operation->bytes = total;
  operation->key = descriptor.key();
  return operation;
}

}  // namespace ring
