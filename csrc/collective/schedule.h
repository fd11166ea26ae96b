// Who works on what, and in which order. Pure arithmetic, checked for every world size to 64 without a
// socket.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace ring {

// A division of [0, total) into consecutive slices, one per rank: slice r is [offset[r], offset[r + 1]).
struct Slices {
  std::vector<size_t> offset;

  size_t begin(int r) const { return offset[static_cast<size_t>(r)]; }
  size_t end(int r) const { return offset[static_cast<size_t>(r) + 1]; }
  size_t size(int r) const { return end(r) - begin(r); }
  int count() const { return static_cast<int>(offset.size()) - 1; }
  size_t total() const { return offset.back(); }
  size_t longest() const {
    size_t most = 0;
    for (int r = 0; r < count(); ++r) most = std::max(most, size(r));
    return most;
  }
};

// Slices that differ by at most one granule; every offset but the last is a multiple of `granule`. Ranks from
// `parts` on get nothing (a two-level operation may have fewer owners than ranks).
inline Slices balanced_slices(size_t total, int ranks, int parts, size_t granule) {
  Slices slices;
  slices.offset.reserve(static_cast<size_t>(ranks) + 1);
  const size_t granules = (total + granule - 1) / granule;
  const size_t each = granules / static_cast<size_t>(parts), extra = granules % static_cast<size_t>(parts);
  for (size_t r = 0; r <= static_cast<size_t>(ranks); ++r) {
    const size_t before = std::min(r, static_cast<size_t>(parts));
    slices.offset.push_back(std::min(total, (before * each + std::min(before, extra)) * granule));
  }
  return slices;
}

// Slices of given sizes.
inline Slices slices_of(const std::vector<size_t>& sizes) {
  Slices slices;
  slices.offset.push_back(0);
  for (const size_t size : sizes) slices.offset.push_back(slices.offset.back() + size);
  return slices;
}

// How reducescatter divides dimension 0: the first (rows % ranks) ranks get one row more.
inline std::vector<size_t> scatter_rows(size_t rows, int ranks) {
  std::vector<size_t> sizes(static_cast<size_t>(ranks), rows / static_cast<size_t>(ranks));
  for (size_t r = 0; r < rows % static_cast<size_t>(ranks); ++r) ++sizes[r];
  return sizes;
}

// The ring. In every step each rank sends one slice to the next rank and receives one from the previous one;
// what it sends in step s + 1 is what it received in step s.
//
//   reduce-scatter  n-1 steps; the slice that arrives is added to this rank's own. Rank r ends with the
//                   complete slice (r + 1 + shift) mod n.
//   allgather       n-1 steps; the complete slices go round.
struct RingStep {
  int send;     // slice sent
  int receive;  // slice received
};

inline int ring_mod(int value, int n) { return ((value % n) + n) % n; }

inline std::vector<RingStep> ring_reduce_scatter(int rank, int n, int shift) {
  std::vector<RingStep> steps;
  for (int s = 0; s < n - 1; ++s) {
    steps.push_back({ring_mod(rank + shift - s, n), ring_mod(rank + shift - s - 1, n)});
  }
  return steps;
}

// `first`: the slice with which this rank starts; the previous rank starts with first - 1.
inline std::vector<RingStep> ring_allgather(int first, int n) {
  std::vector<RingStep> steps;
  for (int s = 0; s < n - 1; ++s) steps.push_back({ring_mod(first - s, n), ring_mod(first - s - 1, n)});
  return steps;
}

}  // namespace ring
