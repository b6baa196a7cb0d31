//! Turns boxed calls of torch into calls of operators with a schema, and finds the name by which the driver is asked.

#include "schema_call.h"

#include "images.h"
#include "values.h"

#include <algorithm>
#include <memory>
#include <unordered_map>

namespace outrigger {

SchemaOperator::SchemaOperator(const char* name) {
  check(otr_operator_find(name, &id_));
}

bool SchemaOperator::is_offered(c10::DeviceIndex device) const {
  uint32_t yes = 0;
  check(otr_operator_offered(static_cast<uint32_t>(device), id_, &yes));
  return yes != 0;
}

otr_value_t& SchemaCall::value(otr_value_kind_t kind, size_t count) {
  otr_value_t made = {};
  made.kind = kind;
  made.count = static_cast<uint32_t>(count);
  values_.push_back(made);
  return values_.back();
}

otr_tensor_t SchemaCall::dense(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  possible_ = possible_ && is_ours(tensor) && tensor.layout() == c10::Layout::Strided && !tensor.is_conj() &&
      !tensor.is_neg() && !tensor.is_quantized() && dtype_of(tensor.scalar_type()) != OTR_DTYPE_INVALID;
  return possible_ ? operand(tensor) : otr_tensor_t{};
}

void SchemaCall::input(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return nothing();
  }
  if (is_scalar_of_cpu(tensor)) {
    return number(value_of(tensor));
  }
  value(OTR_VALUE_INPUT).of.index = inputs_.size();
  inputs_.push_back(dense(tensor));
}

void SchemaCall::inputs(c10::ArrayRef<at::Tensor> tensors) {
  value(OTR_VALUE_INPUTS, tensors.size()).of.index = inputs_.size();
  for (const at::Tensor& tensor : tensors) {
    inputs_.push_back(dense(tensor));
  }
}

void SchemaCall::in_place(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return nothing();
  }
  value(OTR_VALUE_OUTPUT).of.index = outputs_.size();
  output(tensor);
}

void SchemaCall::in_place(c10::ArrayRef<at::Tensor> tensors) {
  value(OTR_VALUE_OUTPUTS, tensors.size()).of.index = outputs_.size();
  for (const at::Tensor& tensor : tensors) {
    output(tensor);
  }
}

void SchemaCall::number(const c10::Scalar& given) {
  possible_ = possible_ && has_number(given);
  if (possible_) {
    value(OTR_VALUE_SCALAR).of.index = scalars_.size();
    scalars_.push_back(outrigger::number(given));
  }
}

void SchemaCall::numbers(c10::ArrayRef<double> given) {
  value(OTR_VALUE_SCALARS, given.size()).of.index = scalars_.size();
  for (const double one : given) {
    scalars_.push_back(outrigger::number(one));
  }
}

void SchemaCall::integer(int64_t given) {
  value(OTR_VALUE_INT).of.integer = given;
}

void SchemaCall::truth(bool given) {
  value(OTR_VALUE_BOOL).of.integer = given ? 1 : 0;
}

void SchemaCall::dtype(c10::ScalarType given) {
  possible_ = possible_ && dtype_of(given) != OTR_DTYPE_INVALID;
  value(OTR_VALUE_DTYPE).of.integer = dtype_of(given);
}

void SchemaCall::text(const std::string& given) {
  texts_.push_back(given);
  value(OTR_VALUE_STRING, given.size()).of.string = texts_.back().c_str();
}

void SchemaCall::integers(c10::ArrayRef<int64_t> given) {
  lists_.emplace_back(given.begin(), given.end());
  value(OTR_VALUE_INTS, given.size()).of.integers = lists_.back().data();
}

void SchemaCall::integers(c10::SymIntArrayRef given) {
  std::vector<int64_t> list;
  for (const c10::SymInt& one : given) {
    possible_ = possible_ && !one.is_symbolic();
    list.push_back(possible_ ? one.expect_int() : 0);
  }
  integers(list);
}

void SchemaCall::truths(c10::ArrayRef<bool> given) {
  lists_.emplace_back(given.begin(), given.end());
  value(OTR_VALUE_BOOLS, given.size()).of.integers = lists_.back().data();
}

void SchemaCall::nothing() {
  value(OTR_VALUE_NONE);
}

