//! Kernels that torch.compile has made: a Python object that is called with tensors and numbers, and launches. It checks
//! and packs in C++, so that a launch costs little more than the call. A kernel runs as a function of this process where
//! the driver runs host functions, else as a kernel of a module. It must never wait, and never compile:
//! `torch_outrigger.inductor.program` gives it the code at its first call.

#include "program_module.h"

#include "python.h"
#include "runtime.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>
#include <structmember.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>

namespace outrigger {
namespace {

constexpr const char* kModuleName = "torch_outrigger.program";

/// Runs the groups of a kernel from one number to another. The words are addresses, then the kernel's numbers. Another
/// result than 0 says that an index was out of bounds.
using Groups = int32_t (*)(const uint64_t* words, int64_t first, int64_t end);

/// What stands in front of the words in the block of a host function.
struct Head {
  Groups run;
  int64_t groups;
  int64_t grain;
  uint64_t addresses;
};

/// Work of one thread, in elements, below which sharing costs more than it saves; that of torch's own loops.
constexpr int64_t kGrain = 32768;

/// Elements of a group where a thread runs it, and items of a group where many do, for each of its lanes.
constexpr int64_t kSerialChunk = 4096;
constexpr int64_t kItemsOfLane = 4;

/// The function that the runtime calls: it knows nothing of Python.
otr_code_t run_groups(const void* block, uint32_t size, int64_t bias) {
  Head head;
  std::memcpy(&head, block, sizeof head);
  c10::SmallVector<uint64_t, 48> words((size - sizeof head) / sizeof(uint64_t));
  std::memcpy(words.data(), static_cast<const char*>(block) + sizeof head, words.size() * sizeof(uint64_t));
  for (uint64_t i = 0; i < head.addresses; ++i) {
    words[i] += words[i] == 0 ? 0 : static_cast<uint64_t>(bias);
  }
  if (head.groups <= head.grain) {
    return head.run(words.data(), 0, head.groups) == 0 ? OTR_OK : OTR_ERR_OUT_OF_RANGE;
  }
  std::atomic<bool> failed{false};
  try {
    at::parallel_for(0, head.groups, head.grain, [&](int64_t first, int64_t end) {
      if (head.run(words.data(), first, end) != 0) {
        failed.store(true, std::memory_order_relaxed);
      }
    });
  } catch (...) {
    return OTR_ERR_INTERNAL;
  }
  return failed.load(std::memory_order_relaxed) ? OTR_ERR_OUT_OF_RANGE : OTR_OK;
}

/// A number of a launch: fixed, or that of an argument.
struct Extent {
  int64_t fixed = 1;
  int argument = -1;
};

/// The Python object.
struct ProgramKernel {
  PyObject_HEAD
  vectorcallfunc entry;
  PyObject* loader;  // called with the kernel at its first call; NULL afterwards
  c10::Device device;
  const char* name;  // lives as long as the process
  std::string kinds;  // of each argument: a(ddress), i(nteger), f(32), d (f64)
  Extent items, reduced;
  bool by_row;  // a group works on whole rows of `reduced` elements
  uint32_t group_size;
  Groups groups;
  otr_kernel_t kernel;
  uint32_t addresses;
  c10::SmallVector<otr_argument_t, 16> arguments;
  c10::SmallVector<uint32_t, 16> offsets;
};

int64_t value_of(const Extent& extent, PyObject* const* arguments) {
  if (extent.argument < 0) {
    return extent.fixed;
  }
  const int64_t value = PyLong_AsLongLong(arguments[extent.argument]);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    throw PythonError();
  }
  return value;
}

uint64_t word_of(ProgramKernel* self, Py_ssize_t number, PyObject* argument) {
  const char kind = self->kinds[static_cast<size_t>(number)];
  if (kind == 'a') {
    TORCH_CHECK_TYPE(
        THPVariable_Check(argument), who(), "argument ", number, " of ", self->name, " is a ", Py_TYPE(argument)->tp_name,
        ", and it is to be a tensor");
    const at::Tensor& tensor = THPVariable_Unpack(argument);
    TORCH_CHECK_VALUE(
        tensor.device() == self->device, who(), "argument ", number, " of ", self->name, " is a tensor on ",
        tensor.device(), ", and the program was compiled for ", self->device);
    return address_of(tensor.const_data_ptr());
  }
  if (kind == 'i') {
    const uint64_t value = PyLong_Check(argument) ? PyLong_AsUnsignedLongLongMask(argument)
                                                  : static_cast<uint64_t>(PyNumber_AsSsize_t(argument, PyExc_OverflowError));
    if (value == UINT64_MAX && PyErr_Occurred() != nullptr) {
      throw PythonError();
    }
    return value;
  }
  const double value = PyFloat_AsDouble(argument);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    throw PythonError();
  }
  uint64_t word = 0;
  if (kind == 'd') {
    std::memcpy(&word, &value, sizeof value);
  } else {
    const auto narrow = static_cast<float>(value);
    std::memcpy(&word, &narrow, sizeof narrow);
  }
  return word;
}

