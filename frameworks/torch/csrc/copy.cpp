//! Copies in all directions, in stream order, with `non_blocking`; and values that the host reads. It
//! must never read or write device memory on the calling thread before the stream has reached this
//! point. It must never read pageable memory of the caller after the call.

#include "register.h"

#include "capture.h"
#include "fallback.h"
#include "kernel.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/quantized/Quantizer.h>

#include <cstring>

namespace outrigger {
namespace {

// Pageable sources up to this size are staged even in blocking copies of a program with one stream, so that
// the caller need not wait for the work queued before.
constexpr size_t kStagedBytes = 64 * 1024;

// Two tensors whose elements lie in the same dense order: their bytes can be copied as one block.
bool same_dense_layout(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
      ((a.is_contiguous() && b.is_contiguous()) ||
       (a.strides() == b.strides() && a.is_non_overlapping_and_dense()));
}

// Conjugation and negation are bits on tensors; a physical copy applies the difference afterwards.
void resolve_bits(const at::Tensor& to, bool conjugate, bool negate) {
  if (conjugate) {
    to.conj_physical_();
  }
  if (negate) {
    to.neg_();
  }
}

// The same elements without the bits and without a quantizer, to be handled as plain memory.
at::Tensor plain(const at::Tensor& tensor) {
  if (!tensor.is_conj() && !tensor.is_neg() && !tensor.is_quantized()) {
    return tensor;
  }
  return tensor_over(
      tensor.storage(), tensor.sizes(), tensor.strides(), tensor.storage_offset(), tensor.dtype());
}

// A blocking copy must be there for all streams when the call returns.
bool must_arrive(bool non_blocking) {
  return !non_blocking && has_streams.load(std::memory_order_relaxed);
}

// Waits for what the device does behind the bytes of a copy from the host.
void let_arrive(const at::Tensor& to, bool non_blocking) {
  if (C10_UNLIKELY(must_arrive(non_blocking))) {
    const otr_stream_t stream = stream_of(to);
    if (!is_capturing(stream)) {
      synchronize(stream);
    }
  }
}

// Bytes from the host; `source` and `to` have the same dense layout.
void upload(const at::Tensor& to, const at::Tensor& source, bool non_blocking) {
  const size_t bytes = to.nbytes();
  if (bytes == 0) {
    return;
  }
  const otr_stream_t stream = stream_of(to);
  const otr_address_t address = written_address(to);
  const void* from = source.const_data_ptr();
  if (C10_UNLIKELY(is_capturing(stream))) {
    // Each replay reads what the host's memory holds by then, so the graph keeps it.
    keep_copy_in_capture(stream, source.storage());
    check(otr_copy(stream, address, address_of(from), bytes, OTR_COPY_HOST_TO_DEVICE));
    return;
  }
  const bool pinned = is_pinned(from);
  uint32_t idle = 0;
  if (!pinned) {
    check(otr_stream_query(stream, &idle));
  }
  if (!pinned && idle == 0 && (non_blocking || bytes <= kStagedBytes) && !must_arrive(non_blocking)) {
    // The caller may change pageable memory once we return: what it holds now is put aside. Freeing is
    // in stream order, as the stream is recorded on the block.
    void* staging = nullptr;
    check(otr_host_alloc(bytes, &staging));
    std::memcpy(staging, from, bytes);
    otr_status_t* copied = otr_copy(stream, address, address_of(staging), bytes, OTR_COPY_HOST_TO_DEVICE);
    warn_if_failed(otr_host_record_stream(staging, stream), "recording a stream on staging memory");
    warn_if_failed(otr_host_free(staging), "freeing staging memory");
    check(copied);
    return;
  }
  check(otr_copy(stream, address, address_of(from), bytes, OTR_COPY_HOST_TO_DEVICE));
  if (pinned && non_blocking) {
    check(otr_host_record_stream(const_cast<void*>(from), stream));
  } else {
    synchronize(stream);
  }
}

// Bytes to the host; `target` and `from` have the same dense layout.
void download(const at::Tensor& target, const at::Tensor& from, bool non_blocking) {
  const size_t bytes = from.nbytes();
  if (bytes == 0) {
    return;
  }
  const otr_stream_t stream = stream_of(from);
  void* to = target.mutable_data_ptr();
  if (C10_UNLIKELY(is_capturing(stream))) {
    if (!non_blocking || !is_pinned(to)) {
      refuse_capture(
          stream, "copy_",
          "a copy to the CPU's memory is waited for, but the work before it is being recorded and has not run. "
          "Copy after the replay, or copy into pinned memory with non_blocking=True, which each replay then does");
    }
    keep_copy_in_capture(stream, target.storage());
    check(otr_copy(stream, address_of(to), address_of(from.const_data_ptr()), bytes, OTR_COPY_DEVICE_TO_HOST));
    return;
  }
  check(otr_copy(stream, address_of(to), address_of(from.const_data_ptr()), bytes, OTR_COPY_DEVICE_TO_HOST));
  if (non_blocking && is_pinned(to)) {
    check(otr_host_record_stream(to, stream));
  } else {
    // Pageable memory is read by its owner without asking any stream.
    synchronize(stream);
  }
}

void host_to_device(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  at::Tensor source = from.to(to.scalar_type()).expand(to.sizes());
  if (same_dense_layout(to, source)) {
    upload(to, source, non_blocking);
    return;
  }
  source = source.contiguous();
  if (to.is_contiguous()) {
    upload(to, source, non_blocking);
    return;
  }
  const at::Tensor dense = empty_on(to.device(), to.sizes(), to.scalar_type());
  upload(dense, source, non_blocking);
  copy_on_device(to, dense);
  let_arrive(to, non_blocking);
}

void device_to_host(const at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  at::Tensor source = from;
  if (from.sizes() != to.sizes() || from.scalar_type() != to.scalar_type() ||
      !from.is_non_overlapping_and_dense() || (from.strides() != to.strides() && !from.is_contiguous())) {
    source = empty_on(from.device(), to.sizes(), to.scalar_type());
    copy_on_device(source, from);
  }
  if (same_dense_layout(to, source)) {
    download(to, source, non_blocking);
    return;
  }
  const HostMemoryGuard on_host;
  const at::Tensor dense = at::detail::empty_cpu(source.sizes(), source.scalar_type());
  download(dense, source.contiguous(), /*non_blocking=*/false);
  to.copy_(dense);
}

// Orders `later` behind what is queued on `earlier` now.
void order(otr_stream_t later, otr_stream_t earlier, c10::DeviceIndex device_of_earlier) {
  otr_event_t event = 0;
  check(otr_event_create(static_cast<uint32_t>(device_of_earlier), 0, &event));
  otr_status_t* status = otr_event_record(event, earlier);
  if (status == nullptr) {
    status = otr_stream_wait_event(later, event);
  }
  warn_if_failed(otr_event_destroy(event), "destroying an event");
  check(status);
}

void device_to_device(const at::Tensor& to, const at::Tensor& from) {
  if (to.device().index() == from.device().index()) {
    if (same_dense_layout(to, from)) {
      if (to.nbytes() != 0 && to.const_data_ptr() != from.const_data_ptr()) {
        check(otr_copy(
            stream_of(to), written_address(to), address_of(from.const_data_ptr()), to.nbytes(),
            OTR_COPY_DEVICE_TO_DEVICE));
      }
      return;
    }
    copy_on_device(to, from);
    return;
  }
  at::Tensor source = from;
  if (from.sizes() != to.sizes() || from.scalar_type() != to.scalar_type() || !from.is_contiguous()) {
    source = empty_on(from.device(), to.sizes(), to.scalar_type());
    copy_on_device(source, from);
  }
  const at::Tensor target = to.is_contiguous() ? to : empty_on(to.device(), to.sizes(), to.scalar_type());
  // On the source's stream, after the target's, and the target's later work after it: both blocks are
  // then used in the order of the stream that they were allocated on.
  const otr_stream_t source_stream = stream_of(source);
  const otr_stream_t target_stream = stream_of(target);
  order(source_stream, target_stream, target.device().index());
  if (target.nbytes() != 0) {
    check(otr_copy_peer(
        source_stream, static_cast<uint32_t>(target.device().index()), written_address(target),
        static_cast<uint32_t>(source.device().index()), address_of(source.const_data_ptr()), target.nbytes()));
  }
  order(target_stream, source_stream, source.device().index());
  if (!target.is_same(to)) {
    copy_on_device(to, target);
  }
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  TORCH_CHECK(
      from.layout() == c10::Layout::Strided && to.layout() == c10::Layout::Strided,
      who(), "copy between layouts ", from.layout(), " and ", to.layout(), " is not a dense copy");
  if (to.is_quantized()) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        from.is_quantized(), who(), "a copy from ", from.scalar_type(), " to a quantized tensor. Quantize it "
        "with torch.quantize_per_tensor or torch.quantize_per_channel");
    at::set_quantizer_(to, quantizer_of(from));
  }
  if (to.numel() == 0) {
    return to;
  }
  at::assert_no_internal_overlap(to);
  at::assert_no_partial_overlap(to, from);
  const at::Tensor target = plain(to);
  const bool conjugate = from.is_conj() != to.is_conj() && from.is_complex();
  const bool negate = from.is_neg() != to.is_neg();
  const bool to_real = from.is_conj() && !to.is_complex();
  const at::Tensor source = plain(from);
  if (is_ours(source) && is_ours(target)) {
    device_to_device(target, source);
  } else if (is_ours(target) && source.device().is_cpu()) {
    host_to_device(target, source, non_blocking);
  } else if (is_ours(source) && target.device().is_cpu()) {
    const bool resolve_on_host = conjugate || negate;
    device_to_host(target, source, non_blocking && !resolve_on_host);
  } else {
    TORCH_CHECK(false, who(), "cannot copy from ", from.device(), " to ", to.device());
  }
  // The real part of a conjugate is the real part.
  resolve_bits(target, conjugate && !to_real && to.is_complex(), negate);
  if ((conjugate || negate) && source.device().is_cpu()) {
    let_arrive(target, non_blocking);
  }
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) {
    to.resize_(from.sizes());
  }
  return copy_from(from, to, /*non_blocking=*/false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() > 0, "_local_scalar_dense: Empty tensor not supported");
  const otr_stream_t stream = stream_of(self);
  refuse_wait_in_capture(stream, "_local_scalar_dense (item)");
  c10::Scalar value;
  if (is_host_visible(self.device().index())) {
    synchronize(stream);
    value = value_of(self);
  } else {
    const HostMemoryGuard on_host;
    const at::Tensor host = at::detail::empty_cpu({}, self.scalar_type());
    check(otr_copy(
        stream, address_of(host.mutable_data_ptr()), address_of(self.const_data_ptr()), self.itemsize(),
        OTR_COPY_DEVICE_TO_HOST));
    synchronize(stream);
    value = value_of(host);
  }
  return value;
}

void record_stream_on(at::Tensor& self, at::Stream stream) {
  TORCH_CHECK(
      stream.device_type() == self.device().type(), who(), "a stream of ", stream.device(),
      " cannot be recorded on a tensor on ", self.device());
  record_stream(self.storage().data_ptr(), stream_handle(stream));
}

}  // namespace

void register_copies(torch::Library& m) {
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  m.impl("record_stream", &record_stream_on);
}

// Views with the conjugate, negative or zero bit reach `_copy_from` as they are. Without this the bits
// would be resolved by a copy, which asks for them to be resolved, and so on.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace outrigger
