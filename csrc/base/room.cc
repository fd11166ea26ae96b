#include "base/room.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>

namespace ring {
namespace {

constexpr size_t kHuge = size_t{2} << 20;
constexpr size_t kLarge = 2 * kHuge;  // from here on huge pages pay

// Whole huge pages, at the address of one: what was mapped before and after is given back.
std::byte* map_aligned(size_t bytes) {
  void* mapped = ::mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* begin = static_cast<std::byte*>(mapped);
  const size_t skip = (kHuge - reinterpret_cast<uintptr_t>(begin) % kHuge) % kHuge;
  if (skip > 0) ::munmap(begin, skip);
  if (skip < kHuge) ::munmap(begin + skip + bytes, kHuge - skip);
  ::madvise(begin + skip, bytes, MADV_HUGEPAGE);
  return begin + skip;
}

}  // namespace

void FreeRoom::operator()(std::byte* data) const {
  if (mapped > 0) {
    ::munmap(data, mapped);
  } else {
    delete[] data;
  }
}

Room make_room(size_t bytes) {
  if (bytes < kLarge) return Room(new (std::nothrow) std::byte[std::max<size_t>(bytes, 1)]);
  const size_t whole = (bytes + kHuge - 1) / kHuge * kHuge;
  if (whole < bytes) return {};
  return Room(map_aligned(whole), FreeRoom{whole});
}

}  // namespace ring
