#include "bind/errors.h"

#include "base/fork.h"
#include "bind/register.h"

namespace py = pybind11;

namespace {

// Held for the life of the process; indexed by ring::Code.
constexpr const char* kClasses[] = {nullptr,           "ConfigError",
                                    "RendezvousError", "AuthenticationError",
                                    "PeerLostError",   "CollectiveTimeoutError",
                                    "MismatchError",   "AbortedError",
                                    "ClosedError"};
PyObject* classes[9] = {};

}  // namespace

void register_errors(py::module_&) {
  const py::module_ errors = py::module_::import("spark_ring.errors");
  for (size_t i = 1; i < 9; ++i) classes[i] = py::object(errors.attr(kClasses[i])).release().ptr();
}

void raise(ring::Code code, const std::string& message, int rank, const std::string& operation) {
  if (code == ring::Code::interrupted && PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (code == ring::Code::ok || code == ring::Code::interrupted) code = ring::Code::aborted;
  const py::handle cls(classes[static_cast<size_t>(code)]);
  const py::str text = py::reinterpret_steal<py::str>(
      PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
  py::object error;
  if (code == ring::Code::config) {
    error = cls(text);
  } else {
    const py::object who = rank >= 0 ? py::object(py::int_(rank)) : py::object(py::none());
    const py::object what = operation.empty() ? py::object(py::none()) : py::object(py::str(operation));
    error = cls(text, py::arg("rank") = who, py::arg("operation") = what);
  }
  PyErr_SetObject(cls.ptr(), error.ptr());
  throw py::error_already_set();
}

void raise_if(const ring::Status& status, const std::string& group) {
  if (status.ok()) return;
  const std::string where = group.empty() ? "" : " [in " + group + "]";
  raise(status.code(), status.message() + where, status.rank(), status.operation());
}

bool python_interrupted() {
  const py::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

void refuse_after_fork(int generation) {
  if (generation != ring::fork_generation()) {
    raise(ring::Code::closed,
          "this process was forked after the communicator was made; make a new one in the child, or start "
          "processes with 'spawn' instead of 'fork'");
  }
}
