#include "transport/control_plane.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace ring {
namespace {

constexpr size_t kHeader = 16;
constexpr size_t kMaxPayload = size_t{64} << 20;
constexpr size_t kReadAtOnce = 64 * 1024;
constexpr int kPollMs = 5;

}  // namespace

ControlPlane::ControlPlane(int rank, std::vector<Socket> links, WaitPolicy policy)
    : rank_(rank), policy_(policy), peers_(links.size()) {
  for (size_t q = 0; q < links.size(); ++q) peers_[q].socket = std::move(links[q]);
}

void ControlPlane::post(Peer& peer, Type type, uint32_t sequence, ByteView payload) {
  if (!peer.socket.valid() || peer.state != State::alive) return;
  const uint32_t header[4] = {static_cast<uint32_t>(type), sequence, static_cast<uint32_t>(payload.size()),
                              0};
  size_t sent = 0;
  if (peer.outbox_sent == peer.outbox.size()) {  // the usual case: one system call, no copy
    const iovec parts[2] = {{const_cast<uint32_t*>(header), kHeader},
                            {const_cast<std::byte*>(payload.data()), payload.size()}};
    sent = peer.socket.try_send(parts, 2).bytes;
    if (sent == kHeader + payload.size()) return;
    peer.outbox.clear();
    peer.outbox_sent = 0;
  }
  const auto* head = reinterpret_cast<const std::byte*>(header);
  if (sent < kHeader) {
    peer.outbox.insert(peer.outbox.end(), head + sent, head + kHeader);
    sent = kHeader;
  }
  peer.outbox.insert(peer.outbox.end(), payload.begin() + static_cast<ptrdiff_t>(sent - kHeader),
                     payload.end());
}

void ControlPlane::post_all(Type type, ByteView payload) {
  for (auto& peer : peers_) post(peer, type, 0, payload);
}

void ControlPlane::flush(Peer& peer) {
  while (peer.outbox_sent < peer.outbox.size()) {
    const IoResult io =
        peer.socket.try_send(peer.outbox.data() + peer.outbox_sent, peer.outbox.size() - peer.outbox_sent);
    peer.outbox_sent += io.bytes;
    if (io.closed) peer.outbox_sent = peer.outbox.size();  // the reading side will say that the peer is gone
    if (io.bytes == 0) return;
  }
}

void ControlPlane::receive(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  while (peer.socket.valid() && peer.state != State::dead) {
    if (peer.inbox.size() < peer.inbox_used + kReadAtOnce) peer.inbox.resize(peer.inbox_used + kReadAtOnce);
    const size_t room = peer.inbox.size() - peer.inbox_used;
    const IoResult io = peer.socket.try_receive(peer.inbox.data() + peer.inbox_used, room);
    peer.inbox_used += io.bytes;
    if (io.bytes > 0) parse(rank);
    if (io.closed) mark_gone(rank, io.error);
    if (io.closed || io.bytes < room) return;
  }
}

void ControlPlane::feed(int rank, ByteView bytes) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.inbox.size() < peer.inbox_used + bytes.size()) peer.inbox.resize(peer.inbox_used + bytes.size());
  std::copy(bytes.begin(), bytes.end(), peer.inbox.begin() + static_cast<ptrdiff_t>(peer.inbox_used));
  peer.inbox_used += bytes.size();
  parse(rank);
}

void ControlPlane::parse(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  size_t at = 0;
  while (peer.inbox_used - at >= kHeader) {
    uint32_t header[4];
    std::memcpy(header, peer.inbox.data() + at, kHeader);
    const size_t length = header[2];
    if (length > kMaxPayload) return mark_gone(rank);
    if (peer.inbox_used - at < kHeader + length)
      break;  // room is made for what comes, not for what is claimed
    const ByteView payload(peer.inbox.data() + at + kHeader, length);
    at += kHeader + length;
    if (!dispatch(rank, static_cast<Type>(header[0]), header[1], payload)) return mark_gone(rank);
  }
  if (at > 0) {
    std::memmove(peer.inbox.data(), peer.inbox.data() + at, peer.inbox_used - at);
    peer.inbox_used -= at;
  }
}

