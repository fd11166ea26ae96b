// Python's side of an asynchronous operation: keeps the memory alive that the operation works on.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/completion.h"

// What a handle needs of its communicator, which may be gone before it: in which process it was made, how its
// group is called, and a place for the memory of operations whose handles were dropped before they ended.
// That is guarded by the GIL, so that the progress thread never needs it: owners are released by the next
// call from Python.
class Origin {
 public:
  Origin(int generation, std::string group) : generation(generation), group(std::move(group)) {}

  const int generation;
  const std::string group;

  void adopt(ring::CompletionPtr completion, std::vector<pybind11::object> owners) {
    orphans_.emplace_back(std::move(completion), std::move(owners));
  }
  void sweep();

 private:
  std::vector<std::pair<ring::CompletionPtr, std::vector<pybind11::object>>> orphans_;
};

class PyHandle {
 public:
  PyHandle(ring::CompletionPtr completion, std::vector<pybind11::object> owners,
           std::shared_ptr<Origin> origin)
      : completion_(std::move(completion)), owners_(std::move(owners)), origin_(std::move(origin)) {}
  PyHandle(PyHandle&&) = default;
  ~PyHandle();

  bool poll() const;
  void wait(double timeout) const;
  std::vector<std::vector<int64_t>> result_shapes() const;
  pybind11::object take_result() const;
  // After a receive or a scatter: dtype and shape of what came.
  pybind11::tuple received() const;
  void add_done_callback(const pybind11::object& callback) const;

 private:
  ring::CompletionPtr completion_;
  std::vector<pybind11::object> owners_;
  std::shared_ptr<Origin> origin_;
};
