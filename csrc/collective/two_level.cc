#include "collective/two_level.h"

#include <algorithm>
#include <numeric>

#include "base/kernels/kernels.h"

namespace ring {

TwoLevelGroup::TwoLevelGroup(std::vector<std::vector<int>> hosts, int rank, std::unique_ptr<ShmGroup> local,
                             const std::vector<Socket>& data, TcpStream& stream)
    : hosts_(std::move(hosts)), rank_(rank), local_(std::move(local)), data_(data), stream_(stream) {
  size_t fewest = data.size();
  for (size_t h = 0; h < hosts_.size(); ++h) {
    fewest = std::min(fewest, hosts_[h].size());
    const auto place = std::find(hosts_[h].begin(), hosts_[h].end(), rank);
    if (place == hosts_[h].end()) continue;
    host_ = static_cast<int>(h);
    local_rank_ = static_cast<int>(place - hosts_[h].begin());
  }
  owners_ = static_cast<int>(fewest);
  std::vector<int> everybody(data.size());
  std::iota(everybody.begin(), everybody.end(), 0);
  flat_ = std::make_unique<TcpGroup>(data, everybody, rank, stream);
  if (local_rank_ < owners_) {
    std::vector<int> same;
    for (const auto& host : hosts_) same.push_back(host[static_cast<size_t>(local_rank_)]);
    cross_ = std::make_unique<TcpGroup>(data, same, host_, stream);
  }
}

Status TwoLevelGroup::reduce_inside(const Pieces& pieces, const Slices& slices, const Reduction& reduction,
                                    std::byte* mine, Deadline deadline) {
  if (local_ != nullptr) return local_->reduce_slices(pieces, slices, reduction, mine, deadline);
  pieces.each(0, pieces.bytes(), [&](Piece part, size_t offset) {
    kernels().fold(reduction.dtype, reduction.op, mine + offset, &part.in, 1,
                   part.bytes / item_size(reduction.dtype), reduction.prescale, reduction.postscale,
                   reduction.divisor);
  });
  return {};
}

Status TwoLevelGroup::allreduce(const Pieces& pieces, const Reduction& reduction, Deadline deadline) {
  if (pieces.bytes() == 0) return {};
  if (reduction.integer_average()) return flat_->allreduce(pieces, reduction, deadline);
  const size_t item = item_size(reduction.dtype);
  const int local_size = static_cast<int>(hosts_[static_cast<size_t>(host_)].size());
  const Slices slices = balanced_slices(pieces.bytes(), local_size, owners_, std::max<size_t>(item, 64));
  std::vector<std::byte> mine(slices.size(local_rank_));

  // A linear operation is scaled inside the host (so float16 is scaled before it is rounded); the others at
  // the end.
  Reduction inside = reduction;
  if (!reduction.linear()) inside.postscale = 1;
  RING_TRY(reduce_inside(pieces, slices, inside, mine.data(), deadline));

  if (cross_ != nullptr && !mine.empty()) {
    Reduction between = reduction;
    if (between.op == ReduceOp::average) between.op = ReduceOp::sum;
    between.prescale = 1;
    if (reduction.linear()) between.postscale = 1;
    RING_TRY(cross_->allreduce(Pieces({Piece{mine.data(), mine.data(), mine.size()}}), between, deadline));
  }
  if (local_ == nullptr) {
    pieces.unpack(0, pieces.bytes(), mine.data());
    return {};
  }
  return local_->gather_slices(mine.data(), slices, pieces, deadline);
}

Status TwoLevelGroup::broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) {
  std::vector<int> speakers;  // one rank of every host; on the root's host the root
  int root_host = 0, place = -1;
  for (size_t h = 0; h < hosts_.size(); ++h) {
    const bool has_root = std::find(hosts_[h].begin(), hosts_[h].end(), root) != hosts_[h].end();
    speakers.push_back(has_root ? root : hosts_[h][0]);
    if (has_root) root_host = static_cast<int>(h);
    if (speakers.back() == rank_) place = static_cast<int>(h);
  }
  if (place >= 0) {
    RING_TRY(TcpGroup(data_, speakers, place, stream_).broadcast(data, bytes, root_host, deadline));
  }
  if (local_ == nullptr) return {};
  const auto& mine = hosts_[static_cast<size_t>(host_)];
  const int speaker = speakers[static_cast<size_t>(host_)];
  const int local_root = static_cast<int>(std::find(mine.begin(), mine.end(), speaker) - mine.begin());
  return local_->broadcast(data, bytes, local_root, deadline);
}

Status TwoLevelGroup::allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                                Deadline deadline) {
  return flat_->allgather(in, bytes, out, deadline);
}

Status TwoLevelGroup::reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                                    const Reduction& reduction, Deadline deadline) {
  return flat_->reducescatter(in, counts, out, reduction, deadline);
}

}  // namespace ring
