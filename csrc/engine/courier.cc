#include "engine/courier.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <optional>
#include <system_error>

namespace ring {
namespace {

constexpr int kReasonPatience = 50;  // times two milliseconds
constexpr size_t kReadAtOnce = 128 * 1024;
constexpr size_t kScratch = 256 * 1024;
constexpr int kReads = 8;             // of one connection before the others get their turn
constexpr int kTickMs = 100;          // how often deadlines and the control connections are looked at
constexpr int kIdleTicks = 10;        // ticks without a message before the thread sleeps for good
constexpr size_t kMessageCost = 128;  // what a short message takes from the window besides its payload

size_t cost_of(const Looks& looks) { return looks.bytes + kMessageCost; }

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", seconds);
  return text;
}

}  // namespace

struct Courier::Parcel {
  Bytes head;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  size_t sent = 0;     // of both
  size_t account = 0;  // what it takes from the window
  uint64_t id = 0;     // of a body
  MessagePtr message;  // ends when this is sent

  size_t total() const { return head.size() + bytes; }
};

struct Courier::Peer {
  // A body that was granted: the receive and how much comes.
  struct Expected {
    MessagePtr receive;
    size_t bytes = 0;
  };

  int rank = 0;
  Socket socket;
  bool gone = false;     // its connection has ended, and nobody has asked why yet
  bool deaf = false;     // it does not take anything any more
  bool goodbye = false;  // it closed in good order
  Status broken;         // why it cannot be used

  std::deque<MessagePtr> waiting;  // sends that are not on their way, in order
  std::unordered_map<uint64_t, MessagePtr> offered;
  std::deque<Parcel> outbox;
  size_t account = 0;  // of the window, taken by short messages that are not received yet
  uint64_t next_id = 1;

  Mailbox mailbox;
  std::unordered_map<uint64_t, Expected> expected;
  size_t owed = 0;  // credit that was not given yet
  Bytes inbox;
  size_t inbox_used = 0;
  MessagePtr body;  // the receive whose payload comes now
  size_t body_left = 0;
  std::byte* body_at = nullptr;
};

// The lock. Messages that ended meanwhile are told after it is gone.
class Courier::Turn {
 public:
  explicit Turn(Courier& courier) : courier_(courier), lock_(courier.mutex_) {}
  ~Turn() {
    std::vector<std::pair<MessagePtr, Status>> ended;
    ended.swap(courier_.ended_);
    if (!ended.empty() && courier_.pending_.empty()) courier_.quiet_.notify_all();
    lock_.unlock();
    for (auto& [message, status] : ended) message->finish(std::move(status));
  }
  std::unique_lock<std::mutex>& lock() { return lock_; }

 private:
  Courier& courier_;
  std::unique_lock<std::mutex> lock_;
};

Courier::Courier(int rank, std::vector<Socket> links, Look look)
    : rank_(rank), look_(std::move(look)), scratch_(kScratch) {
  for (size_t q = 0; q < links.size(); ++q) {
    peers_.push_back(std::make_unique<Peer>());
    peers_[q]->rank = static_cast<int>(q);
    peers_[q]->socket = std::move(links[q]);
  }
}

Courier::~Courier() { close(Deadline::after(0), false); }

Status Courier::start(const MessagePtr& message) {
  Turn turn(*this);
  if (!refused_.ok()) return refused_.with(message->title() + ": " + refused_.message(), message->title());
  ensure_thread();
  if (waker_ < 0) {
    return Status(Code::aborted,
                  message->title() + ": the thread for messages cannot be started: " + error_text(errno));
  }
  Peer& peer = *peers_[static_cast<size_t>(message->peer)];
  pending_.insert(message);
  if (message->way == Message::Way::send) {
    begin_send(peer, message);
  } else {
    begin_receive(peer, message);
  }
  if (peer.gone || !peer.outbox.empty() || (asleep_ && !pending_.empty())) wake();
  return {};
}

