// One collective, from submission to its end. Shared by the caller's handle and the engine.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/descriptor.h"

namespace ring {

struct Tensor {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<int64_t> shape;
  size_t bytes = 0;
};

struct Request {
  Kind kind = Kind::barrier;
  std::string name;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;
  double prescale = 1;
  double postscale = 1;
  std::vector<Tensor> tensors;
  double timeout = -1;  // seconds from submission; negative: the communicator's collective_timeout
};

// What an allgather produces: the engine learns its size only when all ranks have joined.
struct GatherResult {
  std::unique_ptr<std::byte[]> data;
  size_t bytes = 0;
  std::vector<int64_t> rows;  // first dimension of each rank's input
};

class Operation {
 public:
  Operation(Request request, Deadline deadline) : request(std::move(request)), deadline(deadline) {}

  const Request request;
  const Deadline deadline;
  // Set by the engine before the operation becomes pending, constant afterwards.
  Descriptor descriptor;
  Bytes encoded;
  uint64_t hash = 0;
  std::string key;
  size_t bytes = 0;  // of all inputs

  // Written by the engine before finish(), read by the owner after it.
  GatherResult gathered;

  bool done() const;
  // Waits until the end or the deadline; true if it has ended.
  bool wait(Deadline until) const;
  // How it ended; call only once done.
  Status status() const;
  // Runs `callback` once the operation has ended: at once if it already has.
  void then(std::function<void()> callback);
  void finish(Status status);
  // True while this thread runs a callback. It may be the thread that drives the engine, so it must not wait
  // for another operation, nor close a communicator.
  static bool in_callback();

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  // Guarded by mutex_.
  bool done_ = false;
  Status status_;
  std::vector<std::function<void()>> callbacks_;
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace ring
