// Collectives over TCP data connections. n ranks, T bytes.
//
// allreduce      ring: reduce-scatter, then allgather: 2 (n-1) steps, each rank sends 2 T (n-1)/n bytes. One
//                continuous stream (see tcp_stream.h): a segment goes on as soon as it is reduced. Every
//                slice is reduced along one path and then copied, so all ranks hold the same bits.
// reducescatter  the first half of it: n-1 steps, T (n-1)/n bytes.
// allgather      the second half: n-1 steps, every block passes every rank.
// broadcast      up to 64 KiB: the root sends to each rank; beyond: a chain root, root+1, …, pipelined by
//                segments: T bytes per rank.
//
// Averages of floats scale each contribution first, so float16 cannot overflow on the way; averages of
// integers travel as 128-bit sums (exact) and are divided at the end.
#pragma once

#include <vector>

#include "collective/group.h"
#include "collective/schedule.h"
#include "collective/tcp_stream.h"

namespace ring {

class TcpGroup final : public Group {
 public:
  // `data` are this rank's data connections by global rank; `members` the global ranks of the group.
  TcpGroup(const std::vector<Socket>& data, std::vector<int> members, int index, TcpStream& stream)
      : data_(data), members_(std::move(members)), index_(index), stream_(stream) {}

  Status allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) override;
  Status broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) override;
  Status allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                   Deadline deadline) override;
  Status reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                       const Reduction& reduction, Deadline deadline) override;

 private:
  int count() const { return static_cast<int>(members_.size()); }
  Link link(int index) const;
  Link next() const { return link(ring_mod(index_ + 1, count())); }
  Link previous() const { return link(ring_mod(index_ - 1, count())); }
  Status ring_allreduce(const std::byte* in, std::byte* out, size_t elements, DType dtype, ReduceOp op,
                        Deadline deadline);
  // in is reduced in place (it is scratch); slices are bytes.
  Status ring_scatter(std::byte* work, const Slices& slices, DType dtype, ReduceOp op, Deadline deadline);
  Status average_exactly(const Pieces& pieces, const Reduction& reduction, Deadline deadline);

  const std::vector<Socket>& data_;
  const std::vector<int> members_;
  const int index_;
  TcpStream& stream_;
};

}  // namespace ring
