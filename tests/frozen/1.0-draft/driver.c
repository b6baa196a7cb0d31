/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A driver for Outrigger, in C11 with POSIX threads: the rules of outrigger/driver.h for any device. The device is in
 * device.h, which is where a vendor begins. A comment names the rule (R20) where the code meets it.
 *
 * A queue is a list of commands and a thread that runs them. One lock per driver guards all of its objects. It is held
 * for a few instructions, and never while a command runs, so that queues are independent of each other (R17).
 */
#define _GNU_SOURCE
#include <outrigger/driver.h>

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MAX_DEVICES 64u
#define TEXT 256     /* bytes of a failure's text */
#define BACKLOG 4096u /* commands of a queue beyond which submissions are slowed down */

typedef unsigned long long ull; /* for printf */

/* ---- 1. Errors ---------------------------------------------------------------------------------------------- */
static _Thread_local char last_error_text[TEXT]; /* R5: empty before the first failure */
static const char* last_error(void) { return last_error_text; }

__attribute__((format(printf, 2, 3))) static otr_code_t fail(otr_code_t code, const char* format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(last_error_text, sizeof last_error_text, format, values);
  va_end(values);
  return code;
}

/* Each of these leaves the function, with a code and a text, where its condition does not hold (R7). */
#define REQUIRE(condition, ...) do { if (!(condition)) return fail(__VA_ARGS__); } while (0)
#define REQUIRE_HANDLE(handle) REQUIRE(handle != NULL, OTR_ERR_INVALID_HANDLE, "the " #handle " is NULL")
#define REQUIRE_POINTER(p) REQUIRE(p != NULL, OTR_ERR_INVALID_ARGUMENT, #p " is NULL and must not be")
#define REQUIRE_ASKED(handle, told) REQUIRE_HANDLE(handle); REQUIRE_POINTER(told)
#define REQUIRE_MEMORY(p) REQUIRE(p != NULL, OTR_ERR_OUT_OF_HOST_MEMORY, "no host memory left for: " #p) /* R29 */
#define REQUIRE_FLAGS(flags, known) REQUIRE((flags & ~(known)) == 0, OTR_ERR_INVALID_ARGUMENT, \
  "of the " #flags " 0x%x only 0x%x are known", flags, known)
#define REQUIRE_FOUND(driver, index) REQUIRE_HANDLE(driver); \
  REQUIRE(index < driver->device_count, OTR_ERR_INVALID_DEVICE, \
          "there is no device %u: the driver has %u, counted from 0", index, driver->device_count)
#define REQUIRE_OPEN(driver, index) REQUIRE_FOUND(driver, index); \
  REQUIRE(driver->open[index], OTR_ERR_INVALID_DEVICE, "device %u is not open: device_open comes first", index) /* R57 */
#define REQUIRE_DEVICE(driver, index, out) REQUIRE_OPEN(driver, index); REQUIRE_POINTER(out)
#define REQUIRE_SAME_DRIVER(event, queue) REQUIRE_HANDLE(event); REQUIRE_HANDLE(queue); \
  REQUIRE(event->driver == queue->driver, OTR_ERR_INVALID_HANDLE, "event and queue are of two drivers")
#define REQUIRE_RANGE(driver, address, size) REQUIRE(is_memory(driver, address, size), OTR_ERR_INVALID_ARGUMENT, \
  "the %llu bytes at 0x%llx are not within one allocation of a device", (ull)size, (ull)address)
/* Is `member` within what the caller was compiled with? (R1) */
#define HAS(type, o, member) ((o)->struct_size >= offsetof(type, member) + sizeof((o)->member))

#include "device.h"

/* ---- 2. Objects --------------------------------------------------------------------------------------------- */
struct allocation { uint64_t address, size; uint32_t device; struct allocation* next; };

