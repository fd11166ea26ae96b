// The arithmetic of division and of the ring, for every world size to 64, without a socket.

#include "check.h"
#include "collective/pieces.h"
#include "collective/schedule.h"

TEST(slices_cover_everything_once_and_evenly) {
  for (int n = 1; n <= 64; ++n) {
    for (const size_t total : {0u, 1u, 63u, 64u, 65u, 1000u, 4099u, 100003u}) {
      for (const size_t granule : {1u, 64u}) {
        const ring::Slices slices = ring::balanced_slices(total, n, n, granule);
        CHECK_EQ(slices.count(), n);
        CHECK_EQ(slices.begin(0), 0u);
        CHECK_EQ(slices.total(), total);
        for (int r = 0; r < n; ++r) {
          CHECK(slices.end(r) >= slices.begin(r));
          CHECK(slices.begin(r) % granule == 0 || slices.begin(r) == total);
          CHECK(slices.size(r) <= (total / granule / static_cast<size_t>(n) + 1) * granule);
        }
      }
    }
  }
}

TEST(ranks_beyond_the_owners_get_nothing) {
  const ring::Slices slices = ring::balanced_slices(1000, 5, 2, 64);
  CHECK_EQ(slices.size(0) + slices.size(1), 1000u);
  for (int r = 2; r < 5; ++r) CHECK_EQ(slices.size(r), 0u);
}

TEST(the_first_ranks_get_one_row_more) {
  CHECK(ring::scatter_rows(7, 3) == (std::vector<size_t>{3, 2, 2}));
  CHECK(ring::scatter_rows(1, 3) == (std::vector<size_t>{1, 0, 0}));
  CHECK(ring::scatter_rows(0, 2) == (std::vector<size_t>{0, 0}));
}

// Plays the ring with sets of contributors, bit r for rank r, instead of numbers.
TEST(the_ring_reduces_every_slice_exactly_once_and_gives_it_to_all) {
  for (int n = 2; n <= 64; ++n) {
    using Contributors = uint64_t;
    std::vector<std::vector<Contributors>> held(static_cast<size_t>(n));
    for (int r = 0; r < n; ++r)
      held[static_cast<size_t>(r)].assign(static_cast<size_t>(n), Contributors{1} << r);
    std::vector<std::vector<ring::RingStep>> scatter, gather;
    for (int r = 0; r < n; ++r) {
      scatter.push_back(ring::ring_reduce_scatter(r, n, 0));
      gather.push_back(ring::ring_allgather(ring::ring_mod(r + 1, n), n));
      CHECK_EQ(scatter.back().size(), static_cast<size_t>(n - 1));
    }
    auto play = [&](const std::vector<std::vector<ring::RingStep>>& steps, bool reduce) {
      for (size_t s = 0; s < steps[0].size(); ++s) {
        const auto before = held;
        for (int r = 0; r < n; ++r) {
          const int previous = ring::ring_mod(r - 1, n);
          const int slice = steps[static_cast<size_t>(r)][s].receive;
          CHECK_EQ(slice, steps[static_cast<size_t>(previous)][s].send);
          if (s > 0)
            CHECK_EQ(steps[static_cast<size_t>(r)][s].send, steps[static_cast<size_t>(r)][s - 1].receive);
          const auto& arrived = before[static_cast<size_t>(previous)][static_cast<size_t>(slice)];
          auto& mine = held[static_cast<size_t>(r)][static_cast<size_t>(slice)];
          if (reduce) {
            CHECK_EQ(mine & arrived, Contributors{0});  // nobody's part is added twice
            mine |= arrived;
          } else {
            mine = arrived;
          }
        }
      }
    };
    play(scatter, true);
    const Contributors everybody = ~Contributors{0} >> (64 - n);
    for (int r = 0; r < n; ++r) {
      CHECK(held[static_cast<size_t>(r)][static_cast<size_t>(ring::ring_mod(r + 1, n))] == everybody);
    }
    play(gather, false);
    for (int r = 0; r < n; ++r) {
      for (int slice = 0; slice < n; ++slice) {
        CHECK(held[static_cast<size_t>(r)][static_cast<size_t>(slice)] == everybody);
      }
    }
  }
}

TEST(pieces_are_one_long_array) {
  std::vector<std::byte> a(5), b(0), c(11), out(16);
  for (size_t i = 0; i < 5; ++i) a[i] = static_cast<std::byte>(i);
  for (size_t i = 0; i < 11; ++i) c[i] = static_cast<std::byte>(5 + i);
  const ring::Pieces pieces(
      {{a.data(), a.data(), a.size()}, {b.data(), b.data(), 0}, {c.data(), c.data(), c.size()}});
  CHECK_EQ(pieces.bytes(), 16u);
  for (size_t from = 0; from <= 16; ++from) {
    for (size_t bytes = 0; from + bytes <= 16; ++bytes) {
      pieces.pack(from, bytes, out.data());
      for (size_t i = 0; i < bytes; ++i) CHECK_EQ(static_cast<int>(out[i]), static_cast<int>(from + i));
    }
  }
  const std::vector<std::byte> nines(7, std::byte{9});
  pieces.unpack(3, 7, nines.data());
  CHECK(a[2] == std::byte{2} && a[3] == std::byte{9} && c[4] == std::byte{9} && c[5] == std::byte{10});
}
