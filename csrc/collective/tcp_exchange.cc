#include "collective/tcp_exchange.h"

#include <cstring>

namespace ring {

size_t TcpExchange::payload_limit_of(int size) { return size <= 4 ? 16384 : 4096; }

Status TcpExchange::run(Head head, const Pieces* payload, Deadline deadline, std::vector<Incoming>* all) {
  mine_.resize(sizeof head + (payload != nullptr ? head.payload : 0));
  std::memcpy(mine_.data(), &head, sizeof head);
  if (payload != nullptr) payload->pack(0, head.payload, mine_.data() + sizeof head);
  return trade(deadline, all);
}

Status TcpExchange::run_flat(Head head, const std::byte* payload, Deadline deadline,
                             std::vector<Incoming>* all) {
  mine_.resize(sizeof head + head.payload);
  std::memcpy(mine_.data(), &head, sizeof head);
  if (head.payload > 0) std::memcpy(mine_.data() + sizeof head, payload, head.payload);
  return trade(deadline, all);
}

Status TcpExchange::trade(Deadline deadline, std::vector<Incoming>* all) {
  RING_TRY(control_.exchange(mine_, deadline, &received_, &watch_));
  heads_.resize(received_.size());
  all->resize(received_.size());
  for (size_t r = 0; r < received_.size(); ++r) {
    const Bytes& blob = received_[r];
    if (blob.size() < sizeof(Head)) {
      return Status(Code::peer_lost, "rank " + std::to_string(r) + " is out of step with this rank",
                    static_cast<int>(r));
    }
    std::memcpy(&heads_[r], blob.data(), sizeof(Head));
    if (heads_[r].payload > blob.size() - sizeof(Head)) heads_[r].payload = 0;
    (*all)[r] = {&heads_[r], blob.data() + sizeof(Head)};
  }
  return {};
}

}  // namespace ring