void Courier::ensure_thread() {
  if (thread_.joinable()) return;
  waker_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (waker_ < 0) return;
  try {
    thread_ = std::thread([this] { thread_main(); });
  } catch (const std::system_error& error) {
    ::close(std::exchange(waker_, -1));
    errno = error.code().value();
  }
}

void Courier::wake() {
  const uint64_t one = 1;
  if (waker_ >= 0 && ::write(waker_, &one, sizeof one) < 0) return;  // full: it is awake
}

Status Courier::refusal(const Peer& peer) const {
  if (!peer.broken.ok()) return peer.broken;
  if (!peer.goodbye) return {};
  return Status(Code::peer_lost, rank_text(peer.rank) + " has closed its communicator", peer.rank);
}

// Sending.

void Courier::begin_send(Peer& peer, const MessagePtr& message) {
  if (Status why = refusal(peer); !why.ok()) return settle(message, std::move(why));
  if (peer.rank != rank_) {
    peer.waiting.push_back(message);
    promote(peer);
    return flush(peer);
  }
  Mailbox& mailbox = peer.mailbox;
  const auto refuse = [this](const MessagePtr& one, Status why) { settle(one, std::move(why)); };
  Arrival arrival{message->tag, message->looks, nullptr, 0, message};
  if (const MessagePtr receive = mailbox.match(message->tag, message->looks, refuse)) {
    return pick_up(peer, receive, std::move(arrival));
  }
  if (message->looks.bytes <= Letter::kEager && mailbox.held_bytes() + cost_of(message->looks) <= kWindow) {
    arrival.data = std::make_unique<std::byte[]>(message->looks.bytes);
    if (message->looks.bytes > 0) std::memcpy(arrival.data.get(), message->memory, message->looks.bytes);
    arrival.sender = nullptr;
    settle(message, {});
  }
  mailbox.keep(std::move(arrival));
}

// Puts on their way what the window and the number of offers allow, in order.
void Courier::promote(Peer& peer) {
  while (!peer.waiting.empty()) {
    const MessagePtr message = peer.waiting.front();
    Letter letter;
    letter.tag = message->tag;
    letter.looks = message->looks;
    const size_t cost = cost_of(message->looks);
    if (message->looks.bytes <= Letter::kEager && peer.account + cost <= kWindow) {
      letter.mark = Mark::eager;
      post(peer, letter, message);
      peer.outbox.back().account = cost;
      peer.account += cost;
    } else if (peer.offered.size() < kMaxOffers) {
      letter.mark = Mark::offer;
      letter.id = peer.next_id++;
      peer.offered.emplace(letter.id, message);
      post(peer, letter);
    } else {
      return;
    }
    peer.waiting.pop_front();
  }
}

void Courier::post(Peer& peer, const Letter& letter, const MessagePtr& message) {
  Parcel parcel;
  parcel.head = letter.head();
  parcel.id = letter.id;
  if (message != nullptr) {
    parcel.data = message->memory;
    parcel.bytes = message->looks.bytes;
    parcel.message = message;
  }
  peer.outbox.push_back(std::move(parcel));
}

void Courier::flush(Peer& peer) {
  while (!peer.outbox.empty() && peer.socket.valid() && !peer.deaf) {
    Parcel& parcel = peer.outbox.front();
    const size_t head_left = parcel.head.size() - std::min(parcel.sent, parcel.head.size());
    const size_t data_at = parcel.sent - std::min(parcel.sent, parcel.head.size());
    const iovec parts[2] = {{parcel.head.data() + parcel.head.size() - head_left, head_left},
                            {const_cast<std::byte*>(parcel.data) + data_at, parcel.bytes - data_at}};
    const IoResult io = peer.socket.try_send(parts, parcel.bytes > data_at ? 2 : 1);
    parcel.sent += io.bytes;
    if (io.closed) peer.deaf = true;  // what it said before it went can still be read, and tells why
    if (parcel.sent < parcel.total()) {
      if (io.bytes == 0) return;
      continue;
    }
    if (parcel.message != nullptr) settle(parcel.message, {});
    peer.outbox.pop_front();
  }
}

// Receiving.

