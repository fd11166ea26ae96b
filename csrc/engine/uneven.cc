#include "engine/uneven.h"

#include <algorithm>
#include <new>
#include <numeric>

namespace ring {
namespace {

constexpr int64_t kMostDimensions = 64;

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
    const size_t numbers = blobs[r].size() / sizeof(int64_t);
    if (blobs[r].size() % sizeof(int64_t) != 0 || (count >= 0 && numbers != static_cast<size_t>(count))) {
      return out_of_step(static_cast<int>(r),
                         "it told " + std::to_string(blobs[r].size()) + " bytes of sizes");
    }
    Numbers one(numbers);
    if (numbers > 0) std::memcpy(one.data(), blobs[r].data(), blobs[r].size());
    if (std::any_of(one.begin(), one.end(), [](int64_t value) { return value < 0; })) {
      return out_of_step(static_cast<int>(r), "it told a negative size");
    }
    all->push_back(std::move(one));
  }
  return {};
}

Status Uneven::sizes_of(const Numbers& rows, size_t row_bytes, std::vector<size_t>* sizes) const {
  sizes->clear();
  size_t total = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(static_cast<size_t>(rows[r]), row_bytes, &bytes) ||
        __builtin_add_overflow(total, bytes, &total)) {
      return out_of_step(static_cast<int>(r), "it told an impossible size");
    }
    sizes->push_back(bytes);
  }
  return {};
}

Status Uneven::make_room(const std::vector<size_t>& sizes, const Operation& operation,
                         GatherResult* result) const {
  result->bytes = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
  result->data.reset(new (std::nothrow) std::byte[std::max<size_t>(result->bytes, 1)]);
  if (result->data != nullptr) return {};
  return Status(Code::aborted,
                "rank " + std::to_string(rank()) + " has no memory for the " + std::to_string(result->bytes) +
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
  RING_TRY(make_room(sizes, operation, &result));
  if (result.bytes == 0) return {};
  return fabric_.group().allgather(tensor.in, sizes, result.data.get(), operation.deadline);
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
  RING_TRY(make_room(sizes, operation, &result));
  if (longest == 0) return {};
  return fabric_.group().alltoall(tensor.in, slices_of(sends), result.data.get(), slices_of(sizes), longest,
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
  RING_TRY(make_room(receives, operation, &result));
  if (longest[0] == 0) return {};
  return fabric_.group().alltoall(tensor.in, slices_of(sends), result.data.get(), slices_of(receives),
                                  longest[0], operation.deadline);
}

// The root tells: dtype, number of dimensions, all of them but the first, rows of each rank.
Status Uneven::scatter(Operation& operation) {
  const Request& request = operation.request;
  const size_t root = static_cast<size_t>(request.root), n = static_cast<size_t>(size());
  Numbers mine;
  if (request.root == rank()) {
    const std::vector<int64_t>& shape = request.tensors[0].shape;
    mine = {static_cast<int64_t>(request.dtype), static_cast<int64_t>(shape.size())};
    mine.insert(mine.end(), shape.begin() + 1, shape.end());
    mine.insert(mine.end(), request.splits.begin(), request.splits.end());
  }
  std::vector<Numbers> all;
  RING_TRY(share(operation, mine, -1, &all));
  const Numbers& told = all[root];
  const int64_t dimensions = told.size() < 2 ? 0 : told[1];
  if (dimensions < 1 || dimensions > kMostDimensions || told[0] > static_cast<int64_t>(DType::boolean) ||
      told.size() != 1 + static_cast<size_t>(dimensions) + n) {
    return out_of_step(request.root, "what it told of the tensor that it scatters makes no sense");
  }
  GatherResult& result = operation.gathered;
  result.dtype = static_cast<DType>(told[0]);
  result.shape.assign(told.begin() + 2, told.begin() + 1 + dimensions);
  size_t row_bytes = item_size(result.dtype);
  for (const int64_t extent : result.shape) {
    if (__builtin_mul_overflow(row_bytes, static_cast<size_t>(extent), &row_bytes))
      return out_of_step(request.root, "it told an impossible shape");
  }
  const Numbers rows(told.begin() + 1 + dimensions, told.end());
  std::vector<size_t> sizes;
  RING_TRY(sizes_of(rows, row_bytes, &sizes));
  result.shape.insert(result.shape.begin(), rows[static_cast<size_t>(rank())]);
  const size_t longest = *std::max_element(sizes.begin(), sizes.end());
  std::vector<size_t> receives(n, 0);
  receives[root] = sizes[static_cast<size_t>(rank())];
  if (request.root != rank()) std::fill(sizes.begin(), sizes.end(), 0);
  RING_TRY(make_room(receives, operation, &result));
  if (longest == 0) return {};
  const std::byte* in = request.root == rank() ? request.tensors[0].in : nullptr;
  return fabric_.group().alltoall(in, slices_of(sizes), result.data.get(), slices_of(receives), longest,
                                  operation.deadline);
}

}  // namespace ring
