#include "engine/sizes.h"

#include <algorithm>
#include <cstring>

namespace ring {
namespace {

constexpr int64_t kMostDimensions = 64;

}  // namespace

std::optional<Numbers> read_numbers(ByteView bytes, int64_t count) {
  const size_t found = bytes.size() / sizeof(int64_t);
  if (bytes.size() % sizeof(int64_t) != 0) return std::nullopt;
  if (count >= 0 && found != static_cast<size_t>(count)) return std::nullopt;
  Numbers numbers(found);
  if (found > 0) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  if (std::any_of(numbers.begin(), numbers.end(), [](int64_t value) { return value < 0; }))
    return std::nullopt;
  return numbers;
}

std::optional<std::vector<size_t>> bytes_of_rows(const Numbers& rows, size_t row_bytes) {
  std::vector<size_t> sizes;
  size_t total = 0;
  for (const int64_t count : rows) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<size_t>(count), row_bytes, &bytes) ||
        __builtin_add_overflow(total, bytes, &total)) {
      return std::nullopt;
    }
    sizes.push_back(bytes);
  }
  return sizes;
}

Numbers ScatterPlan::tell(DType dtype, const std::vector<int64_t>& shape, const Numbers& rows) {
  Numbers told = {static_cast<int64_t>(dtype), static_cast<int64_t>(shape.size())};
  told.insert(told.end(), shape.begin() + 1, shape.end());
  told.insert(told.end(), rows.begin(), rows.end());
  return told;
}

std::optional<ScatterPlan> ScatterPlan::read(const Numbers& told, int size) {
  const int64_t dimensions = told.size() < 2 ? 0 : told[1];
  if (dimensions < 1 || dimensions > kMostDimensions || told[0] > static_cast<int64_t>(DType::boolean) ||
      told.size() != 1 + static_cast<size_t>(dimensions) + static_cast<size_t>(size)) {
    return std::nullopt;
  }
  ScatterPlan plan;
  plan.dtype = static_cast<DType>(told[0]);
  plan.row_shape.assign(told.begin() + 2, told.begin() + 1 + dimensions);
  plan.rows.assign(told.begin() + 1 + dimensions, told.end());
  plan.row_bytes = item_size(plan.dtype);
  for (const int64_t extent : plan.row_shape) {
    if (__builtin_mul_overflow(plan.row_bytes, static_cast<size_t>(extent), &plan.row_bytes))
      return std::nullopt;
  }
  return plan;
}

}  // namespace ring