struct otr_driver {
  struct device devices[MAX_DEVICES];
  uint64_t memory[MAX_DEVICES]; /* bytes of each device, or what the option allows */
  uint32_t alignment[MAX_DEVICES];
  uint32_t device_count;
  _Atomic bool open[MAX_DEVICES];
  pthread_mutex_t turn;  /* held while a device is opened or closed */
  pthread_mutex_t lock;  /* guards what follows, and queues, events and commands */
  pthread_cond_t passed; /* for those who wait for a point */
  uint64_t used[MAX_DEVICES];
  struct allocation* allocations; /* a list will do: the allocator above asks for few and large blocks */
  otr_queue_t* queues;            /* of devices that are open: a destroyed one that is idle is used again */
};

/* The outcome of work: OTR_OK, or the first failure, which keeps its origin when events carry it to other queues. */
struct outcome { otr_code_t code; uint64_t number; char text[TEXT]; };

/* A point is the command that an event refers to. It is passed once all before it has finished, and keeps the outcome of
 * its queue at that moment, whatever becomes of the queue and the event (R21, R23). */
struct command {
  enum { COPY, FILL, HOST_CALL, WAIT, POINT } kind;
  uint64_t number; /* in its queue, from 1 */
  uint64_t dst, src, size;
  otr_copy_kind_t direction;
  char pattern[16];
  uint32_t pattern_size, flags;
  otr_host_fn function;
  void* user;
  struct command* awaited; /* of a wait: a point, with a reference */
  bool passed, clears;     /* of a point; clears: it takes the failure from the queue */
  struct outcome outcome;
  uint64_t time;           /* nanoseconds */
  _Atomic size_t refs;     /* of the queue until it has run; of a point also of events, waits and calls */
  struct command* next;
};

struct otr_queue {
  struct stream stream;
  otr_driver_t* driver;
  uint32_t device;
  bool destroyed, ending;
  uint64_t submitted;
  _Atomic uint64_t backlog;
  struct command *first, *last; /* the first one runs */
  struct outcome outcome;       /* of all that has finished since a failure was taken */
  pthread_t thread;
  pthread_cond_t work;
  otr_queue_t* next;
};

struct otr_drv_event { otr_driver_t* driver; bool timed; struct command* point; /* NULL: never recorded */ };

static void lock(otr_driver_t* driver) { pthread_mutex_lock(&driver->lock); }
static void unlock(otr_driver_t* driver) { pthread_mutex_unlock(&driver->lock); }

/* ---- 3. Memory ---------------------------------------------------------------------------------------------- */
/* The link to the allocation around `address`; it holds NULL where there is none. Under the lock. */
static struct allocation** find_allocation(otr_driver_t* driver, uint64_t address) {
  struct allocation** link = &driver->allocations;
  while (*link != NULL && address - (*link)->address >= (*link)->size) link = &(*link)->next;
  return link;
}

/* Do these bytes lie within one allocation? (R13) */
static bool is_memory(otr_driver_t* driver, uint64_t address, uint64_t size) {
  lock(driver);
  const struct allocation* found = *find_allocation(driver, address);
  const bool is = found != NULL && size <= found->size - (address - found->address);
  unlock(driver);
  return is;
}

static void give_back(otr_driver_t* driver, struct allocation* allocation) {
  lock(driver);
  driver->used[allocation->device] -= allocation->size;
  unlock(driver);
  free(allocation);
}

