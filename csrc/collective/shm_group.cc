#include "collective/shm_group.h"

#include <algorithm>
#include <cstring>

#include "base/kernels/kernels.h"
#include "base/trace.h"

namespace ring {
namespace {

constexpr size_t kMaxStackRanks = 64;

// The part of slice r that belongs to block b, in bytes of the whole array.
struct Part {
  size_t at;
  size_t bytes;
};

Part part_of(const Slices& slices, int r, uint64_t b, size_t unit) {
  const size_t from = std::min(slices.size(r), static_cast<size_t>(b) * unit);
  return {slices.begin(r) + from, std::min(unit, slices.size(r) - from)};
}

}  // namespace

void ShmGroup::wake_all() {
  for (int r = 0; r < count(); ++r) {
    if (r != index_) counters(r).sleep.wake();
  }
}

void ShmGroup::publish(Counter counter, uint64_t b) {
  (counters(index_).*counter).store(first_ + b + 1, std::memory_order_seq_cst);
  wake_all();
}

Status ShmGroup::wait_all(Counter counter, uint64_t target, Deadline deadline) {
  int next = 0;
  auto missing = [&] {
    while (next < count() && (counters(next).*counter).load(std::memory_order_acquire) >= target) ++next;
    return next < count() ? members_[static_cast<size_t>(next)] : -1;
  };
  return wait_until(missing, counters(index_).sleep, policy_, deadline, watch_);
}

Status ShmGroup::wait_one(Counter counter, int index, uint64_t target, Deadline deadline) {
  auto missing = [&] {
    const bool there = (counters(index).*counter).load(std::memory_order_acquire) >= target;
    return there ? -1 : members_[static_cast<size_t>(index)];
  };
  return wait_until(missing, counters(index_).sleep, policy_, deadline, watch_);
}

Status ShmGroup::wait_free(Counter counter, uint64_t b, Deadline deadline) {
  const uint64_t block = first_ + b;
  if (block < ShmLayout::kDepth) return {};
  return wait_all(counter, block - ShmLayout::kDepth + 1, deadline);
}

Status ShmGroup::copy_in(const Pieces& pieces, const Slices& slices, uint64_t b, Deadline deadline) {
  RING_TRY(wait_free(&Counters::reduced, b, deadline));
  const size_t unit = layout_.slice_bytes();
  std::byte* staging = layout_.staging(base_, index_, first_ + b);
  const TracePhase phase("COPY", unit * static_cast<size_t>(count() - 1));
  for (int r = 0; r < count(); ++r) {
    if (r == index_) continue;
    const Part part = part_of(slices, r, b, unit);
    pieces.pack(part.at, part.bytes, staging + static_cast<size_t>(r) * unit);
  }
  publish(&Counters::copied, b);
  return {};
}

Status ShmGroup::reduce(const Pieces& pieces, const Slices& slices, const Reduction& reduction, uint64_t b,
                        std::byte* to, Deadline deadline) {
  RING_TRY(wait_all(&Counters::copied, first_ + b + 1, deadline));
  const size_t unit = layout_.slice_bytes();
  const size_t item = item_size(reduction.dtype);
  const Part part = part_of(slices, index_, b, unit);
  const TracePhase phase("REDUCE", part.bytes);
  std::vector<const std::byte*> sources(static_cast<size_t>(count()));
  pieces.each(part.at, part.bytes, [&](Piece piece, size_t offset) {
    for (int r = 0; r < count(); ++r) {
      sources[static_cast<size_t>(r)] =
          r == index_ ? piece.in
                      : layout_.staging(base_, r, first_ + b) + static_cast<size_t>(index_) * unit + offset;
    }
    kernels().fold(reduction.dtype, reduction.op, to + offset, sources.data(), count(), piece.bytes / item,
                   reduction.prescale, reduction.postscale, reduction.divisor);
  });
  return {};
}

Status ShmGroup::gather(const Slices& slices, const Pieces& pieces, uint64_t b, size_t unit,
                        Deadline deadline) {
  for (int k = 0; k < count(); ++k) {
    const int r = (index_ + k) % count();  // its own first: ready, and everybody starts elsewhere
    RING_TRY(wait_one(&Counters::reduced, r, first_ + b + 1, deadline));
    const Part part = part_of(slices, r, b, unit);
    const TracePhase phase("GATHER", part.bytes, members_[static_cast<size_t>(r)]);
    pieces.unpack(part.at, part.bytes, layout_.result(base_, r, first_ + b));
  }
  publish(&Counters::gathered, b);
  return {};
}

Status ShmGroup::allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) {
  if (pieces.bytes() == 0) return {};
  algorithm_ = count() == 2 ? "two ranks" : "slices";
  if (count() == 2) return allreduce_two(pieces, reduction, deadline);
  const size_t item = item_size(reduction.dtype);
  const Slices slices = balanced_slices(pieces.bytes(), count(), count(), std::max<size_t>(item, 64));
  const uint64_t total = blocks(slices.longest(), layout_.slice_bytes());
  for (uint64_t b = 0; b < total + 2; ++b) {
    if (b < total) RING_TRY(copy_in(pieces, slices, b, deadline));
    if (b >= 1 && b - 1 < total) {
      RING_TRY(wait_free(&Counters::gathered, b - 1, deadline));
      std::byte* result = layout_.result(base_, index_, first_ + b - 1);
      RING_TRY(reduce(pieces, slices, reduction, b - 1, result, deadline));
      publish(&Counters::reduced, b - 1);
    }
    if (b >= 2) RING_TRY(gather(slices, pieces, b - 2, layout_.slice_bytes(), deadline));
  }
  first_ += total;
  return {};
}

