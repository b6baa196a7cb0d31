//! Classes of calls, what is known of them, and how Python is asked for more. It must never take a lock for a class that the
//! thread has met, and never hold one while Python works.

#include "compiled.h"

#include "capture.h"
#include "program_module.h"
#include "python.h"
#include "recipe.h"
#include "schema_call.h"
#include "values.h"

#include <ATen/core/enum_tag.h>
#include <c10/core/DefaultDtype.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace outrigger {

namespace {

std::atomic<CompileMode> mode{CompileMode::kOff};

/// How often an operator is compiled in a process: numbers among its arguments are part of a class.
constexpr int kMostCompilations = 64;

/// What there is to know of an operator, whatever it is called with.
struct Traits {
  c10::OperatorHandle functional;
  std::vector<bool> is_result;  // of each argument
  std::vector<size_t> written;  // arguments that are written, in the order of results
  bool is_pointwise;
  std::atomic<int> compilations{0};
  std::atomic<uint64_t> calls{0};
};

/// The traits of an operator; none if it can never be compiled.
std::unique_ptr<Traits> traits_of(const c10::OperatorHandle& op) {
  if (op.schema().name().compare(0, 6, "aten::") != 0) {
    return nullptr;
  }
  FunctionalForm form = functional_form_of(op);
  const auto functional = c10::Dispatcher::singleton().findSchema(form.name);
  if (!functional.has_value()) {
    return nullptr;
  }
  for (const at::Tag tag :
       {at::Tag::nondeterministic_seeded, at::Tag::data_dependent_output, at::Tag::dynamic_output_shape}) {
    if (functional->hasTag(tag)) {
      return nullptr;
    }
  }
  const c10::FunctionSchema& schema = functional->schema();
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() != nullptr || writes(schema, argument) || argument.name() == "generator") {
      return nullptr;
    }
  }
  for (const c10::Argument& one : schema.returns()) {
    if (one.alias_info() != nullptr || one.type()->kind() != c10::TypeKind::TensorType) {
      return nullptr;
    }
  }
  std::unique_ptr<Traits> traits(new Traits{*functional, std::move(form.is_result), {}, false});
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (form.is_other && writes(op.schema(), arguments[i])) {
      if (arguments[i].type()->kind() != c10::TypeKind::TensorType) {
        return nullptr;
      }
      traits->written.push_back(i);
    }
  }
  if (form.is_other && traits->written.size() != schema.returns().size()) {
    return nullptr;
  }
  traits->is_pointwise = functional->hasTag(at::Tag::pointwise) &&
      std::none_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& one) {
        return one.name() == "memory_format";
      });
  return traits;
}

bool has_text(c10::ScalarType type) {
  switch (type) {
    case c10::ScalarType::Bool:
    case c10::ScalarType::Byte:
    case c10::ScalarType::Char:
    case c10::ScalarType::Short:
    case c10::ScalarType::Int:
    case c10::ScalarType::Long:
    case c10::ScalarType::UInt16:
    case c10::ScalarType::UInt32:
    case c10::ScalarType::UInt64:
    case c10::ScalarType::Half:
    case c10::ScalarType::BFloat16:
    case c10::ScalarType::Float:
    case c10::ScalarType::Double: return true;
    default: return false;
  }
}

std::vector<int64_t> contiguous_strides(c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = stride;
    stride *= std::max<int64_t>(sizes[i], 1);
  }
  return strides;
}