static otr_code_t memory_alloc(otr_driver_t* driver, uint32_t device, const otr_memory_params_t* params,
                               otr_address_t* address) {
  REQUIRE_DEVICE(driver, device, address);
  REQUIRE_POINTER(params);
  const uint64_t size = params->size, alignment = params->alignment;
  REQUIRE_FLAGS(params->flags, OTR_MEMORY_EXPORTABLE); /* a hint, of no use without `ipc` */
  REQUIRE(params->kind == OTR_MEMORY_DEVICE, OTR_ERR_UNSUPPORTED, "memory kind %u: there is 0 alone", params->kind);
  REQUIRE((alignment & (alignment - 1)) == 0, OTR_ERR_INVALID_ARGUMENT, "the alignment, %llu, is no power of two",
          (ull)alignment);
  REQUIRE(alignment <= driver->alignment[device], OTR_ERR_UNSUPPORTED, "the alignment, %llu, is more than %u", /* R14 */
          (ull)alignment, driver->alignment[device]);
  REQUIRE(size > 0, OTR_ERR_INVALID_ARGUMENT, "the size is 0 and must be larger");
  struct allocation* made = malloc(sizeof *made);
  REQUIRE_MEMORY(made);
  *made = (struct allocation){.size = size, .device = device};
  lock(driver);
  const uint64_t left = driver->memory[device] - driver->used[device];
  if (size <= left) driver->used[device] += size;
  unlock(driver);
  if (size > left) free(made);
  REQUIRE(size <= left, OTR_ERR_OUT_OF_MEMORY, "%llu bytes do not fit on device %u: %llu of %llu are free", (ull)size,
          device, (ull)left, (ull)driver->memory[device]);
  const otr_code_t code = device_alloc(&driver->devices[device], size, &made->address);
  if (code != OTR_OK) return give_back(driver, made), code;
  *address = made->address; /* R4: written on success only */
  lock(driver);
  made->next = driver->allocations;
  driver->allocations = made;
  unlock(driver);
  return OTR_OK;
}

static otr_code_t memory_free(otr_driver_t* driver, otr_address_t address) {
  REQUIRE_HANDLE(driver);
  lock(driver);
  struct allocation **link = find_allocation(driver, address), *found = *link;
  const bool is_base = found != NULL && found->address == address;
  if (is_base) *link = found->next;
  unlock(driver);
  REQUIRE(is_base, OTR_ERR_INVALID_ARGUMENT, "0x%llx is not the address of an allocation", (ull)address);
  device_free(&driver->devices[found->device], address);
  give_back(driver, found);
  return OTR_OK;
}

/* ---- 4. Commands, and the thread of a queue ----------------------------------------------------------------- */
static void unref(struct command* command) {
  if (command == NULL || --command->refs > 0) return;
  unref(command->awaited);
  free(command);
}

/* All before the point has finished. Under the lock. */
static void pass(otr_queue_t* queue, struct command* point) {
  point->outcome = queue->outcome;
  point->time = device_clock(&queue->driver->devices[queue->device]);
  point->passed = true;
  if (point->clears) queue->outcome.code = OTR_OK; /* R20: it takes work again */
  pthread_cond_broadcast(&queue->driver->passed);
}

/* Runs a command without the lock, or does what is left of it in a queue that has failed (R20). */
static otr_code_t execute(otr_queue_t* queue, const struct command* command, otr_code_t upstream) {
  if (command->kind == HOST_CALL) { /* R27: exactly once, so also after a failure */
    const otr_code_t code = command->function(command->user, upstream);
    if (command->flags & OTR_HOST_CALL_CANNOT_FAIL) return OTR_OK;
    REQUIRE(code == OTR_OK, code == OTR_NOT_READY ? OTR_ERR_EXECUTION : code, "a host call returned %d", code);
    return OTR_OK;
  }
  if (upstream != OTR_OK) return OTR_OK;
  if (command->kind == COPY) return stream_copy(&queue->stream, command->dst, command->src, command->size, command->direction);
  return stream_fill(&queue->stream, command->dst, command->size, command->pattern, command->pattern_size);
}

