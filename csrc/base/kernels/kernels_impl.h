// The kernels themselves. Included by one source file per instruction set, each compiled with its own flags,
// so everything lives in an unnamed namespace and calls no inline function of a library: a copy compiled for
// AVX-512 must never be the one that the linker keeps for everybody.
//
// Sources are folded block by block: a block of accumulators stays in the first-level cache while every
// source adds to it, so each source and the destination cross memory once.
#include <cstdint>
#include <cstring>

#if defined(__F16C__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#include "base/kernels/kernels.h"

namespace ring {
namespace {

__extension__ typedef __int128 Int128;
__extension__ typedef unsigned __int128 UInt128;

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

constexpr size_t kBlock = 512;  // elements of a block of accumulators

inline float bits_to_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t rest = half & 0x7fffu;
  // Shift into place and rescale by 2^112: makes subnormals exact; infinities and NaNs are patched.
  const float scaled = bits_to_float(rest << 13) * bits_to_float(0x77800000u);
  uint32_t bits = float_to_bits(scaled);
  if (rest >= 0x7c00u) bits |= 0x7f800000u;
  return bits_to_float(bits | sign);
}

inline uint16_t float_to_half(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Subnormal half: adding 0.5 makes the hardware round to the last place of a half subnormal.
    const float shifted = bits_to_float(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude + 0xc8000fffu + odd) >> 13));
}

inline float brain_to_float(uint16_t brain) { return bits_to_float(static_cast<uint32_t>(brain) << 16); }

inline uint16_t float_to_brain(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

// Storage type to accumulator type and back, `count` elements.
template <class T>
inline void load(T* to, const T* from, size_t count) {
  std::memcpy(to, from, count * sizeof(T));
}
template <class T>
inline void store(T* to, const T* from, size_t count) {
  std::memcpy(to, from, count * sizeof(T));
}
template <class Wide, class Narrow>
inline void load(Wide* to, const Narrow* from, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<Wide>(from[i]);
}
template <class Narrow, class Wide>
inline void store(Narrow* to, const Wide* from, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = static_cast<Narrow>(from[i]);
}
inline void load(float* to, const Brain* from, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i] = brain_to_float(from[i].bits);
}
inline void store(Brain* to, const float* from, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) to[i].bits = float_to_brain(from[i]);
}
inline void load(float* to, const Half* from, size_t count) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(raw));
  }
#endif
  for (; i < count; ++i) to[i] = half_to_float(from[i].bits);
}
inline void store(Half* to, const float* from, size_t count) {
  size_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= count; i += 8) {
    const __m128i raw = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), raw);
  }
#endif
  for (; i < count; ++i) to[i].bits = float_to_half(from[i]);
}

// Integer sums and products wrap: they are computed on the unsigned type, where wrapping is defined.
template <class T>
struct Wrapping {
  using type = T;
};
template <>
struct Wrapping<int8_t> {
  using type = uint8_t;
};
template <>
struct Wrapping<int16_t> {
  using type = uint32_t;  // not uint16_t, whose product would be computed as int and could overflow
};
template <>
struct Wrapping<uint16_t> {
  using type = uint32_t;
};
template <>
struct Wrapping<int32_t> {
  using type = uint32_t;
};
template <>
struct Wrapping<int64_t> {
  using type = uint64_t;
};

struct Sum {
  template <class T>
  static T apply(T a, T b) {
    using W = typename Wrapping<T>::type;
    return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
  }
};
struct Product {
  template <class T>
  static T apply(T a, T b) {
    using W = typename Wrapping<T>::type;
    return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
  }
};
struct Min {  // a NaN on any rank wins, as in NumPy
  template <class T>
  static T apply(T a, T b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return (a > b || a != a) ? a : b;
  }
};

template <class A>
inline void multiply(A* acc, A factor, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) acc[i] *= factor;
}

// S: what is stored. A: what is accumulated. They differ for float16 and bfloat16 and for integer averages.
template <class S, class A, class Op>
inline void combine(A* acc, const S* from, size_t count, A* scratch, A prescale, bool scaled) {
  if constexpr (__is_same(S, A)) {
    if (!scaled) {
#pragma GCC ivdep
      for (size_t i = 0; i < count; ++i) acc[i] = Op::apply(acc[i], from[i]);
      return;
    }
  }
  load(scratch, from, count);
  if (scaled) multiply(scratch, prescale, count);
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) acc[i] = Op::apply(acc[i], scratch[i]);
}

// Two sources, nothing to convert, one destination: no block of accumulators is needed.
template <class T, class Op>
void fold_two(T* dst, const T* a, const T* b, size_t count, T postscale) {
  if (postscale != T(1)) {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) dst[i] = Op::apply(a[i], b[i]) * postscale;
  } else {
#pragma GCC ivdep
    for (size_t i = 0; i < count; ++i) dst[i] = Op::apply(a[i], b[i]);
  }
}