Status ShmGroup::allreduce_two(const Pieces& pieces, const Reduction& reduction, Deadline deadline) {
  const size_t item = item_size(reduction.dtype);
  const size_t unit = layout_.block_bytes() / item * item;
  const int other = 1 - index_;
  const uint64_t total = blocks(pieces.bytes(), unit);
  for (uint64_t b = 0; b < total + 1; ++b) {
    if (b < total) {
      RING_TRY(wait_free(&Counters::reduced, b, deadline));
      const size_t at = static_cast<size_t>(b) * unit;
      const TracePhase phase("COPY", std::min(unit, pieces.bytes() - at));
      pieces.pack(at, std::min(unit, pieces.bytes() - at), layout_.staging(base_, index_, first_ + b));
      publish(&Counters::copied, b);
    }
    if (b == 0) continue;
    const uint64_t done = b - 1;
    RING_TRY(wait_one(&Counters::copied, other, first_ + done + 1, deadline));
    const size_t at = static_cast<size_t>(done) * unit;
    const std::byte* theirs = layout_.staging(base_, other, first_ + done);
    const TracePhase phase("REDUCE", std::min(unit, pieces.bytes() - at));
    pieces.each(at, std::min(unit, pieces.bytes() - at), [&](Piece piece, size_t offset) {
      const std::byte* sources[2];
      sources[index_] = piece.in;
      sources[other] = theirs + offset;
      kernels().fold(reduction.dtype, reduction.op, piece.out, sources, 2, piece.bytes / item,
                     reduction.prescale, reduction.postscale, reduction.divisor);
    });
    counters(index_).gathered.store(first_ + done + 1, std::memory_order_release);
    publish(&Counters::reduced, done);
  }
  first_ += total;
  return {};
}

Status ShmGroup::reduce_slices(const Pieces& pieces, const Slices& slices, const Reduction& reduction,
                               std::byte* mine, Deadline deadline) {
  const size_t unit = layout_.slice_bytes();
  const uint64_t total = blocks(slices.longest(), unit);
  for (uint64_t b = 0; b < total + 1; ++b) {
    if (b < total) RING_TRY(copy_in(pieces, slices, b, deadline));
    if (b == 0) continue;
    RING_TRY(reduce(pieces, slices, reduction, b - 1, mine + static_cast<size_t>(b - 1) * unit, deadline));
    counters(index_).gathered.store(first_ + b, std::memory_order_release);
    publish(&Counters::reduced, b - 1);
  }
  first_ += total;
  return {};
}

