// Which operations of a batch travel together. Pure; every rank computes the same from the same batch.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/operation.h"

namespace ring {

// Operations (indices into the batch) that run as one. Only allreduces of equal dtype, op and scales share a
// bucket, and a bucket of several holds at most fusion_bytes. Buckets are ordered by their first operation.
using Bucket = std::vector<size_t>;

std::vector<Bucket> make_buckets(const std::vector<OperationPtr>& batch, size_t fusion_bytes);

}  // namespace ring
