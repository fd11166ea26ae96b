// The part of the DLPack ABI (version 0, the unversioned capsule) that is read here.
#pragma once

#include <cstdint>

namespace dlpack {

constexpr int32_t kCpu = 1;
constexpr int32_t kCudaHost = 3;  // pinned host memory

enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBfloat = 4, kBool = 6 };

struct Tensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* manager;
  void (*deleter)(ManagedTensor*);
};

}  // namespace dlpack
