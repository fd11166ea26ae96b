// Ranks as threads of one process, over real sockets and real shared memory.
#pragma once

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "engine/engine.h"

namespace ranks {

inline const ring::Lookout::Interrupt kNever = [] { return false; };

inline ring::Options quick_options(const std::string& transport) {
  ring::Options options;
  options.transport = transport;
  options.segment_bytes = 4096;  // several segments even for small tensors
  options.connect_timeout = 30;
  options.collective_timeout = 60;
  options.close_timeout = 10;
  return options;
}

// Listening sockets of all ranks and the addresses that belong to them.
struct Meeting {
  std::vector<ring::Listener> listeners;
  std::vector<ring::PeerAddress> peers;

  // hosts[r] is the pretended host of rank r.
  explicit Meeting(const std::vector<std::string>& hosts) {
    for (const auto& host : hosts) {
      auto listener = ring::Listener::open("127.0.0.1", 0);
      CHECK_OK(listener.status());
      peers.push_back({"127.0.0.1", listener->port(), host});
      listeners.push_back(std::move(*listener));
    }
  }
};

inline std::vector<std::string> one_host(int size) {
  return std::vector<std::string>(static_cast<size_t>(size), "h");
}

inline void in_threads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int r = 0; r < count; ++r) threads.emplace_back(body, r);
  for (auto& thread : threads) thread.join();
}

// Runs body(engine, rank) on every rank.
inline void together(const std::vector<std::string>& hosts, const ring::Options& options,
                     const std::function<void(ring::Engine&, int)>& body) {
  Meeting meeting(hosts);
  in_threads(static_cast<int>(hosts.size()), [&](int rank) {
    auto engine = ring::Engine::connect(std::move(meeting.listeners[static_cast<size_t>(rank)]), rank,
                                        meeting.peers, "secret", options, kNever);
    CHECK_OK(engine.status());
    if (engine.ok()) body(**engine, rank);
  });
}

template <class T>
ring::Request request(ring::Kind kind, ring::DType dtype, const std::vector<T>& in, std::vector<T>& out,
                      std::vector<int64_t> shape = {}) {
  ring::Request made;
  made.kind = kind;
  made.dtype = dtype;
  ring::Tensor tensor;
  tensor.in = reinterpret_cast<const std::byte*>(in.data());
  tensor.out = reinterpret_cast<std::byte*>(out.data());
  tensor.shape = shape.empty() ? std::vector<int64_t>{static_cast<int64_t>(in.size())} : std::move(shape);
  tensor.bytes = in.size() * sizeof(T);
  made.tensors.push_back(tensor);
  return made;
}

inline ring::Status finish(ring::Result<ring::OperationPtr> operation) {
  if (!operation.ok()) return operation.status();
  CHECK((*operation)->wait(ring::Deadline::after(60)));
  return (*operation)->status();
}

}  // namespace ranks