void Courier::begin_receive(Peer& peer, const MessagePtr& message) {
  if (peer.rank != rank_) {
    receive(peer);  // it may be here already
    flush(peer);
  }
  const auto refuse = [this](const MessagePtr& one, Status why) { settle(one, std::move(why)); };
  std::optional<Arrival> arrival = peer.mailbox.post(message, refuse);
  if (arrival) {
    pick_up(peer, message, std::move(*arrival));
  } else if (Status why = refusal(peer); !why.ok()) {
    peer.mailbox.forget(message);
    settle(message, std::move(why));
  }
  flush(peer);
}

// Brings together a receive and the message that is its own.
void Courier::pick_up(Peer& peer, const MessagePtr& receive, Arrival arrival) {
  const size_t bytes = arrival.looks.bytes;
  if (arrival.data != nullptr || arrival.sender != nullptr) {
    const std::byte* from = arrival.data != nullptr ? arrival.data.get() : arrival.sender->memory;
    if (bytes > 0) std::memmove(receive->memory, from, bytes);
    if (arrival.sender != nullptr) settle(arrival.sender, {});
    if (arrival.data != nullptr && peer.rank != rank_) give_credit(peer, cost_of(arrival.looks));
    return settle(receive, {});
  }
  peer.expected.emplace(arrival.offer, Peer::Expected{receive, bytes});
  Letter grant;
  grant.mark = Mark::grant;
  grant.id = arrival.offer;
  post(peer, grant);
}

void Courier::give_credit(Peer& peer, size_t bytes) {
  peer.owed += bytes;
  if (peer.owed < kWindow / 4) return;  // not one for each message
  Letter credit;
  credit.mark = Mark::credit;
  credit.looks.bytes = std::exchange(peer.owed, 0);
  post(peer, credit);
}

void Courier::receive(Peer& peer) {
  for (int read = 0; read < kReads && peer.socket.valid(); ++read) {
    IoResult io;
    size_t room = 0;
    if (peer.body_left > 0) {
      const bool wanted = peer.body != nullptr && !peer.body->settled;
      room = wanted ? peer.body_left : std::min(peer.body_left, scratch_.size());
      io = peer.socket.try_receive(wanted ? peer.body_at : scratch_.data(), room);
      take_body(peer, io.bytes);
    } else {
      if (peer.inbox.size() < peer.inbox_used + kReadAtOnce) peer.inbox.resize(peer.inbox_used + kReadAtOnce);
      room = peer.inbox.size() - peer.inbox_used;
      io = peer.socket.try_receive(peer.inbox.data() + peer.inbox_used, room);
      peer.inbox_used += io.bytes;
      if (!parse(peer)) {
        return fail_peer(
            peer, Status(Code::peer_lost,
                         rank_text(peer.rank) + " sent a message that cannot be; its connection was closed",
                         peer.rank));
      }
    }
    if (io.closed) {
      peer.gone = true;
      peer.socket.close();
    }
    if (io.bytes < room) return;
  }
}

bool Courier::parse(Peer& peer) {
  size_t at = 0;
  for (;;) {
    const ByteView rest(peer.inbox.data() + at, peer.inbox_used - at);
    if (peer.body_left > 0) {
      const size_t bytes = std::min(peer.body_left, rest.size());
      if (bytes == 0) break;
      if (peer.body != nullptr && !peer.body->settled) std::memcpy(peer.body_at, rest.data(), bytes);
      take_body(peer, bytes);
      at += bytes;
      continue;
    }
    if (rest.size() < Letter::kHeader) break;
    const auto head_bytes = Letter::head_bytes(rest.first(Letter::kHeader));
    if (!head_bytes) return false;
    if (rest.size() < *head_bytes) break;
    const auto letter = Letter::read(rest.first(*head_bytes));
    if (!letter) return false;
    const size_t payload = letter->mark == Mark::eager ? letter->looks.bytes : 0;
    if (rest.size() < *head_bytes + payload) break;
    at += *head_bytes + payload;
    if (!open(peer, *letter, rest.data() + *head_bytes)) return false;
  }
  if (at > 0) {
    std::memmove(peer.inbox.data(), peer.inbox.data() + at, peer.inbox_used - at);
    peer.inbox_used -= at;
  }
  return true;
}

