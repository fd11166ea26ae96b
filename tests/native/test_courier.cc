// Matching, the wire format of messages, and couriers over real sockets, also with a peer that breaks the
// rules.
#include <sys/socket.h>

#include <functional>

#include "check.h"
#include "engine/courier.h"
#include "ranks.h"

using ring::Arrival;
using ring::Code;
using ring::Courier;
using ring::Deadline;
using ring::DType;
using ring::Letter;
using ring::Looks;
using ring::Mailbox;
using ring::Mark;
using ring::Message;
using ring::MessagePtr;
using ring::Status;

namespace {

Looks bytes_of(size_t count) { return {DType::uint8, {static_cast<int64_t>(count)}, count}; }

const Mailbox::Refuse kUnexpected = [](const MessagePtr&, Status why) { CHECK_OK(why); };
const Courier::Look kNothing = [](int) { return Status(); };

Status end_of(const MessagePtr& message) {
  CHECK(message->wait(Deadline::after(30)));
  return message->status();
}

// Rank 0's courier, and the bare other end of its connection to rank 1.
struct Wire {
  ring::Socket other;
  std::unique_ptr<Courier> courier;

  explicit Wire(Courier::Look look = kNothing) {
    int ends[2];
    CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    other = ring::Socket(ends[1]);
    std::vector<ring::Socket> links(2);
    links[1] = ring::Socket(ends[0]);
    courier = std::make_unique<Courier>(0, std::move(links), std::move(look));
  }

  void write(const ring::Bytes& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) sent += other.try_send(bytes.data() + sent, bytes.size() - sent).bytes;
  }
  void write(Mark mark, uint64_t id, Looks looks, int64_t tag = 0) {
    write(Letter{mark, tag, id, looks}.head());
  }

  Letter read() {
    ring::Bytes head(Letter::kHeader);
    fill(head, 0);
    const auto whole = Letter::head_bytes(head);
    CHECK(whole.has_value());
    head.resize(whole.value_or(Letter::kHeader));
    fill(head, Letter::kHeader);
    const auto letter = Letter::read(head);
    CHECK(letter.has_value());
    return letter.value_or(Letter{});
  }
  void fill(ring::Bytes& into, size_t from) {
    const Deadline deadline = Deadline::after(20);
    while (from < into.size() && !deadline.expired()) {
      from += other.try_receive(into.data() + from, into.size() - from).bytes;
    }
    CHECK_EQ(from, into.size());
  }
  MessagePtr receive(int64_t tag = 0) {
    MessagePtr message = Message::receive_any(1, tag, 20);
    CHECK_OK(courier->start(message));
    return message;
  }
};

}  // namespace

TEST(letters_come_back_as_they_were) {
  const Letter offer{Mark::offer, 7, 9, {DType::int16, {3, 4}, 24}};
  const ring::Bytes head = offer.head();
  CHECK_EQ(head.size(), Letter::kHeader + 16);
  CHECK(Letter::head_bytes(ring::ByteView(head).first(Letter::kHeader)) == head.size());
  const auto read = Letter::read(head);
  CHECK(read.has_value() && read->looks == offer.looks && read->tag == 7 && read->id == 9);
  CHECK_EQ(offer.looks.text(), "int16 [3, 4]");
  CHECK(
      Letter::read(Letter{Mark::offer, 0, 1, {DType::int8, {0, int64_t{1} << 62, 8}, 0}}.head()).has_value());
}

TEST(letters_that_cannot_be_are_refused) {
  const auto refused = [](const Letter& letter) { return !Letter::read(letter.head()).has_value(); };
  CHECK(refused({static_cast<Mark>(0), 0, 0, {}}));
  CHECK(refused({static_cast<Mark>(8), 0, 0, {}}));
  CHECK(refused({Mark::eager, 0, 0, bytes_of(Letter::kEager + 1)}));
  CHECK(refused({Mark::offer, 0, 1, {static_cast<DType>(99), {1}, 1}}));
  CHECK(refused({Mark::offer, 0, 1, {DType::int32, {5}, 5}}));
  CHECK(refused({Mark::offer, 0, 1, {DType::int32, {-1}, 0}}));
  CHECK(refused({Mark::offer, 0, 1, {DType::int32, {int64_t{1} << 62, 8}, 0}}));
  CHECK(refused({Mark::offer, 0, 1, {DType::int8, std::vector<int64_t>(65, 1), 1}}));
  CHECK(!Letter::read({}).has_value());
  ring::Bytes cut = Letter{Mark::offer, 0, 1, bytes_of(3)}.head();
  cut.pop_back();
  CHECK(!Letter::read(cut).has_value());
}

