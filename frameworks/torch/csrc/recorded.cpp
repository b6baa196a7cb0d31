//! A call of a CPU kernel becomes a node here. All that the call needs is put into a `Recorded` call, which
//! the graph owns. The addresses of its tensors are put into the node's arguments, where the graph
//! holds and rebinds them. A replay makes CPU tensors over these bytes, runs the CPU kernel, and copies
//! the results to the place of the results in the capture. It takes no lock, needs no interpreter, and
//! shares nothing with other replays.

#include "recorded.h"

#include "capture.h"
#include "host.h"
#include "images.h"
#include "schema_call.h"
#include "values.h"

#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

namespace outrigger {
namespace {

/// A strided tensor without its bytes.
struct Layout {
  c10::SmallVector<int64_t, 5> sizes;
  c10::SmallVector<int64_t, 5> strides;
  caffe2::TypeMeta dtype;
  bool conjugate = false;
  bool negative = false;
};

constexpr uint32_t kNowhere = UINT32_MAX;

/// A tensor of a recorded call: its layout, and the memory that it is in.
struct Place {
  Layout layout;
  /// The number of its address among those of the node; `kNowhere` without bytes and for host tensors.
  uint32_t address = kNowhere;
  /// The bytes from its first to its last element.
  size_t bytes = 0;
  /// For a CPU tensor with dimensions: its storage, which the graph keeps, and its place in it.
  c10::Storage host;
  int64_t host_offset = 0;
  bool defined = true;
};

/// One argument of the CPU kernel: a value, or places of tensors.
struct Slot {
  enum class Kind { kValue, kTensor, kTensors, kOptionalTensors } kind = Kind::kValue;
  c10::IValue value;
  std::vector<uint32_t> places;
};

/// A recorded call. It does not change once it is made, so that replays may overlap.
struct Recorded {
  explicit Recorded(const c10::OperatorHandle& handle) : op(handle) {}

  c10::OperatorHandle op;
  std::vector<Place> places;
  std::vector<Slot> slots;
  /// For each tensor that the kernel returns, in order: the place it is copied to, or `kNowhere` if the
  /// kernel has written an argument.
  std::vector<uint32_t> targets;
};

/// The host's pointer to the bytes of a place that has an address.
void* bytes_of(const Place& place, const uint64_t* addresses, int64_t bias) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(addresses[place.address] + static_cast<uint64_t>(bias)));
}

/// A CPU tensor over the bytes of a place. Nobody else has it, and it owns nothing.
at::Tensor tensor_at(const Place& place, const uint64_t* addresses, int64_t bias) {
  if (!place.defined) {
    return {};
  }
  const Layout& layout = place.layout;
  c10::Storage storage = place.host;
  if (!storage) {
    void* data = place.address == kNowhere ? nullptr : bytes_of(place, addresses, bias);
    storage = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), place.bytes, c10::DataPtr(data, c10::Device(c10::DeviceType::CPU)),
        c10::GetCPUAllocator(), /*resizable=*/true);
  }
  at::Tensor tensor = tensor_over(std::move(storage), layout.sizes, layout.strides, place.host_offset, layout.dtype);
  if (layout.conjugate) {
    tensor._set_conj(true);
  }
  if (layout.negative) {
    tensor._set_neg(true);
  }
  return tensor;
}

c10::IValue argument_at(const Slot& slot, const std::vector<at::Tensor>& tensors) {
  switch (slot.kind) {
    case Slot::Kind::kTensor: return tensors[slot.places[0]];
    case Slot::Kind::kTensors: {
      c10::List<at::Tensor> list;
      for (const uint32_t place : slot.places) {
        list.push_back(tensors[place]);
      }
      return list;
    }
    case Slot::Kind::kOptionalTensors: {
      c10::List<std::optional<at::Tensor>> list;
      for (const uint32_t place : slot.places) {
        list.push_back(tensors[place].defined() ? std::optional<at::Tensor>(tensors[place]) : std::nullopt);
      }
      return list;
    }
    default: return slot.value;
  }
}

