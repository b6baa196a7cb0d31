/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * The device of the driver "tern": boards of tern.h, whose memory the host does not see. driver.c, the one of
 * examples/driver-c, includes this file and keeps the rules of outrigger/driver.h around it.
 */
#include "tern.h"

#define DRIVER_NAME "tern"
#define DRIVER_VENDOR "Tern"
#define DRIVER_VERSION "1.0.0"

/* The code of the contract, with a text, for a status of the SDK. */
static otr_code_t check(tern_status status, const char* call) {
  if (status == TERN_OK) return OTR_OK;
  return fail(status == TERN_NO_MEMORY ? OTR_ERR_OUT_OF_MEMORY : OTR_ERR_EXECUTION, "%s: %s", call, tern_status_text(status));
}

/* ---- 1. Which devices there are ----------------------------------------------------------------------------- */
struct device { tern_board* board; uint32_t number; };

static otr_code_t find_devices(uint32_t wanted, uint32_t* count) {
  REQUIRE(wanted <= tern_count(), OTR_ERR_INVALID_ARGUMENT, "devices=%u: this machine has %u boards", wanted, tern_count());
  *count = wanted != 0 ? wanted : tern_count();
  return OTR_OK;
}

static otr_code_t device_open(struct device* device, uint32_t number) {
  device->number = number;
  return check(tern_open(number, &device->board), "tern_open");
}

static void device_close(struct device* device) { tern_close(device->board); }

/* ---- 2. What a device says of itself ------------------------------------------------------------------------ */
static void device_describe(uint32_t number, otr_device_properties_t* about) {
  tern_info info;
  tern_describe(number, &info);
  snprintf(about->name, sizeof about->name, "%s", info.name);
  snprintf(about->vendor, sizeof about->vendor, DRIVER_VENDOR);
  about->total_memory = info.memory;
  about->address_alignment = info.page;
}

static uint64_t device_clock(const struct device* device) {
  tern_info info;
  tern_describe(device->number, &info);
  return tern_ticks(device->board) * info.tick;
}

/* ---- 3. Memory ---------------------------------------------------------------------------------------------- */
static otr_code_t device_alloc(struct device* device, uint64_t size, otr_address_t* address) {
  return check(tern_alloc(device->board, size, address), "tern_alloc");
}

static void device_free(struct device* device, otr_address_t address) { tern_free(device->board, address); }

/* ---- 4. Streams: what a queue needs of the device ----------------------------------------------------------- */
struct stream {
  struct device* device;
  tern_stream* native;
  tern_fence* fence; /* is at `given` once the stream has done all that it was given */
  uint64_t given;
};

static void stream_close(struct stream* stream) {
  if (stream->native != NULL) tern_stream_destroy(stream->native);
  if (stream->fence != NULL) tern_fence_destroy(stream->fence);
}

static otr_code_t stream_open(struct stream* stream, struct device* device) {
  stream->device = device;
  tern_status status = tern_stream_create(device->board, &stream->native);
  if (status == TERN_OK) status = tern_fence_create(device->board, &stream->fence);
  if (status == TERN_OK) return OTR_OK;
  stream_close(stream);
  return fail(OTR_ERR_OUT_OF_HOST_MEMORY, "a stream of board %p: %s", (void*)device->board, tern_status_text(status));
}

/* Waits for a command that the stream was given. */
static otr_code_t finish(struct stream* stream, tern_status given, const char* call) {
  if (given == TERN_OK) given = tern_signal(stream->native, stream->fence, ++stream->given);
  if (given == TERN_OK) given = tern_fence_wait(stream->fence, stream->given);
  return check(given, call);
}

static otr_code_t stream_copy(struct stream* stream, uint64_t dst, uint64_t src, uint64_t size, otr_copy_kind_t kind) {
  void* to = (void*)(uintptr_t)dst;
  const void* from = (const void*)(uintptr_t)src;
  switch (kind) {
    case OTR_COPY_HOST_TO_DEVICE: return finish(stream, tern_write(stream->native, dst, from, size), "tern_write");
    case OTR_COPY_DEVICE_TO_HOST: return finish(stream, tern_read(stream->native, to, src, size), "tern_read");
    case OTR_COPY_DEVICE_TO_DEVICE: return finish(stream, tern_move(stream->native, dst, src, size), "tern_move");
    default: return memcpy(to, from, size), OTR_OK;
  }
}

/* The board sets words. What is no number of words is filled on the host and written, a block at a time. */
static otr_code_t stream_fill(struct stream* stream, otr_address_t dst, uint64_t size, const void* pattern, uint32_t length) {
  char block[16384]; /* a multiple of every pattern */
  const uint64_t part = size < sizeof block ? size : sizeof block;
  for (uint64_t at = 0; at < part; at += length) memcpy(block + at, pattern, length);
  if (length <= 4 && dst % 4 == 0 && size % 4 == 0) {
    uint32_t word;
    memcpy(&word, block, sizeof word);
    return finish(stream, tern_set(stream->native, dst, word, size / 4), "tern_set");
  }
  otr_code_t code = OTR_OK;
  for (uint64_t at = 0; at < size && code == OTR_OK; at += part)
    code = finish(stream, tern_write(stream->native, dst + at, block, size - at < part ? size - at : part), "tern_write");
  return code;
}