// What a peer may not do ends its connection: false.
bool Courier::open(Peer& peer, const Letter& letter, const std::byte* payload) {
  const auto refuse = [this](const MessagePtr& one, Status why) { settle(one, std::move(why)); };
  switch (letter.mark) {
    case Mark::eager: {
      if (const MessagePtr receive = peer.mailbox.match(letter.tag, letter.looks, refuse)) {
        if (letter.looks.bytes > 0) std::memcpy(receive->memory, payload, letter.looks.bytes);
        give_credit(peer, cost_of(letter.looks));
        settle(receive, {});
        return true;
      }
      if (peer.mailbox.held_bytes() + letter.looks.bytes > kWindow) return false;
      Arrival arrival{letter.tag, letter.looks, std::make_unique<std::byte[]>(letter.looks.bytes), 0,
                      nullptr};
      if (letter.looks.bytes > 0) std::memcpy(arrival.data.get(), payload, letter.looks.bytes);
      peer.mailbox.keep(std::move(arrival));
      return peer.mailbox.arrivals() <= kMaxOffers + kWindow / kMessageCost;
    }
    case Mark::offer: {
      Arrival arrival{letter.tag, letter.looks, nullptr, letter.id, nullptr};
      if (letter.id == 0 || peer.expected.count(letter.id) > 0) return false;
      if (const MessagePtr receive = peer.mailbox.match(letter.tag, letter.looks, refuse)) {
        pick_up(peer, receive, std::move(arrival));
        return true;
      }
      peer.mailbox.keep(std::move(arrival));
      return peer.mailbox.arrivals() <= kMaxOffers + kWindow / kMessageCost;
    }
    case Mark::grant: {
      const auto it = peer.offered.find(letter.id);
      if (it == peer.offered.end()) return true;  // withdrawn; the peer is being told
      const MessagePtr message = it->second;
      peer.offered.erase(it);
      Letter body;
      body.mark = Mark::body;
      body.id = letter.id;
      body.looks.bytes = message->looks.bytes;
      post(peer, body, message);
      promote(peer);
      return true;
    }
    case Mark::body: {
      const auto it = peer.expected.find(letter.id);
      if (it == peer.expected.end() || it->second.bytes != letter.looks.bytes) return false;
      peer.body = it->second.receive;
      peer.body_at = peer.body->memory;
      peer.body_left = letter.looks.bytes;
      peer.expected.erase(it);
      if (peer.body_left == 0) take_body(peer, 0);
      return true;
    }
    case Mark::withdraw: {
      if (peer.mailbox.withdraw(letter.id)) return true;
      const auto it = peer.expected.find(letter.id);
      if (it == peer.expected.end()) return false;
      settle(
          it->second.receive,
          Status(Code::aborted, rank_text(peer.rank) + " gave up sending: its deadline passed", peer.rank));
      peer.expected.erase(it);
      return true;
    }
    case Mark::credit:
      if (letter.looks.bytes > peer.account) return false;
      peer.account -= letter.looks.bytes;
      promote(peer);
      return true;
    case Mark::goodbye:
      peer.goodbye = true;
      return true;
  }
  return false;
}

// `bytes` of the body have come.
void Courier::take_body(Peer& peer, size_t bytes) {
  peer.body_at += bytes;
  peer.body_left -= bytes;
  if (peer.body_left > 0 || peer.body == nullptr) return;
  settle(peer.body, {});
  peer.body = nullptr;
}

// Ends.

void Courier::settle(const MessagePtr& message, Status status) {
  if (message->settled) return;
  message->settled = true;
  pending_.erase(message);
  if (!status.ok()) status = status.with(message->title() + ": " + status.message(), message->title());
  ended_.emplace_back(message, std::move(status));
}

void Courier::expire() {
  std::vector<MessagePtr> late;
  for (const MessagePtr& message : pending_) {
    if (message->deadline.expired()) late.push_back(message);
  }
  for (const MessagePtr& message : late) give_up(message);
}

