//! Kernels that torch.compile has made: a Python object that is called with tensors and numbers, and launches. It checks
//! and packs in C++, so that a launch costs little more than the call. A kernel runs as a function of this process where
//! the driver runs host functions, else as a kernel of a module. It must never wait, and never compile:
//! `torch_outrigger.inductor.program` gives it the code at its first call.

#include "program_module.h"

#include "program.h"
#include "python.h"
#include "runtime.h"
#include "trial.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>
#include <outrigger/framework.h>
#include <structmember.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace outrigger {
namespace {

constexpr const char* kModuleName = "torch_outrigger.program";

/// The Python object.
struct ProgramKernel {
  PyObject_HEAD
  vectorcallfunc entry;
  PyObject* loader;  // called with the kernel at its first call; NULL afterwards
  CompiledKernel it;
};

uint64_t word_of(const ProgramKernel* self, Py_ssize_t number, PyObject* argument) {
  const char kind = self->it.kinds[static_cast<size_t>(number)];
  if (kind == 'a') {
    if (argument == Py_None) {
      return 0;
    }
    if (PyLong_CheckExact(argument)) {
      // An address that somebody else has taken from a tensor.
      const uint64_t address = PyLong_AsUnsignedLongLong(argument);
      if (address == UINT64_MAX && PyErr_Occurred() != nullptr) {
        throw PythonError();
      }
      return address;
    }
    TORCH_CHECK_TYPE(
        THPVariable_Check(argument), who(), "argument ", number, " of ", self->it.name, " is a ", Py_TYPE(argument)->tp_name,
        ", and it is to be a tensor, an address or None");
    const at::Tensor& tensor = THPVariable_Unpack(argument);
    TORCH_CHECK_VALUE(
        tensor.device() == self->it.device, who(), "argument ", number, " of ", self->it.name, " is a tensor on ",
        tensor.device(), ", and the program was compiled for ", self->it.device);
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

c10::SmallVector<uint64_t, 48> words_of(const ProgramKernel* self, PyObject* const* arguments, Py_ssize_t count) {
  TORCH_CHECK_TYPE(
      count == static_cast<Py_ssize_t>(self->it.kinds.size()), who(), self->it.name, " takes ", self->it.kinds.size(),
      " arguments, and was given ", count);
  c10::SmallVector<uint64_t, 48> values;
  for (Py_ssize_t i = 0; i < count; ++i) {
    values.push_back(word_of(self, i, arguments[i]));
  }
  return values;
}

/// Gives a kernel its code, if it has none yet.
void load(ProgramKernel* self) {
  if (C10_UNLIKELY(self->loader != nullptr)) {
    PyObject* loaded = PyObject_CallOneArg(self->loader, reinterpret_cast<PyObject*>(self));
    if (loaded == nullptr) {
      throw PythonError();
    }
    Py_DECREF(loaded);
    TORCH_CHECK(
        self->it.groups != nullptr || self->it.kernel != 0, who(), "the loader of ", self->it.name,
        " has not given it its code");
    Py_CLEAR(self->loader);
  }
}

PyObject* kernel_call(PyObject* object, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<ProgramKernel*>(object);
  TORCH_CHECK_TYPE(names == nullptr, who(), self->it.name, " takes no arguments by name");
  load(self);
  self->it.launch(words_of(self, arguments, PyVectorcall_NARGS(flags)).data());
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
  if (self->it.kernel != 0) {
    const WithoutGil released;
    warn_if_failed(otr_kernel_destroy(self->it.kernel), "destroying a kernel");
  }
  self->it.~CompiledKernel();
  type->tp_free(object);
  Py_DECREF(type);
}

PyObject* kernel_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *loader = nullptr, *device = nullptr, *items = nullptr, *reduced = nullptr;
  const char *name = nullptr, *kinds = nullptr, *label = nullptr;
  int by_row = 0;
  unsigned int group_size = 0;
  parse(arguments, "OOssOOpI|z", &loader, &device, &name, &kinds, &items, &reduced, &by_row, &group_size, &label);
  TORCH_CHECK_TYPE(THPDevice_Check(device), who(), "a program is for a torch.device");
  const Extent many = extent_of(items), deep = extent_of(reduced);
  auto* self = reinterpret_cast<ProgramKernel*>(type->tp_alloc(type, 0));
  if (self == nullptr) {
    throw PythonError();
  }
  self->entry = &kernel_call;
  Py_INCREF(loader);
  self->loader = loader;
  // Failures and traces name a kernel as long as the process lives, so its names stay.
  const char* kept = (new std::string(name))->c_str();
  const char* shown = label == nullptr ? kept : (new std::string(label))->c_str();
  new (&self->it) CompiledKernel(
      reinterpret_cast<THPDevice*>(device)->device, kept, shown, kinds, many, deep, by_row != 0, group_size);
  return reinterpret_cast<PyObject*>(self);
  END_HANDLE_TH_ERRORS
}

PyObject* bind_host(PyObject* object, PyObject* address) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<ProgramKernel*>(object);
  self->it.groups = reinterpret_cast<Groups>(PyLong_AsVoidPtr(address));
  if (self->it.groups == nullptr && PyErr_Occurred() != nullptr) {
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
  call([&] { return otr_kernel_get(*module, self->it.name, &self->it.kernel); });
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* kernel_load(PyObject* object, PyObject*) {
  HANDLE_TH_ERRORS
  load(reinterpret_cast<ProgramKernel*>(object));
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

/// Numbers of a Python sequence, two by two.
std::vector<Trial::Bytes> bytes_of(PyObject* list) {
  std::vector<Trial::Bytes> all;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    unsigned long long address = 0, size = 0;
    parse(PyList_GET_ITEM(list, i), "KK", &address, &size);
    all.push_back({address, size});
  }
  return all;
}

PyObject* kernel_attempt(PyObject* object, PyObject* arguments) {
  HANDLE_TH_ERRORS
  auto* self = reinterpret_cast<ProgramKernel*>(object);
  PyObject *given = nullptr, *restored = nullptr;
  int shared = 0;
  Trial trial;
  parse(arguments, "O!O!pdd", &PyTuple_Type, &given, &PyList_Type, &restored, &shared, &trial.seconds, &trial.limit);
  trial.shared = shared != 0;
  trial.restored = bytes_of(restored);
  load(self);
  const auto values = words_of(self, PySequence_Fast_ITEMS(given), PyTuple_GET_SIZE(given));
  {
    const WithoutGil released;
    self->it.attempt(values.data(), &trial);
  }
  if (!trial.has_run) {
    Py_RETURN_NONE;
  }
  if (!trial.failure.empty()) {
    return PyUnicode_FromString(trial.failure.c_str());
  }
  PyObject* times = PyList_New(0);
  for (const double time : trial.times) {
    PyObject* number = PyFloat_FromDouble(time);
    if (times == nullptr || number == nullptr || PyList_Append(times, number) != 0) {
      throw PythonError();
    }
    Py_DECREF(number);
  }
  return times;
  END_HANDLE_TH_ERRORS
}

PyObject* kernel_repr(PyObject* object) {
  HANDLE_TH_ERRORS
  const auto* self = reinterpret_cast<ProgramKernel*>(object);
  return PyUnicode_FromString(c10::str("<compiled kernel ", self->it.name, " on ", self->it.device, ">").c_str());
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
  int may_compile = 1;
  parse(arguments, "iISp", &device, &format, &source, &may_compile);
  check_device(static_cast<c10::DeviceIndex>(device));
  auto params = otr::sized<otr_module_params_t>();
  params.code = PyBytes_AS_STRING(source);
  params.size = static_cast<uint64_t>(PyBytes_GET_SIZE(source));
  params.format = format;
  params.flags = may_compile ? OTR_MODULE_BACKGROUND : OTR_MODULE_STORED;
  auto module = std::make_unique<otr_module_t>(0);
  call([&] { return otr_module_load(static_cast<uint32_t>(device), &params, module.get()); });
  PyObject* capsule = PyCapsule_New(module.get(), kModuleName, &free_module);
  if (capsule != nullptr) {
    module.release();
  }
  return capsule;
}

/// The texts of a list, which lives longer.
c10::SmallVector<const char*, 16> texts_of(PyObject* list) {
  c10::SmallVector<const char*, 16> texts;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    texts.push_back(PyUnicode_AsUTF8(PyList_GET_ITEM(list, i)));
    if (texts.back() == nullptr) {
      throw PythonError();
    }
  }
  return texts;
}

PyObject* tune_choose(PyObject* arguments) {
  unsigned int device = 0;
  auto params = otr::sized<otr_tune_params_t>();
  PyObject *candidates = nullptr, *worker = nullptr;
  parse(
      arguments, "II(ssss)O!IO!z", &device, &params.flags, &params.operation, &params.sizes, &params.dtype, &params.code,
      &PyList_Type, &candidates, &params.limit_ms, &PyList_Type, &worker, &params.task);
  const auto names = texts_of(candidates);
  auto command = texts_of(worker);
  command.push_back(nullptr);
  params.candidates = names.data();
  params.candidate_count = static_cast<uint32_t>(names.size());
  params.worker = command.data();
  uint32_t chosen = 0;
  std::vector<uint64_t> times(names.size());
  call([&] { return otr_tune_choose(device, &params, &chosen, times.data()); });
  PyObject* list = PyList_New(0);
  for (const uint64_t time : times) {
    PyObject* number = PyLong_FromUnsignedLongLong(time);
    if (list == nullptr || number == nullptr || PyList_Append(list, number) != 0) {
      throw PythonError();
    }
    Py_DECREF(number);
  }
  return Py_BuildValue("IN", chosen, list);
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

/// Notes on the tensors that `program_empty` makes for this thread between `note_tensors` and `noted_tensors`.
struct Noted {
  bool is_suspended = false;
  // Of each tensor that was made. While one is noted no other one gets its address.
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  std::unordered_map<size_t, at::Tensor> handed;  // by their number: what is given in the place of a new one
};
thread_local std::unique_ptr<Noted> noted;

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype, c10::Device device) {
  at::Tensor made;
  const bool is_noted = noted != nullptr && !noted->is_suspended;
  if (C10_UNLIKELY(is_noted)) {
    const auto found = noted->handed.find(noted->storages.size());
    if (found != noted->handed.end()) {
      const at::Tensor& tensor = found->second;
      if (tensor.sizes() == sizes && tensor.strides() == strides && tensor.scalar_type() == dtype && tensor.device() == device) {
        made = tensor;
      }
    }
  }
  if (!made.defined()) {
    made = at::empty_strided(sizes, strides, c10::TensorOptions().dtype(dtype).device(device));
  }
  if (C10_UNLIKELY(is_noted)) {
    noted->storages.push_back(made.storage().getWeakStorageImpl());
  }
  return made;
}

PyObject* note_tensors(PyObject* arguments) {
  PyObject* handed = nullptr;
  parse(arguments, "O!", &PyDict_Type, &handed);
  auto fresh = std::make_unique<Noted>();
  PyObject *number = nullptr, *tensor = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(handed, &at, &number, &tensor) != 0;) {
    TORCH_CHECK_TYPE(PyLong_Check(number) && THPVariable_Check(tensor), who(), "tensors by their numbers are expected");
    fresh->handed.emplace(PyLong_AsSize_t(number), THPVariable_Unpack(tensor));
  }
  noted = std::move(fresh);
  return none();
}

PyObject* suspend_notes(PyObject* argument) {
  const bool chosen = PyObject_IsTrue(argument) == 1;
  return PyBool_FromLong(noted != nullptr && std::exchange(noted->is_suspended, chosen));
}

PyObject* noted_tensors(PyObject*) {
  const std::unique_ptr<Noted> ended = std::move(noted);
  PyObject* list = PyList_New(0);
  for (size_t i = 0; ended != nullptr && i < ended->storages.size(); ++i) {
    const auto& storage = ended->storages[i];
    PyObject* address = PyLong_FromVoidPtr(storage.expired() ? nullptr : storage._unsafe_get_target());
    if (list == nullptr || address == nullptr || PyList_Append(list, address) != 0) {
      throw PythonError();
    }
    Py_DECREF(address);
  }
  return list;
}

PyObject* storages_meet(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  struct Bytes {
    const char* first;
    const char* end;
  };
  c10::SmallVector<Bytes, 16> seen;
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!THPVariable_Check(arguments[i]) || !THPVariable_Unpack(arguments[i]).has_storage()) {
      continue;
    }
    const c10::Storage& storage = THPVariable_Unpack(arguments[i]).storage();
    const auto* first = static_cast<const char*>(storage.data());
    const Bytes bytes{first, first + storage.nbytes()};
    for (const Bytes& other : seen) {
      if (bytes.first < other.end && other.first < bytes.end) {
        Py_RETURN_TRUE;
      }
    }
    seen.push_back(bytes);
  }
  Py_RETURN_FALSE;
  END_HANDLE_TH_ERRORS
}