/// A call as a key, and as a recipe sees it.
class Sight {
 public:
  explicit Sight(c10::Device device) {
    call.device = device;
    add(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  }

  void add(int64_t word) {
    key.append(reinterpret_cast<const char*>(&word), sizeof word);
  }

  /// Adds an argument; tensors only as far as that they are there. False if it has no form in a key.
  bool argument(const c10::IValue& value) {
    if (value.isNone()) {
      add('n');
    } else if (value.isTensor()) {
      return tensor(value.toTensor());
    } else if (value.isTensorList()) {
      const auto list = value.toTensorVector();
      add('T');
      add(static_cast<int64_t>(list.size()));
      return std::all_of(list.begin(), list.end(), [&](const at::Tensor& one) { return tensor(one); });
    } else if (value.isInt() || value.isBool()) {
      add(value.isInt() ? 'i' : 'b');
      add(value.isInt() ? value.toInt() : static_cast<int64_t>(value.toBool()));
    } else if (value.isDouble()) {
      const double number = value.toDouble();
      int64_t bits = 0;
      std::memcpy(&bits, &number, sizeof bits);
      add('d');
      add(bits);
    } else if (value.isIntList() || value.isBoolList() || value.isDoubleList()) {
      const auto list = value.toList();
      add('L');
      add(static_cast<int64_t>(list.size()));
      for (const c10::IValue& one : list) {
        if (!argument(one)) {
          return false;
        }
      }
    } else if (value.isSymIntList()) {
      const auto list = value.toSymIntVector();
      add('L');
      add(static_cast<int64_t>(list.size()));
      for (const c10::SymInt& one : list) {
        if (one.is_symbolic()) {
          return false;
        }
        add('i');
        add(one.expect_int());
      }
    } else if (value.isString()) {
      add('s');
      add(static_cast<int64_t>(value.toStringRef().size()));
      key += value.toStringRef();
    } else if (value.isDevice()) {
      add('v');
      return value.toDevice() == call.device || (value.toDevice().type() == call.device.type() && !value.toDevice().has_index());
    } else {
      return false;
    }
    return true;
  }

  /// Looks at the tensors, when all of them are known. Operands of one shape and layout without gaps become one dimension
  /// if the operator does the same with each element.
  void look(bool is_pointwise) {
    const at::Tensor* model = nullptr;
    bool are_alike = is_pointwise;
    for (const at::Tensor& one : call.inputs) {
      if (one.dim() == 0) {
        continue;
      }
      if (model == nullptr) {
        model = &one;
        are_alike = are_alike && one.is_non_overlapping_and_dense();
      } else {
        are_alike = are_alike && one.sizes() == model->sizes() && one.strides() == model->strides();
      }
    }
    call.is_flat = are_alike && model != nullptr;
    if (call.is_flat) {
      note(*model);
    }
    add(call.is_flat ? 1 : 0);
    for (const at::Tensor& one : call.inputs) {
      const bool is_flat = call.is_flat && one.dim() > 0;
      add(is_flat ? 1 : static_cast<int64_t>(one.dim()));
      const int64_t count = is_flat ? one.numel() : 0, step = 1;
      field(is_flat ? c10::IntArrayRef(count) : one.sizes());
      field(is_flat ? c10::IntArrayRef(step) : one.strides());
    }
  }

  /// An operand as the recipe sees it.
  at::Tensor shown(size_t number) const {
    const at::Tensor& one = call.inputs.at(number);
    return call.is_flat && one.dim() > 0
        ? tensor_over(one.storage(), {one.numel()}, {1}, one.storage_offset(), one.dtype())
        : one;
  }

  RecipeCall call{c10::Device(c10::DeviceType::CPU), {}, {}, {}, false, {}, {}, {}};
  std::string key;

 private:
  bool tensor(const at::Tensor& one) {
    if (!one.defined()) {
      add('u');
      return true;
    }
    add('t');
    add(static_cast<int64_t>(one.scalar_type()));
    call.inputs.push_back(one);
    return one.device() == call.device && one.layout() == c10::Layout::Strided && has_text(one.scalar_type()) &&
        !one.is_conj() && !one.is_neg() && one.numel() > 0;
  }

  // Sizes and strides of 0 and 1 are classes of their own: a trace takes them as they are.
  void field(c10::IntArrayRef values) {
    for (const int64_t each : values) {
      call.fields.push_back(each);
      add(std::min<int64_t>(each, 2));
    }
  }

  // What results look like. As with torch's iterators, dimensions of one element have the strides of the layout.
  void note(const at::Tensor& model) {
    call.sizes.assign(model.sizes().begin(), model.sizes().end());
    const auto strides = model.is_contiguous() ? contiguous_strides(model.sizes())
        : model.is_contiguous(at::MemoryFormat::ChannelsLast) ? c10::get_channels_last_strides_2d(model.sizes())
        : model.is_contiguous(at::MemoryFormat::ChannelsLast3d) ? c10::get_channels_last_strides_3d(model.sizes())
                                                                : model.strides().vec();
    call.strides.assign(strides.begin(), strides.end());
  }
};

}  // namespace

class CallClass {
 public:
  /// Runs a call with the recipe that fits it.
  Recipe::Answer run(RecipeCall& call) const {
    auto answer = Recipe::Answer::kOtherSizes;
    const Node* node = first_.load(std::memory_order_acquire);
    for (; node != nullptr && answer == Recipe::Answer::kOtherSizes; node = node->next) {
      answer = node->recipe.run(call);
    }
    return answer;
  }

  /// Adds recipes of Python that are not known. False if all are.
  bool take(PyObject* recipes);

  // Whether nothing more is to be had.
  std::atomic<bool> is_closed{false};

 private:
  struct Node {
    Recipe recipe;
    PyObject* origin;  // kept as long as the process lives, and with it the kernels
    const Node* next;
  };

  bool knows(PyObject* origin) const {
    const Node* node = first_.load(std::memory_order_acquire);
    while (node != nullptr && node->origin != origin) {
      node = node->next;
    }
    return node != nullptr;
  }

  std::atomic<const Node*> first_{nullptr};
};

