// Messages between two ranks, beside the collectives: one connection for each pair, and one thread, started
// with the first message, that carries for all of them.
//
//   short messages (at most Letter::kEager)  header and payload in one go; they wait at the receiver
//   long ones                                offer → grant → body: the payload moves when the receiver has
//                                            said where it goes, straight into that memory
//
// A receiver keeps at most kWindow bytes of short messages that nobody has asked for, for each sender. The
// sender counts: what it has sent is on its account until the receiver's credit comes, and a message beyond
// the window travels as an offer, however short. At most kMaxOffers offers are open; later messages wait at
// the sender. So
//
//   * a courier always reads everything that comes: nobody's grant or credit is ever behind a full mailbox,
//     and no two couriers can wait for each other;
//   * a send may wait for its receive, and does once the window is full: programs must not rely on less.
//
// Whoever holds the lock moves bytes: the caller of start() does at once what goes without waiting, the
// thread does the rest. Messages end outside the lock, since their callbacks may start others.
//
// A message has a deadline of its own. One that passes ends that message alone: an offer is withdrawn, bytes
// that still come for a receive are read into nothing. Only a send that is cut off in its middle ends the
// connection.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/mailbox.h"
#include "transport/socket.h"

namespace ring {

class Courier {
 public:
  static constexpr size_t kWindow = size_t{4} << 20;
  static constexpr size_t kMaxOffers = 4096;

  // What the control connections know: of `peer`'s end, or (-1) of any failure. Called without the lock.
  using Look = std::function<Status(int peer)>;

  // links[q] is the connection to rank q; links[rank] is unused.
  Courier(int rank, std::vector<Socket> links, Look look);
  ~Courier();

  // Starts a message. Its memory must stay valid until it has ended. An error: it was not started.
  Status start(const MessagePtr& message);
  // Ends all messages, now and later.
  void fail(const Status& why);
  // Refuses further messages, waits for those under way, says goodbye, closes. `in_good_order` false: at
  // once.
  void close(Deadline deadline, bool in_good_order);

 private:
  struct Parcel;  // bytes to be written
  struct Peer;
  class Turn;  // holds the lock

  // All with the lock held.
  void ensure_thread();
  void wake();
  void begin_send(Peer& peer, const MessagePtr& message);
  void begin_receive(Peer& peer, const MessagePtr& message);
  void pick_up(Peer& peer, const MessagePtr& receive, Arrival arrival);
  void promote(Peer& peer);
  void post(Peer& peer, const Letter& letter, const MessagePtr& message = nullptr);
  void flush(Peer& peer);
  void receive(Peer& peer);
  bool parse(Peer& peer);
  bool open(Peer& peer, const Letter& letter, const std::byte* payload);
  void give_credit(Peer& peer, size_t bytes);
  void take_body(Peer& peer, size_t bytes);
  void expire();
  void give_up(const MessagePtr& message);
  void fail_peer(Peer& peer, const Status& why);
  void settle(const MessagePtr& message, Status status);
  Status refusal(const Peer& peer) const;
  bool unsent() const;

  void thread_main();
  void look_around(bool tick);

  const int rank_;
  const Look look_;
  std::vector<std::byte> scratch_;

  std::mutex mutex_;
  std::condition_variable quiet_;  // no message is under way
  // Guarded by mutex_.
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unordered_set<MessagePtr> pending_;
  std::vector<std::pair<MessagePtr, Status>> ended_;  // to be told once the lock is gone
  Status refused_;                                    // why no message is taken any more
  bool closed_ = false;
  bool stopping_ = false;
  bool asleep_ = false;  // the thread waits without a time limit
  int waker_ = -1;       // eventfd
  std::thread thread_;
};

}  // namespace ring