void Courier::give_up(const MessagePtr& message) {
  Peer& peer = *peers_[static_cast<size_t>(message->peer)];
  const std::string waited = "waited " + seconds_text(message->timeout);
  if (message->way == Message::Way::receive) {
    peer.mailbox.forget(message);  // what was granted goes on, into nothing
    const std::string tags = peer.mailbox.tags_text();
    const std::string others = tags.empty() ? "" : "; what it sent with " + tags + " is here";
    return settle(message, Status(Code::timeout,
                                  waited + " for rank " + std::to_string(peer.rank) +
                                      ", which did not send it" + others,
                                  peer.rank));
  }
  const Status late(Code::timeout,
                    waited + " for rank " + std::to_string(peer.rank) + ", which did not receive it",
                    peer.rank);
  Letter withdraw;
  withdraw.mark = Mark::withdraw;
  peer.mailbox.withdraw(message);
  peer.waiting.erase(std::remove(peer.waiting.begin(), peer.waiting.end(), message), peer.waiting.end());
  for (auto it = peer.offered.begin(); it != peer.offered.end(); ++it) {
    if (it->second != message) continue;
    withdraw.id = it->first;
    peer.offered.erase(it);
    break;
  }
  for (auto it = peer.outbox.begin(); it != peer.outbox.end(); ++it) {
    if (it->message != message) continue;
    if (it->sent > 0) {  // what follows could not be told from its rest
      return fail_peer(peer,
                       late.with(late.message() + "; a part was sent, so the connection was closed", ""));
    }
    peer.account -= it->account;
    withdraw.id = it->id;
    peer.outbox.erase(it);
    break;
  }
  if (withdraw.id != 0) post(peer, withdraw);
  promote(peer);
  flush(peer);
  settle(message, late);
}

void Courier::fail_peer(Peer& peer, const Status& why) {
  if (peer.broken.ok()) peer.broken = why;
  peer.gone = false;
  peer.socket.close();
  for (const auto& message : peer.waiting) settle(message, why);
  for (const auto& [id, message] : peer.offered) settle(message, why);
  for (const auto& parcel : peer.outbox) {
    if (parcel.message != nullptr) settle(parcel.message, why);
  }
  for (const auto& [id, expected] : peer.expected) settle(expected.receive, why);
  for (const auto& message : peer.mailbox.give_up()) settle(message, why);
  if (peer.body != nullptr) settle(peer.body, why);
  peer.waiting.clear();
  peer.offered.clear();
  peer.outbox.clear();
  peer.expected.clear();
  peer.body = nullptr;
  peer.body_left = 0;
}

void Courier::fail(const Status& why) {
  Turn turn(*this);
  if (refused_.ok()) refused_ = why;
  const std::vector<MessagePtr> pending(pending_.begin(), pending_.end());
  for (auto& peer : peers_) {
    if (peer->rank != rank_) fail_peer(*peer, why);
  }
  for (const auto& message : pending) settle(message, why);
}

// The thread.

void Courier::thread_main() {
  std::vector<pollfd> fds;
  std::vector<Peer*> polled;
  int idle = 0;
  int64_t looked = now_us();
  for (;;) {
    fds.clear();
    polled.clear();
    int timeout = kTickMs;
    {
      Turn turn(*this);
      if (stopping_) return;
      for (auto& peer : peers_) {
        if (!peer->socket.valid()) continue;
        const bool writing = !peer->outbox.empty() && !peer->deaf;
        fds.push_back({peer->socket.fd(), static_cast<short>(writing ? POLLIN | POLLOUT : POLLIN), 0});
        polled.push_back(peer.get());
      }
      fds.push_back({waker_, POLLIN, 0});
      idle = pending_.empty() ? idle + 1 : 0;
      asleep_ = idle > kIdleTicks;
      if (asleep_) timeout = -1;
    }
    ::poll(fds.data(), fds.size(), timeout);
    {
      Turn turn(*this);
      asleep_ = false;
      uint64_t count = 0;
      if (fds.back().revents != 0 && ::read(waker_, &count, sizeof count) > 0) idle = 0;
      for (size_t i = 0; i < polled.size(); ++i) {
        if (fds[i].revents == 0) continue;
        idle = 0;
        receive(*polled[i]);
        flush(*polled[i]);
      }
    }
    const bool tick = now_us() - looked >= kTickMs * 1000;
    if (tick) looked = now_us();
    look_around(tick);
  }
}

