// What was moved, by operation and algorithm: one line per pair, written by whoever drives once per bucket
// and read by anybody. A lock of a few nanoseconds guards it; nothing is allocated after the first call of a
// pair.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "engine/descriptor.h"

namespace ring {

struct LedgerLine {
  std::string operation;
  std::string algorithm;
  uint64_t calls = 0;    // buckets
  uint64_t tensors = 0;  // operations in them
  uint64_t bytes = 0;    // of this rank's inputs
  int64_t seconds_us = 0;
  int64_t wait_us = 0;   // of seconds_us: waiting for other ranks
  int64_t queue_us = 0;  // summed over operations: from submission to agreement
};

class Ledger {
 public:
  struct Call {
    Kind kind;
    const char* algorithm;  // a literal
    uint64_t tensors;
    uint64_t bytes;
    int64_t seconds_us;
    int64_t wait_us;
    int64_t queue_us;
  };
  void add(const Call& call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    LedgerLine& line = lines_[{call.kind, call.algorithm}];
    ++line.calls;
    line.tensors += call.tensors;
    line.bytes += call.bytes;
    line.seconds_us += call.seconds_us;
    line.wait_us += call.wait_us;
    line.queue_us += call.queue_us;
  }
  std::vector<LedgerLine> read(bool reset) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<LedgerLine> result;
    for (const auto& [key, line] : lines_) {
      Descriptor one;
      one.kind = key.first;
      const std::string title = one.title();
      result.push_back(line);
      result.back().operation = title.substr(0, title.find(' '));
      result.back().algorithm = key.second;
    }
    if (reset) lines_.clear();
    return result;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<Kind, const char*>, LedgerLine> lines_;  // guarded by mutex_
};

}  // namespace ring
