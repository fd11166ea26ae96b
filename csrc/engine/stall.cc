#include "engine/stall.h"

#include <algorithm>
#include <limits>

namespace ring {
namespace {

constexpr size_t kShown = 3;          // operations that a stall names
constexpr size_t kMostReports = 64;   // kept for whoever fetches them
constexpr double kAskSeconds = 0.05;  // how long to ask the others whom they wait for

int64_t microseconds(double seconds) { return static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9) * 1e6); }

int64_t smaller_limit(double a, double b) {
  if (a <= 0 || b <= 0) return microseconds(std::max(a, b));
  return microseconds(std::min(a, b));
}

// "allreduce 'grad.0' of float32 [100], op sum"
std::string told(const Operation& operation) {
  const std::string details = operation.descriptor.details();
  const size_t rest = details.find(" of ");
  return operation.descriptor.title() + (rest == std::string::npos ? "" : details.substr(rest));
}

// A join may wait long while the others go on, so its age is that of the present wait.
void add(Stall* stall, const Operation& operation, int64_t now, int64_t since) {
  const int64_t from = operation.request.kind == Kind::join ? since : operation.submitted_us;
  if (stall->operations.size() < kShown) stall->operations.push_back(told(operation));
  const double left = operation.deadline.remaining();
  stall->fails_in = stall->count == 0 ? left : std::min(stall->fails_in, left);
  stall->seconds = std::max(stall->seconds, static_cast<double>(now - from) * 1e-6);
  ++stall->count;
}

}  // namespace

StallInspector::StallInspector(double warn_seconds, double abort_seconds)
    : warn_us_(microseconds(warn_seconds)),
      abort_us_(microseconds(abort_seconds)),
      limit_us_(smaller_limit(warn_seconds, abort_seconds)),
      every_us_(std::clamp<int64_t>(limit_us_ / 8, 5000, 1000000)) {}

void StallInspector::different(Lonely lonely, std::string story) {
  lonely_ = std::move(lonely);
  story_ = std::move(story);
}

void StallInspector::idle() {
  enter(Stall::State::absent, nullptr, nullptr);
  // Waits tell of what they wait for; what went on without one is told of here.
  if (reported_.count > 0 || !lonely_.empty()) (void)look(-1);
}

void StallInspector::clear() {
  enter(Stall::State::absent, nullptr, nullptr);
  lonely_.clear();
  reported_ = Stall();
  const std::lock_guard<std::mutex> lock(mutex_);
  present_.clear();
}

Status StallInspector::look(int waiting_for) {
  if (limit_us_ == 0) return {};
  const int64_t now = now_us();
  if (stage_ != seen_stage_) {
    seen_stage_ = stage_;
    since_us_ = now;
    culprit_ = -1;
    if (reported_.count > 0) next_us_ = now;
  }
  if (now < next_us_) return {};
  next_us_ = now + every_us_;
  return inspect(now, waiting_for);
}

Status StallInspector::inspect(int64_t now, int waiting_for) {
  std::vector<Stall> found = find(now, waiting_for);
  double oldest = 0;
  int blamed = -1;
  for (const Stall& one : found) {
    if (one.seconds < oldest) continue;
    oldest = one.seconds;
    blamed = one.ranks.empty() ? -1 : one.ranks[0];
  }
  if (warn_us_ > 0) publish(std::move(found), waiting_for);
  if (abort_us_ > 0 && oldest >= static_cast<double>(abort_us_) * 1e-6) {
    aborted_ = true;
    return Status(Code::timeout, "stalled", blamed);
  }
  return {};
}

std::vector<Stall> StallInspector::find(int64_t now, int waiting_for) {
  std::vector<Stall> found;
  if (express_ != nullptr && now - since_us_ >= limit_us_) {
    described_ = {(*express_)()};
    batch_ = &described_;
    express_ = nullptr;
  }
  if (batch_ != nullptr && now - since_us_ >= limit_us_) {
    Stall stall;
    stall.state = state_;
    if (bucket_ != nullptr) {
      for (const size_t i : *bucket_) add(&stall, *(*batch_)[i], now, since_us_);
    } else {
      for (const OperationPtr& one : *batch_) add(&stall, *one, now, since_us_);
    }
    if (state_ == Stall::State::absent && exchange_ != nullptr) exchange_->missing(&stall.ranks);
    if (stall.ranks.empty() && waiting_for >= 0) {
      stall.ranks = {state_ == Stall::State::moving && culprit_ >= 0 ? culprit_ : waiting_for};
    }
    found.push_back(std::move(stall));
  }
  if (found.empty() || state_ != Stall::State::absent) find_lonely(now, &found);
  return found;
}

void StallInspector::find_lonely(int64_t now, std::vector<Stall>* found) {
  std::erase_if(lonely_, [](const auto& one) { return one.first->done(); });
  const size_t others = found->size();
  for (const auto& [operation, lacking] : lonely_) {
    if (now - operation->submitted_us < limit_us_) continue;
    const auto same = std::find_if(found->begin() + static_cast<ptrdiff_t>(others), found->end(),
                                   [&ranks = lacking](const Stall& one) { return one.ranks == ranks; });
    if (same != found->end()) {
      add(&*same, *operation, now, since_us_);
      continue;
    }
    Stall stall;
    stall.state = Stall::State::different;
    stall.ranks = lacking;
    stall.story = story_;
    add(&stall, *operation, now, since_us_);
    found->push_back(std::move(stall));
  }
}

void StallInspector::publish(std::vector<Stall> found, int waiting_for) {
  double oldest = 0;
  for (const Stall& one : found) oldest = std::max(oldest, one.seconds);
  const bool report = !found.empty() && oldest >= report_at_;
  if (report && state_ == Stall::State::moving && waiting_for >= 0 && control_ != nullptr) {
    culprit_ = control_->find_culprit(waiting_for, kAskSeconds);
    for (Stall& one : found) {
      if (one.state == Stall::State::moving && culprit_ >= 0) one.ranks = {culprit_};
    }
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (found.empty() && reported_.count > 0) {
    reported_.over = true;
    outbox_.push_back(reported_);
    reported_ = Stall();
  }
  if (found.empty()) report_at_ = 0;
  if (report) {
    report_at_ = 2 * oldest;
    reported_ = found[0];
    for (const Stall& one : found) outbox_.push_back(one);
  } else if (!found.empty() && reported_.count > 0) {
    reported_.seconds = oldest;
  }
  while (outbox_.size() > kMostReports) outbox_.pop_front();
  present_ = std::move(found);
}

std::vector<Stall> StallInspector::stalled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return present_;
}

std::vector<Stall> StallInspector::take_reports() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Stall> reports(std::make_move_iterator(outbox_.begin()),
                             std::make_move_iterator(outbox_.end()));
  outbox_.clear();
  return reports;
}

}  // namespace ring
