#include "engine/mailbox.h"

#include <algorithm>
#include <set>
#include <utility>

namespace ring {

bool Mailbox::fits(const MessagePtr& receive, const Looks& looks, const Refuse& refuse) {
  if (!receive->any && !(receive->looks == looks)) {
    refuse(receive, Status(Code::mismatch,
                           "rank " + std::to_string(receive->peer) + " sent " + looks.text() +
                               ", this rank wants " + receive->looks.text() +
                               "; the message is kept: receive it into such an array, or without one",
                           receive->peer));
    return false;
  }
  if (!receive->prepare(looks)) {
    refuse(receive, Status(Code::aborted, "there is no memory for " + looks.text() + ", " +
                                              std::to_string(looks.bytes) + " bytes; the message is kept"));
    return false;
  }
  return true;
}

MessagePtr Mailbox::match(int64_t tag, const Looks& looks, const Refuse& refuse) {
  for (auto it = receives_.begin(); it != receives_.end();) {
    if ((*it)->tag != tag) {
      ++it;
      continue;
    }
    const MessagePtr receive = *it;
    it = receives_.erase(it);
    if (fits(receive, looks, refuse)) return receive;
  }
  return nullptr;
}

void Mailbox::keep(Arrival arrival) {
  if (arrival.data != nullptr) held_bytes_ += arrival.looks.bytes;
  arrivals_.push_back(std::move(arrival));
}

std::optional<Arrival> Mailbox::post(const MessagePtr& receive, const Refuse& refuse) {
  const auto it = std::find_if(arrivals_.begin(), arrivals_.end(),
                               [&](const Arrival& one) { return one.tag == receive->tag; });
  if (it == arrivals_.end()) {
    receives_.push_back(receive);
    return std::nullopt;
  }
  if (!fits(receive, it->looks, refuse)) return std::nullopt;
  Arrival arrival = std::move(*it);
  arrivals_.erase(it);
  if (arrival.data != nullptr) held_bytes_ -= arrival.looks.bytes;
  return arrival;
}

void Mailbox::forget(const MessagePtr& receive) {
  receives_.erase(std::remove(receives_.begin(), receives_.end(), receive), receives_.end());
}

bool Mailbox::withdraw(uint64_t offer) {
  const auto it = std::find_if(arrivals_.begin(), arrivals_.end(),
                               [&](const Arrival& one) { return offer != 0 && one.offer == offer; });
  if (it == arrivals_.end()) return false;
  arrivals_.erase(it);
  return true;
}

void Mailbox::withdraw(const MessagePtr& sender) {
  arrivals_.erase(std::remove_if(arrivals_.begin(), arrivals_.end(),
                                 [&](const Arrival& one) { return one.sender == sender; }),
                  arrivals_.end());
}

std::deque<MessagePtr> Mailbox::give_up() {
  arrivals_.erase(std::remove_if(arrivals_.begin(), arrivals_.end(),
                                 [](const Arrival& one) { return one.data == nullptr; }),
                  arrivals_.end());
  return std::exchange(receives_, {});
}

std::string Mailbox::tags_text() const {
  std::set<int64_t> tags;
  for (const Arrival& one : arrivals_) tags.insert(one.tag);
  std::string text;
  int shown = 0;
  for (const int64_t tag : tags) {
    if (++shown > 8) return text + ", …";
    text += (text.empty() ? (tags.size() > 1 ? "tags " : "tag ") : ", ") + std::to_string(tag);
  }
  return text;
}

}  // namespace ring