/* One command at a time, each to its end. */
static void* queue_main(void* argument) {
  otr_queue_t* queue = argument;
  otr_driver_t* driver = queue->driver;
  lock(driver);
  for (;;) {
    while (queue->first == NULL && !queue->ending) pthread_cond_wait(&queue->work, &driver->lock);
    struct command* command = queue->first;
    if (command == NULL) break; /* R12, R58: closing, and all work is done */
    struct outcome outcome = {.code = OTR_OK, .number = command->number};
    if (command->kind == POINT) {
      pass(queue, command);
    } else if (command->kind == WAIT) { /* also in a queue that has failed: what follows may free what the wait guards */
      while (!command->awaited->passed) pthread_cond_wait(&driver->passed, &driver->lock);
      outcome = command->awaited->outcome; /* R24 */
    } else {
      const otr_code_t upstream = queue->outcome.code;
      unlock(driver);
      outcome.code = execute(queue, command, upstream);
      if (outcome.code != OTR_OK) memcpy(outcome.text, last_error_text, TEXT);
      lock(driver); /* R16: who sees that it has finished sees all of its effects */
    }
    if (queue->outcome.code == OTR_OK) queue->outcome = outcome; /* R20: the first failure stays */
    queue->first = command->next;
    queue->backlog--;
    unref(command);
  }
  unlock(driver);
  return NULL;
}

/* Puts a command behind all others of the queue. A point is given out, with a reference. */
static otr_code_t submit(otr_queue_t* queue, struct command what, struct command** point) {
  struct command* command = malloc(sizeof *command);
  REQUIRE_MEMORY(command); /* R4: nothing was submitted */
  *command = what;
  command->refs = point == NULL ? 1 : 2;
  if (point != NULL) *point = command;
  if (queue->backlog > BACKLOG) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); /* R17: and no longer */
  lock(queue->driver);
  if (what.kind != POINT) command->number = ++queue->submitted;
  if (what.kind == POINT && queue->first == NULL) {
    pass(queue, command);
    unref(command);
  } else {
    if (queue->first == NULL) queue->first = command;
    else queue->last->next = command;
    queue->last = command;
    queue->backlog++;
    pthread_cond_signal(&queue->work); /* R18: it starts at once */
  }
  unlock(queue->driver);
  return OTR_OK;
}

/* Tells what became of work (R19). */
static otr_code_t report(struct outcome outcome, otr_outcome_t* told) {
  told->code = outcome.code;
  if (outcome.code == OTR_OK || outcome.code == OTR_NOT_READY) return OTR_OK;
  told->submission = outcome.number;
  told->label[0] = '\0'; /* that of a launch: there are no kernels */
  snprintf(told->message, sizeof told->message, "%s", outcome.text);
  return OTR_OK;
}

/* Reports the outcome of a point, now or once it was passed. Takes the caller's reference. */
static otr_code_t answer(otr_driver_t* driver, struct command* point, bool wait, otr_outcome_t* told, uint64_t* time) {
  struct outcome outcome = {.code = OTR_OK}; /* R22 */
  if (point == NULL) return report(outcome, told);
  lock(driver);
  while (wait && !point->passed) pthread_cond_wait(&driver->passed, &driver->lock);
  outcome = point->passed ? point->outcome : (struct outcome){.code = OTR_NOT_READY};
  if (time != NULL && outcome.code == OTR_OK) *time = point->time;
  unlock(driver);
  unref(point);
  return report(outcome, told);
}

/* ---- 5. Queues ---------------------------------------------------------------------------------------------- */
static otr_code_t queue_create(otr_driver_t* driver, uint32_t device, const otr_queue_params_t* params, otr_queue_t** out) {
  REQUIRE_DEVICE(driver, device, out); /* R3: nothing in `next` is known. There is one priority, for all. */
  if (params != NULL && HAS(otr_queue_params_t, params, flags)) REQUIRE_FLAGS(params->flags, 0u);
  lock(driver);
  otr_queue_t* queue = driver->queues;
  while (queue != NULL && !(queue->destroyed && queue->first == NULL && queue->device == device)) queue = queue->next;
  if (queue != NULL) {
    queue->destroyed = false;
    queue->submitted = 0;
    queue->outcome.code = OTR_OK;
  }
  unlock(driver);
  if (queue == NULL) {
    queue = malloc(sizeof *queue);
    REQUIRE_MEMORY(queue);
    *queue = (otr_queue_t){.driver = driver, .device = device, .work = PTHREAD_COND_INITIALIZER};
    otr_code_t code = stream_open(&queue->stream, &driver->devices[device]);
    if (code == OTR_OK && pthread_create(&queue->thread, NULL, queue_main, queue) != 0) {
      stream_close(&queue->stream);
      code = fail(OTR_ERR_OUT_OF_HOST_MEMORY, "the host has no thread left for a queue");
    }
    if (code != OTR_OK) return free(queue), code;
    lock(driver);
    queue->next = driver->queues;
    driver->queues = queue;
    unlock(driver);
  }
  *out = queue;
  return OTR_OK;
}

