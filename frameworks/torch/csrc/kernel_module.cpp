//! Kernels of modules in Python: a capsule owns a kernel. It must never look into arguments: `torch_outrigger._kernels` packs
//! and checks them.

#include "kernel_module.h"

#include "python.h"
#include "runtime.h"

#include <string_view>

namespace outrigger {
namespace {

constexpr const char* kKernelName = "torch_outrigger.kernel";

struct HeldKernel {
  otr_kernel_t id;
};

void free_kernel(PyObject* capsule) {
  auto* kernel = static_cast<HeldKernel*>(PyCapsule_GetPointer(capsule, kKernelName));
  const WithoutGil released;
  warn_if_failed(otr_kernel_destroy(kernel->id), "destroying a kernel");
  delete kernel;
}

/// The bytes of a Python object of type bytes, which live as long as that.
std::string_view bytes_of(PyObject* object) {
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(object, &bytes, &size) != 0) {
    throw PythonError();
  }
  return {bytes, static_cast<size_t>(size)};
}

PyObject* kernel_compile(PyObject* arguments) {
  int device = 0;
  unsigned int format = 0;
  PyObject* source = nullptr;
  const char* options = nullptr;
  const char* name = nullptr;
  parse(arguments, "iIOss", &device, &format, &source, &options, &name);
  const std::string_view code = bytes_of(source);
  check_device(static_cast<c10::DeviceIndex>(device));
  auto params = otr::sized<otr_module_params_t>();
  params.code = code.data();
  params.size = code.size();
  params.options = options;
  params.format = format;
  auto kernel = std::make_unique<HeldKernel>();
  call([&] {
    otr_module_t module = 0;
    otr_status_t* const loaded = otr_module_load(static_cast<uint32_t>(device), &params, &module);
    if (loaded != nullptr) {
      return loaded;
    }
    otr_status_t* const found = otr_kernel_get(module, name, &kernel->id);
    // The kernel lives on without the module.
    otr_status_free(otr_module_destroy(module));
    return found;
  });
  PyObject* capsule = PyCapsule_New(kernel.get(), kKernelName, &free_kernel);
  if (capsule != nullptr) {
    kernel.release();
  }
  return capsule;
}

PyObject* kernel_launch(PyObject* arguments) {
  PyObject* capsule = nullptr;
  int device = 0;
  auto launch = otr::sized<otr_launch_t>();
  PyObject* words = nullptr;
  PyObject* list = nullptr;
  parse(
      arguments, "Oi(III)(III)IOO", &capsule, &device, &launch.grid[0], &launch.grid[1], &launch.grid[2],
      &launch.block[0], &launch.block[1], &launch.block[2], &launch.shared_bytes, &words, &list);
  const std::string_view block = bytes_of(words), parts = bytes_of(list);
  const auto* kernel = static_cast<HeldKernel*>(PyCapsule_GetPointer(capsule, kKernelName));
  if (kernel == nullptr) {
    throw PythonError();
  }
  const otr_stream_t stream = current_stream(static_cast<c10::DeviceIndex>(device));
  launch.args = block.data();
  launch.args_size = static_cast<uint32_t>(block.size());
  launch.arguments = reinterpret_cast<const otr_argument_t*>(parts.data());
  launch.argument_count = static_cast<uint32_t>(parts.size() / sizeof(otr_argument_t));
  call([&] { return otr_kernel_launch(stream, kernel->id, &launch); });
  return none();
}

PyMethodDef methods[] = {
    {"kernel_compile", bound<kernel_compile>, METH_VARARGS,
     "A kernel of code: (device, format, code, options, name) -> kernel."},
    {"kernel_launch", bound<kernel_launch>, METH_VARARGS,
     "Launches a kernel: (kernel, device, groups, items, shared bytes, block, parts)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_kernel_functions(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