void SchemaCall::output(const at::Tensor& tensor) {
  otr_tensor_t made = dense(tensor);
  if (possible_ && tensor.defined()) {
    made.address = written_address(tensor);
  }
  outputs_.push_back(made);
}

bool SchemaCall::run(const SchemaOperator& op, c10::Device device) {
  if (!possible_) {
    return false;
  }
  otr_operator_args_t args = {};
  args.ext.struct_size = sizeof(args);
  args.ext.type = OTR_EXT_OPERATOR_ARGS;
  args.values = values_.data();
  args.count = static_cast<uint32_t>(values_.size());
  auto call = otr::sized<otr_operator_call_t>();
  call.next = &args.ext;
  call.inputs = inputs_.data();
  call.outputs = outputs_.data();
  call.scalars = scalars_.data();
  call.input_count = static_cast<uint32_t>(inputs_.size());
  call.output_count = static_cast<uint32_t>(outputs_.size());
  call.scalar_count = static_cast<uint32_t>(scalars_.size());
  call.flags = OTR_CALL_DEVICE_ONLY;
  otr_status_t* status = otr_operator_call(current_stream(device.index()), op.id(), &call);
  if (status == nullptr) {
    return true;
  }
  if (otr_status_code(status) != OTR_ERR_UNSUPPORTED) {
    raise(status);
  }
  otr_status_free(status);
  return false;
}

namespace {

/// Under what name, and in what form, the driver is asked for an operator of torch.
struct Asked {
  SchemaOperator op;
  // Of the operator's arguments, those that are results of the functional form.
  std::vector<bool> is_result;
  // Whether written arguments are inputs of the functional form, too.
  bool functional = false;
};

bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

/// Whether the arguments of a functional operator are those of another one but for the results.
bool is_functional_form(
    const c10::FunctionSchema& functional, const c10::FunctionSchema& schema, const std::vector<bool>& is_result) {
  size_t at = 0;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (is_result[i]) {
      continue;
    }
    if (at == functional.arguments().size()) {
      return false;
    }
    const c10::Argument& one = functional.arguments()[at++];
    if (one.name() != schema.arguments()[i].name() || is_written(one) ||
        *one.type() != *schema.arguments()[i].type()) {
      return false;
    }
  }
  return at == functional.arguments().size() && functional.returns().size() == schema.returns().size();
}

/// The functional form of an operator that writes its arguments; none if it writes none, or has no such form.
std::optional<c10::OperatorName> functional_form(
    const c10::FunctionSchema& schema, const std::vector<bool>& is_result) {
  std::string name = schema.name();
  const bool in_place = name.size() > 1 && name.back() == '_' && name[name.size() - 2] != '_';
  if (in_place) {
    name.pop_back();
  }
  std::optional<c10::OperatorName> found;
  for (const c10::OperatorName& other : c10::Dispatcher::singleton().getAllOpNames()) {
    if (other.name != name) {
      continue;
    }
    const auto op = c10::Dispatcher::singleton().findSchema(other);
    if (op.has_value() && is_functional_form(op->schema(), schema, is_result) &&
        (!found.has_value() || other.overload_name == schema.overload_name())) {
      found = other;
    }
  }
  return found;
}

Asked asked_of(const c10::OperatorHandle& op) {
  FunctionalForm form = functional_form_of(op);
  const std::string full =
      form.name.overload_name.empty() ? form.name.name : form.name.name + "." + form.name.overload_name;
  return {SchemaOperator(full.c_str()), std::move(form.is_result), form.is_other};
}

const Asked& asked(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<c10::OperatorName, std::unique_ptr<Asked>> known;
  std::unique_ptr<Asked>& entry = known[op.operator_name()];
  if (entry == nullptr) {
    entry = std::make_unique<Asked>(asked_of(op));
  }
  return *entry;
}