static otr_code_t queue_destroy(otr_queue_t* queue) {
  REQUIRE_HANDLE(queue);
  otr_driver_t* driver = queue->driver; /* from `destroyed` on the queue may be another's */
  lock(driver);
  queue->destroyed = true; /* R11: its thread goes on with what there is */
  unlock(driver);
  return OTR_OK;
}

static otr_code_t queue_query(otr_queue_t* queue, otr_outcome_t* told) {
  REQUIRE_ASKED(queue, told);
  lock(queue->driver);
  const struct outcome outcome = queue->first == NULL ? queue->outcome : (struct outcome){.code = OTR_NOT_READY}; /* R19 */
  unlock(queue->driver);
  return report(outcome, told);
}

static otr_code_t queue_synchronize(otr_queue_t* queue, otr_outcome_t* told) {
  REQUIRE_ASKED(queue, told);
  struct command* point;
  const otr_code_t code = submit(queue, (struct command){.kind = POINT, .clears = true}, &point);
  return code == OTR_OK ? answer(queue->driver, point, true, told, NULL) : code;
}

static otr_code_t copy(otr_queue_t* queue, const otr_copy_t* params) {
  REQUIRE_HANDLE(queue);
  REQUIRE_POINTER(params);
  const uint64_t dst = params->dst, src = params->src, size = params->size;
  const otr_copy_kind_t kind = params->kind;
  REQUIRE(params->rows <= 1, OTR_ERR_UNSUPPORTED, "a copy of %u rows: here it is one", params->rows); /* R25 */
  REQUIRE(kind >= OTR_COPY_HOST_TO_DEVICE && kind <= OTR_COPY_HOST_TO_HOST, OTR_ERR_INVALID_ARGUMENT,
          "copy kind %u is unknown: they are 1 to 4", kind);
  if (size == 0) return OTR_OK; /* R25: to do nothing is in order anywhere */
  REQUIRE(dst != 0 && src != 0, OTR_ERR_INVALID_ARGUMENT, "the source or the destination is NULL");
  if (kind == OTR_COPY_DEVICE_TO_HOST || kind == OTR_COPY_DEVICE_TO_DEVICE) REQUIRE_RANGE(queue->driver, src, size);
  if (kind == OTR_COPY_HOST_TO_DEVICE || kind == OTR_COPY_DEVICE_TO_DEVICE) REQUIRE_RANGE(queue->driver, dst, size);
  return submit(queue, (struct command){.kind = COPY, .dst = dst, .src = src, .size = size, .direction = kind}, NULL);
}

static otr_code_t fill(otr_queue_t* queue, const otr_fill_t* params) {
  REQUIRE_HANDLE(queue);
  REQUIRE_POINTER(params);
  const uint64_t dst = params->dst, size = params->size;
  const void* pattern = params->pattern;
  const uint32_t pattern_size = params->pattern_size;
  REQUIRE(pattern_size > 0 && pattern_size <= 16 && (pattern_size & (pattern_size - 1)) == 0, /* R28 */
          OTR_ERR_INVALID_ARGUMENT, "a pattern has 1, 2, 4, 8 or 16 bytes, not %u", pattern_size);
  REQUIRE(size % pattern_size == 0, OTR_ERR_INVALID_ARGUMENT,
          "the size, %llu, is not a multiple of the %u bytes of the pattern", (ull)size, pattern_size);
  if (size == 0) return OTR_OK; /* R25 */
  REQUIRE_POINTER(pattern);
  REQUIRE_RANGE(queue->driver, dst, size);
  struct command command = {.kind = FILL, .dst = dst, .size = size, .pattern_size = pattern_size};
  memcpy(command.pattern, pattern, pattern_size); /* R10: the caller's bytes may go after the call */
  return submit(queue, command, NULL);
}

