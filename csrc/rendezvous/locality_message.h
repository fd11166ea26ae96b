// What ranks tell each other while they agree on locality (see locality.h): one message for each exchange.
// Reading checks the form only; something that cannot be read is empty.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "base/bytes.h"

namespace ring {

// Bytes of the challenge, the first of a segment before anything else uses them.
constexpr size_t kChallengeBytes = 32;
using Challenge = std::array<std::byte, kChallengeBytes>;

// Exchange 1.
struct LocalityIntroduction {
  std::string settings;
  std::string host_id;

  Bytes encode() const;
  static std::optional<LocalityIntroduction> read(ByteView bytes);
};

// Exchange 2: the segment of the rank that made one; no name where there is none, and perhaps why.
struct LocalityOffer {
  std::string name;
  uint64_t bytes = 0;
  std::string problem;

  Bytes encode() const;
  static std::optional<LocalityOffer> read(ByteView bytes);
};

// Exchange 3: whether the segment could be read, what was in it, or why not.
struct LocalityProof {
  bool seen = false;
  Challenge challenge{};
  std::string problem;

  Bytes encode() const;
  static std::optional<LocalityProof> read(ByteView bytes);
};

}  // namespace ring
