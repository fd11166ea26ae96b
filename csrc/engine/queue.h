// The operations of this rank that are not finished, in the order in which they were submitted.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "engine/operation.h"

namespace ring {

// Fills in what follows from the request, for an operation of that number.
void describe(Operation& operation, uint64_t number);

class Queue {
 public:
  // Numbers, describes and appends. An error if the queue is shut or the name is already pending.
  // `wake`: let the progress thread know.
  Status push(const OperationPtr& operation, bool wake);
  // For one operation on the short road (see express.h), if nothing is pending: it counts as pending, before
  // whatever comes next, until release() or replace(). Returns the number of an unnamed one.
  std::optional<uint64_t> claim(Kind kind, std::string_view name);
  void release();
  // Makes what claimed the queue the ordinary operation `operation`, the first one pending.
  void replace(const OperationPtr& operation);
  // The others did this unnamed operation while this rank had joined: its own next one comes after it.
  void count_absent(const Descriptor& descriptor);
  // Takes a finished operation out.
  void remove(const OperationPtr& operation);
  // Copies what is pending and returns the version it belongs to: read in one step, so that what is pushed
  // right afterwards is news.
  uint64_t snapshot(std::vector<OperationPtr>* into) const;
  bool empty() const;
  // Counts submissions; changes whenever something new is pending.
  uint64_t version() const;
  void wake();

  // Waits until something is pending (true) or the queue is stopped (false).
  bool wait_for_work();
  // Waits for a newer version than `seen`, at most `milliseconds`.
  void wait_newer(uint64_t seen, int milliseconds);
  bool wait_empty(Deadline deadline);

  // Refuses later operations with `why` (the first reason counts).
  void shut(Status why);
  // Ends wait_for_work for good.
  void stop();

 private:
  mutable std::mutex mutex_;
  std::condition_variable work_;     // for the progress thread and for wait_newer
  std::condition_variable drained_;  // for wait_empty
  // Guarded by mutex_.
  std::vector<OperationPtr> pending_;
  std::unordered_set<std::string> keys_;
  uint64_t numbers_[kKinds] = {};  // of the next unnamed operation, by kind
  uint64_t version_ = 0;
  bool claimed_ = false;
  std::string claimed_name_;
  bool stopped_ = false;
  Status shut_;
};

}  // namespace ring
