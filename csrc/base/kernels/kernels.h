// Arithmetic on arrays, chosen once at run time for the processor at hand.
//
// kernels_impl.h is compiled once per instruction set; dispatch.cc picks. All sets give the same bits for
// integers, minima, maxima and two-operand sums.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace ring {

struct Kernels {
  const char* name;  // "avx512", "avx2", "neon" or "generic"

  // dst[k][i] = postscale * (prescale*src[0][i] op … op prescale*src[n-1][i]), folded in that order.
  // float16 and bfloat16 accumulate in float32 and are rounded once. average divides by `divisor`
  // (floats: multiply by its inverse; integers: exact sum, rounded toward zero). A
  // destination may be one of the sources. Several destinations get the same bits.
  void (*fold_to)(DType dtype, ReduceOp op, std::byte* const* dst, int destinations,
                  const std::byte* const* src, int n, size_t count, double prescale, double postscale,
                  int divisor);
  void fold(DType dtype, ReduceOp op, std::byte* dst, const std::byte* const* src, int n, size_t count,
            double prescale, double postscale, int divisor) const {
    fold_to(dtype, op, &dst, 1, src, n, count, prescale, postscale, divisor);
  }

  // dst[i] = factor * src[i], for floating types. dst may be src.
  void (*scale)(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor);

  // memcpy past the caches, for what is too large to be found there when it is needed.
  void (*stream)(std::byte* dst, const std::byte* src, size_t bytes);

  // float16, bfloat16 and float32 to float32 and back, rounding to nearest even.
  void (*widen)(DType dtype, float* dst, const std::byte* src, size_t count);
  void (*narrow)(DType dtype, std::byte* dst, const float* src, size_t count);
};

// The best set that this processor can run.
const Kernels& kernels();

// Every set that was compiled and can run here, the plainest first (for tests).
int runnable_kernels(const Kernels** sets, int capacity);

}  // namespace ring
