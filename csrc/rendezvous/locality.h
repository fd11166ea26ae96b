// Agreeing on who talks through shared memory. Equal host identities only make candidates: the lowest rank of
// each candidate host creates a segment with a random challenge in it, the others map it and answer with what
// they read, and all ranks see all answers, so all take the same decision.
//
//   exchange 1   settings and host identity of every rank        settings that must agree are compared
//   exchange 2   name and size of each host's segment, or why there is none
//   exchange 3   the challenge, as its creator wrote it and as everybody else read it
//   then         every creator removes its segment's name: nothing is left behind, however the ranks end
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "rendezvous/topology.h"
#include "transport/control_plane.h"
#include "transport/shared_segment.h"

namespace ring {

struct LocalityRequest {
  std::string transport;  // "auto", "shm" or "tcp"
  std::string host_id;
  std::string settings;  // must be equal on all ranks; shown when it is not
  size_t (*segment_bytes)(int local_size, const void* context) = nullptr;  // how large a segment has to be
  const void* context = nullptr;
  size_t arena_bytes = 0;  // spare addresses for every rank
};

struct Locality {
  Topology topology;        // by host identity: for local_rank and friends
  bool any_shared = false;  // some host has more than one rank and shares memory
  Topology data;            // by proven sharing: a rank that shares with nobody is a host of its own
  SharedSegment segment;    // this rank's host's, if it shares
};

Result<Locality> agree_on_locality(ControlPlane& control, const LocalityRequest& request, Deadline deadline,
                                   Watch* watch);

}  // namespace ring
