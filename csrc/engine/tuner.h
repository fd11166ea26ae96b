// Which fusion and segment sizes move bytes fastest: a search over powers of two below what is configured, by
// coordinates, one at a time and always downhill (coordinate descent with a pattern of halving and doubling:
// R. Hooke, T. A. Jeeves, "Direct search", Journal of the ACM 8 (1961)).
//
// Time is divided into windows. In a window one choice is in force; its score is bytes per second. A choice
// is judged by the median of three windows. The first window of all does not count. A neighbour must be
// better by three in a hundred to be moved to, so noise does not keep the search going. When no neighbour is
// better the search is over: the best choice stays. That takes at most kMostWindows windows.
//
// Pure: every rank feeds it the same numbers and gets the same choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ring {

struct Choice {
  size_t fusion_bytes = 0;
  size_t segment_bytes = 0;
  bool operator==(const Choice&) const = default;
};

class Tuner {
 public:
  static constexpr int kRepeats = 3;
  static constexpr int kMostWindows = 1 + kRepeats * 24;
  static constexpr double kBetter = 1.03;
  static constexpr size_t kLeastFusion = size_t{64} << 10;
  static constexpr size_t kLeastSegment = size_t{16} << 10;

  // Begins with the largest, which is what is configured. 0 for fusion_bytes: there is none to tune.
  explicit Tuner(Choice largest);

  const Choice& current() const { return current_; }
  bool over() const { return over_; }
  // A window with the current choice has ended. Returns true if there is another choice now.
  bool finish_window(uint64_t bytes, double seconds);

 private:
  // Goes to the next choice that has to be tried, or to the end.
  void advance();
  bool neighbour(int direction, Choice* choice) const;
  bool is_judged(const Choice& choice) const;

  const Choice largest_;
  Choice current_;
  Choice best_;
  double best_score_ = 0;
  std::vector<Choice> known_;   // have been judged
  std::vector<double> scores_;  // of the current choice
  int direction_ = 0;           // in which the current choice lies from the best one
  int windows_ = 0;
  bool over_ = false;
};

}  // namespace ring
