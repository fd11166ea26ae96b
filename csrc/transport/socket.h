// A connected TCP socket. Owns its descriptor. Never blocks except in the *_all functions, which have a
// deadline; never raises SIGPIPE; works whether or not the descriptor is in non-blocking mode.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"

namespace ring {

// What one non-blocking attempt did.
struct IoResult {
  size_t bytes = 0;
  bool closed = false;  // end of stream, reset, or another error that ends the connection
  int error = 0;        // errno if closed by an error
};

// True if at least one byte can be received from the descriptor now.
bool has_bytes(int fd);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept;
  ~Socket() { close(); }

  int fd() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release();
  void close();

  IoResult try_send(const void* data, size_t size) const;
  IoResult try_send(const iovec* parts, int count) const;
  IoResult try_receive(void* data, size_t size) const;
  bool readable() const { return has_bytes(fd_); }

  // Latency first. Same-host connections use reno where the kernel has it: twice the throughput of BBR there.
  void tune(int buffer_bytes, bool same_host) const;
  // From now on the connection breaks (ETIMEDOUT) when nothing was heard from the peer's kernel for so many
  // seconds, neither an acknowledgement nor an answer to the probes that a quiet connection sends. Only for
  // connections whose receiver always reads: bytes that are not taken count as silence.
  void notice_silence(double seconds) const;
  // Bytes that the peer's kernel has not acknowledged yet.
  int unsent_bytes() const;
  void shutdown_write() const;
  std::string peer_name() const;

 private:
  int fd_ = -1;
};

// For descriptors that somebody else owns.
IoResult try_send(int fd, const void* data, size_t size);
IoResult try_receive(int fd, void* data, size_t size);

// Starts a non-blocking connection to a numeric address or host name. On failure `why` gets the errno, if the
// kernel gave one: a refusal may be known at once.
Result<Socket> start_connect(const std::string& address, int port, int* why = nullptr);
// After the descriptor became writable: 0, or the errno with which connecting failed.
int connect_error(const Socket& socket);

std::string error_text(int error);

}  // namespace ring