Status ShmGroup::gather_slices(const std::byte* mine, const Slices& slices, const Pieces& pieces,
                               Deadline deadline) {
  const size_t unit = layout_.block_bytes();
  const uint64_t total = blocks(slices.longest(), unit);
  for (uint64_t b = 0; b < total + 1; ++b) {
    if (b < total) {
      RING_TRY(wait_free(&Counters::gathered, b, deadline));
      const Part part = part_of(slices, index_, b, unit);
      if (part.bytes > 0) {
        const TracePhase phase("COPY", part.bytes);
        std::memcpy(layout_.result(base_, index_, first_ + b), mine + (part.at - slices.begin(index_)),
                    part.bytes);
      }
      counters(index_).copied.store(first_ + b + 1, std::memory_order_release);
      publish(&Counters::reduced, b);
    }
    if (b > 0) RING_TRY(gather(slices, pieces, b - 1, unit, deadline));
  }
  first_ += total;
  return {};
}

Status ShmGroup::broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) {
  algorithm_ = "publish";
  const size_t unit = layout_.block_bytes();
  const uint64_t total = blocks(bytes, unit);
  for (uint64_t b = 0; b < total; ++b) {
    const size_t at = static_cast<size_t>(b) * unit;
    const size_t part = std::min(unit, bytes - at);
    if (index_ == root) {
      RING_TRY(wait_free(&Counters::gathered, b, deadline));
      const TracePhase phase("COPY", part);
      std::memcpy(layout_.result(base_, root, first_ + b), data + at, part);
    } else {
      RING_TRY(wait_one(&Counters::reduced, root, first_ + b + 1, deadline));
      const TracePhase phase("GATHER", part, members_[static_cast<size_t>(root)]);
      std::memcpy(data + at, layout_.result(base_, root, first_ + b), part);
    }
    counters(index_).copied.store(first_ + b + 1, std::memory_order_release);
    counters(index_).gathered.store(first_ + b + 1, std::memory_order_release);
    publish(&Counters::reduced, b);
  }
  first_ += total;
  return {};
}

Status ShmGroup::allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                           Deadline deadline) {
  algorithm_ = "publish";
  const Slices slices = slices_of(bytes);
  return gather_slices(in, slices, Pieces({Piece{out, out, slices.total()}}), deadline);
}

Status ShmGroup::reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                               const Reduction& reduction, Deadline deadline) {
  algorithm_ = "slices";
  const size_t item = item_size(reduction.dtype);
  std::vector<size_t> bytes;
  for (const size_t elements : counts) bytes.push_back(elements * item);
  const Slices slices = slices_of(bytes);
  return reduce_slices(Pieces({Piece{in, const_cast<std::byte*>(in), slices.total()}}), slices, reduction,
                       out,
                       deadline);  // outputs of these pieces are never written
}

Status ShmGroup::alltoall(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
                          size_t longest, Deadline deadline) {
  algorithm_ = "publish";
  const size_t unit = layout_.slice_bytes();
  const uint64_t total = blocks(longest, unit);
  if (sends.size(index_) > 0)
    std::memcpy(out + receives.begin(index_), in + sends.begin(index_), sends.size(index_));
  const Pieces pieces(
      {Piece{in, const_cast<std::byte*>(in), sends.total()}});  // whose outputs are not written
  for (uint64_t b = 0; b < total + 1; ++b) {
    if (b < total) RING_TRY(copy_in(pieces, sends, b, deadline));
    if (b == 0) continue;
    const uint64_t done = b - 1;
    for (int k = 1; k < count(); ++k) {
      const int r = (index_ + k) % count();
      RING_TRY(wait_one(&Counters::copied, r, first_ + done + 1, deadline));
      const Part part = part_of(receives, r, done, unit);
      if (part.bytes == 0) continue;
      const std::byte* theirs = layout_.staging(base_, r, first_ + done);
      std::memcpy(out + part.at, theirs + static_cast<size_t>(index_) * unit, part.bytes);
    }
    counters(index_).gathered.store(first_ + done + 1, std::memory_order_release);
    publish(&Counters::reduced, done);
  }
  first_ += total;
  return {};
}

}  // namespace ring
