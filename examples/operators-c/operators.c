/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Four operators for the driver of ../driver-c, one of each kind: a product of matrices, a convolution, a reduction, and
 * an operator of PyTorch by its schema name. All are of f32, on any strides, in the simplest form. */
#define otr_driver_get_api driver_without_operators
#include "../driver-c/driver.c"
#undef otr_driver_get_api
enum { RANK = 6 };
enum kind { MM, CONVOLUTION, SUM, FLIP };
static const char* const operator_names[] = {"mm", "convolution", "sum", "aten::flip"};
struct otr_operator { const otr_driver_t* driver; uint32_t device; enum kind kind; };
/* One launch: the call, copied (R46). `window` is stride, padding and dilation. */
struct view { char* data; int64_t rank, sizes[RANK], strides[RANK]; };
struct work { enum kind kind; struct view in[3], out; int64_t window[3][2]; bool flipped[RANK]; };
static float* at(const struct view* view, const int64_t* index) {
  int64_t place = 0;
  for (int64_t dim = 0; dim < view->rank; ++dim) place += index[dim] * view->strides[dim];
  return (float*)view->data + place;
}
/* The next index in row-major order; false behind the last one. */
static bool next(const struct view* view, int64_t* index) {
  for (int64_t dim = view->rank; dim-- > 0; index[dim] = 0)
    if (++index[dim] < view->sizes[dim]) return true;
  return false;
}

static float element(const struct work* work, const int64_t* o) {
  const struct view *a = &work->in[0], *b = &work->in[1];
  double sum = 0;
  if (work->kind == MM) {
    for (int64_t k = 0; k < a->sizes[1]; ++k)
      sum += (double)*at(a, (int64_t[]){o[0], k}) * *at(b, (int64_t[]){k, o[1]});
  } else if (work->kind == CONVOLUTION) {
    if (work->in[2].data != NULL) sum = *at(&work->in[2], &o[1]);
    for (int64_t w[RANK] = {o[1]};;) { /* all weights of the output channel */
      int64_t x[RANK] = {o[0], w[1]};
      for (int s = 0; s < 2; ++s)
        x[2 + s] = o[2 + s] * work->window[0][s] - work->window[1][s] + w[2 + s] * work->window[2][s];
      if (x[2] >= 0 && x[2] < a->sizes[2] && x[3] >= 0 && x[3] < a->sizes[3]) sum += (double)*at(a, x) * *at(b, w);
      if (!next(b, w) || w[0] != o[1]) break;
    }
  } else if (work->kind == SUM) {
    struct view rest = *a; /* the reduced dimensions: those in which the output has size 1 */
    int64_t i[RANK] = {0}, x[RANK];
    for (int64_t dim = 0; dim < a->rank; ++dim)
      if (work->out.sizes[dim] == a->sizes[dim]) rest.sizes[dim] = 1;
    do {
      for (int64_t dim = 0; dim < a->rank; ++dim) x[dim] = o[dim] + i[dim];
      sum += *at(a, x);
    } while (next(&rest, i));
  } else {
    int64_t x[RANK];
    for (int64_t dim = 0; dim < a->rank; ++dim) x[dim] = work->flipped[dim] ? a->sizes[dim] - 1 - o[dim] : o[dim];
    return *at(a, x);
  }
  return (float)sum;
}
/* Runs in queue order, on the queue's thread. A device starts its kernel here. */
static otr_code_t run(void* user, otr_code_t upstream) {
  struct work* work = user;
  int64_t index[RANK] = {0};
  if (upstream == OTR_OK) do *at(&work->out, index) = element(work, index); while (next(&work->out, index));
  free(work);
  return OTR_OK;
}
/* Takes over a call; false if it is not for this driver. */
static bool take(const otr_operator_call_t* call, enum kind kind, struct work* work) {
  memset(work, 0, sizeof *work);
  work->kind = kind;
  if (call->input_count < 1 || call->input_count > 3 || call->output_count != 1) return false;
  for (uint32_t t = 0; t <= call->input_count; ++t) {
    const otr_tensor_t* tensor = t < call->input_count ? &call->inputs[t] : call->outputs;
    struct view* view = t < call->input_count ? &work->in[t] : &work->out;
    if (tensor->dtype != OTR_DTYPE_F32 || tensor->rank > RANK) return false;
    *view = (struct view){(char*)(uintptr_t)tensor->address, tensor->rank, {0}, {0}};
    for (uint32_t dim = 0; dim < tensor->rank; ++dim) {
      view->sizes[dim] = tensor->sizes[dim];
      view->strides[dim] = tensor->strides[dim];
      if (tensor->sizes[dim] < 1) return false; /* empty tensors are left to others */
    }
  }
  const struct view *a = &work->in[0], *b = &work->in[1], *out = &work->out;
  if (kind == MM)
    return call->input_count == 2 && a->rank == 2 && b->rank == 2 && out->rank == 2 && a->sizes[1] == b->sizes[0] &&
           out->sizes[0] == a->sizes[0] && out->sizes[1] == b->sizes[1];
  if (kind == SUM) return call->input_count == 1 && a->rank == out->rank;
  const otr_operator_args_t* args = (const otr_operator_args_t*)call->next;
  const otr_value_t* value = args == NULL || args->ext.type != OTR_EXT_OPERATOR_ARGS ? NULL : args->values;
  if (value == NULL) return false;
  if (kind == FLIP) { /* flip(Tensor self, int[] dims) */
    for (uint32_t i = 0; i < value[1].count && a->rank > 0; ++i)
      work->flipped[(value[1].of.integers[i] + a->rank) % a->rank] = true;
    return a->rank == out->rank;
  }
  /* convolution(input, weight, bias?, stride, padding, dilation, transposed, output_padding, groups) */
  for (int i = 0; i < 6 && value[3 + i % 3].count == 2; ++i) work->window[i % 3][i / 3] = value[3 + i % 3].of.integers[i / 3];
  return a->rank == 4 && b->rank == 4 && work->window[0][1] > 0 && value[6].of.integer == 0 && value[8].of.integer == 1;
}

