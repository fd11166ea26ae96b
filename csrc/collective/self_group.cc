#include "collective/self_group.h"

#include <cstring>

#include "base/kernels/kernels.h"

namespace ring {
namespace {

void reduce_alone(const std::byte* in, std::byte* out, size_t bytes, const Reduction& reduction) {
  kernels().fold(reduction.dtype, reduction.op, out, &in, 1, bytes / item_size(reduction.dtype),
                 reduction.prescale, reduction.postscale, reduction.divisor);
}

}  // namespace

Status SelfGroup::allreduce(const Pieces& pieces, const Reduction& reduction, Deadline) {
  for (size_t i = 0; i < pieces.count(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.bytes > 0) reduce_alone(piece.in, piece.out, piece.bytes, reduction);
  }
  return {};
}

Status SelfGroup::broadcast(std::byte*, size_t, int, Deadline) { return {}; }

Status SelfGroup::allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out, Deadline) {
  if (bytes[0] > 0 && in != out) std::memcpy(out, in, bytes[0]);
  return {};
}

Status SelfGroup::reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                                const Reduction& reduction, Deadline) {
  if (counts[0] > 0) reduce_alone(in, out, counts[0] * item_size(reduction.dtype), reduction);
  return {};
}

Status SelfGroup::alltoall(const std::byte* in, const Slices& sends, std::byte* out, const Slices&, size_t,
                           Deadline) {
  if (sends.total() > 0) std::memcpy(out, in, sends.total());
  return {};
}

}  // namespace ring