#if defined(__AVX512F__)
constexpr size_t kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr size_t kVectorBytes = 32;
#else
constexpr size_t kVectorBytes = 16;
#endif

// A sum to two places at once. Written with vectors, because compilers do not turn the plain loop into them
// when two destinations may be the sources.
template <class T>
void sum_two(T* dst, T* also, const T* a, const T* b, size_t count, T postscale) {
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
  constexpr size_t kLanes = kVectorBytes / sizeof(T);
  constexpr size_t kStep = 64 / sizeof(T);     // a line
  constexpr size_t kAhead = 1024 / sizeof(T);  // how far ahead to fetch
  const bool post = postscale != T(1);
  size_t at = 0;
  for (; at + kStep <= count; at += kStep) {
    __builtin_prefetch(a + at + kAhead);
    __builtin_prefetch(b + at + kAhead);
    for (size_t i = at; i < at + kStep; i += kLanes) {
      Vector x, y;
      std::memcpy(&x, a + i, sizeof x);
      std::memcpy(&y, b + i, sizeof y);
      x += y;
      if (post) x *= postscale;
      std::memcpy(dst + i, &x, sizeof x);
      std::memcpy(also + i, &x, sizeof x);
    }
  }
  for (; at < count; ++at) {
    const T sum = a[at] + b[at];
    dst[at] = also[at] = post ? sum * postscale : sum;
  }
}

template <class S, class A, class Op>
void fold_typed(std::byte* const* dst, int destinations, const std::byte* const* src, int n, size_t count,
                A prescale, A postscale) {
  const bool pre = prescale != A(1);
  const bool post = postscale != A(1);
  if constexpr (__is_same(S, A)) {
    if (n == 2 && !pre) {
      const S* a = reinterpret_cast<const S*>(src[0]);
      const S* b = reinterpret_cast<const S*>(src[1]);
      S* first = reinterpret_cast<S*>(dst[0]);
      if (destinations == 1) return fold_two<S, Op>(first, a, b, count, postscale);
      if constexpr (__is_same(Op, Sum) && (__is_same(S, float) || __is_same(S, double))) {
        if (destinations == 2) return sum_two(first, reinterpret_cast<S*>(dst[1]), a, b, count, postscale);
      }
    }
  }
  alignas(64) A acc[kBlock];
  alignas(64) A scratch[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t m = count - at < kBlock ? count - at : kBlock;
    load(acc, reinterpret_cast<const S*>(src[0]) + at, m);
    if (pre) multiply(acc, prescale, m);
    for (int k = 1; k < n; ++k) {
      combine<S, A, Op>(acc, reinterpret_cast<const S*>(src[k]) + at, m, scratch, prescale, pre);
    }
    if (post) multiply(acc, postscale, m);
    S* first = reinterpret_cast<S*>(dst[0]) + at;
    store(first, acc, m);
    for (int k = 1; k < destinations; ++k) {
      std::memcpy(reinterpret_cast<S*>(dst[k]) + at, first, m * sizeof(S));
    }
  }
}

template <class S, class A>
void average_integers(std::byte* const* dst, int destinations, const std::byte* const* src, int n,
                      size_t count, int divisor) {
  for (size_t i = 0; i < count; ++i) {
    A sum = 0;
    for (int k = 0; k < n; ++k) sum += static_cast<A>(reinterpret_cast<const S*>(src[k])[i]);
    const S value = static_cast<S>(sum / static_cast<A>(divisor));
    for (int k = 0; k < destinations; ++k) reinterpret_cast<S*>(dst[k])[i] = value;
  }
}

// What does not change from one dtype to the next.
struct Fold {
  ReduceOp op;
  std::byte* const* dst;
  int destinations;
  const std::byte* const* src;
  int n;
  size_t count;
  double prescale;
  double postscale;
  int divisor;
};

template <class S, class A, class Op>
void fold_typed(const Fold& f, A prescale, A postscale) {
  fold_typed<S, A, Op>(f.dst, f.destinations, f.src, f.n, f.count, prescale, postscale);
}

template <class S, class A>
void fold_floats(const Fold& f) {
  const A pre = static_cast<A>(f.prescale);
  const A post = static_cast<A>(f.op == ReduceOp::average ? f.postscale / f.divisor : f.postscale);
  switch (f.op) {
    case ReduceOp::sum:
    case ReduceOp::average:
      return fold_typed<S, A, Sum>(f, pre, post);
    case ReduceOp::min:
      return fold_typed<S, A, Min>(f, pre, post);
    case ReduceOp::max:
      return fold_typed<S, A, Max>(f, pre, post);
    case ReduceOp::product:
      return fold_typed<S, A, Product>(f, pre, post);
    case ReduceOp::adasum:
      return;  // is made of other things, see collective/adasum.h
  }
}

