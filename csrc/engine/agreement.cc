#include "engine/agreement.h"

#include <algorithm>
#include <unordered_map>

namespace ring {
namespace {

uint64_t hash_prefix(const std::vector<OperationPtr>& pending, size_t n) {
  uint64_t hash = n;
  for (size_t i = 0; i < n; ++i) hash = hash_bytes(std::as_bytes(std::span(&pending[i]->hash, 1)), hash);
  return hash;
}

std::vector<Descriptor> read_list(const Bytes& bytes, bool* ok) {
  Reader reader(bytes);
  std::vector<Descriptor> list;
  const uint32_t count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    auto one = Descriptor::decode(reader);
    if (!one) break;
    list.push_back(std::move(*one));
  }
  *ok = reader.at_end() && list.size() == count;
  return list;
}

std::string list_text(const std::vector<Descriptor>& list) {
  std::string text;
  for (size_t i = 0; i < list.size() && i < 5; ++i) text += (i ? ", " : "") + list[i].title();
  if (list.size() > 5) text += ", … (" + std::to_string(list.size()) + " in all)";
  return text.empty() ? "nothing" : text;
}

}  // namespace

std::vector<Common> find_common(const std::vector<std::vector<Descriptor>>& lists) {
  std::vector<std::unordered_map<std::string, const Descriptor*>> by_key(lists.size());
  for (size_t r = 0; r < lists.size(); ++r) {
    for (const Descriptor& one : lists[r]) by_key[r].emplace(one.key(), &one);
  }
  std::vector<Common> common;
  for (const Descriptor& one : lists[0]) {
    Common found{one.key(), "", -1};
    const Bytes reference = one.encode();
    bool everybody = true;
    for (size_t r = 1; r < lists.size() && everybody; ++r) {
      const auto other = by_key[r].find(found.key);
      everybody = other != by_key[r].end();
      if (!everybody || found.rank >= 0 || other->second->encode() == reference) continue;
      found.rank = static_cast<int>(r);
      found.disagreement = one.title() + ": ranks disagree: rank 0 has " + one.details() + ", rank " +
                           std::to_string(r) + " has " + other->second->details();
    }
    if (everybody) common.push_back(std::move(found));
  }
  return common;
}

bool Agreement::build_payload(const Operation& first) {
  const Kind kind = first.request.kind;
  if (first.bytes == 0 || first.bytes > exchange_.payload_limit()) return false;
  if (kind != Kind::allreduce && !(kind == Kind::broadcast && first.request.root == rank_)) return false;
  std::vector<Piece> pieces;
  pieces.reserve(first.request.tensors.size());
  for (const Tensor& tensor : first.request.tensors) pieces.push_back({tensor.in, tensor.out, tensor.bytes});
  payload_ = Pieces(std::move(pieces));
  return true;
}

Status Agreement::decide(const std::vector<OperationPtr>& pending, Deadline deadline, Decision* decision) {
  Head head;
  head.first = pending[0]->hash;
  head.pending = static_cast<uint32_t>(pending.size());
  head.all = pending.size() > 1 ? hash_prefix(pending, pending.size()) : 0;
  const bool carry = build_payload(*pending[0]);
  head.payload = carry ? static_cast<uint32_t>(payload_.bytes()) : 0;
  RING_TRY(exchange_.run(head, carry ? &payload_ : nullptr, deadline, &incoming_));

  bool same_first = true, same_all = true;
  uint32_t fewest = head.pending;
  for (const Incoming& one : incoming_) {
    same_first = same_first && one.head->first == head.first;
    same_all = same_all && one.head->all == head.all && one.head->pending == head.pending;
    fewest = std::min(fewest, one.head->pending);
  }
  if (!same_first) return compare_lists(pending, deadline, decision);
  stuck_story_.clear();
  const auto ready = pending.begin() + static_cast<ptrdiff_t>(fewest);
  if (fewest > 1 && !same_all) {
    Head prefix;
    prefix.first = hash_prefix(pending, fewest);
    RING_TRY(exchange_.run(prefix, nullptr, deadline, &incoming_));
    bool same = true;
    for (const Incoming& one : incoming_) same = same && one.head->first == prefix.first;
    decision->run.assign(pending.begin(), same ? ready : pending.begin() + 1);
    return {};
  }
  decision->run.assign(pending.begin(), ready);
  decision->carried = fewest == 1;
  return {};
}

Status Agreement::compare_lists(const std::vector<OperationPtr>& pending, Deadline deadline,
                                Decision* decision) {
  Writer mine;
  mine.put(static_cast<uint32_t>(pending.size()));
  for (const auto& one : pending) mine.raw(one->encoded.data(), one->encoded.size());
  std::vector<Bytes> all;
  RING_TRY(control_.exchange(mine.bytes(), deadline, &all, &watch_));
  std::vector<std::vector<Descriptor>> lists;
  stuck_story_.clear();
  for (size_t r = 0; r < all.size(); ++r) {
    bool ok = false;
    lists.push_back(read_list(all[r], &ok));
    if (!ok) {
      return Status(Code::peer_lost, "rank " + std::to_string(r) + " sent a list that cannot be read",
                    static_cast<int>(r));
    }
    stuck_story_ += (r ? "; rank " : "rank ") + std::to_string(r) + " has " + list_text(lists.back());
  }
  for (const Common& common : find_common(lists)) {
    const auto place = std::find_if(pending.begin(), pending.end(),
                                    [&](const OperationPtr& one) { return one->key == common.key; });
    if (place == pending.end()) continue;
    if (common.disagreement.empty()) {
      decision->run.push_back(*place);
    } else {
      Status status(Code::mismatch, common.disagreement, common.rank, (*place)->descriptor.title());
      decision->mismatched.emplace_back(*place, std::move(status));
    }
  }
  decision->stuck = decision->run.empty() && decision->mismatched.empty();
  return {};
}

}  // namespace ring
