// Connecting every pair of ranks, three times: a control connection, a data connection and one for messages
// between the two, each authenticated.
//
// The higher rank connects, the lower accepts. One thread drives everything with poll: connecting, accepting
// and any number of handshakes at once, so neither a stranger, a half-open connection nor a slow one holds up
// the ranks. Strangers are dropped and counted; attempts to reach a rank are repeated with growing pauses
// until the connect deadline.
//
// A rank that gives up tells those that it is connected to why and whom it blames (an abort of the control
// plane), so that they name the same rank and not the messenger.
//
// A rank may have several addresses (see rendezvous/route.h): one that does not answer soon makes way for the
// next, so a host whose first address is out of reach from some other host is reached by its second.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "transport/listener.h"
#include "transport/socket.h"
#include "transport/watch.h"

namespace ring {

struct PeerAddress {
  std::string address;  // the one to try first
  int port = 0;
  std::string host_id;
  std::vector<std::string> others = {};  // more addresses of the same rank, to be tried in turn
};

struct MeshOptions {
  double connect_timeout = 60;
  double handshake_timeout = 10;
  int socket_buffer_bytes = 0;
  double silence_timeout = 30;
};

struct Mesh {
  std::vector<Socket> control;  // by rank; this rank's own place stays empty
  std::vector<Socket> data;
  std::vector<Socket> messages;
  int strangers =
      0;  // connections that said something, or nothing for too long, and did not prove the secret
};

// `watch` is looked up to while waiting (signals); may be null.
Result<Mesh> connect_mesh(Listener& listener, int rank, const std::vector<PeerAddress>& peers,
                          const std::string& secret, const MeshOptions& options, Watch* watch);

}  // namespace ring
