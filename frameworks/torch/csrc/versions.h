//! Differences between the versions of torch that the shim is built against, 2.11 to 2.15: each once, under a name that
//! every version has. Other files must never ask for a version, but for what a version does not have at all.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/headeronly/version.h>

#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#define OUTRIGGER_TORCH_SINCE(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

#if !OUTRIGGER_TORCH_SINCE(11)
#error "torch_outrigger needs torch 2.11 or newer"
#endif

#if OUTRIGGER_TORCH_SINCE(13)
/// The names of dimensions, which the meta functions of structured operators had behind the options: as a parameter, and passed on.
#define OUTRIGGER_NAMES_PARAMETER
#define OUTRIGGER_NAMES
#else
#include <ATen/core/Dimname.h>
#include <c10/core/impl/COW.h>
#define OUTRIGGER_NAMES_PARAMETER , at::DimnameList names
#define OUTRIGGER_NAMES , names
#endif

#if !OUTRIGGER_TORCH_SINCE(14)
/// Kineto's header formats numbers with a library that torch has within and does not export.
#define FMT_HEADER_ONLY
#endif

namespace outrigger {

/// Whether memory of this storage is made, or made its own, at the first write.
inline bool is_lazy(const c10::StorageImpl* storage) {
#if OUTRIGGER_TORCH_SINCE(13)
  return storage->has_materializer();
#else
  return c10::impl::cow::is_cow_data_ptr(storage->data_ptr());
#endif
}

/// Whether this is the complex number of two bfloat16.
constexpr bool is_complex_of_bfloat16(c10::ScalarType type) {
#if OUTRIGGER_TORCH_SINCE(14)
  return type == c10::ScalarType::BComplex32;
#else
  return false;
#endif
}

/// The type in which an iterator computes, if it found one.
template <class Iterator>
std::optional<c10::ScalarType> common_type(const Iterator& iterator) {
#if OUTRIGGER_TORCH_SINCE(13)
  return iterator.maybe_common_dtype();
#else
  // Torch's accessor asserts that there is a type.
  struct Open : Iterator {
    using Iterator::common_dtype_;
  };
  const c10::ScalarType type = iterator.*(&Open::common_dtype_);
  return type == c10::ScalarType::Undefined ? std::nullopt : std::optional(type);
#endif
}

/// A copy of a group's options. Before 2.14 nothing copies them with their type, and torch itself shares them between groups.
template <class Options>
c10::intrusive_ptr<Options> copy_of(const c10::intrusive_ptr<Options>& options) {
#if OUTRIGGER_TORCH_SINCE(14)
  return options->clone();
#else
  return options;
#endif
}

/// The numbers of collectives over several pairs of tensors. Before 2.14 they had none of their own.
template <class OpType>
constexpr OpType kAllGatherCoalesced =
#if OUTRIGGER_TORCH_SINCE(14)
    OpType::ALLGATHER_INTO_TENSOR_COALESCED;
#else
    OpType::_ALLGATHER_BASE;
#endif
template <class OpType>
constexpr OpType kReduceScatterCoalesced =
#if OUTRIGGER_TORCH_SINCE(14)
    OpType::REDUCE_SCATTER_TENSOR_COALESCED;
#else
    OpType::_REDUCE_SCATTER_BASE;
#endif

/// Notes a number or a text with a row of a profile.
template <class Activity, class Value>
void add_metadata(Activity& activity, const char* key, Value value) {
#if OUTRIGGER_TORCH_SINCE(14)
  activity.addTypedMetadata(key, std::move(value));
#else
  if constexpr (std::is_same_v<Value, std::string>) {
    activity.addMetadataQuoted(key, value);
  } else {
    activity.addMetadata(key, value);
  }
#endif
}

}  // namespace outrigger
