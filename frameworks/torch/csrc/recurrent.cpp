//! Cells of recurrent networks. Torch has kernels for them on some devices, but not on the CPU. Here
//! they are composed of other operators, which run on the device.

#include "register.h"

#include "kernel.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros_like.h>

namespace outrigger {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

bool given(const OptionalTensor& tensor) {
  return tensor.has_value() && tensor->defined();
}

at::Tensor with_bias(const at::Tensor& gates, const OptionalTensor& bias) {
  return given(bias) ? gates + *bias : gates;
}

// y (1 - y): the slope of the logistic function where its value is y.
at::Tensor sigmoid_slope(const at::Tensor& y) {
  return y - y * y;
}

// 1 - y^2: the slope of the hyperbolic tangent where its value is y.
at::Tensor tanh_slope(const at::Tensor& y) {
  return at::rsub(y * y, at::Scalar(1));
}

// The workspace holds the gates after their activations: input, forget, cell, output.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& cell,
    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto gates =
      (with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias)).chunk(4, 1);
  const at::Tensor input = at::sigmoid(gates[0]);
  const at::Tensor forget = at::sigmoid(gates[1]);
  const at::Tensor candidate = at::tanh(gates[2]);
  const at::Tensor output = at::sigmoid(gates[3]);
  const at::Tensor next = forget * cell + input * candidate;
  return {output * at::tanh(next), next, at::cat({input, forget, candidate, output}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(
    const OptionalTensor& grad_hidden, const OptionalTensor& grad_next, const at::Tensor& cell,
    const at::Tensor& next, const at::Tensor& workspace, bool has_bias) {
  if (!given(grad_hidden) && !given(grad_next)) {
    return {};
  }
  const auto gates = workspace.chunk(4, 1);
  const at::Tensor& input = gates[0];
  const at::Tensor& forget = gates[1];
  const at::Tensor& candidate = gates[2];
  const at::Tensor& output = gates[3];
  const at::Tensor squashed = at::tanh(next);
  at::Tensor grad_cell = given(grad_next) ? *grad_next : at::Tensor();
  at::Tensor grad_output = at::zeros_like(output);
  if (given(grad_hidden)) {
    grad_output = *grad_hidden * squashed * sigmoid_slope(output);
    const at::Tensor through = *grad_hidden * output * tanh_slope(squashed);
    grad_cell = grad_cell.defined() ? grad_cell + through : through;
  }
  const at::Tensor grad_gates = at::cat(
      {grad_cell * candidate * sigmoid_slope(input), grad_cell * cell * sigmoid_slope(forget),
       grad_cell * input * tanh_slope(candidate), grad_output},
      1);
  return {grad_gates, grad_cell * forget, has_bias ? grad_gates.sum(0) : at::Tensor()};
}

// The workspace holds reset, update and new gate, the hidden state, and the hidden part of the new gate.
std::tuple<at::Tensor, at::Tensor> gru_cell(
    const at::Tensor& input_gates, const at::Tensor& hidden_gates, const at::Tensor& hidden,
    const OptionalTensor& input_bias, const OptionalTensor& hidden_bias) {
  const auto of_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto of_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor reset = at::sigmoid(of_input[0] + of_hidden[0]);
  const at::Tensor update = at::sigmoid(of_input[1] + of_hidden[1]);
  const at::Tensor fresh = at::tanh(of_input[2] + reset * of_hidden[2]);
  return {fresh + update * (hidden - fresh), at::cat({reset, update, fresh, hidden, of_hidden[2]}, 1)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(
    const at::Tensor& grad, const at::Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const at::Tensor& reset = parts[0];
  const at::Tensor& update = parts[1];
  const at::Tensor& fresh = parts[2];
  const at::Tensor& hidden = parts[3];
  const at::Tensor& hidden_part = parts[4];
  const at::Tensor grad_update = grad * (hidden - fresh) * sigmoid_slope(update);
  const at::Tensor grad_fresh = (grad - grad * update) * tanh_slope(fresh);
  const at::Tensor grad_reset = grad_fresh * hidden_part * sigmoid_slope(reset);
  const at::Tensor grad_input_gates = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const at::Tensor grad_hidden_gates = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  return {
      grad_input_gates, grad_hidden_gates, grad * update, has_bias ? grad_input_gates.sum(0) : at::Tensor(),
      has_bias ? grad_hidden_gates.sum(0) : at::Tensor()};
}

}  // namespace

void register_recurrent(torch::Library& m) {
  m.impl("_thnn_fused_lstm_cell", &lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", &gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", &gru_cell_backward);
}

}  // namespace outrigger
