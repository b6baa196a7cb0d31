//! Device memory for others: a CPU tensor over the bytes of a device tensor, and memory that another process has
//! allocated. It must never hold the GIL over a call of the runtime that can wait.

#include "sharing_module.h"

#include "host_view.h"
#include "python.h"

#include <torch/csrc/autograd/python_variable.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

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
    // The view waits for the stream.
    const WithoutGil released;
    view = host_view(tensor);
  }
  return THPVariable_Wrap(view);
}

// Files of processes that have sent memory here, each open once: a process that closes a file loses all its locks on it.
// Byte `n` of a file is 1 when message `n` has arrived; a lock on it says that a process has the memory of that message.
// The operating system takes back the locks of a process that ends.
class Ledgers {
 public:
  // Opens the file, or counts one more user of it.
  int enter(const std::string& path) {
    const std::lock_guard<std::mutex> guard(lock_);
    File& file = files_[path];
    if (file.users == 0) {
      file.descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
      if (file.descriptor < 0) {
        files_.erase(path);
        TORCH_CHECK(
            false, who(), "the process that has sent a tensor is gone: ", path, ": ", std::strerror(errno),
            ". It must outlive those that receive");
      }
    }
    ++file.users;
    return file.descriptor;
  }

  void leave(const std::string& path) noexcept {
    const std::lock_guard<std::mutex> guard(lock_);
    const auto found = files_.find(path);
    if (--found->second.users == 0) {
      ::close(found->second.descriptor);
      files_.erase(found);
    }
  }

 private:
  struct File {
    int descriptor = -1;
    size_t users = 0;
  };

  std::mutex lock_;
  std::map<std::string, File> files_;
};

Ledgers& ledgers() {
  // Leaked on purpose: memory may be given back while static objects are destroyed.
  static auto* one = new Ledgers;
  return *one;
}

// One message of another process, from its arrival on.
class Message {
 public:
  Message(std::string ledger, uint64_t number)
      : ledger_(std::move(ledger)), number_(number), descriptor_(ledgers().enter(ledger_)) {}
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  ~Message() {
    if (locked_) {
      set_lock(F_UNLCK);
    }
    ledgers().leave(ledger_);
  }

  // This process has the memory until the end of this object. Before `arrive`: the sender looks at locks from then on.
  void lock() {
    locked_ = set_lock(F_RDLCK);
    TORCH_CHECK(locked_, who(), "a lock on ", ledger_, ": ", std::strerror(errno));
  }

  void arrive() const {
    const char one = 1;
    TORCH_CHECK(
        ::pwrite(descriptor_, &one, 1, static_cast<off_t>(number_)) == 1, who(), ledger_, ": ", std::strerror(errno));
  }

 private:
  bool set_lock(short kind) const noexcept {
    struct flock place{};
    place.l_type = kind;
    place.l_whence = SEEK_SET;
    place.l_start = static_cast<off_t>(number_);
    place.l_len = 1;
    return ::fcntl(descriptor_, F_SETLKW, &place) == 0;
  }

  const std::string ledger_;
  const uint64_t number_;
  const int descriptor_;
  bool locked_ = false;
};

// Memory of another process. Its sender learns of the end last.
struct Imported {
  Message message;
  uint32_t device;
  otr_address_t base = 0;

  ~Imported() {
    if (base != 0) {
      warn_if_failed(otr_memory_close(device, base), "giving back memory of another process");
    }
  }
};

void close_imported(void* context) noexcept {
  delete static_cast<Imported*>(context);
}

// The text that names the allocation of a storage, and the place of the storage in it.
PyObject* export_memory(PyObject* object) {
  const at::Tensor& tensor = tensor_of(object);
  TORCH_CHECK(is_ours(tensor) && tensor.has_storage(), who(), "expected a tensor with memory of the device");
  TORCH_CHECK(
      tensor.storage().data_ptr().get_deleter() != &close_imported, who(),
      "this tensor was received from another process: send tensor.clone()");
  own_memory_of(tensor);
  const auto device = static_cast<uint32_t>(tensor.device().index());
  const otr_address_t address = address_of(tensor.storage().data());
  auto info = otr::sized<otr_pointer_info_t>();
  char* text = nullptr;
  call([&] {
    otr_status_t* status = otr_memory_pointer_info(device, address, &info);
    return status != nullptr ? status : otr_memory_export(device, address, &text);
  });
  const std::string result = otr::take(text);
  return Py_BuildValue("(sK)", result.c_str(), static_cast<unsigned long long>(address - info.base));
}

// A tensor of bytes over a part of an allocation of another process.
PyObject* import_memory(PyObject* arguments) {
  const char *type = nullptr, *text = nullptr, *ledger = nullptr;
  int index = 0;
  unsigned long long offset = 0, bytes = 0, number = 0;
  parse(arguments, "sisKKsK", &type, &index, &text, &offset, &bytes, &ledger, &number);
  TORCH_CHECK(index >= 0 && index <= INT8_MAX, who(), "invalid device index ", index);
  check_device(static_cast<c10::DeviceIndex>(index));
  auto memory = std::unique_ptr<Imported>(new Imported{{ledger, number}, static_cast<uint32_t>(index)});
  memory->message.lock();
  memory->message.arrive();
  uint64_t size = 0;
  call([&] { return otr_memory_import(memory->device, text, &memory->base, &size); });
  TORCH_CHECK(
      offset <= size && bytes <= size - offset, who(), "the other process has shared ", size,
      " bytes, which have no ", bytes, " behind byte ", offset);
  void* start = reinterpret_cast<char*>(memory->base) + offset;
  const c10::Device device(c10::Device(type).type(), static_cast<c10::DeviceIndex>(index));
  c10::DataPtr data(start, memory.release(), &close_imported, device);
  c10::Storage storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, std::move(data), allocator_of(device.type()), /*resizable=*/false);
  const auto count = static_cast<int64_t>(bytes);
  return THPVariable_Wrap(
      tensor_over(std::move(storage), {count}, {1}, 0, caffe2::TypeMeta::Make<uint8_t>()));
}

PyObject* note_arrival(PyObject* arguments) {
  const char* ledger = nullptr;
  unsigned long long number = 0;
  parse(arguments, "sK", &ledger, &number);
  Message(ledger, number).arrive();
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {
    {"host_view", bound<view_on_host>, METH_O, "A CPU tensor over the memory of a device tensor, after the work of its stream."},
    {"memory_export", bound<export_memory>, METH_O,
     "The allocation of a tensor's storage for other processes: (text, offset of the storage)."},
    {"memory_import", bound<import_memory>, METH_VARARGS,
     "A tensor of bytes of another process: (device type, device, text, offset, bytes, ledger, number of the message)."},
    {"memory_arrived", bound<note_arrival>, METH_VARARGS,
     "Notes a message whose memory this process has already: (ledger, number of the message)."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool add_sharing_functions(PyObject* module) {
  return PyModule_AddFunctions(module, methods) == 0;
}

}  // namespace outrigger
