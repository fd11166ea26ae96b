// Every collective over transport × dtype × world × size, against plain loops.
#include <numeric>

#include "check.h"
#include "collective/schedule.h"
#include "ranks.h"

using ring::DType;
using ring::Engine;
using ring::Kind;
using ring::ReduceOp;

namespace {

constexpr size_t kSizes[] = {0, 1, 13, 1009, 9001};  // the last: several segments, too large to be carried

struct World {
  const char* name;
  std::string transport;
  std::vector<std::string> hosts;
};

std::vector<World> worlds() {
  std::vector<World> all;
  for (const int n : {1, 2, 3, 4, 8}) {
    all.push_back({"shm", "auto", ranks::one_host(n)});
    all.push_back({"tcp", "tcp", ranks::one_host(n)});
  }
  all.push_back({"two hosts", "auto", {"a", "a", "b", "b"}});
  all.push_back({"uneven hosts", "auto", {"a", "b", "b", "a", "b"}});
  all.push_back({"lonely host", "auto", {"a", "b", "b"}});
  return all;
}

template <class T>
T value(int rank, size_t i) {
  return static_cast<T>((static_cast<size_t>(rank) * 31 + i * 7) % 23) - static_cast<T>(i % 5);
}

template <class T>
void check_allreduce(Engine& engine, int rank, DType dtype) {
  const int n = engine.topology().size;
  for (const size_t size : kSizes) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average, ReduceOp::max}) {
      std::vector<T> in(size), out(size), expected(size);
      for (size_t i = 0; i < size; ++i) {
        in[i] = value<T>(rank, i);
        T total = 0, most = value<T>(0, i);
        for (int r = 0; r < n; ++r) {
          total = static_cast<T>(total + value<T>(r, i));
          most = std::max(most, value<T>(r, i));
        }
        // The values are small integers: sums are exact in every type.
        expected[i] = op == ReduceOp::sum ? total : op == ReduceOp::max ? most : T{};
        if (op == ReduceOp::average) {
          expected[i] = std::is_integral_v<T> ? static_cast<T>(total / static_cast<T>(n))
                                              : total * static_cast<T>(1.0 / static_cast<double>(n));
        }
      }
      auto request = ranks::request(Kind::allreduce, dtype, in, out);
      request.op = op;
      CHECK_OK(engine.run_now(request, ranks::kNever));
      const bool exact = std::is_integral_v<T> || op != ReduceOp::average;
      for (size_t i = 0; i < size; ++i) {
        const double difference = static_cast<double>(out[i]) - static_cast<double>(expected[i]);
        CHECK(exact ? out[i] == expected[i] : difference < 1e-5 && difference > -1e-5);
      }
      if (size > 0) {  // by the short road, while some ranks take the general one
        std::vector<T> again(size);
        ring::Express express;
        const int64_t shape[1] = {static_cast<int64_t>(size)};
        express.dtype = dtype;
        express.op = op;
        express.shape = shape;
        express.dims = 1;
        express.in = reinterpret_cast<const std::byte*>(in.data());
        express.out = reinterpret_cast<std::byte*>(again.data());
        express.bytes = size * sizeof(T);
        if (static_cast<size_t>(rank) % 2 == size % 2) {
          CHECK_OK(engine.run_express(express, ranks::kNever));
        } else {
          CHECK_OK(ranks::finish(engine.submit(express.request())));
        }
        CHECK(again == out);
      }
      auto in_place = ranks::request(Kind::allreduce, dtype, in, in);
      in_place.op = op;
      CHECK_OK(ranks::finish(engine.submit(in_place)));
      CHECK(in == out);
    }
  }
}

