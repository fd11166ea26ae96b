// One message between two ranks, as either end sees it: a send or a receive, from its start to its end.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/completion.h"
#include "engine/letter.h"

namespace ring {

class Message final : public Completion {
 public:
  enum class Way { send, receive };

  // A send of memory that stays as it is until the end.
  static std::shared_ptr<Message> send(int to, int64_t tag, Looks looks, const std::byte* memory,
                                       double timeout);
  // A receive into memory of these looks.
  static std::shared_ptr<Message> receive(int from, int64_t tag, Looks looks, std::byte* memory,
                                          double timeout);
  // A receive of whatever comes; the memory is made in `gathered`.
  static std::shared_ptr<Message> receive_any(int from, int64_t tag, double timeout);

  // "send of float32 [3] to rank 2, tag 0"
  std::string title() const override;
  // Makes room for what comes, if that is this message's way. False: there is no memory.
  bool prepare(const Looks& coming);

  const Way way;
  const int peer;
  const int64_t tag;
  const bool any;
  const double timeout;  // seconds
  const Deadline deadline;
  Looks looks;

  // Guarded by the courier's lock.
  std::byte* memory = nullptr;  // of a send: only read
  bool settled = false;         // how it ends is decided; its memory is not touched any more

 private:
  Message(Way way, int peer, int64_t tag, bool any, double timeout)
      : way(way), peer(peer), tag(tag), any(any), timeout(timeout), deadline(Deadline::after(timeout)) {}
};

using MessagePtr = std::shared_ptr<Message>;

}  // namespace ring
