// Who this host is, and by which address another one is reached.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace ring {

// Boot id and the identity of the shared-memory file system: two processes with equal ids are candidates for
// shared memory, which they still have to prove to each other.
std::string host_id();

// One address of this host, without its zone.
struct LocalAddress {
  std::string address;
  std::string interface;
  bool link_local = false;  // means something on this interface's network only
};

// Every IPv4 and IPv6 address of interfaces that are up, loopback left out, in the kernel's order.
std::vector<LocalAddress> local_addresses();

// The local address from which `remote` (address or name) is reached: asked of the routing table, nothing is
// sent.
Result<std::string> local_address_for(const std::string& remote);

}  // namespace ring
