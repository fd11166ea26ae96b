#include "collective/tcp_group.h"

#include <algorithm>
#include <cstring>

#include "base/kernels/kernels.h"
#include "base/trace.h"

namespace ring {
namespace {

constexpr size_t kFlatBroadcastBytes = 64 * 1024;

ReduceOp wire_op(ReduceOp op) { return op == ReduceOp::average ? ReduceOp::sum : op; }

}  // namespace

TcpGroup::TcpGroup(const std::vector<Socket>& data, std::vector<int> members, int index, TcpTools tools)
    : data_(data),
      members_(std::move(members)),
      index_(index),
      ring_bytes_(tools.ring_bytes),
      stream_(tools.segment_bytes, tools.policy, *tools.watch),
      direct_(links(), index, tools.segment_bytes, tools.policy, *tools.watch),
      pairs_(links(), index, tools.segment_bytes, tools.policy, *tools.watch) {
  set_segment(tools.segment_bytes);
}

std::vector<Link> TcpGroup::links() const {
  std::vector<Link> all;
  for (int r = 0; r < count(); ++r) all.push_back(link(r));
  return all;
}

Link TcpGroup::link(int index) const {
  const int rank = members_[static_cast<size_t>(index)];
  return {&data_[static_cast<size_t>(rank)], rank};
}

Status TcpGroup::ring_allreduce(const std::byte* in, std::byte* out, size_t elements, DType dtype,
                                ReduceOp op, Deadline deadline) {
  const size_t item = item_size(dtype);
  const Slices slices = balanced_slices(elements, count(), count(), 1);
  auto at = [&](int slice) { return slices.begin(slice) * item; };
  auto bytes = [&](int slice) { return slices.size(slice) * item; };
  Transfer transfer;
  transfer.lag = 1;
  const auto scatter = ring_reduce_scatter(index_, count(), 0);
  for (size_t s = 0; s < scatter.size(); ++s) {
    const RingStep& step = scatter[s];
    transfer.sends.push_back({(s == 0 ? in : out) + at(step.send), bytes(step.send)});
    transfer.receives.push_back({out + at(step.receive), in + at(step.receive), bytes(step.receive)});
  }
  for (const RingStep& step : ring_allgather(ring_mod(index_ + 1, count()), count())) {
    transfer.sends.push_back({out + at(step.send), bytes(step.send)});
    transfer.receives.push_back({out + at(step.receive), nullptr, bytes(step.receive)});
  }
  return stream_.run(transfer, next(), previous(), dtype, op, deadline);
}

Status TcpGroup::allreduce_by_ring(const std::byte* in, std::byte* out, size_t bytes,
                                   const Reduction& reduction, Deadline deadline) {
  algorithm_ = "ring";
  const size_t elements = bytes / item_size(reduction.dtype);
  if (reduction.input_factor() != 1.0) {
    kernels().scale(reduction.dtype, out, in, elements, reduction.input_factor());
    in = out;
  }
  RING_TRY(ring_allreduce(in, out, elements, reduction.dtype, wire_op(reduction.op), deadline));
  if (reduction.output_factor() != 1.0) {
    kernels().scale(reduction.dtype, out, out, elements, reduction.output_factor());
  }
  return {};
}

Status TcpGroup::allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) {
  algorithm_ = "direct";
  const size_t bytes = pieces.bytes();
  if (bytes == 0) return {};
  if (bytes > ring_bytes_ && pieces.count() == 1 && count() > 2 && !reduction.integer_average()) {
    return allreduce_by_ring(pieces[0].in, pieces[0].out, bytes, reduction, deadline);
  }
  const Slices slices = balanced_slices(bytes, count(), count(), 64);
  if (pieces.count() == 1) return direct_.run(pieces[0].in, pieces[0].out, slices, reduction, true, deadline);
  if (packed_.size() < bytes) packed_.resize(bytes);
  {
    const TracePhase phase("COPY", bytes);
    pieces.pack(0, bytes, packed_.data());
  }
  RING_TRY(direct_.run(packed_.data(), packed_.data(), slices, reduction, true, deadline));
  const TracePhase phase("GATHER", bytes);
  pieces.unpack(0, bytes, packed_.data());
  return {};
}

Status TcpGroup::broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) {
  algorithm_ = "chain";
  if (bytes == 0) return {};
  const int place = ring_mod(index_ - root, count());  // the root is 0
  Transfer transfer;
  if (bytes <= kFlatBroadcastBytes) {
    algorithm_ = "from the root";
    if (place > 0) {
      transfer.receives.push_back({data, nullptr, bytes});
      return stream_.run(transfer, {}, link(root), DType::uint8, ReduceOp::sum, deadline);
    }
    transfer.sends.push_back({data, bytes});
    for (int k = 1; k < count(); ++k) {
      RING_TRY(stream_.run(transfer, link(ring_mod(root + k, count())), {}, DType::uint8, ReduceOp::sum,
                           deadline));
    }
    return {};
  }
  transfer.lag = place > 0 ? 0 : Transfer::kIndependent;
  if (place > 0) transfer.receives.push_back({data, nullptr, bytes});
  if (place < count() - 1) transfer.sends.push_back({data, bytes});
  return stream_.run(transfer, next(), previous(), DType::uint8, ReduceOp::sum, deadline);
}

Status TcpGroup::allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                           Deadline deadline) {
  algorithm_ = "ring";
  const Slices slices = slices_of(bytes);
  if (slices.size(index_) > 0) std::memcpy(out + slices.begin(index_), in, slices.size(index_));
  Transfer transfer;
  transfer.lag = 1;
  for (const RingStep& step : ring_allgather(index_, count())) {
    transfer.sends.push_back({out + slices.begin(step.send), slices.size(step.send)});
    transfer.receives.push_back({out + slices.begin(step.receive), nullptr, slices.size(step.receive)});
  }
  return stream_.run(transfer, next(), previous(), DType::uint8, ReduceOp::sum, deadline);
}

Status TcpGroup::reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                               const Reduction& reduction, Deadline deadline) {
  algorithm_ = "direct";
  std::vector<size_t> bytes;
  for (const size_t one : counts) bytes.push_back(one * item_size(reduction.dtype));
  const Slices slices = slices_of(bytes);
  if (slices.total() == 0) return {};
  return direct_.run(in, out, slices, reduction, false, deadline);
}

Status TcpGroup::alltoall(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
                          size_t, Deadline deadline) {
  algorithm_ = "pairs";
  if (sends.size(index_) > 0)
    std::memcpy(out + receives.begin(index_), in + sends.begin(index_), sends.size(index_));
  return pairs_.run(in, sends, out, receives, deadline);
}

}  // namespace ring
