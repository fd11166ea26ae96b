// Who this host is, and by which address another one is reached.
#pragma once

#include <string>

#include "base/status.h"

namespace ring {

// Boot id and the identity of the shared-memory file system: two processes with equal ids are candidates for
// shared memory, which they still have to prove to each other.
std::string host_id();

// The local address from which `remote` (address or name) is reached: asked of the routing table, nothing is
// sent.
Result<std::string> local_address_for(const std::string& remote);

}  // namespace ring
