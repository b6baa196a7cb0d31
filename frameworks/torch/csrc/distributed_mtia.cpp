//! Torch's operators of torch.distributed ask a group for the backend of a device type, and hand their tensors over.
//! Those of PrivateUse1 serve MTIA too, with a group that gives them MTIA's backend. This file must never touch a tensor.

#include "distributed_mtia.h"

#include "runtime.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <string>

namespace outrigger {
namespace {

// A group of one backend, under the name of PrivateUse1. The group of the program must not have that name: torch would
// choose it for objects, and make tensors of a device type that is not there.
c10::intrusive_ptr<c10d::ProcessGroup> renamed(c10d::ProcessGroup& group) {
  const c10::intrusive_ptr<c10d::Backend> backend = group.getBackend(c10::DeviceType::MTIA);
  auto made = c10::make_intrusive<c10d::ProcessGroup>(group.getRank(), group.getSize());
  made->setBackend(c10::DeviceType::PrivateUse1, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  return made;
}

void run_as_privateuse1(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const std::optional<int> index = schema.argumentIndexWithName("process_group");
  TORCH_CHECK(index.has_value(), who(), schema.name(), " has no group whose backend could be asked");
  c10::IValue& group = torch::jit::peek(*stack, static_cast<size_t>(*index), schema.arguments().size());
  group = renamed(*group.toCustomClass<c10d::ProcessGroup>());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
}

}  // namespace

void register_mtia_collectives() {
  auto& c10d = *new torch::Library(torch::Library::IMPL, "c10d", c10::DispatchKey::MTIA, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (name.getNamespace() == "c10d" && op.has_value() &&
        op->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) {
      const std::string plain = name.name.substr(sizeof("c10d::") - 1);
      c10d.impl(plain.c_str(), torch::CppFunction::makeFromBoxedFunction<&run_as_privateuse1>());
    }
  }
}

}  // namespace outrigger