static otr_code_t names(otr_driver_t* driver, uint32_t device, const char* const** list, uint32_t* count) {
  REQUIRE_DEVICE(driver, device, list);
  REQUIRE_POINTER(count);
  *list = operator_names;
  *count = FLIP + 1;
  return OTR_OK;
}

static otr_code_t prepare(otr_driver_t* driver, uint32_t device, const otr_operator_call_t* call,
                          otr_operator_answer_t* said, otr_operator_t** out) {
  REQUIRE_DEVICE(driver, device, out);
  REQUIRE(said != NULL && said->struct_size >= sizeof *said && call != NULL && call->struct_size >= sizeof *call &&
          call->name != NULL && (call->inputs != NULL || call->input_count == 0) &&
          (call->outputs != NULL || call->output_count == 0), OTR_ERR_INVALID_ARGUMENT, "call or answer is cut off");
  struct work work;
  for (enum kind kind = MM; kind <= FLIP; ++kind)
    if (strcmp(call->name, operator_names[kind]) == 0 && take(call, kind, &work)) {
      REQUIRE((*out = malloc(sizeof **out)) != NULL, OTR_ERR_OUT_OF_HOST_MEMORY, "no memory for an operator");
      **out = (otr_operator_t){driver, device, kind};
      said->workspace_bytes = 0;
      return OTR_OK;
    }
  return fail(OTR_ERR_UNSUPPORTED, "%s of these operands is not among the four operators", call->name);
}
static otr_code_t release(otr_operator_t* operator) {
  REQUIRE_HANDLE(operator);
  free(operator);
  return OTR_OK;
}

static otr_code_t launch(otr_queue_t* queue, otr_operator_t* operator, const otr_operator_call_t* call, otr_address_t space) {
  REQUIRE_HANDLE(queue);
  REQUIRE_HANDLE(operator);
  REQUIRE(operator->driver == queue->driver, OTR_ERR_INVALID_HANDLE, "queue and operator are of two drivers");
  REQUIRE(operator->device == queue->device, OTR_ERR_INVALID_DEVICE, "queue and operator are of two devices");
  struct work* work = malloc(sizeof *work);
  if (work != NULL && call != NULL && take(call, operator->kind, work) && work->in[0].data != NULL && work->out.data != NULL)
    return host_call(queue, &(otr_host_call_t){.struct_size = sizeof(otr_host_call_t), .function = run, .user = work});
  free(work);
  return fail(OTR_ERR_INVALID_ARGUMENT, "the call is not what the operator was prepared for (workspace %llu)", (ull)space);
}

OTR_DRIVER_EXPORT otr_code_t otr_driver_get_api(const otr_host_info_t* host, const otr_driver_api_t** api) {
  static const otr_operator_api_t operators = {sizeof operators, names, prepare, release, launch};
  static otr_driver_api_t with_operators; /* each caller writes the same */
  const otr_code_t code = driver_without_operators(host, api);
  if (host == NULL || api == NULL) return code;
  with_operators = **api;
  with_operators.operators = &operators;
  *api = &with_operators;
  return code;
}