static otr_code_t host_call(otr_queue_t* queue, const otr_host_call_t* call) {
  REQUIRE_HANDLE(queue);
  REQUIRE_POINTER(call);
  REQUIRE_POINTER(call->function);
  REQUIRE_FLAGS(call->flags, OTR_HOST_CALL_CANNOT_FAIL);
  return submit(queue, (struct command){.kind = HOST_CALL, .function = call->function, .user = call->user,
                                        .flags = call->flags}, NULL);
}

/* ---- 6. Events ---------------------------------------------------------------------------------------------- */
static otr_code_t event_create(otr_driver_t* driver, uint32_t device, const otr_event_params_t* params,
                               otr_drv_event_t** out) {
  REQUIRE_DEVICE(driver, device, out);
  const uint32_t flags = params == NULL ? 0 : params->flags;
  REQUIRE_FLAGS(flags, OTR_EVENT_TIMING);
  otr_drv_event_t* event = malloc(sizeof *event);
  REQUIRE_MEMORY(event);
  *event = (otr_drv_event_t){.driver = driver, .timed = flags != 0};
  *out = event;
  return OTR_OK;
}

static otr_code_t event_destroy(otr_drv_event_t* event) {
  REQUIRE_HANDLE(event);
  unref(event->point); /* R11: waits under way have references of their own */
  free(event);
  return OTR_OK;
}

static otr_code_t event_record(otr_drv_event_t* event, otr_queue_t* queue) {
  REQUIRE_SAME_DRIVER(event, queue);
  struct command* point;
  const otr_code_t code = submit(queue, (struct command){.kind = POINT}, &point);
  if (code != OTR_OK) return code;
  lock(event->driver);
  struct command* before = event->point;
  event->point = point;
  unlock(event->driver);
  unref(before);
  return OTR_OK;
}

/* The point of an event with a reference: this one, wherever the event moves meanwhile (R21). */
static struct command* point_of(otr_drv_event_t* event) {
  lock(event->driver);
  struct command* point = event->point;
  if (point != NULL) point->refs++;
  unlock(event->driver);
  return point;
}

static otr_code_t event_query(otr_drv_event_t* event, otr_outcome_t* told) {
  REQUIRE_ASKED(event, told);
  return answer(event->driver, point_of(event), false, told, NULL);
}

static otr_code_t event_synchronize(otr_drv_event_t* event, otr_outcome_t* told) {
  REQUIRE_ASKED(event, told);
  return answer(event->driver, point_of(event), true, told, NULL);
}

static otr_code_t queue_wait_event(otr_queue_t* queue, otr_drv_event_t* event) {
  REQUIRE_SAME_DRIVER(event, queue);
  struct command* point = point_of(event);
  if (point == NULL) return OTR_OK; /* R22 */
  const otr_code_t code = submit(queue, (struct command){.kind = WAIT, .awaited = point}, NULL);
  if (code != OTR_OK) unref(point);
  return code;
}

/* ---- 7. The driver ------------------------------------------------------------------------------------------ */
/* One device, whatever becomes of the others (R58). */
static otr_code_t open_device(otr_driver_t* driver, uint32_t device, const otr_device_params_t* params) {
  REQUIRE_FOUND(driver, device);
  if (params != NULL && HAS(otr_device_params_t, params, flags)) REQUIRE_FLAGS(params->flags, 0u);
  pthread_mutex_lock(&driver->turn);
  const otr_code_t code = driver->open[device] ? OTR_OK : device_open(&driver->devices[device], device);
  if (code == OTR_OK) driver->open[device] = true;
  pthread_mutex_unlock(&driver->turn);
  return code;
}