void launch(ProgramKernel* self, PyObject* const* arguments, Py_ssize_t count) {
  TORCH_CHECK_TYPE(
      count == static_cast<Py_ssize_t>(self->kinds.size()), who(), self->name, " takes ", self->kinds.size(),
      " arguments, and was given ", count);
  const int64_t items = value_of(self->items, arguments), reduced = value_of(self->reduced, arguments);
  if (items <= 0) {
    return;
  }
  // How much a group does. The kernel is told, so one text serves all sizes and all devices.
  const bool serial = self->group_size == 1;
  const int64_t deep = std::max<int64_t>(reduced, 1);
  int64_t chunk = 1;
  if (serial) {
    chunk = std::max<int64_t>(1, kSerialChunk / deep);
    if (!self->by_row) {
      // Whole cache lines of neighbours, which are read together.
      chunk = std::max<int64_t>(chunk, deep > 1 ? 64 : 1);
    }
  } else if (!self->by_row) {
    chunk = static_cast<int64_t>(self->group_size) * (deep > 1 ? 1 : kItemsOfLane);
  }
  constexpr int64_t most_groups = std::numeric_limits<int32_t>::max();
  chunk = std::max(chunk, (items + most_groups - 1) / most_groups);
  const int64_t groups = (items + chunk - 1) / chunk;

  constexpr size_t head_words = sizeof(Head) / sizeof(uint64_t);
  c10::SmallVector<uint64_t, 48> words(head_words);
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (self->kinds[static_cast<size_t>(i)] == 'a') {
      words.push_back(word_of(self, i, arguments[i]));
    }
  }
  words.push_back(static_cast<uint64_t>(chunk));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (self->kinds[static_cast<size_t>(i)] != 'a') {
      words.push_back(word_of(self, i, arguments[i]));
    }
  }
  const otr_stream_t stream = current_stream(self->device.index());
  const double elements = static_cast<double>(items) * static_cast<double>(deep);
  const auto cost = static_cast<uint32_t>(std::min(elements * 0.5 + 100.0, 4e9));
  if (self->groups != nullptr) {
    const int64_t work = std::max<int64_t>(1, chunk * deep);
    const Head head{self->groups, groups, std::max<int64_t>(1, kGrain / work), self->addresses};
    std::memcpy(words.data(), &head, sizeof head);
    auto call = otr::sized<otr_kernel_call_t>();
    call.function = &run_groups;
    call.args = words.data();
    call.args_size = static_cast<uint32_t>(words.size() * sizeof(uint64_t));
    call.cost_ns = cost;
    call.label = self->name;
    call.address_offsets = self->offsets.data();
    call.address_count = self->addresses;
    check(otr_kernel_launch(stream, &call));
    return;
  }
  auto call = otr::sized<otr_launch_t>();
  call.grid[0] = static_cast<uint32_t>(groups);
  call.grid[1] = call.grid[2] = call.block[1] = call.block[2] = 1;
  call.block[0] = self->group_size;
  call.args = words.data() + head_words;
  call.args_size = static_cast<uint32_t>((words.size() - head_words) * sizeof(uint64_t));
  call.arguments = self->arguments.data();
  call.argument_count = static_cast<uint32_t>(self->arguments.size());
  call.cost_ns = cost;
  call.label = self->name;
  check(otr_launch(stream, self->kernel, &call));
}

