//! The runtime's devices as MTIA.

#include "distributed_mtia.h"
#include "graph.h"
#include "memory_module.h"
#include "personality_impl.h"
#include "stacks.h"

#include <ATen/detail/MTIAHooksInterface.h>
#include <Python.h>

#include <mutex>
#include <unordered_map>

namespace outrigger {
namespace {

/// Graphs by the numbers that torch knows them by. A number is never used again.
class Graphs {
 public:
  int64_t add(bool keep) {
    const std::lock_guard<std::mutex> lock(lock_);
    graphs_.emplace(++last_, std::make_shared<Graph>(keep));
    return last_;
  }
  std::shared_ptr<Graph> get(int64_t number) {
    const std::lock_guard<std::mutex> lock(lock_);
    const auto found = graphs_.find(number);
    TORCH_CHECK(found != graphs_.end(), who(), "there is no graph ", number, ", or it was destroyed");
    return found->second;
  }
  void remove(int64_t number) {
    // The graph's destructor must not run under the lock.
    const std::shared_ptr<Graph> graph = get(number);
    const std::lock_guard<std::mutex> lock(lock_);
    graphs_.erase(number);
  }

 private:
  std::mutex lock_;
  int64_t last_ = 0;
  std::unordered_map<int64_t, std::shared_ptr<Graph>> graphs_;
};

Graphs& graphs() {
  // Leaked on purpose: torch destroys graphs as late as the interpreter's end.
  static auto* all = new Graphs;
  return *all;
}

}  // namespace

// Torch looks the class up by this very name, as a string.
struct MTIAHooks final : Hooks<c10::DeviceType::MTIA, at::MTIAHooksInterface> {
  using Device = c10::DeviceIndex;
  static constexpr auto kType = c10::DeviceType::MTIA;

  bool hasMTIA() const override {
    return true;
  }
  std::string showConfig() const override {
    return std::string("outrigger ") + otr_version();
  }
  Device getDeviceCount() const override {
    return deviceCount();
  }
  void deviceSynchronize(Device index) const override {
    Guard<kType>().synchronizeDevice(index);
  }
  c10::Stream getCurrentStream(Device index) const override {
    return Guard<kType>().getStream({kType, index});
  }
  int64_t getCurrentRawStream(Device index) const override {
    return static_cast<int64_t>(current_stream(index < 0 ? current_device() : index));
  }
  c10::Stream getDefaultStream(Device index) const override {
    return Guard<kType>().getDefaultStream({kType, index});
  }
  void setCurrentStream(const c10::Stream& stream) const override {
    check(otr_stream_set_current(stream_handle(stream)));
  }
  void emptyCache() const override {
    allocator_of(kType)->emptyCache({0, 0});
  }
  void resetPeakMemoryStats(Device index) const override {
    allocator_of(kType)->resetPeakStats(index);
  }
  PyObject* memoryStats(Device index) const override {
    auto stats = otr::sized<otr_memory_stats_t>();
    check_device(index);
    check(otr_memory_stats(static_cast<uint32_t>(index), &stats));
    using Number = unsigned long long;
    return Py_BuildValue(
        "{s:{s:K,s:K,s:K,s:K,s:K}}", "dram", "allocated_bytes", static_cast<Number>(stats.allocated_bytes.current),
        "peak_bytes", static_cast<Number>(stats.allocated_bytes.peak), "reserved_bytes",
        static_cast<Number>(stats.reserved_bytes.current), "reserved_peak_bytes",
        static_cast<Number>(stats.reserved_bytes.peak), "num_ooms", static_cast<Number>(stats.ooms));
  }
  PyObject* getDeviceCapability(Device index) const override {
    check_device(index);
    // The version of the driver contract, the only capability number that all drivers share.
    return Py_BuildValue("(ii)", 1, 0);
  }
  PyObject* getDeviceProperties(Device index) const override {
    const otr_device_info_t info = device_info(index);
    return Py_BuildValue(
        "{s:s,s:s,s:s,s:s,s:K,s:I,s:I}", "name", info.name, "vendor", info.vendor, "driver", info.driver,
        "driver_version", info.driver_version, "total_memory", static_cast<unsigned long long>(info.total_memory),
        "multi_processor_count", info.compute_units, "host_visible", info.host_visible);
  }
#if OUTRIGGER_TORCH_SINCE(15)
  bool isCurrentStreamCapturing() const override {
    return outrigger::device_count() > 0 && is_capturing(current_stream(current_device()));
  }
#endif
  int64_t mtiagraphCreate(bool keep_graph) const override {
    return graphs().add(keep_graph);
  }
  void mtiagraphDestroy(int64_t handle) const override {
    graphs().remove(handle);
  }
  void mtiagraphCaptureBegin(int64_t handle, c10::MempoolId_t pool) const override {
    graphs().get(handle)->capture_begin(pool, OTR_CAPTURE_GLOBAL);
  }
  void mtiagraphCaptureEnd(int64_t handle) const override {
    graphs().get(handle)->capture_end();
  }
  void mtiagraphInstantiate(int64_t handle) const override {
    graphs().get(handle)->instantiate();
  }
  void mtiagraphReplay(int64_t handle) const override {
    graphs().get(handle)->replay();
  }
  void mtiagraphReset(int64_t handle) const override {
    graphs().get(handle)->reset();
  }
  c10::MempoolId_t mtiagraphPool(int64_t handle) const override {
    return graphs().get(handle)->pool();
  }
  c10::MempoolId_t graphPoolHandle() const override {
    return Pool::new_id();
  }
  void recordMemoryHistory(
      const std::optional<std::string>& enabled, const std::string& stacks, size_t max_entries) const override {
    // Without a number torch means all events; "state" is what is live, without events.
    const uint64_t entries = enabled == "state" ? 0 : max_entries == 0 ? UINT64_MAX : max_entries;
    const Stacks kept = stacks == "python" ? Stacks::kPython : Stacks::kAll;
    const otr_history_options_t options = history_options(entries, kept, /*of_frees=*/true);
    for (Device index = 0; index < outrigger::device_count(); ++index) {
      const auto device = static_cast<uint32_t>(index);
      check(enabled ? otr_memory_history_start(device, &options) : otr_memory_history_stop(device));
    }
  }
  PyObject* memorySnapshot(const std::optional<std::string>& path) const override {
    return torch_snapshot(path ? path->c_str() : nullptr);
  }
  void attachOutOfMemoryObserver(PyObject* observer) const override {
    attach_out_of_memory_observer(observer);
  }
};

void serve_mtia() {
  static const bool served = [] {
    register_runtime<c10::DeviceType::MTIA>();
    // Before 2.13 the creator has an argument.
    static const auto creator = [](const auto&...) { return std::unique_ptr<at::MTIAHooksInterface>(new MTIAHooks); };
    at::MTIAHooksRegistry()->Register("MTIAHooks", creator);
    register_graphs(c10::DeviceType::MTIA);
    register_kernels(c10::DispatchKey::MTIA);
    register_quantized_kernels(c10::DispatchKey::QuantizedMTIA);
    register_sparse_kernels(c10::DispatchKey::SparseMTIA);
    register_mtia_collectives();
    return true;
  }();
  (void)served;
}

}  // namespace outrigger
