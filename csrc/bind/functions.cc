#include <pybind11/pybind11.h>

#include <string>

#include "base/kernels/kernels.h"
#include "bind/errors.h"
#include "bind/register.h"
#include "rendezvous/handshake.h"
#include "rendezvous/host.h"

namespace py = pybind11;

namespace {

void shake(int fd, const py::bytes& secret, double timeout, bool server) {
  const std::string key = secret;
  if (key.empty()) raise(ring::Code::config, "the job's secret is empty");
  ring::Status status;
  {
    const py::gil_scoped_release release;
    const ring::Introduction who;
    status = ring::shake_hands(
        server ? ring::Handshake::server(fd, who, key) : ring::Handshake::client(fd, who, key), fd, timeout);
  }
  raise_if(status);
}

}  // namespace

void register_functions(py::module_& module) {
  module.def(
      "handshake_client",
      [](int fd, const py::bytes& secret, double timeout) { shake(fd, secret, timeout, false); },
      py::arg("fd"), py::arg("secret"), py::arg("timeout"));
  module.def(
      "handshake_server",
      [](int fd, const py::bytes& secret, double timeout) { shake(fd, secret, timeout, true); },
      py::arg("fd"), py::arg("secret"), py::arg("timeout"));
  module.def("host_id", &ring::host_id);
  module.def(
      "local_address_for",
      [](const std::string& remote) {
        ring::Result<std::string> address = ring::local_address_for(remote);
        raise_if(address.status());
        return *address;
      },
      py::arg("remote"));
  module.def("local_addresses", [] {
    py::list found;
    for (const auto& one : ring::local_addresses()) {
      found.append(py::make_tuple(one.address, one.interface, one.link_local));
    }
    return found;
  });
  module.def(
      "refused_reduction",
      [](const std::string& dtype, const std::string& op, bool scaled) {
        const auto type = ring::dtype_from(dtype);
        const auto reduction = ring::reduce_op_from(op);
        if (!type || !reduction) raise(ring::Code::config, "no dtype " + dtype + ", or no reduction " + op);
        return ring::check_reduction(*type, *reduction, scaled ? 0.5 : 1.0, 1.0).message();
      },
      py::arg("dtype"), py::arg("op"), py::arg("scaled"));
  module.def("simd", [] { return ring::kernels().name; });
}
