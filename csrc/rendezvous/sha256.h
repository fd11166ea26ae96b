// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/bytes.h"

namespace ring {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  void update(ByteView data);
  Digest finish();

 private:
  void block(const uint8_t* data);
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  size_t pending_size_ = 0;
  uint64_t total_ = 0;
};

Digest sha256(ByteView data);
Digest hmac_sha256(ByteView key, ByteView message);

// Compares in a time that does not depend on where the digests differ.
bool same_digest(const Digest& a, const Digest& b);

}  // namespace ring