/// Whether a value has the shape of a place; if so, it is copied there.
bool bring(const at::Tensor& value, const at::Tensor& to) {
  const bool fits = to.defined() && to.sizes() == value.sizes();
  if (fits) {
    to.copy_(value);
  }
  return fits;
}

/// Runs a recorded call over these addresses.
otr_code_t replay(const Recorded& call, const uint64_t* addresses, int64_t bias) {
  const PlainDispatch dispatch;
  // The thread may be waiting within an operator of its own, whose results are born on the device.
  const HostMemoryGuard on_host;
  // An observer of operators may be Python code, for which nobody can wait here.
  const at::DisableRecordFunctionGuard unobserved;
  std::vector<at::Tensor> tensors;
  tensors.reserve(call.places.size());
  for (const Place& place : call.places) {
    tensors.push_back(tensor_at(place, addresses, bias));
  }
  torch::jit::Stack stack;
  stack.reserve(call.slots.size());
  for (const Slot& slot : call.slots) {
    stack.push_back(argument_at(slot, tensors));
  }
  call.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  size_t next = 0;
  bool fits = true;
  for (const c10::IValue& value : stack) {
    each_tensor(value, [&](const at::Tensor& result) {
      const uint32_t target = next < call.targets.size() ? call.targets[next] : kNowhere;
      ++next;
      if (target == kNowhere || !result.defined() || result.numel() == 0) {
        return;
      }
      // A result that does not fit means that the kernel and what told its shapes disagree.
      fits = fits && bring(result, tensors[target]);
    });
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Place& place = call.places[i];
    // A kernel that made an argument larger on the way has left the result in memory of its own.
    if (place.address != kNowhere && tensors[i].storage().data() != bytes_of(place, addresses, bias)) {
      fits = fits && bring(tensors[i], tensor_at(place, addresses, bias));
    }
  }
  return fits ? OTR_OK : OTR_ERR_INTERNAL;
}

/// The host function of a node. `arguments` is the recorded call, then the addresses.
otr_code_t run_node(const void* arguments, uint32_t, int64_t bias) noexcept {
  const auto* words = static_cast<const uint64_t*>(arguments);
  try {
    return replay(*reinterpret_cast<const Recorded*>(static_cast<uintptr_t>(words[0])), words + 1, bias);
  } catch (const c10::IndexError&) {
    return OTR_ERR_OUT_OF_RANGE;
  } catch (const std::bad_alloc&) {
    return OTR_ERR_OUT_OF_HOST_MEMORY;
  } catch (...) {
    return OTR_ERR_EXECUTION;
  }
}

/// The bytes from a tensor's first to its last element.
size_t reach_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) {
    return 0;
  }
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    last += (tensor.size(dim) - 1) * tensor.stride(dim);
  }
  return static_cast<size_t>(last + 1) * tensor.itemsize();
}

Layout layout_of(const at::Tensor& tensor) {
  Layout layout;
  layout.sizes.append(tensor.sizes().begin(), tensor.sizes().end());
  layout.strides.append(tensor.strides().begin(), tensor.strides().end());
  layout.dtype = tensor.dtype();
  layout.conjugate = tensor.is_conj();
  layout.negative = tensor.is_neg();
  return layout;
}

/// One recording, from the arguments to the node.
class Recording {
 public:
  Recording(const c10::OperatorHandle& op, c10::Device device, std::string_view name)
      : op_(op), device_(device), stream_(current_stream(device.index())), name_(lasting(name)), images_(op) {}

