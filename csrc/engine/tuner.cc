#include "engine/tuner.h"

#include <algorithm>

namespace ring {
namespace {

enum Direction { smaller_segment, smaller_fusion, larger_segment, larger_fusion, kDirections };

}  // namespace

Tuner::Tuner(Choice largest) : largest_(largest), current_(largest), best_(largest) {}

bool Tuner::finish_window(uint64_t bytes, double seconds) {
  if (over_) return false;
  const Choice before = current_;
  if (windows_++ > 0) scores_.push_back(static_cast<double>(bytes) / std::max(seconds, 1e-9));
  if (scores_.size() == kRepeats) {
    std::sort(scores_.begin(), scores_.end());
    const double score = scores_[kRepeats / 2];
    scores_.clear();
    if (known_.empty() || score > best_score_ * kBetter) {
      best_ = current_;
      best_score_ = score;
    } else {
      direction_ = (direction_ + 1) % kDirections;
    }
    known_.push_back(current_);
    advance();
  }
  if (windows_ >= kMostWindows) over_ = true;
  if (over_) current_ = best_;
  return !(current_ == before);
}

// The way that was good last time comes first.
void Tuner::advance() {
  for (int tried = 0; tried < kDirections; ++tried, direction_ = (direction_ + 1) % kDirections) {
    Choice next;
    if (neighbour(direction_, &next) && !is_judged(next)) {
      current_ = next;
      return;
    }
  }
  over_ = true;
}

bool Tuner::neighbour(int direction, Choice* choice) const {
  *choice = best_;
  switch (direction) {
    case smaller_segment:
      choice->segment_bytes /= 2;
      return choice->segment_bytes >= kLeastSegment;
    case smaller_fusion:
      choice->fusion_bytes /= 2;
      return choice->fusion_bytes >= kLeastFusion;
    case larger_segment:
      choice->segment_bytes *= 2;
      return choice->segment_bytes <= largest_.segment_bytes;
    case larger_fusion:
      choice->fusion_bytes *= 2;
      return choice->fusion_bytes <= largest_.fusion_bytes;
    default:
      return false;
  }
}

bool Tuner::is_judged(const Choice& choice) const {
  return std::find(known_.begin(), known_.end(), choice) != known_.end();
}

}  // namespace ring
