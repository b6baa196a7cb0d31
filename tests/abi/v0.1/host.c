/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A host of version 0.1, compiled against the headers beside it, which never change once they are out: it must run on
 * every later library of the same major version of the contract. With `table` as argument it opens the
 * library that it is given and calls through the table; else it calls what it is linked with. It checks
 * what an old host relies on: layouts, numbers, the order of the table, and that no byte behind a struct
 * of its size is written. Returns 0, or the line that found something else.
 */
#include "outrigger.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define EXPECT(condition)                                      \
  do {                                                         \
    if (!(condition)) {                                        \
      fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      return 1;                                                \
    }                                                          \
  } while (0)

/* A struct that the library fills, with a fence behind it. */
#define FENCED(type)  \
  struct {            \
    type value;       \
    uint64_t fence;   \
  }
#define FENCE UINT64_C(0x5ca1ab1e0ddba11)

/* The functions that an old host calls, linked or from the table. */
static otr_host_api_t api;

static int is(otr_status_t *status, int32_t code) {
  const int32_t got = api.status_code(status);
  if (got != code) fprintf(stderr, "%d: %s\n", (int)got, api.status_message(status));
  api.status_free(status);
  return got == code;
}
#define OK(call) EXPECT(is((call), OTR_OK))

static int32_t count_call(void *user, int32_t upstream) {
  ++*(int *)user;
  return upstream;
}

static int memory_and_order(otr_stream_t stream) {
  uint64_t address = 0;
  OK(api.memory_alloc(0, 4096, stream, &address));
  const uint32_t pattern = 0xabcd1234;
  OK(api.fill(stream, address, 4096, &pattern, sizeof pattern));
  uint32_t seen[1024] = {0};
  int called = 0;
  OK(api.host_call(stream, count_call, &called));
  OK(api.copy(stream, (uint64_t)(uintptr_t)seen, address, sizeof seen, OTR_COPY_DEVICE_TO_HOST));
  OK(api.stream_synchronize(stream));
  EXPECT(called == 1 && seen[0] == pattern && seen[1023] == pattern);

  FENCED(otr_pointer_info_t) info = {{0}, FENCE};
  info.value.struct_size = sizeof info.value;
  OK(api.memory_pointer_info(0, address + 100, &info.value));
  EXPECT(info.value.base == address && info.value.stream == stream && info.value.requested == 4096);
  EXPECT(info.value.struct_size == sizeof info.value && info.fence == FENCE);

  FENCED(otr_memory_stats_t) stats = {{0}, FENCE};
  stats.value.struct_size = sizeof stats.value;
  OK(api.memory_stats(0, &stats.value));
  EXPECT(stats.value.allocated_bytes.current >= 4096 && stats.value.device_allocs >= 1);
  EXPECT(stats.fence == FENCE);
  OK(api.memory_free(0, address));
  EXPECT(is(api.memory_free(0, address), OTR_ERR_INVALID_ARGUMENT));
  return 0;
}

static int operators_and_graphs(otr_stream_t stream) {
  uint64_t address = 0;
  OK(api.memory_alloc(0, 16, stream, &address));
  const float zero = 0;
  OK(api.fill(stream, address, 16, &zero, sizeof zero));
  otr_operator_id_t add = 0;
  OK(api.operator_find("add", &add));
  const int64_t size = 4, stride = 1;
  const otr_tensor_t tensor = {address, OTR_DTYPE_F32, 1, &size, &stride};
  const otr_scalar_t scalars[2] = {{OTR_DTYPE_F64, 0, {.f64 = 1.5}}, {OTR_DTYPE_I64, 0, {.i64 = 1}}};
  otr_operator_call_t call = {sizeof call, NULL, NULL, &tensor, &tensor, scalars, 1, 1, 2, 0};

  otr_graph_t graph = 0;
  otr_graph_exec_t exec = 0;
  OK(api.capture_begin(stream, OTR_CAPTURE_THREAD_LOCAL, 0));
  OK(api.operator_call(stream, add, &call));
  FENCED(otr_capture_info_t) capture = {{0}, FENCE};
  capture.value.struct_size = sizeof capture.value;
  OK(api.capture_info(stream, &capture.value));
  EXPECT(capture.value.status == OTR_CAPTURE_ACTIVE && capture.value.node_count == 1);
  EXPECT(capture.fence == FENCE);
  OK(api.capture_end(stream, &graph));
  OK(api.graph_name_scalar(graph, "by", 0, 0));
  OK(api.graph_instantiate(graph, 0, &exec));
  OK(api.graph_destroy(graph));
  OK(api.graph_replay(exec, stream));
  uint32_t slot = 0;
  OK(api.graph_slot(exec, "by", &slot));
  const otr_scalar_t ten = {OTR_DTYPE_F64, 0, {.f64 = 10}};
  OK(api.graph_bind_scalar(exec, slot, &ten));
  OK(api.graph_replay(exec, stream));
  float seen[4] = {0};
  OK(api.copy(stream, (uint64_t)(uintptr_t)seen, address, sizeof seen, OTR_COPY_DEVICE_TO_HOST));
  OK(api.stream_synchronize(stream));
  EXPECT(seen[0] == 11.5F && seen[3] == 11.5F);
  OK(api.graph_exec_destroy(exec));
  call.struct_size = sizeof call - 8;
  EXPECT(is(api.operator_call(stream, add, &call), OTR_ERR_INVALID_ARGUMENT));
  OK(api.memory_free(0, address));
  return 0;
}

