// Agreeing, without a coordinator, on what to do next. One round, run by every rank that has something
// pending; ranks that have nothing join when they get something.
//
//   1. Every rank shows: the hash of its first pending operation, how many are pending, a hash over all of
//      them, and, if the first is small, its payload.
//   2. All firsts equal, somebody has only one: that operation runs; if it was small it is already complete.
//      All have more: if everything pending is equal, everything runs; else the ranks compare a hash over the
//      first n = min(pending) and run these n, or only the first if they differ further on.
//   3. Firsts differ: every rank shows all its descriptors. What all have, in the order of rank 0, runs if it
//      agrees and fails on every rank with the two sides' descriptions if it does not. If all have nothing in
//      common the round is stuck: a new one begins when any rank has something new.
//
// A rank that has joined counts as having everything that the others have: it takes part with a stand-in (see
// joined.h) until all have joined. Then all have a join pending, and that runs like anything else.
//
// Every rank decides from the same data, so all decide the same.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "collective/exchange.h"
#include "engine/operation.h"
#include "transport/control_plane.h"

namespace ring {

struct Decision {
  std::vector<OperationPtr> run;  // in this order
  bool carried = false;           // run has one operation and `incoming` its payloads
  std::vector<std::pair<OperationPtr, Status>> mismatched;  // fail these
  std::vector<Descriptor> absent;  // what was decided about without this rank, which has joined
  bool stuck = false;
  bool compared = false;  // the ranks compared lists, so `lonely` is known
  std::vector<std::pair<OperationPtr, std::vector<int>>> lonely;  // pending here and not on these ranks
};

class Agreement {
 public:
  Agreement(Exchange& exchange, ControlPlane& control, Watch& watch, int rank)
      : exchange_(exchange), control_(control), watch_(watch), rank_(rank), size_(control.size()) {}

  Status decide(const std::vector<OperationPtr>& pending, Deadline deadline, Decision* decision);
  // Step 1 for an operation on the short road, which is all that this rank shows. `alike`: all firsts are
  // equal, so it runs, and if it was small `incoming` has its payloads. Else `reconsider` goes on from here.
  Status show(uint64_t hash, const std::byte* payload, size_t bytes, Deadline deadline, bool* alike);
  Status reconsider(const std::vector<OperationPtr>& pending, Deadline deadline, Decision* decision) {
    return compare_lists(pending, deadline, decision);
  }
  // The payloads of a carried decision, by rank; valid until the next call of decide.
  const std::vector<Incoming>& incoming() const { return incoming_; }
  // Who had what pending when the last round was stuck, for error messages.
  const std::string& stuck_story() const { return stuck_story_; }

 private:
  Status compare_lists(const std::vector<OperationPtr>& pending, Deadline deadline, Decision* decision);
  bool may_carry(const Operation& first) const;
  bool build_payload(const Operation& first);
  Status check_payloads(const Operation& first) const;

  Exchange& exchange_;
  ControlPlane& control_;
  Watch& watch_;
  const int rank_;
  const int size_;
  uint64_t round_ = 0;  // the same on all ranks
  std::vector<Incoming> incoming_;
  Pieces payload_;
  std::string stuck_story_;
};

// What a rank of `size` showed in step 3; `ok` tells whether it was a list of operations that can be.
std::vector<Descriptor> read_descriptors(ByteView bytes, int size, bool* ok);

// The pure part of step 3. lists[r] are the operations pending on rank r; returns for every key that all
// ranks have which have not joined, in the order of the first such rank, the key and, if ranks disagree, what
// to tell (else an empty text). If all have joined, that is rank 0.
struct Common {
  std::string key;
  std::string disagreement;
  int rank = -1;                           // the first rank that differs from the first
  const Descriptor* descriptor = nullptr;  // the first rank's, in `lists`
};
std::vector<Common> find_common(const std::vector<std::vector<Descriptor>>& lists);

}  // namespace ring
