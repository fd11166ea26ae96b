// Doing what was agreed: operations become calls of a Group.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "engine/agreement.h"
#include "engine/express.h"
#include "engine/fabric.h"
#include "engine/fusion.h"
#include "engine/ledger.h"
#include "engine/timeline.h"
#include "engine/tuning.h"
#include "engine/uneven.h"

namespace ring {

// Counts since the communicator was made; written by whoever drives, read by anybody at any time.
struct Statistics {
  using Count = std::atomic<uint64_t>;
  Count operations{0};
  Count bytes{0};          // of inputs
  Count buckets{0};        // calls that moved data
  Count fused_tensors{0};  // operations that shared a bucket
  Count carried{0};        // operations that were complete with the exchange
  Count rounds{0};
  Count wakeups{0};  // of the progress thread
  Count busy_us{0};  // spent on agreed operations
  void reset() {
    for (Count* one : {&operations, &bytes, &buckets, &fused_tensors, &carried, &rounds, &wakeups, &busy_us})
      one->store(0, std::memory_order_relaxed);
  }
  static void add(Count& count, uint64_t amount) { count.fetch_add(amount, std::memory_order_relaxed); }
};

// When a call began, how much had been waited by then, and when its operations were agreed.
struct Began {
  int64_t us;
  int64_t waited_us;
  int64_t agreed_us;
};

class Executor {
 public:
  Executor(Fabric& fabric, Lookout& lookout, size_t fusion_bytes, Statistics& statistics,
           StallInspector& inspector)
      : fabric_(fabric),
        lookout_(lookout),
        uneven_(fabric, lookout),
        fusion_bytes_(fusion_bytes),
        statistics_(statistics),
        inspector_(inspector) {}

  // Runs the operations of a decision and tells `finished` of each as it ends. If the Status is not ok the
  // group is broken; `blamed` is then an operation that was under way.
  template <class Finished>
  Status run(const Decision& decision, const std::vector<Incoming>& incoming, const Began& began,
             Finished&& finished, OperationPtr* blamed) {
    static const Bucket first{0};
    if (decision.carried && complete_now(decision, incoming)) {
      Statistics::add(statistics_.carried, 1);
      enter_call(decision.run, first, began, "with the agreement", false);
      finished(decision.run[0]);
      return {};
    }
    if (tuning_ != nullptr && decision.run[0]->request.kind == Kind::allreduce) {
      *blamed = decision.run[0];
      RING_TRY(tuning_->before(fabric_.control(), decision.run[0]->deadline, &lookout_));
    }
    Began now{now_us(), lookout_.waited_us(), now_us()};
    const size_t fusion_bytes = tuning_ != nullptr ? tuning_->fusion_bytes() : fusion_bytes_;
    for (const Bucket& bucket : make_buckets(decision.run, fusion_bytes)) {
      *blamed = decision.run[bucket[0]];
      inspector_.moving(decision.run, bucket);
      {
        const BucketSpan span(timeline_, decision.run, bucket);
        RING_TRY(run_bucket(decision.run, bucket));
      }
      enter_call(decision.run, bucket, now, algorithm_of(*decision.run[bucket[0]]), true);
      now.us = now_us();
      now.waited_us = lookout_.waited_us();
      for (const size_t i : bucket) finished(decision.run[i]);
    }
    return {};
  }

  // Tunes from now on; before the first operation.
  void tune(std::unique_ptr<Tuning> tuning) { tuning_ = std::move(tuning); }
  const Tuning* tuning() const { return tuning_.get(); }

  Trace& timeline() { return timeline_; }
  Ledger& ledger() { return ledger_; }

  // The same for one operation on the short road.
  Status run(const Express& express, const std::vector<Incoming>& incoming, const Began& began,
             Deadline deadline);

 private:
  void enter_call(const std::vector<OperationPtr>& batch, const Bucket& bucket, const Began& began,
                  const char* algorithm, bool moved) {
    const OperationPtr& first = batch[bucket[0]];
    Ledger::Call call{first->request.kind,
                      algorithm,
                      bucket.size(),
                      0,
                      now_us() - began.us,
                      lookout_.waited_us() - began.waited_us,
                      0};
    for (const size_t i : bucket) {
      call.bytes += batch[i]->bytes;
      call.queue_us += std::max<int64_t>(0, began.agreed_us - batch[i]->submitted_us);
    }
    ledger_.add(call);
    if (moved && tuning_ != nullptr && call.kind == Kind::allreduce)
      tuning_->count(call.bytes, call.seconds_us);
  }
  const char* algorithm_of(const Operation& operation) {
    const Kind kind = operation.request.kind;
    return kind == Kind::barrier || kind == Kind::join ? "exchange" : fabric_.group().algorithm();
  }
  bool complete_now(const Decision& decision, const std::vector<Incoming>& incoming) {
    static const Bucket first{0};
    BucketSpan span(timeline_, decision.run, first);
    if (complete(*decision.run[0], incoming)) return true;
    span.drop();
    return false;
  }
  bool complete(Operation& operation, const std::vector<Incoming>& incoming) const;
  Status move(const Express& express, const std::vector<Incoming>& incoming, Deadline deadline);
  Status run_bucket(const std::vector<OperationPtr>& batch, const Bucket& bucket);
  Status run_adasum(const Operation& operation);
  Status run_join(Operation& operation);
  Status run_reducescatter(const Operation& operation);

  Fabric& fabric_;
  Lookout& lookout_;
  Uneven uneven_;
  const size_t fusion_bytes_;
  Statistics& statistics_;
  StallInspector& inspector_;
  std::unique_ptr<Tuning> tuning_;  // null: off
  Trace timeline_;
  Ledger ledger_;
  std::vector<const std::byte*> sources_;
};

}  // namespace ring
