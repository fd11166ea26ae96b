// The group of one rank: every operation is a copy, at most scaled.
#pragma once

#include "collective/group.h"

namespace ring {

class SelfGroup final : public Group {
 public:
  Status allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) override;
  Status broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) override;
  Status allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                   Deadline deadline) override;
  Status reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                       const Reduction& reduction, Deadline deadline) override;
  Status alltoall(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
                  size_t longest, Deadline deadline) override;
};

}  // namespace ring
