#include "collective/tcp_pairs.h"

#include <poll.h>

#include <algorithm>

#include "base/trace.h"

namespace ring {

struct TcpPairs::Task {
  const std::byte* in;
  const Slices& sends;
  std::byte* out;
  const Slices& receives;
  std::vector<size_t> sent;
  std::vector<size_t> received;

  bool sending(int r) const { return sent[static_cast<size_t>(r)] < sends.size(r); }
  bool receiving(int r) const { return received[static_cast<size_t>(r)] < receives.size(r); }
};

Status TcpPairs::step(Task& task, int r, bool* moved) {
  const Socket& socket = *link(r).socket;
  if (task.sending(r)) {
    size_t& sent = task.sent[static_cast<size_t>(r)];
    const std::byte* from = task.in + task.sends.begin(r) + sent;
    TracePhase phase("SEND", 0, link(r).rank);
    const IoResult io = socket.try_send(from, std::min(task.sends.size(r) - sent, segment_bytes_));
    phase.bytes(io.bytes);
    if (io.bytes == 0) phase.drop();
    if (io.closed) return connection_lost(watch_, link(r).rank);
    sent += io.bytes;
    *moved = *moved || io.bytes > 0;
  }
  if (task.receiving(r)) {
    size_t& received = task.received[static_cast<size_t>(r)];
    std::byte* to = task.out + task.receives.begin(r) + received;
    TracePhase phase("RECEIVE", 0, link(r).rank);
    const IoResult io = socket.try_receive(to, std::min(task.receives.size(r) - received, segment_bytes_));
    phase.bytes(io.bytes);
    if (io.bytes == 0) phase.drop();
    if (io.closed) return connection_lost(watch_, link(r).rank);
    received += io.bytes;
    *moved = *moved || io.bytes > 0;
  }
  return {};
}

Status TcpPairs::run(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
                     Deadline deadline) {
  Task task{in, sends, out, receives, std::vector<size_t>(links_.size()), std::vector<size_t>(links_.size())};
  looked_ = now_us();
  int64_t idle_since = 0;
  for (;;) {
    bool moved = false, all = true;
    for (int k = 1; k < count(); ++k) {
      const int r = ring_mod(index_ + k, count());
      if (!task.sending(r) && !task.receiving(r)) continue;
      all = false;
      RING_TRY(step(task, r, &moved));
    }
    if (all) return {};
    if (moved) {
      idle_since = 0;
      continue;
    }
    if (idle_since == 0) idle_since = now_us();
    RING_TRY(wait(task, idle_since, deadline));
  }
}

Status TcpPairs::wait(const Task& task, int64_t idle_since, Deadline deadline) {
  const int64_t now = now_us();
  const int64_t idle = now - idle_since;
  if (idle < policy_.spin_us) {
    cpu_relax();
    return {};
  }
  int who = -1;
  std::vector<pollfd> fds;
  for (int r = 0; r < count(); ++r) {
    if (r == index_) continue;
    const bool sending = task.sending(r), receiving = task.receiving(r);
    if (!sending && !receiving) continue;
    fds.push_back(
        {link(r).socket->fd(), static_cast<short>((sending ? POLLOUT : 0) | (receiving ? POLLIN : 0)), 0});
    if (who < 0 || receiving) who = link(r).rank;
  }
  if (idle < policy_.spin_us + policy_.yield_us / 4) {
    yield_cpu();
  } else {
    const TracePhase phase("WAIT", 0, who);
    ::poll(fds.data(), fds.size(), 5);
  }
  watch_.waited(who, now_us() - now);
  if (now - looked_ < kWatchEveryUs) return {};
  looked_ = now;
  const Status verdict = watch_.check_stream(who);
  if (!verdict.ok()) {
    for (const pollfd& one : fds) {  // what a peer sent before it left counts
      if ((one.events & POLLIN) != 0 && has_bytes(one.fd)) return {};
    }
    return verdict;
  }
  if (deadline.expired()) return Status(Code::timeout, "deadline passed", who);
  return {};
}

}  // namespace ring
