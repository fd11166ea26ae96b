// Which message goes to which receive. One mailbox for each rank that messages come from; no socket, no lock.
//
// Both sides are queues: receives that wait, and arrivals that nobody has asked for. Within one tag the first
// goes to the first. A receive whose array does not look like the arrival that is its turn fails, and the
// arrival stays for the next receive: no message is lost to a mistake.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "engine/message.h"

namespace ring {

// A message that has come, or has been offered.
struct Arrival {
  int64_t tag = 0;
  Looks looks;
  std::unique_ptr<std::byte[]> data;  // the payload, if it is here
  uint64_t offer = 0;                 // else: what to grant,
  MessagePtr sender;                  // or the send of this very rank
};

class Mailbox {
 public:
  // Told of a receive that cannot have what has come for it.
  using Refuse = std::function<void(const MessagePtr&, Status)>;

  // A message has come: the receive that it goes to and that has room for it now, or null.
  MessagePtr match(int64_t tag, const Looks& looks, const Refuse& refuse);
  // Keeps a message that match() found no receive for.
  void keep(Arrival arrival);
  // The arrival for a receive, if there is one. Otherwise the receive waits, unless `refuse` was called.
  std::optional<Arrival> post(const MessagePtr& receive, const Refuse& refuse);

  // Takes a waiting receive out.
  void forget(const MessagePtr& receive);
  // Takes an arrival out whose sender does not wait any longer; true if it was here.
  bool withdraw(uint64_t offer);
  void withdraw(const MessagePtr& sender);
  // Takes all waiting receives out, and all arrivals whose payload will never come.
  std::deque<MessagePtr> give_up();

  size_t arrivals() const { return arrivals_.size(); }
  // Payload bytes that are kept.
  size_t held_bytes() const { return held_bytes_; }
  // "tags 3, 7": of the arrivals; empty if there are none.
  std::string tags_text() const;

 private:
  static bool fits(const MessagePtr& receive, const Looks& looks, const Refuse& refuse);

  std::deque<MessagePtr> receives_;
  std::deque<Arrival> arrivals_;
  size_t held_bytes_ = 0;
};

}  // namespace ring
