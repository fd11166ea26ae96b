#include "bind/communicator.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <thread>

#include "bind/errors.h"
#include "bind/express.h"
#include "bind/register.h"
#include "collective/schedule.h"

namespace py = pybind11;
using ring::Code;
using ring::Kind;
using ring::Request;

namespace {

constexpr int64_t kMostArenaBytes = int64_t{1} << 44;  // far below what overflows for any number of ranks

ring::ReduceOp parse_op(const std::string& op) {
  const auto known = ring::reduce_op_from(op);
  if (!known)
    raise(Code::config, "op is '" + op + "'; it must be one of sum, average, min, max, product, adasum");
  return *known;
}

bool overlap(const PyBuffer& a, const PyBuffer& b) {
  return a.data != b.data && a.bytes > 0 && b.bytes > 0 && a.data < b.data + b.bytes &&
         b.data < a.data + a.bytes;
}

void check_pair(const PyBuffer& input, const PyBuffer& output) {
  if (input.dtype != output.dtype) {
    raise(Code::config, "input is " + std::string(ring::name_of(input.dtype)) + " and output " +
                            std::string(ring::name_of(output.dtype)) + "; they must have the same dtype");
  }
  if (!output.writable) raise(Code::config, "the output is read-only");
  if (overlap(input, output)) {
    raise(Code::config,
          "input and output overlap without being the same memory; use the same array or separate ones");
  }
}

Request reduction_request(Kind kind, const std::string& op, std::string name, double prescale,
                          double postscale) {
  Request request;
  request.kind = kind;
  request.op = parse_op(op);
  request.name = std::move(name);
  request.prescale = prescale;
  request.postscale = postscale;
  return request;
}

void add_allreduce(Request& request, const PyBuffer& input, const PyBuffer& output) {
  check_pair(input, output);
  if (input.shape != output.shape)
    raise(Code::config, "input and output of an allreduce must have the same shape");
  if (request.tensors.empty()) request.dtype = input.dtype;
  if (input.dtype != request.dtype)
    raise(Code::config, "the tensors of one grouped allreduce must have one dtype");
  request.tensors.push_back({input.data, output.data, input.shape, input.bytes});
}

}  // namespace

PyCommunicator::PyCommunicator(PyListener& listener, int rank, const std::vector<ring::PeerAddress>& peers,
                               const py::bytes& secret, const ring::Options& options)
    : origin_(std::make_shared<Origin>(generation_, options.group)), peers_(peers) {
  if (!listener.listener.valid())
    raise(Code::config, "the listener is closed, or was given to another communicator");
  if (options.transport != "auto" && options.transport != "shm" && options.transport != "tcp") {
    raise(Code::config, "transport is '" + options.transport + "'; it must be one of auto, shm, tcp");
  }
  if (options.segment_bytes < 64 || options.fusion_bytes < 0) {
    raise(Code::config, "segment_bytes must be at least 64 and fusion_bytes not negative");
  }
  if (options.arena_bytes < 0 || options.arena_bytes > kMostArenaBytes) {
    raise(Code::config, "arena_bytes is " + std::to_string(options.arena_bytes) + "; it must be from 0 to " +
                            std::to_string(kMostArenaBytes));
  }
  const std::string key = secret;
  ring::Result<std::unique_ptr<ring::Engine>> made = [&] {
    const py::gil_scoped_release release;
    return ring::Engine::connect(std::move(listener.listener), rank, peers, key, options, python_interrupted);
  }();
  raise_if(made.status(), origin_->group);
  engine_ = std::move(*made);
}

PyCommunicator::~PyCommunicator() {
  if (generation_ != ring::fork_generation()) {
    (void)engine_.release();  // its threads and locks stayed in the parent; nothing here may touch them
    return;
  }
  if (ring::Completion::in_callback()) {
    // This thread drives the engine, so it cannot wait for the engine's end: another one does.
    std::thread([engine = engine_.release()] { delete engine; }).detach();
    return;
  }
  const py::gil_scoped_release release;
  engine_.reset();
}

