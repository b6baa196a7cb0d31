//! The boxed CPU fallback: arguments become CPU tensors, the CPU kernel runs, results become device
//! tensors. It must never guess a device: the arguments give it, and they must agree.

#include "fallback.h"

#include "capture.h"
#include "compiled.h"
#include "generator.h"
#include "overlap.h"
#include "recorded.h"
#include "register.h"
#include "schema_call.h"
#include "sparse.h"
#include "values.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace outrigger {
namespace {

// Operators that write to arguments which their schema does not mark as written.
struct UnmarkedWrites {
  std::string_view name;
  std::array<std::string_view, 3> arguments;
};
constexpr UnmarkedWrites kUnmarkedWrites[] = {
    {"aten::native_batch_norm", {"running_mean", "running_var", ""}},
    {"aten::cudnn_batch_norm", {"running_mean", "running_var", ""}},
    {"aten::miopen_batch_norm", {"running_mean", "running_var", ""}},
    {"aten::batch_norm_update_stats", {"running_mean", "running_var", ""}},
    {"aten::batch_norm_gather_stats", {"running_mean", "running_var", ""}},
    {"aten::batch_norm_gather_stats_with_counts", {"running_mean", "running_var", ""}},
    {"aten::rrelu_with_noise", {"noise", "", ""}},
};

// Operators that take CPU tensors with dimensions beside device tensors, as they do on other devices.
constexpr std::string_view kMixedDevices[] = {
    "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_",
    "aten::_unsafe_index_put", "aten::_ctc_loss", "aten::_ctc_loss_backward", "aten::_pack_padded_sequence",
    "aten::_pack_padded_sequence_backward", "aten::segment_reduce", "aten::set_",
};

// Operators whose elements meet at places that indices name. Drivers and compiled code add them up, or choose among them, in
// any order.
constexpr std::string_view kInAnyOrder[] = {
    "index_add", "index_copy", "index_put", "_index_put_impl", "_unsafe_index_put", "index_reduce", "put", "scatter",
    "scatter_add", "scatter_reduce", "embedding_dense_backward", "_embedding_bag_dense_backward",
};

bool is_in_any_order(const c10::FunctionSchema& schema) {
  std::string_view name = schema.name();
  if (name.substr(0, 6) != "aten::") {
    return false;
  }
  name = name.substr(6, name.size() - 6 - (name.back() == '_' ? 1 : 0));
  return std::find(std::begin(kInAnyOrder), std::end(kInAnyOrder), name) != std::end(kInAnyOrder);
}

uint64_t mix(uint64_t value) {
  // The finalizer of splitmix64: spreads (seed, offset) over all bits of a seed for the CPU's generator.
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

c10::Device device_of(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::Device> found;
  bool foreign = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    // A scalar of the CPU may be read beside device tensors, and never written.
    const int64_t scalar_dims = writes(schema, schema.arguments()[i]) ? -1 : 0;
    each_tensor(arguments[i], [&](const at::Tensor& tensor) {
      if (is_ours(tensor)) {
        TORCH_CHECK(
            !found.has_value() || *found == tensor.device(),
            "Expected all tensors to be on the same device, but found at least two devices, ", *found, " and ",
            tensor.device(), "! (when calling ", schema.operator_name(), ")");
        found = tensor.device();
      } else if (tensor.defined() && tensor.dim() > scalar_dims) {
        foreign = true;
      }
    });
  }
  if (found.has_value()) {
    const bool mixed = std::find(std::begin(kMixedDevices), std::end(kMixedDevices), schema.name()) !=
        std::end(kMixedDevices);
    TORCH_CHECK(
        !foreign || mixed, "Expected all tensors to be on the same device, but found at least two devices, ",
        *found, " and cpu! (when calling ", schema.operator_name(), ")");
    return *found;
  }
  for (const c10::IValue& value : arguments) {
    if (value.isDevice() && is_ours(value.toDevice().type())) {
      const c10::Device device = value.toDevice();
      return device.has_index() ? device : c10::Device(device.type(), current_device());
    }
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, who(), schema.operator_name(), " has no kernel, and no argument says on which device it runs");
}

// Whether a call writes to memory that it reads or writes elsewhere, or at several places at once.
bool shares_memory(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments) {
  const c10::FunctionSchema& schema = op.schema();
  bool found = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].isTensor() || !writes(schema, schema.arguments()[i])) {
      continue;
    }
    const at::Tensor& written = arguments[i].toTensor();
    found = found || (written.defined() && written.has_storage() && shares_within(written));
    for (size_t other = 0; other < arguments.size(); ++other) {
      const bool may_be_same = op.hasTag(at::Tag::pointwise) && !writes(schema, schema.arguments()[other]);
      each_tensor(arguments[other], [&](const at::Tensor& tensor) {
        found = found || (other != i && may_share(written, tensor) && !(may_be_same && are_same_elements(written, tensor)));
      });
    }
  }
  return found;
}

// Whether all numbers of a call are in the range of its first tensor's dtype.
bool numbers_fit(const c10::FunctionSchema& schema, c10::ArrayRef<c10::IValue> arguments) {
  std::optional<c10::ScalarType> dtype;
  for (const c10::IValue& value : arguments) {
    each_tensor(value, [&](const at::Tensor& tensor) {
      if (!dtype.has_value() && is_ours(tensor)) {
        dtype = tensor.scalar_type();
      }
    });
  }
  for (size_t i = 0; dtype.has_value() && i < arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (value.isScalar() && kind_of(schema.arguments()[i]) == c10::TypeKind::NumberType) {
      if (!has_number(value.toScalar(), *dtype)) {
        return false;
      }
    } else if (value.isTensor() && is_scalar_of_cpu(value.toTensor()) && !has_number(value_of(value.toTensor()), *dtype)) {
      return false;
    }
  }
  return true;
}

