// One blocking allreduce of one tensor, as a view: nothing here is owned, so nothing is allocated for it.
//
// When nothing else is pending on this rank, the engine takes the short road (Engine::run_express):
//
//   1. claim the queue: from now on this operation is the first one pending, without being in the list;
//   2. show its hash and, if it is small, its payload: the same exchange as in any round of agreement;
//   3. all ranks show the same hash: fold what came, or let the group move the bytes. Done.
//
// Whatever else happens (heads that differ, a peer that is lost, a deadline, a signal) the operation is made
// into an ordinary one at the head of the queue and the general road goes on from there, in the same round: a
// peer cannot tell which road this rank took.
#pragma once

#include <string_view>
#include <vector>

#include "engine/operation.h"

namespace ring {

struct Express {
  std::string_view name;
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1;
  double postscale = 1;
  const int64_t* shape = nullptr;
  size_t dims = 0;
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  size_t bytes = 0;
  double timeout = -1;

  // The hash of the descriptor that the operation would have as an ordinary one.
  uint64_t hash(uint64_t number) const;
  Request request() const;
};

}  // namespace ring
