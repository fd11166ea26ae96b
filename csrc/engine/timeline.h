// What the engine adds to the timeline: the agreement on each tensor and the bucket in which it moved.
#pragma once

#include <cstdint>
#include <vector>

#include "base/trace.h"
#include "engine/operation.h"

namespace ring {

// QUEUE (from submission to the round in which it was agreed) and NEGOTIATE (that round) of each operation.
void record_agreement(Trace& trace, const std::vector<OperationPtr>& pending,
                      const std::vector<OperationPtr>& agreed, int64_t begun_ns, int64_t decided_ns);

// While it lives, phases of this thread belong to a bucket: they go to the row of its tensor, or to the row
// of the buckets if several tensors share it. At its end every tensor gets a span that says which bucket it
// was.
class BucketSpan {
 public:
  BucketSpan(Trace& trace, const std::vector<OperationPtr>& batch, const std::vector<size_t>& bucket)
      : batch_(batch), bucket_(bucket) {
    if (trace.on()) start(trace);
  }
  BucketSpan(const BucketSpan&) = delete;
  ~BucketSpan() {
    if (trace_ != nullptr) finish();
  }

  // Nothing moved after all.
  void drop() {
    trace_ = nullptr;
    trace_spot = {};
  }

 private:
  void start(Trace& trace);
  void finish();

  Trace* trace_ = nullptr;
  const std::vector<OperationPtr>& batch_;
  const std::vector<size_t>& bucket_;
  int64_t start_ = 0;
  int64_t bytes_ = 0;
  int row_ = 0;  // of the buckets
};

}  // namespace ring
