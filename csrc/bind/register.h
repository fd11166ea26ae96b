// One function per concept, each in the file of that name; module.cc calls them all.
#pragma once

#include <pybind11/pybind11.h>

void register_errors(pybind11::module_& module);
void register_options(pybind11::module_& module);
void register_buffer(pybind11::module_& module);
void register_handle(pybind11::module_& module);
void register_communicator(pybind11::module_& module);
void register_functions(pybind11::module_& module);
