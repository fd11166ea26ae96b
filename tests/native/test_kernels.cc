#include <cmath>
#include <random>

#include "base/kernels/kernels.h"
#include "check.h"

using ring::DType;
using ring::ReduceOp;

namespace {

__extension__ typedef __int128 Wide;

float from_half(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float sign = (bits & 0x8000) ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// The nearest half by search over all of them: slow, and obviously right.
uint16_t nearest_half(float value) {
  if (std::isnan(value)) return 0x7e00;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude >= 65520.0) return static_cast<uint16_t>(sign | 0x7c00);
  uint16_t low = 0, high = 0x7bff;
  while (low < high) {
    const auto middle = static_cast<uint16_t>((low + high + 1) / 2);
    if (static_cast<double>(from_half(middle)) <= magnitude) {
      low = middle;
    } else {
      high = static_cast<uint16_t>(middle - 1);
    }
  }
  if (low == 0x7bff) return static_cast<uint16_t>(sign | low);
  const double below = magnitude - static_cast<double>(from_half(low));
  const double above = static_cast<double>(from_half(static_cast<uint16_t>(low + 1))) - magnitude;
  const bool up = above < below || (above == below && (low & 1));
  return static_cast<uint16_t>(sign | (up ? low + 1 : low));
}

template <class F>
void for_all_sets(F&& body) {
  const ring::Kernels* sets[4];
  const int count = ring::runnable_kernels(sets, 4);
  CHECK(count >= 1);
  for (int i = 0; i < count; ++i) body(*sets[i]);
}

constexpr size_t kLengths[] = {0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 511, 512, 513, 1027};

template <class T>
T reference(ReduceOp op, const std::vector<std::vector<T>>& in, size_t i) {
  if (op == ReduceOp::average) {
    if constexpr (std::is_integral_v<T>) {
      Wide sum = 0;
      for (const auto& one : in) sum += static_cast<Wide>(one[i]);
      return static_cast<T>(sum / static_cast<Wide>(in.size()));
    } else {
      T sum = in[0][i];
      for (size_t r = 1; r < in.size(); ++r) sum += in[r][i];
      return sum * static_cast<T>(1.0 / static_cast<double>(in.size()));
    }
  }
  T value = in[0][i];
  for (size_t r = 1; r < in.size(); ++r) {
    const T other = in[r][i];
    if constexpr (std::is_integral_v<T>) {
      if (op == ReduceOp::sum)
        value = static_cast<T>(static_cast<uint64_t>(value) + static_cast<uint64_t>(other));
      if (op == ReduceOp::product)
        value = static_cast<T>(static_cast<uint64_t>(value) * static_cast<uint64_t>(other));
    } else {
      if (op == ReduceOp::sum) value = value + other;
      if (op == ReduceOp::product) value = value * other;
    }
    if (op == ReduceOp::min) value = std::min(value, other);
    if (op == ReduceOp::max) value = std::max(value, other);
  }
  return value;
}

template <class T>
void check_type(DType dtype) {
  std::mt19937_64 random(7);
  for_all_sets([&](const ring::Kernels& set) {
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      for (const size_t length : kLengths) {
        for (const int n : {1, 2, 3, 5}) {
          std::vector<std::vector<T>> in(static_cast<size_t>(n), std::vector<T>(length));
          std::vector<const std::byte*> sources;
          for (auto& one : in) {
            for (T& value : one) {
              value = std::is_integral_v<T>
                          ? static_cast<T>(random())
                          : static_cast<T>(static_cast<double>(random() % 20001) / 100 - 100);
            }
            sources.push_back(reinterpret_cast<const std::byte*>(one.data()));
          }
          std::vector<T> expected(length);
          for (size_t i = 0; i < length; ++i) expected[i] = reference(op, in, i);
          // To several places at once: every source, and one place more.
          auto copies = in;
          copies.emplace_back(length);
          std::vector<const std::byte*> from;
          std::vector<std::byte*> to;
          for (auto& one : copies) to.push_back(reinterpret_cast<std::byte*>(one.data()));
          from.assign(to.begin(), to.end() - 1);
          set.fold_to(dtype, op, to.data(), n + 1, from.data(), n, length, 1, 1, n);
          for (const auto& one : copies) CHECK(one == expected);
          if (n == 2) {  // both sources and nothing else
            copies = in;
            std::byte* both[2] = {reinterpret_cast<std::byte*>(copies[0].data()),
                                  reinterpret_cast<std::byte*>(copies[1].data())};
            const std::byte* same[2] = {both[0], both[1]};
            set.fold_to(dtype, op, both, 2, same, 2, length, 1, 1, n);
            CHECK(copies[0] == expected && copies[1] == expected);
          }
          // In place: the destination is one of the sources.
          auto* out = reinterpret_cast<std::byte*>(in[static_cast<size_t>(n) / 2].data());
          set.fold(dtype, op, out, sources.data(), n, length, 1, 1, n);
          CHECK(in[static_cast<size_t>(n) / 2] == expected);
        }
      }
    }
  });
}

void fold_halves(const ring::Kernels& set, ReduceOp op, std::vector<uint16_t>& out,
                 const std::vector<std::vector<uint16_t>>& in, double pre = 1, double post = 1) {
  std::vector<const std::byte*> sources;
  for (const auto& one : in) sources.push_back(reinterpret_cast<const std::byte*>(one.data()));
  set.fold(DType::float16, op, reinterpret_cast<std::byte*>(out.data()), sources.data(),
           static_cast<int>(in.size()), out.size(), pre, post, static_cast<int>(in.size()));
}

}  // namespace