bool ControlPlane::dispatch(int rank, Type type, uint32_t sequence, ByteView payload) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  Reader reader(payload);
  switch (type) {
    case Type::exchange:
      peer.blobs.push_back({sequence, Bytes(payload.begin(), payload.end())});
      return peer.blobs.size() <= 2;  // nobody can be further ahead
    case Type::abort: {
      const auto code = static_cast<Code>(reader.get<int32_t>());
      const int blamed = reader.get<int32_t>();
      const std::string operation = reader.text();
      const std::string message = reader.text();
      if (!reader.at_end() || code <= Code::ok || code > Code::interrupted || !may_be_rank(blamed))
        return false;
      if (failure_.ok()) {
        const bool mine = blamed == rank_;
        const std::string told = "rank " + std::to_string(rank) + " gave up: " + message;
        failure_ = Status(mine ? Code::aborted : code, told, mine ? rank : blamed, operation);
      }
      return true;
    }
    case Type::goodbye:
      peer.state = State::goodbye;
      return true;
    case Type::query: {
      Writer writer;
      writer.put<int32_t>(waiting_for_);
      post(peer, Type::report, sequence, writer.bytes());
      return true;
    }
    case Type::report: {
      const int reported = reader.get<int32_t>();
      if (!reader.at_end() || !may_be_rank(reported)) return false;
      peer.reported = reported;
      return true;
    }
  }
  return false;
}

void ControlPlane::mark_gone(int rank, int error) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (peer.state == State::alive) {
    peer.state = State::dead;
    if (dead_rank_ < 0) {
      dead_rank_ = rank;
      dead_error_ = error;
    }
  }
  peer.socket.close();
}

void ControlPlane::pump(int timeout_ms) {
  std::vector<pollfd> fds;
  std::vector<int> ranks;
  for (size_t q = 0; q < peers_.size(); ++q) {
    Peer& peer = peers_[q];
    if (!peer.socket.valid()) continue;
    const bool writing = peer.outbox_sent < peer.outbox.size();
    fds.push_back({peer.socket.fd(), static_cast<short>(writing ? POLLIN | POLLOUT : POLLIN), 0});
    ranks.push_back(static_cast<int>(q));
  }
  if (fds.empty() || ::poll(fds.data(), fds.size(), timeout_ms) <= 0) return;
  for (size_t i = 0; i < fds.size(); ++i) {
    if (fds[i].revents & POLLOUT) flush(peers_[static_cast<size_t>(ranks[i])]);
    if (fds[i].revents & (POLLIN | POLLERR | POLLHUP)) receive(ranks[i]);
  }
}

Status ControlPlane::check_stream(int waiting_for) {
  waiting_for_ = waiting_for;
  pump(0);
  if (failure_.ok() && dead_rank_ >= 0) {
    // An abort explains a death better than the death itself: give one that is under way a moment.
    for (int i = 0; i < 10 && failure_.ok(); ++i) pump(2);
    if (failure_.ok()) {
      discovered_ = true;
      const bool silent =
          dead_error_ == ETIMEDOUT || dead_error_ == EHOSTUNREACH || dead_error_ == ENETUNREACH;
      failure_ =
          Status(Code::peer_lost,
                 "rank " + std::to_string(dead_rank_) + " is lost: " +
                     (silent ? "nothing was heard from its host within silence_timeout; is the network "
                               "between the hosts cut, or the host down?"
                             : "its connection broke without a goodbye"),
                 dead_rank_);
    }
  }
  return failure_;
}

Status ControlPlane::check(int waiting_for) {
  RING_TRY(check_stream(waiting_for));
  if (waiting_for >= 0 && waiting_for != rank_ && said_goodbye(waiting_for)) {
    return Status(Code::peer_lost, "rank " + std::to_string(waiting_for) + " has closed its communicator",
                  waiting_for);
  }
  return {};
}

bool ControlPlane::flushed() const {
  for (const auto& peer : peers_) {
    if (peer.socket.valid() && peer.outbox_sent < peer.outbox.size()) return false;
  }
  return true;
}

int ControlPlane::first_missing() const {
  for (size_t q = 0; q < peers_.size(); ++q) {
    if (static_cast<int>(q) != rank_ && peers_[q].blobs.empty()) return static_cast<int>(q);
  }
  return -1;
}

