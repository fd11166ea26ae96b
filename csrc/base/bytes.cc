#include "base/bytes.h"

namespace ring {

void Writer::raw(const void* data, size_t size) {
  const auto* first = static_cast<const std::byte*>(data);
  bytes_.insert(bytes_.end(), first, first + size);
}

}  // namespace ring