static int host(void) {
  EXPECT(api.api_major == OTR_HOST_API_MAJOR && api.struct_size == sizeof api);
  uint32_t count = 0;
  OK(api.device_count(&count));
  EXPECT(count >= 1);
  FENCED(otr_device_info_t) info = {{0}, FENCE};
  info.value.struct_size = sizeof info.value;
  OK(api.device_info(0, &info.value));
  EXPECT(info.value.total_memory > 0 && strlen(info.value.driver) > 0 && info.fence == FENCE);
  EXPECT(is(api.device_info(count, &info.value), OTR_ERR_INVALID_DEVICE));
  otr_stream_t stream = 0;
  OK(api.stream_create(0, 0, &stream));
  if (memory_and_order(stream) || operators_and_graphs(stream)) return 1;
  char *json = NULL;
  OK(api.memory_snapshot(0, &json));
  EXPECT(strstr(json, "segments") != NULL);
  api.string_free(json);
  OK(api.stream_destroy(stream));
  EXPECT(is(api.stream_synchronize(stream), OTR_ERR_INVALID_HANDLE));
  puts("an old host runs");
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 3 && strcmp(argv[1], "table") == 0) {
    void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    EXPECT(library != NULL);
    const otr_host_api_t *(*get)(void) = NULL;
    *(void **)&get = dlsym(library, "otr_host_api");
    EXPECT(get != NULL);
    const otr_host_api_t *const table = get();
    /* A later library has a longer table; an older one would lack what this host needs. */
    EXPECT(table->struct_size >= sizeof api && OTR_HOST_API_HAS(table, version));
    memcpy(&api, table, sizeof api);
    api.struct_size = sizeof api;
    return host();
  }
  /* As a linker has bound it: each function by its own symbol. */
  api = (otr_host_api_t){
      .struct_size = sizeof api, .api_major = OTR_HOST_API_MAJOR,
      .status_code = otr_status_code, .status_message = otr_status_message,
      .status_free = otr_status_free, .string_free = otr_string_free,
      .device_count = otr_device_count, .device_info = otr_device_info,
      .stream_create = otr_stream_create, .stream_destroy = otr_stream_destroy,
      .stream_synchronize = otr_stream_synchronize,
      .memory_alloc = otr_memory_alloc, .memory_free = otr_memory_free,
      .memory_pointer_info = otr_memory_pointer_info, .memory_stats = otr_memory_stats,
      .memory_snapshot = otr_memory_snapshot,
      .copy = otr_copy, .fill = otr_fill, .host_call = otr_host_call,
      .operator_find = otr_operator_find, .operator_call = otr_operator_call,
      .capture_begin = otr_capture_begin, .capture_info = otr_capture_info,
      .capture_end = otr_capture_end, .graph_name_scalar = otr_graph_name_scalar,
      .graph_instantiate = otr_graph_instantiate, .graph_destroy = otr_graph_destroy,
      .graph_replay = otr_graph_replay, .graph_slot = otr_graph_slot,
      .graph_bind_scalar = otr_graph_bind_scalar, .graph_exec_destroy = otr_graph_exec_destroy,
  };
  return host();
}
