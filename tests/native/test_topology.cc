#include "check.h"
#include "rendezvous/topology.h"

using ring::Topology;

TEST(one_host) {
  const Topology topology = Topology::from({"a", "a", "a"}, 1);
  CHECK_EQ(topology.local_rank, 1);
  CHECK_EQ(topology.local_size, 3);
  CHECK_EQ(topology.cross_rank, 0);
  CHECK_EQ(topology.cross_size, 1);
}

TEST(interleaved_hosts) {
  const Topology topology = Topology::from({"a", "b", "a", "b"}, 3);
  CHECK_EQ(topology.local_rank, 1);
  CHECK_EQ(topology.local_size, 2);
  CHECK_EQ(topology.cross_rank, 1);
  CHECK_EQ(topology.cross_size, 2);
  CHECK(topology.local() == (std::vector<int>{1, 3}));
}

TEST(uneven_hosts_have_different_cross_sizes) {
  const std::vector<std::string> hosts{"a", "b", "b", "c", "b"};
  CHECK_EQ(Topology::from(hosts, 0).cross_size, 3);
  const Topology last = Topology::from(hosts, 4);
  CHECK_EQ(last.local_rank, 2);
  CHECK_EQ(last.cross_size, 1);
  CHECK_EQ(last.cross_rank, 0);
}
