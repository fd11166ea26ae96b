// A peer that sends anything over the connection for messages: first the header alone, then a courier with a
// send and a receive under way. They end, whatever comes, when the connection does.
#include <sys/socket.h>

#include "engine/courier.h"
#include "fuzz.h"

using ring::Bytes;
using ring::Courier;
using ring::Deadline;
using ring::DType;
using ring::Letter;
using ring::Looks;
using ring::Mark;
using ring::Message;
using ring::Socket;

namespace {

const Looks kLooks{DType::float32, {2, 3}, 24};

Bytes said(std::initializer_list<Letter> letters) {
  Bytes all;
  for (const Letter& letter : letters) {
    const Bytes head = letter.head();
    all.insert(all.end(), head.begin(), head.end());
    const bool carries = letter.mark == Mark::eager || letter.mark == Mark::body;
    if (carries) all.insert(all.end(), letter.looks.bytes, std::byte{1});
  }
  return all;
}

void read_alone(ring::ByteView bytes) {
  if (bytes.size() < Letter::kHeader) return;
  const auto whole = Letter::head_bytes(bytes.first(Letter::kHeader));
  if (!whole || bytes.size() < *whole) return;
  REQUIRE(*whole <= Letter::kHeader + Letter::kMaxDimensions * sizeof(int64_t));
  const auto letter = Letter::read(bytes.first(*whole));
  if (letter) REQUIRE(letter->head() == Bytes(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(*whole)));
}

}  // namespace

std::vector<Bytes> fuzz::seeds() {
  return {said({{Mark::eager, 7, 0, kLooks}, {Mark::goodbye, 0, 0, {}}}),
          said({{Mark::offer, 7, 1, kLooks}, {Mark::body, 0, 1, kLooks}}),
          said({{Mark::offer, 7, 1, kLooks}, {Mark::withdraw, 0, 1, {}}, {Mark::offer, 7, 2, kLooks}}),
          said({{Mark::eager, 3, 0, kLooks}, {Mark::eager, 7, 0, {DType::int8, {5}, 5}}}),
          said({{Mark::credit, 0, 0, {DType::uint8, {}, 152}}, {Mark::grant, 0, 1, {}}})};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const ring::ByteView bytes = fuzz::view(data, size);
  read_alone(bytes);
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  Socket other(ends[1]);
  std::vector<Socket> links(2);
  links[1] = Socket(ends[0]);
  Courier courier(0, std::move(links), [](int) { return ring::Status(); });
  std::vector<float> in(6), out(6);
  const auto receive = Message::receive(1, 7, kLooks, reinterpret_cast<std::byte*>(out.data()), 20);
  const auto any = Message::receive_any(1, 3, 20);
  const auto send = Message::send(1, 7, kLooks, reinterpret_cast<const std::byte*>(in.data()), 20);
  for (const auto& message : {receive, any, send}) REQUIRE(courier.start(message).ok());
  size_t sent = 0;
  for (int attempts = 0; sent < size && attempts < 1000; ++attempts) {
    const auto io = other.try_send(data + sent, size - sent);
    if (io.closed) break;
    sent += io.bytes;
  }
  other.close();
  for (const auto& message : {receive, any, send}) REQUIRE(message->wait(Deadline::after(15)));
  return 0;
}
