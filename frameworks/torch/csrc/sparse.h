//! Moves sparse and nested tensors to the CPU and back: it moves their dense members, and makes a new
//! tensor of them. It must never densify.
#pragma once

#include "host.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace outrigger {

/// A HostScope for tensors of every layout, which uses another one for the dense tensors.
class SparseScope {
 public:
  explicit SparseScope(HostScope& scope) : scope_(scope) {}

  /// See HostScope::announce.
  void announce(const at::Tensor& tensor);
  /// See HostScope::to_host.
  at::Tensor to_host(const at::Tensor& tensor, bool written);
  /// Gives written sparse tensors their new members. After the HostScope's own `finish`.
  void finish();
  /// See HostScope::to_device.
  at::Tensor to_device(const at::Tensor& result);

  /// The CPU dispatch key that the arguments seen so far ask for.
  c10::DispatchKey key() const {
    return key_;
  }

 private:
  struct Argument {
    at::Tensor device;
    at::Tensor host;
    bool written;
  };

  at::Tensor with_gradient_of(const at::Tensor& tensor, at::Tensor host) const;

  HostScope& scope_;
  c10::DispatchKey key_ = c10::DispatchKey::CPU;
  std::vector<Argument> arguments_;
};

/// Registers what sparse COO tensors need beside the fallback. `key` is the key of `library`.
void register_sparse_coo(torch::Library& library, c10::DispatchKey key);

/// Registers what sparse compressed tensors of PrivateUse1 need beside the fallback. torch has none for MTIA.
void register_sparse_compressed(torch::Library& library);

}  // namespace outrigger