TEST(a_mailbox_matches_within_a_tag_in_order) {
  Mailbox mailbox;
  const auto first = Message::receive_any(1, 5, 1), second = Message::receive_any(1, 5, 1);
  CHECK(!mailbox.post(first, kUnexpected).has_value());
  CHECK(!mailbox.post(second, kUnexpected).has_value());
  CHECK(mailbox.match(4, bytes_of(1), kUnexpected) == nullptr);
  CHECK(mailbox.match(5, bytes_of(1), kUnexpected) == first);
  CHECK(mailbox.match(5, bytes_of(1), kUnexpected) == second);
  for (uint64_t id = 1; id <= 3; ++id) mailbox.keep({id == 2 ? 6 : 5, bytes_of(1), nullptr, id, nullptr});
  CHECK_EQ(mailbox.tags_text(), "tags 5, 6");
  CHECK_EQ(mailbox.post(Message::receive_any(1, 6, 1), kUnexpected)->offer, 2u);
  CHECK(mailbox.withdraw(1));
  CHECK(!mailbox.withdraw(1));
  CHECK_EQ(mailbox.post(Message::receive_any(1, 5, 1), kUnexpected)->offer, 3u);
  CHECK_EQ(mailbox.arrivals(), 0u);
}

TEST(a_receive_that_does_not_fit_fails_and_the_message_stays) {
  Mailbox mailbox;
  int refused = 0;
  const Mailbox::Refuse refuse = [&](const MessagePtr&, Status why) {
    CHECK(why.code() == Code::mismatch);
    CHECK_CONTAINS(why.message(), "rank 1 sent uint8 [3], this rank wants uint8 [2]");
    ++refused;
  };
  std::byte memory[3];
  const auto wrong = Message::receive(1, 0, bytes_of(2), memory, 1);
  mailbox.keep({0, bytes_of(3), nullptr, 8, nullptr});
  CHECK(!mailbox.post(wrong, refuse).has_value());
  CHECK_EQ(mailbox.post(Message::receive(1, 0, bytes_of(3), memory, 1), refuse)->offer, 8u);
  CHECK(!mailbox.post(wrong, refuse).has_value());
  CHECK(mailbox.match(0, bytes_of(3), refuse) == nullptr);
  CHECK_EQ(refused, 2);
}

TEST(a_long_message_is_offered_granted_and_sent) {
  Wire wire;
  std::vector<std::byte> data(Letter::kEager + 1, std::byte{7});
  const auto sent = Message::send(1, 3, bytes_of(data.size()), data.data(), 20);
  CHECK_OK(wire.courier->start(sent));
  const Letter offer = wire.read();
  CHECK(offer.mark == Mark::offer && offer.tag == 3 && offer.looks == bytes_of(data.size()));
  CHECK(!sent->done());
  wire.write(Mark::grant, 12345, {});  // for an offer that was withdrawn: ignored
  wire.write(Mark::grant, offer.id, {});
  const Letter body = wire.read();
  CHECK(body.mark == Mark::body && body.id == offer.id && body.looks.bytes == data.size());
  ring::Bytes got(data.size());
  wire.fill(got, 0);
  CHECK(std::equal(got.begin(), got.end(), data.begin()));
  CHECK_OK(end_of(sent));
}

