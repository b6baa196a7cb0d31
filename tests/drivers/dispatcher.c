/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A second driver in C, written from driver.h, base.h and docs/drivers.md alone, to prove that they suffice.
 * It differs from examples/driver-c wherever the contract leaves a choice: device addresses are no host
 * pointers, queues take turns instead of having threads, and work starts when it is flushed. It has no
 * kernels: what it offers is memory, order and copies. For tests only: begin with the other one.
 *
 * - Memory: one arena for all devices, shown at addresses that no host pointer has.
 * - Work: a worker takes the queue that is ready the longest and does one slice of its first command, of at
 *   most 1 MiB. Host calls may block, so each queue that has some pending has a worker set aside for it,
 *   beside the one that does all else.
 * - Locks: one for everything, never held over a slice or a host call.
 */
#define _GNU_SOURCE
#include "outrigger/driver.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define MAX_DEVICES 16
#define MAX_WORKERS 4096
#define ALIGNMENT 256u
#define SLICE (UINT64_C(1) << 20)   /* a multiple of every pattern's size */
#define WINDOW_BITS 48              /* of the addresses of a device, which lie where no process has memory */
#define WINDOW(device) ((UINT64_C(1) << 57) + ((uint64_t)(device) << WINDOW_BITS))

enum operation { COPY, FILL, CALL, RECORD, WAIT };

/* References: of its queue until it has finished; for a record also of its event, and of waits for it. */
struct command {
  struct command* next;
  enum operation operation;
  unsigned references;
  struct queue* queue; /* NULL: it has finished */
  otr_code_t outcome;
  struct queue* waiting;  /* queues whose first command waits for this one */
  struct command* target; /* of a wait */
  uint8_t* dst;
  const uint8_t* src;
  uint64_t size, done;
  uint8_t pattern[16];
  uint32_t pattern_size;
  otr_host_fn call;
  void* user;
  uint32_t flags;
};

/* What a handle points at begins with this. */
struct object {
  enum kind { DEAD, KIND_driver, KIND_queue, KIND_event } kind;
  uint32_t device;
  struct driver* driver;
};

struct queue {
  struct object object;
  bool busy; /* in the ready list, with a worker, or waiting for a command of another queue */
  bool destroyed;
  struct command *first, *last;
  uint64_t submitted, released, finished; /* numbers of commands; released: flushed up to here */
  otr_code_t failure;                     /* OTR_OK: none */
  unsigned calls;                         /* host calls that have not finished */
  struct queue* next;                     /* in the list that it is in */
};

struct event {
  struct object object;
  struct command* point; /* the newest record */
};

struct block {
  struct block* next; /* by offset */
  uint64_t offset, size;
};

