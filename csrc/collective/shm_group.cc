#include "collective/shm_group.h"

#include <algorithm>
#include <cstring>

#include "base/kernels/kernels.h"
#include "base/trace.h"

namespace ring {
namespace {

// The part of slice r that belongs to block b, in bytes of the whole array.
struct Part {
  size_t at;
  size_t bytes;
};

Part part_of(const Slices& slices, int r, uint64_t b, size_t unit) {
  const size_t from = std::min(slices.size(r), static_cast<size_t>(b) * unit);
  return {slices.begin(r) + from, std::min(unit, slices.size(r) - from)};
}

// Part of an output of `total` bytes. What does not stay in a cache anyway goes past it: half the traffic.
constexpr size_t kStream = size_t{8} << 20;

void copy_out(std::byte* to, const std::byte* from, size_t bytes, size_t total) {
  if (to == from || bytes == 0) return;
  if (total >= kStream) {
    kernels().stream(to, from, bytes);
  } else {
    std::memcpy(to, from, bytes);
  }
}

Status nowhere(int rank) {
  return Status(Code::peer_lost, "rank " + std::to_string(rank) + " told of memory that it does not have",
                rank);
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

void ShmGroup::announce(const Pieces& pieces, bool always) {
  placed_in_ = placed_out_ = false;
  if (arena_ == nullptr) return;
  if (seeing_ < 0) {
    seeing_ = 1;
    for (int r = 0; r < count(); ++r) {
      if (counters(r).blind.load(std::memory_order_acquire) != 0) seeing_ = 0;
    }
  }
  if (seeing_ == 0) return;
  ring::announce(*arena_, pieces, first_, always, &layout_.notice(base_, index_), &placed_in_, &placed_out_);
}

const Notice* ShmGroup::notice_of(int r) const {
  if (arena_ == nullptr) return nullptr;
  const Notice& notice = layout_.notice(base_, r);
  return notice.operation.load(std::memory_order_acquire) == first_ + 1 ? &notice : nullptr;
}

Status ShmGroup::input_of(int r, size_t piece, size_t skip, size_t bytes, const std::byte** where) const {
  const Notice* notice = notice_of(r);
  *where = nullptr;
  if (notice == nullptr || notice->inputs == 0) return {};
  *where = arena_->at(r, notice->pieces[piece].in + skip, bytes);
  return *where != nullptr ? Status() : nowhere(members_[static_cast<size_t>(r)]);
}

Status ShmGroup::output_of(int r, size_t piece, size_t skip, size_t bytes, std::byte** where) const {
  const Notice* notice = notice_of(r);
  *where = nullptr;
  if (notice == nullptr || notice->outputs == 0) return {};
  *where = arena_->at(r, notice->pieces[piece].out + skip, bytes);
  return *where != nullptr ? Status() : nowhere(members_[static_cast<size_t>(r)]);
}

bool ShmGroup::all_outputs_placed() const {
  for (int r = 0; r < count(); ++r) {
    const Notice* notice = r == index_ ? nullptr : notice_of(r);
    if (r != index_ && (notice == nullptr || notice->outputs == 0)) return false;
  }
  return true;
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
                        std::byte* mine, Deadline deadline) {
  RING_TRY(wait_all(&Counters::copied, first_ + b + 1, deadline));
  std::byte* result = nullptr;
  if (mine == nullptr && !all_outputs_placed()) {
    RING_TRY(wait_free(&Counters::gathered, b, deadline));
    result = layout_.result(base_, index_, first_ + b);
  }
  const size_t unit = layout_.slice_bytes();
  const size_t item = item_size(reduction.dtype);
  const Part part = part_of(slices, index_, b, unit);
  const TracePhase phase("REDUCE", part.bytes);
  const auto ranks = static_cast<size_t>(count());
  std::vector<const std::byte*> sources(ranks);
  std::vector<std::byte*> places;  // where the result has to be
  Status verdict;
  pieces.walk(part.at, part.bytes, [&](size_t i, size_t skip, size_t bytes, size_t offset) {
    places.assign(1, mine != nullptr ? mine + offset : pieces[i].out + skip);
    if (result != nullptr) places.push_back(result + offset);
    for (int r = 0; r < count() && verdict.ok(); ++r) {
      const std::byte*& source = sources[static_cast<size_t>(r)];
      std::byte* output = nullptr;
      if (r == index_) {
        source = pieces[i].in + skip;
        continue;
      }
      verdict = input_of(r, i, skip, bytes, &source);
      if (verdict.ok() && mine == nullptr) verdict = output_of(r, i, skip, bytes, &output);
      if (source == nullptr) {
        source = layout_.staging(base_, r, first_ + b) + static_cast<size_t>(index_) * unit + offset;
      }
      if (output != nullptr) places.push_back(output);
    }
    if (!verdict.ok()) return;
    kernels().fold_to(reduction.dtype, reduction.op, places.data(), static_cast<int>(places.size()),
                      sources.data(), count(), bytes / item, reduction.prescale, reduction.postscale,
                      reduction.divisor);
  });
  return verdict;
}

// What the others have reduced; this rank's own part is in its place already.
Status ShmGroup::gather(const Slices& slices, const Pieces& pieces, uint64_t b, size_t unit, bool inputs,
                        Deadline deadline) {
  for (int k = 1; k < count(); ++k) {
    const int r = (index_ + k) % count();  // everybody starts elsewhere
    RING_TRY(wait_one(&Counters::reduced, r, first_ + b + 1, deadline));
    const Part part = part_of(slices, r, b, unit);
    const TracePhase phase("GATHER", part.bytes, members_[static_cast<size_t>(r)]);
    const std::byte* source = nullptr;
    if (inputs) RING_TRY(input_of(r, 0, part.at - slices.begin(r), part.bytes, &source));
    if (source == nullptr) source = layout_.result(base_, r, first_ + b);
    pieces.each(part.at, part.bytes, [&](Piece piece, size_t offset) {
      copy_out(piece.out, source + offset, piece.bytes, pieces.bytes());
    });
  }
  publish(&Counters::gathered, b);
  return {};
}

Status ShmGroup::allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) {
  if (pieces.bytes() == 0) return {};
  announce(pieces, count() == 2);
  bool two = count() == 2;
  if (two && arena_ != nullptr && seeing_ > 0) {
    const int other = 1 - index_;
    wake_all();
    auto missing = [&] { return notice_of(other) != nullptr ? -1 : members_[static_cast<size_t>(other)]; };
    RING_TRY(wait_until(missing, counters(index_).sleep, policy_, deadline, watch_));
    const Notice& notice = *notice_of(other);
    two = !(placed_in_ && placed_out_ && notice.inputs != 0 && notice.outputs != 0);
  }
  algorithm_ = two ? "two ranks" : placed_in_ && placed_out_ ? "slices in place" : "slices";
  return two ? allreduce_two(pieces, reduction, deadline) : allreduce_slices(pieces, reduction, deadline);
}

Status ShmGroup::allreduce_slices(const Pieces& pieces, const Reduction& reduction, Deadline deadline) {
  const size_t item = item_size(reduction.dtype);
  const Slices slices = balanced_slices(pieces.bytes(), count(), count(), std::max<size_t>(item, 64));
  const uint64_t total = blocks(slices.longest(), layout_.slice_bytes());
  if (placed_out_) counters(index_).gathered.store(first_ + total, std::memory_order_release);
  if (placed_in_) publish(&Counters::copied, total - 1);
  for (uint64_t b = 0; b < total + 2; ++b) {
    if (b < total && !placed_in_) RING_TRY(copy_in(pieces, slices, b, deadline));
    if (b >= 1 && b - 1 < total) {
      RING_TRY(reduce(pieces, slices, reduction, b - 1, nullptr, deadline));
      publish(&Counters::reduced, b - 1);
    }
    if (b >= 2 && !placed_out_)
      RING_TRY(gather(slices, pieces, b - 2, layout_.slice_bytes(), false, deadline));
  }
  // Until then its slices of other ranks are being written, or its input is being read.
  if (placed_in_ || placed_out_) RING_TRY(wait_all(&Counters::reduced, first_ + total, deadline));
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
  announce(pieces);
  placed_out_ = false;  // the results go to `mine`
  if (placed_in_ && total > 0) publish(&Counters::copied, total - 1);
  for (uint64_t b = 0; b < total + 1; ++b) {
    if (b < total && !placed_in_) RING_TRY(copy_in(pieces, slices, b, deadline));
    if (b == 0) continue;
    RING_TRY(reduce(pieces, slices, reduction, b - 1, mine + static_cast<size_t>(b - 1) * unit, deadline));
    counters(index_).gathered.store(first_ + b, std::memory_order_release);
    publish(&Counters::reduced, b - 1);
  }
  if (placed_in_) RING_TRY(wait_all(&Counters::reduced, first_ + total, deadline));
  first_ += total;
  return {};
}

// A rank whose own part lies in the arena publishes it there.
Status ShmGroup::gather_slices(const std::byte* mine, const Slices& slices, const Pieces& pieces,
                               Deadline deadline) {
  const size_t unit = layout_.block_bytes();
  const uint64_t total = blocks(slices.longest(), unit);
  if (total == 0) return {};
  announce(Pieces({Piece{mine, nullptr, slices.size(index_)}}));
  if (placed_in_) {
    counters(index_).copied.store(first_ + total, std::memory_order_release);
    publish(&Counters::reduced, total - 1);
  }
  for (uint64_t b = 0; b < total + 1; ++b) {
    if (b < total) {
      const Part part = part_of(slices, index_, b, unit);
      const std::byte* source = mine + (part.at - slices.begin(index_));
      if (!placed_in_) {
        RING_TRY(wait_free(&Counters::gathered, b, deadline));
        if (part.bytes > 0) {
          const TracePhase phase("COPY", part.bytes);
          std::memcpy(layout_.result(base_, index_, first_ + b), source, part.bytes);
        }
        counters(index_).copied.store(first_ + b + 1, std::memory_order_release);
        publish(&Counters::reduced, b);
      }
      pieces.each(part.at, part.bytes, [&](Piece piece, size_t offset) {
        copy_out(piece.out, source + offset, piece.bytes, pieces.bytes());
      });
    }
    if (b > 0) RING_TRY(gather(slices, pieces, b - 1, unit, true, deadline));
  }
  if (placed_in_) RING_TRY(wait_all(&Counters::gathered, first_ + total, deadline));
  first_ += total;
  return {};
}

Status ShmGroup::broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) {
  algorithm_ = "publish";
  const size_t unit = layout_.block_bytes();
  const uint64_t total = blocks(bytes, unit);
  if (total == 0) return {};
  placed_in_ = false;
  if (index_ == root) announce(Pieces({Piece{data, nullptr, bytes}}));
  for (uint64_t b = 0; b < total; ++b) {
    const size_t at = static_cast<size_t>(b) * unit;
    const size_t part = std::min(unit, bytes - at);
    if (index_ != root) {
      RING_TRY(wait_one(&Counters::reduced, root, first_ + b + 1, deadline));
      const TracePhase phase("GATHER", part, members_[static_cast<size_t>(root)]);
      const std::byte* source = nullptr;
      RING_TRY(input_of(root, 0, at, part, &source));
      copy_out(data + at, source != nullptr ? source : layout_.result(base_, root, first_ + b), part, bytes);
    } else if (!placed_in_) {
      RING_TRY(wait_free(&Counters::gathered, b, deadline));
      const TracePhase phase("COPY", part);
      std::memcpy(layout_.result(base_, root, first_ + b), data + at, part);
    }
    counters(index_).copied.store(first_ + b + 1, std::memory_order_release);
    counters(index_).gathered.store(first_ + b + 1, std::memory_order_release);
    publish(&Counters::reduced, b);
  }
  if (placed_in_) RING_TRY(wait_all(&Counters::gathered, first_ + total, deadline));
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
  if (total == 0) {
    std::memcpy(out + receives.begin(index_), in + sends.begin(index_), sends.size(index_));
    return {};
  }
  std::vector<Piece> parts;  // one for each receiver; their outputs are not written
  for (int r = 0; r < count(); ++r) parts.push_back({in + sends.begin(r), nullptr, sends.size(r)});
  const Pieces pieces(std::move(parts));
  announce(pieces);
  if (placed_in_) publish(&Counters::copied, total - 1);
  if (sends.size(index_) > 0)
    std::memcpy(out + receives.begin(index_), in + sends.begin(index_), sends.size(index_));
  for (uint64_t b = 0; b < total + 1; ++b) {
    if (b < total && !placed_in_) RING_TRY(copy_in(pieces, sends, b, deadline));
    if (b == 0) continue;
    const uint64_t done = b - 1;
    for (int k = 1; k < count(); ++k) {
      const int r = (index_ + k) % count();
      RING_TRY(wait_one(&Counters::copied, r, first_ + done + 1, deadline));
      const Part part = part_of(receives, r, done, unit);
      if (part.bytes == 0) continue;
      const std::byte* source = nullptr;
      RING_TRY(input_of(r, static_cast<size_t>(index_), part.at - receives.begin(r), part.bytes, &source));
      const std::byte* staged = layout_.staging(base_, r, first_ + done) + static_cast<size_t>(index_) * unit;
      copy_out(out + part.at, source != nullptr ? source : staged, part.bytes, receives.total());
    }
    counters(index_).gathered.store(first_ + done + 1, std::memory_order_release);
    publish(&Counters::reduced, done);
  }
  if (placed_in_) RING_TRY(wait_all(&Counters::reduced, first_ + total, deadline));
  first_ += total;
  return {};
}

}  // namespace ring
