// Sending and receiving at the same time over data connections, segment by segment.
//
// A transfer is a list of items to receive, in order, and a list of items to send, in order. Sending item i
// may depend on receiving item i - lag: as soon as bytes of that item have arrived (and have been reduced),
// they may go on. So a ring or a chain is one continuous stream, never waiting for a whole step to end.
#pragma once

#include <cstddef>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/status.h"
#include "transport/socket.h"
#include "transport/wait.h"
#include "transport/watch.h"

namespace ring {

struct SendItem {
  const std::byte* data;
  size_t bytes;
};

struct ReceiveItem {
  std::byte* data;       // where the bytes, or the reduced elements, go
  const std::byte* own;  // null: just receive; otherwise data[i] = arrived[i] op own[i]
  size_t bytes;
};

struct Transfer {
  static constexpr size_t kIndependent = static_cast<size_t>(-1);
  std::vector<SendItem> sends;
  std::vector<ReceiveItem> receives;
  size_t lag = kIndependent;  // sends[i] needs receives[i - lag], for i >= lag
};

struct Link {
  const Socket* socket = nullptr;
  int rank = -1;  // global rank at the other end
};

// A data connection broke: asks the control connections, for up to half a second, why.
Status connection_lost(Watch& watch, int rank);

class TcpStream {
 public:
  TcpStream(size_t segment_bytes, WaitPolicy policy, Watch& watch) : policy_(policy), watch_(watch) {
    set_segment(segment_bytes);
  }
  void set_segment(size_t bytes) { segment_bytes_ = bytes < 64 ? 64 : bytes; }

  // Sends to `to`, receives from `from` (which may be the same connection); reduces with dtype and op.
  Status run(const Transfer& transfer, Link to, Link from, DType dtype, ReduceOp op, Deadline deadline);

 private:
  struct Progress;
  IoResult receive_some(const Transfer& transfer, Progress& at, Link from, DType dtype, ReduceOp op);
  IoResult send_some(const Transfer& transfer, Progress& at, Link to) const;
  Status wait(const Progress& at, Link to, Link from, bool sending, bool receiving, Deadline deadline);

  size_t segment_bytes_;
  const WaitPolicy policy_;
  Watch& watch_;
  std::vector<std::byte> scratch_;  // bytes that arrived and wait to be reduced
  int64_t looked_ = 0;
};

}  // namespace ring
