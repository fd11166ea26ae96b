// Death, silence, abort and farewell: what the others are told, and that they are told soon.
#include <dirent.h>

#include <chrono>

#include "check.h"
#include "ranks.h"

using ring::Code;
using ring::DType;
using ring::Engine;
using ring::Kind;

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int open_descriptors() {
  int count = 0;
  DIR* folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

bool left_in_shared_memory() {
  bool found = false;
  DIR* folder = ::opendir("/dev/shm");
  while (const dirent* entry = ::readdir(folder)) {
    found = found || std::strncmp(entry->d_name, "spark-ring-", 11) == 0;
  }
  ::closedir(folder);
  return found;
}

// Rank `dying` takes part in connecting and then breaks all its connections without a word, after `last`.
void with_death(int size, int dying, const std::string& transport,
                const std::function<void(ring::Fabric&, const ring::Operation&)>& last,
                const std::function<ring::Request()>& request) {
  ranks::Meeting meeting(ranks::one_host(size));
  ring::Options options = ranks::quick_options(transport);
  ranks::in_threads(size, [&](int rank) {
    auto& listener = meeting.listeners[static_cast<size_t>(rank)];
    if (rank == dying) {
      ring::Lookout lookout;
      auto fabric =
          ring::Fabric::connect(std::move(listener), rank, meeting.peers, "secret", options, lookout);
      CHECK_OK(fabric.status());
      auto operation = std::make_shared<ring::Operation>(request(), ring::Deadline::after(60));
      ring::Queue queue;
      CHECK_OK(queue.push(operation, false));
      last(**fabric, *operation);
      (*fabric)->close();
      return;
    }
    auto engine = Engine::connect(std::move(listener), rank, meeting.peers, "secret", options, ranks::kNever);
    CHECK_OK(engine.status());
    const auto start = std::chrono::steady_clock::now();
    const ring::Status status = (*engine)->run_now(request(), ranks::kNever);
    CHECK(status.code() == Code::peer_lost);
    CHECK_EQ(status.rank(), dying);
    CHECK_CONTAINS(status.message(), "rank " + std::to_string(dying) + " is lost");
    CHECK_CONTAINS(status.operation(), "allreduce 'big'");
    CHECK(seconds_since(start) < 5);
    // Afterwards every operation fails at once, with the same reason.
    const ring::Status later = (*engine)->run_now(ring::Request{}, ranks::kNever);
    CHECK(later.code() == Code::peer_lost);
    CHECK_EQ(later.rank(), dying);
  });
}

// Makes the same request for every rank, each with memory of its own that lives as long as this object.
class BigRequest {
 public:
  explicit BigRequest(size_t elements) : elements_(elements) {}
  ring::Request operator()() {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_.push_back(std::make_unique<std::vector<float>>(elements_, 1.0f));
    auto request = ranks::request(Kind::allreduce, DType::float32, *kept_.back(), *kept_.back());
    request.name = "big";
    return request;
  }

 private:
  const size_t elements_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<std::vector<float>>> kept_;
};

}  // namespace

TEST(death_before_the_first_operation) {
  BigRequest request(10);
  for (const char* transport : {"shm", "tcp"}) {
    with_death(3, 1, transport, [](ring::Fabric&, const ring::Operation&) {}, std::ref(request));
  }
}

TEST(death_in_the_middle_of_the_data) {
  BigRequest request(100000);
  for (const char* transport : {"shm", "tcp"}) {
    with_death(
        3, 2, transport,
        [](ring::Fabric& fabric, const ring::Operation& operation) {
          ring::Head head;  // agree on the operation and then do not do it
          head.first = operation.hash;
          head.pending = 1;
          std::vector<ring::Incoming> all;
          CHECK_OK(fabric.exchange().run(head, nullptr, ring::Deadline::after(60), &all));
        },
        std::ref(request));
  }
}

TEST(a_rank_that_stalls_is_named_not_its_neighbour) {
  for (const char* transport : {"shm", "tcp"}) {
    ranks::Meeting meeting(ranks::one_host(4));
    ring::Options options = ranks::quick_options(transport);
    options.collective_timeout = 1;
    std::atomic<int> ended{0};
    ranks::in_threads(4, [&](int rank) {
      auto engine = Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                    meeting.peers, "secret", options, ranks::kNever);
      CHECK_OK(engine.status());
      if (rank == 2) {
        while (ended.load() < 3) std::this_thread::sleep_for(std::chrono::milliseconds(5));
        return;
      }
      std::vector<float> data(1000, 1.0f);
      const ring::Status status =
          (*engine)->run_now(ranks::request(Kind::allreduce, DType::float32, data, data), ranks::kNever);
      CHECK(status.code() == Code::timeout);
      CHECK_EQ(status.rank(), 2);
      CHECK_CONTAINS(status.message(), "rank 2");
      ended.fetch_add(1);
    });
  }
}

