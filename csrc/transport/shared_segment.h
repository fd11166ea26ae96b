// A piece of shared memory, mapped into this process. The creator gives it a random name; everybody else
// opens it by that name; unlink() removes the name as soon as all have it, so that nothing outlives the
// processes that map it, however they end.
//
//   [0, size)               reserved at once: a full file system is an error here and not a SIGBUS later
//   [size, size + spare)    addresses only; reserve() puts pages behind a part of it, release() takes them
//                           away again. Where so many addresses cannot be had, spare() is 0.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace ring {

class SharedSegment {
 public:
  SharedSegment() = default;
  SharedSegment(SharedSegment&& other) noexcept;
  SharedSegment& operator=(SharedSegment&& other) noexcept;
  ~SharedSegment();

  static Result<SharedSegment> create(size_t bytes, size_t spare = 0);
  static Result<SharedSegment> open(const std::string& name, size_t bytes, size_t spare = 0);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  size_t spare() const { return spare_; }
  const std::string& name() const { return name_; }
  // Removes the name if this object created it and has not done so yet.
  void unlink();

  // Pages of zeros for a part of the spare addresses; whole pages, `at` counts from the segment's start.
  Status reserve(size_t at, size_t bytes) const;
  void release(size_t at, size_t bytes) const;

 private:
  void reset();
  // Maps `fd`, with the spare addresses if possible, and keeps it if they were; else closes it.
  Status map(int fd, size_t bytes, size_t spare);

  std::byte* data_ = nullptr;
  size_t size_ = 0;
  size_t spare_ = 0;
  int fd_ = -1;  // open while there are spare addresses
  std::string name_;
  bool linked_ = false;  // this object created the name, and it still exists
};

}  // namespace ring
