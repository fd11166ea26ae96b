#include "base/kernels/kernels_impl.h"

namespace ring {

extern const Kernels avx512_kernels;
const Kernels avx512_kernels{"avx512", fold_to, scale, stream, widen, narrow};

}  // namespace ring
