//! Collectives on device memory over torch's Gloo, which works on memory of the CPU. A call of Gloo runs as a host
//! call of a stream: behind the work that makes the data, before the work that needs it, and no thread of the program
//! waits. Gloo gets the device's own bytes where the host sees them, else a copy in pinned memory.
#pragma once

#include "peer_failure.h"
#include "runtime.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace outrigger {

/// Device tensors as CPU tensors for one call of Gloo that a stream runs. What is read is there when the stream
/// comes to the call; what is written is on the device behind `finish`.
class HostImages {
 public:
  HostImages(c10::DeviceIndex device, otr_stream_t stream);
  ~HostImages();
  HostImages(const HostImages&) = delete;
  HostImages& operator=(const HostImages&) = delete;

  /// The elements of a dense tensor, in the order of memory.
  at::Tensor elements(const at::Tensor& tensor, bool read, bool written);
  /// The same as bytes.
  at::Tensor bytes(const at::Tensor& tensor, bool read, bool written);
  /// The bytes of several tensors, one behind the other. Undefined tensors have none.
  at::Tensor joined(const std::vector<at::Tensor>& tensors, bool read, bool written);

  /// Brings what was written to the device. Behind the call of Gloo, in the order of the stream.
  void finish();

 private:
  struct Copy {
    otr_address_t device;
    char* host;
    size_t bytes;
  };

  // Bytes of pinned memory that live until the stream has passed `finish`.
  char* stage(size_t bytes);
  // The place of a tensor's bytes on the host, filled and to be brought back as asked.
  void* place(const at::Tensor& tensor, bool read, bool written);
  void copy(const at::Tensor& tensor, char* host, bool read, bool written);

  const c10::DeviceIndex device_;
  const otr_stream_t stream_;
  const bool visible_;
  std::vector<void*> staged_;
  std::vector<Copy> back_;
};

/// Gloo on streams, for one group of ranks.
class GlooEngine {
 public:
  /// A call of Gloo, which starts work and waits for it.
  using Call = std::function<void(c10d::Backend&)>;

  GlooEngine(c10::intrusive_ptr<c10d::Backend> gloo, std::string group, std::shared_ptr<PeerFailure> failure);

  /// Gloo itself.
  c10d::Backend& gloo() const {
    return *gloo_;
  }
  /// Whether Gloo combines elements of this type in this way.
  static bool combines(c10::ScalarType type, c10d::ReduceOp::RedOpType how);

  /// Has the stream make a call of Gloo. `images` are those that the call uses. The engine outlives the call.
  void submit(otr_stream_t stream, HostImages& images, std::string name, Call call);

 private:
  struct Task {
    const GlooEngine* engine;
    std::string name;
    Call call;
  };
  static otr_code_t run(void* user, otr_code_t upstream) noexcept;

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const std::string group_;
  const std::shared_ptr<PeerFailure> failure_;
  // A stream may run the call on a thread that is in the middle of something else.
  const at::ThreadLocalState plain_;
};

}  // namespace outrigger
