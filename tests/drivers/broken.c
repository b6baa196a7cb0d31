/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Drivers with one defect each, for the tests of loading: the C template, but for what a macro breaks.
 * Never loaded by anything but tests.
 */
#include <outrigger/driver.h> /* first: the declaration keeps the real name */

#define otr_driver_get_api template_get_api
#include "driver.c"
#undef otr_driver_get_api

#ifndef NO_SYMBOL

static otr_driver_api_t broken;

#ifdef FAILS_ON_DEMAND
/* The next `countdown` calls of `entry` pass, the one after them fails. */
static char fail_entry[32];
static uint32_t countdown;
static int fails(const char* entry) {
  return strcmp(entry, fail_entry) == 0 && countdown-- == 0 ? (fail_entry[0] = '\0', 1) : 0;
}

OTR_DRIVER_EXPORT void fail_at(const char* entry, uint32_t passes);
void fail_at(const char* entry, uint32_t passes) {
  snprintf(fail_entry, sizeof fail_entry, "%s", entry);
  countdown = passes;
}

static int64_t open_drivers, queues, events, allocations;
/* Objects that the host has. */
OTR_DRIVER_EXPORT int64_t live_objects(void);
int64_t live_objects(void) { return open_drivers + queues + events + allocations; }

/* An entry that fails on demand, and counts what it makes or takes away. */
#define ENTRY(name, counter, step, parameters, ...)                                          \
  static otr_code_t failing_##name parameters {                                              \
    if (fails(#name)) return fail(OTR_ERR_DEVICE_LOST, #name " was made to fail by the test"); \
    const otr_code_t code = table.name(__VA_ARGS__);                                         \
    if (code == OTR_OK) counter += step;                                                     \
    return code;                                                                             \
  }

static int64_t nothing, devices;
/* Devices that the host has opened, which it need not close. */
OTR_DRIVER_EXPORT int64_t live_devices(void);
int64_t live_devices(void) { return devices; }
ENTRY(open, open_drivers, 1, (const otr_open_params_t* p, otr_driver_t** d), p, d)
ENTRY(close, open_drivers, -1, (otr_driver_t* d), d)
ENTRY(device_count, nothing, 0, (otr_driver_t* d, uint32_t* n), d, n)
ENTRY(device_properties, nothing, 0, (otr_driver_t* d, uint32_t i, otr_device_properties_t* p), d, i, p)
ENTRY(device_open, devices, 1, (otr_driver_t* d, uint32_t i, const otr_device_params_t* p), d, i, p)
ENTRY(device_close, devices, -1, (otr_driver_t* d, uint32_t i), d, i)
ENTRY(memory_alloc, allocations, 1, (otr_driver_t* d, uint32_t i, const otr_memory_params_t* p, otr_address_t* a), d, i, p, a)
ENTRY(memory_free, allocations, -1, (otr_driver_t* d, otr_address_t a), d, a)
ENTRY(queue_create, queues, 1, (otr_driver_t* d, uint32_t i, const otr_queue_params_t* p, otr_queue_t** q), d, i, p, q)
ENTRY(queue_destroy, queues, -1, (otr_queue_t* q), q)
ENTRY(queue_query, nothing, 0, (otr_queue_t* q, otr_outcome_t* o), q, o)
ENTRY(queue_synchronize, nothing, 0, (otr_queue_t* q, otr_outcome_t* o), q, o)
ENTRY(queue_wait_event, nothing, 0, (otr_queue_t* q, otr_drv_event_t* e), q, e)
ENTRY(event_create, events, 1, (otr_driver_t* d, uint32_t i, const otr_event_params_t* p, otr_drv_event_t** e), d, i, p, e)
ENTRY(event_destroy, events, -1, (otr_drv_event_t* e), e)
ENTRY(event_record, nothing, 0, (otr_drv_event_t* e, otr_queue_t* q), e, q)
ENTRY(event_query, nothing, 0, (otr_drv_event_t* e, otr_outcome_t* o), e, o)
ENTRY(event_synchronize, nothing, 0, (otr_drv_event_t* e, otr_outcome_t* o), e, o)
ENTRY(copy, nothing, 0, (otr_queue_t* q, const otr_copy_t* c), q, c)
ENTRY(fill, nothing, 0, (otr_queue_t* q, const otr_fill_t* f), q, f)
ENTRY(host_call, nothing, 0, (otr_queue_t* q, const otr_host_call_t* c), q, c)
#endif

#ifdef OPEN_FAILS
static otr_code_t open_fails(const otr_open_params_t* params, otr_driver_t** out) {
  (void)params, (void)out;
  return fail(OTR_ERR_DEVICE_LOST, "no board answers in slot 3: reseat it, or run acme-reset");
}
#endif

#ifdef OPEN_WITHOUT_DRIVER
static otr_code_t open_without_driver(const otr_open_params_t* params, otr_driver_t** out) {
  (void)params, (void)out;
  return OTR_OK;
}
#endif

#ifdef COUNT_FAILS
static otr_code_t count_fails(otr_driver_t* driver, uint32_t* count) {
  (void)driver, (void)count;
  return fail(OTR_ERR_DEVICE_LOST, "the bus does not answer");
}
#endif

#ifdef NO_DEVICES
static otr_code_t no_devices(otr_driver_t* driver, uint32_t* count) {
  (void)driver;
  *count = 0;
  return OTR_OK;
}
#endif

#ifdef PROPERTIES_FAIL
static otr_code_t properties_fail(otr_driver_t* driver, uint32_t device, otr_device_properties_t* out) {
  if (device == 0) return device_properties(driver, device, out);
  return fail(OTR_ERR_DEVICE_LOST, "device 1 fell off the bus");
}
#endif

#ifdef CLOSE_FAILS
static otr_code_t close_fails(otr_driver_t* driver) {
  (void)driver;
  return fail(OTR_ERR_BUSY, "the device does not let go");
}
#endif

#ifdef BAD_ALIGNMENT
static otr_code_t bad_alignment(otr_driver_t* driver, uint32_t device, otr_device_properties_t* out) {
  const otr_code_t code = device_properties(driver, device, out);
  out->address_alignment = 48;
  return code;
}
#endif

otr_code_t otr_driver_get_api(const otr_host_info_t* host, const otr_driver_api_t** api) {
  const otr_driver_api_t* whole = NULL;
  const otr_code_t code = template_get_api(host, &whole);
  if (code != OTR_OK) return code;
  broken = *whole;
#if defined(GET_API_FAILS)
  return fail(OTR_ERR_INTERNAL, "no licence");
#elif defined(NO_TABLE)
  return OTR_OK;
#elif defined(OTHER_MAJOR)
  broken.api_major = 7;
  broken.api_minor = 3;
#elif defined(REFUSES_OUR_MAJOR)
  broken.api_major = 2;
  broken.api_minor = 5;
  *api = &broken;
  return fail(OTR_ERR_VERSION, "this driver speaks version 2 of the contract");
#elif defined(NEWER_MINOR)
  static struct {
    otr_driver_api_t api;
    void* entry_of_the_future;
  } newer;
  broken.struct_size = sizeof newer;
  broken.api_minor = 42;
  newer.api = broken;
  *api = &newer.api;
  return OTR_OK;
#elif defined(SMALL_TABLE)
  broken.struct_size = offsetof(otr_driver_api_t, event_query);
#elif defined(TINY_TABLE)
  broken.struct_size = 8;
#elif defined(NULL_ENTRIES)
  broken.memory_free = NULL;
  broken.queue_synchronize = NULL;
  broken.host_call = NULL;
#elif defined(GROUP_WITH_HOLE)
  static otr_timing_api_t timing;
  timing = *whole->timing;
  timing.device_time = NULL;
  broken.timing = &timing;
#elif defined(OPEN_FAILS)
  broken.open = open_fails;
#elif defined(OPEN_WITHOUT_DRIVER)
  broken.open = open_without_driver;
#elif defined(COUNT_FAILS)
  broken.device_count = count_fails;
#elif defined(NO_DEVICES)
  broken.device_count = no_devices;
#elif defined(PROPERTIES_FAIL)
  broken.device_properties = properties_fail;
#elif defined(BAD_ALIGNMENT)
  broken.device_properties = bad_alignment;
#elif defined(CLOSE_FAILS)
  broken.close = close_fails;
#elif defined(FAILS_ON_DEMAND)
#define USE(name) broken.name = failing_##name
  USE(open), USE(close), USE(device_count), USE(device_properties), USE(device_open), USE(device_close);
  USE(memory_alloc), USE(memory_free);
  USE(queue_create), USE(queue_destroy), USE(queue_query), USE(queue_synchronize), USE(queue_wait_event);
  USE(event_create), USE(event_destroy), USE(event_record), USE(event_query), USE(event_synchronize);
  USE(copy), USE(fill), USE(host_call);
#else
#error "name a defect"
#endif
  *api = &broken;
  return OTR_OK;
}

#endif
