//! Reads calls: what selects their class, and what a recipe sees of them.

#include "sight.h"

#include "memory.h"

#include <c10/core/DefaultDtype.h>

#include <algorithm>
#include <cstring>

namespace outrigger {
namespace {

bool has_text(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::UInt64:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double: return true;
    default: return false;
  }
}

std::vector<int64_t> contiguous_strides(c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

}  // namespace

Sight::Sight(c10::Device device) {
  call.device = device;
  add(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
}

void Sight::add(int64_t word) {
  key.append(reinterpret_cast<const char*>(&word), sizeof word);
}

bool Sight::argument(const c10::IValue& value) {
  if (value.isNone()) {
    add('n');
  } else if (value.isTensor()) {
    return tensor(value.toTensor());
  } else if (value.isTensorList()) {
    const auto list = value.toTensorVector();
    add('T');
    add(static_cast<int64_t>(list.size()));
    return std::all_of(list.begin(), list.end(), [&](const at::Tensor& one) { return tensor(one); });
  } else if (value.isInt() || value.isBool()) {
    add(value.isInt() ? 'i' : 'b');
    add(value.isInt() ? value.toInt() : static_cast<int64_t>(value.toBool()));
  } else if (value.isDouble()) {
    const double number = value.toDouble();
    int64_t bits = 0;
    std::memcpy(&bits, &number, sizeof bits);
    add('d');
    add(bits);
  } else if (value.isIntList() || value.isBoolList() || value.isDoubleList()) {
    const auto list = value.toList();
    add('L');
    add(static_cast<int64_t>(list.size()));
    for (const c10::IValue& one : list) {
      if (!argument(one)) {
        return false;
      }
    }
  } else if (value.isSymIntList()) {
    const auto list = value.toSymIntVector();
    add('L');
    add(static_cast<int64_t>(list.size()));
    for (const c10::SymInt& one : list) {
      if (one.is_symbolic()) {
        return false;
      }
      add('i');
      add(one.expect_int());
    }
  } else if (value.isString()) {
    add('s');
    add(static_cast<int64_t>(value.toStringRef().size()));
    key += value.toStringRef();
  } else if (value.isDevice()) {
    add('v');
    return value.toDevice() == call.device || (value.toDevice().type() == call.device.type() && !value.toDevice().has_index());
  } else {
    return false;
  }
  return true;
}

void Sight::look(bool is_pointwise) {
  const at::Tensor* model = nullptr;
  bool are_alike = is_pointwise;
  for (const at::Tensor& one : call.inputs) {
    if (one.dim() == 0) {
      continue;
    }
    if (model == nullptr) {
      model = &one;
      are_alike = are_alike && one.is_non_overlapping_and_dense();
    } else {
      are_alike = are_alike && one.sizes() == model->sizes() && one.strides() == model->strides();
    }
  }
  call.is_flat = are_alike && model != nullptr;
  if (call.is_flat) {
    note(*model);
  }
  add(call.is_flat ? 1 : 0);
  for (const at::Tensor& one : call.inputs) {
    const bool is_flat = call.is_flat && one.dim() > 0;
    add(is_flat ? 1 : static_cast<int64_t>(one.dim()));
    const int64_t count = is_flat ? one.numel() : 0, step = 1;
    field(is_flat ? c10::IntArrayRef(count) : one.sizes());
    field(is_flat ? c10::IntArrayRef(step) : one.strides());
  }
}

at::Tensor Sight::shown(size_t number) const {
  const at::Tensor& one = call.inputs.at(number);
  return call.is_flat && one.dim() > 0
      ? tensor_over(one.storage(), {one.numel()}, {1}, one.storage_offset(), one.dtype())
      : one;
}

bool Sight::tensor(const at::Tensor& one) {
  if (!one.defined()) {
    add('u');
    return true;
  }
  add('t');
  add(static_cast<int64_t>(one.scalar_type()));
  call.inputs.push_back(one);
  // A nested tensor says that it is strided, and has no sizes to ask for.
  return !one.is_nested() && one.device() == call.device && one.layout() == c10::Layout::Strided && has_text(one.scalar_type()) &&
      !one.is_conj() && !one.is_neg() && one.numel() > 0;
}

void Sight::field(c10::IntArrayRef values) {
  for (const int64_t each : values) {
    call.fields.push_back(each);
    add(std::min<int64_t>(each, 2));
  }
}

void Sight::note(const at::Tensor& model) {
  call.sizes.assign(model.sizes().begin(), model.sizes().end());
  const auto strides = model.is_contiguous() ? contiguous_strides(model.sizes())
      : model.is_contiguous(at::MemoryFormat::ChannelsLast) ? c10::get_channels_last_strides_2d(model.sizes())
      : model.is_contiguous(at::MemoryFormat::ChannelsLast3d) ? c10::get_channels_last_strides_3d(model.sizes())
                                                              : model.strides().vec();
  call.strides.assign(strides.begin(), strides.end());
}

}  // namespace outrigger
