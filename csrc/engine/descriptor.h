// What ranks compare before they work together: everything about an operation that has to agree.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"

namespace ring {

enum class Kind : uint8_t { allreduce, broadcast, allgather, reducescatter, barrier };

struct Descriptor {
  Kind kind = Kind::barrier;
  std::string name;     // empty: matched by `number`
  uint64_t number = 0;  // of the unnamed operation among those of its kind; 0 for named ones
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  int32_t root = -1;
  double prescale = 1;
  double postscale = 1;
  std::vector<std::vector<int64_t>> shapes;  // of an allgather without its first dimension

  Bytes encode() const;
  static std::optional<Descriptor> decode(Reader& reader);

  // By what operations of different ranks are matched: the name, or kind and number.
  std::string key() const;
  // "allreduce 'grad.0'"
  std::string title() const;
  // "allreduce of float32 [100, 5], op sum"
  std::string details() const;
};

}  // namespace ring
