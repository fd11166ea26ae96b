// Who keeps this rank waiting: looks on while the thread that drives the engine waits, and keeps a list of
// what has waited too long. A stall is no failure: a rank may do something else for minutes.
//
// Three ways to wait, each with its own way to know who is missing:
//   absent     this rank has begun a round of agreement and others have not: the exchange knows which.
//   different  a round found operations that not every rank has: the lists that were compared tell who lacks
//              them. The ring goes on with what all have, so nobody need be waiting.
//   moving     an operation was agreed and its data move slowly or not at all: the ranks are asked whom they
//              wait for, and the answers are followed to the one that is silent.
//
// Time counts from the moment at which the driver began to wait, seen with the resolution of its looking up.
// Reports are left in an outbox, fetched by whoever can write logs: this thread must not wait for Python.
// A report comes when a stall is `warn_seconds` old and then at twice, four times … its age.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "collective/exchange.h"
#include "engine/operation.h"
#include "transport/control_plane.h"

namespace ring {

struct Stall {
  enum class State : uint8_t { absent, different, moving };
  State state = State::absent;
  std::vector<std::string> operations;  // the first few: "allreduce 'grad.0' of float32 [100]"
  size_t count = 0;                     // of all
  double seconds = 0;                   // waited so far
  double fails_in = 0;                  // until the first of their deadlines
  std::vector<int> ranks;               // who is missing, or waited for
  std::string story;                    // different: who has what
  bool over = false;                    // in a report: this was the stall, and it went on
};

class StallInspector {
 public:
  // Seconds; zero turns either off.
  StallInspector(double warn_seconds, double abort_seconds);

  // For the driver, who holds the engine's progress lock. What is passed must live until the next call.
  void attach(Exchange* exchange, ControlPlane* control) {
    exchange_ = exchange;
    control_ = control;
  }
  void agreeing(const std::vector<OperationPtr>& pending) { enter(Stall::State::absent, &pending, nullptr); }
  void moving(const std::vector<OperationPtr>& batch, const std::vector<size_t>& bucket) {
    enter(Stall::State::moving, &batch, &bucket);
  }
  // The same for one operation on the short road (express.h), which is made only if a stall has to tell of
  // it.
  using Describe = std::function<OperationPtr()>;
  void agreeing(const Describe& express) {
    enter(Stall::State::absent, nullptr, nullptr);
    express_ = &express;
  }
  void moving(const Describe& express) {
    enter(Stall::State::moving, nullptr, nullptr);
    express_ = &express;
  }
  // Operations that not all ranks have, with the ranks that lack them, as the last comparison found them.
  using Lonely = std::vector<std::pair<OperationPtr, std::vector<int>>>;
  void different(Lonely lonely, std::string story);
  // No agreement and no data under way.
  void idle();
  // The communicator failed; its error tells more than any stall.
  void clear();
  // From every wait, every few milliseconds. Fails with Code::timeout after abort_seconds.
  Status look(int waiting_for);
  bool aborted() const { return aborted_; }

  // Any thread.
  std::vector<Stall> stalled() const;
  std::vector<Stall> take_reports();

 private:
  void enter(Stall::State state, const std::vector<OperationPtr>* batch, const std::vector<size_t>* bucket) {
    state_ = state;
    batch_ = batch;
    bucket_ = bucket;
    express_ = nullptr;
    ++stage_;
  }
  std::vector<Stall> find(int64_t now, int waiting_for);
  void find_lonely(int64_t now, std::vector<Stall>* found);
  void publish(std::vector<Stall> found, int waiting_for);
  Status inspect(int64_t now, int waiting_for);

  const int64_t warn_us_;
  const int64_t abort_us_;
  const int64_t limit_us_;  // the smaller one
  const int64_t every_us_;  // how often to inspect

  // Guarded by the engine's progress lock.
  Exchange* exchange_ = nullptr;
  ControlPlane* control_ = nullptr;
  Stall::State state_ = Stall::State::absent;
  const std::vector<OperationPtr>* batch_ = nullptr;  // null: idle
  const Describe* express_ = nullptr;
  std::vector<OperationPtr> described_;          // what express_ made
  const std::vector<size_t>* bucket_ = nullptr;  // indices into it; null: all
  Lonely lonely_;
  std::string story_;
  uint64_t stage_ = 0;       // counts calls of enter() and idle()
  uint64_t seen_stage_ = 0;  // at the last look
  int64_t since_us_ = 0;     // when that stage was first seen
  int64_t next_us_ = 0;      // when to inspect again
  int culprit_ = -1;         // of the present stage, once the others were asked
  double report_at_ = 0;     // age of the next report, seconds
  bool aborted_ = false;
  Stall reported_;  // the last one reported; count 0: none is open

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Stall> present_;
  std::deque<Stall> outbox_;
};

}  // namespace ring
