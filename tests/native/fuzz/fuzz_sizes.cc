// What ranks tell each other about sizes before allgather, gather, alltoall and scatter.
//
//   input:  byte 0  numbers that are expected, 255: any
//           rest    the numbers
#include <numeric>

#include "engine/sizes.h"
#include "fuzz.h"

using ring::Bytes;
using ring::Numbers;
using ring::ScatterPlan;

namespace {

constexpr int kSize = 3;

Bytes seed(uint8_t count, const Numbers& numbers) {
  ring::Writer writer;
  writer.put(count);
  writer.raw(numbers.data(), numbers.size() * sizeof(int64_t));
  return writer.take();
}

}  // namespace

std::vector<Bytes> fuzz::seeds() {
  return {seed(1, {17}), seed(3, {1, 0, 5}), seed(255, {}),
          seed(255, ScatterPlan::tell(ring::DType::float32, {6, 4, 2}, {1, 2, 3}))};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const int64_t count = data[0] == 255 ? -1 : data[0];
  const auto numbers = ring::read_numbers(fuzz::view(data + 1, size - 1), count);
  if (!numbers) return 0;
  REQUIRE(count < 0 || numbers->size() == static_cast<size_t>(count));
  for (const size_t row_bytes : {size_t{0}, size_t{8}, size_t{1} << 33}) {
    const auto sizes = ring::bytes_of_rows(*numbers, row_bytes);
    if (!sizes) continue;
    REQUIRE(sizes->size() == numbers->size());
    size_t total = 0;
    for (size_t i = 0; i < sizes->size(); ++i) {
      REQUIRE((*sizes)[i] == static_cast<size_t>((*numbers)[i]) * row_bytes);
      REQUIRE(total + (*sizes)[i] >= total);
      total += (*sizes)[i];
    }
  }
  const auto plan = ScatterPlan::read(*numbers, kSize);
  if (!plan) return 0;
  REQUIRE(plan->rows.size() == kSize);
  Numbers shape = plan->row_shape;
  shape.insert(shape.begin(), 0);
  REQUIRE(ScatterPlan::tell(plan->dtype, shape, plan->rows) == *numbers);
  return 0;
}
