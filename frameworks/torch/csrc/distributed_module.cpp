//! The backend of a group for Python. torch knows such objects by its own bindings, which this goes through.

#include "distributed_module.h"

#include "distributed.h"
#include "python.h"

#include <torch/csrc/utils/pybind.h>

#include <string_view>

namespace outrigger {
namespace {

Engine engine_of(std::string_view name) {
  if (name == "driver") {
    return Engine::kDriver;
  }
  if (name == "gloo") {
    return Engine::kGloo;
  }
  TORCH_CHECK_VALUE(
      name == "auto", "OUTRIGGER_DISTRIBUTED=", name, " names nothing that moves data between ranks; what does: auto "
      "(the driver where it can, else Gloo), driver, gloo");
  return Engine::kAny;
}

PyObject* device_group(PyObject* arguments) {
  PyObject *store = nullptr, *gloo = nullptr;
  double seconds = 0;
  const char *name = nullptr, *type = nullptr, *engine = nullptr;
  int device = 0;
  parse(arguments, "OOdsssi", &store, &gloo, &seconds, &name, &type, &engine, &device);
  GroupParts parts{
      py::cast<c10::intrusive_ptr<c10d::Store>>(py::handle(store)),
      py::cast<c10::intrusive_ptr<c10d::Backend>>(py::handle(gloo)),
      std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)),
      name,
      c10::Device(type).type(),
      engine_of(engine),
  };
  const c10::DeviceType kind = parts.type;
  auto group = c10::make_intrusive<DeviceGroup>(std::move(parts));
  if (device >= 0) {
    const py::gil_scoped_release released;
    group->connect(c10::Device(kind, static_cast<c10::DeviceIndex>(device)));
  }
  return py::cast(c10::intrusive_ptr<c10d::Backend>(std::move(group))).release().ptr();
}

PyMethodDef methods[] = {
    {"device_group", bound<device_group>, METH_VARARGS,
     "The backend of a group: (store, gloo, seconds of the timeout, name, device type, who moves the data: auto, driver "
     "or gloo, device to connect now or -1)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_distributed_functions(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
