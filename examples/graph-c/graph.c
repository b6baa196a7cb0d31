/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A graph in C: captured on two streams, replayed with other memory and another number, written down,
 * and destroyed. Prints what it computes; with an argument, writes a picture of the graph there.
 */
#include <outrigger/outrigger.h>

#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 4 };
/* A lower priority is more urgent. */
enum { DEVICE = 0, PRIORITY = 0, NO_FLAGS = 0, NO_POOL = 0 };

static void check(otr_status_t *status, const char *call) {
  if (status != NULL) {
    fprintf(stderr, "%s: %s\n", call, otr_status_message(status));
    otr_status_free(status);
    exit(1);
  }
}
#define CHECK(call) check(call, #call)

static otr_tensor_t vector_at(uint64_t address) {
  static const int64_t size = COUNT, stride = 1;
  const otr_tensor_t tensor = {address, OTR_DTYPE_F32, 1, &size, &stride};
  return tensor;
}

/* out = a + factor * b, in the order of a stream. */
static void add(otr_stream_t stream, uint64_t out, uint64_t a, uint64_t b, double factor) {
  static otr_operator_id_t id = UINT32_MAX;
  if (id == UINT32_MAX) {
    CHECK(otr_operator_find("add", &id));
  }
  const otr_tensor_t inputs[] = {vector_at(a), vector_at(b)}, outputs[] = {vector_at(out)};
  const otr_scalar_t scalar = {.dtype = OTR_DTYPE_F64, .value = {.f64 = factor}};
  const otr_operator_call_t call = {
      .struct_size = sizeof call,
      .inputs = inputs, .input_count = 2,
      .outputs = outputs, .output_count = 1,
      .scalars = &scalar, .scalar_count = 1,
  };
  CHECK(otr_operator_call(stream, id, &call));
}

static uint64_t allocate(otr_stream_t stream, float value) {
  uint64_t address = 0;
  CHECK(otr_memory_alloc(DEVICE, COUNT * sizeof value, stream, &address));
  CHECK(otr_fill(stream, address, COUNT * sizeof value, &value, sizeof value));
  return address;
}

static float first(otr_stream_t stream, uint64_t address) {
  float value = 0;
  CHECK(otr_copy(stream, (uint64_t)(uintptr_t)&value, address, sizeof value, OTR_COPY_DEVICE_TO_HOST));
  CHECK(otr_stream_synchronize(stream));
  return value;
}

int main(int argc, char **argv) {
  otr_stream_t stream = 0, side = 0;
  otr_event_t fork = 0, join = 0;
  CHECK(otr_stream_create(DEVICE, PRIORITY, &stream));
  CHECK(otr_stream_create(DEVICE, PRIORITY, &side));
  CHECK(otr_event_create(DEVICE, NO_FLAGS, &fork));
  CHECK(otr_event_create(DEVICE, NO_FLAGS, &join));
  const uint64_t x = allocate(stream, 1), other_x = allocate(stream, 10), y = allocate(stream, 0);

  /* y = (x + 2 x) + (x + 3 x), the two sums on a stream each. Nothing runs while it is captured. */
  CHECK(otr_capture_begin(stream, OTR_CAPTURE_THREAD_LOCAL, NO_POOL));
  uint64_t left = 0, right = 0;
  CHECK(otr_memory_alloc(DEVICE, COUNT * sizeof(float), stream, &left));
  CHECK(otr_memory_alloc(DEVICE, COUNT * sizeof(float), stream, &right));
  CHECK(otr_event_record(fork, stream));
  CHECK(otr_stream_wait_event(side, fork)); /* the side stream joins the capture */
  add(stream, left, x, x, 2);
  add(side, right, x, x, 3);
  CHECK(otr_event_record(join, side));
  CHECK(otr_stream_wait_event(stream, join)); /* and its work is joined */
  add(stream, y, left, right, 1);
  CHECK(otr_memory_free(DEVICE, left)); /* memory of the graph's own pool, used by its replays */
  CHECK(otr_memory_free(DEVICE, right));
  otr_graph_t graph = 0;
  CHECK(otr_capture_end(stream, &graph));

  if (argc > 1) {
    char *picture = NULL;
    CHECK(otr_graph_dump(graph, OTR_GRAPH_SVG, &picture));
    FILE *file = fopen(argv[1], "w");
    if (file == NULL || fputs(picture, file) == EOF || fclose(file) != 0) {
      perror(argv[1]);
      return 1;
    }
    otr_string_free(picture);
  }

  /* Names for the arguments that replays change. Nodes are numbered as they were recorded, scalars as they were passed. */
  enum { FIRST_SUM = 0, FACTOR = 0 };
  CHECK(otr_graph_name_buffer(graph, "x", x, COUNT * sizeof(float)));
  CHECK(otr_graph_name_scalar(graph, "factor", FIRST_SUM, FACTOR));
  otr_graph_exec_t exec = 0;
  CHECK(otr_graph_instantiate(graph, NO_FLAGS, &exec));
  CHECK(otr_graph_destroy(graph)); /* the executable graph lives on */

  CHECK(otr_graph_replay(exec, stream));
  printf("x = 1:              y = %g\n", first(stream, y));
  uint32_t slot = 0;
  CHECK(otr_graph_slot(exec, "x", &slot));
  CHECK(otr_graph_bind(exec, slot, other_x));
  CHECK(otr_graph_replay(exec, stream));
  printf("x = 10:             y = %g\n", first(stream, y));
  const otr_scalar_t five = {.dtype = OTR_DTYPE_F64, .value = {.f64 = 5}};
  CHECK(otr_graph_slot(exec, "factor", &slot));
  CHECK(otr_graph_bind_scalar(exec, slot, &five));
  CHECK(otr_graph_replay(exec, side)); /* on any stream, behind the replay before */
  const float last = first(side, y);
  printf("x = 10, factor = 5: y = %g\n", last);

  CHECK(otr_graph_exec_destroy(exec));
  CHECK(otr_memory_free(DEVICE, x));
  CHECK(otr_memory_free(DEVICE, other_x));
  CHECK(otr_memory_free(DEVICE, y));
  CHECK(otr_event_destroy(fork));
  CHECK(otr_event_destroy(join));
  CHECK(otr_stream_destroy(side));
  CHECK(otr_stream_destroy(stream));
  return last == 100 ? 0 : 1;
}
