#include "transport/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

namespace ring {
namespace {

int usable_cores() {
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  return ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

WaitPolicy WaitPolicy::choose(int local_ranks, int64_t spin_us) {
  WaitPolicy policy;
  const bool crowded = local_ranks > usable_cores();
  policy.spin_us = spin_us >= 0 ? spin_us : (crowded ? 0 : 50);
  policy.yield_us = 1000;
  return policy;
}

void yield_cpu() { ::sched_yield(); }

void SleepWord::sleep(int64_t timeout_us) {
  const timespec timeout{static_cast<time_t>(timeout_us / 1000000),
                         static_cast<long>(timeout_us % 1000000) * 1000};
  futex(word_, FUTEX_WAIT, 1, &timeout);
}

void SleepWord::wake_slowly() {
  word_.store(0, std::memory_order_seq_cst);
  futex(word_, FUTEX_WAKE, 1, nullptr);
}

}  // namespace ring