PyHandle PyCommunicator::submit(Request request, std::vector<py::object> owners) {
  refuse_after_fork(generation_);
  origin_->sweep();
  ring::Result<ring::OperationPtr> operation = [&] {
    const py::gil_scoped_release release;
    return engine_->submit(std::move(request));
  }();
  raise_if(operation.status(), origin_->group);
  return PyHandle(std::move(*operation), std::move(owners), origin_);
}

PyHandle PyCommunicator::allreduce(const std::vector<PyBuffer*>& inputs,
                                   const std::vector<PyBuffer*>& outputs, const std::string& op,
                                   std::string name, double prescale, double postscale) {
  if (inputs.size() != outputs.size() || inputs.empty()) {
    raise(Code::config, "an allreduce needs as many outputs as inputs, and at least one");
  }
  Request request = reduction_request(Kind::allreduce, op, std::move(name), prescale, postscale);
  std::vector<py::object> owners;
  for (size_t i = 0; i < inputs.size(); ++i) {
    add_allreduce(request, *inputs[i], *outputs[i]);
    owners.push_back(inputs[i]->owner);
    owners.push_back(outputs[i]->owner);
  }
  return submit(std::move(request), std::move(owners));
}

PyHandle PyCommunicator::broadcast(PyBuffer& buffer, int root, std::string name) {
  Request request;
  request.kind = Kind::broadcast;
  request.name = std::move(name);
  request.dtype = buffer.dtype;
  request.root = root;
  if (!buffer.writable && root != engine_->topology().rank) raise(Code::config, "the array is read-only");
  request.tensors.push_back({buffer.data, buffer.data, buffer.shape, buffer.bytes});
  return submit(std::move(request), {buffer.owner});
}

PyHandle PyCommunicator::allgather(PyBuffer& input, std::string name, PyBuffer* output) {
  return rows_of(Kind::allgather, &input, -1, {}, std::move(name), output);
}

PyHandle PyCommunicator::gather(PyBuffer& input, int root, std::string name) {
  return rows_of(Kind::gather, &input, root, {}, std::move(name));
}

PyHandle PyCommunicator::alltoall(PyBuffer& input, std::vector<int64_t> splits, std::string name,
                                  PyBuffer* output) {
  return rows_of(Kind::alltoall, &input, -1, std::move(splits), std::move(name), output);
}

PyHandle PyCommunicator::scatter(PyBuffer* input, int root, std::vector<int64_t> splits, std::string name) {
  return rows_of(Kind::scatter, input, root, std::move(splits), std::move(name));
}

PyHandle PyCommunicator::rows_of(Kind kind, PyBuffer* input, int root, std::vector<int64_t> splits,
                                 std::string name, PyBuffer* output) {
  Request request;
  request.kind = kind;
  request.name = std::move(name);
  request.root = root;
  request.splits = std::move(splits);
  std::vector<py::object> owners;
  if (input != nullptr) {
    request.dtype = input->dtype;
    request.tensors.push_back({input->data, nullptr, input->shape, input->bytes});
    owners.push_back(input->owner);
  }
  if (output != nullptr) {
    if (!output->writable) raise(Code::config, "the output is read-only");
    if (input->data < output->data + output->bytes && output->data < input->data + input->bytes)
      raise(Code::config, "input and output overlap; use separate arrays");
    request.output = ring::Output{output->data, output->bytes};
    owners.push_back(output->owner);
  }
  return submit(std::move(request), std::move(owners));
}

PyHandle PyCommunicator::join() {
  Request request;
  request.kind = Kind::join;
  return submit(std::move(request), {});
}

