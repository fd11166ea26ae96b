#include "base/kernels/kernels_impl.h"

namespace ring {

extern const Kernels avx2_kernels;
const Kernels avx2_kernels{"avx2", fold_to, scale, stream, widen, narrow};

}  // namespace ring
