#include "base/dtype.h"

#include <array>
#include <cmath>
#include <string>

namespace ring {
namespace {

struct Entry {
  std::string_view name;
  size_t size;
};

constexpr std::array<Entry, 13> kTypes{{{"float32", 4},
                                        {"float64", 8},
                                        {"float16", 2},
                                        {"bfloat16", 2},
                                        {"int8", 1},
                                        {"int16", 2},
                                        {"int32", 4},
                                        {"int64", 8},
                                        {"uint8", 1},
                                        {"uint16", 2},
                                        {"uint32", 4},
                                        {"uint64", 8},
                                        {"bool", 1}}};
constexpr std::array<std::string_view, 6> kOps{"sum", "average", "min", "max", "product", "adasum"};

}  // namespace

size_t item_size(DType dtype) { return kTypes[static_cast<size_t>(dtype)].size; }

std::string_view name_of(DType dtype) { return kTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> dtype_from(std::string_view name) {
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (kTypes[i].name == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

std::string_view name_of(ReduceOp op) { return kOps[static_cast<size_t>(op)]; }

std::optional<ReduceOp> reduce_op_from(std::string_view name) {
  for (size_t i = 0; i < kOps.size(); ++i) {
    if (kOps[i] == name) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

bool is_float(DType dtype) { return dtype <= DType::bfloat16; }

Status check_reduction(DType dtype, ReduceOp op, double prescale, double postscale) {
  if (dtype == DType::boolean && (op == ReduceOp::sum || op == ReduceOp::average)) {
    return Status(Code::config,
                  std::string(name_of(op)) +
                      " of bool is not defined; use op=\"max\" (or) or op=\"min\" (and), or cast "
                      "to an integer dtype");
  }
  if (op == ReduceOp::adasum && !is_float(dtype)) {
    return Status(Code::config, "adasum needs a floating dtype, found " + std::string(name_of(dtype)));
  }
  if (!is_float(dtype) && (prescale != 1.0 || postscale != 1.0)) {
    return Status(Code::config, "prescale and postscale need a floating dtype, found " +
                                    std::string(name_of(dtype)) + "; cast the tensor or scale it yourself");
  }
  if (!std::isfinite(prescale) || !std::isfinite(postscale)) {
    return Status(Code::config, "prescale and postscale must be finite numbers");
  }
  return {};
}

}  // namespace ring