/* Takes a queue of the device from the list, and tells its thread to end once it has nothing left; NULL: there is none. */
static otr_queue_t* take_queue(otr_driver_t* driver, uint32_t device) {
  lock(driver);
  otr_queue_t** link = &driver->queues;
  while (*link != NULL && (*link)->device != device) link = &(*link)->next;
  otr_queue_t* queue = *link;
  if (queue != NULL) {
    *link = queue->next;
    queue->ending = true;
    pthread_cond_signal(&queue->work);
  }
  unlock(driver);
  return queue;
}

/* No work and no memory of the device is left. */
static bool is_idle(otr_driver_t* driver, uint32_t device) {
  lock(driver);
  bool is = driver->used[device] == 0;
  for (otr_queue_t* queue = driver->queues; queue != NULL; queue = queue->next) is &= queue->device != device || queue->destroyed;
  unlock(driver);
  return is;
}

static otr_code_t close_device(otr_driver_t* driver, uint32_t device) {
  REQUIRE_OPEN(driver, device);
  REQUIRE(is_idle(driver, device), OTR_ERR_BUSY, "queues or memory of device %u are left", device);
  pthread_mutex_lock(&driver->turn);
  driver->open[device] = false;
  for (otr_queue_t* queue; (queue = take_queue(driver, device)) != NULL; free(queue)) {
    pthread_join(queue->thread, NULL); /* the library may be unloaded right after this call */
    pthread_cond_destroy(&queue->work);
    stream_close(&queue->stream);
  }
  device_close(&driver->devices[device]);
  pthread_mutex_unlock(&driver->turn);
  return OTR_OK;
}

static otr_code_t driver_close(otr_driver_t* driver) { /* R12: nothing of it is alive */
  REQUIRE_HANDLE(driver);
  for (uint32_t device = 0; device < driver->device_count; ++device) {
    const otr_code_t code = driver->open[device] ? close_device(driver, device) : OTR_OK;
    if (code != OTR_OK) return code;
  }
  pthread_cond_destroy(&driver->passed);
  pthread_mutex_destroy(&driver->lock);
  pthread_mutex_destroy(&driver->turn);
  free(driver);
  return OTR_OK;
}

static otr_code_t driver_open(const otr_open_params_t* params, otr_driver_t** out) {
  REQUIRE_POINTER(out);
  ull devices = 0, memory = 0;
  const char* text = params != NULL && HAS(otr_open_params_t, params, options) ? params->options : NULL;
  for (int used = 0; text != NULL && *text != '\0'; text += used + (text[used] == ',')) { /* "devices=2,memory=4096" */
    const bool known = (sscanf(text, "devices=%llu%n", &devices, &used) == 1 && devices - 1 < MAX_DEVICES) ||
                       (sscanf(text, "memory=%llu%n", &memory, &used) == 1 && memory - 1 < SIZE_MAX / 2);
    REQUIRE(known && (text[used] == ',' || text[used] == '\0'), OTR_ERR_INVALID_ARGUMENT,
            "option '%.*s' is unknown or out of range: devices=1 to %u, memory=1 to %llu (bytes)",
            (int)strcspn(text, ","), text, MAX_DEVICES, (ull)SIZE_MAX / 2);
  }
  otr_driver_t* driver = malloc(sizeof *driver);
  REQUIRE_MEMORY(driver);
  *driver = (otr_driver_t){.turn = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER,
                           .passed = PTHREAD_COND_INITIALIZER};
  uint32_t count = 0;
  const otr_code_t code = find_devices((uint32_t)devices, &count);
  if (code != OTR_OK) return free(driver), code;
  driver->device_count = count < MAX_DEVICES ? count : MAX_DEVICES;
  for (uint32_t device = 0; device < driver->device_count; ++device) {
    otr_device_properties_t about = {.struct_size = sizeof about};
    device_describe(device, &about);
    driver->alignment[device] = about.address_alignment;
    driver->memory[device] = memory != 0 && memory < about.total_memory ? memory : about.total_memory;
  }
  *out = driver;
  return OTR_OK;
}

