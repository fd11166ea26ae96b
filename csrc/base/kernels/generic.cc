#include "base/kernels/kernels_impl.h"

namespace ring {

#if defined(__ARM_NEON)
constexpr const char* kName = "neon";  // part of every 64-bit ARM: the compiler's baseline uses it
#else
constexpr const char* kName = "generic";
#endif

extern const Kernels generic_kernels;
const Kernels generic_kernels{kName, fold_to, scale, stream, widen, narrow};

}  // namespace ring