PyHandle PyCommunicator::reducescatter(PyBuffer& input, PyBuffer& output, const std::string& op,
                                       std::string name) {
  check_pair(input, output);
  if (!input.shape.empty()) {
    const auto rows = ring::scatter_rows(static_cast<size_t>(input.shape[0]), engine_->topology().size);
    std::vector<int64_t> expected = input.shape;
    expected[0] = static_cast<int64_t>(rows[static_cast<size_t>(engine_->topology().rank)]);
    if (output.shape != expected) {
      raise(Code::config, "the output of reducescatter on rank " + std::to_string(engine_->topology().rank) +
                              " must have " + std::to_string(expected[0]) +
                              " rows and otherwise the shape of the input");
    }
  }
  Request request = reduction_request(Kind::reducescatter, op, std::move(name), 1, 1);
  request.dtype = input.dtype;
  request.tensors.push_back({input.data, output.data, input.shape, input.bytes});
  return submit(std::move(request), {input.owner, output.owner});
}

PyHandle PyCommunicator::barrier(std::string name) {
  Request request;
  request.kind = Kind::barrier;
  request.name = std::move(name);
  return submit(std::move(request), {});
}

void PyCommunicator::allreduce_now(PyBuffer& input, PyBuffer& output, const std::string& op, std::string name,
                                   double prescale, double postscale, double timeout) {
  refuse_after_fork(generation_);
  Request request = reduction_request(Kind::allreduce, op, std::move(name), prescale, postscale);
  request.timeout = timeout;
  add_allreduce(request, input, output);
  ring::Status status;
  {
    const py::gil_scoped_release release;
    status = engine_->run_now(std::move(request), python_interrupted);
  }
  raise_if(status, origin_->group);
}

void PyCommunicator::run_express(const ring::Express& express) {
  refuse_after_fork(generation_);
  ring::Status status;
  {
    const py::gil_scoped_release release;
    status = engine_->run_express(express, interrupted_);
  }
  raise_if(status, origin_->group);
}

double PyCommunicator::message_timeout(double timeout) const {
  return timeout < 0 ? engine_->collective_timeout() : timeout;
}

PyHandle PyCommunicator::start(ring::MessagePtr message, std::vector<py::object> owners) {
  refuse_after_fork(generation_);
  origin_->sweep();
  ring::Status status;
  {
    const py::gil_scoped_release release;
    status = engine_->start(message);
  }
  raise_if(status, origin_->group);
  return PyHandle(std::move(message), std::move(owners), origin_);
}

PyHandle PyCommunicator::send(PyBuffer& buffer, int dest, int64_t tag, double timeout) {
  return start(ring::Message::send(dest, tag, {buffer.dtype, buffer.shape, buffer.bytes}, buffer.data,
                                   message_timeout(timeout)),
               {buffer.owner});
}

PyHandle PyCommunicator::receive(PyBuffer* buffer, int source, int64_t tag, double timeout) {
  if (buffer == nullptr) {
    return start(ring::Message::receive_any(source, tag, message_timeout(timeout)), {});
  }
  if (!buffer->writable) raise(Code::config, "the array is read-only");
  return start(ring::Message::receive(source, tag, {buffer->dtype, buffer->shape, buffer->bytes},
                                      buffer->data, message_timeout(timeout)),
               {buffer->owner});
}

