// Adasum: an allreduce that adds gradients as far as they point in different directions and averages them as
// far as they agree, so that the step does not grow with the number of ranks. S. Maleki et al., "Scaling
// Distributed Training with Adaptive Summation", 2020 (arXiv:2006.02924). For two gradients
//
//     adasum(a, b) = (1 - a·b / (2 |a|²)) a + (1 - a·b / (2 |b|²)) b
//
// and a binary tree over the ranks for more: ((0 1)(2 3))((4 5) 6) and so on, for any number of ranks. A
// gradient that is all zeros leaves the other as it is.
//
// Each rank works on one slice of the tensor for all ranks:
//     alltoall   everybody's slice r to rank r                         T (n-1)/n bytes
//     per level  the partial dot products of the level's pairs, by one small exchange; their sums are taken
//     in
//                rank order, so all ranks get the same bits; then the pairs are combined   log2 n exchanges
//     allgather  the finished slices                                   T (n-1)/n bytes
// so as many bytes travel as in a ring allreduce. float16 and bfloat16 are worked on in float32 and rounded
// once; dot products are taken in float64. Memory: one more copy of the tensor.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "collective/group.h"

namespace ring {

// Gives every rank's numbers to everybody, by rank.
using ShareNumbers =
    std::function<Status(const std::vector<double>& mine, std::vector<std::vector<double>>* all)>;

// `in` and `out` are one tensor of a floating dtype and may be the same memory.
Status adasum(Group& group, int rank, int ranks, const std::byte* in, std::byte* out, size_t bytes,
              const Reduction& reduction, const ShareNumbers& share, Deadline deadline);

}  // namespace ring
