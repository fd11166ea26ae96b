#include "engine/tuning.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "transport/socket.h"

namespace ring {

Status Tuning::open_log(const std::string& path) {
  log_.reset(std::fopen(path.c_str(), "w"));
  if (log_ == nullptr) {
    return Status(Code::config, "the log of autotune, '" + path +
                                    "' (autotune_log), cannot be written: " + error_text(errno));
  }
  std::fputs(
      "window,fusion_bytes,segment_bytes,bytes,seconds,bytes_per_second,next_fusion_bytes,"
      "next_segment_bytes,over\n",
      log_.get());
  std::fflush(log_.get());
  return {};
}

Status Tuning::end_window(ControlPlane& control, Deadline deadline, Watch* watch) {
  const int64_t mine[1] = {us_};
  std::vector<Bytes> all;
  RING_TRY(control.exchange(std::as_bytes(std::span(mine)), deadline, &all, watch));
  int64_t slowest = 1;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != sizeof slowest) {
      return Status(Code::peer_lost, "rank " + std::to_string(r) + " is out of step", static_cast<int>(r));
    }
    slowest = std::max(slowest, Reader(all[r]).get<int64_t>());
  }
  const Choice was = tuner_.current();
  const double seconds = static_cast<double>(slowest) * 1e-6;
  if (tuner_.finish_window(bytes_, seconds)) apply_(tuner_.current().segment_bytes);
  windows_.fetch_add(1, std::memory_order_relaxed);
  tell();
  if (log_ != nullptr) {
    const Choice& next = tuner_.current();
    std::fprintf(log_.get(), "%d,%zu,%zu,%llu,%.6f,%.0f,%zu,%zu,%d\n", windows_.load(), was.fusion_bytes,
                 was.segment_bytes, static_cast<unsigned long long>(bytes_), seconds,
                 static_cast<double>(bytes_) / seconds, next.fusion_bytes, next.segment_bytes,
                 tuner_.over() ? 1 : 0);
    std::fflush(log_.get());
  }
  bytes_ = 0;
  us_ = 0;
  calls_ = 0;
  return {};
}

void Tuning::tell() {
  fusion_.store(tuner_.current().fusion_bytes, std::memory_order_relaxed);
  segment_.store(tuner_.current().segment_bytes, std::memory_order_relaxed);
  over_.store(tuner_.over(), std::memory_order_relaxed);
}

Tuning::State Tuning::state() const {
  return {{fusion_.load(), segment_.load()}, windows_.load(), over_.load()};
}

}  // namespace ring
