#include "rendezvous/topology.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace ring {

Topology Topology::from(const std::vector<std::string>& host_ids, int rank) {
  Topology topology;
  topology.rank = rank;
  topology.size = static_cast<int>(host_ids.size());
  std::map<std::string, size_t> seen;
  for (size_t q = 0; q < host_ids.size(); ++q) {
    const auto [place, is_new] = seen.emplace(host_ids[q], topology.hosts.size());
    if (is_new) topology.hosts.emplace_back();
    topology.hosts[place->second].push_back(static_cast<int>(q));
  }
  topology.host = static_cast<int>(seen[host_ids[static_cast<size_t>(rank)]]);
  const auto& mine = topology.local();
  topology.local_size = static_cast<int>(mine.size());
  topology.local_rank = static_cast<int>(std::find(mine.begin(), mine.end(), rank) - mine.begin());
  topology.cross_size = 0;
  for (size_t h = 0; h < topology.hosts.size(); ++h) {
    if (static_cast<int>(topology.hosts[h].size()) <= topology.local_rank) continue;
    if (static_cast<int>(h) < topology.host) ++topology.cross_rank;
    ++topology.cross_size;
  }
  return topology;
}

}  // namespace ring
