// Connecting, with strangers in the way.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "check.h"
#include "ranks.h"
#include "rendezvous/handshake.h"
#include "rendezvous/locality_message.h"

using ring::Code;

namespace {

ring::Socket call(int port) {
  auto socket = ring::start_connect("127.0.0.1", port);
  CHECK_OK(socket.status());
  return std::move(*socket);
}

}  // namespace

TEST(strangers_never_stop_a_job_and_are_counted) {
  ranks::Meeting meeting(ranks::one_host(3));
  const int port = meeting.peers[0].port;
  std::vector<ring::Socket> half_open;
  for (int i = 0; i < 40; ++i) half_open.push_back(call(port));  // say nothing
  ring::Socket noisy = call(port);
  const std::string noise(1 << 16, '\xff');  // among it the length of a huge message
  for (int i = 0; i < 50 && noisy.try_send(noise.data(), noise.size()).bytes == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ring::Socket liar = call(port);
  std::thread lying([&] {
    const ring::Introduction who{ring::Purpose::control, 2, 0, 3};
    const auto status = ring::shake_hands(ring::Handshake::client(liar.fd(), who, "guess"), liar.fd(), 10);
    CHECK(!status.ok());
  });
  std::atomic<int> strangers{0};
  ranks::in_threads(3, [&](int rank) {
    if (rank > 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", ranks::quick_options("auto"), ranks::kNever);
    CHECK_OK(engine.status());
    if (!engine.ok()) return;
    if (rank == 0) strangers = (*engine)->strangers();
    ring::Request barrier;
    CHECK_OK((*engine)->run_now(barrier, ranks::kNever));
  });
  lying.join();
  CHECK(strangers.load() >= 2);  // the noise and the lie; the silent ones were still being waited for
}

TEST(a_wrong_secret_is_an_authentication_error_that_names_the_rank) {
  ranks::Meeting meeting(ranks::one_host(2));
  ring::Options options = ranks::quick_options("auto");
  options.connect_timeout = 1;
  ranks::in_threads(2, [&](int rank) {
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, rank == 0 ? "right" : "wrong", options, ranks::kNever);
    CHECK(!engine.ok());
    if (rank == 1) {
      CHECK(engine.status().code() == Code::authentication);
      CHECK_EQ(engine.status().rank(), 0);
    } else {
      CHECK(engine.status().code() == Code::rendezvous);
      CHECK_EQ(engine.status().rank(), 1);
      CHECK_CONTAINS(engine.status().message(), "rank 1 did not connect");
    }
  });
}

TEST(a_rank_that_never_comes_is_named) {
  ranks::Meeting meeting(ranks::one_host(3));
  ring::Options options = ranks::quick_options("auto");
  options.connect_timeout = 0.5;
  ranks::in_threads(2, [&](int rank) {
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", options, ranks::kNever);
    CHECK(!engine.ok());
    CHECK(engine.status().code() == Code::rendezvous || engine.status().code() == Code::peer_lost);
    if (engine.status().code() == Code::rendezvous) CHECK_CONTAINS(engine.status().message(), "rank 2");
  });
}

TEST(who_hears_of_an_end_from_another_rank_names_the_same_culprit) {
  // Rank 3 never connects, and one rank gives up much earlier than the others.
  ranks::Meeting meeting(ranks::one_host(4));
  ranks::in_threads(3, [&](int rank) {
    ring::Options options = ranks::quick_options("auto");
    options.connect_timeout = rank == 1 ? 0.5 : 20;
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", options, ranks::kNever);
    CHECK(engine.status().code() == Code::rendezvous);
    CHECK_EQ(engine.status().rank(), 3);
    if (rank != 1) CHECK_CONTAINS(engine.status().message(), "gave up: ");
  });
}

TEST(a_rank_that_dies_while_hosts_are_agreed_on_is_named) {
  // Rank 1 has all its connections and closes them without a word, before or in the middle of agreeing. In
  // the first session it only listens how a rank introduces itself (and is refused for its own introduction).
  ring::Bytes introduction;
  for (const int exchanges : {1, 0, 1, 2}) {
    const bool listening = introduction.empty();
    ranks::Meeting meeting(ranks::one_host(3));
    ranks::in_threads(3, [&](int rank) {
      ring::Options options = ranks::quick_options("auto");
      auto& listener = meeting.listeners[static_cast<size_t>(rank)];
      if (rank == 1) {
        auto mesh = ring::connect_mesh(listener, rank, meeting.peers, "secret", {}, nullptr);
        CHECK_OK(mesh.status());
        if (!mesh.ok()) return;
        ring::ControlPlane plane(rank, std::move(mesh->control), ring::WaitPolicy::choose(3, 0));
        for (int i = 0; i < exchanges; ++i) {
          std::vector<ring::Bytes> all;
          CHECK_OK(plane.exchange(i == 0 ? introduction : ring::LocalityOffer{}.encode(),
                                  ring::Deadline::after(20), &all));
          if (listening) introduction = all[0];
        }
        plane.close();
        return;
      }
      auto engine =
          ring::Engine::connect(std::move(listener), rank, meeting.peers, "secret", options, ranks::kNever);
      CHECK(engine.status().code() == (listening ? Code::rendezvous : Code::peer_lost));
      CHECK_EQ(engine.status().rank(), 1);
    });
  }
}

TEST(ranks_that_look_after_each_other_are_no_strangers) {
  ranks::Meeting meeting(ranks::one_host(3));
  ranks::in_threads(3, [&](int rank) {
    // Late enough that the others look several times whether it still listens.
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(1300));
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", ranks::quick_options("auto"), ranks::kNever);
    CHECK_OK(engine.status());
    if (engine.ok()) CHECK_EQ((*engine)->strangers(), 0);
  });
}