PyObject* program_empty(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(
      count == 4 && THPDtype_Check(arguments[2]) && THPDevice_Check(arguments[3]), who(),
      "program_empty takes sizes, strides, a dtype and a device");
  const auto sizes = sizes_of(arguments[0]), strides = sizes_of(arguments[1]);
  const auto dtype = reinterpret_cast<THPDtype*>(arguments[2])->scalar_type;
  const auto device = reinterpret_cast<THPDevice*>(arguments[3])->device;
  return THPVariable_Wrap(new_tensor(sizes, strides, dtype, device));
  END_HANDLE_TH_ERRORS
}

PyMethodDef kernel_methods[] = {
    {"load", kernel_load, METH_NOARGS, "Waits for the kernel's code, which its first call does otherwise."},
    {"bind_host", bind_host, METH_O, "Gives the kernel the address of the function that runs its groups."},
    {"bind_module", bind_module, METH_O, "Takes the kernel of its name out of a program, for which it waits."},
    {"attempt", kernel_attempt, METH_VARARGS,
     "Has a process of its own run the launch again and again: (arguments, [(address, size) that is restored before each], whether it may "
     "use all threads, seconds, limit in seconds) -> seconds of runs, or why there are none, or None if there is no "
     "process."},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef kernel_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ProgramKernel, entry), READONLY, nullptr},
    {"name", T_STRING, offsetof(ProgramKernel, it.name), READONLY, "The name of the kernel in its program."},
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
     "Begins to compile a program, in the background, or takes a compiled one: (device, format, code, may_compile) -> program."},
    {"note_tensors", bound<note_tensors>, METH_VARARGS,
     "Begins to note what program_empty makes on this thread, and to hand out tensors in the place of some: (tensors by number)."},
    {"suspend_notes", bound<suspend_notes>, METH_O, "Leaves out what is made from here on, or not. Returns what was chosen before."},
    {"noted_tensors", bound<noted_tensors>, METH_NOARGS,
     "Ends that: the storage of each tensor, as `_cdata`; 0 for one that is gone."},
    {"tune_choose", bound<tune_choose>, METH_VARARGS,
     "Chooses a variant of code: (device, flags, (operation, sizes, dtype, code), candidates, limit_ms, worker, task) -> "
     "(number, times in nanoseconds)."},
    {"storages_meet", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&storages_meet)), METH_FASTCALL,
     "Whether the storages of two tensors among the arguments have bytes in common."},
    {"program_empty", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&program_empty)), METH_FASTCALL,
     "A tensor without values: (sizes, strides, dtype, device)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const CompiledKernel& kernel_with_code(PyObject* object) {
  TORCH_CHECK_TYPE(
      std::string_view(Py_TYPE(object)->tp_name) == kernel_spec.name, who(), "expected a compiled kernel, got a ",
      Py_TYPE(object)->tp_name);
  auto* self = reinterpret_cast<ProgramKernel*>(object);
  load(self);
  return self->it;
}

bool add_program_functions(PyObject* module) {
  PyObject* type = PyType_FromSpec(&kernel_spec);
  return type != nullptr && PyModule_AddObject(module, "ProgramKernel", type) == 0 &&
         PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
