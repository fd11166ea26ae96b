#include <sys/socket.h>

#include <thread>

#include "check.h"
#include "rendezvous/handshake.h"
#include "transport/socket.h"

using ring::Code;
using ring::Handshake;
using ring::Introduction;
using ring::Purpose;
using ring::Socket;
using ring::Status;

namespace {

const Introduction kWho{Purpose::control, 3, 1, 4};

struct Pair {
  Socket a, b;
  Pair() {
    int fds[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    a = Socket(fds[0]);
    b = Socket(fds[1]);
  }
};

struct Outcome {
  Status client, server;
};

Outcome shake(const std::string& client_secret, const std::string& server_secret, Introduction client = kWho,
              Introduction server = kWho) {
  Pair pair;
  Outcome outcome;
  std::thread other([&] {
    outcome.server = ring::shake_hands(Handshake::server(pair.b.fd(), server, server_secret), pair.b.fd(), 5);
    pair.b.close();
  });
  outcome.client = ring::shake_hands(Handshake::client(pair.a.fd(), client, client_secret), pair.a.fd(), 5);
  pair.a.close();
  other.join();
  return outcome;
}

ring::Bytes drain(const Socket& socket, size_t bytes) {
  ring::Bytes got(bytes);
  size_t at = 0;
  for (int i = 0; i < 2000 && at < bytes; ++i) {
    at += socket.try_receive(got.data() + at, bytes - at).bytes;
    if (at < bytes) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK_EQ(at, bytes);
  return got;
}

}  // namespace

TEST(equal_secrets_are_accepted_on_both_sides) {
  const Outcome outcome = shake("s3cret", "s3cret");
  CHECK_OK(outcome.client);
  CHECK_OK(outcome.server);
}

TEST(different_secrets_are_refused_on_both_sides) {
  const Outcome outcome = shake("right", "wrong");
  CHECK(outcome.client.code() == Code::authentication);
  CHECK(outcome.server.code() == Code::authentication);
  CHECK(outcome.client.message().find("right") == std::string::npos);  // a secret is never in a message
}

TEST(another_rank_or_world_size_is_refused) {
  Introduction elsewhere = kWho;
  elsewhere.to = 2;
  CHECK(!shake("s", "s", kWho, elsewhere).client.ok());
  Introduction larger = kWho;
  larger.size = 5;
  CHECK(!shake("s", "s", kWho, larger).server.ok());
}

TEST(random_bytes_are_no_client) {
  Pair pair;
  const std::string noise(64, '\x5a');
  CHECK_EQ(pair.a.try_send(noise.data(), noise.size()).bytes, noise.size());
  CHECK(ring::shake_hands(Handshake::server(pair.b.fd(), kWho, "s"), pair.b.fd(), 5).code() ==
        Code::rendezvous);
}

TEST(a_silent_client_ends_at_the_deadline) {
  Pair pair;
  CHECK(ring::shake_hands(Handshake::server(pair.b.fd(), kWho, "s"), pair.b.fd(), 0.05).code() ==
        Code::rendezvous);
}

TEST(a_half_hello_and_a_close_end_at_once) {
  Pair pair;
  CHECK_EQ(pair.a.try_send("SPKRING1", 8).bytes, 8u);
  pair.a.close();
  CHECK_CONTAINS(ring::shake_hands(Handshake::server(pair.b.fd(), kWho, "s"), pair.b.fd(), 5).message(),
                 "closed");
}

TEST(more_than_a_hello_is_not_read_before_the_proof) {
  Pair pair;
  const std::string flood(4096, 'x');
  CHECK_EQ(pair.a.try_send(flood.data(), flood.size()).bytes, flood.size());
  Handshake server = Handshake::server(pair.b.fd(), kWho, "s");
  server.advance();
  CHECK(server.finished() && !server.succeeded());
  drain(pair.b, flood.size() - 64);  // exactly one hello was taken
}

// A recorded conversation proves nothing later: the server's nonce is fresh.
TEST(a_replayed_proof_is_refused) {
  ring::Bytes hello, proof;
  {
    Pair pair;
    Handshake client = Handshake::client(pair.a.fd(), kWho, "s");
    client.advance();
    hello = drain(pair.b, 64);
    Pair inner;
    Handshake server = Handshake::server(inner.b.fd(), kWho, "s");
    CHECK_EQ(inner.a.try_send(hello.data(), 64).bytes, 64u);
    server.advance();
    const ring::Bytes answer = drain(inner.a, 64);
    CHECK_EQ(pair.b.try_send(answer.data(), 64).bytes, 64u);
    client.advance();
    proof = drain(pair.b, 32);
    CHECK_EQ(inner.a.try_send(proof.data(), 32).bytes, 32u);
    server.advance();
    CHECK(server.succeeded());  // the recording is genuine
  }
  Pair pair;
  Handshake server = Handshake::server(pair.b.fd(), kWho, "s");
  CHECK_EQ(pair.a.try_send(hello.data(), 64).bytes, 64u);
  CHECK_EQ(pair.a.try_send(proof.data(), 32).bytes, 32u);
  server.advance();
  CHECK(server.distrusted());
}

// Somebody without the secret sends a client's own messages back to it.
TEST(a_reflected_proof_is_refused) {
  Pair pair;
  Handshake client = Handshake::client(pair.a.fd(), kWho, "s");
  client.advance();
  const ring::Bytes hello = drain(pair.b, 64);
  CHECK_EQ(pair.b.try_send(hello.data(), 64).bytes, 64u);
  client.advance();
  const ring::Bytes proof = drain(pair.b, 32);
  ring::Bytes verdict(8);  // accepted …
  verdict.insert(verdict.end(), proof.begin(), proof.end());
  CHECK_EQ(pair.b.try_send(verdict.data(), verdict.size()).bytes, 40u);
  client.advance();
  CHECK(client.finished() && client.distrusted());
}
