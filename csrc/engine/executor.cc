#include "engine/executor.h"

#include <cstring>

#include "collective/adasum.h"
#include "collective/schedule.h"

namespace ring {
namespace {

constexpr double kLockstepSeconds = 60;  // for an exchange that all ranks are known to be in

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
  if (request.kind != Kind::allreduce || request.op == ReduceOp::adasum) return false;
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

Status Executor::run(const Express& express, const std::vector<Incoming>& incoming, const Began& began,
                     Deadline deadline) {
  const bool carried = express.bytes <= fabric_.exchange().payload_limit();
  if (tuning_ != nullptr && !carried) RING_TRY(tuning_->before(fabric_.control(), deadline, &lookout_));
  const Began start = carried ? began : Began{now_us(), lookout_.waited_us(), 0};
  RING_TRY(move(express, incoming, deadline));
  const int64_t took = now_us() - start.us;
  ledger_.add({Kind::allreduce, carried ? "with the agreement" : fabric_.group().algorithm(), 1,
               express.bytes, took, lookout_.waited_us() - start.waited_us, 0});
  if (tuning_ != nullptr && !carried) tuning_->count(express.bytes, took);
  return {};
}

Status Executor::move(const Express& express, const std::vector<Incoming>& incoming, Deadline deadline) {
  const Reduction reduction{express.dtype, express.op, express.prescale, express.postscale,
                            fabric_.topology().size};
  if (express.bytes > fabric_.exchange().payload_limit()) {
    Statistics::add(statistics_.buckets, 1);
    return fabric_.group().allreduce(Pieces({Piece{express.in, express.out, express.bytes}}), reduction,
                                     deadline);
  }
  Statistics::add(statistics_.carried, 1);
  sources_.clear();
  for (const Incoming& one : incoming) sources_.push_back(one.payload);
  fabric_.group().fold_all(sources_.data(), static_cast<int>(sources_.size()), express.out, express.bytes,
                           reduction);
  return {};
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
    case Kind::gather:
    case Kind::alltoall:
    case Kind::scatter:
      return uneven_.run(first);
    case Kind::join:
      return run_join(first);
    case Kind::reducescatter:
      return run_reducescatter(first);
    case Kind::allreduce:
      break;
  }
  if (request.op == ReduceOp::adasum) return run_adasum(first);
  std::vector<Piece> pieces;
  for (const size_t i : bucket) {
    for (const Tensor& tensor : batch[i]->request.tensors)
      pieces.push_back({tensor.in, tensor.out, tensor.bytes});
  }
  return fabric_.group().allreduce(Pieces(std::move(pieces)), reduction_of(request, fabric_.topology().size),
                                   first.deadline);
}

Status Executor::run_adasum(const Operation& operation) {
  const Reduction reduction = reduction_of(operation.request, fabric_.topology().size);
  const ShareNumbers share = [&](const std::vector<double>& mine, std::vector<std::vector<double>>* all) {
    std::vector<Bytes> blobs;
    RING_TRY(
        fabric_.control().exchange(std::as_bytes(std::span(mine)), operation.deadline, &blobs, &lookout_));
    all->assign(blobs.size(), std::vector<double>(mine.size()));
    for (size_t r = 0; r < blobs.size(); ++r) {
      if (blobs[r].size() != mine.size() * sizeof(double)) {
        return Status(Code::peer_lost, "rank " + std::to_string(r) + " is out of step", static_cast<int>(r));
      }
      std::memcpy((*all)[r].data(), blobs[r].data(), blobs[r].size());
    }
    return Status();
  };
  for (const Tensor& tensor : operation.request.tensors) {
    if (tensor.bytes == 0) continue;
    RING_TRY(adasum(fabric_.group(), fabric_.topology().rank, fabric_.topology().size, tensor.in, tensor.out,
                    tensor.bytes, reduction, share, operation.deadline));
  }
  return {};
}

// Everybody has joined. Who was last: the latest round counts, then the highest rank.
Status Executor::run_join(Operation& operation) {
  const uint64_t mine[1] = {operation.joined_in};
  std::vector<Bytes> all;
  const Deadline deadline =
      Deadline::after(kLockstepSeconds);  // its own may have passed while others went on
  RING_TRY(fabric_.control().exchange(std::as_bytes(std::span(mine)), deadline, &all, &lookout_));
  uint64_t latest = 0;
  operation.gathered.rows.assign(1, 0);
  for (size_t r = 0; r < all.size(); ++r) {
    const uint64_t round = Reader(all[r]).get<uint64_t>();
    if (round < latest) continue;
    latest = round;
    operation.gathered.rows[0] = static_cast<int64_t>(r);
  }
  return {};
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
