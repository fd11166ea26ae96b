// Mutual proof of the job's secret over a fresh connection, before anything else is read.
//
//   client → server   hello     64 bytes   magic | purpose, from, to, size | nonce
//   server → client   hello     64 bytes
//   client → server   proof     32 bytes   HMAC of "client:1" and both hellos
//   server → client   verdict   40 bytes   verdict | HMAC of "server:1", both hellos and the verdict
//
// docs/wire-format.md draws the bytes.
//
// Every message has a fixed size, both sides contribute a fresh nonce, and each direction's proof is bound to
// its label, so neither a replayed nor a reflected message proves anything. The client proves first: a
// stranger learns nothing from a server. A refusal (verdict other than 0) is not proved; it ends the attempt.
//
// The object is a state machine over a non-blocking socket, so that a listener can run many at once and no
// slow or silent client holds up the others.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "rendezvous/sha256.h"

namespace ring {

enum class Purpose : uint32_t { control = 1, data = 2, rendezvous = 3, messages = 4 };

// What a connection is for; both sides must agree. `from` connects to `to`.
struct Introduction {
  Purpose purpose = Purpose::rendezvous;
  uint32_t from = 0;
  uint32_t to = 0;
  uint32_t size = 0;
};

class Handshake {
 public:
  static Handshake client(int fd, const Introduction& introduction, std::string secret);
  // `expected` gives `to` and `size`; the client says who it is and what it wants.
  static Handshake server(int fd, const Introduction& expected, std::string secret);

  // Does what can be done without blocking.
  void advance();
  bool wants_write() const { return sent_ < outgoing_.size(); }
  bool finished() const { return state_ == State::done || state_ == State::failed; }
  bool succeeded() const { return state_ == State::done; }
  const Status& failure() const { return failure_; }
  // Whether the peer has said anything at all.
  bool heard() const { return heard_; }
  // True when the peer spoke our language and could not prove the secret (or we could not prove it to it).
  bool distrusted() const { return failure_.code() == Code::authentication; }
  // After success: who is at the other end.
  const Introduction& peer() const { return peer_; }

 private:
  enum class State { hello, proof, verdict, flushing, done, failed };
  using Hello = std::array<std::byte, 64>;
  Handshake(int fd, bool server, const Introduction& introduction, std::string secret);
  void step();
  void server_hello();
  void client_hello();
  void server_proof();
  void client_verdict();
  void refuse(Code code, const std::string& why, uint32_t verdict);
  void fail(Code code, const std::string& why);
  void send(ByteView bytes);
  void expect(size_t bytes, State next);
  Digest proof(const char* label, ByteView extra) const;

  int fd_;
  bool server_;
  Introduction mine_;
  Introduction peer_;
  std::string secret_;
  State state_ = State::hello;
  Hello client_hello_{};
  Hello server_hello_{};
  std::array<std::byte, 64> incoming_{};
  size_t wanted_ = 0;
  size_t received_ = 0;
  bool heard_ = false;
  Bytes outgoing_;
  size_t sent_ = 0;
  Status failure_;
  Status pending_failure_;  // told once the refusal has been sent
};

// The whole handshake over one descriptor, within `timeout` seconds.
Status shake_hands(Handshake handshake, int fd, double timeout);

}  // namespace ring
