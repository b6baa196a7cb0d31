//! Gloo as host calls. The function that a stream calls must never call the runtime, and it frees no device memory:
//! it knows that memory by its address alone.

#include "distributed_gloo.h"

#include "host.h"
#include "memory.h"

#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include <algorithm>

namespace outrigger {
namespace {

at::Tensor host_tensor(void* place, int64_t count, c10::ScalarType type) {
  return at::from_blob(place, {count}, at::TensorOptions(type));
}

}  // namespace

HostImages::HostImages(c10::DeviceIndex device, otr_stream_t stream)
    : device_(device), stream_(stream), visible_(is_host_visible(device)) {}

HostImages::~HostImages() {
  // Freed in the order of the stream, which is recorded on the memory.
  for (void* memory : staged_) {
    warn_if_failed(otr_host_record_stream(memory, stream_), "recording a stream on staging memory");
    warn_if_failed(otr_host_free(memory), "freeing staging memory");
  }
}

char* HostImages::stage(size_t bytes) {
  void* memory = nullptr;
  check(otr_host_alloc(std::max<size_t>(bytes, 1), &memory));
  staged_.push_back(memory);
  return static_cast<char*>(memory);
}

void HostImages::copy(const at::Tensor& tensor, char* host, bool read, bool written) {
  const size_t bytes = tensor.nbytes();
  if (bytes == 0) {
    return;
  }
  const otr_address_t device = written ? written_address(tensor) : address_of(tensor.const_data_ptr());
  if (read) {
    check(otr_copy(stream_, address_of(host), device, bytes, OTR_COPY_DEVICE_TO_HOST));
  }
  if (written) {
    back_.push_back({device, host, bytes});
  }
}

void* HostImages::place(const at::Tensor& tensor, bool read, bool written) {
  if (tensor.nbytes() == 0) {
    static char nothing[16];
    return nothing;
  }
  if (visible_) {
    own_memory_of(tensor);
    return written ? tensor.mutable_data_ptr() : const_cast<void*>(tensor.const_data_ptr());
  }
  char* host = stage(tensor.nbytes());
  copy(tensor, host, read, written);
  return host;
}

at::Tensor HostImages::elements(const at::Tensor& tensor, bool read, bool written) {
  return host_tensor(place(tensor, read, written), tensor.numel(), tensor.scalar_type());
}

at::Tensor HostImages::bytes(const at::Tensor& tensor, bool read, bool written) {
  return host_tensor(place(tensor, read, written), static_cast<int64_t>(tensor.nbytes()), at::kByte);
}

at::Tensor HostImages::joined(const std::vector<at::Tensor>& tensors, bool read, bool written) {
  size_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    total += tensor.defined() ? tensor.nbytes() : 0;
  }
  char* const host = stage(total);
  size_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      copy(tensor, host + offset, read, written);
      offset += tensor.nbytes();
    }
  }
  return host_tensor(host, static_cast<int64_t>(total), at::kByte);
}

void HostImages::finish() {
  for (const Copy& copy : back_) {
    check(otr_copy(stream_, copy.device, address_of(copy.host), copy.bytes, OTR_COPY_HOST_TO_DEVICE));
  }
  back_.clear();
}

GlooEngine::GlooEngine(
    c10::intrusive_ptr<c10d::Backend> gloo, std::string group, std::shared_ptr<PeerFailure> failure)
    : gloo_(std::move(gloo)), group_(std::move(group)), failure_(std::move(failure)) {}

bool GlooEngine::combines(c10::ScalarType type, c10d::ReduceOp::RedOpType how) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return how <= c10d::ReduceOp::MAX;
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kBool:
      return how <= c10d::ReduceOp::BXOR && how != c10d::ReduceOp::AVG;
    default:
      return false;
  }
}

void GlooEngine::submit(otr_stream_t stream, HostImages& images, std::string name, Call call) {
  auto task = std::make_unique<Task>(Task{this, std::move(name), std::move(call)});
  check(otr_host_call(stream, &run, task.get()));
  // The call owns it from here on.
  task.release();
  images.finish();
}

otr_code_t GlooEngine::run(void* user, otr_code_t upstream) noexcept {
  const std::unique_ptr<Task> task(static_cast<Task*>(user));
  const GlooEngine& engine = *task->engine;
  std::string reason;
  try {
    if (upstream != OTR_OK) {
      // Other ranks learn of the failure from their timeout.
      engine.failure_->note(c10::str(
          task->name, " of the group ", engine.group_, " (rank ", engine.gloo_->getRank(),
          ") was not done: the work before it had failed"));
      return upstream;
    }
    // The thread may be one of torch's, in the middle of an operator or of a mode of Python's.
    const at::ThreadLocalStateGuard plain(engine.plain_);
    const HostMemoryGuard on_host;
    const at::DisableRecordFunctionGuard unobserved;
    task->call(*engine.gloo_);
    return OTR_OK;
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
    reason = "an unknown exception";
  }
  try {
    engine.failure_->note(c10::str(
        task->name, " of the group ", engine.group_, " (rank ", engine.gloo_->getRank(), " of ",
        engine.gloo_->getSize(), ") failed in Gloo: another rank has ended, failed, or not come in time. ", reason));
  } catch (...) {
    // Without memory for the reason there is still the code.
  }
  return OTR_ERR_PEER_LOST;
}

}  // namespace outrigger
