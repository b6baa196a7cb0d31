/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The device of the driver "example": a piece of host memory. Put your own calls in its place, from 1 to 5, as README.md
 * says. driver.c includes this file and keeps the rules of outrigger/driver.h around it.
 *
 * A function that fails says why: `return fail(OTR_ERR_DEVICE_LOST, "board %u does not answer: ...", number)`.
 */
#define DRIVER_NAME "example"
#define DRIVER_VENDOR "example"
#define DRIVER_VERSION "1.0.0"

/* ---- 1. Which devices there are ----------------------------------------------------------------------------- */
/* One for each device and `open`: handles of your SDK. All zero until `device_open`. */
struct device { uint32_t number; };

/* The number of devices; `wanted` comes from the option `devices` of `open`, 0 without it. */
static otr_code_t find_devices(uint32_t wanted, uint32_t* count) {
  *count = wanted != 0 ? wanted : 1;
  return OTR_OK;
}

/* Gets a device ready, counted from 0: its context. Only devices that are used are opened. */
static otr_code_t device_open(struct device* device, uint32_t number) {
  device->number = number;
  return OTR_OK;
}

static void device_close(struct device* device) { (void)device; }

/* ---- 2. What a device says of itself ------------------------------------------------------------------------ */
/* Asked also before the device is opened. */
static void device_describe(uint32_t number, otr_device_properties_t* about) {
  snprintf(about->name, sizeof about->name, "example device %u", number);
  snprintf(about->vendor, sizeof about->vendor, DRIVER_VENDOR);
  about->total_memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2; /* bytes */
  about->address_alignment = 64;          /* of all that `device_alloc` gives (R14) */
  about->flags = OTR_DEVICE_HOST_VISIBLE; /* step 5: 0, unless the CPU reads and writes at device addresses (R15) */
}

/* Nanoseconds on a clock that never runs backwards, by which the driver says when work was done. */
static uint64_t device_clock(const struct device* device) {
  (void)device;
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- 3. Memory ---------------------------------------------------------------------------------------------- */
/* Addresses of two devices never overlap, nor with those of the host (R13). Out of memory is OTR_ERR_OUT_OF_MEMORY. */
static otr_code_t device_alloc(struct device* device, uint64_t size, otr_address_t* address) {
  *address = (uintptr_t)aligned_alloc(64, (size + 63) / 64 * 64);
  if (*address != 0) return OTR_OK;
  return fail(OTR_ERR_OUT_OF_MEMORY, "device %u has no %llu bytes", device->number, (unsigned long long)size);
}

/* The work that used it has finished (R12). */
static void device_free(struct device* device, otr_address_t address) {
  (void)device;
  free((void*)(uintptr_t)address);
}

/* ---- 4. Streams: what a queue needs of the device ------------------------------------------------------------- */
/* Handles of your SDK. The thread of the queue calls `stream_copy` and `stream_fill` one after the other. They return once
 * the device has done it; what they answer is the outcome of the command. */
struct stream { struct device* device; };

static otr_code_t stream_open(struct stream* stream, struct device* device) {
  stream->device = device;
  return OTR_OK;
}

static void stream_close(struct stream* stream) { (void)stream; }

/* `kind` says which address is a pointer of the host. */
static otr_code_t stream_copy(struct stream* stream, uint64_t dst, uint64_t src, uint64_t size, otr_copy_kind_t kind) {
  (void)stream, (void)kind;
  memcpy((void*)(uintptr_t)dst, (const void*)(uintptr_t)src, size);
  return OTR_OK;
}

/* `length` is 1, 2, 4, 8 or 16, and `size` a multiple of it. */
static otr_code_t stream_fill(struct stream* stream, otr_address_t dst, uint64_t size, const void* pattern, uint32_t length) {
  (void)stream;
  char* to = (char*)(uintptr_t)dst;
  memcpy(to, pattern, length);
  for (uint64_t done = length; done < size; done *= 2) memcpy(to + done, to, done < size - done ? done : size - done);
  return OTR_OK;
}
