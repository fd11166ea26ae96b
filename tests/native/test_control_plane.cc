// What a peer may say over a control connection, and what it may not.
#include <sys/socket.h>

#include <thread>

#include "check.h"
#include "transport/control_plane.h"

using ring::Bytes;
using ring::Code;
using ring::ControlPlane;
using ring::Socket;
using ring::Status;
using ring::WaitPolicy;
using ring::Writer;

namespace {

Bytes frame(uint32_t type, const Bytes& payload) {
  Writer writer;
  writer.put(type);
  writer.put(uint32_t{0});
  writer.put(static_cast<uint32_t>(payload.size()));
  writer.put(uint32_t{0});
  writer.raw(payload.data(), payload.size());
  return writer.take();
}

Bytes number(int32_t value) {
  Writer writer;
  writer.put(value);
  return writer.take();
}

Bytes abort_naming(int32_t rank) {
  Writer writer;
  writer.put(static_cast<int32_t>(Code::peer_lost));
  writer.put(rank);
  writer.text("allreduce 'grad'");
  writer.text("it is lost");
  return frame(2, writer.bytes());
}

struct Pair {
  Socket mine, theirs;
  Pair() {
    int fds[2];
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    mine = Socket(fds[0]);
    theirs = Socket(fds[1]);
  }
};

}  // namespace

TEST(an_abort_names_the_rank_it_blames) {
  ControlPlane control(0, std::vector<Socket>(3), WaitPolicy::choose(1, 0));
  control.feed(1, abort_naming(2));
  const Status told = control.check(1);
  CHECK(told.code() == Code::peer_lost);
  CHECK_EQ(told.rank(), 2);
  CHECK_CONTAINS(told.message(), "rank 1 gave up");
}

TEST(a_frame_that_names_no_rank_ends_the_connection) {
  for (const int32_t rank : {3, 1 << 30, -2}) {
    for (const Bytes& bytes : {abort_naming(rank), frame(5, number(rank))}) {
      ControlPlane control(0, std::vector<Socket>(3), WaitPolicy::choose(1, 0));
      control.feed(1, bytes);
      (void)control.check(1);
      CHECK(control.failure().rank() < 3);
      CHECK_EQ(control.find_culprit(1, 0), 1);
    }
  }
}

TEST(a_lie_about_who_is_waited_for_is_not_followed) {
  Pair pair;
  std::vector<Socket> links(2);
  links[1] = std::move(pair.mine);
  ControlPlane control(0, std::move(links), WaitPolicy::choose(1, 0));
  const Bytes lie = frame(5, number(1000));
  std::thread liar([&] {
    std::byte query[16];
    for (size_t got = 0; got < sizeof query;)
      got += pair.theirs.try_receive(query + got, sizeof query - got).bytes;
    (void)pair.theirs.try_send(lie.data(), lie.size());
  });
  CHECK_EQ(control.find_culprit(1, 0.3), 1);
  liar.join();
}

TEST(room_is_made_for_what_comes_and_not_for_what_is_claimed) {
  ControlPlane control(0, std::vector<Socket>(2), WaitPolicy::choose(1, 0));
  Bytes huge = frame(1, {});
  const uint32_t claimed = UINT32_MAX;
  std::memcpy(huge.data() + 8, &claimed, sizeof claimed);
  control.feed(1, huge);  // refused: longer than any frame may be
  CHECK(!control.peer_ahead());
  std::vector<Bytes> all;
  CHECK(!control.exchange({}, ring::Deadline::after(0), &all).ok());
}
