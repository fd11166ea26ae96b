// The timeline: what this rank did when, written as Chrome trace events (the JSON array format of the Trace
// Event Format, which Perfetto and chrome://tracing read).
//
//   row     one per tensor ("thread" of the format); the process is the rank
//   QUEUE, NEGOTIATE, ALLREDUCE …  of a tensor, one after the other, never overlapping in a row
//   COPY, REDUCE, GATHER, SEND, RECEIVE, WAIT  phases, inside the operation's span; those of a fused bucket
//           are in the row of the buckets
//
// Off, a phase costs one look at a thread-local pointer. On, events go to a buffer of bounded size and from
// there to the file. The format lets the closing bracket be absent, so the file of a killed process can be
// read up to its last flush.
//
// Times are of the monotonic clock; the first event tells its distance to the wall clock, by which files of
// several ranks are brought together.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"

namespace ring {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Builds the arguments of an event: {"bytes": 4, "peer": 1}.
class TraceArgs {
 public:
  TraceArgs& add(std::string_view name, int64_t value);
  TraceArgs& add(std::string_view name, std::string_view text);
  std::string take() { return "{" + std::move(text_) + "}"; }

 private:
  void name(std::string_view name);
  std::string text_;
};

class Trace {
 public:
  ~Trace() { stop(); }
  // Any thread.
  Status start(const std::string& path, int rank, int size);
  void stop();
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // The row of a tensor. One without a name of its own (`shared`) gets a row of that title that is free since
  // `since_ns`; it is busy until release().
  int row(const std::string& title, bool shared, int64_t since_ns);
  void release(int row);
  // Spans that follow one another in a row; a start before the end of the one before is moved there.
  void span(int row, std::string_view name, int64_t start_ns, int64_t end_ns, const std::string& args);
  // Within the span that is recorded next in this row.
  void phase(int row, std::string_view name, int64_t start_ns, int64_t end_ns, const std::string& args);
  void counter(std::string_view name, std::string_view series, int64_t value);
  // Writes the buffer to the file if the last time is a while ago.
  void breathe();

 private:
  struct Row {
    int64_t end_ns = 0;
    bool busy = false;
  };
  int make_row(const std::string& title);
  void event(const std::string& text);
  void complete(int row, std::string_view name, int64_t start_ns, int64_t end_ns, const std::string& args);
  void flush();

  std::atomic<bool> on_{false};
  std::mutex mutex_;
  // Guarded by mutex_.
  int file_ = -1;
  int pid_ = 0;
  bool first_ = true;
  int64_t flushed_ns_ = 0;
  std::string buffer_;
  std::vector<Row> rows_;
  std::unordered_map<std::string, int> by_title_;
};

// Where phases of this thread are recorded at present; null: nowhere.
struct TraceSpot {
  Trace* trace = nullptr;
  int row = 0;
};
inline constinit thread_local TraceSpot trace_spot{};

// One phase, from construction to destruction.
class TracePhase {
 public:
  explicit TracePhase(const char* name, size_t bytes = 0, int peer = -1)
      : spot_(trace_spot), name_(name), bytes_(bytes), peer_(peer) {
    if (spot_.trace != nullptr) start_ = now_ns();
  }
  TracePhase(const TracePhase&) = delete;
  ~TracePhase() {
    if (spot_.trace != nullptr) write();
  }
  void peer(int rank) { peer_ = rank; }
  void bytes(size_t count) { bytes_ = count; }
  // Nothing happened.
  void drop() { spot_.trace = nullptr; }

 private:
  void write() const;
  TraceSpot spot_;
  const char* name_;
  size_t bytes_;
  int peer_;
  int64_t start_ = 0;
};

}  // namespace ring
