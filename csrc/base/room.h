// Memory for results, whose size only the ring learns. Large room comes from the system in huge pages where
// it grants them: the first touch of ordinary pages costs several times as much as what is then done with
// them.
#pragma once

#include <cstddef>
#include <memory>

namespace ring {

struct FreeRoom {
  size_t mapped = 0;  // bytes of a mapping; 0: from new
  void operator()(std::byte* data) const;
};

using Room = std::unique_ptr<std::byte[], FreeRoom>;

// Never null for being empty; null when there is no memory. The values are undefined.
Room make_room(size_t bytes);

}  // namespace ring
