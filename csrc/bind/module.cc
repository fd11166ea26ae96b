// spark_ring._core: the native ring for Python. See _core.pyi for what everything means.
#include "bind/register.h"

PYBIND11_MODULE(_core, module) {
  module.attr("__version__") = SPARK_RING_VERSION;
  register_errors(module);
  register_options(module);
  register_buffer(module);
  register_handle(module);
  register_communicator(module);
  register_functions(module);
}
