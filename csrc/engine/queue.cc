#include "engine/queue.h"

#include <algorithm>
#include <chrono>

namespace ring {
namespace {

Descriptor describe(const Request& request) {
  Descriptor descriptor;
  descriptor.kind = request.kind;
  descriptor.name = request.name;
  descriptor.dtype = request.dtype;
  descriptor.op = request.op;
  descriptor.root = request.root;
  descriptor.prescale = request.prescale;
  descriptor.postscale = request.postscale;
  descriptor.splits = request.kind == Kind::alltoall && !request.splits.empty();
  if (request.kind == Kind::scatter) {
    descriptor.dtype = DType::uint8;
    return descriptor;
  }
  for (const Tensor& tensor : request.tensors) {
    const size_t skip = descriptor.any_rows() ? 1 : 0;
    descriptor.shapes.emplace_back(tensor.shape.begin() + static_cast<ptrdiff_t>(skip), tensor.shape.end());
  }
  return descriptor;
}

}  // namespace

void describe(Operation& one, uint64_t number) {
  one.descriptor = describe(one.request);
  one.descriptor.number = number;
  for (const Tensor& tensor : one.request.tensors) one.bytes += tensor.bytes;
  one.key = one.descriptor.key();
  one.encoded = one.descriptor.encode();
  one.hash = hash_bytes(one.encoded);
}

Status Queue::push(const OperationPtr& operation, bool wake) {
  Operation& one = *operation;
  one.descriptor = describe(one.request);
  for (const Tensor& tensor : one.request.tensors) one.bytes += tensor.bytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!shut_.ok()) return shut_.with(one.descriptor.title() + ": " + shut_.message(), one.descriptor.title());
  if (one.request.name.empty()) one.descriptor.number = numbers_[static_cast<size_t>(one.request.kind)];
  one.key = one.descriptor.key();
  const bool claimed = claimed_ && !claimed_name_.empty() && claimed_name_ == one.request.name;
  if (claimed || !keys_.insert(one.key).second) {
    return Status(Code::mismatch,
                  one.descriptor.title() +
                      ": an operation of this name is still pending on this rank; wait for it "
                      "or give each operation its own name",
                  -1, one.descriptor.title());
  }
  if (one.request.name.empty()) ++numbers_[static_cast<size_t>(one.request.kind)];
  one.encoded = one.descriptor.encode();
  one.hash = hash_bytes(one.encoded);
  pending_.push_back(operation);
  ++version_;
  if (wake) work_.notify_all();
  return {};
}

std::optional<uint64_t> Queue::claim(Kind kind, std::string_view name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!shut_.ok() || claimed_ || !pending_.empty()) return std::nullopt;
  claimed_ = true;
  claimed_name_.assign(name);
  return name.empty() ? numbers_[static_cast<size_t>(kind)]++ : 0;
}

void Queue::release() {
  const std::lock_guard<std::mutex> lock(mutex_);
  claimed_ = false;
  if (pending_.empty()) drained_.notify_all();
}

void Queue::replace(const OperationPtr& operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  claimed_ = false;
  keys_.insert(operation->key);
  pending_.insert(pending_.begin(), operation);
}

void Queue::count_absent(const Descriptor& descriptor) {
  if (!descriptor.name.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t& next = numbers_[static_cast<size_t>(descriptor.kind)];
  next = std::max(next, descriptor.number + 1);
}

void Queue::remove(const OperationPtr& operation) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto place = std::find(pending_.begin(), pending_.end(), operation);
  if (place == pending_.end()) return;
  pending_.erase(place);
  keys_.erase(operation->key);
  if (pending_.empty()) drained_.notify_all();
}

uint64_t Queue::snapshot(std::vector<OperationPtr>* into) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  *into = pending_;
  return version_;
}

bool Queue::empty() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return pending_.empty();
}

uint64_t Queue::version() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return version_;
}

void Queue::wake() {
  const std::lock_guard<std::mutex> lock(mutex_);
  work_.notify_all();
}

bool Queue::wait_for_work() {
  std::unique_lock<std::mutex> lock(mutex_);
  work_.wait(lock, [this] { return stopped_ || !pending_.empty(); });
  return !stopped_;
}

void Queue::wait_newer(uint64_t seen, int milliseconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  work_.wait_for(lock, std::chrono::milliseconds(milliseconds), [&] { return stopped_ || version_ != seen; });
}

bool Queue::wait_empty(Deadline deadline) {
  std::unique_lock<std::mutex> lock(mutex_);
  while ((claimed_ || !pending_.empty()) && !deadline.expired()) {
    drained_.wait_for(lock, std::chrono::milliseconds(std::max(1, deadline.poll_ms(100))));
  }
  return !claimed_ && pending_.empty();
}

void Queue::shut(Status why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (shut_.ok()) shut_ = std::move(why);
}

void Queue::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  work_.notify_all();
}

}  // namespace ring