struct driver {
  struct object object;
  uint32_t device_count;
  uint64_t memory; /* bytes of each device */
  uint8_t* arena;  /* of one device after the other */
  struct block* blocks[MAX_DEVICES];
  uint64_t used[MAX_DEVICES];
  bool open[MAX_DEVICES];
  uint64_t objects[MAX_DEVICES]; /* of the host's, allocations included */
  uint64_t queues[MAX_DEVICES];  /* that exist, destroyed ones with work included */
  struct queue *ready, *ready_last;
  pthread_cond_t work, progress; /* a queue is ready; a command has finished */
  bool closing;
  pthread_t threads[MAX_WORKERS];
  unsigned thread_count, calling; /* calling: queues with host calls */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all but `text` */
static struct command finished = {.references = 1};      /* the point of events that have none (R22) */

/* ---- Texts and checks ------------------------------------------------------------------------------- */

static _Thread_local char text[256] = "no call of this thread has failed";

__attribute__((format(printf, 2, 3))) static otr_code_t fail(otr_code_t code, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return code;
}

static const char* last_error(void) { return text; }

/* Each entry takes the lock, checks, and leaves it with its answer. */
static otr_code_t leave(otr_code_t code) {
  pthread_mutex_unlock(&lock);
  return code;
}
#define LEAVE(...) return pthread_mutex_unlock(&lock), fail(__VA_ARGS__)
#define NO_HOST_MEMORY() LEAVE(OTR_ERR_OUT_OF_HOST_MEMORY, "the host has no memory or thread left")
#define CHECK(holds, ...) \
  if (!(holds)) LEAVE(OTR_ERR_INVALID_ARGUMENT, __VA_ARGS__)
#define CHECK_OUTPUT(output) CHECK(output, "the output is NULL; it has to point at a place")
#define CHECK_HANDLE(holds, what) \
  if (!(holds)) LEAVE(OTR_ERR_INVALID_HANDLE, "the %s is NULL, destroyed, or of another driver", what)
#define ENTER(type, handle) \
  pthread_mutex_lock(&lock); \
  struct type* type = find(handle, KIND_##type); \
  CHECK_HANDLE(type, #type)
#define ENTER_ASK(type, handle, outcome) \
  ENTER(type, handle); \
  CHECK_OUTPUT(outcome)
#define ENTER_FOUND(handle, device) \
  ENTER(driver, handle); \
  if ((device) >= driver->device_count) \
  LEAVE(OTR_ERR_INVALID_DEVICE, "there is no device %u, only %u", device, driver->device_count)
#define ENTER_DEVICE(handle, device) \
  ENTER_FOUND(handle, device); \
  if (!driver->open[device]) LEAVE(OTR_ERR_INVALID_DEVICE, "device %u is not open; device_open opens it", device)

static void* find(void* handle, enum kind kind) {
  struct object* object = handle;
  return object && object->kind == kind ? object : NULL;
}

/* An object of zeros, for the host; NULL: out of host memory. */
static void* object_make(struct driver* driver, uint32_t device, size_t size, enum kind kind) {
  struct object* object = calloc(1, size);
  if (!object) return NULL;
  *object = (struct object){kind, device, driver};
  driver->objects[device]++;
  return object;
}

static void object_end(struct object* object) {
  object->kind = DEAD;
  object->driver->objects[object->device]--;
}

/* ---- Memory ----------------------------------------------------------------------------------------- */

/* The bytes of a range of a queue's device, or NULL if it does not lie in one allocation. */
static uint8_t* bytes_of(const struct object* queue, uint64_t address, uint64_t size) {
  uint64_t offset = address - WINDOW(queue->device);
  for (struct block* block = queue->driver->blocks[queue->device]; block; block = block->next)
    if (offset >= block->offset && offset - block->offset < block->size)
      return size <= block->size - (offset - block->offset)
                 ? queue->driver->arena + queue->device * queue->driver->memory + offset
                 : NULL;
  return NULL;
}

static otr_code_t memory_alloc(otr_driver_t* handle, uint32_t device, const otr_memory_params_t* params,
                               otr_address_t* address) {
  ENTER_DEVICE(handle, device);
  CHECK_OUTPUT(address);
  CHECK(params, "the parameters of the memory are NULL");
  uint64_t size = params->size, alignment = params->alignment;
  CHECK(!(params->flags & ~OTR_MEMORY_EXPORTABLE), "flags 0x%x; OTR_MEMORY_EXPORTABLE is all there is", params->flags);
  if (params->kind != OTR_MEMORY_DEVICE)
    LEAVE(OTR_ERR_UNSUPPORTED, "memory of kind 0x%x; OTR_MEMORY_DEVICE is all there is", params->kind);
  CHECK(!(alignment & (alignment - 1)), "an alignment of %llu bytes is no power of two", (unsigned long long)alignment);
  if (alignment > ALIGNMENT)
    LEAVE(OTR_ERR_UNSUPPORTED, "an alignment of %llu bytes; the most is %u", (unsigned long long)alignment, ALIGNMENT);
  CHECK(size, "an allocation of 0 bytes; the size has to be above 0");
  uint64_t offset = 0; /* of the first gap that is large enough */
  uint64_t rounded = (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  struct block** place = &driver->blocks[device];
  for (; *place && (*place)->offset - offset < rounded; place = &(*place)->next)
    offset = (*place)->offset + (*place)->size;
  if (size > driver->memory || rounded > driver->memory - offset)
    LEAVE(OTR_ERR_OUT_OF_MEMORY, "device %u has no %llu bytes together; %llu are in use", device,
          (unsigned long long)size, (unsigned long long)driver->used[device]);
  struct block* block = malloc(sizeof *block);
  if (!block) NO_HOST_MEMORY();
  *block = (struct block){*place, offset, rounded};
  *place = block;
  driver->used[device] += rounded;
  driver->objects[device]++;
  *address = WINDOW(device) + offset;
  return leave(OTR_OK);
}

static otr_code_t memory_free(otr_driver_t* handle, otr_address_t address) {
  ENTER(driver, handle);
  for (uint32_t device = 0; device < driver->device_count; device++)
    for (struct block** place = &driver->blocks[device]; *place; place = &(*place)->next)
      if (WINDOW(device) + (*place)->offset == address) {
        struct block* block = *place;
        *place = block->next;
        driver->used[device] -= block->size;
        driver->objects[device]--;
        free(block);
        return leave(OTR_OK);
      }
  LEAVE(OTR_ERR_INVALID_ARGUMENT, "0x%llx is not the start of an allocation", (unsigned long long)address);
}

static otr_code_t memory_info(otr_driver_t* handle, uint32_t device, uint64_t* unused, uint64_t* total) {
  ENTER_DEVICE(handle, device);
  CHECK_OUTPUT(unused && total);
  *unused = driver->memory - driver->used[device];
  *total = driver->memory;
  return leave(OTR_OK);
}

/* ---- The dispatcher --------------------------------------------------------------------------------- */

static void command_drop(struct command* command) {
  if (!--command->references) free(command);
}

static void make_ready(struct queue* queue) {
  struct driver* driver = queue->object.driver;
  queue->next = NULL;
  *(driver->ready ? &driver->ready_last->next : &driver->ready) = queue;
  driver->ready_last = queue;
  pthread_cond_signal(&driver->work);
}

/* Starts what was submitted so far (R18). NULL: nothing. */
static void release(struct queue* queue) {
  if (!queue) return;
  queue->released = queue->submitted;
  if (queue->busy || !queue->first) return;
  queue->busy = true;
  make_ready(queue);
}

static void queue_drop(struct queue* queue) {
  queue->object.driver->queues[queue->object.device]--;
  free(queue);
}

/* The queue's first command is over. */
static void finish(struct queue* queue, otr_code_t code) {
  struct driver* driver = queue->object.driver;
  struct command* command = queue->first;
  if (command->operation == WAIT) {
    code = command->target->outcome;
    command_drop(command->target);
  }
  if (!queue->failure) queue->failure = code; /* the first one only (R20) */
  command->outcome = queue->failure;
  command->queue = NULL;
  for (struct queue *waiting = command->waiting, *next; waiting; waiting = next) {
    next = waiting->next;
    make_ready(waiting);
  }
  if (command->operation == CALL && !--queue->calls) driver->calling--;
  queue->finished++;
  queue->first = command->next;
  command_drop(command);
  queue->busy = queue->finished < queue->released;
  if (queue->busy)
    make_ready(queue);
  else if (!queue->first && queue->destroyed)
    queue_drop(queue);
  pthread_cond_broadcast(&driver->progress);
}

static void copy_or_fill(const struct command* command, uint64_t size) {
  uint8_t* dst = command->dst + command->done;
  if (command->operation == COPY) {
    memcpy(dst, command->src + command->done, size);
    return;
  }
  memcpy(dst, command->pattern, command->pattern_size);
  for (uint64_t written = command->pattern_size; written < size; written *= 2)
    memcpy(dst + written, dst, written < size - written ? written : size - written);
}

/* Goes on with the queue's first command. Entered and left with the lock. */
static void step(struct queue* queue) {
  struct command* command = queue->first;
  otr_code_t code = OTR_OK, upstream = queue->failure;
  if (command->operation == WAIT && command->target->queue) { /* also after a failure (R20) */
    queue->next = command->target->waiting;
    command->target->waiting = queue;
    return;
  }
  if (command->operation == CALL) {
    pthread_mutex_unlock(&lock);
    code = command->call(command->user, upstream);
    if (command->flags & OTR_HOST_CALL_CANNOT_FAIL) code = OTR_OK;
    pthread_mutex_lock(&lock);
  } else if (command->done < command->size && !upstream) {
    uint64_t left = command->size - command->done, size = left < SLICE ? left : SLICE;
    pthread_mutex_unlock(&lock);
    copy_or_fill(command, size);
    pthread_mutex_lock(&lock);
    command->done += size;
    if (size < left) {
      make_ready(queue); /* behind the others */
      return;
    }
  }
  finish(queue, code == OTR_NOT_READY ? OTR_ERR_EXECUTION : code); /* R27 */
}

static void* worker(void* argument) {
  struct driver* driver = argument;
  pthread_mutex_lock(&lock);
  while (driver->ready || !driver->closing) {
    struct queue* queue = driver->ready;
    if (queue) {
      driver->ready = queue->next;
      step(queue);
    } else {
      pthread_cond_wait(&driver->work, &lock);
    }
  }
  pthread_mutex_unlock(&lock);
  return NULL;
}

/* Sees to it that so many workers exist. */
static bool workers(struct driver* driver, unsigned count) {
  while (driver->thread_count < count && count <= MAX_WORKERS &&
         !pthread_create(&driver->threads[driver->thread_count], NULL, worker, driver))
    driver->thread_count++;
  return driver->thread_count >= count;
}

/* Puts a command with these fields behind the others. False: out of host memory. */
static bool submit(struct queue* queue, const struct command* fields) {
  struct driver* driver = queue->object.driver;
  struct command* command = malloc(sizeof *command);
  bool first_call = fields->operation == CALL && !queue->calls;
  if (!command || (first_call && !workers(driver, driver->calling + 2))) {
    free(command);
    return false;
  }
  *command = *fields;
  command->references = 1;
  command->queue = queue;
  driver->calling += first_call;
  queue->calls += fields->operation == CALL;
  queue->submitted++;
  *(queue->first ? &queue->last->next : &queue->first) = command;
  queue->last = command;
  return true;
}
#define SUBMIT(queue, ...) \
  if (!submit(queue, &(struct command){__VA_ARGS__})) NO_HOST_MEMORY()

/* Leaves the lock, and tells what became of work (R19). */
static otr_code_t tell(otr_outcome_t* outcome, otr_code_t code) {
  outcome->code = code;
  if (code != OTR_OK && code != OTR_NOT_READY) {
    outcome->submission = 0;
    outcome->label[0] = 0;
    snprintf(outcome->message, sizeof outcome->message, "a host call answered code %d", code);
  }
  return leave(OTR_OK);
}

/* ---- Queues ----------------------------------------------------------------------------------------- */

static otr_code_t queue_create(otr_driver_t* handle, uint32_t device, const otr_queue_params_t* params,
                               otr_queue_t** output) {
  ENTER_DEVICE(handle, device);
  CHECK_OUTPUT(output);
  CHECK(!params || params->struct_size < sizeof *params || !params->flags, "the flags of a queue are 0");
  struct queue* queue = object_make(driver, device, sizeof *queue, KIND_queue);
  if (!queue) NO_HOST_MEMORY();
  driver->queues[device]++;
  *output = (otr_queue_t*)queue;
  return leave(OTR_OK);
}

static otr_code_t queue_destroy(otr_queue_t* handle) {
  ENTER(queue, handle);
  object_end(&queue->object);
  queue->destroyed = true;
  release(queue);
  if (!queue->first) queue_drop(queue);
  return leave(OTR_OK);
}

static otr_code_t queue_flush(otr_queue_t* handle) {
  ENTER(queue, handle);
  release(queue);
  return leave(OTR_OK);
}

static otr_code_t queue_query(otr_queue_t* handle, otr_outcome_t* outcome) {
  ENTER_ASK(queue, handle, outcome);
  release(queue);
  return tell(outcome, queue->first ? OTR_NOT_READY : queue->failure);
}

static otr_code_t queue_synchronize(otr_queue_t* handle, otr_outcome_t* outcome) {
  ENTER_ASK(queue, handle, outcome);
  release(queue);
  for (uint64_t target = queue->submitted; queue->finished < target;)
    pthread_cond_wait(&queue->object.driver->progress, &lock);
  otr_code_t failure = queue->failure;
  queue->failure = OTR_OK;
  return tell(outcome, failure);
}

static otr_code_t queue_wait_event(otr_queue_t* handle, otr_drv_event_t* event_handle) {
  ENTER(queue, handle);
  struct event* event = find(event_handle, KIND_event);
  CHECK_HANDLE(event && event->object.driver == queue->object.driver, "event");
  SUBMIT(queue, .operation = WAIT, .target = event->point);
  event->point->references++; /* of the point as it is now (R21) */
  release(event->point->queue); /* R18 */
  return leave(OTR_OK);
}

/* ---- Events ----------------------------------------------------------------------------------------- */

static otr_code_t event_create(otr_driver_t* handle, uint32_t device, const otr_event_params_t* params,
                               otr_drv_event_t** output) {
  ENTER_DEVICE(handle, device);
  CHECK_OUTPUT(output);
  uint32_t flags = params ? params->flags : 0;
  CHECK(!flags, "the flags 0x%x of an event are unknown, or need the group `timing`", flags);
  struct event* event = object_make(driver, device, sizeof *event, KIND_event);
  if (!event) NO_HOST_MEMORY();
  event->point = &finished;
  finished.references++;
  *output = (otr_drv_event_t*)event;
  return leave(OTR_OK);
}

static otr_code_t event_destroy(otr_drv_event_t* handle) {
  ENTER(event, handle);
  command_drop(event->point);
  object_end(&event->object);
  free(event);
  return leave(OTR_OK);
}

static otr_code_t event_record(otr_drv_event_t* handle, otr_queue_t* queue_handle) {
  ENTER(event, handle);
  struct queue* queue = find(queue_handle, KIND_queue);
  CHECK_HANDLE(queue && queue->object.driver == event->object.driver, "queue");
  SUBMIT(queue, .operation = RECORD);
  command_drop(event->point); /* waits that were made keep it (R21) */
  event->point = queue->last;
  event->point->references++;
  return leave(OTR_OK);
}

static otr_code_t event_query(otr_drv_event_t* handle, otr_outcome_t* outcome) {
  ENTER_ASK(event, handle, outcome);
  release(event->point->queue);
  return tell(outcome, event->point->queue ? OTR_NOT_READY : event->point->outcome);
}

static otr_code_t event_synchronize(otr_drv_event_t* handle, otr_outcome_t* outcome) {
  ENTER_ASK(event, handle, outcome);
  struct command* point = event->point;
  release(point->queue);
  point->references++;
  while (point->queue)
    pthread_cond_wait(&event->object.driver->progress, &lock);
  otr_code_t code = point->outcome;
  command_drop(point);
  return tell(outcome, code);
}

/* ---- Commands --------------------------------------------------------------------------------------- */

static otr_code_t copy(otr_queue_t* handle, const otr_copy_t* params) {
  ENTER(queue, handle);
  CHECK(params, "the copy is NULL");
  if (params->rows > 1) LEAVE(OTR_ERR_UNSUPPORTED, "a copy of %u rows; there are copies of one alone", params->rows);
  uint64_t dst = params->dst, src = params->src, size = params->size;
  otr_copy_kind_t kind = params->kind;
  CHECK(kind >= OTR_COPY_HOST_TO_DEVICE && kind <= OTR_COPY_HOST_TO_HOST, "%u is no kind of copy", kind);
  uint8_t *to = (uint8_t*)(uintptr_t)dst, *from = (uint8_t*)(uintptr_t)src;
  if (kind == OTR_COPY_HOST_TO_DEVICE || kind == OTR_COPY_DEVICE_TO_DEVICE)
    to = bytes_of(&queue->object, dst, size);
  if (kind == OTR_COPY_DEVICE_TO_HOST || kind == OTR_COPY_DEVICE_TO_DEVICE)
    from = bytes_of(&queue->object, src, size);
  CHECK(!size || (to && from), "0x%llx, %llu bytes: in no allocation of device %u, or NULL on the host",
        (unsigned long long)(to ? src : dst), (unsigned long long)size, queue->object.device);
  SUBMIT(queue, .operation = COPY, .dst = to, .src = from, .size = size);
  return leave(OTR_OK);
}

static otr_code_t fill(otr_queue_t* handle, const otr_fill_t* params) {
  ENTER(queue, handle);
  CHECK(params, "the fill is NULL");
  uint64_t dst = params->dst, size = params->size;
  const void* pattern = params->pattern;
  uint32_t pattern_size = params->pattern_size;
  CHECK(pattern, "the pattern is NULL");
  CHECK(pattern_size && pattern_size <= 16 && !(pattern_size & (pattern_size - 1)) && !(size % pattern_size),
        "%llu bytes by a pattern of %u; 1, 2, 4, 8 and 16 are right, and multiples of it",
        (unsigned long long)size, pattern_size);
  struct command command = {.operation = FILL, .size = size, .pattern_size = pattern_size};
  command.dst = bytes_of(&queue->object, dst, size);
  CHECK(!size || command.dst, "0x%llx, %llu bytes: in no allocation of device %u", (unsigned long long)dst,
        (unsigned long long)size, queue->object.device);
  memcpy(command.pattern, pattern, pattern_size);
  if (!submit(queue, &command)) NO_HOST_MEMORY();
  return leave(OTR_OK);
}

static otr_code_t host_call(otr_queue_t* handle, const otr_host_call_t* call) {
  ENTER(queue, handle);
  CHECK(call && call->function, "the call or its function is NULL");
  CHECK(!(call->flags & ~OTR_HOST_CALL_CANNOT_FAIL), "flags 0x%x; OTR_HOST_CALL_CANNOT_FAIL is all there is", call->flags);
  SUBMIT(queue, .operation = CALL, .call = call->function, .user = call->user, .flags = call->flags);
  return leave(OTR_OK);
}

/* ---- Driver and devices ----------------------------------------------------------------------------- */

/* "devices=2,memory=67108864" (bytes of each). */
static otr_code_t read_options(struct driver* driver, const char* options) {
  while (options && *options) {
    size_t key = strcspn(options, "=,");
    char* end = (char*)options + key;
    unsigned long long value = *end == '=' ? strtoull(end + 1, &end, 10) : 0;
    bool plain = value && value >> (WINDOW_BITS - 1) == 0 && (!*end || *end == ',');
    if (plain && key == 7 && !strncmp(options, "devices", key) && value <= MAX_DEVICES)
      driver->device_count = (uint32_t)value;
    else if (plain && key == 6 && !strncmp(options, "memory", key))
      driver->memory = (value + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    else
      return fail(OTR_ERR_INVALID_ARGUMENT, "option '%s'; known: devices=COUNT, memory=BYTES", options);
    options = end + (*end == ',');
  }
  return OTR_OK;
}

static otr_code_t driver_open(const otr_open_params_t* params, otr_driver_t** output) {
  if (!output) return fail(OTR_ERR_INVALID_ARGUMENT, "the output is NULL");
  struct driver* driver = calloc(1, sizeof *driver);
  if (!driver) return fail(OTR_ERR_OUT_OF_HOST_MEMORY, "the host has no memory left");
  driver->object = (struct object){KIND_driver, 0, driver};
  driver->device_count = 2;
  driver->memory = UINT64_C(1) << 30;
  pthread_cond_init(&driver->work, NULL);
  pthread_cond_init(&driver->progress, NULL);
  bool given = params && params->struct_size >= sizeof *params;
  otr_code_t code = read_options(driver, given ? params->options : NULL);
  size_t size = driver->device_count * driver->memory;
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  driver->arena = code ? MAP_FAILED : mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (!code && (driver->arena == MAP_FAILED || !workers(driver, 1)))
    code = fail(OTR_ERR_OUT_OF_HOST_MEMORY, "no address space or no thread is left");
  if (code) {
    if (driver->arena != MAP_FAILED) munmap(driver->arena, size);
    free(driver);
    return code;
  }
  *output = (otr_driver_t*)driver;
  return OTR_OK;
}

#define CHECK_UNUSED(driver, device) \
  if (driver->objects[device]) \
  LEAVE(OTR_ERR_BUSY, "%llu queues, events or allocations of device %u are left", \
        (unsigned long long)driver->objects[device], device)

/* Work of destroyed queues ends (R12, R58). Entered and left with the lock. */
static void drain(struct driver* driver, uint32_t device) {
  while (driver->queues[device]) pthread_cond_wait(&driver->progress, &lock);
}

static otr_code_t device_open(otr_driver_t* handle, uint32_t device, const otr_device_params_t* params) {
  ENTER_FOUND(handle, device);
  CHECK(!params || params->struct_size < sizeof *params || !params->flags, "the flags of a device are 0");
  driver->open[device] = true;
  return leave(OTR_OK);
}

static otr_code_t device_close(otr_driver_t* handle, uint32_t device) {
  ENTER_DEVICE(handle, device);
  CHECK_UNUSED(driver, device);
  drain(driver, device);
  driver->open[device] = false;
  return leave(OTR_OK);
}

static otr_code_t driver_close(otr_driver_t* handle) {
  ENTER(driver, handle);
  for (uint32_t device = 0; device < driver->device_count; device++) CHECK_UNUSED(driver, device);
  driver->object.kind = DEAD;
  for (uint32_t device = 0; device < driver->device_count; device++) drain(driver, device);
  driver->closing = true;
  pthread_cond_broadcast(&driver->work);
  leave(OTR_OK);
  for (unsigned thread = 0; thread < driver->thread_count; thread++)
    pthread_join(driver->threads[thread], NULL);
  munmap(driver->arena, driver->device_count * driver->memory);
  pthread_cond_destroy(&driver->work);
  pthread_cond_destroy(&driver->progress);
  free(driver);
  return OTR_OK;
}

static otr_code_t device_count(otr_driver_t* handle, uint32_t* count) {
  ENTER(driver, handle);
  CHECK_OUTPUT(count);
  *count = driver->device_count;
  return leave(OTR_OK);
}

static otr_code_t device_properties(otr_driver_t* handle, uint32_t device, otr_device_properties_t* output) {
  ENTER_FOUND(handle, device);
  CHECK_OUTPUT(output);
  otr_device_properties_t all = {output->struct_size, output->next, "dispatcher", "Outrigger",
                                 .total_memory = driver->memory, .address_alignment = ALIGNMENT};
  memcpy(output, &all, all.struct_size < sizeof all ? all.struct_size : sizeof all); /* R1 */
  return leave(OTR_OK);
}

/* ---- The table -------------------------------------------------------------------------------------- */

static const otr_memory_info_api_t memory_info_api = {sizeof memory_info_api, memory_info};
static const otr_driver_api_t driver_api = {
    sizeof driver_api, NULL, OTR_DRIVER_API_MAJOR, OTR_DRIVER_API_MINOR, "dispatcher", "Outrigger", "1",
    driver_open, driver_close, last_error, device_count, device_properties, device_open, device_close,
    memory_alloc, memory_free,
    queue_create, queue_destroy, queue_query, queue_synchronize, queue_wait_event, event_create,
    event_destroy, event_record, event_query, event_synchronize, copy, fill, host_call, queue_flush,
    .memory_info = &memory_info_api,
};

otr_code_t otr_driver_get_api(const otr_host_info_t* host, const otr_driver_api_t** api) {
  if (!host || !api) return fail(OTR_ERR_INVALID_ARGUMENT, "host or api is NULL");
  *api = &driver_api;
  if (host->api_major == OTR_DRIVER_API_MAJOR) return OTR_OK;
  return fail(OTR_ERR_VERSION, "the host speaks version %u of the contract, this driver %u",
              host->api_major, OTR_DRIVER_API_MAJOR);
}
