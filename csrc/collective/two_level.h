// Collectives over several hosts, some of which have ranks that share memory.
//
// allreduce, L = the smallest number of ranks on any host. The array is divided into L slices:
//     reduce-scatter inside the host    rank r < L of each host ends with the host's sum of slice r
//     allreduce between hosts           the r-th ranks of all hosts, over TCP, L rings side by side
//     allgather inside the host
//   So between hosts each slice travels once per host, not once per rank: 2 T (H-1)/H bytes per host.
// broadcast: the root to one rank of every other host over TCP, then inside each host.
// allgather, reducescatter and alltoall: flat, over TCP.
#pragma once

#include <memory>
#include <vector>

#include "collective/shm_group.h"
#include "collective/tcp_group.h"

namespace ring {

class TwoLevelGroup final : public Group {
 public:
  // hosts: the global ranks of each host, ascending. `local` is null where this rank shares with nobody.
  TwoLevelGroup(std::vector<std::vector<int>> hosts, int rank, std::unique_ptr<ShmGroup> local,
                const std::vector<Socket>& data, TcpTools tools);

  void set_segment(size_t bytes) override;
  Status allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) override;
  Status broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) override;
  Status allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                   Deadline deadline) override;
  Status reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                       const Reduction& reduction, Deadline deadline) override;
  Status alltoall(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
                  size_t longest, Deadline deadline) override;

  void fold_all(const std::byte* const* inputs, int ranks, std::byte* out, size_t bytes,
                const Reduction& reduction) const override;

 private:
  Status reduce_inside(const Pieces& pieces, const Slices& slices, const Reduction& reduction,
                       std::byte* mine, Deadline deadline);

  const std::vector<std::vector<int>> hosts_;
  const int rank_;
  int host_ = 0;
  int local_rank_ = 0;
  int owners_ = 0;  // L
  std::unique_ptr<ShmGroup> local_;
  const std::vector<Socket>& data_;
  TcpTools tools_;
  std::unique_ptr<TcpGroup> flat_;
  std::unique_ptr<TcpGroup> cross_;  // the ranks that own this rank's slice; null if it owns none
};

}  // namespace ring
