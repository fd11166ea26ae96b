#include "transport/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <memory>

namespace ring {
namespace {

constexpr int kBacklog = 1024;

int bound_port(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  if (address.ss_family == AF_INET6) return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Socket bind_one(const addrinfo& where) {
  Socket socket(::socket(where.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return {};
  const int on = 1, off = 0;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (where.ai_family == AF_INET6) ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.fd(), where.ai_addr, where.ai_addrlen) != 0) return {};
  if (::listen(socket.fd(), kBacklog) != 0) return {};
  return socket;
}

}  // namespace

Result<Listener> Listener::open(const std::string& address, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string where = (address.empty() ? "every interface" : address) + " port " + std::to_string(port);
  const int failure = ::getaddrinfo(address.empty() ? nullptr : address.c_str(), std::to_string(port).c_str(),
                                    &hints, &found);
  if (failure != 0) {
    return Status(Code::rendezvous,
                  "cannot listen on " + where + ": " + std::string(::gai_strerror(failure)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const int family : {AF_INET6, AF_INET}) {  // a dual-stack socket first
    for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
      if (one->ai_family != family) continue;
      errno = 0;
      Socket socket = bind_one(*one);
      if (socket.valid()) {
        Listener listener;
        listener.port_ = bound_port(socket);
        listener.socket_ = std::move(socket);
        return listener;
      }
      error = errno;
    }
  }
  return Status(Code::rendezvous, "cannot listen on " + where + ": " + error_text(error) +
                                      "; choose another address or port 0");
}

Socket Listener::try_accept(int* why) const {
  Socket socket(::accept4(socket_.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (why != nullptr) *why = socket.valid() ? 0 : errno;
  return socket;
}

}  // namespace ring
