#include "base/fork.h"

#include <pthread.h>

#include <atomic>

namespace ring {
namespace {
std::atomic<int> generation{0};
void in_child() { generation.fetch_add(1, std::memory_order_relaxed); }
}  // namespace

int fork_generation() {
  static const int installed = pthread_atfork(nullptr, nullptr, in_child);
  (void)installed;
  return generation.load(std::memory_order_relaxed);
}

}  // namespace ring
