//! The results that an operator will return, found without running it on the device: their shapes come from its meta
//! function on images of the arguments, or from a run of the CPU's kernel on zeros. Device memory must never be read.
#pragma once

#include "runtime.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <string>
#include <vector>

namespace outrigger {

/// Dispatch as it is on a new thread, below autograd: modes of the thread that happens to run something, such as
/// autocast or a tracing mode, are left out.
struct PlainDispatch {
  c10::impl::ForceDispatchKeyGuard keys{
      c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
  at::NoGradGuard no_grad;
};

/// The results of one call, without their bytes.
class Images {
 public:
  /// A tensor of the arguments, and its image: what stands for it while shapes are found.
  struct Pair {
    at::Tensor real;
    at::Tensor image;
    c10::Storage storage;  // the image's, before the operator saw it
  };

  /// The meaning of an error of the meta function: that the arguments are wrong, or that nobody knows the results.
  enum class Errors { kThrow, kAreNoAnswer };

  explicit Images(const c10::OperatorHandle& op) : op_(op) {}

  /// Finds the results. False if nobody knows them; `problem` says why.
  bool infer(c10::ArrayRef<c10::IValue> arguments, Errors errors);

  /// Gives arguments the sizes and room that their images were given, as out= variants do. False, with nothing
  /// changed, if one was given another storage.
  bool resize_arguments() const;

  /// The results, as images.
  const torch::jit::Stack& results() const {
    return results_;
  }

  /// The argument whose image a result is; undefined if it is none.
  at::Tensor argument_of(const at::Tensor& result) const;

  /// The argument whose storage a result shares without being its image; undefined if there is none.
  at::Tensor base_of(const at::Tensor& result) const;

  /// Whether a result is on the device of the images.
  bool is_image(const at::Tensor& result) const {
    return result.device() == device_;
  }

  /// The reason why nothing was found.
  const std::string& problem() const {
    return problem_;
  }

 private:
  bool run(c10::ArrayRef<c10::IValue> arguments, c10::DeviceType where, c10::DispatchKey key);
  at::Tensor image_of(const at::Tensor& tensor);

  const c10::OperatorHandle& op_;
  c10::Device device_{c10::DeviceType::Meta};
  std::vector<Pair> pairs_;
  torch::jit::Stack results_;
  std::string problem_;
};

}  // namespace outrigger
