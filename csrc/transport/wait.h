// Waiting for something that another process will do: spin, then yield the processor, then sleep.
//
// Spinning is the fastest and only right while every waiting rank has a core of its own; yielding lets the
// rank that is waited for run when it has not; sleeping (a futex in shared memory) is for peers that are busy
// with something else. A sleeper wakes by itself every few milliseconds to look up (see Watch).
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/status.h"
#include "base/trace.h"
#include "transport/watch.h"

namespace ring {

struct WaitPolicy {
  int64_t spin_us = 50;
  int64_t yield_us = 1000;
  // Decides by the number of ranks on this host against its cores; `spin_us` >= 0 overrides the spinning.
  static WaitPolicy choose(int local_ranks, int64_t spin_us);
};

constexpr int64_t kWatchEveryUs = 2000;  // how often a spinning or yielding wait looks up
constexpr int64_t kSleepUs = 10000;      // how long a sleeping wait sleeps before it looks up

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

void yield_cpu();

// The word on which one rank sleeps. Only its owner sleeps; anybody may wake it.
// Protocol (sequentially consistent, so neither side can miss the other): the owner announces, looks again
// at what it waits for, sleeps; the waker changes that, then looks at the announcement.
class SleepWord {
 public:
  void announce() { word_.store(1, std::memory_order_seq_cst); }
  void cancel() { word_.store(0, std::memory_order_relaxed); }
  void sleep(int64_t timeout_us);
  void wake() {
    if (word_.load(std::memory_order_seq_cst) != 0) wake_slowly();
  }

 private:
  void wake_slowly();
  std::atomic<uint32_t> word_{0};
};

// Waits until missing() returns a negative number; until then it returns the rank that is waited for.
template <class Missing>
Status wait_until(Missing&& missing, SleepWord& sleep, const WaitPolicy& policy, Deadline deadline,
                  Watch& watch) {
  for (int i = 0; i < 64; ++i) {
    if (missing() < 0) return {};
    if (policy.spin_us > 0) cpu_relax();
  }
  TracePhase phase("WAIT");
  const int64_t start = now_us();
  int last = -1;
  int64_t looked = start;
  for (;;) {
    const int who = missing();
    if (who < 0) {
      watch.waited(last, now_us() - start);
      return {};
    }
    if (who != last) phase.peer(last = who);
    const int64_t now = now_us();
    const int64_t waited = now - start;
    if (waited < policy.spin_us) {
      for (int i = 0; i < 16; ++i) cpu_relax();
    } else if (waited < policy.spin_us + policy.yield_us) {
      yield_cpu();
    } else {
      sleep.announce();
      if (missing() >= 0) sleep.sleep(kSleepUs);
      sleep.cancel();
      looked = 0;
    }
    if (now - looked >= kWatchEveryUs) {
      looked = now;
      Status verdict = watch.check(who);
      if (verdict.ok() && deadline.expired()) verdict = Status(Code::timeout, "deadline passed", who);
      if (!verdict.ok()) {
        if (missing() < 0) return {};
        return verdict;
      }
    }
  }
}

}  // namespace ring
