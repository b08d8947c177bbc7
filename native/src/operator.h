// What operators need: ONNX Runtime's functions, their inputs, outputs and attributes, memory, and their description.
//
// Operators check the types, shapes and ranges of everything that they use as an index before they compute, and refuse
// a pass with a message. Nothing throws: the library is built without a C++ standard library.
#pragma once
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels.h"
#include "onnxruntime_abi.h"

inline void* operator new(size_t, void* place) noexcept { return place; }

namespace native {

// ONNX Runtime's functions.
extern void* const* g_api;
// Those that are used in this process.
extern const Kernels* g_kernels;

template <class... A>
ort::Status call(ort::Entry entry, A... arguments) {
  return reinterpret_cast<ort::Status (*)(A...)>(g_api[entry])(arguments...);
}

inline ort::Status error(ort::ErrorCode code, const char* format, ...) {
  char message[256];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return reinterpret_cast<ort::Status (*)(int, const char*)>(g_api[ort::kCreateStatus])(code, message);
}

#define TRY(expression) \
  if (ort::Status failure_ = (expression)) return failure_
#define CHECK(condition, ...) \
  if (!(condition)) return error(ort::kInvalidArgument, __VA_ARGS__)

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Memory of a thread that grows and is kept until the process ends, because a decoder has the same passes over and
// over; the threads are those of a session, and live as long as the engine's process. The contents are not kept.
class Scratch {
 public:
  // Aligned to a cache line; null without memory.
  template <class T = char>
  T* get(int64_t bytes) {
    if (bytes > size_ || !memory_) {
      free(memory_);
      size_ = bytes + bytes / 2;
      memory_ = malloc(size_ + 64);
      if (!memory_) return size_ = 0, nullptr;
    }
    return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(memory_) + 63) & ~uintptr_t(63));
  }

 private:
  void* memory_;
  int64_t size_;
};

constexpr int kMaxDimensions = 8;

struct Tensor {
  char* data = nullptr;
  int type = 0;
  size_t rank = 0;
  int64_t shape[kMaxDimensions] = {};
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  int64_t count() const {
    int64_t n = 1;
    for (size_t i = 0; i < rank; ++i) n *= shape[i];
    return n;
  }
  int64_t last() const { return rank ? shape[rank - 1] : 0; }
};

class Context {
 public:
  explicit Context(ort::Opaque* context) : context_(context) {}

  // An input; its `data` is null if it is absent.
  ort::Status input(size_t index, Tensor* found) const {
    const ort::Opaque* value = nullptr;
    size_t count = 0;
    *found = Tensor();
    TRY(call(ort::kKernelContextGetInputCount, constant(), &count));
    if (index >= count) return nullptr;
    TRY(call(ort::kKernelContextGetInput, constant(), index, &value));
    if (!value) return nullptr;
    ort::Opaque* info = nullptr;
    TRY(call(ort::kGetTensorTypeAndShape, value, &info));
    ort::Status status = describe(info, found);
    reinterpret_cast<void (*)(ort::Opaque*)>(g_api[ort::kReleaseTensorTypeAndShapeInfo])(info);
    TRY(status);
    return call(ort::kGetTensorMutableData, const_cast<ort::Opaque*>(value), reinterpret_cast<void**>(&found->data));
  }

  ort::Status output(const int64_t* shape, size_t rank, float** found) const {
    ort::Opaque* value = nullptr;
    TRY(call(ort::kKernelContextGetOutput, context_, size_t{0}, shape, rank, &value));
    return call(ort::kGetTensorMutableData, value, reinterpret_cast<void**>(found));
  }

  // Call work(i) for each i below `count`, in any order and on any of the session's threads.
  template <class Work>
  ort::Status parallel(int64_t count, const Work& work) const {
    if (count < 1) return nullptr;
    if (count == 1) return work(0), nullptr;
    void (*one)(void*, size_t) = [](void* data, size_t i) {
      (*static_cast<const Work*>(data))(static_cast<int64_t>(i));
    };
    return call(ort::kKernelContextParallelFor, constant(), one, static_cast<size_t>(count), size_t{0},
                const_cast<void*>(static_cast<const void*>(&work)));
  }

 private:
  const ort::Opaque* constant() const { return context_; }

  static ort::Status describe(const ort::Opaque* info, Tensor* found) {
    TRY(call(ort::kGetDimensionsCount, info, &found->rank));
    CHECK(found->rank <= kMaxDimensions, "a tensor has %d dimensions, more than %d", (int)found->rank, kMaxDimensions);
    TRY(call(ort::kGetDimensions, info, found->shape, found->rank));
    return call(ort::kGetTensorElementType, info, &found->type);
  }

  ort::Opaque* context_;
};

class Attributes {
 public:
  explicit Attributes(const ort::Opaque* info) : info_(info) {}
  int64_t integer(const char* name, int64_t missing) const {
    return get(ort::kKernelInfoGetAttributeInt, name, missing);
  }
  float real(const char* name, float missing) const { return get(ort::kKernelInfoGetAttributeFloat, name, missing); }

 private:
  template <class T>
  T get(ort::Entry entry, const char* name, T missing) const {
    T value = missing;
    ort::Status status = call(entry, info_, name, &value);
    if (!status) return value;
    reinterpret_cast<void (*)(ort::Status)>(g_api[ort::kReleaseStatus])(status);
    return missing;
  }

  const ort::Opaque* info_;
};

// An operator's description for ONNX Runtime.
template <class Op>
ort::CustomOp described() {
  ort::CustomOp op{};
  op.version = ort::kApiVersion;
  op.name = [](const ort::CustomOp*) { return Op::kName; };
  op.provider = [](const ort::CustomOp*) -> const char* { return nullptr; };  // the CPU's
  op.input_type = [](const ort::CustomOp*, size_t i) { return Op::type(i); };
  op.num_inputs = [](const ort::CustomOp*) { return Op::kInputs; };
  op.output_type = [](const ort::CustomOp*, size_t) -> int { return ort::kFloat; };
  op.num_outputs = [](const ort::CustomOp*) { return size_t{1}; };
  op.input_characteristic = [](const ort::CustomOp*, size_t i) -> int {
    return Op::is_optional(i) ? ort::kOptional : ort::kRequired;
  };
  op.output_characteristic = [](const ort::CustomOp*, size_t) -> int { return ort::kRequired; };
  op.input_memory = [](const ort::CustomOp*, size_t) { return 0; };
  op.create_kernel_v2 = [](const ort::CustomOp*, void* const*, const ort::Opaque* info, void** kernel) -> ort::Status {
    void* memory = malloc(sizeof(Op));
    if (!memory) return error(ort::kFail, "%s: out of memory", Op::kName);
    Op* made = new (memory) Op();
    ort::Status status = made->open(Attributes(info));
    if (status) free(memory);
    else *kernel = made;
    return status;
  };
  op.compute_v2 = [](void* kernel, ort::Opaque* context) {
    return static_cast<const Op*>(kernel)->compute(Context(context));
  };
  op.destroy = [](void* kernel) { free(kernel); };
  return op;
}

}  // namespace native
