// Autotune: applies what the tuner chooses, on all ranks at the same operation.
//
// What runs, and in which order, is the same on every rank. So every rank counts the bytes of the allreduces
// that a group moved, and all see the end of a window before the same operation. There they exchange how long
// the window took them; the slowest counts; each rank's tuner gets the same numbers and makes the same
// choice. Sizes only get smaller than configured, for which buffers are laid out, and choose no algorithm:
// results keep their bits.
//
// Rank 0 writes one line for every window into the log, comma-separated, if there is one.
#pragma once

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "engine/tuner.h"
#include "transport/control_plane.h"

namespace ring {

class Tuning {
 public:
  // Lets the group know the segment size.
  using Apply = std::function<void(size_t segment_bytes)>;
  static constexpr uint64_t kWindowBytes = uint64_t{64} << 20;
  static constexpr int kWindowCalls = 8;  // at least

  struct State {
    Choice choice;
    int windows = 0;
    bool over = false;
  };

  Tuning(Choice largest, Apply apply) : tuner_(largest), apply_(std::move(apply)) { tell(); }
  // Rank 0 only. An error if the file cannot be written.
  Status open_log(const std::string& path);

  // A group has moved so many bytes of an allreduce.
  void count(uint64_t bytes, int64_t us) {
    bytes_ += bytes;
    us_ += us;
    ++calls_;
  }
  // Before an operation: ends the window if it is full.
  Status before(ControlPlane& control, Deadline deadline, Watch* watch) {
    if (tuner_.over() || bytes_ < kWindowBytes || calls_ < kWindowCalls) return {};
    return end_window(control, deadline, watch);
  }
  size_t fusion_bytes() const { return tuner_.current().fusion_bytes; }
  // Any thread.
  State state() const;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  Status end_window(ControlPlane& control, Deadline deadline, Watch* watch);
  void tell();

  Tuner tuner_;
  const Apply apply_;
  std::unique_ptr<std::FILE, Close> log_;
  uint64_t bytes_ = 0;
  int64_t us_ = 0;
  int calls_ = 0;
  // For state().
  std::atomic<size_t> fusion_{0}, segment_{0};
  std::atomic<int> windows_{0};
  std::atomic<bool> over_{false};
};

}  // namespace ring
