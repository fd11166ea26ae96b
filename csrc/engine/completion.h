// How something asynchronous ends: once, with a Status, waited for by any thread and told to callbacks. A
// collective and a message between two ranks are both one; callers hold them by shared pointer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/room.h"
#include "base/status.h"

namespace ring {

// What is made here because only the ring learns its size: the result of an allgather, or a message that was
// received without a place for it.
struct GatherResult {
  Room data;
  size_t bytes = 0;
  std::vector<int64_t> rows;   // allgather: first dimension of each rank's input
  DType dtype = DType::uint8;  // message: as it was sent
  std::vector<int64_t> shape;
};

class Completion {
 public:
  virtual ~Completion() = default;
  // What it is, for errors: "allreduce 'grad.0'".
  virtual std::string title() const = 0;

  // Written by whoever works on it before finish(), read by its owner after it.
  GatherResult gathered;

  bool done() const;
  // Waits until the end or the deadline; true if it has ended.
  bool wait(Deadline until) const;
  // How it ended; call only once done.
  Status status() const;
  // Runs `callback` once it has ended: at once if it already has.
  void then(std::function<void()> callback);
  void finish(Status status);
  // True while this thread runs a callback. It may be the thread that drives the engine, so it must not wait
  // for anything of the ring, nor close a communicator.
  static bool in_callback();

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable ended_;
  // Guarded by mutex_.
  bool done_ = false;
  Status status_;
  std::vector<std::function<void()>> callbacks_;
};

using CompletionPtr = std::shared_ptr<Completion>;

}  // namespace ring
