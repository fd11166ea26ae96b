#include "transport/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "transport/socket.h"

namespace ring {
namespace {

std::string random_name() {
  uint64_t words[2] = {};
  if (::getentropy(words, sizeof words) != 0) return {};
  char text[64];
  std::snprintf(text, sizeof text, "/spark-ring-%016llx%016llx", static_cast<unsigned long long>(words[0]),
                static_cast<unsigned long long>(words[1]));
  return text;
}

Status failure(const char* what, int error, size_t bytes) {
  std::string message = std::string("shared memory: ") + what + " failed: " + error_text(error);
  if (bytes > 0) message += ", of a segment of " + std::to_string(bytes) + " bytes";
  if (error == ENOSPC)
    message += "; /dev/shm has no room for it: enlarge it (docker: --shm-size) or use transport='tcp'";
  if (error == EFBIG) message += "; raise the limit of file sizes (ulimit -f) or use transport='tcp'";
  return Status(Code::rendezvous, std::move(message));
}

}  // namespace

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      name_(std::move(other.name_)),
      linked_(std::exchange(other.linked_, false)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    name_ = std::move(other.name_);
    linked_ = std::exchange(other.linked_, false);
  }
  return *this;
}

SharedSegment::~SharedSegment() { reset(); }

void SharedSegment::reset() {
  unlink();
  if (data_ != nullptr) ::munmap(data_, size_);
  data_ = nullptr;
}

void SharedSegment::unlink() {
  if (linked_) ::shm_unlink(name_.c_str());
  linked_ = false;
}

Result<SharedSegment> SharedSegment::create(size_t bytes) {
  SharedSegment segment;
  segment.name_ = random_name();
  if (segment.name_.empty()) return failure("getentropy", errno, bytes);
  const int fd = ::shm_open(segment.name_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return failure("shm_open", errno, bytes);
  segment.linked_ = true;
  const int reserve = ::posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (reserve != 0) {
    ::close(fd);
    return failure("reserving pages", reserve, bytes);
  }
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (mapped == MAP_FAILED) return failure("mmap", error, bytes);
  segment.data_ = static_cast<std::byte*>(mapped);
  segment.size_ = bytes;
  return segment;
}

Result<SharedSegment> SharedSegment::open(const std::string& name, size_t bytes) {
  SharedSegment segment;
  segment.name_ = name;
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return failure("shm_open", errno, bytes);
  struct stat facts{};
  if (::fstat(fd, &facts) != 0 || static_cast<size_t>(facts.st_size) != bytes) {
    ::close(fd);
    return Status(Code::rendezvous, "shared memory: the segment has another size than announced");
  }
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (mapped == MAP_FAILED) return failure("mmap", error, bytes);
  segment.data_ = static_cast<std::byte*>(mapped);
  segment.size_ = bytes;
  return segment;
}

}  // namespace ring