template <class S, class A>
void fold_integers(const Fold& f) {
  switch (f.op) {
    case ReduceOp::sum:
      return fold_typed<S, S, Sum>(f, S(1), S(1));
    case ReduceOp::average:
      return average_integers<S, A>(f.dst, f.destinations, f.src, f.n, f.count, f.divisor);
    case ReduceOp::min:
      return fold_typed<S, S, Min>(f, S(1), S(1));
    case ReduceOp::max:
      return fold_typed<S, S, Max>(f, S(1), S(1));
    case ReduceOp::product:
      return fold_typed<S, S, Product>(f, S(1), S(1));
    case ReduceOp::adasum:
      return;  // check_reduction refuses it
  }
}

void fold_to(DType dtype, ReduceOp op, std::byte* const* dst, int destinations, const std::byte* const* src,
             int n, size_t count, double prescale, double postscale, int divisor) {
  const Fold f{op, dst, destinations, src, n, count, prescale, postscale, divisor};
  switch (dtype) {
    case DType::float32:
      return fold_floats<float, float>(f);
    case DType::float64:
      return fold_floats<double, double>(f);
    case DType::float16:
      return fold_floats<Half, float>(f);
    case DType::bfloat16:
      return fold_floats<Brain, float>(f);
    case DType::int8:
      return fold_integers<int8_t, int64_t>(f);
    case DType::int16:
      return fold_integers<int16_t, int64_t>(f);
    case DType::int32:
      return fold_integers<int32_t, int64_t>(f);
    case DType::int64:
      return fold_integers<int64_t, Int128>(f);
    case DType::uint8:
    case DType::boolean:
      return fold_integers<uint8_t, uint64_t>(f);
    case DType::uint16:
      return fold_integers<uint16_t, uint64_t>(f);
    case DType::uint32:
      return fold_integers<uint32_t, uint64_t>(f);
    case DType::uint64:
      return fold_integers<uint64_t, UInt128>(f);
  }
}

template <class S, class A>
void scale_typed(std::byte* dst, const std::byte* src, size_t count, double factor) {
  alignas(64) A block[kBlock];
  for (size_t at = 0; at < count; at += kBlock) {
    const size_t m = count - at < kBlock ? count - at : kBlock;
    load(block, reinterpret_cast<const S*>(src) + at, m);
    multiply(block, static_cast<A>(factor), m);
    store(reinterpret_cast<S*>(dst) + at, block, m);
  }
}

void scale(DType dtype, std::byte* dst, const std::byte* src, size_t count, double factor) {
  switch (dtype) {
    case DType::float32:
      return scale_typed<float, float>(dst, src, count, factor);
    case DType::float64:
      return scale_typed<double, double>(dst, src, count, factor);
    case DType::float16:
      return scale_typed<Half, float>(dst, src, count, factor);
    case DType::bfloat16:
      return scale_typed<Brain, float>(dst, src, count, factor);
    default:
      return;  // check_reduction refuses scales for other types
  }
}

void stream(std::byte* dst, const std::byte* src, size_t bytes) {
#if defined(__AVX2__)
  const size_t skip = (64 - reinterpret_cast<uintptr_t>(dst) % 64) % 64;
  if (bytes < skip + 4096) {
    std::memcpy(dst, src, bytes);
    return;
  }
  std::memcpy(dst, src, skip);
  size_t at = skip;
  for (; at + 64 <= bytes; at += 64) {
    const auto* from = reinterpret_cast<const __m256i*>(src + at);
    auto* to = reinterpret_cast<__m256i*>(dst + at);
    const __m256i low = _mm256_loadu_si256(from), high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
  }
  std::memcpy(dst + at, src + at, bytes - at);
  _mm_sfence();
#else
  std::memcpy(dst, src, bytes);
#endif
}

void widen(DType dtype, float* dst, const std::byte* src, size_t count) {
  if (dtype == DType::float32) load(dst, reinterpret_cast<const float*>(src), count);
  if (dtype == DType::float16) load(dst, reinterpret_cast<const Half*>(src), count);
  if (dtype == DType::bfloat16) load(dst, reinterpret_cast<const Brain*>(src), count);
}

void narrow(DType dtype, std::byte* dst, const float* src, size_t count) {
  if (dtype == DType::float32) store(reinterpret_cast<float*>(dst), src, count);
  if (dtype == DType::float16) store(reinterpret_cast<Half*>(dst), src, count);
  if (dtype == DType::bfloat16) store(reinterpret_cast<Brain*>(dst), src, count);
}

}  // namespace
}  // namespace ring
