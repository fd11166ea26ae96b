// Everything that connects this rank with the others: connections, shared segment, topology, the group and
// the exchange that fit the topology.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collective/exchange.h"
#include "collective/group.h"
#include "engine/lookout.h"
#include "rendezvous/locality.h"
#include "rendezvous/mesh.h"
#include "transport/arena.h"

namespace ring {

struct Options {
  std::string transport = "auto";
  int64_t segment_bytes = 256 * 1024;
  int64_t fusion_bytes = 32 * 1024 * 1024;
  int64_t arena_bytes = 0;  // addresses for the memory that each rank shares with its host's ranks; 0: none
  bool autotune = false;
  std::string autotune_log;  // of rank 0; empty: none
  int socket_buffer_bytes = 0;
  int64_t spin_microseconds = -1;
  double connect_timeout = 60;
  double handshake_timeout = 10;
  double collective_timeout = 600;
  double close_timeout = 5;
  double silence_timeout = 30;
  double stall_warning_seconds = 60;  // 0: off
  double stall_abort_seconds = 0;     // 0: off
  std::string group;                  // how errors call a sub-group; empty: the whole world
};

class Fabric {
 public:
  // Connects, authenticates, agrees on the topology. The listener is closed at the end.
  static Result<std::unique_ptr<Fabric>> connect(Listener listener, int rank,
                                                 const std::vector<PeerAddress>& peers,
                                                 const std::string& secret, const Options& options,
                                                 Lookout& lookout);

  ControlPlane& control() { return *control_; }
  Exchange& exchange() { return *exchange_; }
  Group& group() { return *group_; }
  const Topology& topology() const { return topology_; }
  const std::string& transport() const { return transport_; }  // "self", "shm", "tcp" or "shm+tcp"
  // Memory that the ranks of this host share; null if there is none.
  const std::shared_ptr<Arena>& arena() const { return arena_; }
  int strangers() const { return strangers_; }
  // The connections for messages between two ranks, by rank; once.
  std::vector<Socket> take_messages() { return std::move(messages_); }
  // Closes every connection and unmaps the segment.
  void close();
  // After the goodbye: waits until the peers' kernels have all data that was sent, so that closing loses
  // none.
  void drain_data(Deadline deadline);

 private:
  void build(Locality locality, const Options& options, WaitPolicy policy, Lookout& lookout);

  std::unique_ptr<ControlPlane> control_;
  std::vector<Socket> data_;
  std::vector<Socket> messages_;
  std::shared_ptr<const SharedSegment> segment_;  // blocks of the arena may outlive this
  std::shared_ptr<Arena> arena_;
  std::unique_ptr<Exchange> exchange_;
  std::unique_ptr<Group> group_;
  Topology topology_;
  std::string transport_;
  int strangers_ = 0;
};

}  // namespace ring