void check_others(Engine& engine, int rank) {
  const int n = engine.topology().size;
  for (const size_t size : kSizes) {
    for (int root = 0; root < n; root += std::max(1, n - 1)) {
      std::vector<int32_t> data(size, -1), expected(size);
      std::iota(expected.begin(), expected.end(), root);
      if (rank == root) data = expected;
      auto request = ranks::request(Kind::broadcast, DType::int32, data, data);
      request.root = root;
      CHECK_OK(ranks::finish(engine.submit(request)));
      CHECK(data == expected);
    }
    // allgather: rank r has r times as many rows of two, rank 0 none.
    const size_t rows = size * static_cast<size_t>(rank) / 4;
    std::vector<int32_t> mine(rows * 2, rank), all;
    std::vector<int64_t> all_rows;
    for (int r = 0; r < n; ++r) {
      all_rows.push_back(static_cast<int64_t>(size * static_cast<size_t>(r) / 4));
      all.insert(all.end(), static_cast<size_t>(all_rows.back()) * 2, r);
    }
    auto gather = engine.submit(
        ranks::request(Kind::allgather, DType::int32, mine, mine, {static_cast<int64_t>(rows), 2}));
    CHECK_OK(ranks::finish(gather));
    CHECK((*gather)->gathered.rows == all_rows);
    CHECK_EQ((*gather)->gathered.bytes, all.size() * 4);
    CHECK(all.empty() || std::memcmp((*gather)->gathered.data.get(), all.data(), all.size() * 4) == 0);

    std::vector<double> in(size * 3), out(ring::scatter_rows(size, n)[static_cast<size_t>(rank)] * 3);
    for (size_t i = 0; i < in.size(); ++i) in[i] = value<double>(rank, i);
    auto scatter =
        ranks::request(Kind::reducescatter, DType::float64, in, out, {static_cast<int64_t>(size), 3});
    CHECK_OK(ranks::finish(engine.submit(scatter)));
    size_t begin = 0;
    for (int r = 0; r < rank; ++r) begin += ring::scatter_rows(size, n)[static_cast<size_t>(r)] * 3;
    for (size_t i = 0; i < out.size(); ++i) {
      double total = 0;
      for (int r = 0; r < n; ++r) total += value<double>(r, begin + i);
      CHECK_EQ(out[i], total);
    }
    CHECK_OK(ranks::finish(engine.submit(ring::Request{})));
  }
}

void in_worlds(const std::function<void(Engine&, int)>& body) {
  for (const World& world : worlds())
    ranks::together(world.hosts, ranks::quick_options(world.transport), body);
}

}  // namespace

TEST(allreduce_of_floats) {
  in_worlds([](Engine& engine, int rank) { check_allreduce<float>(engine, rank, DType::float32); });
}
TEST(allreduce_of_doubles) {
  in_worlds([](Engine& engine, int rank) { check_allreduce<double>(engine, rank, DType::float64); });
}
TEST(allreduce_of_integers) {
  in_worlds([](Engine& engine, int rank) {
    check_allreduce<int32_t>(engine, rank, DType::int32);
    check_allreduce<int64_t>(engine, rank, DType::int64);
  });
}
TEST(the_other_collectives) { in_worlds(check_others); }

TEST(an_average_of_large_halves_does_not_overflow_on_any_way) {
  in_worlds([](Engine& engine, int) {
    for (const size_t size : kSizes) {
      std::vector<uint16_t> data(size, 0x78e2), expected = data;  // 40000.0
      auto request = ranks::request(Kind::allreduce, DType::float16, data, data);
      request.op = ReduceOp::average;
      CHECK_OK(engine.run_now(request, ranks::kNever));
      for (const uint16_t bits : data)
        CHECK(bits >= 0x78e0 && bits <= 0x78e3);  // three hosts: 40000/3*3 rounds
      if (engine.topology().cross_size == 1) CHECK(data == expected);
    }
  });
}

TEST(the_smallest_segments) {
  for (const char* transport : {"shm", "tcp"}) {
    ring::Options options = ranks::quick_options(transport);
    options.segment_bytes = 64;
    ranks::together(ranks::one_host(3), options, [](Engine& engine, int rank) {
      std::vector<double> data(5003, rank);
      CHECK_OK(engine.run_now(ranks::request(Kind::allreduce, DType::float64, data, data), ranks::kNever));
      CHECK(data == std::vector<double>(5003, 3.0));
    });
  }
}

// A tensor too large for fusion takes the ring over TCP.
TEST(the_ring_between_many_ranks) {
  ring::Options options = ranks::quick_options("tcp");
  options.fusion_bytes = 4096;
  ranks::together(ranks::one_host(5), options, [](Engine& engine, int rank) {
    check_allreduce<float>(engine, rank, DType::float32);
    check_allreduce<int64_t>(engine, rank, DType::int64);
  });
}

