// The part of ONNX Runtime's C interface that the operators use, declared here because no wheel ships its headers.
//
// OrtApi is a table of function pointers that only grows at its end, so the index of an entry is part of the stable
// ABI (https://onnxruntime.ai/docs/reference/compatibility.html). OrtCustomOp grows at its end, too; its `version` says
// how many of its members the library fills in.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace ort {

struct Opaque;           // session options, domains, values, kernel contexts and statuses
using Status = Opaque*;  // null is success

// Indexes of the used entries in OrtApi.
enum Entry {
  kCreateStatus = 0,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetTensorElementType = 60,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kKernelInfoGetAttributeFloat = 85,
  kKernelInfoGetAttributeInt = 86,
  kKernelContextGetInputCount = 88,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kReleaseTensorTypeAndShapeInfo = 99,
  kKernelContextParallelFor = 274,  // since 1.17
};

struct ApiBase {
  void* const* (*get_api)(uint32_t version);
  const char* (*version_string)();
};

constexpr uint32_t kApiVersion = 18;
enum ErrorCode { kFail = 1, kInvalidArgument = 2 };
enum ElementType { kAny = 0, kFloat = 1, kUint8 = 2, kInt8 = 3, kInt32 = 6, kInt64 = 7, kFloat16 = 10, kBfloat16 = 16 };
enum Characteristic { kRequired = 0, kOptional = 1 };

// OrtCustomOp of version 18.
struct CustomOp {
  uint32_t version;
  void* (*create_kernel)(const CustomOp*, void* const* api, const Opaque* info);
  const char* (*name)(const CustomOp*);
  const char* (*provider)(const CustomOp*);
  int (*input_type)(const CustomOp*, size_t);
  size_t (*num_inputs)(const CustomOp*);
  int (*output_type)(const CustomOp*, size_t);
  size_t (*num_outputs)(const CustomOp*);
  void (*compute)(void* kernel, Opaque* context);
  void (*destroy)(void* kernel);
  int (*input_characteristic)(const CustomOp*, size_t);
  int (*output_characteristic)(const CustomOp*, size_t);
  int (*input_memory)(const CustomOp*, size_t);
  int (*variadic_input_min)(const CustomOp*);
  int (*variadic_input_same)(const CustomOp*);
  int (*variadic_output_min)(const CustomOp*);
  int (*variadic_output_same)(const CustomOp*);
  Status (*create_kernel_v2)(const CustomOp*, void* const* api, const Opaque* info, void** kernel);
  Status (*compute_v2)(void* kernel, Opaque* context);
  Status (*infer_shapes)(const CustomOp*, Opaque*);
  int (*start_version)(const CustomOp*);
  int (*end_version)(const CustomOp*);
  size_t (*may_inplace)(int**, int**);
  void (*release_may_inplace)(int*, int*);
  size_t (*alias_map)(int**, int**);
  void (*release_alias_map)(int*, int*);
};

}  // namespace ort
