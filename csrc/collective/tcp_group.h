// Collectives over TCP data connections. n ranks, T bytes.
//
// allreduce      up to ring_bytes, and between 2 ranks: direct exchange (see tcp_direct.h): 2 hops, each rank
//                sends 2 T (n-1)/n bytes. Beyond: ring, reduce-scatter then allgather: 2 (n-1) hops, as many
//                bytes, but one connection each way. One continuous stream (see tcp_stream.h): a segment goes
//                on as soon as it is reduced; every slice is reduced along one path and then copied.
// reducescatter  the first half of the direct exchange: T (n-1)/n bytes.
// allgather      ring: n-1 steps, every block passes every rank.
// alltoall       every pair at once (see tcp_pairs.h): one hop, T (n-1)/n bytes.
// broadcast      up to 64 KiB: the root sends to each rank; beyond: a chain root, root+1, …, pipelined by
//                segments: T bytes per rank.
//
// Only tensors that are never fused and never come along with an exchange (larger than both limits:
// ring_bytes) take the ring, whose order of summation depends on the place in the tensor: so what depends on
// timing never changes a bit of a result. In the ring an average of floats scales each contribution first, so
// float16 cannot overflow on the way; averages of integers, which are exact, always take the direct exchange.
#pragma once

#include <algorithm>
#include <vector>

#include "collective/group.h"
#include "collective/schedule.h"
#include "collective/tcp_direct.h"
#include "collective/tcp_pairs.h"
#include "collective/tcp_stream.h"

namespace ring {

// What every TCP group of a communicator is made with.
struct TcpTools {
  size_t segment_bytes;
  size_t ring_bytes;
  WaitPolicy policy;
  Watch* watch;
};

// Sockets work best with larger segments than shared memory: with fewer, longer calls the two ends change
// turns less often. Between 2 ranks eight times as large; less between many, for each peer has a buffer of
// one.
inline size_t socket_segment(size_t bytes, int ranks) {
  return bytes * static_cast<size_t>(std::clamp(16 / ranks, 1, 8));
}

class TcpGroup final : public Group {
 public:
  // `data` are this rank's data connections by global rank; `members` the global ranks of the group.
  TcpGroup(const std::vector<Socket>& data, std::vector<int> members, int index, TcpTools tools);

  void set_segment(size_t bytes) override {
    bytes = socket_segment(bytes, count());
    stream_.set_segment(bytes);
    direct_.set_segment(bytes);
    pairs_.set_segment(bytes);
  }
  Status allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) override;
  Status broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) override;
  Status allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                   Deadline deadline) override;
  Status reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                       const Reduction& reduction, Deadline deadline) override;
  Status alltoall(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
                  size_t longest, Deadline deadline) override;

 private:
  int count() const { return static_cast<int>(members_.size()); }
  Link link(int index) const;
  std::vector<Link> links() const;
  Link next() const { return link(ring_mod(index_ + 1, count())); }
  Link previous() const { return link(ring_mod(index_ - 1, count())); }
  Status ring_allreduce(const std::byte* in, std::byte* out, size_t elements, DType dtype, ReduceOp op,
                        Deadline deadline);
  Status allreduce_by_ring(const std::byte* in, std::byte* out, size_t bytes, const Reduction& reduction,
                           Deadline deadline);

  const std::vector<Socket>& data_;
  const std::vector<int> members_;
  const int index_;
  const size_t ring_bytes_;
  TcpStream stream_;
  TcpDirect direct_;
  TcpPairs pairs_;
  std::vector<std::byte> packed_;  // tensors of a fused operation, one after the other
};

}  // namespace ring
