// Memory of one rank that its peers on the host can read and write: the spare addresses of their shared
// segment (see shared_segment.h), `each` bytes for every rank, one rank after the other.
//
// A rank takes blocks of its own part for its tensors, whole pages, filled with zeros; nothing is copied when
// they are reduced, because the peers work on them where they lie. Pages exist only behind blocks. A block
// keeps the mapping alive, also beyond the end of the communicator; it is ordinary memory then.
//
// After a failure nothing is handed out any more: a peer that is late may still write into a block it knows,
// and must not meet another tensor there.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "base/status.h"
#include "transport/shared_segment.h"

namespace ring {

class Arena {
 public:
  // Spare addresses that the arena of `ranks` needs, `each` bytes for every one.
  static size_t addresses(size_t ranks, size_t each) { return each > 0 ? ranks * (each + kStagger) : 0; }

  // `rank` counts among the ranks of this host. The segment has addresses(ranks, each) spare bytes.
  Arena(std::shared_ptr<const SharedSegment> segment, size_t each, int rank);

  // `bytes` of zeros that belong to the caller until give_back(); null data for 0 bytes.
  Result<std::byte*> take(size_t bytes);
  void give_back(std::byte* data);
  // From now on take() fails with `why` (the first reason counts).
  void retire(Status why);

  // Where memory lies in this rank's part; false: not in it.
  bool find(const std::byte* data, size_t bytes, size_t* offset) const {
    const std::byte* own = segment_->data() + part_at(rank_);
    if (data < own || data >= own + each_ || bytes > static_cast<size_t>(own + each_ - data)) return false;
    *offset = static_cast<size_t>(data - own);
    return true;
  }
  // The same place in the part of another rank, in this process; null: there is no such place.
  std::byte* at(int rank, size_t offset, size_t bytes) const {
    if (offset > each_ || bytes > each_ - offset) return nullptr;
    return segment_->data() + part_at(rank) + offset;
  }

 private:
  // The parts do not lie a power of two apart: some processors tell lines in the first-level cache apart by
  // a few bits of their addresses, and reading two ranks' tensors in step took four times as long.
  static constexpr size_t kStagger = 37 * 4096;
  size_t part_at(int rank) const { return segment_->size() + static_cast<size_t>(rank) * (each_ + kStagger); }

  const std::shared_ptr<const SharedSegment> segment_;
  const size_t each_;
  const int rank_;
  std::mutex mutex_;
  // Guarded by mutex_.
  std::map<size_t, size_t> taken_;  // blocks by offset: bytes, in whole pages
  Status retired_;
};

}  // namespace ring
