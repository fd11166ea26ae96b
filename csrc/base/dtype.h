// Element types and reduction operations, and which pairs are defined.
//
//            sum  average  min  max  product  adasum  scales
// floats      x      x      x    x      x       x       x
// integers    x      x      x    x      x       -       -
// bool        -      -      x    x      x       -       -
//
// float16 and bfloat16 accumulate in float32. Sums and products of integers wrap; their average is the exact
// sum divided by the world size, rounded toward zero. Of bool, min and product are "and", max is "or". adasum
// is an allreduce only (collective/adasum.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace ring {

enum class DType : uint8_t {
  float32,
  float64,
  float16,
  bfloat16,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  boolean,
};

enum class ReduceOp : uint8_t { sum, average, min, max, product, adasum };

size_t item_size(DType dtype);
std::string_view name_of(DType dtype);
std::optional<DType> dtype_from(std::string_view name);

std::string_view name_of(ReduceOp op);
std::optional<ReduceOp> reduce_op_from(std::string_view name);

bool is_float(DType dtype);

// Success if the table above allows it; otherwise an error of code config that says what to do.
Status check_reduction(DType dtype, ReduceOp op, double prescale, double postscale);

}  // namespace ring
