// A bound, listening TCP socket.
#pragma once

#include <string>

#include "transport/socket.h"

namespace ring {

class Listener {
 public:
  // Binds `address` (empty: every interface, IPv6 with IPv4 where there is IPv6) and `port` (0: any free
  // one).
  static Result<Listener> open(const std::string& address, int port);
  int port() const { return port_; }
  int fd() const { return socket_.fd(); }
  bool valid() const { return socket_.valid(); }
  void close() { socket_.close(); }
  // One waiting connection, or an invalid socket when there is none; `why` gets the errno.
  Socket try_accept(int* why = nullptr) const;

 private:
  Socket socket_;
  int port_ = 0;
};

}  // namespace ring
