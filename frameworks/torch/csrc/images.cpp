//! Makes and compares images. An image shares its storage with the images of what shares memory on the device.

#include "images.h"

#include "memory.h"
#include "values.h"

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstring>

namespace outrigger {
namespace {

/// Operators whose meta functions tell the shapes of other devices, which are not the CPU's.
constexpr std::string_view kOtherMeta[] = {
    "aten::_embedding_bag", "aten::_embedding_bag_forward_only", "aten::native_batch_norm",
    "aten::_native_batch_norm_legit"};

/// Whether a meta function failed for want of values, and not because the arguments are wrong, which is
/// the caller's to hear.
bool lacks_shape(const std::string& problem, bool not_implemented) {
  return not_implemented || problem.find("meta tensor") != std::string::npos;
}

}  // namespace

bool Images::infer(c10::ArrayRef<c10::IValue> arguments, Errors errors) {
  try {
    if (std::find(std::begin(kOtherMeta), std::end(kOtherMeta), op_.schema().name()) == std::end(kOtherMeta)) {
      return run(arguments, c10::DeviceType::Meta, c10::DispatchKey::Meta);
    }
  } catch (const c10::Error& error) {
    problem_ = error.what_without_backtrace();
    if (errors == Errors::kThrow && !lacks_shape(problem_, dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr)) {
      throw;
    }
  } catch (const std::exception& error) {
    // Of a meta function in Python: the text starts with the name of the exception.
    problem_ = error.what();
    if (errors == Errors::kThrow && !lacks_shape(problem_, problem_.compare(0, 19, "NotImplementedError") == 0)) {
      throw;
    }
  }
  if (!op_.hasTag(at::Tag::dynamic_output_shape) && !op_.hasTag(at::Tag::data_dependent_output)) {
    try {
      return run(arguments, c10::DeviceType::CPU, c10::DispatchKey::CPU);
    } catch (const c10::Error& error) {
      problem_ = error.what_without_backtrace();
    }
  }
  return false;
}

bool Images::run(c10::ArrayRef<c10::IValue> arguments, c10::DeviceType where, c10::DispatchKey key) {
  pairs_.clear();
  device_ = c10::Device(where);
  torch::jit::Stack stack;
  bool possible = true;
  for (const c10::IValue& value : arguments) {
    if (value.isDevice() && is_ours(value.toDevice().type())) {
      stack.emplace_back(device_);
      continue;
    }
    stack.push_back(map_tensors(value, [&](const at::Tensor& tensor) {
      // The value of a CPU scalar is known, and may be asked for.
      if (!tensor.defined() || (!is_ours(tensor) && tensor.dim() == 0)) {
        return tensor;
      }
      if (tensor.layout() != c10::Layout::Strided || !tensor.has_storage() || tensor.is_quantized()) {
        possible = false;
        return tensor;
      }
      return image_of(tensor);
    }));
  }
  if (!possible) {
    problem_ = "only dense tensors can be shown to a CPU kernel in a graph";
    return false;
  }
  const PlainDispatch dispatch;
  op_.redispatchBoxed(c10::DispatchKeySet(key), &stack);
  results_ = std::move(stack);
  return true;
}

at::Tensor Images::image_of(const at::Tensor& tensor) {
  for (const Pair& pair : pairs_) {
    if (pair.real.is_same(tensor)) {
      return pair.image;
    }
  }
  c10::Storage storage;
  for (const Pair& pair : pairs_) {
    if (pair.real.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
      storage = pair.storage;
    }
  }
  if (!storage) {
    const size_t bytes = tensor.storage().nbytes();
    c10::Allocator* allocator = c10::GetAllocator(device_.type());
    c10::DataPtr data = allocator->allocate(bytes);
    if (device_.is_cpu() && bytes != 0) {
      std::memset(data.get(), 0, bytes);
    }
    storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator, /*resizable=*/true);
  }
  at::Tensor made = tensor_over(storage, tensor.sizes(), tensor.strides(), tensor.storage_offset(), tensor.dtype());
  if (tensor.is_conj()) {
    made._set_conj(true);
  }
  if (tensor.is_neg()) {
    made._set_neg(true);
  }
  pairs_.push_back({tensor, made, std::move(storage)});
  return made;
}

bool Images::resize_arguments() const {
  for (const Pair& pair : pairs_) {
    if (pair.image.storage().unsafeGetStorageImpl() != pair.storage.unsafeGetStorageImpl()) {
      return false;
    }
  }
  for (const Pair& pair : pairs_) {
    const at::Tensor& image = pair.image;
    c10::TensorImpl* impl = pair.real.unsafeGetTensorImpl();
    if (is_ours(pair.real) && pair.storage.nbytes() > pair.real.storage().nbytes()) {
      resize_storage(pair.real.storage().unsafeGetStorageImpl(), pair.storage.nbytes());
    }
    if (impl->sizes() != image.sizes() || impl->strides() != image.strides() ||
        impl->storage_offset() != image.storage_offset()) {
      impl->set_sizes_and_strides(image.sizes(), image.strides(), image.storage_offset());
    }
  }
  return true;
}

at::Tensor Images::argument_of(const at::Tensor& result) const {
  for (const Pair& pair : pairs_) {
    if (pair.image.is_same(result)) {
      return pair.real;
    }
  }
  return {};
}

at::Tensor Images::base_of(const at::Tensor& result) const {
  for (const Pair& pair : pairs_) {
    if (result.has_storage() &&
        pair.storage.unsafeGetStorageImpl() == result.storage().unsafeGetStorageImpl()) {
      return pair.real;
    }
  }
  return {};
}

}  // namespace outrigger
