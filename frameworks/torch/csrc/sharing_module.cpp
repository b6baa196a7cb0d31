//! Device memory for others: a CPU tensor over the bytes of a device tensor, and memory that another process has
//! allocated. It must never hold the GIL over a call of the runtime that can wait.

#include "sharing_module.h"

#include "host_view.h"
#include "python.h"

#include <torch/csrc/autograd/python_variable.h>
#include <unistd.h>

namespace outrigger {
namespace {

const at::Tensor& tensor_of(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), who(), "expected a tensor");
  return THPVariable_Unpack(object);
}

PyObject* view_on_host(PyObject* object) {
  const at::Tensor& tensor = tensor_of(object);
  at::Tensor view;
  {
    // It waits for the stream.
    const WithoutGil released;
    view = host_view(tensor);
  }
  return THPVariable_Wrap(view);
}

// The text that names the allocation of a storage, and the place of the storage in it.
PyObject* export_memory(PyObject* object) {
  const at::Tensor& tensor = tensor_of(object);
  TORCH_CHECK(is_ours(tensor) && tensor.has_storage(), who(), "expected a tensor with memory of the device");
  own_memory_of(tensor);
  const auto device = static_cast<uint32_t>(tensor.device().index());
  const otr_address_t address = address_of(tensor.storage().data());
  auto info = otr::sized<otr_pointer_info_t>();
  char* text = nullptr;
  call([&] {
    otr_status_t* status = otr_memory_pointer_info_on(device, address, &info);
    return status != nullptr ? status : otr_memory_export_on(device, address, &text);
  });
  const std::string result = otr::take(text);
  return Py_BuildValue("(sK)", result.c_str(), static_cast<unsigned long long>(address - info.base));
}

struct Imported {
  uint32_t device;
  otr_address_t base = 0;
  // Open as long as this process has the memory: the sender sees that it is closed.
  int pipe = -1;
};

void close_imported(void* context) noexcept {
  const std::unique_ptr<Imported> memory(static_cast<Imported*>(context));
  warn_if_failed(otr_memory_close(memory->device, memory->base), "giving back memory of another process");
  if (memory->pipe >= 0) {
    ::close(memory->pipe);
  }
}

// A tensor of bytes over a part of an allocation of another process. Its storage closes that, and then the pipe.
PyObject* import_memory(PyObject* arguments) {
  const char* type = nullptr;
  const char* text = nullptr;
  int index = 0, pipe = -1;
  unsigned long long offset = 0, bytes = 0;
  parse(arguments, "sisKKi", &type, &index, &text, &offset, &bytes, &pipe);
  TORCH_CHECK(index >= 0 && index <= INT8_MAX, who(), "invalid device index ", index);
  check_device(static_cast<c10::DeviceIndex>(index));
  auto memory = std::make_unique<Imported>();
  memory->device = static_cast<uint32_t>(index);
  uint64_t size = 0;
  call([&] { return otr_memory_import(memory->device, text, &memory->base, &size); });
  void* base = reinterpret_cast<void*>(memory->base);
  void* start = static_cast<char*>(base) + offset;
  const c10::Device device(c10::Device(type).type(), static_cast<c10::DeviceIndex>(index));
  Imported* imported = memory.release();
  c10::DataPtr data(start, imported, &close_imported, device);
  TORCH_CHECK(
      offset <= size && bytes <= size - offset, who(), "the other process has shared ", size,
      " bytes, which have no ", bytes, " behind byte ", offset);
  imported->pipe = pipe;
  c10::Storage storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator_of(device.type()), /*resizable=*/false);
  const auto count = static_cast<int64_t>(bytes);
  return THPVariable_Wrap(
      tensor_over(std::move(storage), {count}, {1}, 0, caffe2::TypeMeta::Make<uint8_t>()));
}

PyMethodDef methods[] = {
    {"host_view", bound<view_on_host>, METH_O, "A CPU tensor over the memory of a device tensor, after the work of its stream."},
    {"memory_export", bound<export_memory>, METH_O,
     "The allocation of a tensor's storage for other processes: (text, offset of the storage)."},
    {"memory_import", bound<import_memory>, METH_VARARGS,
     "A tensor of bytes of another process: (device type, device, text, offset, bytes, pipe)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_sharing_functions(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
