// What every way of moving data between ranks can do. One implementation per transport; the engine above has
// already made sure that all ranks of the group call the same operation with agreeing arguments.
//
// A Status that is not ok means that the group is out of step and can never be used again.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/kernels/kernels.h"
#include "base/status.h"
#include "collective/pieces.h"
#include "collective/schedule.h"

namespace ring {

struct Reduction {
  DType dtype = DType::float32;
  ReduceOp op = ReduceOp::sum;
  double prescale = 1;
  double postscale = 1;
  int divisor = 1;  // what average divides by: the size of the whole communicator

  // Floating sums and averages may scale any partial sum; the others only the final value.
  bool linear() const { return op == ReduceOp::sum || op == ReduceOp::average; }
  bool integer_average() const { return op == ReduceOp::average && !is_float(dtype); }
  // The factor to apply to each contribution when nothing is applied to the sum (float16 cannot overflow
  // then).
  double input_factor() const {
    if (op == ReduceOp::average) return prescale * postscale / divisor;
    return op == ReduceOp::sum ? prescale * postscale : prescale;
  }
  double output_factor() const { return linear() ? 1.0 : postscale; }
};

class Group {
 public:
  virtual ~Group() = default;
  // By which algorithm the last operation went; for statistics.
  const char* algorithm() const { return algorithm_; }
  // From now on work in segments of that size, which is at most the one the group was made with. All ranks
  // change it before the same operation.
  virtual void set_segment(size_t bytes) { (void)bytes; }
  // What allreduce would compute for one tensor of `bytes`, given everybody's input: the same bits.
  virtual void fold_all(const std::byte* const* inputs, int ranks, std::byte* out, size_t bytes,
                        const Reduction& reduction) const {
    kernels().fold(reduction.dtype, reduction.op, out, inputs, ranks, bytes / item_size(reduction.dtype),
                   reduction.prescale, reduction.postscale, reduction.divisor);
  }
  // Sizes and offsets are bytes unless said otherwise; `root` is a rank of the group.
  virtual Status allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) = 0;
  virtual Status broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) = 0;
  // Everybody's input, in rank order, to everybody. bytes[r] is the size of rank r's input.
  virtual Status allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                           Deadline deadline) = 0;
  // counts[r] elements of the reduced input go to rank r.
  virtual Status reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                               const Reduction& reduction, Deadline deadline) = 0;
  // Every rank's slice r of `in` to rank r; `out` gets the slices meant for this rank, in rank order.
  // `longest` is the size of the largest slice that goes from any rank to any other.
  virtual Status alltoall(const std::byte* in, const Slices& sends, std::byte* out, const Slices& receives,
                          size_t longest, Deadline deadline) = 0;

 protected:
  const char* algorithm_ = "copy";  // a literal
};

}  // namespace ring
