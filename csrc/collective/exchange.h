// The small all-gather on which agreement rests: every rank contributes a head and perhaps a payload and sees
// everybody's. All ranks run the same sequence of exchanges, in lockstep: an exchange ends on a rank when
// every rank has begun it. With equal heads it is a barrier; with a payload it is a whole small collective.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collective/pieces.h"

namespace ring {

struct Head {
  uint64_t first = 0;    // hash of the first pending operation's descriptor
  uint64_t all = 0;      // hash over the descriptors of all pending operations
  uint32_t pending = 0;  // how many there are
  uint32_t payload = 0;  // bytes of payload that follow
};

struct Incoming {
  const Head* head = nullptr;
  const std::byte* payload = nullptr;
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  // What (*all)[r] points to stays valid until the next exchange begins. `payload` may be null.
  virtual Status run(Head head, const Pieces* payload, Deadline deadline, std::vector<Incoming>* all) = 0;
  // The same with a payload in one piece.
  virtual Status run_flat(Head head, const std::byte* payload, Deadline deadline,
                          std::vector<Incoming>* all) = 0;
  // The largest payload worth sending along.
  virtual size_t payload_limit() const = 0;
  // Inside run(): the ranks that have not begun this exchange.
  virtual void missing(std::vector<int>* ranks) = 0;
  // True if some rank has already begun the exchange that this rank will do next.
  virtual bool peer_ahead() = 0;
};

}  // namespace ring
