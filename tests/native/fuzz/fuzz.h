// What every fuzz target offers: libFuzzer's entry point, and the seeds from which the driver starts.
//
// A target feeds bytes from the network to one parser and checks what must hold whatever they are. It aborts
// (REQUIRE, or a sanitizer) when it does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace fuzz {

// Well-formed inputs, as a real conversation gives them.
std::vector<ring::Bytes> seeds();

inline ring::ByteView view(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

// Bytes of a frame of the control plane (see transport/control_plane.h).
inline void put_frame(ring::Writer& writer, uint32_t type, uint32_t sequence, const ring::Bytes& payload) {
  writer.put(type);
  writer.put(sequence);
  writer.put(static_cast<uint32_t>(payload.size()));
  writer.put(uint32_t{0});
  writer.raw(payload.data(), payload.size());
}

}  // namespace fuzz

#define REQUIRE(condition)                                                                \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)
