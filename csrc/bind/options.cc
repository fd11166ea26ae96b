#include "bind/options.h"

#include <pybind11/stl.h>

#include "bind/errors.h"
#include "bind/register.h"

namespace py = pybind11;

void register_options(py::module_& module) {
  py::class_<ring::Options>(module, "Options")
      .def(py::init<>())
      .def_readwrite("transport", &ring::Options::transport)
      .def_readwrite("segment_bytes", &ring::Options::segment_bytes)
      .def_readwrite("fusion_bytes", &ring::Options::fusion_bytes)
      .def_readwrite("arena_bytes", &ring::Options::arena_bytes)
      .def_readwrite("autotune", &ring::Options::autotune)
      .def_readwrite("autotune_log", &ring::Options::autotune_log)
      .def_readwrite("socket_buffer_bytes", &ring::Options::socket_buffer_bytes)
      .def_readwrite("spin_microseconds", &ring::Options::spin_microseconds)
      .def_readwrite("connect_timeout", &ring::Options::connect_timeout)
      .def_readwrite("handshake_timeout", &ring::Options::handshake_timeout)
      .def_readwrite("collective_timeout", &ring::Options::collective_timeout)
      .def_readwrite("close_timeout", &ring::Options::close_timeout)
      .def_readwrite("silence_timeout", &ring::Options::silence_timeout)
      .def_readwrite("stall_warning_seconds", &ring::Options::stall_warning_seconds)
      .def_readwrite("stall_abort_seconds", &ring::Options::stall_abort_seconds)
      .def_readwrite("group", &ring::Options::group);

  py::class_<ring::PeerAddress>(module, "Peer")
      .def(py::init([](std::string address, int port, std::string host_id, std::vector<std::string> others) {
             return ring::PeerAddress{std::move(address), port, std::move(host_id), std::move(others)};
           }),
           py::arg("address"), py::arg("port"), py::arg("host_id"),
           py::arg("others") = std::vector<std::string>{})
      .def_readwrite("others", &ring::PeerAddress::others)
      .def_readwrite("address", &ring::PeerAddress::address)
      .def_readwrite("port", &ring::PeerAddress::port)
      .def_readwrite("host_id", &ring::PeerAddress::host_id);

  py::class_<PyListener>(module, "Listener")
      .def(py::init([](const std::string& address, int port) {
             ring::Result<ring::Listener> opened = ring::Listener::open(address, port);
             raise_if(opened.status());
             auto made = std::make_unique<PyListener>();
             made->port = opened->port();
             made->listener = std::move(*opened);
             return made;
           }),
           py::arg("address") = "", py::arg("port") = 0)
      .def_readonly("port", &PyListener::port)
      .def("close", [](PyListener& self) { self.listener.close(); });
}
