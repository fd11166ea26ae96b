// Python's Communicator: checks arguments, keeps memory alive, releases the GIL, refuses forked children.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/fork.h"
#include "bind/buffer.h"
#include "bind/errors.h"
#include "bind/handle.h"
#include "bind/options.h"
#include "engine/engine.h"

class PyCommunicator {
 public:
  PyCommunicator(PyListener& listener, int rank, const std::vector<ring::PeerAddress>& peers,
                 const pybind11::bytes& secret, const ring::Options& options);
  ~PyCommunicator();

  PyHandle allreduce(const std::vector<PyBuffer*>& inputs, const std::vector<PyBuffer*>& outputs,
                     const std::string& op, std::string name, double prescale, double postscale);
  PyHandle broadcast(PyBuffer& buffer, int root, std::string name);
  PyHandle allgather(PyBuffer& input, std::string name, PyBuffer* output);
  PyHandle gather(PyBuffer& input, int root, std::string name);
  PyHandle alltoall(PyBuffer& input, std::vector<int64_t> splits, std::string name, PyBuffer* output);
  PyHandle scatter(PyBuffer* input, int root, std::vector<int64_t> splits, std::string name);
  PyHandle join();
  PyHandle reducescatter(PyBuffer& input, PyBuffer& output, const std::string& op, std::string name);
  PyHandle barrier(std::string name);
  void allreduce_now(PyBuffer& input, PyBuffer& output, const std::string& op, std::string name,
                     double prescale, double postscale, double timeout);
  void run_express(const ring::Express& express);
  PyHandle send(PyBuffer& buffer, int dest, int64_t tag, double timeout);
  PyHandle receive(PyBuffer* buffer, int source, int64_t tag, double timeout);
  pybind11::dict statistics(bool reset);
  void start_timeline(const std::string& path);
  void stop_timeline();
  pybind11::list stalled() const;
  pybind11::list take_stall_reports() const;
  pybind11::object shared_memory(size_t bytes);
  void abort(const std::string& reason);
  void close();
  const ring::Engine& engine() const { return *engine_; }

 private:
  PyHandle rows_of(ring::Kind kind, PyBuffer* input, int root, std::vector<int64_t> splits, std::string name,
                   PyBuffer* output = nullptr);
  PyHandle submit(ring::Request request, std::vector<pybind11::object> owners);
  PyHandle start(ring::MessagePtr message, std::vector<pybind11::object> owners);
  double message_timeout(double timeout) const;

  const ring::Lookout::Interrupt interrupted_ = python_interrupted;
  const int generation_ = ring::fork_generation();
  const std::shared_ptr<Origin> origin_;
  const std::vector<ring::PeerAddress> peers_;
  std::unique_ptr<ring::Engine> engine_;
};