py::dict PyCommunicator::statistics(bool reset) {
  const ring::Statistics& counts = engine_->statistics();
  py::dict result;
  result["operations"] = counts.operations.load();
  result["bytes"] = counts.bytes.load();
  result["buckets"] = counts.buckets.load();
  result["fused_tensors"] = counts.fused_tensors.load();
  result["carried"] = counts.carried.load();
  result["rounds"] = counts.rounds.load();
  result["wakeups"] = counts.wakeups.load();
  result["seconds"] = static_cast<double>(counts.busy_us.load()) * 1e-6;
  result["strangers"] = engine_->strangers();
  result["autotune"] = py::none();
  if (const auto tuning = engine_->tuning()) {
    py::dict state;
    state["fusion_bytes"] = tuning->choice.fusion_bytes;
    state["segment_bytes"] = tuning->choice.segment_bytes;
    state["windows"] = tuning->windows;
    state["over"] = tuning->over;
    result["autotune"] = state;
  }
  if (generation_ != ring::fork_generation()) return result;
  py::list table;
  for (const ring::LedgerLine& line : engine_->ledger(reset)) {
    const double seconds = static_cast<double>(line.seconds_us) * 1e-6;
    py::dict row;
    row["operation"] = line.operation;
    row["algorithm"] = line.algorithm;
    row["transport"] = engine_->transport();
    row["calls"] = line.calls;
    row["tensors"] = line.tensors;
    row["bytes"] = line.bytes;
    row["seconds"] = seconds;
    row["wait_seconds"] = static_cast<double>(line.wait_us) * 1e-6;
    row["move_seconds"] = static_cast<double>(std::max<int64_t>(0, line.seconds_us - line.wait_us)) * 1e-6;
    row["queue_seconds"] = static_cast<double>(line.queue_us) * 1e-6;
    row["bytes_per_second"] = seconds > 0 ? static_cast<double>(line.bytes) / seconds : 0.0;
    table.append(row);
  }
  result["table"] = table;
  py::list waits;
  py::object slowest = py::none();
  int64_t longest = 0;
  const std::vector<int64_t> waited = engine_->waits(reset);
  for (size_t r = 0; r < waited.size(); ++r) {
    waits.append(static_cast<double>(waited[r]) * 1e-6);
    if (waited[r] <= longest) continue;
    longest = waited[r];
    slowest = py::int_(r);
  }
  result["wait_seconds_by_rank"] = waits;
  result["slowest_rank"] = slowest;
  if (reset) engine_->reset_statistics();
  return result;
}

namespace {

py::list stalls_for_python(const std::vector<ring::Stall>& stalls,
                           const std::vector<ring::PeerAddress>& peers) {
  constexpr const char* kStates[] = {"absent", "different", "moving"};
  py::list result;
  for (const ring::Stall& stall : stalls) {
    py::list hosts;
    for (const int rank : stall.ranks) hosts.append(peers[static_cast<size_t>(rank)].address);
    py::dict one;
    one["state"] = kStates[static_cast<size_t>(stall.state)];
    one["operations"] = py::tuple(py::cast(stall.operations));
    one["count"] = stall.count;
    one["seconds"] = stall.seconds;
    one["fails_in"] = stall.fails_in;
    one["ranks"] = py::tuple(py::cast(stall.ranks));
    one["hosts"] = py::tuple(hosts);
    one["story"] = stall.story;
    one["over"] = stall.over;
    result.append(one);
  }
  return result;
}

}  // namespace

void PyCommunicator::start_timeline(const std::string& path) {
  refuse_after_fork(generation_);
  ring::Status status;
  {
    const py::gil_scoped_release release;
    status = engine_->start_timeline(path);
  }
  raise_if(status);
}

void PyCommunicator::stop_timeline() {
  if (generation_ != ring::fork_generation()) return;
  const py::gil_scoped_release release;
  engine_->stop_timeline();
}

py::list PyCommunicator::stalled() const {
  if (generation_ != ring::fork_generation()) return py::list();
  return stalls_for_python(engine_->stalled(), peers_);
}

py::list PyCommunicator::take_stall_reports() const {
  if (generation_ != ring::fork_generation()) return py::list();
  return stalls_for_python(engine_->take_stall_reports(), peers_);
}

void PyCommunicator::abort(const std::string& reason) {
  refuse_after_fork(generation_);
  const py::gil_scoped_release release;
  engine_->abort(reason);
}

void PyCommunicator::close() {
  if (generation_ != ring::fork_generation()) return;
  if (ring::Completion::in_callback()) {
    raise(Code::config,
          "a communicator cannot be closed inside a done-callback, which runs on its own thread");
  }
  {
    const py::gil_scoped_release release;
    engine_->close();
  }
  origin_->sweep();
}

