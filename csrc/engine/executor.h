// Doing what was agreed: operations become calls of a Group.
#pragma once

#include <atomic>
#include <vector>

#include "engine/agreement.h"
#include "engine/fabric.h"
#include "engine/fusion.h"
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
  static void add(Count& count, uint64_t amount) { count.fetch_add(amount, std::memory_order_relaxed); }
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
  Status run(const Decision& decision, const std::vector<Incoming>& incoming, Finished&& finished,
             OperationPtr* blamed) {
    if (decision.carried && complete(*decision.run[0], incoming)) {
      Statistics::add(statistics_.carried, 1);
      finished(decision.run[0]);
      return {};
    }
    for (const Bucket& bucket : make_buckets(decision.run, fusion_bytes_)) {
      *blamed = decision.run[bucket[0]];
      inspector_.moving(decision.run, bucket);
      RING_TRY(run_bucket(decision.run, bucket));
      for (const size_t i : bucket) finished(decision.run[i]);
    }
    return {};
  }

 private:
  bool complete(Operation& operation, const std::vector<Incoming>& incoming) const;
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
};

}  // namespace ring
