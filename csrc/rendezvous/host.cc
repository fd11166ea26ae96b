#include "rendezvous/host.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>

#include "transport/socket.h"

namespace ring {

std::string host_id() {
  std::string id;
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    char text[64] = {};
    if (std::fgets(text, sizeof text, file) != nullptr) id = text;
    std::fclose(file);
  }
  while (!id.empty() && (id.back() == '\n' || id.back() == ' ')) id.pop_back();
  if (id.empty()) {
    char name[256] = {};
    ::gethostname(name, sizeof name - 1);
    id = name;
  }
  struct stat facts{};
  if (::stat("/dev/shm", &facts) == 0) {
    id += "/" + std::to_string(facts.st_dev) + ":" + std::to_string(facts.st_ino);
  }
  return id;
}

std::vector<LocalAddress> local_addresses() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> guard(first, ::freeifaddrs);
  std::vector<LocalAddress> found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 || (one->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    char text[INET6_ADDRSTRLEN] = {};
    if (one->ifa_addr->sa_family == AF_INET) {
      const in_addr& address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr;
      ::inet_ntop(AF_INET, &address, text, sizeof text);
      found.push_back({text, one->ifa_name, (ntohl(address.s_addr) >> 16) == 0xa9fe});  // 169.254.0.0/16
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      ::inet_ntop(AF_INET6, &address, text, sizeof text);
      found.push_back({text, one->ifa_name, IN6_IS_ADDR_LINKLOCAL(&address) != 0});
    }
  }
  return found;
}

Result<std::string> local_address_for(const std::string& remote) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int failure = ::getaddrinfo(remote.c_str(), "9", &hints, &found);
  if (failure != 0) {
    return Status(Code::rendezvous,
                  "address '" + remote + "' cannot be resolved: " + ::gai_strerror(failure));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> guard(found, ::freeaddrinfo);
  int error = 0;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Socket socket(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    char text[NI_MAXHOST];
    if (socket.valid() && ::connect(socket.fd(), one->ai_addr, one->ai_addrlen) == 0 &&
        ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&local), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text, sizeof text, nullptr, 0,
                      NI_NUMERICHOST) == 0) {
      return std::string(text);
    }
    error = errno;
  }
  return Status(Code::rendezvous, "no route to '" + remote + "': " + error_text(error));
}

}  // namespace ring
