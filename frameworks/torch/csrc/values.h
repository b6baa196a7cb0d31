//! Tensors inside the values that torch's boxed calls pass. It must never know a device.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

namespace outrigger {

/// The kind of an argument's type, of an optional one that of what may be there.
inline c10::TypeKind kind_of(const c10::Argument& argument) {
  const c10::TypePtr& declared = argument.real_type();
  return declared->kind() == c10::TypeKind::OptionalType
      ? declared->castRaw<c10::OptionalType>()->getElementType()->kind()
      : declared->kind();
}

/// Calls `visit` for every tensor in a value.
template <class Visit>
void each_tensor(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      visit(tensor);
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor.has_value()) {
        visit(*tensor);
      }
    }
  }
}

/// A value with every tensor in it replaced by the result of `convert`.
template <class Convert>
c10::IValue map_tensors(const c10::IValue& value, const Convert& convert) {
  if (value.isTensor()) {
    return convert(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(convert(tensor));
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      list.push_back(tensor.has_value() ? std::optional<at::Tensor>(convert(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

}  // namespace outrigger
