#include "base/kernels/kernels.h"

namespace ring {

extern const Kernels generic_kernels;
#if defined(__x86_64__)
extern const Kernels avx2_kernels;
extern const Kernels avx512_kernels;
#endif

int runnable_kernels(const Kernels** sets, int capacity) {
  int count = 0;
  auto add = [&](const Kernels& set) {
    if (count < capacity) sets[count++] = &set;
  };
  add(generic_kernels);
#if defined(__x86_64__)
  __builtin_cpu_init();
  // Every processor with AVX2 has F16C.
  if (__builtin_cpu_supports("avx2")) add(avx2_kernels);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    add(avx512_kernels);
  }
#endif
  return count;
}

const Kernels& kernels() {
  static const Kernels* const chosen = [] {
    const Kernels* sets[4];
    return sets[runnable_kernels(sets, 4) - 1];
  }();
  return *chosen;
}

}  // namespace ring