TEST(every_integer_type_and_operation) {
  check_type<int8_t>(DType::int8);
  check_type<int16_t>(DType::int16);
  check_type<int32_t>(DType::int32);
  check_type<int64_t>(DType::int64);
  check_type<uint8_t>(DType::uint8);
  check_type<uint16_t>(DType::uint16);
  check_type<uint32_t>(DType::uint32);
  check_type<uint64_t>(DType::uint64);
}

TEST(every_floating_type_and_operation) {
  check_type<float>(DType::float32);
  check_type<double>(DType::float64);
}

TEST(every_half_goes_through_float_and_back) {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for_all_sets([&](const ring::Kernels& set) {
    std::vector<uint16_t> out(all.size());
    fold_halves(set, ReduceOp::sum, out, {all});
    for (size_t i = 0; i < all.size(); ++i) {
      const bool nan = (all[i] & 0x7c00) == 0x7c00 && (all[i] & 0x3ff) != 0;
      CHECK(nan ? (out[i] & 0x7c00) == 0x7c00 && (out[i] & 0x3ff) != 0 : out[i] == all[i]);
    }
  });
}

TEST(half_sums_round_once_to_the_nearest) {
  std::mt19937 random(3);
  std::vector<std::vector<uint16_t>> in(3, std::vector<uint16_t>(4099));
  for (auto& one : in) {
    for (auto& value : one) {
      do value = static_cast<uint16_t>(random());
      while ((value & 0x7c00) == 0x7c00);
    }
  }
  for_all_sets([&](const ring::Kernels& set) {
    std::vector<uint16_t> out(4099);
    fold_halves(set, ReduceOp::sum, out, in);
    for (size_t i = 0; i < out.size(); ++i) {
      const float sum = from_half(in[0][i]) + from_half(in[1][i]) + from_half(in[2][i]);
      const uint16_t expected = nearest_half(sum);
      CHECK(out[i] == expected || ((out[i] | expected) & 0x7fff) == 0);  // +0 and -0 are one number
    }
  });
}

TEST(an_average_of_large_halves_does_not_overflow) {
  for_all_sets([&](const ring::Kernels& set) {
    const std::vector<uint16_t> big(37, nearest_half(40000.0f));
    std::vector<uint16_t> out(37);
    fold_halves(set, ReduceOp::average, out, {big, big, big, big});
    for (const uint16_t value : out) CHECK_EQ(from_half(value), 40000.0f);
  });
}

TEST(bfloat16_rounds_to_nearest_even) {
  for_all_sets([&](const ring::Kernels& set) {
    const std::vector<uint16_t> one(5, 0x3f80), tiny(5, 0x3b80), more(5, 0x3b81);  // 1, 2^-8, a bit more
    std::vector<uint16_t> out(5);
    const auto* a = reinterpret_cast<const std::byte*>(one.data());
    for (const auto& [small, expected] : {std::pair{&tiny, 0x3f80}, std::pair{&more, 0x3f81}}) {
      const std::byte* sources[2] = {a, reinterpret_cast<const std::byte*>(small->data())};
      set.fold(DType::bfloat16, ReduceOp::sum, reinterpret_cast<std::byte*>(out.data()), sources, 2, 5, 1, 1,
               2);
      for (const uint16_t value : out) CHECK_EQ(value, expected);
    }
  });
}

TEST(scales_apply_before_and_after) {
  for_all_sets([&](const ring::Kernels& set) {
    for (const int n : {1, 2, 3}) {
      std::vector<float> in(19, 3.0f), out(19);
      const std::vector<const std::byte*> sources(static_cast<size_t>(n),
                                                  reinterpret_cast<const std::byte*>(in.data()));
      set.fold(DType::float32, ReduceOp::product, reinterpret_cast<std::byte*>(out.data()), sources.data(), n,
               19, 2, 0.5, n);
      for (const float value : out) CHECK_EQ(value, static_cast<float>(std::pow(6.0, n) * 0.5));
    }
  });
}

TEST(a_nan_wins_minimum_and_maximum) {
  for_all_sets([&](const ring::Kernels& set) {
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
      for (const bool first : {false, true}) {
        std::vector<float> number(17, 1.0f), nan(17, NAN), out(17);
        const auto* a = reinterpret_cast<const std::byte*>((first ? nan : number).data());
        const auto* b = reinterpret_cast<const std::byte*>((first ? number : nan).data());
        const std::byte* sources[2] = {a, b};
        set.fold(DType::float32, op, reinterpret_cast<std::byte*>(out.data()), sources, 2, 17, 1, 1, 2);
        for (const float value : out) CHECK(std::isnan(value));
      }
    }
  });
}

TEST(the_table_of_types_and_operations) {
  CHECK(ring::check_reduction(DType::boolean, ReduceOp::max, 1, 1).ok());
  CHECK(!ring::check_reduction(DType::boolean, ReduceOp::sum, 1, 1).ok());
  CHECK(!ring::check_reduction(DType::int32, ReduceOp::sum, 0.5, 1).ok());
  CHECK(!ring::check_reduction(DType::float32, ReduceOp::sum, NAN, 1).ok());
  CHECK(ring::check_reduction(DType::bfloat16, ReduceOp::average, 0.5, 2).ok());
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const auto dtype = static_cast<DType>(i);
    CHECK(ring::dtype_from(ring::name_of(dtype)) == dtype);
  }
}
