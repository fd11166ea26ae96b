// The short road from Python: one call with plain positional arguments, without a Buffer, a Request or a
// handle. See engine/express.h for what happens below it.
#pragma once

#include <pybind11/pybind11.h>

class PyCommunicator;

// A function of (array, out, op, name, prescale, postscale, timeout) that runs one allreduce and returns
// `out`, or a new array when that is None. It returns None and does nothing when an argument is not plain:
// anything but contiguous, aligned ndarrays of a native dtype, of one shape, separate or the same memory.
pybind11::object make_express(const pybind11::object& communicator);
