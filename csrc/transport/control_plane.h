// The control connections of one rank: one authenticated TCP connection to every peer, carrying small framed
// messages. Bulk data never travels here, so an abort is never behind it.
//
//   frame:  type u32 | sequence u32 | length u32 | reserved u32 | payload
//
//   exchange  everybody's blob to everybody, numbered; all ranks run the same sequence of exchanges
//   abort     the sender gives up: code, rank to blame, operation, reason
//   goodbye   the sender closes in good order and will take part in nothing more
//   query     the sender's deadline passed: whom do you wait for?      (answered from inside waits)
//   report    answer to query: the rank that the sender waits for
//
// Invariants: only the thread that holds the engine's progress lock touches this object. The first failure
// that is learnt is kept and told ever after. A rank that says nothing and disconnects is dead.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "transport/socket.h"
#include "transport/wait.h"
#include "transport/watch.h"

namespace ring {

class ControlPlane final : public Watch {
 public:
  // links[q] is the connection to rank q; links[rank] is unused. A connection that notices silence says so.
  ControlPlane(int rank, std::vector<Socket> links, WaitPolicy policy);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(peers_.size()); }

  // Sends `mine` to every peer and collects theirs: theirs[q] for every rank, its own blob included.
  // `watch` looks up during the wait (this object by default).
  Status exchange(ByteView mine, Deadline deadline, std::vector<Bytes>* theirs, Watch* watch = nullptr);
  // Inside exchange(): the ranks that have not begun it.
  void missing(std::vector<int>* ranks) const;
  // True if some peer has already begun the exchange that this rank will do next.
  bool peer_ahead();

  Status check(int waiting_for) override;
  Status check_stream(int waiting_for) override;
  // What is known to have gone wrong, without looking.
  const Status& failure() const { return failure_; }
  // True if this rank itself has noticed the failure, by a connection that broke. The others may not see it
  // yet, or never: they have to be told.
  bool discovered() const { return discovered_; }
  bool said_goodbye(int peer) const { return peers_[static_cast<size_t>(peer)].state == State::goodbye; }

  // After a deadline: asks everybody whom they wait for and follows the answers to the rank that is silent.
  int find_culprit(int waiting_for, double patience);
  // Tells everybody that this rank gives up. Best effort, within a second.
  void send_abort(const Status& failure);
  // Says goodbye and waits until every peer's kernel has all that was sent, so that closing loses nothing.
  void send_goodbye(Deadline deadline);
  void close();
  // Takes bytes as if they had come over the connection to `rank`: for tests of what peers may send.
  void feed(int rank, ByteView bytes);

 private:
  enum class Type : uint32_t { exchange = 1, abort, goodbye, query, report };
  enum class State { alive, goodbye, dead };
  struct Frame {
    uint32_t sequence;
    Bytes payload;
  };
  struct Peer {
    Socket socket;
    State state = State::alive;
    Bytes inbox;  // bytes received and not yet parsed
    size_t inbox_used = 0;
    Bytes outbox;  // bytes to send
    size_t outbox_sent = 0;
    std::deque<Frame> blobs;  // exchange frames not yet consumed
    int reported = -2;        // answer to our query; -2: none
  };

  void post(Peer& peer, Type type, uint32_t sequence, ByteView payload);
  void post_all(Type type, ByteView payload);
  void flush(Peer& peer);
  void receive(int rank);
  void parse(int rank);
  bool dispatch(int rank, Type type, uint32_t sequence, ByteView payload);
  void mark_gone(int rank, int error = 0);
  void pump(int timeout_ms);
  // A rank, or -1 for none: what frames may name.
  bool may_be_rank(int rank) const { return rank >= -1 && rank < size(); }
  bool flushed() const;
  int first_missing() const;

  const int rank_;
  const WaitPolicy policy_;
  std::vector<Peer> peers_;
  uint32_t sequence_ = 0;  // of the next exchange
  int waiting_for_ = -1;   // what a query is answered with
  Status failure_;
  bool discovered_ = false;
  int dead_rank_ = -1;
  int dead_error_ = 0;  // with which its connection broke; 0: it just ended
};

}  // namespace ring
