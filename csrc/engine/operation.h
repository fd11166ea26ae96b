// One collective, from submission to its end. Shared by the caller's handle and the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/completion.h"
#include "engine/descriptor.h"

namespace ring {

struct Tensor {
  const std::byte* in = nullptr;
  std::byte* out = nullptr;
  std::vector<int64_t> shape;
  size_t bytes = 0;
};

// Where the rows of an allgather or alltoall may go, if they are as many.
struct Output {
  std::byte* data = nullptr;
  size_t bytes = 0;
};

struct Request {
  Kind kind = Kind::barrier;
  std::string name;
  DType dtype = DType::uint8;
  ReduceOp op = ReduceOp::sum;
  int root = -1;
  double prescale = 1;
  double postscale = 1;
  std::vector<Tensor> tensors;
  std::vector<int64_t>
      splits;  // rows for each rank: of an alltoall, empty for equal parts; of a scatter's root
  std::optional<Output> output;
  double timeout = -1;  // seconds from submission; negative: the communicator's collective_timeout
};

class Operation final : public Completion {
 public:
  Operation(Request request, Deadline deadline, int64_t submitted_us = now_us())
      : request(std::move(request)), deadline(deadline), submitted_us(submitted_us) {}

  const Request request;
  const Deadline deadline;
  const int64_t submitted_us;
  int row = 0;  // in the timeline, once agreed; the driver's
  // Set by the engine before the operation becomes pending, constant afterwards.
  Descriptor descriptor;
  Bytes encoded;
  uint64_t hash = 0;
  std::string key;
  size_t bytes = 0;        // of all inputs
  uint64_t joined_in = 0;  // a join: the round in which this rank showed it first
  // What tensors point to, when it is nobody else's (see joined.h).
  std::vector<std::vector<std::byte>> memory;

  std::string title() const override { return descriptor.title(); }
};

using OperationPtr = std::shared_ptr<Operation>;

}  // namespace ring
