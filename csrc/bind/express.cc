#include "bind/express.h"

#include <pybind11/numpy.h>

#include "bind/communicator.h"
#include "bind/errors.h"

namespace py = pybind11;
using ring::DType;
using ring::ReduceOp;

namespace {

constexpr int kMaxDims = 32;
constexpr const char* kCapsule = "spark_ring express";

// What the function is bound to: the communicator, kept alive by its Python object.
struct Target {
  PyCommunicator* communicator;
  py::object owner;
};

using Api = py::detail::npy_api;
using Array = py::detail::PyArray_Proxy;

// A NumPy array as it lies in memory; false unless it is plain.
bool plain(PyObject* object, const Api& api, DType* dtype) {
  if (Py_TYPE(object) != api.PyArray_Type_) return false;
  const Array* array = py::detail::array_proxy(object);
  constexpr int kNeeded = Api::NPY_ARRAY_C_CONTIGUOUS_ | Api::NPY_ARRAY_ALIGNED_;
  if ((array->flags & kNeeded) != kNeeded || array->nd > kMaxDims) return false;
  const auto* descr = py::detail::array_descriptor_proxy(array->descr);
  if (descr->byteorder != '=' && descr->byteorder != '|') return false;
  switch (descr->type_num) {
    case Api::NPY_BOOL_:
      *dtype = DType::boolean;
      return true;
    case Api::NPY_BYTE_:
      *dtype = DType::int8;
      return true;
    case Api::NPY_UBYTE_:
      *dtype = DType::uint8;
      return true;
    case Api::NPY_SHORT_:
      *dtype = DType::int16;
      return true;
    case Api::NPY_USHORT_:
      *dtype = DType::uint16;
      return true;
    case Api::NPY_INT_:
      *dtype = DType::int32;
      return true;
    case Api::NPY_UINT_:
      *dtype = DType::uint32;
      return true;
    case Api::NPY_LONG_:
      *dtype = sizeof(long) == 8 ? DType::int64 : DType::int32;
      return true;
    case Api::NPY_ULONG_:
      *dtype = sizeof(long) == 8 ? DType::uint64 : DType::uint32;
      return true;
    case Api::NPY_LONGLONG_:
      *dtype = DType::int64;
      return true;
    case Api::NPY_ULONGLONG_:
      *dtype = DType::uint64;
      return true;
    case Api::NPY_FLOAT_:
      *dtype = DType::float32;
      return true;
    case Api::NPY_DOUBLE_:
      *dtype = DType::float64;
      return true;
    case 23:  // NPY_HALF
      *dtype = DType::float16;
      return true;
    default:
      return false;
  }
}

bool same_shape(const Array* a, const Array* b) {
  if (a->nd != b->nd) return false;
  for (int i = 0; i < a->nd; ++i) {
    if (a->dimensions[i] != b->dimensions[i]) return false;
  }
  return true;
}

// UTF-8 of a text (null: not one).
bool text_of(PyObject* object, std::string_view* text) {
  if (!PyUnicode_Check(object)) return false;
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  if (data == nullptr) {
    PyErr_Clear();
    return false;
  }
  *text = {data, static_cast<size_t>(size)};
  return true;
}

bool number_of(PyObject* object, double absent, double* number) {
  if (object == Py_None) {
    *number = absent;
    return true;
  }
  if (!PyFloat_CheckExact(object)) return false;
  *number = PyFloat_AS_DOUBLE(object);
  return true;
}

// The name of an op, without a look into any table; false: not exactly one of them.
bool op_of(PyObject* object, ReduceOp* op) {
  std::string_view text;
  if (!text_of(object, &text)) return false;
  const auto known = ring::reduce_op_from(text);
  if (!known) return false;
  *op = *known;
  return true;
}

PyObject* run(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  const auto* target = static_cast<const Target*>(PyCapsule_GetPointer(self, kCapsule));
  if (target == nullptr) return nullptr;
  if (count != 7) {
    PyErr_SetString(PyExc_TypeError, "express takes array, out, op, name, prescale, postscale, timeout");
    return nullptr;
  }
  const Api& api = Api::get();
  ring::Express express;
  DType out_dtype;
  if (!plain(arguments[0], api, &express.dtype) || !op_of(arguments[2], &express.op)) Py_RETURN_NONE;
  if (arguments[3] != Py_None && !text_of(arguments[3], &express.name)) Py_RETURN_NONE;
  if (!number_of(arguments[4], 1, &express.prescale) || !number_of(arguments[5], 1, &express.postscale) ||
      !number_of(arguments[6], -1, &express.timeout)) {
    Py_RETURN_NONE;
  }
  const Array* source = py::detail::array_proxy(arguments[0]);
  int64_t shape[kMaxDims];
  size_t elements = 1;
  for (int i = 0; i < source->nd; ++i) {
    shape[i] = source->dimensions[i];
    elements *= static_cast<size_t>(shape[i]);
  }
  express.shape = shape;
  express.dims = static_cast<size_t>(source->nd);
  express.bytes = elements * ring::item_size(express.dtype);
  express.in = reinterpret_cast<const std::byte*>(source->data);

  py::object result;
  if (arguments[1] == Py_None) {
    Py_INCREF(source->descr);  // the new array takes it
    result = py::reinterpret_steal<py::object>(api.PyArray_NewFromDescr_(
        api.PyArray_Type_, source->descr, source->nd, source->dimensions, nullptr, nullptr, 0, nullptr));
    if (!result) return nullptr;
  } else {
    result = py::reinterpret_borrow<py::object>(arguments[1]);
    if (!plain(result.ptr(), api, &out_dtype) || out_dtype != express.dtype) Py_RETURN_NONE;
    const Array* place = py::detail::array_proxy(result.ptr());
    if ((place->flags & Api::NPY_ARRAY_WRITEABLE_) == 0 || !same_shape(source, place)) Py_RETURN_NONE;
    if (place->data != source->data && place->data < source->data + express.bytes &&
        source->data < place->data + express.bytes) {
      Py_RETURN_NONE;  // they overlap
    }
  }
  express.out = reinterpret_cast<std::byte*>(py::detail::array_proxy(result.ptr())->data);
  try {
    target->communicator->run_express(express);
  } catch (py::error_already_set& error) {
    error.restore();
    return nullptr;
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
  return result.release().ptr();
}

PyMethodDef method = {"express", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(run)),
                      METH_FASTCALL, "One allreduce by the short road; None: the arguments are not plain."};

}  // namespace

py::object make_express(const py::object& communicator) {
  auto* target = new Target{communicator.cast<PyCommunicator*>(), communicator};
  auto capsule = py::reinterpret_steal<py::object>(PyCapsule_New(target, kCapsule, [](PyObject* self) {
    delete static_cast<Target*>(PyCapsule_GetPointer(self, kCapsule));
  }));
  if (!capsule) throw py::error_already_set();
  auto function = py::reinterpret_steal<py::object>(PyCFunction_New(&method, capsule.ptr()));
  if (!function) throw py::error_already_set();
  return function;
}
