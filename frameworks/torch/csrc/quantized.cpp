//! Quantized tensors: their bytes are in device memory; the quantizer with scale and zero point is on
//! the host. Arithmetic on them runs on the CPU; this file only registers torch's own views for them.
//! It must never make a quantized tensor without its quantizer.

#include "register.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_empty_affine_quantized_native.h>
#include <ATen/ops/_empty_per_channel_affine_quantized_native.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_native.h>
#include <ATen/ops/empty_quantized_native.h>
#include <ATen/ops/empty_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/quantized/Quantizer.h>
#include <c10/core/DeviceGuard.h>

namespace outrigger {
namespace {

// Torch's own kernels ask for memory of the current device.

// Without a scale, which is set later.
at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard on_device(device);
  return at::native::empty_unknown_quantized(size, dtype, layout, device, pin_memory, format);
}

at::Tensor empty_affine(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory, double scale, int64_t zero_point,
    std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard on_device(device);
  return at::native::empty_affine_quantized(size, dtype, layout, device, pin_memory, scale, zero_point, format);
}

at::Tensor empty_affine_per_channel(
    c10::IntArrayRef size, const at::Tensor& scales, const at::Tensor& zero_points, int64_t axis,
    std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout, std::optional<c10::Device> device,
    std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  const c10::OptionalDeviceGuard on_device(device);
  const at::Tensor made = at::native::empty_per_channel_affine_quantized(
      size, scales, zero_points, axis, dtype, layout, device, pin_memory, format);
  // Torch's own quantizer has its scales on the device; the CPU's kernels have to read them.
  at::set_quantizer_(
      made, at::make_per_channel_affine_quantizer(scales.cpu(), zero_points.cpu(), axis, made.scalar_type()));
  return made;
}

}  // namespace

void register_quantized(torch::Library& m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", TORCH_FN(at::native::empty_strided_unknown_quantized));
  m.impl("as_strided", TORCH_FN(at::native::as_strided_qtensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  // The device asked for is not that of the tensor given, which the CPU fallback would take for it.
  m.impl("_empty_affine_quantized", &empty_affine);
  m.impl("_empty_per_channel_affine_quantized", &empty_affine_per_channel);
  m.impl("empty_quantized", TORCH_FN(at::native::empty_quantized));
  m.impl("empty_like", TORCH_FN(at::native::empty_like_quantized));
}

}  // namespace outrigger
