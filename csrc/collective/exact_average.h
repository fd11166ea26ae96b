// Integers of any type to and from the 128-bit sums that carry exact averages between hosts.
#pragma once

#include <cstddef>

#include "base/dtype.h"

namespace ring {

// to[i] = from[i]; `to` holds DType::int128.
void widen(DType dtype, const std::byte* from, std::byte* to, size_t count);
// to[i] = from[i] / divisor, rounded toward zero.
void narrow_quotient(DType dtype, const std::byte* from, std::byte* to, size_t count, int divisor);

}  // namespace ring
