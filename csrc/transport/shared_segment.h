// A piece of shared memory, mapped into this process. The creator gives it a random name; everybody else
// opens it by that name; unlink() removes the name as soon as all have it, so that nothing outlives the
// processes that map it, however they end.
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

  // Creates, reserves every page (so a full file system is an error here and not a SIGBUS later) and maps.
  static Result<SharedSegment> create(size_t bytes);
  static Result<SharedSegment> open(const std::string& name, size_t bytes);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  const std::string& name() const { return name_; }
  // Removes the name if this object created it and has not done so yet.
  void unlink();

 private:
  void reset();
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  std::string name_;
  bool linked_ = false;  // this object created the name, and it still exists
};

}  // namespace ring