TEST(bytes_may_come_in_any_pieces) {
  Wire wire;
  const auto eager = wire.receive(1), body = wire.receive(2);
  ring::Bytes all = Letter{Mark::eager, 1, 0, bytes_of(3)}.head();
  all.insert(all.end(), 3, std::byte{4});
  const ring::Bytes offer = Letter{Mark::offer, 2, 6, bytes_of(5)}.head();
  all.insert(all.end(), offer.begin(), offer.end());
  for (const std::byte byte : all) wire.write(ring::Bytes{byte});
  CHECK(wire.read().mark == Mark::grant);
  ring::Bytes rest = Letter{Mark::body, 0, 6, {DType::float32, {}, 5}}.head();
  rest.insert(rest.end(), 5, std::byte{9});
  for (const std::byte byte : rest) wire.write(ring::Bytes{byte});
  CHECK_OK(end_of(eager));
  CHECK_EQ(eager->gathered.bytes, 3u);
  CHECK_OK(end_of(body));
  CHECK(body->gathered.data[4] == std::byte{9} && body->gathered.shape == std::vector<int64_t>{5});
}

TEST(a_peer_that_breaks_the_rules_loses_its_connection) {
  const std::vector<std::function<void(Wire&)>> crimes = {
      [](Wire& wire) { wire.write(ring::Bytes(64, std::byte{0xff})); },
      [](Wire& wire) { wire.write(Mark::body, 77, {DType::float32, {}, 10}); },  // that nobody granted
      [](Wire& wire) { wire.write(Mark::withdraw, 3, {}); },
      [](Wire& wire) { wire.write(Mark::credit, 0, {DType::float32, {}, 1}); },
      [](Wire& wire) { wire.write(Mark::offer, 0, bytes_of(1)); },
      [](Wire& wire) {
        for (size_t i = 0; i <= Courier::kWindow / Letter::kEager; ++i) {  // more than the window
          ring::Bytes eager = Letter{Mark::eager, 9, 0, bytes_of(Letter::kEager)}.head();
          eager.resize(eager.size() + Letter::kEager);
          const Deadline deadline = Deadline::after(5);
          size_t sent = 0;
          while (sent < eager.size() && !deadline.expired()) {
            const auto io = wire.other.try_send(eager.data() + sent, eager.size() - sent);
            if (io.closed) return;
            sent += io.bytes;
          }
        }
      },
  };
  for (const auto& crime : crimes) {
    Wire wire;
    const auto waiting = wire.receive(1);
    crime(wire);
    const Status status = end_of(waiting);
    CHECK(status.code() == Code::peer_lost);
    CHECK_EQ(status.rank(), 1);
    CHECK_CONTAINS(status.message(), "rank 1 sent a message that cannot be");
    const auto later = Message::receive_any(1, 0, 20);
    CHECK_OK(wire.courier->start(later));
    CHECK(end_of(later).code() == Code::peer_lost);
  }
}

TEST(what_was_granted_and_came_too_late_is_read_into_nothing) {
  Wire wire;
  wire.write(Mark::offer, 4, bytes_of(1000));
  std::vector<std::byte> memory(1000);
  const auto late = Message::receive(1, 0, bytes_of(1000), memory.data(), 0.2);
  CHECK_OK(wire.courier->start(late));
  CHECK(wire.read().mark == Mark::grant);
  wire.write(Letter{Mark::body, 0, 4, {DType::float32, {}, 1000}}.head());
  CHECK(end_of(late).code() == Code::timeout);
  memory = {};  // nobody may write to it any more
  wire.write(ring::Bytes(1000, std::byte{1}));
  ring::Bytes next = Letter{Mark::eager, 5, 0, bytes_of(1)}.head();
  next.push_back(std::byte{6});
  wire.write(next);
  const auto good = wire.receive(5);
  CHECK_OK(end_of(good));
  CHECK(good->gathered.data[0] == std::byte{6});
}

TEST(a_withdrawn_offer_ends_the_receive_that_took_it) {
  Wire wire;
  wire.write(Mark::offer, 4, bytes_of(1000));
  const auto taken = wire.receive();
  CHECK(wire.read().mark == Mark::grant);
  wire.write(Mark::withdraw, 4, {});
  const Status status = end_of(taken);
  CHECK(status.code() == Code::aborted);
  CHECK_CONTAINS(status.message(), "rank 1 gave up sending");
}

