// alltoall over TCP: every rank with every other at once, each pair over its own data connection.
//
// A rank sends every other rank its slice and receives one from each: n-1 messages each way, one hop, only
// the bytes that are meant for the receiver. Sizes are known on both sides beforehand, so nothing is framed.
//
// What must not deadlock: sending never waits for receiving nor the other way round; whatever connection can
// move bytes does, and a rank always reads what arrives for it.
#pragma once

#include <cstddef>
#include <vector>

#include "collective/schedule.h"
#include "collective/tcp_stream.h"

namespace ring {

class TcpPairs {
 public:
  // links[index] is unused.
  void set_segment(size_t bytes) { segment_bytes_ = bytes; }
  TcpPairs(std::vector<Link> links, int index, size_t segment_bytes, WaitPolicy policy, Watch& watch)
      : links_(std::move(links)),
        index_(index),
        segment_bytes_(segment_bytes),
        policy_(policy),
        watch_(watch) {}

  // Slices are bytes; this rank's own slice is not touched.
  Status run(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
             Deadline deadline);

 private:
  struct Task;
  Status step(Task& task, int r, bool* moved);
  Status wait(const Task& task, int64_t idle_since, Deadline deadline);
  int count() const { return static_cast<int>(links_.size()); }
  const Link& link(int r) const { return links_[static_cast<size_t>(r)]; }

  const std::vector<Link> links_;
  const int index_;
  size_t segment_bytes_;
  const WaitPolicy policy_;
  Watch& watch_;
  int64_t looked_ = 0;
};

}  // namespace ring
