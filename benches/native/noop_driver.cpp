// A driver that does nothing, as fast as it can: what the library itself takes shows over it. It has memory that
// nobody touches, queues that are always done, kernels that are not run, and an operator library that says yes to
// each call of `addcmul` but with an odd last size. With the option `operators=none` it offers no operator.

#include <outrigger/driver.h>

#include <cstdlib>
#include <cstring>

struct otr_driver {
  bool offers;
};

namespace {

char object;

template <class T>
otr_code_t give(T** out) {
  *out = reinterpret_cast<T*>(&object);
  return OTR_OK;
}

otr_code_t open(const otr_open_params_t* params, otr_driver_t** driver) {
  const bool none = params != nullptr && params->options != nullptr && std::strstr(params->options, "operators=none");
  *driver = new otr_driver{!none};
  return OTR_OK;
}
otr_code_t close(otr_driver_t* driver) {
  delete driver;
  return OTR_OK;
}
const char* last_error() { return "the driver that does nothing refuses this"; }
otr_code_t device_count(otr_driver_t*, uint32_t* count) {
  *count = 1;
  return OTR_OK;
}
otr_code_t device_properties(otr_driver_t*, uint32_t, otr_device_properties_t* properties) {
  std::strcpy(properties->name, "nothing");
  properties->total_memory = uint64_t{1} << 30;
  properties->address_alignment = 64;
  return OTR_OK;
}
otr_code_t device_open(otr_driver_t*, uint32_t, const otr_device_params_t*) { return OTR_OK; }
otr_code_t device_close(otr_driver_t*, uint32_t) { return OTR_OK; }
otr_code_t memory_alloc(otr_driver_t*, uint32_t, const otr_memory_params_t* params, otr_address_t* address) {
  *address = reinterpret_cast<otr_address_t>(std::aligned_alloc(64, (params->size + 63) / 64 * 64));
  return *address == 0 ? OTR_ERR_OUT_OF_MEMORY : OTR_OK;
}
otr_code_t memory_free(otr_driver_t*, otr_address_t address) {
  std::free(reinterpret_cast<void*>(address));
  return OTR_OK;
}
otr_code_t queue_create(otr_driver_t*, uint32_t, const otr_queue_params_t*, otr_queue_t** queue) { return give(queue); }
otr_code_t queue_destroy(otr_queue_t*) { return OTR_OK; }
otr_code_t queue_wait_event(otr_queue_t*, otr_drv_event_t*) { return OTR_OK; }
otr_code_t event_create(otr_driver_t*, uint32_t, const otr_event_params_t*, otr_drv_event_t** event) {
  return give(event);
}
otr_code_t event_destroy(otr_drv_event_t*) { return OTR_OK; }
template <class T>
otr_code_t finished(T*, otr_outcome_t* outcome) {
  outcome->code = OTR_OK;
  return OTR_OK;
}
otr_code_t event_record(otr_drv_event_t*, otr_queue_t*) { return OTR_OK; }
otr_code_t copy(otr_queue_t*, const otr_copy_t*) { return OTR_OK; }
otr_code_t fill(otr_queue_t*, const otr_fill_t*) { return OTR_OK; }
otr_code_t host_call(otr_queue_t*, const otr_host_call_t* call) { return call->function(call->user, OTR_OK); }

otr_code_t module_load(
    otr_driver_t*, uint32_t, otr_code_format_t, const void*, size_t, const char*, otr_drv_module_t** module) {
  return give(module);
}
otr_code_t module_unload(otr_drv_module_t*) { return OTR_OK; }
otr_code_t kernel_get(otr_drv_module_t*, const char*, otr_drv_kernel_t** kernel) { return give(kernel); }
otr_code_t kernel_launch(otr_queue_t*, otr_drv_kernel_t*, const otr_launch_t*) { return OTR_OK; }

otr_code_t names(otr_driver_t* driver, uint32_t, const char* const** names, uint32_t* count) {
  static const char* const kNames[] = {"addcmul"};
  *names = kNames;
  *count = driver->offers ? 1 : 0;
  return OTR_OK;
}
otr_code_t prepare(
    otr_driver_t*, uint32_t, const otr_operator_call_t* call, otr_operator_answer_t*, otr_operator_t** operation) {
  const otr_tensor_t& out = call->outputs[0];
  return out.sizes[out.rank - 1] % 2 != 0 ? OTR_ERR_UNSUPPORTED : give(operation);
}
otr_code_t release(otr_operator_t*) { return OTR_OK; }
otr_code_t launch(otr_queue_t*, otr_operator_t*, const otr_operator_call_t*, otr_address_t) { return OTR_OK; }

const otr_kernel_api_t kKernel = {sizeof kKernel, module_load, module_unload, kernel_get, kernel_launch};
const otr_operator_api_t kOperators = {sizeof kOperators, names, prepare, release, launch};

otr_driver_api_t table() {
  otr_driver_api_t api{};
  api.struct_size = sizeof api;
  api.api_major = OTR_DRIVER_API_MAJOR;
  api.api_minor = OTR_DRIVER_API_MINOR;
  api.name = "noop";
  api.vendor = "Outrigger";
  api.version = "1";
  api.open = open;
  api.close = close;
  api.last_error = last_error;
  api.device_count = device_count;
  api.device_properties = device_properties;
  api.device_open = device_open;
  api.device_close = device_close;
  api.memory_alloc = memory_alloc;
  api.memory_free = memory_free;
  api.queue_create = queue_create;
  api.queue_destroy = queue_destroy;
  api.queue_query = api.queue_synchronize = finished<otr_queue_t>;
  api.queue_wait_event = queue_wait_event;
  api.event_create = event_create;
  api.event_destroy = event_destroy;
  api.event_query = api.event_synchronize = finished<otr_drv_event_t>;
  api.event_record = event_record;
  api.copy = copy;
  api.fill = fill;
  api.host_call = host_call;
  api.kernel = &kKernel;
  api.operators = &kOperators;
  return api;
}

}  // namespace

extern "C" OTR_DRIVER_EXPORT otr_code_t otr_driver_get_api(const otr_host_info_t*, const otr_driver_api_t** api) {
  static const otr_driver_api_t kTable = table();
  *api = &kTable;
  return OTR_OK;
}