static otr_code_t device_count(otr_driver_t* driver, uint32_t* count) {
  REQUIRE_HANDLE(driver);
  REQUIRE_POINTER(count);
  *count = driver->device_count;
  return OTR_OK;
}

static otr_code_t device_properties(otr_driver_t* driver, uint32_t device, otr_device_properties_t* out) {
  REQUIRE_FOUND(driver, device); /* R57: open or not */
  REQUIRE_POINTER(out);
  otr_device_properties_t all = {.struct_size = out->struct_size, .next = out->next};
  device_describe(device, &all);
  all.total_memory = driver->memory[device];
  memcpy(out, &all, all.struct_size < sizeof all ? all.struct_size : sizeof all); /* R1 */
  return OTR_OK;
}

/* ---- 8. Two optional groups --------------------------------------------------------------------------------- */
static otr_code_t memory_info(otr_driver_t* driver, uint32_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  REQUIRE_DEVICE(driver, device, free_bytes);
  REQUIRE_POINTER(total_bytes);
  lock(driver);
  *free_bytes = driver->memory[device] - driver->used[device];
  unlock(driver);
  *total_bytes = driver->memory[device];
  return OTR_OK;
}

static otr_code_t event_time(otr_drv_event_t* event, otr_outcome_t* told, uint64_t* nanoseconds) {
  REQUIRE_ASKED(event, told);
  REQUIRE_POINTER(nanoseconds);
  REQUIRE(event->timed, OTR_ERR_INVALID_ARGUMENT, "the event was created without OTR_EVENT_TIMING");
  struct command* point = point_of(event);
  REQUIRE(point != NULL, OTR_ERR_INVALID_ARGUMENT, "the event was never recorded and has no time");
  return answer(event->driver, point, false, told, nanoseconds);
}

static otr_code_t device_time(otr_driver_t* driver, uint32_t device, uint64_t* nanoseconds) {
  REQUIRE_DEVICE(driver, device, nanoseconds);
  *nanoseconds = device_clock(&driver->devices[device]); /* the clock of the events */
  return OTR_OK;
}

static const otr_memory_info_api_t memory_info_api = {sizeof memory_info_api, memory_info};
static const otr_timing_api_t timing_api = {sizeof timing_api, event_time, device_time};

/* ---- 9. The table: what is not named is NULL, and Outrigger does without it --------------------------------- */
static const otr_driver_api_t table = {
    .struct_size = sizeof table, .api_major = OTR_DRIVER_API_MAJOR, .api_minor = OTR_DRIVER_API_MINOR,
    .name = DRIVER_NAME, .vendor = DRIVER_VENDOR, .version = DRIVER_VERSION,
    .open = driver_open, .close = driver_close, .last_error = last_error,
    .device_count = device_count, .device_properties = device_properties,
    .device_open = open_device, .device_close = close_device,
    .memory_alloc = memory_alloc, .memory_free = memory_free, .memory_info = &memory_info_api,
    .queue_create = queue_create, .queue_destroy = queue_destroy, .queue_query = queue_query,
    .queue_synchronize = queue_synchronize, .queue_wait_event = queue_wait_event,
    .event_create = event_create, .event_destroy = event_destroy, .event_record = event_record,
    .event_query = event_query, .event_synchronize = event_synchronize,
    .copy = copy, .fill = fill, .host_call = host_call, .timing = &timing_api,
};

otr_code_t otr_driver_get_api(const otr_host_info_t* host, const otr_driver_api_t** api) {
  REQUIRE_POINTER(host);
  REQUIRE_POINTER(api);
  *api = &table; /* also for another major, so that the host can report both (R2) */
  REQUIRE(HAS(otr_host_info_t, host, api_major) && host->api_major == OTR_DRIVER_API_MAJOR, OTR_ERR_VERSION,
          "this driver speaks version %d of the contract", OTR_DRIVER_API_MAJOR);
  return OTR_OK;
}
