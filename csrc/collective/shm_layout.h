// How the ranks of one host divide their shared segment. n ranks, all sizes multiples of a cache line:
//
//   challenge     128 bytes, used once while the topology is agreed
//   n × Counters  what each rank has done; written by that rank only
//   n × 2 slots   of the small exchange: sequence, head, payload; double-buffered
//   n × Notice    where a rank's tensors lie, if its peers can reach them (see placement.h)
//   n × D blocks  staging: a rank's input, for its peers to reduce from
//   n × D blocks  results: a rank's finished slice, for its peers to copy
//   n parts       the arena, if there is one: addresses behind the layout (see transport/arena.h)
//
// Single writer: every byte is written by one rank. No lock lives here, so a killed rank leaves nothing
// locked.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collective/exchange.h"
#include "collective/placement.h"
#include "transport/wait.h"

namespace ring {

constexpr size_t kLine = 128;  // two cache lines: processors fetch them in pairs

// Numbers of blocks finished since the segment was made; they only grow.
struct Counters {
  alignas(kLine) std::atomic<uint64_t> copied;
  alignas(kLine) std::atomic<uint64_t> reduced;
  alignas(kLine) std::atomic<uint64_t> gathered;
  alignas(kLine) SleepWord sleep;
  std::atomic<uint32_t> blind;  // 1: this rank has no view of the arena, so nobody uses it
};

struct ExchangeSlot {
  std::atomic<uint64_t> sequence;  // the exchange whose content this is, plus one
  Head head;
  std::byte payload[1];  // really payload_limit bytes
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

class ShmLayout {
 public:
  static constexpr int kDepth = 2;  // blocks in flight

  ShmLayout(int ranks, size_t segment_bytes) : ranks_(static_cast<size_t>(ranks)) {
    set_segment(segment_bytes);
    stride_ = block_bytes_;
    payload_bytes_ = std::clamp<size_t>((size_t{128} << 10) / ranks_, 4096, 32768);
    slot_bytes_ = round_up(offsetof(ExchangeSlot, payload) + payload_bytes_, kLine);
  }

  // Makes blocks smaller, or as large again as they were made; everything stays in its place.
  void set_segment(size_t segment_bytes) {
    slice_bytes_ = round_up(std::max<size_t>(64, segment_bytes / ranks_), 64);
    block_bytes_ = round_up(slice_bytes_ * ranks_, kLine);
  }

  size_t slice_bytes() const { return slice_bytes_; }  // one rank's share of a block
  size_t block_bytes() const { return block_bytes_; }
  size_t payload_bytes() const { return payload_bytes_; }
  // Whole pages, so that the arena begins with one.
  size_t total_bytes() const { return round_up(results_at() + ranks_ * kDepth * stride_, 4096); }

  Counters& counters(std::byte* base, int rank) const {
    return *reinterpret_cast<Counters*>(base + kLine + index(rank) * sizeof(Counters));
  }
  ExchangeSlot& slot(std::byte* base, int rank, uint64_t sequence) const {
    return *reinterpret_cast<ExchangeSlot*>(base + slots_at() +
                                            (index(rank) * 2 + (sequence & 1)) * slot_bytes_);
  }
  Notice& notice(std::byte* base, int rank) const {
    return *reinterpret_cast<Notice*>(base + notices_at() + index(rank) * kNoticeBytes);
  }
  std::byte* staging(std::byte* base, int rank, uint64_t block) const {
    return base + staging_at() + (index(rank) * kDepth + block % kDepth) * stride_;
  }
  std::byte* result(std::byte* base, int rank, uint64_t block) const {
    return base + results_at() + (index(rank) * kDepth + block % kDepth) * stride_;
  }

 private:
  static constexpr size_t kNoticeBytes = (sizeof(Notice) + kLine - 1) / kLine * kLine;
  static size_t round_up(size_t value, size_t to) { return (value + to - 1) / to * to; }
  static size_t index(int rank) { return static_cast<size_t>(rank); }
  size_t slots_at() const { return kLine + ranks_ * sizeof(Counters); }
  size_t notices_at() const { return round_up(slots_at() + ranks_ * 2 * slot_bytes_, kLine); }
  // Half a page off: large arrays begin a little behind a page's start, and where a copy goes to addresses
  // whose last 12 bits are just ahead of its source's, processors take each load for one of a store that is
  // not done yet. That made copies four times as slow.
  size_t staging_at() const { return round_up(notices_at() + ranks_ * kNoticeBytes, 4096) + 2048; }
  size_t results_at() const { return staging_at() + ranks_ * kDepth * stride_; }

  size_t ranks_;
  size_t slice_bytes_;
  size_t payload_bytes_;
  size_t slot_bytes_;
  size_t block_bytes_;
  size_t stride_;  // from one block to the next
};

}  // namespace ring
