//! Calls of operators that have a schema: the driver is asked for them before the CPU of torch runs them. It must never
//! run anything on the CPU.
#pragma once

#include "kernel.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/SymIntArrayRef.h>

#include <deque>
#include <vector>

namespace outrigger {

/// An operator of a schema, looked up once by name.
class SchemaOperator {
 public:
  explicit SchemaOperator(const char* name);

  /// Whether the driver of a device has the operator, for some operands.
  bool is_offered(c10::DeviceIndex device) const;

  otr_operator_id_t id() const {
    return id_;
  }

 private:
  otr_operator_id_t id_ = 0;
};

/// One call: its arguments in schema order, and its outputs. What it is given is borrowed until it has run.
class SchemaCall {
 public:
  /// A tensor that is read; an undefined one was left out. False from `run` on if it is not dense or of a type that the
  /// runtime does not know.
  void input(const at::Tensor& tensor);
  /// A list of tensors that are read.
  void inputs(c10::ArrayRef<at::Tensor> tensors);
  /// A tensor that is written in place. It counts as an output, before those that `output` adds.
  void in_place(const at::Tensor& tensor);
  void in_place(c10::ArrayRef<at::Tensor> tensors);
  void number(const c10::Scalar& value);
  void numbers(c10::ArrayRef<double> values);
  void integer(int64_t value);
  void truth(bool value);
  void dtype(c10::ScalarType value);
  void text(const std::string& value);
  void integers(c10::ArrayRef<int64_t> values);
  void integers(c10::SymIntArrayRef values);
  void truths(c10::ArrayRef<bool> values);
  void nothing();
  /// A result; an undefined one is not wanted.
  void output(const at::Tensor& tensor);

  /// Asks the driver, and submits the call to the current stream of the device. False if the driver has nothing for it:
  /// then nothing was done.
  bool run(const SchemaOperator& op, c10::Device device);

 private:
  otr_tensor_t dense(const at::Tensor& tensor);
  otr_value_t& value(otr_value_kind_t kind, size_t count = 0);

  bool possible_ = true;
  c10::SmallVector<otr_tensor_t, 8> inputs_;
  c10::SmallVector<otr_tensor_t, 4> outputs_;
  c10::SmallVector<otr_scalar_t, 4> scalars_;
  c10::SmallVector<otr_value_t, 12> values_;
  std::deque<std::vector<int64_t>> lists_;
  std::deque<std::string> texts_;
};

/// The operator that returns what another one writes to its arguments.
struct FunctionalForm {
  c10::OperatorName name{"", ""};
  // Of the other one's arguments, those that are results of the functional operator.
  std::vector<bool> is_result;
  // False if the operator writes to no argument, or has no functional form: the name is its own then.
  bool is_other = false;
};
FunctionalForm functional_form_of(const c10::OperatorHandle& op);

/// Runs a boxed call as an operator of the driver, on the current stream of the device: under the name of a row of
/// docs/operators.md that serves it, else under its schema name. A call that writes its arguments is asked for as the
/// functional operator where there is one. False if the driver has nothing for it; the stack is as before then. Shapes
/// of results come from the operator's meta function, or from a run of the CPU's kernel on zeros. So an operator whose
/// shapes depend on values is not asked for, nor one that draws from a generator.
bool run_on_driver(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device);

/// Whether an operator writes to an argument, also where its schema does not say so.
bool writes(const c10::FunctionSchema& schema, const c10::Argument& argument);

}  // namespace outrigger
