#include "collective/shm_exchange.h"

#include <cstring>

namespace ring {

Status ShmExchange::run(Head head, const Pieces* payload, Deadline deadline, std::vector<Incoming>* all) {
  const uint64_t sequence = sequence_++;
  ExchangeSlot& mine = layout_.slot(base_, index_, sequence);
  mine.head = head;
  if (payload != nullptr) payload->pack(0, head.payload, mine.payload);
  return trade(mine, sequence, deadline, all);
}

Status ShmExchange::run_flat(Head head, const std::byte* payload, Deadline deadline,
                             std::vector<Incoming>* all) {
  const uint64_t sequence = sequence_++;
  ExchangeSlot& mine = layout_.slot(base_, index_, sequence);
  mine.head = head;
  if (head.payload > 0) std::memcpy(mine.payload, payload, head.payload);
  return trade(mine, sequence, deadline, all);
}

Status ShmExchange::trade(ExchangeSlot& mine, uint64_t sequence, Deadline deadline,
                          std::vector<Incoming>* all) {
  mine.sequence.store(sequence + 1, std::memory_order_seq_cst);
  for (int r = 0; r < count(); ++r) {
    if (r != index_) layout_.counters(base_, r).sleep.wake();
  }
  int next = 0;
  auto missing = [&] {
    while (next < count() && arrived(next, sequence)) ++next;
    return next < count() ? members_[static_cast<size_t>(next)] : -1;
  };
  RING_TRY(wait_until(missing, layout_.counters(base_, index_).sleep, policy_, deadline, watch_));
  all->resize(members_.size());
  for (int r = 0; r < count(); ++r) {
    const ExchangeSlot& slot = layout_.slot(base_, r, sequence);
    (*all)[static_cast<size_t>(r)] = {&slot.head, slot.payload};
  }
  return {};
}

void ShmExchange::missing(std::vector<int>* ranks) {
  ranks->clear();
  for (int r = 0; r < count(); ++r) {
    if (!arrived(r, sequence_ - 1)) ranks->push_back(members_[static_cast<size_t>(r)]);
  }
}

bool ShmExchange::peer_ahead() {
  for (int r = 0; r < count(); ++r) {
    if (r != index_ && arrived(r, sequence_)) return true;
  }
  return false;
}

}  // namespace ring
