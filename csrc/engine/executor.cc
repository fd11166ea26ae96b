#include "engine/executor.h"

#include <cstring>
#include <new>

#include "collective/schedule.h"

namespace ring {
namespace {

Reduction reduction_of(const Request& request, int size) {
  return {request.dtype, request.op, request.prescale, request.postscale, size};
}

}  // namespace

// An operation whose data came with the exchange: everything is here, fold it.
bool Executor::complete(Operation& operation, const std::vector<Incoming>& incoming) const {
  const Request& request = operation.request;
  if (request.kind == Kind::barrier || operation.bytes == 0) {
    return request.kind == Kind::barrier || request.kind == Kind::broadcast ||
           request.kind == Kind::allreduce;
  }
  if (operation.bytes > fabric_.exchange().payload_limit()) return false;
  if (request.kind == Kind::broadcast) {
    const size_t root = static_cast<size_t>(request.root);
    if (request.root != fabric_.topology().rank) {
      std::memcpy(request.tensors[0].out, incoming[root].payload, operation.bytes);
    }
    return true;
  }
  if (request.kind != Kind::allreduce) return false;
  std::vector<const std::byte*> sources(incoming.size());
  size_t at = 0;
  for (const Tensor& tensor : request.tensors) {
    for (size_t r = 0; r < incoming.size(); ++r) sources[r] = incoming[r].payload + at;
    fabric_.group().fold_all(sources.data(), static_cast<int>(incoming.size()), tensor.out, tensor.bytes,
                             reduction_of(request, fabric_.topology().size));
    at += tensor.bytes;
  }
  return true;
}

Status Executor::run_bucket(const std::vector<OperationPtr>& batch, const Bucket& bucket) {
  Operation& first = *batch[bucket[0]];
  const Request& request = first.request;
  Statistics::add(statistics_.buckets, 1);
  if (bucket.size() > 1) Statistics::add(statistics_.fused_tensors, bucket.size());
  switch (request.kind) {
    case Kind::barrier: {
      std::vector<Incoming> nothing;
      return fabric_.exchange().run({}, nullptr, first.deadline, &nothing);
    }
    case Kind::broadcast:
      return fabric_.group().broadcast(request.tensors[0].out, first.bytes, request.root, first.deadline);
    case Kind::allgather:
      return run_allgather(first);
    case Kind::reducescatter:
      return run_reducescatter(first);
    case Kind::allreduce:
      break;
  }
  std::vector<Piece> pieces;
  for (const size_t i : bucket) {
    for (const Tensor& tensor : batch[i]->request.tensors)
      pieces.push_back({tensor.in, tensor.out, tensor.bytes});
  }
  return fabric_.group().allreduce(Pieces(std::move(pieces)), reduction_of(request, fabric_.topology().size),
                                   first.deadline);
}

// The sizes first, then the data.
Status Executor::run_allgather(Operation& operation) {
  const Tensor& tensor = operation.request.tensors[0];
  const int64_t mine[2] = {tensor.shape.empty() ? 1 : tensor.shape[0], static_cast<int64_t>(tensor.bytes)};
  std::vector<Bytes> all;
  RING_TRY(fabric_.control().exchange(std::as_bytes(std::span(mine)), operation.deadline, &all, &lookout_));
  std::vector<size_t> sizes;
  GatherResult& result = operation.gathered;
  for (size_t r = 0; r < all.size(); ++r) {
    Reader reader(all[r]);
    result.rows.push_back(reader.get<int64_t>());
    const int64_t size = reader.get<int64_t>();
    if (!reader.at_end() || size < 0 || result.rows.back() < 0)
      return Status(Code::peer_lost, "a rank is out of step", static_cast<int>(r));
    sizes.push_back(static_cast<size_t>(size));
    if (__builtin_add_overflow(result.bytes, sizes.back(), &result.bytes)) {
      return Status(Code::peer_lost, "a rank gave an impossible size", static_cast<int>(r));
    }
  }
  result.data.reset(new (std::nothrow) std::byte[result.bytes > 0 ? result.bytes : 1]);
  if (result.data == nullptr) {
    const int self = fabric_.topology().rank;
    return Status(Code::aborted,
                  "rank " + std::to_string(self) + " has no memory for the " + std::to_string(result.bytes) +
                      " bytes that an allgather gives",
                  self);
  }
  if (result.bytes == 0) return {};
  return fabric_.group().allgather(tensor.in, sizes, result.data.get(), operation.deadline);
}

Status Executor::run_reducescatter(const Operation& operation) {
  const Tensor& tensor = operation.request.tensors[0];
  const size_t rows = static_cast<size_t>(tensor.shape[0]);
  const size_t row = rows == 0 ? 0 : tensor.bytes / item_size(operation.request.dtype) / rows;
  std::vector<size_t> counts = scatter_rows(rows, fabric_.topology().size);
  for (size_t& count : counts) count *= row;
  if (tensor.bytes == 0) return {};
  return fabric_.group().reducescatter(tensor.in, counts, tensor.out,
                                       reduction_of(operation.request, fabric_.topology().size),
                                       operation.deadline);
}

}  // namespace ring
