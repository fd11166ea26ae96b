// From error values to the exceptions of spark_ring.errors: the only place where that happens.
#pragma once

#include <pybind11/pybind11.h>

#include "base/status.h"

// Throws the Python exception that fits; returns only if the status is ok. Needs the GIL. `group` is how a
// sub-group is called: its ranks are counted anew, so a message with ranks has to say whose they are.
void raise_if(const ring::Status& status, const std::string& group = {});
[[noreturn]] void raise(ring::Code code, const std::string& message, int rank = -1,
                        const std::string& operation = {});

// For waits of the calling thread: true if a Python signal handler raised (the error stays set).
bool python_interrupted();

// Throws ClosedError if the process was forked since `generation`.
void refuse_after_fork(int generation);