void ControlPlane::missing(std::vector<int>* ranks) const {
  ranks->clear();
  for (size_t q = 0; q < peers_.size(); ++q) {
    if (static_cast<int>(q) != rank_ && peers_[q].blobs.empty()) ranks->push_back(static_cast<int>(q));
  }
}

bool ControlPlane::peer_ahead() {
  pump(0);
  for (const auto& peer : peers_) {
    if (!peer.blobs.empty()) return true;
  }
  return false;
}

Status ControlPlane::exchange(ByteView mine, Deadline deadline, std::vector<Bytes>* theirs, Watch* watch) {
  Watch& lookout = watch != nullptr ? *watch : *this;
  if (!failure_.ok()) return failure_;
  const uint32_t sequence = sequence_++;
  for (auto& peer : peers_) post(peer, Type::exchange, sequence, mine);
  const int64_t start = now_us();
  int64_t looked = start;
  int last = -1;
  for (int who = first_missing(); who >= 0 || !flushed(); who = first_missing()) {
    last = who;
    const int64_t now = now_us();
    if (now - start < policy_.spin_us + policy_.yield_us && flushed()) {
      receive(who);
      if (now - start >= policy_.spin_us) yield_cpu();
    } else {
      pump(kPollMs);
    }
    if (now - looked < kWatchEveryUs) continue;
    looked = now;
    Status verdict = lookout.check(who);
    if (verdict.ok() && deadline.expired()) verdict = Status(Code::timeout, "deadline passed", who);
    if (!verdict.ok() && first_missing() >= 0) return verdict;
    if (!verdict.ok() && !flushed()) return verdict;
  }
  if (last >= 0) lookout.waited(last, now_us() - start);
  waiting_for_ = -1;
  theirs->resize(peers_.size());
  for (size_t q = 0; q < peers_.size(); ++q) {
    if (static_cast<int>(q) == rank_) {
      (*theirs)[q].assign(mine.begin(), mine.end());
      continue;
    }
    Frame frame = std::move(peers_[q].blobs.front());
    peers_[q].blobs.pop_front();
    if (frame.sequence != sequence) {
      failure_ = Status(Code::peer_lost, "rank " + std::to_string(q) + " is out of step with this rank",
                        static_cast<int>(q));
      return failure_;
    }
    (*theirs)[q] = std::move(frame.payload);
  }
  return {};
}

int ControlPlane::find_culprit(int waiting_for, double patience) {
  waiting_for_ = waiting_for;
  for (auto& peer : peers_) peer.reported = -2;
  post_all(Type::query, {});
  const Deadline deadline = Deadline::after(patience);
  int who = waiting_for;
  while (!deadline.expired() && failure_.ok()) {
    pump(kPollMs);
    // Follow "waits for" until somebody who is silent, or who waits for nobody that is known.
    who = waiting_for;
    for (int hops = 0; who >= 0 && who != rank_ && hops < size(); ++hops) {
      const int next = peers_[static_cast<size_t>(who)].reported;
      if (next < 0) break;
      who = next;
    }
  }
  return who == rank_ ? waiting_for : who;
}

void ControlPlane::send_abort(const Status& failure) {
  if (failure_.ok()) failure_ = failure;
  Writer writer;
  writer.put<int32_t>(static_cast<int32_t>(failure.code()));
  writer.put<int32_t>(failure.rank());
  writer.text(failure.operation());
  writer.text(failure.message());
  post_all(Type::abort, writer.bytes());
  const Deadline deadline = Deadline::after(1.0);
  while (!flushed() && !deadline.expired()) pump(kPollMs);
}

void ControlPlane::send_goodbye(Deadline deadline) {
  post_all(Type::goodbye, {});
  while (!flushed() && !deadline.expired()) pump(kPollMs);
  for (auto& peer : peers_) peer.socket.shutdown_write();
  for (;;) {
    bool all = true;
    for (auto& peer : peers_) all = all && (!peer.socket.valid() || peer.socket.unsent_bytes() == 0);
    if (all || deadline.expired()) return;
    pump(1);
  }
}

void ControlPlane::close() {
  for (auto& peer : peers_) peer.socket.close();
}

}  // namespace ring
