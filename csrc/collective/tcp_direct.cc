#include "collective/tcp_direct.h"

#include <poll.h>

#include <algorithm>

#include "base/kernels/kernels.h"
#include "base/trace.h"

namespace ring {

struct TcpDirect::Task {
  const std::byte* in;
  std::byte* out;
  const Slices& slices;
  const Reduction& reduction;
  bool gather;
  size_t mine;     // bytes of this rank's slice
  std::byte* own;  // where its finished part goes
};

TcpDirect::TcpDirect(std::vector<Link> links, int index, size_t segment_bytes, WaitPolicy policy,
                     Watch& watch)
    : links_(std::move(links)),
      index_(index),
      segment_bytes_(std::max<size_t>(64, segment_bytes / 64 * 64)),
      policy_(policy),
      watch_(watch),
      peers_(links_.size()) {}

bool TcpDirect::finished(const Task& task, int r) const {
  const Peer& one = peer(r);
  if (one.sent_contribution < task.slices.size(r) || one.contribution < task.mine) return false;
  return !task.gather || (one.sent_result == task.mine && one.result == task.slices.size(r));
}

Status TcpDirect::send(const Task& task, int r, bool* moved) {
  Peer& one = peer(r);
  for (;;) {
    const bool contributing = one.sent_contribution < task.slices.size(r);
    size_t& sent = contributing ? one.sent_contribution : one.sent_result;
    const size_t ready = contributing ? task.slices.size(r) : task.gather ? folded_ : 0;
    if (sent >= ready) return {};
    const std::byte* from = contributing ? task.in + task.slices.begin(r) : task.own;
    TracePhase phase("SEND", 0, link(r).rank);
    const IoResult io = link(r).socket->try_send(from + sent, std::min(ready - sent, segment_bytes_));
    if (io.closed) return connection_lost(watch_, link(r).rank);
    if (io.bytes == 0) phase.drop();
    if (io.bytes == 0) return {};
    phase.bytes(io.bytes);
    sent += io.bytes;
    *moved = true;
    if (sent < ready) return {};  // the others get a turn
  }
}

Status TcpDirect::receive(const Task& task, int r, bool* moved) {
  Peer& one = peer(r);
  std::byte* to = nullptr;
  size_t want = 0;
  if (one.contribution < task.mine) {
    const size_t end = std::min(task.mine, folded_ + segment_bytes_);  // the segment that is being collected
    if (one.segment.size() < segment_bytes_) one.segment.resize(segment_bytes_);
    to = one.segment.data() + (one.contribution - folded_);
    want = end - one.contribution;
  } else if (task.gather) {
    to = task.out + task.slices.begin(r) + one.result;
    want = std::min(task.slices.size(r) - one.result, segment_bytes_);
  }
  if (want == 0) return {};
  TracePhase phase("RECEIVE", 0, link(r).rank);
  const IoResult io = link(r).socket->try_receive(to, want);
  phase.bytes(io.bytes);
  if (io.bytes == 0) phase.drop();
  if (io.closed) return connection_lost(watch_, link(r).rank);
  (one.contribution < task.mine ? one.contribution : one.result) += io.bytes;
  *moved = *moved || io.bytes > 0;
  return {};
}

void TcpDirect::fold_ready(const Task& task) {
  const size_t end = std::min(task.mine, folded_ + segment_bytes_);
  if (folded_ == end) return;
  for (int r = 0; r < count(); ++r) {
    if (r != index_ && peer(r).contribution < end) return;
  }
  std::vector<const std::byte*> sources(links_.size());
  const size_t at = task.slices.begin(index_) + folded_;
  for (int r = 0; r < count(); ++r) {
    sources[static_cast<size_t>(r)] = r == index_ ? task.in + at : peer(r).segment.data();
  }
  const Reduction& reduction = task.reduction;
  const TracePhase phase("REDUCE", end - folded_);
  kernels().fold(reduction.dtype, reduction.op, task.own + folded_, sources.data(), count(),
                 (end - folded_) / item_size(reduction.dtype), reduction.prescale, reduction.postscale,
                 reduction.divisor);
  folded_ = end;
}

Status TcpDirect::run(const std::byte* in, std::byte* out, const Slices& slices, const Reduction& reduction,
                      bool gather, Deadline deadline) {
  const Task task{
      in, out, slices, reduction, gather, slices.size(index_), gather ? out + slices.begin(index_) : out};
  for (Peer& one : peers_) {
    one.sent_contribution = one.sent_result = one.contribution = one.result = 0;
  }
  folded_ = 0;
  looked_ = now_us();
  int64_t idle_since = 0;
  for (;;) {
    bool moved = false, all = true;
    for (int k = 1; k < count(); ++k) {
      const int r = ring_mod(index_ + k, count());
      if (finished(task, r)) continue;
      all = false;
      RING_TRY(send(task, r, &moved));
      RING_TRY(receive(task, r, &moved));
    }
    if (all && folded_ == task.mine) return {};
    const size_t before = folded_;
    fold_ready(task);
    if (moved || folded_ != before) {
      idle_since = 0;
      continue;
    }
    if (idle_since == 0) idle_since = now_us();
    RING_TRY(wait(task, idle_since, deadline));
  }
}

Status TcpDirect::wait(const Task& task, int64_t idle_since, Deadline deadline) {
  const int64_t now = now_us();
  const int64_t idle = now - idle_since;
  int who = -1;
  std::vector<pollfd> fds;
  for (int r = 0; r < count(); ++r) {
    if (r == index_ || finished(task, r)) continue;
    const Peer& one = peer(r);
    const bool contributing = one.sent_contribution < task.slices.size(r);
    const bool sending = contributing || (task.gather && one.sent_result < folded_);
    const bool collecting = one.contribution < std::min(task.mine, folded_ + segment_bytes_);
    const bool receiving =
        collecting || (one.contribution == task.mine && task.gather && one.result < task.slices.size(r));
    if (sending || receiving) {
      fds.push_back(
          {link(r).socket->fd(), static_cast<short>((sending ? POLLOUT : 0) | (receiving ? POLLIN : 0)), 0});
    }
    if (who < 0 || (receiving && collecting)) who = link(r).rank;
  }
  if (idle < policy_.spin_us) {
    cpu_relax();
  } else if (idle < policy_.spin_us + policy_.yield_us / 4) {
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
    for (const pollfd& one : fds) {
      pollfd look{one.fd, one.events, 0};
      // What a peer sent before it left counts: go on as long as something can be received.
      if ((one.events & POLLIN) != 0 && ::poll(&look, 1, 0) > 0 && has_bytes(one.fd)) return {};
    }
    return verdict;
  }
  if (deadline.expired()) return Status(Code::timeout, "deadline passed", who);
  return {};
}

}  // namespace ring
