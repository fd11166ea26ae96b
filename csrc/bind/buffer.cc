#include "bind/buffer.h"

#include <pybind11/stl.h>

#include <optional>

#include "bind/dlpack.h"
#include "bind/errors.h"
#include "bind/register.h"

namespace py = pybind11;
using ring::Code;
using ring::DType;

namespace {

// A buffer-protocol format of one native-endian item, by kind and size.
std::optional<DType> dtype_of_format(const char* format, Py_ssize_t item) {
  if (format == nullptr) return DType::uint8;
  if (*format == '@' || *format == '=' || (*format == '<' && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__))
    ++format;
  if (format[0] == '\0' || format[1] != '\0') return std::nullopt;
  switch (format[0]) {
    case '?':
      return DType::boolean;
    case 'e':
      return DType::float16;
    case 'f':
      return DType::float32;
    case 'd':
      return DType::float64;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return item == 1 ? DType::int8 : item == 2 ? DType::int16 : item == 4 ? DType::int32 : DType::int64;
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return item == 1 ? DType::uint8 : item == 2 ? DType::uint16 : item == 4 ? DType::uint32 : DType::uint64;
    default:
      return std::nullopt;
  }
}

std::optional<DType> dtype_of_dlpack(const dlpack::Tensor& tensor) {
  if (tensor.lanes != 1) return std::nullopt;
  const std::string bits = std::to_string(tensor.bits);
  switch (tensor.code) {
    case dlpack::kFloat:
      return ring::dtype_from("float" + bits);
    case dlpack::kBfloat:
      return ring::dtype_from("bfloat" + bits);
    case dlpack::kInt:
      return ring::dtype_from("int" + bits);
    case dlpack::kUInt:
      return ring::dtype_from("uint" + bits);
    case dlpack::kBool:
      return tensor.bits == 8 ? std::optional(DType::boolean) : std::nullopt;
    default:
      return std::nullopt;
  }
}

bool contiguous(const dlpack::Tensor& tensor) {
  if (tensor.strides == nullptr) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.ndim - 1; i >= 0; --i) {
    if (tensor.shape[i] == 0) return true;
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

void release_view(void* pointer) {
  auto* view = static_cast<Py_buffer*>(pointer);
  PyBuffer_Release(view);
  delete view;
}

void release_managed(void* pointer) {
  auto* managed = static_cast<dlpack::ManagedTensor*>(pointer);
  if (managed->deleter != nullptr) managed->deleter(managed);
}

}  // namespace

void PyBuffer::finish() {
  const size_t item = ring::item_size(dtype);
  size_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) raise(Code::config, "a shape has a negative extent");
    count *= static_cast<size_t>(extent);
  }
  bytes = count * item;
  if (bytes > 0 && data == nullptr) raise(Code::config, "the memory's address is null");
  if (bytes > 0 && reinterpret_cast<uintptr_t>(data) % item != 0) {
    raise(Code::config, "the array's memory is not aligned to its " + std::to_string(item) +
                            "-byte items; pass a copy of it");
  }
}

PyBuffer PyBuffer::from_array(const py::object& array, bool writable) {
  auto view = std::make_unique<Py_buffer>();
  const int flags = PyBUF_FORMAT | PyBUF_STRIDES;
  if (PyObject_GetBuffer(array.ptr(), view.get(), flags) != 0) {
    PyErr_Clear();
    raise(Code::config, std::string("an object of type ") + Py_TYPE(array.ptr())->tp_name +
                            " does not offer its memory (buffer protocol); pass a NumPy array");
  }
  Py_buffer* raw = view.release();
  PyBuffer buffer;
  buffer.owner = py::capsule(raw, release_view);
  if (PyBuffer_IsContiguous(raw, 'C') == 0) {
    raise(Code::config,
          "the array is not contiguous in memory (C order); pass numpy.ascontiguousarray(array)");
  }
  if (writable && raw->readonly)
    raise(Code::config, "the array is read-only and the result has to be written to it");
  const auto dtype = dtype_of_format(raw->format, raw->itemsize);
  if (!dtype) {
    raise(Code::config,
          std::string("arrays of format '") + (raw->format != nullptr ? raw->format : "") +
              "' are not supported; use float16/32/64, bfloat16, int8…64, uint8…64 or bool in native "
              "byte order");
  }
  buffer.data = static_cast<std::byte*>(raw->buf);
  buffer.shape.assign(raw->shape, raw->shape + raw->ndim);
  buffer.dtype = *dtype;
  buffer.writable = !raw->readonly;
  buffer.finish();
  return buffer;
}

PyBuffer PyBuffer::from_dlpack(const py::object& tensor, bool writable) {
  const py::object capsule = tensor.attr("__dlpack__")();
  auto* managed = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (managed == nullptr) throw py::error_already_set();
  PyCapsule_SetName(capsule.ptr(), "used_dltensor");
  PyBuffer buffer;
  buffer.owner = py::capsule(managed, release_managed);
  const dlpack::Tensor& raw = managed->tensor;
  if (raw.device_type != dlpack::kCpu && raw.device_type != dlpack::kCudaHost) {
    raise(Code::config, "the tensor is not in host memory (DLPack device type " +
                            std::to_string(raw.device_type) + "); move it to the CPU");
  }
  if (!contiguous(raw))
    raise(Code::config, "the tensor is not contiguous in memory; pass tensor.contiguous()");
  const auto dtype = dtype_of_dlpack(raw);
  if (!dtype) raise(Code::config, "tensors of this dtype are not supported");
  buffer.data = static_cast<std::byte*>(raw.data) + raw.byte_offset;
  buffer.shape.assign(raw.shape, raw.shape + raw.ndim);
  buffer.dtype = *dtype;
  buffer.writable = true;  // this version of DLPack cannot say otherwise; producers refuse read-only memory
  (void)writable;
  buffer.finish();
  return buffer;
}

PyBuffer PyBuffer::from_pointer(uintptr_t address, std::vector<int64_t> shape, const std::string& dtype,
                                py::object owner) {
  const auto known = ring::dtype_from(dtype);
  if (!known) raise(Code::config, "unknown dtype '" + dtype + "'");
  PyBuffer buffer;
  buffer.data = reinterpret_cast<std::byte*>(address);
  buffer.shape = std::move(shape);
  buffer.dtype = *known;
  buffer.writable = true;
  buffer.owner = std::move(owner);
  buffer.finish();
  return buffer;
}

void register_buffer(py::module_& module) {
  py::class_<PyBuffer>(module, "Buffer")
      .def_static("from_array", &PyBuffer::from_array, py::arg("array"), py::arg("writable"))
      .def_static("from_dlpack", &PyBuffer::from_dlpack, py::arg("tensor"), py::arg("writable"))
      .def_static("from_pointer", &PyBuffer::from_pointer, py::arg("address"), py::arg("shape"),
                  py::arg("dtype"), py::arg("owner"))
      .def_property_readonly("dtype",
                             [](const PyBuffer& self) { return std::string(ring::name_of(self.dtype)); })
      .def_property_readonly("shape", [](const PyBuffer& self) { return py::tuple(py::cast(self.shape)); })
      .def_property_readonly("nbytes", [](const PyBuffer& self) { return self.bytes; });
}
