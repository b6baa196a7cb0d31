//! Creates, resizes and fills tensors, and gives them another storage. It must never create a tensor on
//! a device other than the requested one.

#include "register.h"

#include "fallback.h"
#include "kernel.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/zero_ops.h>

namespace outrigger {
namespace {

// A device argument always says which type; without an index it is the current one.
c10::Device exact(std::optional<c10::Device> device) {
  TORCH_CHECK(
      device.has_value() && is_ours(device->type()), who(), "asked to make a tensor on ",
      device.has_value() ? device->str() : "no device");
  if (device->has_index()) {
    check_device(device->index());
    return *device;
  }
  return {device->type(), current_device()};
}

void check_options(std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(
      layout.value_or(c10::Layout::Strided) == c10::Layout::Strided,
      who(), "only strided tensors can be made here, got ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
}

bool poisons() {
  return must_be_deterministic() && at::globalContext().deterministicFillUninitializedMemory();
}

// Deterministic mode fills memory that nobody has written.
at::Tensor poison_if_deterministic(at::Tensor tensor) {
  if (C10_UNLIKELY(poisons())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

c10::ScalarType usable(std::optional<c10::ScalarType> dtype) {
  if (C10_UNLIKELY(dtype == c10::ScalarType::ComplexHalf || (dtype && is_complex_of_bfloat16(*dtype)))) {
    TORCH_WARN_ONCE(*dtype, " support is experimental and many operators don't support it yet.");
  }
  return dtype.value_or(c10::get_default_dtype_as_scalartype());
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
    std::optional<c10::Device> device, std::optional<bool> pin_memory,
    std::optional<c10::MemoryFormat> format) {
  check_options(layout, pin_memory);
  return poison_if_deterministic(empty_on(
      exact(device), size, usable(dtype),
      format.value_or(c10::MemoryFormat::Contiguous)));
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<c10::ScalarType> dtype,
    std::optional<c10::Layout> layout, std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  check_options(layout, pin_memory);
  return poison_if_deterministic(empty_strided_on(
      exact(device), size, stride, usable(dtype)));
}

// Tensors of zeros without memory, which autograd uses for tangents that are known to vanish.
at::Tensor efficient_zeros(
    c10::IntArrayRef size, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout>,
    std::optional<c10::Device> device, std::optional<bool>) {
  struct NoMemory final : c10::Allocator {
    explicit NoMemory(c10::Device on) : device(on) {}
    c10::DataPtr allocate(size_t) override {
      return {nullptr, device};
    }
    void copy_data(void*, const void*, size_t) const override {}
    c10::Device device;
  };
  const c10::Device on = exact(device);
  NoMemory allocator(on);
  const auto keys = c10::DispatchKeySet(
                        on.type() == c10::DeviceType::MTIA ? c10::DispatchKey::MTIA : c10::DispatchKey::PrivateUse1)
                        .add(c10::DispatchKey::ZeroTensor);
  return at::Tensor(at::detail::empty_generic(
      size, &allocator, keys, dtype.value_or(c10::get_default_dtype_as_scalartype()), std::nullopt));
}

// Gives a tensor sizes and strides, and its storage room for them.
void restride(
    c10::TensorImpl* self, c10::IntArrayRef sizes, at::OptionalIntArrayRef strides, int64_t offset) {
  size_t bytes = 0;
  if (strides.has_value()) {
    bytes = at::detail::computeStorageNbytes(
        sizes, *strides, self->dtype().itemsize(), static_cast<size_t>(offset));
    self->set_sizes_and_strides(sizes, *strides, offset);
  } else {
    bytes = at::detail::computeStorageNbytesContiguous(
        sizes, self->dtype().itemsize(), static_cast<size_t>(offset));
    self->set_storage_offset(offset);
    self->generic_set_sizes_contiguous(sizes);
  }
  if (self->numel() != 0 && bytes > self->unsafe_storage().nbytes()) {
    resize_storage(self->unsafe_storage().unsafeGetStorageImpl(), bytes);
  }
}

const at::Tensor& resize(
    const at::Tensor& self, c10::IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  at::detail::check_size_nonnegative(size);
  const auto bytes_before = static_cast<int64_t>(self.storage().nbytes());
  if (self.sizes() != size) {
    restride(self.unsafeGetTensorImpl(), size, std::nullopt, self.storage_offset());
  }
  if (format.has_value()) {
    TORCH_CHECK(
        *format != c10::MemoryFormat::Preserve, "Unsupported memory format for resize_: ", *format);
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  if (C10_UNLIKELY(poisons())) {
    at::native::fill_resize_deterministic_(self, bytes_before);
  }
  return self;
}

at::Tensor& set_storage(
    at::Tensor& self, at::Storage source, int64_t offset, c10::IntArrayRef size, c10::IntArrayRef stride) {
  at::native::checkSetStorage(self, source, offset, size, stride);
  restride(
      self.unsafeGetTensorImpl(), size,
      stride.data() != nullptr ? at::OptionalIntArrayRef(stride) : std::nullopt, offset);
  return self;
}

at::Tensor& set_empty(at::Tensor& self) {
  const c10::Device device = self.device();
  c10::Storage storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, allocate(device, 0), allocator_of(device.type()), true);
  return set_storage(self, std::move(storage), 0, {0}, {});
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  if (self.numel() == 0) {
    return self;
  }
  if (!has_number(value, self.scalar_type()) || !fill_native(self, value)) {
    fall_back<at::_ops::fill__Scalar>(self, value);
  }
  return self;
}

at::Tensor& fill_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(
      value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
      " dimensions.");
  if (value.device().is_cpu()) {
    return fill_scalar(self, value_of(value));
  }
  if (self.numel() != 0) {
    TORCH_CHECK(
        value.device() == self.device(), "Expected all tensors to be on the same device, but found at least two "
        "devices, ", self.device(), " and ", value.device(), "!");
    copy_on_device(self, value);
  }
  return self;
}

at::Tensor& zero(at::Tensor& self) {
  if (self.numel() == 0) {
    return self;
  }
  if (self.is_non_overlapping_and_dense()) {
    // Zero is all bits zero in every dtype.
    const uint8_t nothing = 0;
    check(otr_fill(stream_of(self), written_address(self), self.nbytes(), &nothing, 1));
    return self;
  }
  if (!fill_native(self, 0)) {
    fall_back<at::_ops::zero_>(self);
  }
  return self;
}

}  // namespace

void register_factories(torch::Library& m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zeros);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage", TORCH_FN(static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(at::native::set_)));
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  m.impl("set_", &set_empty);
  m.impl("fill_.Scalar", &fill_scalar);
  m.impl("fill_.Tensor", &fill_tensor);
  m.impl("zero_", &zero);
}

}  // namespace outrigger
