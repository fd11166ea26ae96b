// The search for fusion and segment sizes, on surfaces that are known.
#include <cmath>
#include <functional>

#include "check.h"
#include "engine/tuner.h"

using ring::Choice;
using ring::Tuner;

namespace {

constexpr Choice kLargest{size_t{32} << 20, size_t{1} << 20};

// Feeds windows until the end; returns how many.
int run(Tuner& tuner, const std::function<double(const Choice&, int)>& score) {
  int windows = 0;
  while (!tuner.over()) {
    CHECK(windows < Tuner::kMostWindows);
    const Choice& now = tuner.current();
    CHECK(now.fusion_bytes <= kLargest.fusion_bytes && now.segment_bytes <= kLargest.segment_bytes);
    tuner.finish_window(1000000000, 1 / score(now, windows));
    ++windows;
  }
  return windows;
}

// One summit, in the logarithms of both sizes.
double hill(const Choice& choice, Choice top) {
  const double fusion =
      std::log2(static_cast<double>(choice.fusion_bytes) / static_cast<double>(top.fusion_bytes));
  const double segment =
      std::log2(static_cast<double>(choice.segment_bytes) / static_cast<double>(top.segment_bytes));
  return 10 / (1 + 0.2 * fusion * fusion + 0.3 * segment * segment);
}

}  // namespace

TEST(every_summit_is_found) {
  for (size_t fusion = Tuner::kLeastFusion; fusion <= kLargest.fusion_bytes; fusion *= 2) {
    for (size_t segment = Tuner::kLeastSegment; segment <= kLargest.segment_bytes; segment *= 2) {
      Tuner tuner(kLargest);
      const Choice top{fusion, segment};
      run(tuner, [&](const Choice& choice, int) { return hill(choice, top); });
      CHECK(tuner.current() == top);
    }
  }
}

TEST(a_flat_surface_keeps_what_is_configured) {
  Tuner tuner(kLargest);
  const int windows = run(tuner, [](const Choice&, int) { return 5.0; });
  CHECK(tuner.current() == kLargest);
  CHECK(windows == 1 + 3 * Tuner::kRepeats);  // itself and the two smaller neighbours
}

TEST(outliers_and_the_first_window_do_not_count) {
  Tuner tuner(kLargest);
  const Choice top{kLargest.fusion_bytes, size_t{256} << 10};
  run(tuner, [&](const Choice& choice, int window) {
    if (window == 0) return 0.001;
    return hill(choice, top) * (window % Tuner::kRepeats == 0 ? 30.0 : 1.0);  // one in three
  });
  CHECK(tuner.current() == top);
}

TEST(the_search_ends_whatever_is_measured) {
  for (unsigned seed = 1; seed < 200; ++seed) {
    Tuner tuner(kLargest);
    unsigned state = seed;
    run(tuner, [&](const Choice&, int) {
      state = state * 1664525u + 1013904223u;
      return 0.1 + static_cast<double>(state >> 8);
    });
    CHECK(tuner.over());
    CHECK(!tuner.finish_window(1, 1));
  }
}

TEST(without_fusion_only_segments_are_tuned) {
  Tuner tuner({0, size_t{256} << 10});
  while (!tuner.over()) {
    CHECK(tuner.current().fusion_bytes == 0);
    tuner.finish_window(1000, 1.0 / static_cast<double>(tuner.current().segment_bytes));
  }
  CHECK(tuner.current().segment_bytes == size_t{256} << 10);
}
