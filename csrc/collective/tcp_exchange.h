// The small exchange over control connections: every rank sends its head and payload to every other. One hop;
// every rank knows exactly who has not arrived, so a deadline can name the right one.
#pragma once

#include <vector>

#include "collective/exchange.h"
#include "transport/control_plane.h"

namespace ring {

class TcpExchange final : public Exchange {
 public:
  TcpExchange(ControlPlane& control, Watch& watch) : control_(control), watch_(watch) {}

  Status run(Head head, const Pieces* payload, Deadline deadline, std::vector<Incoming>* all) override;
  Status run_flat(Head head, const std::byte* payload, Deadline deadline,
                  std::vector<Incoming>* all) override;
  size_t payload_limit() const override { return payload_limit_of(control_.size()); }
  // Of that many ranks.
  static size_t payload_limit_of(int size);
  void missing(std::vector<int>* ranks) override { control_.missing(ranks); }
  bool peer_ahead() override { return control_.peer_ahead(); }

 private:
  Status trade(Deadline deadline, std::vector<Incoming>* all);

  ControlPlane& control_;
  Watch& watch_;
  Bytes mine_;
  std::vector<Bytes> received_;
  std::vector<Head> heads_;
};

}  // namespace ring
