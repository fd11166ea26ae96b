#include "engine/agreement.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "engine/joined.h"

namespace ring {
namespace {

uint64_t hash_prefix(const std::vector<OperationPtr>& pending, size_t n) {
  uint64_t hash = n;
  for (size_t i = 0; i < n; ++i) hash = hash_bytes(std::as_bytes(std::span(&pending[i]->hash, 1)), hash);
  return hash;
}

}  // namespace

std::vector<Descriptor> read_descriptors(ByteView bytes, int size, bool* ok) {
  Reader reader(bytes);
  std::unordered_set<std::string> keys;  // of pending operations no two are the same
  std::vector<Descriptor> list;
  const uint32_t count = reader.get<uint32_t>();
  for (uint32_t i = 0; i < count && reader.ok(); ++i) {
    auto one = Descriptor::decode(reader);
    if (!one || one->root >= size || (one->rooted() && one->root < 0)) break;
    if (!keys.insert(one->key()).second) break;
    list.push_back(std::move(*one));
  }
  *ok = reader.at_end() && list.size() == count;
  return list;
}

namespace {

// The operations of this rank that some ranks do not have. A rank that has joined counts as having them, and
// a join waits for nobody in particular.
void find_lonely(const std::vector<OperationPtr>& pending, const std::vector<std::vector<Descriptor>>& lists,
                 std::vector<std::pair<OperationPtr, std::vector<int>>>* lonely) {
  std::vector<std::unordered_set<std::string>> keys(lists.size());
  std::vector<bool> joined(lists.size(), false);
  for (size_t r = 0; r < lists.size(); ++r) {
    for (const Descriptor& one : lists[r]) {
      keys[r].insert(one.key());
      joined[r] = joined[r] || one.kind == Kind::join;
    }
  }
  for (const OperationPtr& one : pending) {
    if (one->request.kind == Kind::join) continue;
    std::vector<int> lacking;
    for (size_t r = 0; r < lists.size(); ++r) {
      if (!joined[r] && !keys[r].contains(one->key)) lacking.push_back(static_cast<int>(r));
    }
    if (!lacking.empty()) lonely->emplace_back(one, std::move(lacking));
  }
}

std::string list_text(const std::vector<Descriptor>& list) {
  std::string text;
  for (size_t i = 0; i < list.size() && i < 5; ++i) text += (i ? ", " : "") + list[i].title();
  if (list.size() > 5) text += ", … (" + std::to_string(list.size()) + " in all)";
  return text.empty() ? "nothing" : text;
}

// Why an operation cannot be done while `rank` has joined; empty if it can.
std::string joined_trouble(const Descriptor& one, int rank) {
  const std::string who = one.title() + ": rank " + std::to_string(rank) + " has joined";
  const bool sends = one.kind == Kind::broadcast || one.kind == Kind::scatter;
  if (sends && one.root == rank) return who + ", so it has nothing to send as the root";
  const bool scaled = one.prescale != 1 &&
                      (one.op == ReduceOp::min || one.op == ReduceOp::max || one.op == ReduceOp::product);
  if (scaled)
    return who + ", and what it adds to a scaled " + std::string(name_of(one.op)) + " is not defined";
  return {};
}

Status wrong_payload(int rank, const std::string& title, size_t told, size_t expected) {
  return Status(Code::peer_lost,
                "rank " + std::to_string(rank) + " is out of step: with " + title + " it sent " +
                    std::to_string(told) + " bytes instead of " + std::to_string(expected),
                rank);
}

}  // namespace

std::vector<Common> find_common(const std::vector<std::vector<Descriptor>>& lists) {
  std::vector<std::unordered_map<std::string, const Descriptor*>> by_key(lists.size());
  std::vector<bool> joined(lists.size(), false);
  for (size_t r = 0; r < lists.size(); ++r) {
    for (const Descriptor& one : lists[r]) {
      by_key[r].emplace(one.key(), &one);
      joined[r] = joined[r] || one.kind == Kind::join;
    }
  }
  const auto working = std::find(joined.begin(), joined.end(), false);
  const size_t first = working == joined.end() ? 0 : static_cast<size_t>(working - joined.begin());
  std::vector<Common> common;
  for (const Descriptor& one : lists[first]) {
    Common found{one.key(), "", -1, &one};
    const Bytes reference = one.encode();
    bool everybody = true;
    for (size_t r = 0; r < lists.size() && everybody; ++r) {
      if (r == first) continue;
      const auto other = by_key[r].find(found.key);
      if (other == by_key[r].end()) {
        everybody = joined[r] && one.kind != Kind::join;
        if (everybody && found.rank < 0) found.disagreement = joined_trouble(one, static_cast<int>(r));
        if (!found.disagreement.empty() && found.rank < 0) found.rank = static_cast<int>(r);
        continue;
      }
      if (found.rank >= 0 || other->second->encode() == reference) continue;
      found.rank = static_cast<int>(r);
      found.disagreement = one.title() + ": ranks disagree: rank " + std::to_string(first) + " has " +
                           one.details() + ", rank " + std::to_string(r) + " has " + other->second->details();
    }
    if (everybody) common.push_back(std::move(found));
  }
  return common;
}

// Whether the payload of an operation goes along with the exchange: it is the same on all ranks.
bool Agreement::may_carry(const Operation& first) const {
  const Kind kind = first.request.kind;
  if (first.bytes == 0 || first.bytes > exchange_.payload_limit()) return false;
  return kind == Kind::broadcast || (kind == Kind::allreduce && first.request.op != ReduceOp::adasum);
}

bool Agreement::build_payload(const Operation& first) {
  if (!may_carry(first)) return false;
  if (first.request.kind == Kind::broadcast && first.request.root != rank_) return false;
  std::vector<Piece> pieces;
  pieces.reserve(first.request.tensors.size());
  for (const Tensor& tensor : first.request.tensors) pieces.push_back({tensor.in, tensor.out, tensor.bytes});
  payload_ = Pieces(std::move(pieces));
  return true;
}

Status Agreement::decide(const std::vector<OperationPtr>& pending, Deadline deadline, Decision* decision) {
  ++round_;
  for (const OperationPtr& one : pending) {
    if (one->request.kind == Kind::join && one->joined_in == 0) one->joined_in = round_;
  }
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
  if (fewest == 1) RING_TRY(check_payloads(*pending[0]));
  decision->run.assign(pending.begin(), ready);
  decision->carried = fewest == 1;
  return {};
}

// A rank that shows this operation carries all of its payload, or none where it has nothing to give.
Status Agreement::check_payloads(const Operation& first) const {
  const Kind kind = first.request.kind;
  for (size_t r = 0; r < incoming_.size(); ++r) {
    const bool gives = kind == Kind::allreduce || first.request.root == static_cast<int>(r);
    const uint32_t told = incoming_[r].head->payload;
    const size_t expected = gives && may_carry(first) ? first.bytes : 0;
    if (told == expected) continue;
    return wrong_payload(static_cast<int>(r), first.descriptor.title(), told, expected);
  }
  return {};
}

Status Agreement::show(uint64_t hash, const std::byte* payload, size_t bytes, Deadline deadline,
                       bool* alike) {
  ++round_;
  Head head;
  head.first = hash;
  head.pending = 1;
  const bool carry = bytes <= exchange_.payload_limit();
  head.payload = carry ? static_cast<uint32_t>(bytes) : 0;
  RING_TRY(exchange_.run_flat(head, carry ? payload : nullptr, deadline, &incoming_));
  *alike = true;
  for (const Incoming& one : incoming_) *alike = *alike && one.head->first == hash;
  for (size_t r = 0; *alike && r < incoming_.size(); ++r) {
    if (incoming_[r].head->payload != head.payload) {
      return wrong_payload(static_cast<int>(r), "this allreduce", incoming_[r].head->payload, head.payload);
    }
  }
  if (*alike && !stuck_story_.empty()) stuck_story_.clear();
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
    lists.push_back(read_descriptors(all[r], size_, &ok));
    if (!ok) {
      return Status(Code::peer_lost, "rank " + std::to_string(r) + " sent a list that cannot be read",
                    static_cast<int>(r));
    }
    stuck_story_ += (r ? "; rank " : "rank ") + std::to_string(r) + " has " + list_text(lists.back());
  }
  for (const Common& common : find_common(lists)) {
    const auto place = std::find_if(pending.begin(), pending.end(),
                                    [&](const OperationPtr& one) { return one->key == common.key; });
    const bool joined = place == pending.end();
    if (common.disagreement.empty()) {
      decision->run.push_back(joined ? make_stand_in(*common.descriptor, rank_, size_, deadline) : *place);
    } else if (!joined) {
      Status status(Code::mismatch, common.disagreement, common.rank, (*place)->descriptor.title());
      decision->mismatched.emplace_back(*place, std::move(status));
    }
    if (joined) decision->absent.push_back(*common.descriptor);
  }
  find_lonely(pending, lists, &decision->lonely);
  decision->compared = true;
  decision->stuck = decision->run.empty() && decision->mismatched.empty() && decision->absent.empty();
  return {};
}

}  // namespace ring
