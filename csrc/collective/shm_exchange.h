// The small exchange through shared memory: one write, n-1 reads, no lock, no acknowledgement.
//
// A rank writes head and payload into its slot and then the sequence number; the others wait for the number.
// Two slots per rank are enough: a rank begins exchange k only after it has seen everybody in exchange k-1,
// and a rank that is in k-1 has finished reading k-2, whose slot k overwrites.
#pragma once

#include <vector>

#include "collective/exchange.h"
#include "collective/shm_layout.h"

namespace ring {

class ShmExchange final : public Exchange {
 public:
  ShmExchange(std::byte* base, const ShmLayout& layout, std::vector<int> members, int index,
              WaitPolicy policy, Watch& watch)
      : base_(base),
        layout_(layout),
        members_(std::move(members)),
        index_(index),
        policy_(policy),
        watch_(watch) {}

  Status run(Head head, const Pieces* payload, Deadline deadline, std::vector<Incoming>* all) override;
  Status run_flat(Head head, const std::byte* payload, Deadline deadline,
                  std::vector<Incoming>* all) override;
  size_t payload_limit() const override { return layout_.payload_bytes(); }
  void missing(std::vector<int>* ranks) override;
  bool peer_ahead() override;

 private:
  Status trade(ExchangeSlot& mine, uint64_t sequence, Deadline deadline, std::vector<Incoming>* all);
  int count() const { return static_cast<int>(members_.size()); }
  bool arrived(int r, uint64_t sequence) const {
    return layout_.slot(base_, r, sequence).sequence.load(std::memory_order_acquire) > sequence;
  }

  std::byte* const base_;
  const ShmLayout layout_;
  const std::vector<int> members_;  // global ranks
  const int index_;
  const WaitPolicy policy_;
  Watch& watch_;
  uint64_t sequence_ = 0;
};

}  // namespace ring