bool takes_generator(const c10::Argument& argument) {
  return argument.name() == "generator";
}

// The CPU generator that stands in for the device's: its seed is taken from the device's state, so that
// results depend on the device's seed alone and the CPU's own random state stays untouched.
at::Generator stand_in(const c10::IValue& value, c10::Device device) {
  const std::optional<at::Generator> given =
      value.isGenerator() ? std::optional<at::Generator>(value.toGenerator()) : std::nullopt;
  const Philox start = reserve(given, device, 1);
  return at::make_generator<at::CPUGeneratorImpl>(mix(mix(start.seed) ^ start.offset));
}

}  // namespace

bool writes(const c10::FunctionSchema& schema, const c10::Argument& argument) {
  if (argument.alias_info() != nullptr && argument.alias_info()->isWrite()) {
    return true;
  }
  return std::any_of(std::begin(kUnmarkedWrites), std::end(kUnmarkedWrites), [&](const UnmarkedWrites& entry) {
    return entry.name == schema.name() &&
        std::find(entry.arguments.begin(), entry.arguments.end(), argument.name()) != entry.arguments.end();
  });
}

FallbackRecord::FallbackRecord(const char* name) : name_(name), start_(std::chrono::steady_clock::now()) {
  uint32_t first_warning = 0;
  check(otr_fallback_begin(name, &first_warning));
  if (first_warning != 0) {
    TORCH_WARN(who(), "operator ", name, " has no kernel on the device and runs on the CPU");
  }
}

FallbackRecord::~FallbackRecord() {
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  const auto nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count();
  warn_if_failed(
      otr_fallback_end(name_, static_cast<uint64_t>(nanoseconds), staged_bytes_), "counting a fallback");
}

void register_host_composites(torch::Library& m) {
  // Torch's own kernels of these serve every device in name only: inside they pick one by device type, compute
  // in half precision what the CPU computes in single (group norm), or warn twice (index).
  for (const char* name : {"conj_physical_", "mode.values", "native_group_norm", "index.Tensor"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
  }
}

void register_rest(torch::Library& m, c10::DispatchKey ours, c10::DispatchKey of_cpu) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.getNamespace() == "aten" && op.has_value() && op->hasKernelForDispatchKey(of_cpu) &&
        !op->hasKernelForDispatchKey(ours)) {
      const std::string plain = name.name.substr(sizeof("aten::") - 1);
      m.impl(
          (name.overload_name.empty() ? plain : plain + "." + name.overload_name).c_str(),
          torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
    }
  }
}

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t count = schema.arguments().size();
  const auto arguments = torch::jit::last(*stack, count);
  const c10::Device device = device_of(schema, arguments);

  for (size_t i = 0; i < count; ++i) {
    if (writes(schema, schema.arguments()[i])) {
      each_tensor(arguments[i], [](const at::Tensor& tensor) { own_memory_of(tensor); });
    }
  }
  // The CPU refuses some of what kernels of the device cannot be given, and has a result for the rest.
  const bool may_run_there = numbers_fit(schema, arguments) && !shares_memory(op, arguments) &&
      !(must_be_deterministic() && is_in_any_order(schema));
  if (may_run_there && run_on_driver(op, stack, device)) {
    return;
  }
  CompiledCall compiled(op, stack, device);
  if (may_run_there && compiled.run()) {
    return;
  }
  const char* name = schema.name().c_str();
  FallbackRecord record(schema.name().compare(0, 6, "aten::") == 0 ? name + 6 : name);
  if (C10_UNLIKELY(is_capturing(current_stream(device.index())))) {
    record_on_host(op, stack, device, record.name());
    return;
  }
  torch::jit::Stack results;
  {
    HostScope scope(device);
    record.start();
    SparseScope sparse(scope);
    for (const c10::IValue& value : arguments) {
      each_tensor(value, [&](const at::Tensor& tensor) { sparse.announce(tensor); });
    }
    torch::jit::Stack host;
    host.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      const c10::Argument& argument = schema.arguments()[i];
      const c10::IValue& value = arguments[i];
      if (value.isDevice() && is_ours(value.toDevice().type())) {
        host.emplace_back(c10::Device(c10::DeviceType::CPU));
      } else if (takes_generator(argument)) {
        host.emplace_back(stand_in(value, device));
      } else {
        const bool written = writes(schema, argument);
        host.push_back(
            map_tensors(value, [&](const at::Tensor& tensor) { return sparse.to_host(tensor, written); }));
      }
    }
    op.redispatchBoxed(c10::DispatchKeySet(sparse.key()), &host);
    scope.finish();
    sparse.finish();
    results.reserve(host.size());
    for (const c10::IValue& value : host) {
      results.push_back(map_tensors(value, [&](const at::Tensor& tensor) { return sparse.to_device(tensor); }));
    }
    record.staged(scope.staged_bytes());
  }
  torch::jit::drop(*stack, count);
  for (c10::IValue& result : results) {
    stack->push_back(std::move(result));
  }
  compiled.fell_back();
}

}  // namespace outrigger