// The GIL is held, and given away while a kernel waits for its compiler: two threads may add the same recipe then, which
// does no harm.
bool CallClass::take(PyObject* recipes) {
  bool has_more = false;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(recipes); ++i) {
    PyObject* origin = PyList_GET_ITEM(recipes, i);
    if (knows(origin)) {
      continue;
    }
    PyObject *numbers = nullptr, *objects = nullptr, *types = nullptr;
    parse(origin, "O!O!O!", &PyList_Type, &numbers, &PyList_Type, &objects, &PyList_Type, &types);
    std::vector<int64_t> code;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(numbers); ++k) {
      code.push_back(PyLong_AsLongLong(PyList_GET_ITEM(numbers, k)));
      if (code.back() == -1 && PyErr_Occurred() != nullptr) {
        throw PythonError();
      }
    }
    std::vector<const CompiledKernel*> kernels;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(objects); ++k) {
      kernels.push_back(&kernel_with_code(PyList_GET_ITEM(objects, k)));
    }
    std::vector<c10::ScalarType> dtypes;
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(types); ++k) {
      PyObject* type = PyList_GET_ITEM(types, k);
      TORCH_CHECK_TYPE(THPDtype_Check(type), who(), "a recipe names its types by torch.dtype");
      dtypes.push_back(reinterpret_cast<THPDtype*>(type)->scalar_type);
    }
    Py_INCREF(origin);
    auto* node = new Node{Recipe(std::move(code), std::move(kernels), std::move(dtypes)), origin, nullptr};
    node->next = first_.load(std::memory_order_relaxed);
    while (!first_.compare_exchange_weak(node->next, node, std::memory_order_acq_rel)) {
    }
    has_more = true;
  }
  return has_more;
}

namespace {

/// Whether a result can be written to an argument as it is.
bool can_be_written(const at::Tensor& wanted, c10::Device device) {
  return wanted.defined() && wanted.device() == device && wanted.layout() == c10::Layout::Strided && !wanted.is_conj() &&
      !wanted.is_neg() && wanted.is_non_overlapping_and_dense();
}

/// All classes of all operators. What is in it stays as long as the process lives.
struct Classes {
  std::mutex lock;
  std::unordered_map<c10::OperatorName, std::unique_ptr<Traits>> traits;
  std::unordered_map<c10::OperatorName, std::unordered_map<std::string, std::unique_ptr<CallClass>>> classes;
};

Classes& classes() {
  static auto* all = new Classes;
  return *all;
}

/// What a thread knows of an operator, so that it takes no lock for a class that it has met.
struct Known {
  Traits* traits;
  std::unordered_map<std::string, CallClass*> classes;
};

Known& known_of(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, Known> known;
  const auto found = known.find(&op.schema());
  if (C10_LIKELY(found != known.end())) {
    return found->second;
  }
  Classes& all = classes();
  const std::lock_guard<std::mutex> lock(all.lock);
  const auto [place, is_new] = all.traits.try_emplace(op.operator_name());
  if (is_new) {
    place->second = traits_of(op);
  }
  return known.emplace(&op.schema(), Known{place->second.get(), {}}).first->second;
}

CallClass& class_of(const c10::OperatorHandle& op, Known& known, const Sight& sight) {
  std::string key = sight.key;
  key.push_back(static_cast<char>(sight.call.device.type()));
  key.push_back(static_cast<char>(sight.call.device.index()));
  const auto found = known.classes.find(key);
  if (C10_LIKELY(found != known.classes.end())) {
    return *found->second;
  }
  Classes& all = classes();
  const std::lock_guard<std::mutex> lock(all.lock);
  std::unique_ptr<CallClass>& made = all.classes[op.operator_name()][key];
  if (made == nullptr) {
    made = std::make_unique<CallClass>();
  }
  known.classes.emplace(std::move(key), made.get());
  return *made;
}

/// An argument as Python's operators take it.
py::object to_python(const c10::Argument& argument, const c10::IValue& value) {
  const c10::TypeKind kind = kind_of(argument);
  if (value.isInt() && kind == c10::TypeKind::ScalarTypeType) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(value.toScalarType())));
  }
  if (value.isInt() && kind == c10::TypeKind::LayoutType) {
    return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPLayout(value.toLayout())));
  }
  if (value.isInt() && kind == c10::TypeKind::MemoryFormatType) {
    return py::reinterpret_borrow<py::object>(torch::utils::getTHPMemoryFormat(value.toMemoryFormat()));
  }
  return torch::jit::toPyObject(value);
}

