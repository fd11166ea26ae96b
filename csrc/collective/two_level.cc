#include "collective/two_level.h"

#include <algorithm>
#include <numeric>

#include "base/kernels/kernels.h"

namespace ring {
namespace {

struct Stages {
  Reduction inside;
  Reduction between;
};

// A linear operation is scaled inside the host (so float16 is scaled before it is rounded); the others at the
// end.
Stages stages(const Reduction& reduction) {
  Stages both{reduction, reduction};
  if (reduction.op == ReduceOp::average) both.between.op = ReduceOp::sum;
  both.between.prescale = 1;
  if (reduction.linear()) {
    both.between.postscale = 1;
  } else {
    both.inside.postscale = 1;
  }
  return both;
}

}  // namespace

TwoLevelGroup::TwoLevelGroup(std::vector<std::vector<int>> hosts, int rank, std::unique_ptr<ShmGroup> local,
                             const std::vector<Socket>& data, TcpTools tools)
    : hosts_(std::move(hosts)), rank_(rank), local_(std::move(local)), data_(data), tools_(tools) {
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
  flat_ = std::make_unique<TcpGroup>(data, everybody, rank, tools);
  if (local_rank_ < owners_) {
    std::vector<int> same;
    for (const auto& host : hosts_) same.push_back(host[static_cast<size_t>(local_rank_)]);
    cross_ = std::make_unique<TcpGroup>(data, same, host_, tools);
  }
}

void TwoLevelGroup::set_segment(size_t bytes) {
  tools_.segment_bytes = bytes;
  if (local_ != nullptr) local_->set_segment(bytes);
  if (cross_ != nullptr) cross_->set_segment(bytes);
  flat_->set_segment(bytes);
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
  algorithm_ = "two-level";
  if (pieces.bytes() == 0) return {};
  if (reduction.integer_average()) {
    algorithm_ = "flat";
    return flat_->allreduce(pieces, reduction, deadline);
  }
  const size_t item = item_size(reduction.dtype);
  const int local_size = static_cast<int>(hosts_[static_cast<size_t>(host_)].size());
  const Slices slices = balanced_slices(pieces.bytes(), local_size, owners_, std::max<size_t>(item, 64));
  std::vector<std::byte> mine(slices.size(local_rank_));

  const auto [inside, between] = stages(reduction);
  RING_TRY(reduce_inside(pieces, slices, inside, mine.data(), deadline));
  if (cross_ != nullptr && !mine.empty()) {
    RING_TRY(cross_->allreduce(Pieces({Piece{mine.data(), mine.data(), mine.size()}}), between, deadline));
  }
  if (local_ == nullptr) {
    pieces.unpack(0, pieces.bytes(), mine.data());
    return {};
  }
  return local_->gather_slices(mine.data(), slices, pieces, deadline);
}

// In the order of allreduce above: every host's ranks first, then the hosts.
void TwoLevelGroup::fold_all(const std::byte* const* inputs, int ranks, std::byte* out, size_t bytes,
                             const Reduction& reduction) const {
  if (reduction.integer_average()) return Group::fold_all(inputs, ranks, out, bytes, reduction);
  const size_t count = bytes / item_size(reduction.dtype);
  const auto [inside, between] = stages(reduction);
  std::vector<std::byte> sums(hosts_.size() * bytes);
  std::vector<const std::byte*> sources;
  for (size_t h = 0; h < hosts_.size(); ++h) {
    sources.clear();
    for (const int r : hosts_[h]) sources.push_back(inputs[r]);
    kernels().fold(inside.dtype, inside.op, sums.data() + h * bytes, sources.data(),
                   static_cast<int>(sources.size()), count, inside.prescale, inside.postscale,
                   inside.divisor);
  }
  sources.clear();
  for (size_t h = 0; h < hosts_.size(); ++h) sources.push_back(sums.data() + h * bytes);
  kernels().fold(between.dtype, between.op, out, sources.data(), static_cast<int>(sources.size()), count,
                 between.prescale, between.postscale, between.divisor);
}

Status TwoLevelGroup::broadcast(std::byte* data, size_t bytes, int root, Deadline deadline) {
  algorithm_ = "two-level";
  std::vector<int> speakers;  // one rank of every host; on the root's host the root
  int root_host = 0, place = -1;
  for (size_t h = 0; h < hosts_.size(); ++h) {
    const bool has_root = std::find(hosts_[h].begin(), hosts_[h].end(), root) != hosts_[h].end();
    speakers.push_back(has_root ? root : hosts_[h][0]);
    if (has_root) root_host = static_cast<int>(h);
    if (speakers.back() == rank_) place = static_cast<int>(h);
  }
  if (place >= 0) {
    RING_TRY(TcpGroup(data_, speakers, place, tools_).broadcast(data, bytes, root_host, deadline));
  }
  if (local_ == nullptr) return {};
  const auto& mine = hosts_[static_cast<size_t>(host_)];
  const int speaker = speakers[static_cast<size_t>(host_)];
  const int local_root = static_cast<int>(std::find(mine.begin(), mine.end(), speaker) - mine.begin());
  return local_->broadcast(data, bytes, local_root, deadline);
}

Status TwoLevelGroup::allgather(const std::byte* in, const std::vector<size_t>& bytes, std::byte* out,
                                Deadline deadline) {
  algorithm_ = "flat";
  return flat_->allgather(in, bytes, out, deadline);
}

Status TwoLevelGroup::reducescatter(const std::byte* in, const std::vector<size_t>& counts, std::byte* out,
                                    const Reduction& reduction, Deadline deadline) {
  algorithm_ = "flat";
  return flat_->reducescatter(in, counts, out, reduction, deadline);
}

Status TwoLevelGroup::alltoall(const std::byte* in, const Slices& sends, std::byte* out,
                               const Slices& receives, size_t longest, Deadline deadline) {
  algorithm_ = "flat";
  return flat_->alltoall(in, sends, out, receives, longest, deadline);
}

}  // namespace ring
