// The communicator of one rank, without Python: submits operations, drives rounds of agreement and execution,
// and turns the first failure into the end of everything that is pending.
//
// Two locks, always taken in this order (the courier of messages has its own, taken after both):
//   progress_  held by whoever drives: the progress thread, or a caller of run_now. Guards fabric_,
//              agreement_, executor_, failure handling: everything that touches connections or shared memory.
//   queue_     has its own, inside; never held while anything else is taken or waited for.
//
// The progress thread starts with the first asynchronous operation and sleeps while nothing is pending.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/agreement.h"
#include "engine/courier.h"
#include "engine/executor.h"
#include "engine/fabric.h"
#include "engine/queue.h"
#include "engine/stall.h"

namespace ring {

class Engine {
 public:
  // Connects to every peer, authenticates both ways and agrees on the topology.
  static Result<std::unique_ptr<Engine>> connect(Listener listener, int rank,
                                                 const std::vector<PeerAddress>& peers,
                                                 const std::string& secret, const Options& options,
                                                 const Lookout::Interrupt& interrupt);
  ~Engine();

  // Starts an operation; the memory it names must stay valid until it has ended.
  Result<OperationPtr> submit(Request request);
  // Runs an operation in the calling thread, together with whatever else is pending.
  Status run_now(Request request, const Lookout::Interrupt& interrupt);

  // The same for one allreduce that is described by a view.
  Status run_express(const Express& express, const Lookout::Interrupt& interrupt);

  // Starts a message to or from one rank; Message says what must stay valid. In the order of these calls it
  // is matched with those of the other rank that have its tag.
  Status start(const MessagePtr& message);
  double collective_timeout() const { return options_.collective_timeout; }

  // Memory that the ranks of this host share, `bytes` of zeros until nobody holds them any more; null if
  // there is no such memory.
  Result<std::shared_ptr<std::byte>> shared_memory(size_t bytes);

  // Gives up: this rank's operations end with an error, the other ranks' too.
  void abort(const std::string& reason);
  // Waits for what is pending (close_timeout), says goodbye, frees everything. Idempotent.
  void close();

  const Topology& topology() const { return topology_; }
  const std::string& transport() const { return transport_; }
  const Statistics& statistics() const { return statistics_; }
  int strangers() const { return strangers_; }
  // Records what this communicator does on this rank into a file of trace events (see base/trace.h).
  Status start_timeline(const std::string& path) {
    return executor_->timeline().start(path, topology_.rank, topology_.size);
  }
  std::vector<LedgerLine> ledger(bool reset) { return executor_->ledger().read(reset); }
  // What autotune has chosen; none if it is off.
  std::optional<Tuning::State> tuning() const {
    const Tuning* tuning = executor_->tuning();
    return tuning != nullptr ? std::optional(tuning->state()) : std::nullopt;
  }
  std::vector<int64_t> waits(bool reset) { return lookout_.waits(reset); }
  void reset_statistics() { statistics_.reset(); }
  void stop_timeline() { executor_->timeline().stop(); }
  // What keeps this rank waiting now, and what is to be told about it since the last call.
  std::vector<Stall> stalled() const { return stalls_.stalled(); }
  std::vector<Stall> take_stall_reports() { return stalls_.take_reports(); }

 private:
  explicit Engine(const Options& options)
      : options_(options), stalls_(options.stall_warning_seconds, options.stall_abort_seconds) {}

  Result<OperationPtr> accept(Request request, bool wake);
  Status check_request(const Request& request) const;
  Status check_splits(const Request& request) const;
  double timeout_of(const Request& request) const;
  Status ensure_thread();
  void thread_main();
  // `shown`: the first round has begun, on the short road, with what is first in the queue.
  void drive(const Operation* until, bool shown = false);
  Status round(const std::vector<OperationPtr>& pending, uint64_t version, bool shown, OperationPtr* blamed);
  // The short road; null when it came to its end, else the operation that is now pending.
  OperationPtr take_short_road(const Express& express, uint64_t number);
  // Makes the thread drive what others have submitted meanwhile.
  void hand_over();
  Status wait_for_news(const std::vector<OperationPtr>& pending, uint64_t version, Deadline deadline);
  void end(const OperationPtr& operation, Status status);
  // Ends everything with a failure, tells the other ranks.
  void fail(Status status, const OperationPtr& blamed);
  void record(const Status& failure, bool own);
  void tell(const Status& failure);
  // From now on no shared memory is handed out.
  void retire_arena(const Status& why);
  // For the courier: what is known of a peer's end, or (-1) of a failure.
  Status look(int peer);
  Status explain_timeout(const Status& status, const Operation& operation);

  const Options options_;
  Topology topology_;
  std::string transport_;
  int strangers_ = 0;
  Statistics statistics_;
  StallInspector stalls_;  // has a lock of its own for its lists
  Lookout lookout_;
  Queue queue_;

  std::mutex progress_;
  // Guarded by progress_.
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Agreement> agreement_;
  std::unique_ptr<Executor> executor_;
  Status failure_;
  bool told_ = false;  // all other ranks, of the failure
  bool closed_ = false;

  std::unique_ptr<Courier> courier_;  // has a lock and a thread of its own; constant once connected

  std::mutex arena_mutex_;
  // Guarded by arena_mutex_.
  std::shared_ptr<Arena> arena_;  // null if there is none, or closed
  Status retired_;                // why no shared memory is handed out any more

  std::mutex thread_mutex_;
  std::thread thread_;  // guarded by thread_mutex_
  std::atomic<bool> started_{false};
};

}  // namespace ring