PyObject* kernel_call(PyObject* object, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<ProgramKernel*>(object);
  TORCH_CHECK_TYPE(names == nullptr, who(), self->name, " takes no arguments by name");
  if (C10_UNLIKELY(self->loader != nullptr)) {
    PyObject* loaded = PyObject_CallOneArg(self->loader, object);
    if (loaded == nullptr) {
      throw PythonError();
    }
    Py_DECREF(loaded);
    TORCH_CHECK(
        self->groups != nullptr || self->kernel != 0, who(), "the loader of ", self->name, " has not given it its code");
    Py_CLEAR(self->loader);
  }
  launch(self, arguments, PyVectorcall_NARGS(flags));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

/// Reads an extent: an int that is fixed, or a tuple with the number of an argument.
Extent extent_of(PyObject* object) {
  Extent extent;
  if (PyTuple_Check(object)) {
    int number = 0;
    parse(object, "i", &number);
    extent.argument = number;
    return extent;
  }
  extent.fixed = PyLong_AsLongLong(object);
  if (extent.fixed == -1 && PyErr_Occurred() != nullptr) {
    throw PythonError();
  }
  return extent;
}

void kernel_free(PyObject* object) {
  auto* self = reinterpret_cast<ProgramKernel*>(object);
  PyTypeObject* type = Py_TYPE(object);
  Py_CLEAR(self->loader);
  if (self->kernel != 0) {
    const WithoutGil released;
    warn_if_failed(otr_kernel_destroy(self->kernel), "destroying a kernel");
  }
  self->kinds.~basic_string();
  self->arguments.~SmallVector();
  self->offsets.~SmallVector();
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* kernel_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *loader = nullptr, *device = nullptr, *items = nullptr, *reduced = nullptr;
  const char *name = nullptr, *kinds = nullptr;
  int by_row = 0;
  unsigned int group_size = 0;
  parse(arguments, "OOssOOpI", &loader, &device, &name, &kinds, &items, &reduced, &by_row, &group_size);
  TORCH_CHECK_TYPE(THPDevice_Check(device), who(), "a program is for a torch.device");
  const Extent many = extent_of(items), deep = extent_of(reduced);
  auto* self = reinterpret_cast<ProgramKernel*>(type->tp_alloc(type, 0));
  if (self == nullptr) {
    throw PythonError();
  }
  self->entry = &kernel_call;
  Py_INCREF(loader);
  self->loader = loader;
  self->device = reinterpret_cast<THPDevice*>(device)->device;
  // Failures and traces name a kernel as long as the process lives, so its name stays.
  self->name = (new std::string(name))->c_str();
  new (&self->kinds) std::string(kinds);
  new (&self->arguments) c10::SmallVector<otr_argument_t, 16>();
  new (&self->offsets) c10::SmallVector<uint32_t, 16>();
  self->items = many;
  self->reduced = deep;
  self->by_row = by_row != 0;
  self->group_size = group_size;
  self->groups = nullptr;
  self->kernel = 0;
  self->addresses = static_cast<uint32_t>(std::count(self->kinds.begin(), self->kinds.end(), 'a'));
  for (uint32_t i = 0; i < self->addresses; ++i) {
    self->arguments.push_back({i * 8, 8, OTR_ARGUMENT_ADDRESS});
    self->offsets.push_back(static_cast<uint32_t>(sizeof(Head)) + i * 8);
  }
  const auto numbers = static_cast<uint32_t>(self->kinds.size()) - self->addresses + 1;
  self->arguments.push_back({self->addresses * 8, numbers * 8, OTR_ARGUMENT_VALUE});
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyObject* bind_host(PyObject* object, PyObject* address) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<ProgramKernel*>(object);
  self->groups = reinterpret_cast<Groups>(PyLong_AsVoidPtr(address));
  if (self->groups == nullptr && PyErr_Occurred() != nullptr) {
    throw PythonError();
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* bind_module(PyObject* object, PyObject* capsule) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<ProgramKernel*>(object);
  const auto* module = static_cast<otr_module_t*>(PyCapsule_GetPointer(capsule, kModuleName));
  if (module == nullptr) {
    throw PythonError();
  }
  call([&] { return otr_kernel_get(*module, self->name, &self->kernel); });
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* kernel_repr(PyObject* object) {
  HANDLE_TH_ERRORS
  const auto* self = reinterpret_cast<ProgramKernel*>(object);
  return PyUnicode_FromString(c10::str("<compiled kernel ", self->name, " on ", self->device, ">").c_str());
  END_HANDLE_TH_ERRORS
}

void free_module(PyObject* capsule) {
  const std::unique_ptr<otr_module_t> module(static_cast<otr_module_t*>(PyCapsule_GetPointer(capsule, kModuleName)));
  const WithoutGil released;
  warn_if_failed(otr_module_destroy(*module), "destroying a program");
}

PyObject* program_load(PyObject* arguments) {
  int device = 0;
  unsigned int format = 0;
  PyObject* source = nullptr;
  parse(arguments, "iIS", &device, &format, &source);
  check_device(static_cast<c10::DeviceIndex>(device));
  auto params = otr::sized<otr_module_params_t>();
  params.code = PyBytes_AS_STRING(source);
  params.size = static_cast<uint64_t>(PyBytes_GET_SIZE(source));
  params.format = format;
  params.flags = OTR_MODULE_BACKGROUND;
  auto module = std::make_unique<otr_module_t>(0);
  call([&] { return otr_module_load(static_cast<uint32_t>(device), &params, module.get()); });
  PyObject* capsule = PyCapsule_New(module.get(), kModuleName, &free_module);
  if (capsule != nullptr) {
    module.release();
  }
  return capsule;
}

/// Sizes of a Python tuple of int.
c10::SmallVector<int64_t, 8> sizes_of(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_Check(tuple), who(), "sizes and strides are tuples");
  c10::SmallVector<int64_t, 8> sizes(static_cast<size_t>(PyTuple_GET_SIZE(tuple)));
  for (size_t i = 0; i < sizes.size(); ++i) {
    sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i)));
    if (sizes[i] == -1 && PyErr_Occurred() != nullptr) {
      throw PythonError();
    }
  }
  return sizes;
}

