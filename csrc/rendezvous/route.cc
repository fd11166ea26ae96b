#include "rendezvous/route.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/clock.h"

namespace ring {

Route::Route(std::vector<std::string> addresses)
    : addresses_(std::move(addresses)), refused_(addresses_.size(), false) {}

double Route::patience(double longest) const {
  return several() ? std::min(longest, 1.0 * (1 << std::min(rounds_, 10))) : longest;
}

bool Route::next() {
  at_ = (at_ + 1) % addresses_.size();
  if (at_ > 0) return false;
  ++rounds_;
  return true;
}

void Route::note(int error) {
  refused_[at_] = error == ECONNREFUSED;
  const bool everywhere = std::all_of(refused_.begin(), refused_.end(), [](bool one) { return one; });
  if (!everywhere) {
    refused_since_ = 0;
  } else if (refused_since_ == 0) {
    refused_since_ = now_us();
  }
}

bool Route::refused_for(int64_t us) const { return refused_since_ != 0 && now_us() - refused_since_ >= us; }

}  // namespace ring
