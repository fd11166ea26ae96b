// allreduce and reducescatter by direct exchange, over every data connection of the group at once.
//
// The array is divided into n slices. Each rank sends every other rank its contribution to that rank's slice,
// folds its own slice, segment by segment, as soon as everybody's segment is there, and (allreduce) sends
// each finished segment to everybody. Two hops whatever the number of ranks; 2 T (n-1)/n bytes sent per rank,
// the same as a ring; reducescatter half of it.
//
// Every element is folded in the order 0 … n-1, with the wide accumulator of the kernels, wherever it lies:
// so the bits do not depend on what a tensor was fused with, and are those of the shared-memory algorithm.
//
// What must not deadlock: contributions are sent without waiting for anything, and a rank reads a peer's
// finished slice only after that peer's contribution, so every rank can always finish folding.
#pragma once

#include <vector>

#include "collective/group.h"
#include "collective/schedule.h"
#include "collective/tcp_stream.h"

namespace ring {

class TcpDirect {
 public:
  TcpDirect(std::vector<Link> links, int index, size_t segment_bytes, WaitPolicy policy, Watch& watch);
  void set_segment(size_t bytes) { segment_bytes_ = bytes < 128 ? 64 : bytes / 64 * 64; }

  // Slices are bytes. With `gather`, `out` gets everything; without, it is this rank's slice alone.
  Status run(const std::byte* in, std::byte* out, const Slices& slices, const Reduction& reduction,
             bool gather, Deadline deadline);

 private:
  // The state of one peer's connection.
  struct Peer {
    size_t sent_contribution = 0;
    size_t sent_result = 0;
    size_t contribution = 0;  // bytes of its contribution to our slice received
    size_t result = 0;        // bytes of its finished slice received
    std::vector<std::byte> segment;
  };
  struct Task;

  Status step(const Task& task, int r, bool* moved);
  Status send(const Task& task, int r, bool* moved);
  Status receive(const Task& task, int r, bool* moved);
  void fold_ready(const Task& task);
  bool finished(const Task& task, int r) const;
  Status wait(const Task& task, int64_t idle_since, Deadline deadline);
  int count() const { return static_cast<int>(links_.size()); }
  Peer& peer(int r) { return peers_[static_cast<size_t>(r)]; }
  const Peer& peer(int r) const { return peers_[static_cast<size_t>(r)]; }
  const Link& link(int r) const { return links_[static_cast<size_t>(r)]; }

  const std::vector<Link> links_;  // links_[index_] is unused
  const int index_;
  size_t segment_bytes_;  // a multiple of every item size
  const WaitPolicy policy_;
  Watch& watch_;
  std::vector<Peer> peers_;
  size_t folded_ = 0;  // bytes of this rank's slice that are finished
  int64_t looked_ = 0;
};

}  // namespace ring
