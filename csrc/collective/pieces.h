// Several tensors seen as one long array: what a fused operation works on. Input and output of a piece may be
// the same memory. Offsets are bytes from the start of the first piece.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

namespace ring {

struct Piece {
  const std::byte* in;
  std::byte* out;
  size_t bytes;
};

class Pieces {
 public:
  Pieces() = default;
  explicit Pieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)) {
    starts_.reserve(pieces_.size() + 1);
    size_t at = 0;
    for (const Piece& piece : pieces_) {
      starts_.push_back(at);
      at += piece.bytes;
    }
    starts_.push_back(at);
  }

  size_t bytes() const { return starts_.empty() ? 0 : starts_.back(); }
  size_t count() const { return pieces_.size(); }
  const Piece& operator[](size_t i) const { return pieces_[i]; }

  // Calls visit(Piece part, size_t offset) for the consecutive parts that make up [from, from + bytes);
  // `offset` counts from `from`.
  template <class Visit>
  void each(size_t from, size_t bytes, Visit&& visit) const {
    walk(from, bytes, [&](size_t i, size_t skip, size_t take, size_t offset) {
      visit(Piece{pieces_[i].in + skip, pieces_[i].out + skip, take}, offset);
    });
  }

  // The same by numbers: visit(which piece, bytes skipped in it, bytes, size_t offset).
  template <class Visit>
  void walk(size_t from, size_t bytes, Visit&& visit) const {
    if (bytes == 0) return;
    auto next = std::upper_bound(starts_.begin(), starts_.end(), from);
    size_t i = static_cast<size_t>(next - starts_.begin()) - 1;
    size_t done = 0;
    while (done < bytes) {
      const size_t skip = from + done - starts_[i];
      const size_t take = std::min(bytes - done, pieces_[i].bytes - skip);
      if (take > 0) visit(i, skip, take, done);
      done += take;
      ++i;
    }
  }

  // Inputs of [from, from + bytes) into contiguous memory, and contiguous memory into the outputs.
  void pack(size_t from, size_t bytes, std::byte* to) const {
    each(from, bytes, [to](Piece part, size_t offset) { std::memcpy(to + offset, part.in, part.bytes); });
  }
  void unpack(size_t from, size_t bytes, const std::byte* source) const {
    each(from, bytes,
         [source](Piece part, size_t offset) { std::memcpy(part.out, source + offset, part.bytes); });
  }

 private:
  std::vector<Piece> pieces_;
  std::vector<size_t> starts_;
};

}  // namespace ring
