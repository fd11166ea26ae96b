// A stranger at either end of a handshake: whatever it sends, also what it has heard in other handshakes or
// from this rank itself, it is not let in.
//
//   input:  byte 0  the victim's part: even, server; odd, client
//           byte 1  bit 0: reflect what the victim has said before the rest
//           rest    what the stranger sends
#include <sys/socket.h>

#include "fuzz.h"
#include "rendezvous/handshake.h"
#include "transport/socket.h"

using ring::Bytes;
using ring::Handshake;
using ring::Introduction;
using ring::Purpose;
using ring::Socket;

namespace {

const Introduction kWho{Purpose::control, 3, 1, 4};

struct Wire {
  Socket a, b;
  Wire() {
    int fds[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    a = Socket(fds[0]);
    b = Socket(fds[1]);
  }
};

Bytes heard(const Socket& socket) {
  Bytes bytes(512);
  bytes.resize(socket.try_receive(bytes.data(), bytes.size()).bytes);
  return bytes;
}

// A whole handshake between two that know the secret, with an ear at the wire.
void record(Bytes* from_client, Bytes* from_server) {
  Wire client, server;
  Handshake asking = Handshake::client(client.a.fd(), kWho, "secret");
  Handshake answering = Handshake::server(server.a.fd(), kWho, "secret");
  while (!asking.finished() || !answering.finished()) {
    asking.advance();
    for (const Bytes said = heard(client.b); !said.empty();) {
      from_client->insert(from_client->end(), said.begin(), said.end());
      REQUIRE(server.b.try_send(said.data(), said.size()).bytes == said.size());
      break;
    }
    answering.advance();
    for (const Bytes said = heard(server.b); !said.empty();) {
      from_server->insert(from_server->end(), said.begin(), said.end());
      REQUIRE(client.b.try_send(said.data(), said.size()).bytes == said.size());
      break;
    }
  }
  REQUIRE(asking.succeeded() && answering.succeeded());
}

}  // namespace

std::vector<Bytes> fuzz::seeds() {
  Bytes client, server;
  record(&client, &server);
  std::vector<Bytes> all;
  for (const bool victim_asks : {false, true}) {
    for (const bool reflect : {false, true}) {
      for (const Bytes& said : {client, server}) {
        Bytes seed{std::byte(victim_asks), std::byte(reflect)};
        seed.insert(seed.end(), said.begin(), said.end());
        all.push_back(std::move(seed));
      }
    }
  }
  return all;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const bool victim_asks = (data[0] & 1) != 0, reflect = (data[1] & 1) != 0;
  Wire wire;
  Handshake victim = victim_asks ? Handshake::client(wire.a.fd(), kWho, "secret")
                                 : Handshake::server(wire.a.fd(), kWho, "secret");
  victim.advance();
  size_t at = 2;
  for (int turn = 0; turn < 8 && !victim.finished(); ++turn) {
    const Bytes said = heard(wire.b);
    if (reflect && !said.empty()) (void)wire.b.try_send(said.data(), said.size());
    const size_t piece = std::min<size_t>(size - at, turn % 2 == 0 ? 64 : 40);
    if (piece > 0) (void)wire.b.try_send(data + at, piece);
    at += piece;
    victim.advance();
  }
  wire.b.close();
  victim.advance();
  REQUIRE(victim.finished());
  REQUIRE(!victim.succeeded());
  REQUIRE(!victim.failure().ok());
  return 0;
}
