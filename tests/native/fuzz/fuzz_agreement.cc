// A peer that lies in agreement: heads, payloads and lists of operations. This rank has not joined: it would
// make memory for whatever the others reduce (see fuzz_descriptors.cc for that).
//
//   input:  byte 0  which operations this rank has pending
//           rest    what rank 1 sends to rank 0 of two, for each frame of the control plane:
//                   length u16 | payload, as much of it as there is
#include "collective/tcp_exchange.h"
#include "engine/agreement.h"
#include "engine/queue.h"
#include "fuzz.h"

using ring::Bytes;
using ring::ControlPlane;
using ring::Deadline;
using ring::Kind;
using ring::OperationPtr;
using ring::Writer;

namespace {

struct Memory {
  float values[8] = {};
};

OperationPtr operation(Kind kind, const std::string& name, int root, Memory& memory) {
  ring::Request request;
  request.kind = kind;
  request.name = name;
  request.dtype = ring::DType::float32;
  request.root = root;
  if (kind != Kind::barrier) {
    auto* bytes = reinterpret_cast<std::byte*>(memory.values);
    request.tensors.push_back({bytes, bytes, {8}, sizeof memory.values});
  }
  return std::make_shared<ring::Operation>(std::move(request), Deadline::after(60));
}

std::vector<OperationPtr> pending_of(uint8_t choice, Memory& memory) {
  ring::Queue queue;
  std::vector<OperationPtr> pending;
  const auto add = [&](Kind kind, const std::string& name, int root) {
    REQUIRE(queue.push(operation(kind, name, root, memory), false).ok());
  };
  if ((choice & 1) != 0) add(Kind::allreduce, "grad", -1);
  if ((choice & 2) != 0) add(Kind::broadcast, "", 1);
  if ((choice & 4) != 0) add(Kind::allgather, "rows", -1);
  if ((choice & 8) != 0 || choice % 16 == 0) add(Kind::barrier, "end", -1);
  queue.snapshot(&pending);
  return pending;
}

// What a rank with these operations would send: its head and payload, and its list in case the firsts differ.
Bytes conversation(uint8_t mine, uint8_t theirs) {
  Memory memory;
  const std::vector<OperationPtr> pending = pending_of(theirs, memory);
  const OperationPtr& first = pending[0];
  const Kind kind = first->request.kind;
  ring::Head head;
  head.first = first->hash;
  head.pending = static_cast<uint32_t>(pending.size());
  if (pending.size() > 1) {
    head.all = pending.size();
    for (const auto& one : pending)
      head.all = ring::hash_bytes(std::as_bytes(std::span(&one->hash, 1)), head.all);
  }
  if (kind == Kind::allreduce || kind == Kind::broadcast) head.payload = static_cast<uint32_t>(first->bytes);
  Writer exchange, list, all;
  exchange.put(head);
  exchange.raw(memory.values, head.payload);
  list.put(static_cast<uint32_t>(pending.size()));
  for (const auto& one : pending) list.raw(one->encoded.data(), one->encoded.size());
  all.put(mine);
  for (const Bytes& payload : {exchange.bytes(), list.bytes()}) {
    all.put(static_cast<uint16_t>(payload.size()));
    all.raw(payload.data(), payload.size());
  }
  return all.take();
}

Bytes frames(ring::ByteView input) {
  Writer all;
  for (uint32_t sequence = 0; input.size() >= 2; ++sequence) {
    uint16_t length;
    std::memcpy(&length, input.data(), sizeof length);
    const auto payload = input.subspan(2, std::min<size_t>(length, input.size() - 2));
    fuzz::put_frame(all, 1, sequence, Bytes(payload.begin(), payload.end()));
    input = input.subspan(2 + payload.size());
  }
  return all.take();
}

}  // namespace

std::vector<Bytes> fuzz::seeds() {
  std::vector<Bytes> all;
  for (uint8_t mine = 0; mine < 16; ++mine) {
    for (const uint8_t theirs : {mine, static_cast<uint8_t>(15 - mine), uint8_t{15}}) {
      all.push_back(conversation(mine, theirs));
    }
  }
  return all;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  Memory memory;
  const std::vector<OperationPtr> pending = pending_of(data[0], memory);
  ControlPlane control(0, std::vector<ring::Socket>(2), ring::WaitPolicy::choose(1, 0));
  control.feed(1, frames(fuzz::view(data + 1, size - 1)));
  if (!control.peer_ahead()) return 0;  // else it would wait for the rest
  ring::TcpExchange exchange(control, control);
  ring::Agreement agreement(exchange, control, control, 0);
  ring::Decision decision;
  const ring::Status status = agreement.decide(pending, Deadline::after(0), &decision);
  if (!status.ok()) return 0;
  for (const OperationPtr& one : decision.run) {  // what will be run can be
    REQUIRE(one->descriptor.sensible());
    REQUIRE(!one->descriptor.rooted() || (one->request.root >= 0 && one->request.root < 2));
    REQUIRE(std::count(decision.run.begin(), decision.run.end(), one) == 1);
  }
  for (const auto& [one, why] : decision.mismatched)
    REQUIRE(why.message().find("rank 1") != std::string::npos);
  if (!decision.carried) return 0;
  const ring::Operation& first = *decision.run[0];
  for (size_t r = 0; r < agreement.incoming().size(); ++r) {  // as the executor reads
    const bool gives = first.request.kind == Kind::allreduce ||
                       (first.request.kind == Kind::broadcast && first.request.root == static_cast<int>(r));
    if (!gives) continue;
    std::byte sum{};
    for (size_t i = 0; i < first.bytes; ++i) sum ^= agreement.incoming()[r].payload[i];
    volatile std::byte sink = sum;
    (void)sink;
  }
  return 0;
}
