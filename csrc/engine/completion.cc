#include "engine/completion.h"

#include <algorithm>

namespace ring {
namespace {

thread_local int callbacks_running = 0;  // on this thread

}  // namespace

bool Completion::in_callback() { return callbacks_running > 0; }

bool Completion::done() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_;
}

bool Completion::wait(Deadline until) const {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!done_ && !until.expired()) {
    ended_.wait_for(lock, std::chrono::milliseconds(std::max(1, until.poll_ms(1000))));
  }
  return done_;
}

Status Completion::status() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

void Completion::then(std::function<void()> callback) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!done_) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  ++callbacks_running;  // what a callback may do must not depend on who was faster
  callback();
  --callbacks_running;
}

void Completion::finish(Status status) {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (done_) return;
    done_ = true;
    status_ = std::move(status);
    callbacks.swap(callbacks_);
    ended_.notify_all();
  }
  ++callbacks_running;
  for (auto& callback : callbacks) callback();
  callbacks.clear();  // what they hold may be the last of a communicator: still inside
  --callbacks_running;
}

}  // namespace ring