TEST(a_late_listener_is_waited_for) {
  ranks::Meeting meeting(ranks::one_host(2));
  const int port = meeting.peers[0].port;
  meeting.listeners[0].close();
  ranks::in_threads(2, [&](int rank) {
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // rank 1 is refused meanwhile
      auto listener = ring::Listener::open("127.0.0.1", port);
      CHECK_OK(listener.status());
      meeting.listeners[0] = std::move(*listener);
    }
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", ranks::quick_options("tcp"), ranks::kNever);
    CHECK_OK(engine.status());
  });
}

TEST(different_settings_are_told) {
  ranks::Meeting meeting(ranks::one_host(2));
  ranks::in_threads(2, [&](int rank) {
    ring::Options options = ranks::quick_options("auto");
    options.segment_bytes = 256 * (rank + 1);
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", options, ranks::kNever);
    CHECK(engine.status().code() == Code::rendezvous);
    CHECK_CONTAINS(engine.status().message(), "segment_bytes 512");
  });
}

TEST(forced_shared_memory_needs_one_host) {
  ranks::Meeting meeting({"a", "b"});
  ranks::in_threads(2, [&](int rank) {
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", ranks::quick_options("shm"), ranks::kNever);
    CHECK(engine.status().code() == Code::rendezvous);
    CHECK_CONTAINS(engine.status().message(), "rank 1 is on another host");
  });
}

TEST(an_interrupt_ends_connecting) {
  ranks::Meeting meeting(ranks::one_host(2));
  auto engine = ring::Engine::connect(std::move(meeting.listeners[0]), 0, meeting.peers, "secret",
                                      ranks::quick_options("auto"), [] { return true; });
  CHECK(engine.status().code() == Code::interrupted);
}

TEST(no_secret_and_no_such_rank_are_refused) {
  for (const auto& [rank, secret] : {std::pair{0, ""}, std::pair{1, "s"}, std::pair{-1, "s"}}) {
    ranks::Meeting meeting(ranks::one_host(1));
    auto engine = ring::Engine::connect(std::move(meeting.listeners[0]), rank, meeting.peers, secret,
                                        ranks::quick_options("auto"), ranks::kNever);
    CHECK(engine.status().code() == Code::config);
  }
}

TEST(a_rank_is_reached_by_its_second_address) {
  ranks::Meeting meeting(ranks::one_host(3));
  for (auto& peer : meeting.peers) {
    peer.others = {peer.address};
    peer.address = "127.0.0.77";  // nobody listens there
  }
  ranks::in_threads(3, [&](int rank) {
    if (rank == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1800));  // longer than a refusal lasts
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", ranks::quick_options("auto"), ranks::kNever);
    CHECK_OK(engine.status());
    if (engine.ok()) CHECK_OK((*engine)->run_now(ring::Request(), ranks::kNever));
  });
}

TEST(a_stranger_behind_one_of_several_addresses_is_passed_over) {
  ranks::Meeting meeting(ranks::one_host(2)), other(ranks::one_host(2));
  auto stranger = ring::Listener::open("127.0.0.78", meeting.peers[0].port);
  CHECK_OK(stranger.status());
  meeting.peers[0].others = {"127.0.0.1"};
  meeting.peers[0].address = "127.0.0.78";
  ring::Options brief = ranks::quick_options("auto");
  brief.connect_timeout = 3;
  ranks::in_threads(3, [&](int rank) {
    if (rank == 2) {  // rank 0 of a job with another secret
      auto engine =
          ring::Engine::connect(std::move(*stranger), 0, other.peers, "theirs", brief, ranks::kNever);
      CHECK(!engine.ok());
      return;
    }
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "ours", ranks::quick_options("auto"), ranks::kNever);
    CHECK_OK(engine.status());
  });
}

namespace {

// Leaves this process `free` descriptors to open, for as long as it lives.
class FewDescriptors {
 public:
  explicit FewDescriptors(int free) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const int next = ::dup(0);  // the lowest that is free
    ::close(next);
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next + free);
    CHECK_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

}  // namespace

TEST(a_rank_without_descriptors_says_so_and_names_the_limit) {
  for (const int rank : {0, 1}) {  // the one that accepts, the one that connects
    ranks::Meeting meeting(ranks::one_host(2));
    ring::Socket client = call(meeting.peers[0].port);
    const FewDescriptors few(0);
    const ring::Deadline soon = ring::Deadline::after(15);
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", ranks::quick_options("auto"), ranks::kNever);
    CHECK(!soon.expired());
    CHECK(engine.status().code() == Code::rendezvous);
    CHECK_EQ(engine.status().rank(), rank);
    CHECK_CONTAINS(engine.status().message(), "no file descriptor left");
    CHECK_CONTAINS(engine.status().message(), "raise the limit (ulimit -n)");
  }
}