/// What Python has for a class: true if there are new recipes. `is_final` says that asking again is of no use.
bool ask(CallClass& calls, Traits& traits, const torch::jit::Stack& arguments, const Sight& sight, bool may_compile, bool& is_final) {
  if (Py_IsInitialized() == 0) {
    return false;
  }
  const pybind11::gil_scoped_acquire gil;
  const c10::FunctionSchema& schema = traits.functional.schema();
  py::list positional;
  py::dict named;
  size_t tensor = 0;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    // Tensors as the recipe sees them.
    const c10::IValue shown = map_tensors(arguments[i], [&](const at::Tensor& one) {
      return one.defined() ? sight.shown(tensor++) : one;
    });
    py::object object = to_python(argument, shown);
    if (argument.kwarg_only()) {
      named[py::str(argument.name())] = std::move(object);
    } else {
      positional.append(std::move(object));
    }
  }
  const std::string& overload = schema.overload_name();
  const py::object device = py::reinterpret_steal<py::object>(THPDevice_New(sight.call.device));
  const py::object answer = py::module_::import("torch_outrigger._eager")
                                .attr("find")(
                                    schema.name().substr(6), overload.empty() ? "default" : overload, py::tuple(positional),
                                    named, py::bytes(sight.key), device, sight.call.is_flat, may_compile);
  if (answer.ptr() == Py_False) {
    is_final = false;
    return false;
  }
  is_final = true;
  try {
    return answer.ptr() != Py_None && calls.take(answer.ptr());
  } catch (const c10::Error& error) {
    // The CPU serves what a spoilt recipe does not.
    TORCH_WARN_ONCE(who(), schema.operator_name(), " is not compiled: ", error.what_without_backtrace());
    return false;
  }
}

}  // namespace

void set_compile_mode(CompileMode chosen) {
  mode.store(chosen, std::memory_order_relaxed);
}

CompileMode compile_mode() {
  return mode.load(std::memory_order_relaxed);
}

std::map<std::string, uint64_t> compiled_counts() {
  std::map<std::string, uint64_t> counts;
  Classes& all = classes();
  const std::lock_guard<std::mutex> lock(all.lock);
  for (const auto& [name, traits] : all.traits) {
    const uint64_t calls = traits == nullptr ? 0 : traits->calls.load(std::memory_order_relaxed);
    if (calls != 0) {
      counts[traits->functional.schema().name().substr(std::strlen("aten::"))] += calls;
    }
  }
  return counts;
}

void forget_compiled() {
  Classes& all = classes();
  const std::lock_guard<std::mutex> lock(all.lock);
  for (const auto& [name, traits] : all.traits) {
    if (traits != nullptr) {
      traits->calls.store(0, std::memory_order_relaxed);
    }
  }
}

bool CompiledCall::run() {
  const CompileMode chosen = compile_mode();
  if (chosen == CompileMode::kOff) {
    return false;
  }
  Known& known = known_of(op_);
  if (known.traits == nullptr) {
    return false;
  }
  Traits& traits = *known.traits;
  const size_t count = op_.schema().arguments().size();
  const auto arguments = torch::jit::last(*stack_, count);
  Sight sight(device_);
  for (size_t i = 0; i < count; ++i) {
    if (!traits.is_result[i] && !sight.argument(arguments[i])) {
      return false;
    }
  }
  sight.look(traits.is_pointwise);
  CallClass& calls = class_of(op_, known, sight);
  RecipeCall& call = sight.call;
  for (const size_t place : traits.written) {
    const at::Tensor& wanted = arguments[place].toTensor();
    if (!can_be_written(wanted, device_)) {
      return false;
    }
    call.wanted.push_back(wanted);
  }
  Recipe::Answer answer = calls.run(call);
  // The second time what was stored is known and does not fit, so that it is compiled.
  for (int times = 0; answer == Recipe::Answer::kOtherSizes && times < 2 && !calls.is_closed.load(std::memory_order_relaxed); ++times) {
    if (is_capturing(current_stream(device_.index()))) {
      return false;
    }
    const bool may_compile = chosen == CompileMode::kOn && traits.compilations.fetch_add(1) < kMostCompilations;
    torch::jit::Stack functional;
    for (size_t i = 0; i < count; ++i) {
      if (!traits.is_result[i]) {
        functional.push_back(arguments[i]);
      }
    }
    bool is_final = false;
    const bool has_more = ask(calls, traits, functional, sight, may_compile, is_final);
    if (may_compile && !is_final) {
      traits.compilations.fetch_sub(1);
    }
    if (!has_more) {
      tried_ = is_final ? &calls : nullptr;
      break;
    }
    answer = calls.run(call);
  }
  if (answer != Recipe::Answer::kDone) {
    return false;
  }
  traits.calls.fetch_add(1, std::memory_order_relaxed);
  torch::jit::drop(*stack_, count);
  for (at::Tensor& result : call.results) {
    stack_->emplace_back(std::move(result));
  }
  return true;
}

void CompiledCall::fell_back() {
  if (tried_ != nullptr) {
    tried_->is_closed.store(true, std::memory_order_relaxed);
  }
}

}  // namespace outrigger
