//! The C ABI for the shim: statuses become torch errors, dtypes and streams are translated. Everything
//! here is on the hot path of every operator: no strings, no allocation and no locks unless a call
//! failed. It must never know a dispatch key.
//!
//! Of the C++ face (outrigger.hpp) it takes what fits torch: structs with their size, and strings. Failures are
//! torch's errors instead of `otr::Error`, handles travel through torch as pointers, and destructors warn.
#pragma once

#include "versions.h"

#include <ATen/core/TensorBase.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>
#include <outrigger/cpp/result.hpp>
#include <outrigger/outrigger.h>

#include <atomic>
#include <cstdint>
#include <string>

namespace outrigger {

/// The beginning of messages: the name of the device type and a colon.
const char* who() noexcept;

/// Has messages speak of another name than outrigger. Before any other call.
void speak_as(const char* name);

/// Throws what a failed status means to torch: OutOfMemoryError, IndexError, NotImplementedError, or a
/// plain error with message, operator and stream. Frees the status.
[[noreturn]] void raise(otr_status_t* status);

/// Throws unless the call succeeded.
inline void check(otr_status_t* status) {
  if (C10_UNLIKELY(status != nullptr)) {
    raise(status);
  }
}

/// Makes a call that hands out a string.
template <class Call>
std::string text_from(const Call& call) {
  char* text = nullptr;
  check(call(&text));
  return otr::take(text);
}

/// The text of a failed status: message, operator and stream. The status stays the caller's.
std::string describe(const otr_status_t* status);

/// Reports a failed status as a warning, for destructors and callbacks, which cannot throw.
void warn_if_failed(otr_status_t* status, const char* doing) noexcept;

/// The element type of the C ABI, or OTR_DTYPE_INVALID if it has none for this one.
constexpr otr_dtype_t dtype_of(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool: return OTR_DTYPE_BOOL;
    case c10::ScalarType::Byte: return OTR_DTYPE_U8;
    case c10::ScalarType::Char: return OTR_DTYPE_I8;
    case c10::ScalarType::Short: return OTR_DTYPE_I16;
    case c10::ScalarType::Int: return OTR_DTYPE_I32;
    case c10::ScalarType::Long: return OTR_DTYPE_I64;
    case c10::ScalarType::UInt16: return OTR_DTYPE_U16;
    case c10::ScalarType::UInt32: return OTR_DTYPE_U32;
    case c10::ScalarType::UInt64: return OTR_DTYPE_U64;
    case c10::ScalarType::Half: return OTR_DTYPE_F16;
    case c10::ScalarType::BFloat16: return OTR_DTYPE_BF16;
    case c10::ScalarType::Float: return OTR_DTYPE_F32;
    case c10::ScalarType::Double: return OTR_DTYPE_F64;
    case c10::ScalarType::ComplexFloat: return OTR_DTYPE_C64;
    case c10::ScalarType::ComplexDouble: return OTR_DTYPE_C128;
    case c10::ScalarType::Float8_e4m3fn: return OTR_DTYPE_F8E4M3;
    case c10::ScalarType::Float8_e5m2: return OTR_DTYPE_F8E5M2;
    case c10::ScalarType::Float8_e8m0fnu: return OTR_DTYPE_F8E8M0;
    case c10::ScalarType::Float8_e4m3fnuz: return OTR_DTYPE_F8E4M3FNUZ;
    case c10::ScalarType::Float8_e5m2fnuz: return OTR_DTYPE_F8E5M2FNUZ;
    case c10::ScalarType::Float4_e2m1fn_x2: return OTR_DTYPE_F4E2M1X2;
    default: return OTR_DTYPE_INVALID;
  }
}

/// Whether elements of this type have values that can be read and converted: not bits, quantized numbers, and
/// numbers of less than a byte, which torch only stores.
constexpr bool has_value(c10::ScalarType type) {
  switch (type) {
#define OUTRIGGER_HAS_VALUE(_, name) case c10::ScalarType::name:
    AT_FORALL_SCALAR_TYPES_WITH_COMPLEX(OUTRIGGER_HAS_VALUE)
#undef OUTRIGGER_HAS_VALUE
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::UInt64: return true;
    default: return is_complex_of_bfloat16(type);
  }
}

/// True for the two device types that this package serves.
constexpr bool is_ours(c10::DeviceType type) {
  return type == c10::DeviceType::PrivateUse1 || type == c10::DeviceType::MTIA;
}

/// True for a tensor in the memory of one of our devices.
inline bool is_ours(const at::TensorBase& tensor) {
  return tensor.defined() && is_ours(tensor.device().type());
}

/// Number of devices; 0 if the runtime cannot start. `why`, if given, receives the reason.
c10::DeviceIndex device_count(std::string* why = nullptr) noexcept;

/// Throws unless there is a device with this index; names the valid ones.
void check_device(c10::DeviceIndex index);

/// The current device of this thread.
inline c10::DeviceIndex current_device() {
  uint32_t device = 0;
  check(otr_device_current(&device));
  return static_cast<c10::DeviceIndex>(device);
}

/// Makes a device the current one of this thread.
void set_current_device(c10::DeviceIndex index);

/// The current stream of this thread on a device.
inline otr_stream_t current_stream(c10::DeviceIndex device) {
  otr_stream_t stream = 0;
  check(otr_stream_current(static_cast<uint32_t>(device), &stream));
  return stream;
}

/// The current stream of this thread on the device of a tensor.
inline otr_stream_t stream_of(const at::TensorBase& tensor) {
  return current_stream(tensor.device().index());
}

/// A stream of torch as one of the runtime: id 0 is the default stream of its device.
otr_stream_t stream_handle(const c10::Stream& stream);

/// A stream of the runtime as one of torch.
c10::Stream torch_stream(otr_stream_t stream, c10::Device device);

/// Whether the program has ever had a stream beside the default ones. With one alone nobody can see whether the host has
/// waited for work that only later work of the device reads.
extern std::atomic<bool> has_streams;

/// The effect of a wait that a program has not asked for by name, such as that of `item()`.
enum class SyncDebug : int { kDefault = 0, kWarn = 1, kError = 2 };
extern std::atomic<SyncDebug> sync_debug_mode;

/// Warns of a wait, or makes an error of it.
void found_a_wait();

/// Waits for all work on a stream.
inline void synchronize(otr_stream_t stream) {
  check(otr_stream_synchronize(stream));
  // Behind the wait: until then the device may use what an exception gives back.
  if (C10_UNLIKELY(sync_debug_mode.load(std::memory_order_relaxed) != SyncDebug::kDefault)) {
    found_a_wait();
  }
}

/// Whether the device's memory can be read and written by the host at its device addresses.
bool is_host_visible(c10::DeviceIndex device);

/// The properties of a device.
otr_device_info_t device_info(c10::DeviceIndex device);

/// The device address of a pointer that torch holds.
inline otr_address_t address_of(const void* pointer) {
  return reinterpret_cast<otr_address_t>(pointer);
}

/// Lends torch's thread pool to the runtime's host kernels, so that both use one set of threads.
void lend_threads();

}  // namespace outrigger
