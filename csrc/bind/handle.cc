#include "bind/handle.h"

#include <pybind11/stl.h>

#include <algorithm>

#include "base/fork.h"
#include "bind/errors.h"
#include "bind/register.h"

namespace py = pybind11;
using ring::Code;

namespace {

// Bytes that the ring made; offered to Python through the buffer protocol.
struct OwnedBytes {
  ring::Room data;
  size_t bytes = 0;
};

}  // namespace

void Origin::sweep() {
  auto ended = [](const auto& orphan) { return orphan.first->done(); };
  orphans_.erase(std::remove_if(orphans_.begin(), orphans_.end(), ended), orphans_.end());
}

PyHandle::~PyHandle() {
  if (completion_ == nullptr) return;
  if (origin_->generation != ring::fork_generation()) {
    new ring::CompletionPtr(
        std::move(completion_));  // its locks may be held by threads of the parent: leave it
    return;
  }
  if (completion_->done() || owners_.empty()) return;
  origin_->adopt(std::move(completion_), std::move(owners_));
}

// In a forked child it is finished, badly: wait() says so.
bool PyHandle::poll() const { return origin_->generation != ring::fork_generation() || completion_->done(); }

void PyHandle::wait(double timeout) const {
  refuse_after_fork(origin_->generation);
  if (ring::Completion::in_callback() && !completion_->done()) {
    raise(Code::config, completion_->title() +
                            ": cannot be waited for inside a done-callback, which runs on the thread that "
                            "drives the ring");
  }
  const ring::Deadline deadline = ring::Deadline::after(timeout < 0 ? 1e9 : timeout);
  for (;;) {
    bool done;
    {
      const py::gil_scoped_release release;
      const ring::Deadline next_look = ring::Deadline::after(0.1);
      done = completion_->wait(ring::Deadline::earlier(deadline, next_look));
    }
    if (done) break;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (deadline.expired()) {
      const std::string title = completion_->title();
      raise(Code::timeout,
            title + ": not finished within the " + std::to_string(timeout) +
                " s that the caller wanted to wait; the operation stays pending",
            -1, title);
    }
  }
  raise_if(completion_->status(), origin_->group);
}

std::vector<std::vector<int64_t>> PyHandle::result_shapes() const {
  refuse_after_fork(origin_->generation);
  std::vector<std::vector<int64_t>> shapes;
  if (!completion_->done()) raise(Code::config, "the operation has not finished; call wait() first");
  for (const int64_t rows : completion_->gathered.rows) shapes.push_back({rows});
  return shapes;
}

py::object PyHandle::take_result() const {
  refuse_after_fork(origin_->generation);
  if (!completion_->done()) raise(Code::config, "the operation has not finished; call wait() first");
  ring::GatherResult& result = completion_->gathered;
  if (result.data == nullptr)
    raise(Code::config, "there is no result to take: the operation makes none, or it was taken before");
  return py::cast(OwnedBytes{std::move(result.data), result.bytes});
}

py::tuple PyHandle::received() const {
  refuse_after_fork(origin_->generation);
  if (!completion_->done()) raise(Code::config, "the operation has not finished; call wait() first");
  const ring::GatherResult& result = completion_->gathered;
  return py::make_tuple(std::string(ring::name_of(result.dtype)), py::tuple(py::cast(result.shape)));
}

void PyHandle::add_done_callback(const py::object& callback) const {
  refuse_after_fork(origin_->generation);
  // The last reference may go on the progress thread: let it go with the GIL.
  std::shared_ptr<PyObject> kept(py::object(callback).release().ptr(), [](PyObject* object) {
    const py::gil_scoped_acquire gil;
    Py_DECREF(object);
  });
  const py::gil_scoped_release release;
  completion_->then([kept] {
    const py::gil_scoped_acquire gil;
    PyObject* result = PyObject_CallNoArgs(kept.get());
    if (result == nullptr) {
      PyErr_WriteUnraisable(kept.get());
    } else {
      Py_DECREF(result);
    }
  });
}

void register_handle(py::module_& module) {
  py::class_<OwnedBytes>(module, "OwnedBytes", py::buffer_protocol()).def_buffer([](OwnedBytes& self) {
    return py::buffer_info(reinterpret_cast<uint8_t*>(self.data.get()), static_cast<py::ssize_t>(self.bytes));
  });
  py::class_<PyHandle>(module, "Handle")
      .def("poll", &PyHandle::poll)
      .def("wait", &PyHandle::wait, py::arg("timeout") = -1.0)
      .def("result_shapes", &PyHandle::result_shapes)
      .def("received", &PyHandle::received)
      .def("take_result", &PyHandle::take_result)
      .def("add_done_callback", &PyHandle::add_done_callback, py::arg("callback"));
}
