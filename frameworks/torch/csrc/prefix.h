// Headers of torch that nearly every file includes, for `setup.py` to compile once. No file relies on this one: each
// includes what it uses.
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
