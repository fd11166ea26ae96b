// Where a rank's tensors lie, told to its peers on the host, when they lie in memory that the peers can reach
// (see transport/arena.h). Then nobody copies: a peer reads inputs, and writes results, where they are.
//
// One notice per rank, in the segment, for one operation: the number of the operation's first block, and for
// every tensor where its input and its output begin. It is written before the operation's first counter is
// published and not touched before every peer has finished the operation. A notice of another operation means
// that the tensors are elsewhere.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "collective/pieces.h"
#include "transport/arena.h"

namespace ring {

struct PlacedPiece {
  size_t in;  // offsets into the rank's part of the arena
  size_t out;
};

struct Notice {
  static constexpr size_t kPieces = 510;  // tensors; with more of them everything is copied

  std::atomic<uint64_t> operation;  // its first block, plus one; 0: none yet
  uint32_t inputs;                  // 1: every input is in the arena
  uint32_t outputs;                 // 1: every output is
  PlacedPiece pieces[kPieces];
};

// Writes the notice of an operation whose first block is `first`. Nothing in the arena: whether that is
// written down as well is for `always`.
inline void announce(const Arena& arena, const Pieces& pieces, uint64_t first, bool always, Notice* notice,
                     bool* inputs, bool* outputs) {
  *inputs = *outputs = pieces.count() <= Notice::kPieces;
  for (size_t i = 0; i < pieces.count() && (*inputs || *outputs); ++i) {
    const Piece& piece = pieces[i];
    PlacedPiece& placed = notice->pieces[i];
    if (piece.bytes == 0) continue;
    *inputs = *inputs && arena.find(piece.in, piece.bytes, &placed.in);
    *outputs = *outputs && piece.out != nullptr && arena.find(piece.out, piece.bytes, &placed.out);
  }
  if (!*inputs && !*outputs && !always) return;
  notice->inputs = *inputs;
  notice->outputs = *outputs;
  notice->operation.store(first + 1, std::memory_order_seq_cst);
}

}  // namespace ring