// Tensors in memory that ranks share, on all ranks or on some, in place or not: nothing is copied.
TEST(tensors_in_shared_memory) {
  for (const auto& hosts :
       {ranks::one_host(2), ranks::one_host(3), std::vector<std::string>{"a", "b", "a"}}) {
    ring::Options options = ranks::quick_options("auto");
    options.arena_bytes = 1 << 20;
    ranks::together(hosts, options, [](Engine& engine, int rank) {
      const auto n = static_cast<float>(engine.topology().size);
      for (int round = 0; round < 12; ++round) {
        constexpr size_t kCount = 20011;
        std::vector<float> plain(kCount), other(kCount);
        auto taken = engine.shared_memory(kCount * sizeof(float));
        CHECK_OK(taken.status());
        const bool shared = *taken != nullptr && (round % 3 == 0 || rank % 2 == round % 2);
        auto* data = shared ? reinterpret_cast<float*>(taken->get()) : plain.data();
        for (size_t i = 0; i < kCount; ++i) data[i] = value<float>(rank, i);
        float* result = round % 4 < 2 ? data : other.data();
        auto request = ranks::request(Kind::allreduce, DType::float32, plain, plain);
        request.tensors[0].in = reinterpret_cast<const std::byte*>(data);
        request.tensors[0].out = reinterpret_cast<std::byte*>(result);
        CHECK_OK(engine.run_now(request, ranks::kNever));
        for (size_t i = 0; i < kCount; i += 97) {
          float sum = 0;
          for (int r = 0; r < static_cast<int>(n); ++r) sum += value<float>(r, i);
          CHECK(result[i] == sum);
        }
        request.kind = Kind::broadcast;
        request.root = round % static_cast<int>(n);
        request.tensors[0].in = request.tensors[0].out = reinterpret_cast<std::byte*>(data);
        for (size_t i = 0; i < kCount; ++i) data[i] = static_cast<float>(rank);
        CHECK_OK(engine.run_now(request, ranks::kNever));
        CHECK(data[0] == static_cast<float>(request.root) && data[kCount - 1] == data[0]);
      }
    });
  }
}

TEST(shrunken_socket_buffers_force_partial_writes) {
  ring::Options options = ranks::quick_options("tcp");
  options.socket_buffer_bytes = 4096;
  options.segment_bytes = 64 * 1024;
  ranks::together(ranks::one_host(3), options, [](Engine& engine, int rank) {
    std::vector<float> data(30011, static_cast<float>(rank));
    CHECK_OK(engine.run_now(ranks::request(Kind::allreduce, DType::float32, data, data), ranks::kNever));
    CHECK(data == std::vector<float>(30011, 3.0f));
  });
}

TEST(operations_in_different_orders_complete) {
  for (const char* transport : {"auto", "tcp"}) {
    ranks::together(ranks::one_host(3), ranks::quick_options(transport), [](Engine& engine, int rank) {
      constexpr size_t kCount = 40;
      std::vector<std::vector<float>> data(kCount);
      std::vector<ring::OperationPtr> operations;
      for (size_t k = 0; k < kCount; ++k) {
        const size_t i =
            (k * 7 + static_cast<size_t>(rank) * 11) % kCount;  // a different order on every rank
        data[i].assign(i * 5 + 1, static_cast<float>(i) + static_cast<float>(rank));
        auto request = ranks::request(Kind::allreduce, DType::float32, data[i], data[i]);
        request.name = "g" + std::to_string(i);
        auto operation = engine.submit(request);
        CHECK_OK(operation.status());
        operations.push_back(*operation);
      }
      for (auto& operation : operations) CHECK_OK(ranks::finish(operation));
      for (size_t i = 0; i < kCount; ++i) {
        for (const float one : data[i]) CHECK(one == 3.0f * static_cast<float>(i) + 3.0f);
      }
    });
  }
}

