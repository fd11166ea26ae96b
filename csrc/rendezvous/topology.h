// Which ranks share a host. Pure arithmetic on host identities.
#pragma once

#include <string>
#include <vector>

namespace ring {

struct Topology {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  int cross_rank = 0;  // among the ranks that have this local rank, one per host
  int cross_size = 1;
  std::vector<std::vector<int>> hosts;  // the ranks of each host, ascending; hosts by their lowest rank
  int host = 0;                         // this rank's place in `hosts`

  static Topology from(const std::vector<std::string>& host_ids, int rank);
  const std::vector<int>& local() const { return hosts[static_cast<size_t>(host)]; }
};

}  // namespace ring
