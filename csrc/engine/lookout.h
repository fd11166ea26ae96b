// What a waiting thread looks up to: a stop asked for by another thread of this process, a signal of the
// caller, and the control connections.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "engine/stall.h"
#include "transport/control_plane.h"
#include "transport/watch.h"

namespace ring {

class Lookout final : public Watch {
 public:
  // Called about every 100 ms from waits of a caller's own thread; true means: stop, a signal handler raised.
  using Interrupt = std::function<bool()>;

  Status check(int waiting_for) override {
    RING_TRY(check_here());
    if (control_ == nullptr) return {};
    RING_TRY(control_->check(waiting_for));
    return inspector_ != nullptr ? inspector_->look(waiting_for) : Status();
  }
  Status check_stream(int waiting_for) override {
    RING_TRY(check_here());
    if (control_ == nullptr) return {};
    RING_TRY(control_->check_stream(waiting_for));
    return inspector_ != nullptr ? inspector_->look(waiting_for) : Status();
  }

  // How long this rank waited for each other one; microseconds. The driver writes, anybody reads.
  void count_waits(int ranks) { waits_ = std::vector<std::atomic<int64_t>>(static_cast<size_t>(ranks)); }
  void waited(int rank, int64_t us) override {
    waited_us_ += us;
    if (rank >= 0 && static_cast<size_t>(rank) < waits_.size())
      waits_[static_cast<size_t>(rank)].fetch_add(us, std::memory_order_relaxed);
  }
  int64_t waited_us() const { return waited_us_; }  // all in all; for the driver
  std::vector<int64_t> waits(bool reset) {
    std::vector<int64_t> result;
    for (auto& one : waits_) result.push_back(reset ? one.exchange(0) : one.load());
    return result;
  }

  // Any thread. The first reason counts.
  void stop(Status why) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopping_.load(std::memory_order_relaxed)) return;
    why_ = std::move(why);
    stopping_.store(true, std::memory_order_release);
  }

  // Holder of the progress lock only.
  void attach(ControlPlane* control) { control_ = control; }
  void inspect(StallInspector* inspector) { inspector_ = inspector; }
  void set_interrupt(const Interrupt* interrupt) {
    interrupt_ = interrupt;
    asked_ = -1;  // reading the clock is for those who really wait
  }

 private:
  Status check_here() {
    if (stopping_.load(std::memory_order_acquire)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      return why_;
    }
    if (interrupt_ == nullptr) return {};
    const int64_t now = now_us();
    if (asked_ < 0) asked_ = now;
    if (now - asked_ > 100000) {
      asked_ = now;
      if ((*interrupt_)()) return Status(Code::interrupted, "interrupted by a signal");
    }
    return {};
  }

  std::vector<std::atomic<int64_t>> waits_;  // constant size once connected
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  Status why_;  // guarded by mutex_
  // Guarded by the engine's progress lock.
  ControlPlane* control_ = nullptr;
  StallInspector* inspector_ = nullptr;
  const Interrupt* interrupt_ = nullptr;
  int64_t asked_ = 0;
  int64_t waited_us_ = 0;
};

}  // namespace ring
