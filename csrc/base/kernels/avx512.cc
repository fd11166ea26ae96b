#include "base/kernels/kernels_impl.h"

namespace ring {

extern const Kernels avx512_kernels;
const Kernels avx512_kernels{"avx512", fold_to, scale, widen, narrow};

}  // namespace ring
