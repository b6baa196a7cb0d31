//! Calls of compiled code that is replayed as a graph: what selects the graph of a call, and the addresses that it runs
//! with. It must never keep a tensor.

#include "compiled_calls.h"

#include "python.h"
#include "runtime.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <vector>

namespace outrigger {
namespace {

/// Addresses that agree in their distance to a multiple of this can stand for each other in a graph.
constexpr uint64_t kAlignment = 16;

/// Bytes of one storage, which tensors of a call share.
struct Range {
  uint64_t first = UINT64_MAX;
  uint64_t end = 0;
};

/// The arguments of a call: for each a tensor or a number, and the ranges of those tensors that may move.
struct Call {
  std::vector<const at::Tensor*> tensors;  // null for a number
  std::vector<int64_t> numbers;
  std::vector<int> range_of;  // -1: none
  std::vector<Range> ranges;
};

uint64_t first_of(const at::Tensor& tensor) {
  return address_of(tensor.const_data_ptr());
}

/// Reads the arguments; false if there is one that a graph does not take. `fixed` has a byte for each argument, which is
/// 1 if its address is part of the key.
bool read(PyObject* inputs, const char* fixed, Call& call) {
  const Py_ssize_t count = PyList_GET_SIZE(inputs);
  std::unordered_map<const c10::StorageImpl*, int> known;
  known.reserve(static_cast<size_t>(count));
  std::optional<c10::Device> device;
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* object = PyList_GET_ITEM(inputs, i);
    call.range_of.push_back(-1);
    if (PyLong_Check(object)) {
      int overflow = 0;
      call.tensors.push_back(nullptr);
      call.numbers.push_back(PyLong_AsLongLongAndOverflow(object, &overflow));
      if (overflow != 0) {
        return false;
      }
      continue;
    }
    if (!THPVariable_Check(object)) {
      return false;
    }
    const at::Tensor& tensor = THPVariable_Unpack(object);
    call.tensors.push_back(&tensor);
    call.numbers.push_back(0);
    if (tensor.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg() ||
        tensor.device().is_cpu() || tensor.device() != device.value_or(tensor.device())) {
      return false;
    }
    device = tensor.device();
    if (fixed[i] != 0 || tensor.numel() == 0) {
      continue;
    }
    const auto [place, fresh] =
        known.try_emplace(tensor.storage().unsafeGetStorageImpl(), static_cast<int>(call.ranges.size()));
    if (fresh) {
      call.ranges.emplace_back();
    }
    call.range_of.back() = place->second;
    Range& range = call.ranges[static_cast<size_t>(place->second)];
    uint64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      last += static_cast<uint64_t>((tensor.size(d) - 1) * tensor.stride(d));
    }
    const uint64_t first = first_of(tensor), bytes = (last + 1) * tensor.element_size();
    range.first = std::min(range.first, first);
    range.end = std::max(range.end, first + bytes);
    if (first % tensor.element_size() != 0) {
      return false;
    }
  }
  return true;
}

PyObject* bytes_of(const void* data, size_t size) {
  return PyBytes_FromStringAndSize(static_cast<const char*>(data), static_cast<Py_ssize_t>(size));
}

void parse_call(PyObject* arguments, PyObject** inputs, const char** fixed) {
  PyObject* each = nullptr;
  parse(arguments, "O!S", &PyList_Type, inputs, &each);
  *fixed = PyBytes_AS_STRING(each);
  const Py_ssize_t size = PyBytes_GET_SIZE(each);
  TORCH_CHECK_VALUE(
      size == PyList_GET_SIZE(*inputs), who(), "a call has ", PyList_GET_SIZE(*inputs), " arguments, and not ", size);
}

PyObject* call_key(PyObject* arguments) {
  PyObject* inputs = nullptr;
  const char* fixed = nullptr;
  parse_call(arguments, &inputs, &fixed);
  Call call;
  if (!read(inputs, fixed, call)) {
    return none();
  }
  std::vector<int64_t> key;
  std::vector<uint64_t> places;
  key.reserve(call.tensors.size() * 8);
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    if (call.tensors[i] == nullptr) {
      key.push_back(-1);
      key.push_back(call.numbers[i]);
      continue;
    }
    const at::Tensor& tensor = *call.tensors[i];
    key.push_back(tensor.dim());
    key.push_back(static_cast<int64_t>(tensor.scalar_type()) << 8 | tensor.device().index());
    key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
    key.insert(key.end(), tensor.strides().begin(), tensor.strides().end());
    const int range = call.range_of[i];
    key.push_back(range);
    const uint64_t first = first_of(tensor);
    key.push_back(static_cast<int64_t>(range < 0 ? first : first - call.ranges[static_cast<size_t>(range)].first));
  }
  for (const Range& range : call.ranges) {
    key.push_back(static_cast<int64_t>(range.end - range.first));
    key.push_back(static_cast<int64_t>(range.first % kAlignment));
    places.push_back(range.first);
  }
  return Py_BuildValue(
      "(NN)", bytes_of(key.data(), key.size() * sizeof(int64_t)), bytes_of(places.data(), places.size() * sizeof(uint64_t)));
}

PyObject* call_ranges(PyObject* arguments) {
  PyObject* inputs = nullptr;
  const char* fixed = nullptr;
  parse_call(arguments, &inputs, &fixed);
  Call call;
  TORCH_CHECK_VALUE(read(inputs, fixed, call), who(), "the arguments have no key");
  PyObject *ranges = PyList_New(0), *places = PyList_New(0);
  const auto add = [](PyObject* list, long long first, unsigned long long second) {
    PyObject* pair = Py_BuildValue("(LK)", first, second);
    if (pair == nullptr || PyList_Append(list, pair) != 0) {
      throw PythonError();
    }
    Py_DECREF(pair);
  };
  for (const Range& range : call.ranges) {
    add(ranges, static_cast<long long>(range.first % kAlignment), range.end - range.first);
  }
  for (size_t i = 0; i < call.tensors.size(); ++i) {
    const int range = call.range_of[i];
    add(places, range, range < 0 ? 0 : first_of(*call.tensors[i]) - call.ranges[static_cast<size_t>(range)].first);
  }
  return Py_BuildValue("(NN)", ranges, places);
}

PyMethodDef methods[] = {
    {"call_key", bound<call_key>, METH_VARARGS,
     "What selects the graph of a call, and the addresses of what it may move: (arguments, which are fixed) -> (bytes, "
     "bytes); None if the arguments are not for a graph."},
    {"call_ranges", bound<call_ranges>, METH_VARARGS,
     "The ranges of memory of a call, as (first byte modulo 16, bytes), and for each argument its range and offset: "
     "(arguments, which are fixed) -> (list, list)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_call_functions(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