TEST(many_small_tensors_are_fused) {
  ranks::together(ranks::one_host(2), ranks::quick_options("auto"), [](Engine& engine, int rank) {
    std::vector<std::vector<float>> data(200, std::vector<float>(50, static_cast<float>(rank)));
    std::vector<ring::OperationPtr> operations;
    for (auto& one : data) {
      auto operation = engine.submit(ranks::request(Kind::allreduce, DType::float32, one, one));
      CHECK_OK(operation.status());
      operations.push_back(*operation);
    }
    for (auto& operation : operations) CHECK_OK(ranks::finish(operation));
    for (const auto& one : data) CHECK(one == std::vector<float>(50, 1.0f));
    const auto& counts = engine.statistics();
    CHECK_EQ(counts.operations.load(), 200u);
    CHECK(counts.fused_tensors.load() > 100 && counts.buckets.load() < 100);
  });
}

TEST(disagreement_fails_everywhere_and_the_communicator_stays_usable) {
  for (const char* transport : {"auto", "tcp"}) {
    ranks::together(ranks::one_host(3), ranks::quick_options(transport), [](Engine& engine, int rank) {
      std::vector<float> data(rank == 2 ? 200 : 100, 1.0f);
      auto request = ranks::request(Kind::allreduce, DType::float32, data, data);
      request.name = "g";
      const ring::Status status = engine.run_now(request, ranks::kNever);
      CHECK(status.code() == ring::Code::mismatch);
      CHECK_EQ(status.rank(), 2);
      CHECK_CONTAINS(status.message(), "rank 0 has allreduce of float32 [100], op sum");
      CHECK_CONTAINS(status.message(), "rank 2 has allreduce of float32 [200], op sum");
      std::vector<float> good(5, 1.0f);
      CHECK_OK(engine.run_now(ranks::request(Kind::allreduce, DType::float32, good, good), ranks::kNever));
      CHECK(good == std::vector<float>(5, 3.0f));
    });
  }
}

TEST(a_name_that_is_pending_is_refused_at_once) {
  ranks::together(ranks::one_host(2), ranks::quick_options("auto"), [](Engine& engine, int rank) {
    std::vector<float> data(4, 1.0f), other(4);
    auto request = ranks::request(Kind::allreduce, DType::float32, data, data);
    request.name = "twice";
    if (rank == 0) {
      auto first = engine.submit(request);
      CHECK(engine.submit(request).status().code() == ring::Code::mismatch);
      CHECK_OK(ranks::finish(engine.submit(ring::Request{})));  // lets rank 1 go on
      CHECK_OK(ranks::finish(first));
    } else {
      CHECK_OK(ranks::finish(engine.submit(ring::Request{})));
      CHECK_OK(ranks::finish(engine.submit(request)));
    }
  });
}

TEST(several_threads_of_a_rank_may_submit) {
  ranks::together(ranks::one_host(2), ranks::quick_options("auto"), [](Engine& engine, int) {
    ranks::in_threads(4, [&](int thread) {
      for (int i = 0; i < 25; ++i) {
        std::vector<float> data(static_cast<size_t>(thread * 400 + 1), 1.0f);
        auto request = ranks::request(Kind::allreduce, DType::float32, data, data);
        request.name = std::to_string(thread) + "." + std::to_string(i);
        CHECK_OK(i % 2 ? engine.run_now(request, ranks::kNever) : ranks::finish(engine.submit(request)));
        CHECK(data == std::vector<float>(data.size(), 2.0f));
      }
    });
  });
}

TEST(refused_before_anything_is_sent) {
  ranks::together(ranks::one_host(1), ranks::quick_options("auto"), [](Engine& engine, int) {
    std::vector<int32_t> data(4);
    auto scaled = ranks::request(Kind::allreduce, DType::int32, data, data);
    scaled.prescale = 0.5;
    CHECK(engine.submit(scaled).status().code() == ring::Code::config);
    auto no_root = ranks::request(Kind::broadcast, DType::int32, data, data);
    no_root.root = 1;
    CHECK(engine.submit(no_root).status().code() == ring::Code::config);
    auto scalar = ranks::request(Kind::allgather, DType::int32, data, data);
    scalar.tensors[0].shape.clear();
    CHECK(engine.submit(scalar).status().code() == ring::Code::config);
  });
}