PyObject* program_empty(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(
      count == 4 && THPDtype_Check(arguments[2]) && THPDevice_Check(arguments[3]), who(),
      "program_empty takes sizes, strides, a dtype and a device");
  const auto sizes = sizes_of(arguments[0]), strides = sizes_of(arguments[1]);
  const auto dtype = reinterpret_cast<THPDtype*>(arguments[2])->scalar_type;
  const auto device = reinterpret_cast<THPDevice*>(arguments[3])->device;
  return THPVariable_Wrap(at::empty_strided(sizes, strides, c10::TensorOptions().dtype(dtype).device(device)));
  END_HANDLE_TH_ERRORS
}

PyMethodDef kernel_methods[] = {
    {"bind_host", bind_host, METH_O, "Gives the kernel the address of the function that runs its groups."},
    {"bind_module", bind_module, METH_O, "Takes the kernel of its name out of a program, for which it waits."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ProgramKernel, entry), READONLY, nullptr},
    {"name", T_STRING, offsetof(ProgramKernel, name), READONLY, "The name of the kernel in its program."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot kernel_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(&kernel_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&kernel_free)},
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(&kernel_repr)},
    {Py_tp_methods, kernel_methods},
    {Py_tp_members, kernel_members},
    {0, nullptr},
};

PyType_Spec kernel_spec = {
    "torch_outrigger._C.ProgramKernel", sizeof(ProgramKernel), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    kernel_slots};

PyMethodDef methods[] = {
    {"program_load", bound<program_load>, METH_VARARGS,
     "Begins to compile a program, in the background: (device, format, code) -> program."},
    {"program_empty", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&program_empty)), METH_FASTCALL,
     "A tensor without values: (sizes, strides, dtype, device)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_program_functions(PyObject* module) {
  PyObject* type = PyType_FromSpec(&kernel_spec);
  return type != nullptr && PyModule_AddObject(module, "ProgramKernel", type) == 0 &&
         PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
