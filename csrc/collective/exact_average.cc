#include "collective/exact_average.h"

#include <cstdint>
#include <cstring>

namespace ring {
namespace {

__extension__ typedef __int128 Wide;

template <class T>
struct Typed {
  static void widen(const std::byte* from, std::byte* to, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      T value;
      std::memcpy(&value, from + i * sizeof value, sizeof value);
      const Wide wide = static_cast<Wide>(value);
      std::memcpy(to + i * sizeof wide, &wide, sizeof wide);
    }
  }
  static void narrow(const std::byte* from, std::byte* to, size_t count, int divisor) {
    for (size_t i = 0; i < count; ++i) {
      Wide wide;
      std::memcpy(&wide, from + i * sizeof wide, sizeof wide);
      const T value = static_cast<T>(wide / divisor);
      std::memcpy(to + i * sizeof value, &value, sizeof value);
    }
  }
};

template <class Visit>
void with_integer_type(DType dtype, Visit&& visit) {
  switch (dtype) {
    case DType::int8:
      return visit(Typed<int8_t>{});
    case DType::int16:
      return visit(Typed<int16_t>{});
    case DType::int32:
      return visit(Typed<int32_t>{});
    case DType::int64:
      return visit(Typed<int64_t>{});
    case DType::uint8:
      return visit(Typed<uint8_t>{});
    case DType::uint16:
      return visit(Typed<uint16_t>{});
    case DType::uint32:
      return visit(Typed<uint32_t>{});
    case DType::uint64:
      return visit(Typed<uint64_t>{});
    default:
      return;  // check_reduction lets no other type come here
  }
}

}  // namespace

void widen(DType dtype, const std::byte* from, std::byte* to, size_t count) {
  with_integer_type(dtype, [&](auto typed) { typed.widen(from, to, count); });
}

void narrow_quotient(DType dtype, const std::byte* from, std::byte* to, size_t count, int divisor) {
  with_integer_type(dtype, [&](auto typed) { typed.narrow(from, to, count, divisor); });
}

}  // namespace ring
