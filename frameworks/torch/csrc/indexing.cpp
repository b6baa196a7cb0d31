//! Reading by index, concatenation, and ranges.

#include "register.h"
#include "structured.h"

#include <ATen/WrapDimUtils.h>
#include <ATen/native/RangeUtils.h>
#include <ATen/ops/arange_ops.h>
#include <ATen/ops/cat_meta.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/gather_meta.h>
#include <ATen/ops/gather_ops.h>
#include <ATen/ops/index_select_ops.h>

namespace outrigger {
namespace {

bool is_index(const at::Tensor& tensor) {
  return tensor.scalar_type() == c10::ScalarType::Long || tensor.scalar_type() == c10::ScalarType::Int;
}

at::Tensor embedding(
    const at::Tensor& weight, const at::Tensor& indices, c10::SymInt padding, bool by_frequency, bool sparse) {
  static const Operator op("embedding");
  if (is_ours(weight) && weight.dim() == 2 && is_index(indices)) {
    at::DimVector sizes(indices.sizes());
    sizes.push_back(weight.size(1));
    const at::Tensor out = empty_on(weight.device(), sizes, weight.scalar_type());
    const at::Tensor dense = contiguous(indices);
    if (out.numel() == 0 || run(op, {out}, {weight, dense})) {
      return out;
    }
  }
  return fall_back<at::_ops::embedding>(weight, indices, std::move(padding), by_frequency, sparse);
}

at::Tensor embedding_backward(
    const at::Tensor& grad, const at::Tensor& indices, c10::SymInt rows, c10::SymInt padding, bool by_frequency) {
  static const Operator op("embedding_dense_backward");
  // Drivers may add in any order; host kernels do not.
  const bool is_ordered = !must_be_deterministic() || !is_ours(grad) || !op.is_offered(grad.device().index());
  if (is_ours(grad) && is_ordered && !by_frequency && is_index(indices) && grad.dim() > 0) {
    const at::Tensor out =
        empty_on(grad.device(), {rows.guard_int(__FILE__, __LINE__), grad.size(-1)}, grad.scalar_type());
    const at::Tensor dense_grad = contiguous(grad);
    const at::Tensor dense = contiguous(indices);
    if (out.numel() == 0 || run(op, {out}, {dense_grad, dense}, {number(padding.guard_int(__FILE__, __LINE__))})) {
      return out;
    }
  }
  return fall_back<at::_ops::embedding_dense_backward>(
      grad, indices, std::move(rows), std::move(padding), by_frequency);
}

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  static const Operator op("index_select");
  if (is_ours(self) && self.dim() > 0 && index.dim() == 1 && is_index(index) && index.device() == self.device()) {
    const int64_t at = at::maybe_wrap_dim(dim, self.dim());
    at::DimVector sizes(self.sizes());
    sizes[at] = index.numel();
    const at::Tensor out = empty_on(self.device(), sizes, self.scalar_type());
    const at::Tensor dense = contiguous(self);
    const at::Tensor dense_index = contiguous(index);
    if (self.size(at) != 0 && (out.numel() == 0 || run(op, {out}, {dense, dense_index}, {number(at)}))) {
      return out;
    }
  }
  return fall_back<at::_ops::index_select>(self, dim, index);
}

struct Gather {
  static bool run(at::impl::MetaBase& meta, const at::Tensor& self, int64_t dim, const at::Tensor& index, bool) {
    static const Operator op("gather");
    const at::Tensor& out = meta.maybe_get_output(0);
    return self.dim() != 0 && self.dim() == index.dim() && self.numel() != 0 &&
        (out.numel() == 0 ||
         outrigger::run(op, {out}, {self, index}, {number(at::maybe_wrap_dim(dim, self.dim()))}));
  }
};

struct Concatenate {
  static bool run(at::impl::MetaBase& meta, const at::ITensorListRef& tensors, int64_t dim) {
    static const Operator op("cat");
    const at::Tensor& out = meta.maybe_get_output(0);
    if (out.numel() == 0) {
      return true;
    }
    c10::SmallVector<otr_tensor_t, 16> inputs;
    for (const at::Tensor& tensor : tensors) {
      if (tensor.device() != out.device() || tensor.scalar_type() != out.scalar_type()) {
        return false;
      }
      // Empty vectors are taken for tensors without elements of any shape.
      if (tensor.dim() != 1 || tensor.size(0) != 0) {
        inputs.push_back(operand(tensor));
      }
    }
    const otr_tensor_t output = written_operand(out);
    const otr_scalar_t at = number(at::maybe_wrap_dim(dim, out.dim()));
    auto call = otr::sized<otr_operator_call_t>();
    call.inputs = inputs.data();
    call.outputs = &output;
    call.scalars = &at;
    call.input_count = static_cast<uint32_t>(inputs.size());
    call.output_count = 1;
    call.scalar_count = 1;
    return op.submit(stream_of(out), call);
  }
};

at::Tensor& arange(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step, at::Tensor& out) {
  static const Operator op("arange");
  const c10::ScalarType dtype = out.scalar_type();
  const bool is_known = c10::isIntegralType(dtype, /*includeBool=*/false) || c10::isFloatingType(dtype);
  if (is_known && has_number(start, dtype) && has_number(end) && has_number(step, dtype)) {
    const int64_t length = dtype == c10::ScalarType::Long ? at::native::compute_arange_size<int64_t>(start, end, step)
                                                          : at::native::compute_arange_size<double>(start, end, step);
    if (out.numel() != length) {
      if (out.numel() > 0) {
        TORCH_WARN(
            "arange: the out tensor of shape ", out.sizes(), " has ", out.numel(), " elements and is resized to the ",
            length, " of the range. Rounding may have changed their number");
      }
      out.resize_({length});
    }
    // A result of any shape is filled in the order of its elements.
    const at::Tensor flat = out.is_contiguous() ? tensor_over(
                                                      out.storage(), {length}, {1}, out.storage_offset(), out.dtype())
                                                : empty_on(out.device(), {length}, dtype);
    // Whole numbers begin and go on with what the CPU makes of a fraction.
    const auto whole = [&](const at::Scalar& one) {
      return c10::isIntegralType(dtype, /*includeBool=*/false) ? at::Scalar(one.to<int64_t>()) : one;
    };
    if (length == 0 || run(op, {flat}, {}, {number(whole(start)), number(whole(step))})) {
      if (length != 0 && !out.is_contiguous()) {
        out.copy_(flat.view(out.sizes()));
      }
      return out;
    }
  }
  return fall_back<at::_ops::arange_start_out>(start, end, step, out);
}

}  // namespace

void register_indexing(torch::Library& m) {
  namespace ops = at::_ops;
  using namespace at::meta;
  m.impl("embedding", &embedding);
  m.impl("embedding_dense_backward", &embedding_backward);
  m.impl("index_select", &index_select);
  two_variants<structured_gather, Gather, ops::gather, ops::gather_out>(m);
  two_variants<structured_cat, Concatenate, ops::cat, ops::cat_out>(m);
  m.impl("arange.start_out", &arange);
}

}  // namespace outrigger
