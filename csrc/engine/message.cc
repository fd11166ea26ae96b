#include "engine/message.h"

#include <new>
#include <utility>

namespace ring {

MessagePtr Message::send(int to, int64_t tag, Looks looks, const std::byte* memory, double timeout) {
  MessagePtr message(new Message(Way::send, to, tag, false, timeout));
  message->looks = std::move(looks);
  message->memory = const_cast<std::byte*>(memory);
  return message;
}

MessagePtr Message::receive(int from, int64_t tag, Looks looks, std::byte* memory, double timeout) {
  MessagePtr message(new Message(Way::receive, from, tag, false, timeout));
  message->looks = std::move(looks);
  message->memory = memory;
  return message;
}

MessagePtr Message::receive_any(int from, int64_t tag, double timeout) {
  return MessagePtr(new Message(Way::receive, from, tag, true, timeout));
}

std::string Message::title() const {
  std::string text = way == Way::send ? "send" : "recv";
  if (!any) text += " of " + looks.text();
  text += way == Way::send ? " to rank " : " from rank ";
  return text + std::to_string(peer) + ", tag " + std::to_string(tag);
}

bool Message::prepare(const Looks& coming) {
  if (!any) return true;
  gathered.data = make_room(coming.bytes);
  if (gathered.data == nullptr) return false;
  gathered.bytes = coming.bytes;
  gathered.dtype = coming.dtype;
  gathered.shape = coming.shape;
  memory = gathered.data.get();
  return true;
}

}  // namespace ring