namespace {

// Memory of the arena, for as long as Python holds it.
struct SharedBytes {
  std::shared_ptr<std::byte> data;
  size_t bytes;
};

}  // namespace

py::object PyCommunicator::shared_memory(size_t bytes) {
  refuse_after_fork(generation_);
  ring::Result<std::shared_ptr<std::byte>> taken = [&] {
    const py::gil_scoped_release release;
    return engine_->shared_memory(bytes);
  }();
  raise_if(taken.status(), origin_->group);
  if (*taken == nullptr) return py::none();
  return py::cast(SharedBytes{std::move(*taken), bytes});
}

void register_communicator(py::module_& module) {
  using C = PyCommunicator;
  py::class_<SharedBytes>(module, "SharedBytes", py::buffer_protocol()).def_buffer([](SharedBytes& self) {
    return py::buffer_info(reinterpret_cast<uint8_t*>(self.data.get()), static_cast<py::ssize_t>(self.bytes));
  });
  auto topology = [](auto field) {
    return [field](const C& self) { return self.engine().topology().*field; };
  };
  py::class_<C>(module, "Communicator")
      .def(py::init<PyListener&, int, const std::vector<ring::PeerAddress>&, const py::bytes&,
                    const ring::Options&>(),
           py::arg("listener"), py::arg("rank"), py::arg("peers"), py::arg("secret"), py::arg("options"))
      .def_property_readonly("rank", topology(&ring::Topology::rank))
      .def_property_readonly("size", topology(&ring::Topology::size))
      .def_property_readonly("local_rank", topology(&ring::Topology::local_rank))
      .def_property_readonly("local_size", topology(&ring::Topology::local_size))
      .def_property_readonly("cross_rank", topology(&ring::Topology::cross_rank))
      .def_property_readonly("cross_size", topology(&ring::Topology::cross_size))
      .def_property_readonly("transport", [](const C& self) { return self.engine().transport(); })
      .def("allreduce", &C::allreduce, py::arg("inputs"), py::arg("outputs"), py::arg("op"), py::arg("name"),
           py::arg("prescale"), py::arg("postscale"))
      .def("broadcast", &C::broadcast, py::arg("buffer"), py::arg("root"), py::arg("name"))
      .def("allgather", &C::allgather, py::arg("input"), py::arg("name"),
           py::arg("output").none(true) = py::none())
      .def("reducescatter", &C::reducescatter, py::arg("input"), py::arg("output"), py::arg("op"),
           py::arg("name"))
      .def("gather", &C::gather, py::arg("input"), py::arg("root"), py::arg("name"))
      .def("alltoall", &C::alltoall, py::arg("input"), py::arg("splits"), py::arg("name"),
           py::arg("output").none(true) = py::none())
      .def("scatter", &C::scatter, py::arg("input").none(true), py::arg("root"), py::arg("splits"),
           py::arg("name"))
      .def("join", &C::join)
      .def("barrier", &C::barrier, py::arg("name"))
      .def("allreduce_now", &C::allreduce_now, py::arg("input"), py::arg("output"), py::arg("op"),
           py::arg("name"), py::arg("prescale"), py::arg("postscale"), py::arg("timeout"))
      .def("send", &C::send, py::arg("buffer"), py::arg("dest"), py::arg("tag"), py::arg("timeout"))
      .def("receive", &C::receive, py::arg("buffer").none(true), py::arg("source"), py::arg("tag"),
           py::arg("timeout"))
      .def_property_readonly("express", [](const py::object& self) { return make_express(self); })
      .def("statistics", &C::statistics, py::arg("reset") = false)
      .def("start_timeline", &C::start_timeline, py::arg("path"))
      .def("stop_timeline", &C::stop_timeline)
      .def("stalled", &C::stalled)
      .def("take_stall_reports", &C::take_stall_reports)
      .def("shared_memory", &C::shared_memory, py::arg("bytes"))
      .def("abort", &C::abort, py::arg("reason"))
      .def("close", &C::close);
}
