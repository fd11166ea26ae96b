// What ranks tell each other about sizes before an operation whose sizes they do not know (see uneven.h), and
// what becomes of it. Everything that comes from a peer is checked here, before memory is made for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"

namespace ring {

using Numbers = std::vector<int64_t>;

// A peer's numbers, `count` of them or any count if negative; empty if it told something else.
std::optional<Numbers> read_numbers(ByteView bytes, int64_t count);

// Bytes of so many rows, one entry for each; empty if their sum cannot be counted.
std::optional<std::vector<size_t>> bytes_of_rows(const Numbers& rows, size_t row_bytes);

// The tensor that the root of a scatter takes apart.
//
//   dtype | dimensions | extents but the first … | rows of each rank …
struct ScatterPlan {
  DType dtype = DType::uint8;
  std::vector<int64_t> row_shape;  // without the first dimension
  Numbers rows;                    // of each rank
  size_t row_bytes = 0;

  static Numbers tell(DType dtype, const std::vector<int64_t>& shape, const Numbers& rows);
  // What the root told, for `size` ranks; empty if it makes no sense.
  static std::optional<ScatterPlan> read(const Numbers& told, int size);
};

}  // namespace ring
