// Time: a monotonic clock and deadlines made from seconds.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace ring {

using Clock = std::chrono::steady_clock;

inline int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(Clock::now().time_since_epoch()).count();
}

class Deadline {
 public:
  // A deadline that many seconds from now; anything above thirty years is thirty years.
  static Deadline after(double seconds) {
    Deadline deadline;
    deadline.at_us_ = now_us() + static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e6);
    return deadline;
  }
  bool expired() const { return now_us() >= at_us_; }
  double remaining() const { return static_cast<double>(at_us_ - now_us()) * 1e-6; }
  // Milliseconds left for poll(): rounded up, never more than `cap`, zero once expired.
  int poll_ms(int cap) const {
    return static_cast<int>(std::clamp<int64_t>((at_us_ - now_us() + 999) / 1000, 0, cap));
  }
  static Deadline earlier(Deadline a, Deadline b) { return a.at_us_ < b.at_us_ ? a : b; }
  friend bool operator<(Deadline a, Deadline b) { return a.at_us_ < b.at_us_; }

 private:
  int64_t at_us_ = 0;
};

}  // namespace ring