TEST(a_send_that_is_cut_off_in_its_middle_ends_the_connection) {
  Wire wire;
  std::vector<std::byte> data(size_t{8} << 20);
  const auto sent = Message::send(1, 0, bytes_of(data.size()), data.data(), 0.3);
  CHECK_OK(wire.courier->start(sent));
  wire.write(Mark::grant, wire.read().id, {});
  const Status status = end_of(sent);  // nobody reads the body
  CHECK(status.code() == Code::timeout);
  CHECK_CONTAINS(status.message(), "a part was sent, so the connection was closed");
}

TEST(a_broken_connection_is_explained_by_the_control_connections) {
  Wire wire([](int peer) { return Status(Code::aborted, "rank 1 gave up: of boredom", peer); });
  const auto waiting = wire.receive();
  wire.other.close();
  const Status status = end_of(waiting);
  CHECK(status.code() == Code::aborted);
  CHECK_CONTAINS(status.message(), "recv from rank 1, tag 0: rank 1 gave up: of boredom");
  Wire silent;
  const auto lost = silent.receive();
  silent.other.close();
  CHECK_CONTAINS(end_of(lost).message(), "rank 1 is lost: its connection for messages broke");
}

TEST(callbacks_may_start_messages) {
  ranks::together(ranks::one_host(2), ranks::quick_options("auto"), [](ring::Engine& engine, int rank) {
    std::byte memory[4] = {};
    if (rank == 0) {
      CHECK_OK(engine.start(Message::send(1, 0, bytes_of(4), memory, 20)));
      const auto answer = Message::receive_any(1, 1, 20);
      CHECK_OK(engine.start(answer));
      CHECK_OK(end_of(answer));
      return;
    }
    const auto asked = Message::receive(0, 0, bytes_of(4), memory, 20);
    const auto answer = Message::send(0, 1, bytes_of(4), memory, 20);
    asked->then([&] { CHECK_OK(engine.start(answer)); });
    CHECK_OK(engine.start(asked));
    CHECK_OK(end_of(answer));
  });
}

TEST(a_crowd_of_ranks_exchanges_with_everybody) {
  constexpr int kRanks = 6, kTurns = 20;
  ranks::together(ranks::one_host(kRanks), ranks::quick_options("tcp"), [](ring::Engine& engine, int rank) {
    std::vector<std::vector<std::byte>> payloads;
    std::vector<MessagePtr> sends, receives;
    for (int turn = 0; turn < kTurns; ++turn) {
      for (int q = 0; q < kRanks; ++q) {
        payloads.emplace_back(static_cast<size_t>(turn) * 9001 + 1,
                              static_cast<std::byte>(rank * 16 + turn % 16));
        sends.push_back(
            Message::send(q, turn % 2, bytes_of(payloads.back().size()), payloads.back().data(), 60));
        CHECK_OK(engine.start(sends.back()));
      }
    }
    for (int turn = 0; turn < kTurns; ++turn) {
      for (int q = 0; q < kRanks; ++q) {
        const auto message = Message::receive_any(q, turn % 2, 60);
        CHECK_OK(engine.start(message));
        CHECK_OK(end_of(message));
        CHECK_EQ(message->gathered.bytes, static_cast<size_t>(turn) * 9001 + 1);
        CHECK(message->gathered.data[message->gathered.bytes - 1] ==
              static_cast<std::byte>(q * 16 + turn % 16));
      }
    }
    for (const auto& message : sends) CHECK_OK(end_of(message));
  });
}

TEST(a_message_to_nobody_is_refused) {
  ranks::together(ranks::one_host(1), ranks::quick_options("auto"), [](ring::Engine& engine, int) {
    CHECK(engine.start(Message::receive_any(1, 0, 1)).code() == Code::config);
    CHECK(engine.start(Message::receive_any(-1, 0, 1)).code() == Code::config);
    engine.close();
    CHECK(engine.start(Message::receive_any(0, 0, 1)).code() == Code::closed);
  });
}
