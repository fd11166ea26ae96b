#include "collective/adasum.h"

#include <cstring>

namespace ring {
namespace {

struct Pair {
  size_t a;  // ranks whose slices are combined, into a's place
  size_t b;
};

std::vector<Pair> pairs_of(size_t ranks, size_t stride) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a + stride < ranks; a += 2 * stride) pairs.push_back({a, a + stride});
  return pairs;
}

template <class T>
double dot(const T* a, const T* b, size_t count) {
  double sums[4] = {0, 0, 0, 0};
  size_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (size_t k = 0; k < 4; ++k) sums[k] += static_cast<double>(a[i + k]) * static_cast<double>(b[i + k]);
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
void scale_all(std::vector<T>& values, double factor) {
  if (factor == 1.0) return;
  for (T& value : values) value = static_cast<T>(value * factor);
}

// slices: `ranks` slices of `count` elements, one after the other; the result is the first.
template <class T>
Status combine(std::vector<T>& slices, size_t ranks, size_t count, const ShareNumbers& share) {
  for (size_t stride = 1; stride < ranks; stride *= 2) {
    const std::vector<Pair> pairs = pairs_of(ranks, stride);
    std::vector<double> mine;
    for (const Pair& pair : pairs) {
      const T* a = slices.data() + pair.a * count;
      const T* b = slices.data() + pair.b * count;
      mine.push_back(dot(a, b, count));
      mine.push_back(dot(a, a, count));
      mine.push_back(dot(b, b, count));
    }
    std::vector<std::vector<double>> all;
    RING_TRY(share(mine, &all));
    std::vector<double> totals(mine.size(), 0.0);
    for (const auto& one : all) {
      for (size_t i = 0; i < totals.size(); ++i) totals[i] += one[i];
    }
    for (size_t p = 0; p < pairs.size(); ++p) {
      const double ab = totals[3 * p], aa = totals[3 * p + 1], bb = totals[3 * p + 2];
      const T of_a = static_cast<T>(aa > 0 ? 1.0 - ab / (2 * aa) : 1.0);
      const T of_b = static_cast<T>(bb > 0 ? 1.0 - ab / (2 * bb) : 1.0);
      T* a = slices.data() + pairs[p].a * count;
      const T* b = slices.data() + pairs[p].b * count;
      for (size_t i = 0; i < count; ++i) a[i] = of_a * a[i] + of_b * b[i];
    }
  }
  return {};
}

}  // namespace

Status adasum(Group& group, int rank, int ranks, const std::byte* in, std::byte* out, size_t bytes,
              const Reduction& reduction, const ShareNumbers& share, Deadline deadline) {
  const size_t item = item_size(reduction.dtype);
  const size_t n = static_cast<size_t>(ranks);
  const Slices sends = balanced_slices(bytes, ranks, ranks, 64);
  const size_t mine = sends.size(rank), count = mine / item;
  std::vector<std::byte> arrived(n * mine);
  RING_TRY(group.alltoall(in, sends, arrived.data(), slices_of(std::vector<size_t>(n, mine)), sends.longest(),
                          deadline));
  if (reduction.dtype == DType::float64) {
    std::vector<double> slices(n * count);
    if (!arrived.empty()) std::memcpy(slices.data(), arrived.data(), arrived.size());
    scale_all(slices, reduction.prescale);
    RING_TRY(combine(slices, n, count, share));
    slices.resize(count);
    scale_all(slices, reduction.postscale);
    if (mine > 0) std::memcpy(arrived.data(), slices.data(), mine);
  } else {
    std::vector<float> slices(n * count);
    kernels().widen(reduction.dtype, slices.data(), arrived.data(), slices.size());
    scale_all(slices, reduction.prescale);
    RING_TRY(combine(slices, n, count, share));
    slices.resize(count);
    scale_all(slices, reduction.postscale);
    kernels().narrow(reduction.dtype, arrived.data(), slices.data(), count);
  }
  std::vector<size_t> sizes;
  for (int r = 0; r < ranks; ++r) sizes.push_back(sends.size(r));
  return group.allgather(arrived.data(), sizes, out, deadline);
}

}  // namespace ring