TEST(different_operations_end_at_the_deadline_and_both_are_named) {
  ring::Options options = ranks::quick_options("auto");
  options.collective_timeout = 0.5;
  ranks::together(ranks::one_host(2), options, [](Engine& engine, int rank) {
    ring::Request request;
    request.name = rank == 0 ? "left" : "right";
    const ring::Status status = engine.run_now(request, ranks::kNever);
    CHECK(status.code() == Code::timeout);
    CHECK_CONTAINS(status.message(), "rank 0 has barrier 'left'");
    CHECK_CONTAINS(status.message(), "rank 1 has barrier 'right'");
  });
}

TEST(an_abort_reaches_everybody_with_its_reason) {
  for (const char* transport : {"shm", "tcp"}) {
    ranks::together(ranks::one_host(3), ranks::quick_options(transport), [](Engine& engine, int rank) {
      if (rank == 1) {
        engine.abort("the loss is NaN");
        CHECK(engine.run_now(ring::Request{}, ranks::kNever).code() == Code::aborted);
        return;
      }
      const auto start = std::chrono::steady_clock::now();
      const ring::Status status = ranks::finish(engine.submit(ring::Request{}));
      CHECK(status.code() == Code::aborted);
      CHECK_EQ(status.rank(), 1);
      CHECK_CONTAINS(status.message(), "the loss is NaN");
      CHECK(seconds_since(start) < 5);
    });
  }
}

TEST(an_abort_ends_this_ranks_own_waiting_operations) {
  ranks::together(ranks::one_host(2), ranks::quick_options("auto"), [](Engine& engine, int rank) {
    if (rank == 1) {
      CHECK(engine.run_now(ring::Request{}, ranks::kNever).code() == Code::aborted);
      return;
    }
    ring::Request alone;
    alone.name = "alone";
    auto operation = engine.submit(alone);
    engine.abort("enough");
    CHECK(ranks::finish(operation).code() == Code::aborted);
  });
}

TEST(an_interrupt_ends_an_operation_and_tells_the_others) {
  ranks::together(ranks::one_host(2), ranks::quick_options("auto"), [](Engine& engine, int rank) {
    ring::Request request;
    request.name = rank == 0 ? "a" : "b";
    const ring::Status status = engine.run_now(request, [rank] { return rank == 0; });
    CHECK(status.code() == (rank == 0 ? Code::interrupted : Code::aborted));
    if (rank == 1) CHECK_EQ(status.rank(), 0);
  });
}

TEST(a_rank_that_leaves_early_takes_nothing_with_it) {
  for (const char* transport : {"shm", "tcp"}) {
    for (int round = 0; round < 10; ++round) {
      ranks::together(ranks::one_host(3), ranks::quick_options(transport), [](Engine& engine, int rank) {
        std::vector<float> data(5000, 1.0f);
        CHECK_OK(ranks::finish(engine.submit(ranks::request(Kind::allreduce, DType::float32, data, data))));
        CHECK(data[4999] == 3.0f);
        if (rank == 0) engine.close();  // at once, whatever the others still read
      });
    }
  }
}

TEST(an_operation_with_a_rank_that_said_goodbye_fails_at_once) {
  for (const char* transport : {"shm", "tcp"}) {
    ranks::together(ranks::one_host(2), ranks::quick_options(transport), [](Engine& engine, int rank) {
      if (rank == 0) return engine.close();
      const auto start = std::chrono::steady_clock::now();
      const ring::Status status = engine.run_now(ring::Request{}, ranks::kNever);
      CHECK(status.code() == Code::peer_lost);
      CHECK_CONTAINS(status.message(), "rank 0 has closed its communicator");
      CHECK(seconds_since(start) < 5);
    });
  }
}

TEST(closing_finishes_what_is_pending_and_refuses_more) {
  ranks::together(ranks::one_host(2), ranks::quick_options("auto"), [](Engine& engine, int) {
    std::vector<float> data(3, 1.0f);
    auto operation = engine.submit(ranks::request(Kind::allreduce, DType::float32, data, data));
    engine.close();
    CHECK_OK(ranks::finish(operation));
    CHECK(data == std::vector<float>(3, 2.0f));
    CHECK(engine.submit(ring::Request{}).status().code() == Code::closed);
    engine.close();
  });
}

TEST(closing_with_operations_that_cannot_finish_tells_the_others) {
  ring::Options options = ranks::quick_options("auto");
  options.close_timeout = 0.1;
  ranks::together(ranks::one_host(2), options, [](Engine& engine, int rank) {
    ring::Request request;
    request.name = rank == 0 ? "a" : "b";
    auto operation = engine.submit(request);
    if (rank == 0) engine.close();
    const ring::Status status = ranks::finish(operation);
    CHECK(status.code() == Code::aborted);
    CHECK_EQ(status.rank(), 0);
  });
}

TEST(nothing_is_left_behind) {
  const int before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    ranks::together(ranks::one_host(2), ranks::quick_options(i % 2 ? "shm" : "tcp"),
                    [i](Engine& engine, int) {
                      CHECK_OK(ranks::finish(engine.submit(ring::Request{})));
                      if (i % 3 == 0) engine.abort("test");
                    });
  }
  CHECK_EQ(open_descriptors(), before);
  CHECK(!left_in_shared_memory());
}
