#include "rendezvous/handshake.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/socket.h"

namespace ring {
namespace {

constexpr char kMagic[8] = {'S', 'P', 'K', 'R', 'I', 'N', 'G', '1'};
constexpr size_t kProofBytes = 32;
constexpr size_t kVerdictBytes = 40;

enum Verdict : uint32_t { kAccepted = 0, kBadProof = 1, kBadHello = 2 };

std::array<std::byte, 64> make_hello(const Introduction& who) {
  std::array<std::byte, 64> hello{};
  const uint32_t fields[4] = {static_cast<uint32_t>(who.purpose), who.from, who.to, who.size};
  std::memcpy(hello.data(), kMagic, 8);
  std::memcpy(hello.data() + 8, fields, 16);
  if (::getentropy(hello.data() + 24, 32) != 0) hello[0] = std::byte{0};  // never shake hands without a nonce
  return hello;
}

bool read_hello(ByteView hello, Introduction* who) {
  uint32_t fields[4];
  std::memcpy(fields, hello.data() + 8, 16);
  *who = {static_cast<Purpose>(fields[0]), fields[1], fields[2], fields[3]};
  return std::memcmp(hello.data(), kMagic, 8) == 0 && fields[0] >= 1 && fields[0] <= 4;
}

}  // namespace

Handshake::Handshake(int fd, bool server, const Introduction& introduction, std::string secret)
    : fd_(fd), server_(server), mine_(introduction), secret_(std::move(secret)) {
  wanted_ = client_hello_.size();
}

Handshake Handshake::client(int fd, const Introduction& introduction, std::string secret) {
  Handshake handshake(fd, false, introduction, std::move(secret));
  handshake.client_hello_ = make_hello(introduction);
  handshake.send(handshake.client_hello_);
  return handshake;
}

Handshake Handshake::server(int fd, const Introduction& expected, std::string secret) {
  return Handshake(fd, true, expected, std::move(secret));
}

void Handshake::send(ByteView bytes) { outgoing_.insert(outgoing_.end(), bytes.begin(), bytes.end()); }

void Handshake::expect(size_t bytes, State next) {
  wanted_ = bytes;
  received_ = 0;
  state_ = next;
}

void Handshake::fail(Code code, const std::string& why) {
  state_ = State::failed;
  failure_ = Status(code, why);
}

void Handshake::refuse(Code code, const std::string& why, uint32_t verdict) {
  std::array<std::byte, kVerdictBytes> answer{};
  std::memcpy(answer.data(), &verdict, sizeof verdict);
  send(answer);
  pending_failure_ = Status(code, why);
  state_ = State::flushing;
}

Digest Handshake::proof(const char* label, ByteView extra) const {
  Writer message;
  message.raw(label, 8);
  message.raw(client_hello_.data(), client_hello_.size());
  message.raw(server_hello_.data(), server_hello_.size());
  message.raw(extra.data(), extra.size());
  return hmac_sha256(std::as_bytes(std::span(secret_.data(), secret_.size())), message.bytes());
}

void Handshake::advance() {
  for (;;) {
    while (wants_write()) {
      const IoResult io = try_send(fd_, outgoing_.data() + sent_, outgoing_.size() - sent_);
      sent_ += io.bytes;
      if (io.closed) return fail(Code::rendezvous, "the connection broke during the handshake");
      if (io.bytes == 0) break;
    }
    if (finished()) return;
    if (state_ == State::flushing) {
      if (wants_write()) return;
      state_ = pending_failure_.ok() ? State::done : State::failed;
      failure_ = pending_failure_;
      return;
    }
    const IoResult io = try_receive(fd_, incoming_.data() + received_, wanted_ - received_);
    received_ += io.bytes;
    heard_ = heard_ || io.bytes > 0;
    if (io.closed) return fail(Code::rendezvous, "the connection was closed during the handshake");
    if (received_ < wanted_) {
      if (io.bytes == 0) return;
      continue;
    }
    step();
  }
}

void Handshake::step() {
  switch (state_) {
    case State::hello:
      return server_ ? server_hello() : client_hello();
    case State::proof:
      return server_proof();
    case State::verdict:
      return client_verdict();
    default:
      return;
  }
}

void Handshake::server_hello() {
  std::copy(incoming_.begin(), incoming_.end(), client_hello_.begin());
  if (!read_hello(client_hello_, &peer_)) return fail(Code::rendezvous, "not a spark_ring client");
  if (peer_.to != mine_.to || peer_.size != mine_.size) {
    return fail(Code::rendezvous, "a client looked for another rank or another world size");
  }
  Introduction me = peer_;
  server_hello_ = make_hello(me);
  send(server_hello_);
  expect(kProofBytes, State::proof);
}

void Handshake::client_hello() {
  std::copy(incoming_.begin(), incoming_.end(), server_hello_.begin());
  if (!read_hello(server_hello_, &peer_)) return fail(Code::rendezvous, "not a spark_ring server");
  if (peer_.purpose != mine_.purpose || peer_.from != mine_.from || peer_.to != mine_.to ||
      peer_.size != mine_.size) {
    return fail(Code::rendezvous, "the server is another rank, or of another world size");
  }
  send(proof("client:1", {}));
  expect(kVerdictBytes, State::verdict);
}

void Handshake::server_proof() {
  Digest theirs;
  std::copy_n(incoming_.begin(), theirs.size(), theirs.begin());
  if (!same_digest(theirs, proof("client:1", {}))) {
    return refuse(Code::authentication, "a client could not prove that it knows the job's secret", kBadProof);
  }
  const uint32_t verdict[2] = {kAccepted, 0};
  send(std::as_bytes(std::span(verdict)));
  send(proof("server:1", std::as_bytes(std::span(verdict))));
  state_ = State::flushing;
}

void Handshake::client_verdict() {
  uint32_t verdict[2];
  std::memcpy(verdict, incoming_.data(), sizeof verdict);
  if (verdict[0] == kBadProof) {
    return fail(Code::authentication, "the peer refused this rank's proof: their secrets differ");
  }
  if (verdict[0] != kAccepted) return fail(Code::rendezvous, "the peer refused the connection");
  Digest theirs;
  std::copy_n(incoming_.begin() + 8, theirs.size(), theirs.begin());
  if (!same_digest(theirs, proof("server:1", std::as_bytes(std::span(verdict))))) {
    return fail(Code::authentication, "the peer could not prove that it knows the job's secret");
  }
  state_ = State::done;
}

Status shake_hands(Handshake handshake, int fd, double timeout) {
  const Deadline deadline = Deadline::after(timeout);
  for (;;) {
    handshake.advance();
    if (handshake.finished()) return handshake.failure();
    if (deadline.expired()) {
      return Status(Code::rendezvous, "the peer did not finish the handshake within " +
                                          std::to_string(timeout) + " s (setting handshake_timeout)");
    }
    pollfd one{fd, static_cast<short>(handshake.wants_write() ? POLLIN | POLLOUT : POLLIN), 0};
    ::poll(&one, 1, deadline.poll_ms(100));
  }
}

}  // namespace ring
