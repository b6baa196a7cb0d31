//! Device memory on the host's side: CPU tensors over the bytes of device tensors, and back.
//!
//! A `HostScope` lives for one operator that runs on the CPU. It shows device tensors as CPU tensors:
//! over the same bytes if the host can see them, otherwise through one staging copy per storage. While
//! it lives, this thread allocates CPU tensors in device memory (if it is host-visible), so that
//! results become device tensors without a copy. It must never show bytes before the work that was
//! submitted on them has run.
#pragma once

#include "memory.h"

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <vector>

namespace outrigger {

/// One operator's excursion to the CPU.
class HostScope {
 public:
  /// `device` is where results go. The work queued on its current stream is waited for.
  explicit HostScope(c10::Device device);
  ~HostScope();
  HostScope(const HostScope&) = delete;
  HostScope& operator=(const HostScope&) = delete;

  /// Announces a tensor that `to_host` will be asked for, so that one staging copy serves all views of
  /// a storage.
  void announce(const at::Tensor& tensor);

  /// The CPU tensor that shows a device tensor; any other tensor as it is. Changes of a `written` one
  /// reach the device by `finish`; it must have its memory to itself (`own_memory`).
  at::Tensor to_host(const at::Tensor& tensor, bool written);

  /// Brings the changes of written tensors to the device: bytes where staged, and sizes, strides and
  /// storages that the operator changed.
  void finish();

  /// The device tensor of a result: the argument itself where the result is one, a view of an
  /// argument's storage, or a new tensor. CPU tensors only; anything else is handed back as it is.
  at::Tensor to_device(const at::Tensor& result);

  /// Bytes copied between host and device so far.
  uint64_t staged_bytes() const {
    return staged_bytes_;
  }

 private:
  struct Shown {
    c10::Storage device;
    c10::Storage host;
    // The part of the device storage that `host` holds, in bytes, where staged.
    size_t begin = 0;
    size_t end = 0;
    const void* data = nullptr;
    bool written = false;
    bool staged = false;
  };
  struct Argument {
    at::Tensor device;
    at::Tensor host;
  };

  Shown& shown(const c10::Storage& storage);
  void fill(Shown& entry);
  void write_back(Shown& entry);
  at::Tensor adopt(const at::Tensor& result);

  c10::Device device_;
  bool visible_;
  uint64_t staged_bytes_ = 0;
  bool born_before_;
  c10::Device born_device_before_;
  c10::SmallVector<Shown, 8> shown_;
  c10::SmallVector<Argument, 8> arguments_;
  std::vector<std::pair<c10::Storage, c10::Storage>> adopted_;
};

/// Suspends "born in device memory" on this thread, for CPU tensors that stay on the host.
class HostMemoryGuard {
 public:
  HostMemoryGuard();
  ~HostMemoryGuard();
  HostMemoryGuard(const HostMemoryGuard&) = delete;
  HostMemoryGuard& operator=(const HostMemoryGuard&) = delete;

 private:
  bool before_;
};

}  // namespace outrigger
