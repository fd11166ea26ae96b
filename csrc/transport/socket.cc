#include "transport/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace ring {
namespace {

IoResult outcome(ssize_t done, bool zero_is_end) {
  if (done > 0) return {static_cast<size_t>(done), false, 0};
  if (done == 0) return {0, zero_is_end, 0};
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ENOBUFS) return {};
  return {0, true, errno};
}

}  // namespace

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = other.release();
  }
  return *this;
}

int Socket::release() {
  const int fd = fd_;
  fd_ = -1;
  return fd;
}

void Socket::close() {
  if (fd_ >= 0) ::close(release());
}

IoResult try_send(int fd, const void* data, size_t size) {
  return outcome(::send(fd, data, size, MSG_DONTWAIT | MSG_NOSIGNAL), false);
}

IoResult try_receive(int fd, void* data, size_t size) {
  return outcome(::recv(fd, data, size, MSG_DONTWAIT), true);
}

IoResult Socket::try_send(const void* data, size_t size) const { return ring::try_send(fd_, data, size); }

IoResult Socket::try_send(const iovec* parts, int count) const {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(count);
  return outcome(::sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL), false);
}

IoResult Socket::try_receive(void* data, size_t size) const { return ring::try_receive(fd_, data, size); }

bool has_bytes(int fd) {
  char one;
  return ::recv(fd, &one, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

void Socket::tune(int buffer_bytes, bool same_host) const {
  const int on = 1;
  ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (same_host) ::setsockopt(fd_, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);  // absent: the default stays
  if (buffer_bytes > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof buffer_bytes);
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
  }
}

void Socket::notice_silence(double seconds) const {
  const int on = 1;
  const int third = std::max(1, static_cast<int>(seconds / 3));
  const int sixth = std::max(1, static_cast<int>(seconds / 6));
  const int probes = std::max(2, static_cast<int>(seconds / sixth) - third / sixth);
  const auto limit_ms = static_cast<unsigned>(std::min(seconds, 1e6) * 1000);
  ::setsockopt(fd_, IPPROTO_TCP, TCP_KEEPIDLE, &third, sizeof third);
  ::setsockopt(fd_, IPPROTO_TCP, TCP_KEEPINTVL, &sixth, sizeof sixth);
  ::setsockopt(fd_, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  ::setsockopt(fd_, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof limit_ms);
  ::setsockopt(fd_, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
}

int Socket::unsent_bytes() const {
  int bytes = 0;
  return ::ioctl(fd_, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

void Socket::shutdown_write() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_WR);
}

std::string Socket::peer_name() const {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST], service[NI_MAXSERV];
  if (::getpeername(fd_, reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, service, sizeof service,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown address";
  }
  return std::string(host) + " port " + service;
}

Result<Socket> start_connect(const std::string& address, int port, int* why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failure != 0) {
    return Status(Code::rendezvous,
                  "address '" + address + "' cannot be resolved: " + std::string(::gai_strerror(failure)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.valid()) {
      error = errno;
      continue;
    }
    if (::connect(socket.fd(), one->ai_addr, one->ai_addrlen) == 0 || errno == EINPROGRESS) return socket;
    error = errno;
  }
  if (why != nullptr) *why = error;
  return Status(Code::rendezvous,
                "cannot connect to " + address + " port " + std::to_string(port) + ": " + error_text(error));
}

int connect_error(const Socket& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

std::string error_text(int error) { return std::generic_category().message(error); }

}  // namespace ring
