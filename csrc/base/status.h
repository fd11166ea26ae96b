// Errors are values. A Status says what went wrong, which rank is to blame and in which operation; an empty
// one means success. Only bind/ turns it into an exception.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace ring {

enum class Code {
  ok,
  config,          // a value that cannot be used
  rendezvous,      // ranks could not find or reach each other
  authentication,  // a peer could not prove that it knows the secret
  peer_lost,       // a rank died, closed or became unreachable
  timeout,         // a deadline passed
  mismatch,        // ranks disagree about an operation
  aborted,         // another rank gave up
  closed,          // the communicator was closed, or the process was forked
  interrupted,     // a signal handler of the caller raised
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, int rank = -1, std::string operation = {})
      : detail_(
            std::make_shared<const Detail>(Detail{code, std::move(message), rank, std::move(operation)})) {}

  bool ok() const { return detail_ == nullptr; }
  Code code() const { return detail_ ? detail_->code : Code::ok; }
  int rank() const { return detail_ ? detail_->rank : -1; }
  const std::string& message() const { return detail_ ? detail_->message : empty(); }
  const std::string& operation() const { return detail_ ? detail_->operation : empty(); }

  // The same failure, told by a caller that knows the operation and more of the story.
  Status with(std::string message, std::string operation) const {
    return Status(code(), std::move(message), rank(), std::move(operation));
  }

 private:
  struct Detail {
    Code code;
    std::string message;
    int rank;
    std::string operation;
  };
  static const std::string& empty() {
    static const std::string none;
    return none;
  }
  std::shared_ptr<const Detail> detail_;  // null: success; shared: copies are cheap
};

// A value or the Status that explains its absence.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit on purpose
  Result(Status status) : status_(std::move(status)) {}  // NOLINT
  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace ring

#define RING_TRY(expression)                                                                 \
  do {                                                                                       \
    if (::ring::Status ring_status_ = (expression); !ring_status_.ok()) return ring_status_; \
  } while (false)
