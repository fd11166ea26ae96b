// A view of memory that Python owns: address, shape, dtype, and what keeps it alive.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

struct PyBuffer {
  std::byte* data = nullptr;
  std::vector<int64_t> shape;
  ring::DType dtype = ring::DType::uint8;
  size_t bytes = 0;
  bool writable = false;
  pybind11::object owner;  // dropped with the GIL held

  static PyBuffer from_array(const pybind11::object& array, bool writable);
  static PyBuffer from_dlpack(const pybind11::object& tensor, bool writable);
  static PyBuffer from_pointer(uintptr_t address, std::vector<int64_t> shape, const std::string& dtype,
                               pybind11::object owner);

 private:
  void finish();  // computes bytes, checks the alignment
};