// Asks why connections have ended and, at times, whether the communicator has failed and whose deadline
// passed.
void Courier::look_around(bool tick) {
  std::vector<Peer*> gone;
  bool waiting = false;
  {
    Turn turn(*this);
    for (auto& peer : peers_) {
      if (peer->gone) gone.push_back(peer.get());
      if (peer->goodbye && peer->broken.ok() && peer->rank != rank_) {
        Status why = refusal(*peer);
        for (const auto& [id, message] : peer->offered) settle(message, why);
        for (const auto& message : peer->waiting) settle(message, why);
        for (const auto& message : peer->mailbox.give_up()) settle(message, why);
        peer->offered.clear();
        peer->waiting.clear();
      }
    }
    if (tick) expire();
    waiting = !pending_.empty();
  }
  for (Peer* peer : gone) {
    Status why = look_(peer->rank);
    for (int i = 0; i < kReasonPatience && why.ok();
         ++i) {  // the reason may come a little later than the end
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      why = look_(peer->rank);
    }
    Turn turn(*this);
    if (Status known = refusal(*peer); !known.ok()) why = known;
    if (why.ok()) {
      why = Status(Code::peer_lost,
                   rank_text(peer->rank) + " is lost: its connection for messages broke without a goodbye",
                   peer->rank);
    }
    fail_peer(*peer, why);
  }
  if (!tick || !waiting) return;
  if (const Status failure = look_(-1); !failure.ok()) fail(failure);
}

// Closing.

bool Courier::unsent() const {
  for (const auto& peer : peers_) {
    if (!peer->socket.valid() || peer->deaf) continue;
    if (!peer->outbox.empty() || peer->socket.unsent_bytes() > 0) return true;
  }
  return false;
}

void Courier::close(Deadline deadline, bool in_good_order) {
  {
    Turn turn(*this);
    if (closed_) return;
    closed_ = true;
    const Status closed(Code::closed, "the communicator is closed");
    if (refused_.ok()) refused_ = closed;
    if (in_good_order) {
      while (!pending_.empty() && !deadline.expired()) {
        quiet_.wait_for(turn.lock(), std::chrono::milliseconds(std::max(1, deadline.poll_ms(100))));
      }
    }
    const std::vector<MessagePtr> pending(pending_.begin(), pending_.end());
    for (const auto& message : pending) {
      const Status cut_off(Code::closed, "the communicator was closed");
      if (message->peer != rank_) fail_peer(*peers_[static_cast<size_t>(message->peer)], cut_off);
      settle(message, cut_off);
    }
  }
  bool used = false;
  if (in_good_order) {
    Turn turn(*this);
    used = thread_.joinable();
    for (auto& peer : peers_) {
      if (!peer->socket.valid()) continue;
      post(*peer, Letter{Mark::goodbye, 0, 0, {}});
      flush(*peer);
    }
  }
  auto pause = std::chrono::microseconds(20);
  for (bool waiting = used; waiting && !deadline.expired();) {
    {
      Turn turn(*this);
      for (auto& peer : peers_) flush(*peer);
      waiting = unsent();
    }
    if (!waiting) break;
    std::this_thread::sleep_for(pause);
    pause = std::min(2 * pause, std::chrono::microseconds(1000));
  }
  {
    Turn turn(*this);
    stopping_ = true;
    wake();
  }
  if (thread_.joinable()) thread_.join();
  Turn turn(*this);
  for (auto& peer : peers_) peer->socket.close();
  if (waker_ >= 0) ::close(std::exchange(waker_, -1));
}

}  // namespace ring
