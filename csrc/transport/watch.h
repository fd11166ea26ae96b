// Looking up from a wait. Every wait in the ring, whatever it waits for, calls Watch::check every few
// milliseconds, so that a dead peer, an abort or a signal ends it.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace ring {

class Watch {
 public:
  virtual ~Watch() = default;
  // Success: keep waiting. `waiting_for` is the rank whose contribution is missing (-1: no single one).
  // A wait that is told to stop looks once more whether it is satisfied: what a peer did before it left
  // counts.
  virtual Status check(int waiting_for) = 0;
  // The same for a wait for bytes of a data connection: a peer that has said goodbye may have sent them
  // before, and they are still on the way; the connection's own end tells when nothing more will come.
  virtual Status check_stream(int waiting_for) = 0;
  // A wait that was long enough to be measured has ended; `rank` was the last one missing (-1: nobody).
  virtual void waited(int rank, int64_t us) {
    (void)rank;
    (void)us;
  }
};

}  // namespace ring