/// Adds an argument. False if it is of a kind that has no form in a call.
bool add(SchemaCall& call, const c10::Argument& argument, const c10::IValue& value, bool written) {
  const c10::TypeKind kind = kind_of(argument);
  if (value.isNone()) {
    call.nothing();
  } else if (value.isTensor()) {
    written ? call.in_place(value.toTensor()) : call.input(value.toTensor());
  } else if (value.isTensorList()) {
    const std::vector<at::Tensor> list = value.toTensorVector();
    written ? call.in_place(list) : call.inputs(list);
  } else if (value.isOptionalTensorList()) {
    std::vector<at::Tensor> list;
    for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector()) {
      list.push_back(one.value_or(at::Tensor()));
    }
    call.inputs(list);
  } else if (kind == c10::TypeKind::ScalarTypeType) {
    call.dtype(value.toScalarType());
  } else if (kind == c10::TypeKind::LayoutType) {
    if (value.toLayout() != c10::Layout::Strided) {
      return false;
    }
    call.nothing();
  } else if (value.isDevice()) {
    call.nothing();
  } else if (kind == c10::TypeKind::NumberType || value.isDouble() || value.isComplexDouble()) {
    call.number(value.toScalar());
  } else if (value.isBool()) {
    call.truth(value.toBool());
  } else if (value.isInt()) {
    call.integer(value.toInt());
  } else if (value.isString()) {
    call.text(value.toStringRef());
  } else if (value.isIntList()) {
    call.integers(value.toIntVector());
  } else if (value.isSymIntList()) {
    call.integers(c10::SymIntArrayRef(value.toSymIntVector()));
  } else if (value.isDoubleList()) {
    call.numbers(value.toDoubleVector());
  } else if (value.isBoolList()) {
    const c10::List<bool> list = value.toBoolList();
    c10::SmallVector<bool, 8> flags(list.begin(), list.end());
    call.truths(flags);
  } else {
    return false;
  }
  return true;
}

}  // namespace

FunctionalForm functional_form_of(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  FunctionalForm found;
  bool any_written = false;
  for (const c10::Argument& argument : schema.arguments()) {
    any_written = any_written || is_written(argument);
    // Operators that write into `out` arguments have them last, by keyword.
    found.is_result.push_back(is_written(argument) && argument.kwarg_only());
  }
  std::optional<c10::OperatorName> form;
  if (any_written) {
    form = functional_form(schema, found.is_result);
  }
  found.name = form.value_or(op.operator_name());
  found.is_other = form.has_value();
  if (!found.is_other) {
    found.is_result.assign(found.is_result.size(), false);
  }
  return found;
}

bool run_on_driver(const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device) {
  const Asked& form = asked(op);
  if (!form.op.is_offered(device.index())) {
    return false;
  }
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  for (const c10::Argument& argument : schema.arguments()) {
    // Numbers of a generator are drawn by named operators, which say how many they take.
    if (argument.name() == "generator") {
      return false;
    }
  }
  Images images(op);
  if (!images.infer(arguments, Images::Errors::kAreNoAnswer)) {
    return false;
  }
  SchemaCall call;
  for (size_t i = 0; i < count; ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if (!form.is_result[i] &&
        !add(call, argument, arguments[i], writes(schema, argument) && !(form.functional && is_written(argument)))) {
      return false;
    }
  }
  bool possible = true;
  torch::jit::Stack results;
  // Results of the functional form have their own place; those that are written in place have one already.
  std::vector<at::Tensor> outputs;
  for (const c10::IValue& value : images.results()) {
    bool any = false;
    each_tensor(value, [&](const at::Tensor&) { any = true; });
    possible = possible && (any || value.isTensorList());
    results.push_back(map_tensors(value, [&](const at::Tensor& found) {
      if (!found.defined()) {
        outputs.emplace_back();
        return found;
      }
      at::Tensor real = images.argument_of(found);
      if (real.defined()) {
        if (form.functional) {
          outputs.push_back(real);
        }
        return real;
      }
      possible = possible && images.is_image(found) && !images.base_of(found).defined() && !found.is_quantized() &&
          found.layout() == c10::Layout::Strided;
      if (!possible) {
        return found;
      }
      real = empty_strided_on(device, found.sizes(), found.strides(), c10::typeMetaToScalarType(found.dtype()));
      outputs.push_back(real);
      return real;
    }));
  }
  if (!possible || !images.resize_arguments()) {
    return false;
  }
  for (const at::Tensor& output : outputs) {
    call.output(output);
  }
  if (!call.run(form.op, device)) {
    return false;
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
  return true;
}

}  // namespace outrigger
