// Collectives through shared memory, block by block.
//
// allreduce, n > 2 ranks, T bytes. The array is divided into n slices; block b holds the b-th part of every
// slice. Each rank, for every block:
//     copy     its input of the other ranks' parts into its staging          T (n-1)/n bytes
//     reduce   its own part, from its input and everybody's staging in rank order, into its output and its
//              results
//     gather   the others' results into its output                           T (n-1)/n bytes
//   Two waits per block: for all copies before reduce, for all reductions before gather. Blocks overlap: a
//   rank copies block b, reduces b-1 and gathers b-2, so it seldom waits for a rank that is a little behind.
//   Every element is reduced once, by one rank, always in the order 0 … n-1: all ranks get the same bits.
// allreduce, 2 ranks. One phase: both copy the whole block and both reduce it: one wait per block.
// reducescatter is copy and reduce; allgather and broadcast are "publish a result" and gather; alltoall is
// copy, and then everybody takes its own part out of everybody's staging: T (n-1)/n bytes in and out.
//
// Zero copy. A rank whose tensors lie in the arena (see transport/arena.h) says where, in its notice, with
// its first counter, and skips what is not needed then:
//     input in the arena    it copies nothing: the others read its input where it lies
//     output in the arena   it gathers nothing: who reduces a slice writes it into its output as well
//   Each rank's slice is read and overwritten by the rank that reduces it and by nobody else, so input and
//   output may be the same memory. The operation ends for such a rank when all have reduced (gathered), for
//   until then they use its memory. Ranks with and without the arena mix. Two ranks compare notices first and
//   work by slices, as n > 2 ranks do, if both have everything in the arena: then 2 T/n bytes are read and T
//   written by each rank, and that is all.
//
// Counters never go back and go on from one operation to the next, so there is nothing to reset. Before it
// overwrites a staging (result) block a rank sees that all have reduced (gathered) what was in it.
#pragma once

#include <atomic>
#include <vector>

#include "collective/group.h"
#include "collective/schedule.h"
#include "collective/shm_layout.h"

namespace ring {

class ShmGroup final : public Group {
 public:
  // `base` is a segment laid out by `layout`, zero where counters are. `members` are global ranks. `arena`
  // may be null.
  ShmGroup(std::byte* base, const ShmLayout& layout, std::vector<int> members, int index, WaitPolicy policy,
           Watch& watch, const Arena* arena)
      : base_(base),
        layout_(layout),
        members_(std::move(members)),
        index_(index),
        policy_(policy),
        watch_(watch),
        arena_(arena) {
    counters(index_).blind.store(arena_ == nullptr, std::memory_order_release);
  }

  void set_segment(size_t bytes) override { layout_.set_segment(bytes); }
  Status allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) override;
  Status broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) override;
  Status allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                   Deadline deadline) override;
  Status reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                       const Reduction& reduction, Deadline deadline) override;
  Status alltoall(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
                  size_t longest, Deadline deadline) override;

  // The two halves of allreduce, with any division into slices (bytes): used across hosts.
  Status reduce_slices(const Pieces& pieces, const Slices& slices, const Reduction& reduction,
                       std::byte* mine, Deadline deadline);
  Status gather_slices(const std::byte* mine, const Slices& slices, const Pieces& pieces, Deadline deadline);

 private:
  using Counter = std::atomic<uint64_t> Counters::*;

  Status allreduce_two(const Pieces& pieces, const Reduction& reduction, Deadline deadline);
  Status allreduce_slices(const Pieces& pieces, const Reduction& reduction, Deadline deadline);
  Status copy_in(const Pieces& pieces, const Slices& slices, uint64_t b, Deadline deadline);
  // Into the outputs, others' too and the results, or, with `mine`, only there.
  Status reduce(const Pieces& pieces, const Slices& slices, const Reduction& reduction, uint64_t b,
                std::byte* mine, Deadline deadline);
  // `inputs`: what is gathered are the others' inputs, perhaps in the arena; else their results.
  Status gather(const Slices& slices, const Pieces& pieces, uint64_t b, size_t unit, bool inputs,
                Deadline deadline);

  // Tells the others where this operation's tensors lie, and sets placed_.
  void announce(const Pieces& pieces, bool always = false);
  // What rank r told about this operation, once its first counter is seen; null: it copies.
  const Notice* notice_of(int r) const;
  // Where rank r's input (output) of a piece lies, or null if it is not in the arena.
  Status input_of(int r, size_t piece, size_t skip, size_t bytes, const std::byte** where) const;
  Status output_of(int r, size_t piece, size_t skip, size_t bytes, std::byte** where) const;
  bool all_outputs_placed() const;

  // Waits until every rank's (or one rank's) counter has reached `target`.
  Status wait_all(Counter counter, uint64_t target, Deadline deadline);
  Status wait_one(Counter counter, int index, uint64_t target, Deadline deadline);
  // Waits until block `b` of this operation may overwrite what its buffer held before.
  Status wait_free(Counter counter, uint64_t b, Deadline deadline);
  void publish(Counter counter, uint64_t b);
  void wake_all();

  int count() const { return static_cast<int>(members_.size()); }
  Counters& counters(int r) const { return layout_.counters(base_, r); }
  uint64_t blocks(size_t bytes, size_t unit) const { return (bytes + unit - 1) / unit; }

  std::byte* const base_;
  ShmLayout layout_;
  const std::vector<int> members_;
  const int index_;
  const WaitPolicy policy_;
  Watch& watch_;
  const Arena* const arena_;
  int seeing_ = -1;     // whether every rank sees the arena; -1: not asked yet
  uint64_t first_ = 0;  // number of the current operation's first block
  // Of this rank's tensors in the current operation.
  bool placed_in_ = false;
  bool placed_out_ = false;
};

}  // namespace ring
