#include "transport/arena.h"

#include <string>
#include <utility>

namespace ring {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

Arena::Arena(std::shared_ptr<const SharedSegment> segment, size_t each, int rank)
    : segment_(std::move(segment)), each_(each), rank_(rank) {}

Result<std::byte*> Arena::take(size_t bytes) {
  if (bytes == 0) return static_cast<std::byte*>(nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!retired_.ok()) return retired_;
  const size_t wanted = bytes > each_ ? bytes : (bytes + kPage - 1) / kPage * kPage;
  size_t at = 0, used = 0;
  auto next = taken_.begin();  // the first block behind the gap that is looked at
  for (; next != taken_.end() && next->first - at < wanted; ++next) {
    at = next->first + next->second;
    used += next->second;
  }
  if (wanted > each_ - at) {
    return Status(Code::config, "the memory that ranks share has no " + std::to_string(bytes) +
                                    " contiguous bytes left: rank's part (arena_bytes) is " +
                                    std::to_string(each_) + " bytes, of which " + std::to_string(used) +
                                    " are taken; raise arena_bytes or free arrays");
  }
  const size_t place = part_at(rank_) + at;
  RING_TRY(segment_->reserve(place, wanted));
  taken_.emplace_hint(next, at, wanted);
  return segment_->data() + place;
}

void Arena::give_back(std::byte* data) {
  if (data == nullptr) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto block = taken_.find(static_cast<size_t>(data - segment_->data()) - part_at(rank_));
  if (block == taken_.end()) return;
  segment_->release(part_at(rank_) + block->first, block->second);
  taken_.erase(block);
}

void Arena::retire(Status why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (retired_.ok()) retired_ = std::move(why);
}

}  // namespace ring
