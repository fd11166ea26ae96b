#include "collective/tcp_stream.h"

#include <poll.h>

#include <algorithm>
#include <cstring>

#include "base/kernels/kernels.h"
#include "base/trace.h"

namespace ring {

struct TcpStream::Progress {
  size_t send_item = 0;
  size_t sent = 0;  // bytes of it
  size_t receive_item = 0;
  size_t received = 0;  // bytes of it that are in place
  size_t fill = 0;      // bytes in scratch that are not reduced yet
  int64_t idle_since = 0;
};

IoResult TcpStream::receive_some(const Transfer& transfer, Progress& at, Link from, DType dtype,
                                 ReduceOp op) {
  const ReceiveItem& item = transfer.receives[at.receive_item];
  const size_t left = item.bytes - at.received;
  if (item.own == nullptr) {
    TracePhase phase("RECEIVE", 0, from.rank);
    const IoResult io = from.socket->try_receive(item.data + at.received, std::min(left, segment_bytes_));
    phase.bytes(io.bytes);
    if (io.bytes == 0) phase.drop();
    at.received += io.bytes;
    return io;
  }
  const size_t want = std::min(left, segment_bytes_);
  if (scratch_.size() < segment_bytes_) scratch_.resize(segment_bytes_);
  const IoResult io = [&] {
    TracePhase phase("RECEIVE", 0, from.rank);
    const IoResult arrived = from.socket->try_receive(scratch_.data() + at.fill, want - at.fill);
    phase.bytes(arrived.bytes);
    if (arrived.bytes == 0) phase.drop();
    return arrived;
  }();
  at.fill += io.bytes;
  const size_t size = item_size(dtype);
  const size_t whole = at.fill / size;
  if (whole > 0) {
    const TracePhase phase("REDUCE", whole * size);
    const std::byte* sources[2] = {scratch_.data(), item.own + at.received};
    kernels().fold(dtype, op, item.data + at.received, sources, 2, whole, 1, 1, 1);
    at.received += whole * size;
    at.fill -= whole * size;
    if (at.fill > 0) std::memmove(scratch_.data(), scratch_.data() + whole * size, at.fill);
  }
  return io;
}

IoResult TcpStream::send_some(const Transfer& transfer, Progress& at, Link to) const {
  const SendItem& item = transfer.sends[at.send_item];
  size_t ready = item.bytes;
  if (transfer.lag != Transfer::kIndependent && at.send_item >= transfer.lag) {
    const size_t needs = at.send_item - transfer.lag;
    if (needs == at.receive_item) ready = at.received;
    if (needs > at.receive_item) ready = 0;
  }
  if (ready <= at.sent) return {};
  TracePhase phase("SEND", 0, to.rank);
  const IoResult io = to.socket->try_send(item.data + at.sent, std::min(ready - at.sent, segment_bytes_));
  at.sent += io.bytes;
  phase.bytes(io.bytes);
  if (io.bytes == 0) phase.drop();
  return io;
}

Status TcpStream::run(const Transfer& transfer, Link to, Link from, DType dtype, ReduceOp op,
                      Deadline deadline) {
  Progress at;
  looked_ = now_us();
  for (;;) {
    while (at.receive_item < transfer.receives.size() &&
           at.received == transfer.receives[at.receive_item].bytes) {
      ++at.receive_item;
      at.received = 0;
    }
    while (at.send_item < transfer.sends.size() && at.sent == transfer.sends[at.send_item].bytes) {
      ++at.send_item;
      at.sent = 0;
    }
    const bool receiving = at.receive_item < transfer.receives.size();
    const bool sending = at.send_item < transfer.sends.size();
    if (!receiving && !sending) return {};
    size_t moved = 0;
    if (receiving) {
      const IoResult io = receive_some(transfer, at, from, dtype, op);
      if (io.closed) return connection_lost(watch_, from.rank);
      moved += io.bytes;
    }
    if (sending) {
      const IoResult io = send_some(transfer, at, to);
      if (io.closed) return connection_lost(watch_, to.rank);
      moved += io.bytes;
    }
    if (moved > 0) {
      at.idle_since = 0;
      continue;
    }
    if (at.idle_since == 0) at.idle_since = now_us();
    bool can_send = sending;
    if (sending && transfer.lag != Transfer::kIndependent && at.send_item >= transfer.lag) {
      const size_t needs = at.send_item - transfer.lag;
      can_send = needs < at.receive_item || (needs == at.receive_item && at.received > at.sent);
    }
    RING_TRY(wait(at, to, from, can_send, receiving, deadline));
  }
}

Status TcpStream::wait(const Progress& at, Link to, Link from, bool sending, bool receiving,
                       Deadline deadline) {
  const int64_t now = now_us();
  const int64_t idle = now - at.idle_since;
  const int who = receiving ? from.rank : to.rank;
  if (idle < policy_.spin_us) {
    cpu_relax();
  } else if (idle < policy_.spin_us + policy_.yield_us / 4) {
    yield_cpu();
  } else {
    pollfd fds[2];
    nfds_t count = 0;
    if (receiving) fds[count++] = {from.socket->fd(), POLLIN, 0};
    if (sending) fds[count++] = {to.socket->fd(), POLLOUT, 0};
    const TracePhase phase("WAIT", 0, who);
    ::poll(fds, count, 5);
  }
  watch_.waited(who, now_us() - now);
  if (now - looked_ < kWatchEveryUs) return {};
  looked_ = now;
  const Status verdict = watch_.check_stream(who);
  if (!verdict.ok()) {
    if (receiving && from.socket->readable()) return {};  // what a peer sent before it left counts
    return verdict;
  }
  if (deadline.expired()) return Status(Code::timeout, "deadline passed", who);
  return {};
}

Status connection_lost(Watch& watch, int rank) {
  for (int i = 0; i < 250; ++i) {
    const Status verdict = watch.check(rank);
    if (!verdict.ok()) return verdict;
    ::poll(nullptr, 0, 2);
  }
  return Status(Code::peer_lost, "the data connection to rank " + std::to_string(rank) + " broke", rank);
}

}  // namespace ring
