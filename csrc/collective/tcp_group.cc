#include "collective/tcp_group.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/kernels/kernels.h"
#include "collective/exact_average.h"

namespace ring {
namespace {

constexpr size_t kFlatBroadcastBytes = 64 * 1024;

ReduceOp wire_op(ReduceOp op) { return op == ReduceOp::average ? ReduceOp::sum : op; }

}  // namespace

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

Status TcpGroup::average_exactly(const Pieces& pieces, const Reduction& reduction, Deadline deadline) {
  const size_t item = item_size(reduction.dtype);
  const size_t wide = item_size(DType::int128);
  const size_t elements = pieces.bytes() / item;
  std::vector<std::byte> sums(elements * wide);
  pieces.each(0, pieces.bytes(), [&](Piece part, size_t offset) {
    widen(reduction.dtype, part.in, sums.data() + offset / item * wide, part.bytes / item);
  });
  RING_TRY(ring_allreduce(sums.data(), sums.data(), elements, DType::int128, ReduceOp::sum, deadline));
  pieces.each(0, pieces.bytes(), [&](Piece part, size_t offset) {
    narrow_quotient(reduction.dtype, sums.data() + offset / item * wide, part.out, part.bytes / item,
                    reduction.divisor);
  });
  return {};
}

Status TcpGroup::allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) {
  if (pieces.bytes() == 0) return {};
  if (reduction.integer_average()) return average_exactly(pieces, reduction, deadline);
  const size_t elements = pieces.bytes() / item_size(reduction.dtype);
  std::vector<std::byte> packed;
  const std::byte* in = pieces[0].in;
  std::byte* out = pieces[0].out;
  if (pieces.count() > 1) {
    packed.resize(pieces.bytes());
    pieces.pack(0, pieces.bytes(), packed.data());
    in = out = packed.data();
  }
  if (reduction.input_factor() != 1.0) {
    kernels().scale(reduction.dtype, out, in, elements, reduction.input_factor());
    in = out;
  }
  RING_TRY(ring_allreduce(in, out, elements, reduction.dtype, wire_op(reduction.op), deadline));
  if (reduction.output_factor() != 1.0) {
    kernels().scale(reduction.dtype, out, out, elements, reduction.output_factor());
  }
  if (pieces.count() > 1) pieces.unpack(0, pieces.bytes(), packed.data());
  return {};
}

Status TcpGroup::broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) {
  if (bytes == 0) return {};
  const int place = ring_mod(index_ - root, count());  // the root is 0
  Transfer transfer;
  if (bytes <= kFlatBroadcastBytes) {
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

Status TcpGroup::ring_scatter(std::byte* work, const Slices& slices, DType dtype, ReduceOp op,
                              Deadline deadline) {
  Transfer transfer;
  transfer.lag = 1;
  for (const RingStep& step : ring_reduce_scatter(index_, count(), -1)) {
    transfer.sends.push_back({work + slices.begin(step.send), slices.size(step.send)});
    std::byte* to = work + slices.begin(step.receive);
    transfer.receives.push_back({to, to, slices.size(step.receive)});
  }
  return stream_.run(transfer, next(), previous(), dtype, op, deadline);
}

Status TcpGroup::reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                               const Reduction& reduction, Deadline deadline) {
  const bool exact = reduction.integer_average();
  const size_t elements = std::accumulate(counts.begin(), counts.end(), size_t{0});
  const DType dtype = exact ? DType::int128 : reduction.dtype;
  const size_t item = item_size(dtype);
  std::vector<std::byte> work(elements * item);
  if (elements == 0) return {};
  if (exact) {
    widen(reduction.dtype, in, work.data(), elements);
  } else if (reduction.input_factor() != 1.0) {
    kernels().scale(dtype, work.data(), in, elements, reduction.input_factor());
  } else {
    std::memcpy(work.data(), in, work.size());
  }
  std::vector<size_t> bytes;
  for (const size_t one : counts) bytes.push_back(one * item);
  const Slices slices = slices_of(bytes);
  RING_TRY(ring_scatter(work.data(), slices, dtype, wire_op(reduction.op), deadline));
  const size_t mine = counts[static_cast<size_t>(index_)];
  const std::byte* result = work.data() + slices.begin(index_);
  if (mine == 0) return {};
  if (exact) {
    narrow_quotient(reduction.dtype, result, out, mine, reduction.divisor);
  } else if (reduction.output_factor() != 1.0) {
    kernels().scale(dtype, out, result, mine, reduction.output_factor());
  } else {
    std::memcpy(out, result, mine * item);
  }
  return {};
}

}  // namespace ring
