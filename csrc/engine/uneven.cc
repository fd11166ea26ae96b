#include "engine/uneven.h"

#include <algorithm>
#include <new>
#include <numeric>

namespace ring {
namespace {

// Bytes of one row: the product of all dimensions but the first.
size_t row_bytes_of(const Tensor& tensor, DType dtype) {
  size_t bytes = item_size(dtype);
  for (size_t i = 1; i < tensor.shape.size(); ++i) bytes *= static_cast<size_t>(tensor.shape[i]);
  return bytes;
}

int64_t rows_of(const Tensor& tensor) { return tensor.shape.empty() ? 1 : tensor.shape[0]; }

Status out_of_step(int rank, const std::string& what) {
  return Status(Code::peer_lost, "rank " + std::to_string(rank) + " is out of step: " + what, rank);
}

}  // namespace

Status Uneven::run(Operation& operation) {
  switch (operation.request.kind) {
    case Kind::allgather:
      return allgather(operation);
    case Kind::gather:
      return gather(operation);
    case Kind::alltoall:
      return alltoall(operation);
    default:
      return scatter(operation);
  }
}

Status Uneven::share(const Operation& operation, const Numbers& mine, int64_t count,
                     std::vector<Numbers>* all) {
  std::vector<Bytes> blobs;
  RING_TRY(fabric_.control().exchange(std::as_bytes(std::span(mine)), operation.deadline, &blobs, &lookout_));
  all->clear();
  for (size_t r = 0; r < blobs.size(); ++r) {
    auto one = read_numbers(blobs[r], count);
    if (!one) {
      return out_of_step(static_cast<int>(r), "the " + std::to_string(blobs[r].size()) +
                                                  " bytes of sizes that it told make no sense");
    }
    all->push_back(std::move(*one));
  }
  return {};
}

Status Uneven::sizes_of(const Numbers& rows, size_t row_bytes, std::vector<size_t>* sizes) const {
  auto counted = bytes_of_rows(rows, row_bytes);
  if (!counted) {
    const auto most = std::max_element(rows.begin(), rows.end());
    return out_of_step(static_cast<int>(most - rows.begin()), "it told an impossible size");
  }
  *sizes = std::move(*counted);
  return {};
}

Status Uneven::find_room(const std::vector<size_t>& sizes, Operation& operation, std::byte** room) const {
  GatherResult& result = operation.gathered;
  result.bytes = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  const std::optional<Output>& output = operation.request.output;
  if (output && output->bytes == result.bytes) {
    *room = output->data;
    return {};
  }
  result.data = make_room(result.bytes);
  *room = result.data.get();
  if (result.data != nullptr) return {};
  return Status(Code::aborted,
                "rank " + std::to_string(rank()) + " has no memory for the " + std::to_string(result.bytes) +
                    " bytes that " + operation.title() + " gives it",
                rank());
}

Status Uneven::allgather(Operation& operation) {
  const Tensor& tensor = operation.request.tensors[0];
  std::vector<Numbers> all;
  RING_TRY(share(operation, {rows_of(tensor)}, 1, &all));
  GatherResult& result = operation.gathered;
  for (const Numbers& one : all) result.rows.push_back(one[0]);
  std::vector<size_t> sizes;
  RING_TRY(sizes_of(result.rows, row_bytes_of(tensor, operation.request.dtype), &sizes));
  std::byte* room = nullptr;
  RING_TRY(find_room(sizes, operation, &room));
  if (result.bytes == 0) return {};
  return fabric_.group().allgather(tensor.in, sizes, room, operation.deadline);
}

Status Uneven::gather(Operation& operation) {
  const Tensor& tensor = operation.request.tensors[0];
  const int root = operation.request.root;
  std::vector<Numbers> all;
  RING_TRY(share(operation, {rows_of(tensor)}, 1, &all));
  GatherResult& result = operation.gathered;
  for (const Numbers& one : all) result.rows.push_back(one[0]);
  std::vector<size_t> sizes;
  RING_TRY(sizes_of(result.rows, row_bytes_of(tensor, operation.request.dtype), &sizes));
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<size_t> sends(sizes.size(), 0);
  sends[static_cast<size_t>(root)] = sizes[static_cast<size_t>(rank())];
  if (rank() != root) std::fill(sizes.begin(), sizes.end(), 0);
  std::byte* room = nullptr;
  RING_TRY(find_room(sizes, operation, &room));
  if (longest == 0) return {};
  return fabric_.group().alltoall(tensor.in, slices_of(sends), room, slices_of(sizes), longest,
                                  operation.deadline);
}

Status Uneven::alltoall(Operation& operation) {
  const Tensor& tensor = operation.request.tensors[0];
  const size_t n = static_cast<size_t>(size()), self = static_cast<size_t>(rank());
  const size_t row_bytes = row_bytes_of(tensor, operation.request.dtype);
  Numbers mine = operation.request.splits;
  std::vector<Numbers> all;
  if (operation.descriptor.splits) {
    RING_TRY(share(operation, mine, static_cast<int64_t>(n), &all));
  } else {  // shapes were compared: all ranks send equal parts
    mine.assign(n, rows_of(tensor) / static_cast<int64_t>(n));
    all.assign(n, mine);
  }
  GatherResult& result = operation.gathered;
  int64_t most = 0;
  for (const Numbers& one : all) {
    result.rows.push_back(one[self]);
    most = std::max(most, *std::max_element(one.begin(), one.end()));
  }
  std::vector<size_t> sends, receives, longest;
  RING_TRY(sizes_of(mine, row_bytes, &sends));
  RING_TRY(sizes_of(result.rows, row_bytes, &receives));
  RING_TRY(sizes_of({most}, row_bytes, &longest));
  std::byte* room = nullptr;
  RING_TRY(find_room(receives, operation, &room));
  if (longest[0] == 0) return {};
  return fabric_.group().alltoall(tensor.in, slices_of(sends), room, slices_of(receives), longest[0],
                                  operation.deadline);
}

Status Uneven::scatter(Operation& operation) {
  const Request& request = operation.request;
  const size_t root = static_cast<size_t>(request.root), n = static_cast<size_t>(size());
  Numbers mine;
  if (request.root == rank())
    mine = ScatterPlan::tell(request.dtype, request.tensors[0].shape, request.splits);
  std::vector<Numbers> all;
  RING_TRY(share(operation, mine, -1, &all));
  const auto plan = ScatterPlan::read(all[root], size());
  if (!plan) {
    return out_of_step(request.root, "what it told of the tensor that it scatters makes no sense");
  }
  std::vector<size_t> sizes;
  RING_TRY(sizes_of(plan->rows, plan->row_bytes, &sizes));
  GatherResult& result = operation.gathered;
  result.dtype = plan->dtype;
  result.shape = plan->row_shape;
  result.shape.insert(result.shape.begin(), plan->rows[static_cast<size_t>(rank())]);
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<size_t> receives(n, 0);
  receives[root] = sizes[static_cast<size_t>(rank())];
  if (request.root != rank()) std::fill(sizes.begin(), sizes.end(), 0);
  std::byte* room = nullptr;
  RING_TRY(find_room(receives, operation, &room));
  if (longest == 0) return {};
  const std::byte* in = request.root == rank() ? request.tensors[0].in : nullptr;
  return fabric_.group().alltoall(in, slices_of(sizes), room, slices_of(receives), longest,
                                  operation.deadline);
}

}  // namespace ring
