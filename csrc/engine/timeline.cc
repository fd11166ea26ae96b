#include "engine/timeline.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace ring {
namespace {

constexpr size_t kNamed = 200;  // tensors of a bucket that its span names
constexpr const char* kBuckets = "fused buckets";

// "ALLREDUCE" from "allreduce 'grad.0'"
std::string verb(const Operation& operation) {
  const std::string title = operation.descriptor.title();
  std::string result = title.substr(0, title.find(' '));
  for (char& c : result) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return result;
}

std::string row_title(const Operation& operation) {
  if (!operation.request.name.empty()) return operation.request.name;
  const std::string title = operation.descriptor.title();
  return title.substr(0, title.find(' ')) + " (unnamed)";
}

}  // namespace

void record_agreement(Trace& trace, const std::vector<OperationPtr>& pending,
                      const std::vector<OperationPtr>& agreed, int64_t begun_ns, int64_t decided_ns) {
  int64_t waiting = 0;
  for (const OperationPtr& one : pending) waiting += static_cast<int64_t>(one->bytes);
  trace.counter("pending bytes", "bytes", waiting);
  for (const OperationPtr& one : agreed) {
    const int64_t submitted = std::min(one->submitted_us * 1000, begun_ns);
    one->row = trace.row(row_title(*one), one->request.name.empty(), submitted);
    trace.span(one->row, "QUEUE", submitted, begun_ns, "{}");
    trace.span(one->row, "NEGOTIATE", begun_ns, decided_ns, "{}");
  }
}

void BucketSpan::start(Trace& trace) {
  if (batch_[bucket_[0]]->row == 0) return;  // agreed before the recording began
  trace_ = &trace;
  start_ = now_ns();
  for (const size_t i : bucket_) bytes_ += static_cast<int64_t>(batch_[i]->bytes);
  row_ = bucket_.size() > 1 ? trace.row(kBuckets, false, start_) : batch_[bucket_[0]]->row;
  trace.counter("moving bytes", "bytes", bytes_);
  trace_spot = {&trace, row_};
}

void BucketSpan::finish() {
  trace_spot = {};
  const int64_t end = now_ns();
  if (bucket_.size() > 1) {
    std::string names;
    for (size_t k = 0; k < bucket_.size() && k < kNamed; ++k)
      names += (k > 0 ? ", " : "") + row_title(*batch_[bucket_[k]]);
    trace_->span(row_, "BUCKET", start_, end,
                 TraceArgs()
                     .add("bytes", bytes_)
                     .add("count", static_cast<int64_t>(bucket_.size()))
                     .add("tensors", names)
                     .take());
  }
  for (const size_t i : bucket_) {
    Operation& one = *batch_[i];
    TraceArgs args;
    args.add("bytes", static_cast<int64_t>(one.bytes));
    if (bucket_.size() > 1) args.add("bucket_bytes", bytes_).add("bucket_row", kBuckets);
    trace_->span(one.row, verb(one), start_, end, args.take());
    trace_->release(one.row);
  }
  trace_->counter("moving bytes", "bytes", 0);
}

}  // namespace ring
