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

SharedSegment::SharedSegment(SharedSegment&& other) noexcept { *this = std::move(other); }

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    spare_ = std::exchange(other.spare_, 0);
    fd_ = std::exchange(other.fd_, -1);
    name_ = std::move(other.name_);
    linked_ = std::exchange(other.linked_, false);
  }
  return *this;
}

SharedSegment::~SharedSegment() { reset(); }

void SharedSegment::reset() {
  unlink();
  if (data_ != nullptr) ::munmap(data_, size_ + spare_);
  if (fd_ >= 0) ::close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

void SharedSegment::unlink() {
  if (linked_) ::shm_unlink(name_.c_str());
  linked_ = false;
}

Status SharedSegment::map(int fd, size_t bytes, size_t spare) {
  for (const size_t more : {spare, size_t{0}}) {
    const int flags = MAP_SHARED | (more > 0 ? MAP_NORESERVE : 0);
    void* mapped = ::mmap(nullptr, bytes + more, PROT_READ | PROT_WRITE, flags, fd, 0);
    const int error = errno;
    if (mapped == MAP_FAILED && more > 0) continue;  // fewer addresses, then
    if (more > 0) {
      fd_ = fd;
    } else {
      ::close(fd);
    }
    if (mapped == MAP_FAILED) return failure("mmap", error, bytes);
    data_ = static_cast<std::byte*>(mapped);
    size_ = bytes;
    spare_ = more;
    if (more > 0) ::madvise(data_ + bytes, more, MADV_DONTDUMP);
    break;
  }
  return {};
}

Result<SharedSegment> SharedSegment::create(size_t bytes, size_t spare) {
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
  if (spare > 0 && ::ftruncate(fd, static_cast<off_t>(bytes + spare)) != 0) spare = 0;
  if (Status status = segment.map(fd, bytes, spare); !status.ok()) return status;
  return segment;
}

Result<SharedSegment> SharedSegment::open(const std::string& name, size_t bytes, size_t spare) {
  SharedSegment segment;
  segment.name_ = name;
  const int fd = ::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0600);
  if (fd < 0) return failure("shm_open", errno, bytes);
  struct stat facts{};
  const bool known = ::fstat(fd, &facts) == 0;
  const size_t found = known ? static_cast<size_t>(facts.st_size) : 0;
  if (found != bytes && found != bytes + spare) {
    ::close(fd);
    return Status(Code::rendezvous, "shared memory: the segment has another size than announced");
  }
  if (Status status = segment.map(fd, bytes, found - bytes); !status.ok()) return status;
  return segment;
}

Status SharedSegment::reserve(size_t at, size_t bytes) const {
  int error = 0;
  do {
    error = ::posix_fallocate(fd_, static_cast<off_t>(at), static_cast<off_t>(bytes));
  } while (error == EINTR);
  if (error != 0) return failure("reserving pages", error, bytes);
#if defined(MADV_POPULATE_WRITE)
  ::madvise(data_ + at, bytes, MADV_POPULATE_WRITE);  // faster than fault by fault; older kernels refuse
#endif
  return {};
}

void SharedSegment::release(size_t at, size_t bytes) const {
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
              static_cast<off_t>(bytes));
}

}  // namespace ring
