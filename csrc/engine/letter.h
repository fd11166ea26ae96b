// What travels between two couriers: a header of fixed size, then what it announces.
//
//   mark u32 | dtype u16 | dimensions u16 | tag i64 | bytes u64 | id u64 | extents i64 × dimensions | payload
//
//   eager      a short message, payload and all
//   offer      a long one: everything but the payload, which waits for the receiver         id names it
//   grant      receiver to sender: the memory for `id` is there
//   body       the payload of `id`
//   withdraw   the sender of `id` does not wait any longer
//   credit     receiver to sender: `bytes` worth of eager messages have been received
//   goodbye    the sender closes in good order
//
// A header is checked before anything it announces is read or made room for; one that cannot be ends the
// connection, never this process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/dtype.h"

namespace ring {

enum class Mark : uint32_t { eager = 1, offer, grant, body, withdraw, credit, goodbye };

// How an array looks, apart from its values.
struct Looks {
  DType dtype = DType::uint8;
  std::vector<int64_t> shape;
  size_t bytes = 0;

  bool operator==(const Looks&) const = default;
  std::string text() const;  // "float32 [3, 4]"
};

struct Letter {
  static constexpr size_t kHeader = 32;
  static constexpr size_t kMaxDimensions = 64;
  static constexpr size_t kEager = 64 * 1024;  // longest payload that is sent without asking

  Mark mark = Mark::goodbye;
  int64_t tag = 0;
  uint64_t id = 0;
  Looks looks;  // of credit: only bytes counts

  // Everything but the payload.
  Bytes head() const;
  // How many bytes head() has, by the header alone; empty if the header cannot be.
  static std::optional<size_t> head_bytes(ByteView header);
  // Reads what head() wrote; empty if it cannot be.
  static std::optional<Letter> read(ByteView head);
};

}  // namespace ring
