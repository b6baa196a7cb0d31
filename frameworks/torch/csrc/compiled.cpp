//! Classes of calls, what is known of them, and how Python is asked for more. It must never take a lock for a class that the
//! thread has met, and never hold one while Python works.

#include "compiled.h"

#include "capture.h"
#include "program_module.h"
#include "python.h"
#include "recipe.h"
#include "schema_call.h"
#include "sight.h"
#include "values.h"

#include <ATen/core/enum_tag.h>
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

  // The mode in which there are no more recipes: another one may have more.
  std::atomic<CompileMode> exhausted{CompileMode::kOff};
  // Whether the class counts among those without a recipe.
  std::atomic<bool> is_counted{true};

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

namespace {

std::atomic<CompileMode> mode{CompileMode::kOff};

/// The most compilations of an operator in a process: numbers among its arguments are part of a class.
constexpr int kMostCompilations = 64;

/// The most classes of an operator that are remembered without a recipe: of one that is called with ever other numbers,
/// each call is a class of its own.
constexpr int kMostWithoutRecipe = 256;

/// The properties of an operator, whatever it is called with, and the classes of its calls.
struct Traits {
  c10::OperatorHandle functional;
  std::vector<bool> is_result;  // of each argument
  std::vector<size_t> written;  // arguments that are written, in the order of results
  bool is_pointwise;
  std::unordered_map<std::string, std::unique_ptr<CallClass>> classes;  // behind the lock of all operators
  std::atomic<int> without_recipe{0};                                   // of these
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
  std::unique_ptr<Traits> traits(new Traits{*functional, std::move(form.is_result), {}, false, {}});
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

}  // namespace

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

/// All operators with their classes. What is in it stays as long as the process lives.
struct Classes {
  std::mutex lock;
  std::unordered_map<c10::OperatorName, std::unique_ptr<Traits>> traits;
};

Classes& classes() {
  static auto* all = new Classes;
  return *all;
}

/// The classes of an operator that a thread has met, for which it takes no lock again.
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

/// The class of a call; none if the operator has as many classes without a recipe as it may have.
CallClass* class_of(Known& known, const Sight& sight) {
  std::string key = sight.key;
  key.push_back(static_cast<char>(sight.call.device.type()));
  key.push_back(static_cast<char>(sight.call.device.index()));
  const auto found = known.classes.find(key);
  if (C10_LIKELY(found != known.classes.end())) {
    return found->second;
  }
  Traits& traits = *known.traits;
  const std::lock_guard<std::mutex> lock(classes().lock);
  auto place = traits.classes.find(key);
  if (place == traits.classes.end()) {
    if (traits.without_recipe.load(std::memory_order_relaxed) >= kMostWithoutRecipe) {
      return nullptr;
    }
    traits.without_recipe.fetch_add(1, std::memory_order_relaxed);
    place = traits.classes.emplace(key, std::make_unique<CallClass>()).first;
  }
  return known.classes.emplace(std::move(key), place->second.get()).first->second;
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

/// Hides what Python does from Dynamo as long as this object lives, for a program that runs under Dynamo.
class WithoutDynamo {
 public:
  WithoutDynamo()
      : set_(py::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame")), before_(set_(py::none())) {}
  ~WithoutDynamo() {
    try {
      set_(before_);
    } catch (const py::error_already_set& error) {
      TORCH_WARN(who(), "Dynamo was not resumed: ", error.what());
    }
  }
  WithoutDynamo(const WithoutDynamo&) = delete;
  WithoutDynamo& operator=(const WithoutDynamo&) = delete;

 private:
  py::object set_, before_;
};

/// Asks Python for recipes of a class: true if there are new ones. `is_final` says that asking again is of no use.
bool ask(CallClass& calls, Traits& traits, const torch::jit::Stack& arguments, const Sight& sight, bool may_compile, bool& is_final) {
  if (Py_IsInitialized() == 0) {
    return false;
  }
  const pybind11::gil_scoped_acquire gil;
  const WithoutDynamo hidden;
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
  CallClass* found = class_of(known, sight);
  if (found == nullptr) {
    return false;
  }
  CallClass& calls = *found;
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
  for (int times = 0; answer == Recipe::Answer::kOtherSizes && times < 2 && calls.exhausted.load(std::memory_order_relaxed) < chosen; ++times) {
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
    if (has_more && calls.is_counted.exchange(false)) {
      traits.without_recipe.fetch_sub(1, std::memory_order_relaxed);
    }
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
    tried_->exhausted.store(compile_mode(), std::memory_order_relaxed);
  }
}

}  // namespace outrigger