  void run(torch::jit::Stack* stack) {
    const size_t count = op_.schema().arguments().size();
    std::vector<c10::IValue> arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
    refuse_what_cannot_be(arguments);
    for (c10::IValue& value : arguments) {
      if (value.isDevice() && is_ours(value.toDevice().type())) {
        value = c10::Device(c10::DeviceType::CPU);
      }
    }
    if (!images_.infer(arguments, Images::Errors::kThrow)) {
      refuse_shape();
    }
    if (!images_.resize_arguments()) {
      refuse("it gives an argument another storage. Leave it out of the graph");
    }
    auto call = std::make_shared<Recorded>(op_);
    call_ = call.get();
    for (size_t i = 0; i < count; ++i) {
      call_->slots.push_back(slot_of(arguments[i], writes(op_.schema(), op_.schema().arguments()[i])));
    }
    torch::jit::Stack results;
    for (const c10::IValue& value : images_.results()) {
      results.push_back(map_tensors(value, [&](const at::Tensor& found) { return result_of(found); }));
    }
    launch(std::move(call));
    torch::jit::drop(*stack, count);
    for (c10::IValue& result : results) {
      stack->push_back(std::move(result));
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    refuse_capture(stream_, name_, reason);
  }

  [[noreturn]] void refuse_shape() const {
    const std::string& problem = images_.problem();
    refuse(c10::str(
        "it runs on the CPU, and the shape of its result is not known without running it. Use a form with a fixed "
        "shape (torch.where or a mask instead of nonzero or boolean indexing), or leave it out of the graph.\n"
        "What was tried: ", problem.substr(0, problem.find_first_of(".\n"))));
  }

  /// Whether the operator draws random numbers. Attention does only if it drops something out.
  bool draws(const std::vector<c10::IValue>& arguments) const {
    const std::vector<c10::Argument>& schema = op_.schema().arguments();
    bool takes_generator = false;
    for (size_t i = 0; i < schema.size(); ++i) {
      if (schema[i].name() == "dropout_p" && arguments[i].isDouble() && arguments[i].toDouble() == 0.0) {
        return false;
      }
      takes_generator = takes_generator || schema[i].name() == "generator";
    }
    return takes_generator || op_.hasTag(at::Tag::nondeterministic_seeded);
  }

  void refuse_what_cannot_be(const std::vector<c10::IValue>& arguments) const {
    const c10::FunctionSchema& schema = op_.schema();
    if (draws(arguments)) {
      refuse(
          "it runs on the CPU and draws from the CPU's random numbers, which would be the same at every replay. "
          "Draw them by an operator that the device has (rand, randn, bernoulli, dropout), or outside of the graph");
    }
    for (const c10::Argument& result : schema.returns()) {
      const c10::TypeKind kind = result.type()->kind();
      if (kind == c10::TypeKind::BoolType || kind == c10::TypeKind::FloatType || kind == c10::TypeKind::NumberType) {
        refuse_wait_in_capture(stream_, name_);
      }
    }
    // Kernels written in Python would need the interpreter, for which nothing can wait in a replay.
    if (schema.name().compare(0, 6, "aten::") != 0 && op_.dumpState().find(".py:") != std::string::npos) {
      refuse("its kernel is written in Python, which a replay cannot run. Leave it out of the graph");
    }
  }

  uint32_t place_of(const at::Tensor& tensor, bool written) {
    Place place;
    place.defined = tensor.defined();
    if (place.defined) {
      place.layout = layout_of(tensor);
      place.bytes = reach_of(tensor);
      if (is_ours(tensor)) {
        if (place.bytes != 0) {
          place.address = static_cast<uint32_t>(addresses_.size());
          addresses_.push_back(address_of(tensor.const_data_ptr()));
          ranges_.push_back({place.bytes, written ? 1U : 0U, 0});
        }
      } else {
        place.host = tensor.storage();
        place.host_offset = tensor.storage_offset();
      }
    }
    call_->places.push_back(std::move(place));
    return static_cast<uint32_t>(call_->places.size() - 1);
  }

  Slot slot_of(const c10::IValue& value, bool written) {
    Slot slot;
    if (value.isTensor()) {
      const at::Tensor& tensor = value.toTensor();
      if (tensor.defined() && !is_ours(tensor) && tensor.dim() == 0) {
        // As for native operators, a CPU scalar is the number that it is now.
        slot.value = tensor.clone();
        slot.value.toTensor().unsafeGetTensorImpl()->set_wrapped_number(
            tensor.unsafeGetTensorImpl()->is_wrapped_number());
        return slot;
      }
      slot.kind = Slot::Kind::kTensor;
    } else if (value.isTensorList()) {
      slot.kind = Slot::Kind::kTensors;
    } else if (value.isOptionalTensorList()) {
      slot.kind = Slot::Kind::kOptionalTensors;
    } else {
      slot.value = value;
      return slot;
    }
    if (slot.kind == Slot::Kind::kOptionalTensors) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        slot.places.push_back(place_of(tensor.value_or(at::Tensor()), written));
      }
    } else {
      each_tensor(value, [&](const at::Tensor& tensor) { slot.places.push_back(place_of(tensor, written)); });
    }
    return slot;
  }

  /// The device tensor for a result found on images, and where the kernel's result is to be copied.
  at::Tensor result_of(const at::Tensor& found) {
    if (!found.defined()) {
      call_->targets.push_back(kNowhere);
      return found;
    }
    if (found.is_quantized()) {
      refuse("its result is a quantized tensor. Leave it out of the graph");
    }
    if (const at::Tensor argument = images_.argument_of(found); argument.defined()) {
      call_->targets.push_back(kNowhere);
      return argument;
    }
    if (!images_.is_image(found)) {
      refuse("its result is a tensor on the host, which is not known before the graph runs. Leave it out of the graph");
    }
    if (const at::Tensor base = images_.base_of(found); base.defined()) {
      call_->targets.push_back(kNowhere);
      return tensor_over(base.storage(), found.sizes(), found.strides(), found.storage_offset(), found.dtype());
    }
    at::Tensor made =
        empty_strided_on(device_, found.sizes(), found.strides(), c10::typeMetaToScalarType(found.dtype()));
    call_->targets.push_back(place_of(made, true));
    return made;
  }

  void launch(std::shared_ptr<Recorded> call) {
    std::vector<uint64_t> arguments{static_cast<uint64_t>(reinterpret_cast<uintptr_t>(call.get()))};
    arguments.insert(arguments.end(), addresses_.begin(), addresses_.end());
    std::vector<uint32_t> offsets;
    for (size_t i = 1; i < arguments.size(); ++i) {
      offsets.push_back(static_cast<uint32_t>(i * sizeof(uint64_t)));
    }
    auto node = otr::sized<otr_host_kernel_call_t>();
    node.function = &run_node;
    node.args = arguments.data();
    node.args_size = static_cast<uint32_t>(arguments.size() * sizeof(uint64_t));
    node.label = name_;
    node.address_offsets = offsets.data();
    node.address_count = static_cast<uint32_t>(offsets.size());
    node.address_ranges = ranges_.data();
    keep_in_capture(stream_, std::move(call));
    check(otr_host_kernel_launch(stream_, &node));
  }

  const c10::OperatorHandle& op_;
  c10::Device device_;
  otr_stream_t stream_;
  const char* name_;
  Images images_;
  std::vector<uint64_t> addresses_;
  std::vector<otr_address_range_t> ranges_;
  Recorded* call_ = nullptr;
};

}  // namespace

const char* lasting(std::string_view text) {
  static auto* lock = new std::mutex;
  static auto* texts = new std::set<std::string, std::less<>>;
  const std::lock_guard<std::mutex> guard(*lock);
  auto found = texts->find(text);
  if (found == texts->end()) {
    found = texts->emplace(text).first;
  }
  return found->c_str();
}

void record_on_host(
    const c10::OperatorHandle& op, torch::jit::Stack* stack, c10::Device device, std::string_view name) {
  Recording(op, device, name).run(stack);
}

void record_on_host(
    const char* op, const char* overload, torch::jit::Stack* stack, c10::Device device, std::string_view name) {
  record_on_host(c10::Dispatcher::singleton().findSchemaOrThrow(op, overload), stack, device, name);
}

}  // namespace outrigger
