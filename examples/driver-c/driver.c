/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A complete driver for Outrigger in one file, the template that a vendor copies. Its device is a piece of host
 * memory; each of its queues is a list of commands with one thread that runs them. R1 to R30 in comments are the
 * rules of outrigger/driver.h, named where they are met; README.md says what to replace first. The file needs
 * C11 and POSIX threads, and must never need more.
 *
 * One lock per driver guards all of its objects. It is held for a few instructions at a time, and never while a
 * command runs, so that queues stay independent of each other (R17).
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

#define ALIGNMENT 64u       /* bytes, of each allocation (R14) */
#define MAX_DEVICES 64u
#define BACKLOG_LIMIT 4096u /* commands in a queue beyond which submissions are slowed down */

/* Is `member` within what the caller was compiled with? (R1) */
#define HAS(type, o, member) ((o)->struct_size >= offsetof(type, member) + sizeof((o)->member))

/* ---- 1. Errors ----------------------------------------------------------------------------------- */
static _Thread_local char last_error_text[256]; /* R5: empty before the first failure */
static const char* last_error(void) { return last_error_text; }

__attribute__((format(printf, 2, 3))) static otr_code_t fail(otr_code_t code, const char* format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(last_error_text, sizeof last_error_text, format, args);
  va_end(args);
  return code;
}

/* Each of these leaves the function, with a code and a text, where its condition does not hold. */
#define REQUIRE(condition, ...) do { if (!(condition)) return fail(__VA_ARGS__); } while (0)
#define REQUIRE_HANDLE(handle) REQUIRE(handle != NULL, OTR_ERR_INVALID_HANDLE, "the " #handle " is NULL")
#define REQUIRE_POINTER(p) REQUIRE(p != NULL, OTR_ERR_INVALID_ARGUMENT, #p " is NULL and must not be")
#define REQUIRE_MEMORY(p) REQUIRE(p != NULL, OTR_ERR_OUT_OF_HOST_MEMORY, "no host memory left for: " #p) /* R29 */
#define REQUIRE_DEVICE(driver, index, out) REQUIRE_HANDLE(driver); REQUIRE_POINTER(out); \
  REQUIRE(index < driver->device_count, OTR_ERR_INVALID_DEVICE, \
          "there is no device %u: the driver has %u, counted from 0", index, driver->device_count)
#define REQUIRE_SAME_DRIVER(event, queue) REQUIRE_HANDLE(event); REQUIRE_HANDLE(queue); \
  REQUIRE(event->driver == queue->driver, OTR_ERR_INVALID_HANDLE, "event and queue are of two drivers")

typedef unsigned long long ull; /* for printf */

/* ---- 2. Objects ---------------------------------------------------------------------------------- */
struct otr_driver {
  uint32_t device_count;
  uint64_t memory_limit; /* bytes of each device */
  pthread_mutex_t lock;  /* guards all that follows, and the driver's queues, events and points */
  uint64_t used[MAX_DEVICES];
  struct allocation* allocations; /* newest first */
  _Atomic uint64_t live; /* allocations, queues and events that the host has; needs no lock */
  uint64_t workers; /* threads that run */
  pthread_cond_t worker_exit;
  otr_queue_t* exited; /* queues whose thread has ended and is to be joined */
};

/* The first failure of a queue. It keeps its origin when events carry it on to other queues. OTR_OK: none. */
struct failure { otr_code_t code; const otr_queue_t* queue; uint64_t command; };

/* What an event holds: a place on the timeline of a queue, passed once `completed` is at `value`. It keeps the
 * failure and the time of that moment, so that neither a synchronize of the queue nor another recording of the
 * event changes it for those who wait for it (R21, R23). */
struct point {
  size_t refs; /* of the event, of waits under way, and of the queue until it has passed */
  otr_queue_t* queue;
  uint64_t value, time; /* time in nanoseconds */
  struct failure failure;
  struct point* next; /* of the same queue, with the same or a later value */
};

struct command {
  enum { COPY, FILL, HOST_CALL, WAIT } kind;
  void* dst;
  const void* src;
  uint64_t size;
  unsigned char pattern[16];
  uint32_t pattern_size;
  otr_host_fn function;
  void* user;
  uint32_t flags; /* OTR_HOST_CALL_* */
  struct point* point; /* of a wait, with one reference; or NULL */
  struct command* next;
};

struct otr_queue {
  size_t refs; /* of the host, of the worker, and of each point */
  otr_driver_t* driver; uint32_t device;
  pthread_cond_t work;     /* for the worker: a command has come, or the queue is closing */
  pthread_cond_t progress; /* for those who wait: a point has been passed */
  struct command *first, *last;
  struct point *first_point, *last_point; /* in order, not passed yet */
  uint64_t submitted, completed;
  struct failure failure;
  bool closing;
  pthread_t worker;
  otr_queue_t* next_exited;
};

struct otr_drv_event {
  otr_driver_t* driver;
  bool timed;
  struct point* point; /* NULL: never recorded */
};

static void lock(otr_driver_t* driver) { pthread_mutex_lock(&driver->lock); }
static void unlock(otr_driver_t* driver) { pthread_mutex_unlock(&driver->lock); }

static uint64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* ---- 3. Memory: replace aligned_alloc and free by what your device has ---------------------------- */
/* A list will do: the allocator above the driver asks for few and large blocks. */
struct allocation {
  uint64_t address, size;
  uint32_t device;
  struct allocation* next;
};

/* The link to the allocation around `address`; it holds NULL where there is none. Under the lock. */
static struct allocation** find_allocation(otr_driver_t* driver, uint64_t address) {
  struct allocation** link = &driver->allocations;
  while (*link != NULL && address - (*link)->address >= (*link)->size) link = &(*link)->next;
  return link;
}

/* R7: do these bytes lie within one allocation? */
static otr_code_t check_range(otr_driver_t* driver, uint64_t address, uint64_t size) {
  lock(driver);
  const struct allocation* found = *find_allocation(driver, address);
  const bool valid = found != NULL && size <= found->size - (address - found->address); /* R13 */
  unlock(driver);
  REQUIRE(valid, OTR_ERR_INVALID_ARGUMENT, "the %llu bytes at 0x%llx are not within one allocation of a device",
          (ull)size, (ull)address);
  return OTR_OK;
}

static otr_code_t memory_alloc(otr_driver_t* driver, uint32_t device, uint64_t size, otr_address_t* address) {
  REQUIRE_DEVICE(driver, device, address);
  REQUIRE(size > 0, OTR_ERR_INVALID_ARGUMENT, "the size is 0 and must be larger");
  struct allocation* allocation = malloc(sizeof *allocation);
  REQUIRE_MEMORY(allocation);
  lock(driver);
  const uint64_t left = driver->memory_limit - driver->used[device]; /* less than SIZE_MAX / 2 */
  void* memory = size <= left ? aligned_alloc(ALIGNMENT, (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT) : NULL;
  const bool fits = memory != NULL;
  if (fits) {
    *allocation = (struct allocation){(uintptr_t)memory, size, device, driver->allocations};
    driver->allocations = allocation;
    driver->used[device] += size;
    driver->live++;
  }
  unlock(driver);
  if (!fits) free(allocation);
  REQUIRE(fits, OTR_ERR_OUT_OF_MEMORY, "%llu bytes do not fit on device %u: %llu of %llu are free", (ull)size,
          device, (ull)left, (ull)driver->memory_limit);
  *address = (uintptr_t)memory; /* R4: written on success only. R15: it is the host pointer */
  return OTR_OK;
}

static otr_code_t memory_free(otr_driver_t* driver, otr_address_t address) {
  REQUIRE_HANDLE(driver);
  lock(driver);
  struct allocation **link = find_allocation(driver, address), *found = *link;
  const bool valid = found != NULL && found->address == address;
  if (valid) {
    *link = found->next;
    driver->used[found->device] -= found->size;
    driver->live--;
  }
  unlock(driver);
  REQUIRE(valid, OTR_ERR_INVALID_ARGUMENT, "0x%llx is not the address of an allocation", (ull)address);
  free(found);
  free((void*)(uintptr_t)address); /* R12: the work that used it has finished */
  return OTR_OK;
}

static otr_code_t memory_info(otr_driver_t* driver, uint32_t device, uint64_t* free_bytes,
                              uint64_t* total_bytes) {
  REQUIRE_DEVICE(driver, device, free_bytes);
  REQUIRE_POINTER(total_bytes);
  lock(driver);
  *free_bytes = driver->memory_limit - driver->used[device];
  unlock(driver);
  *total_bytes = driver->memory_limit;
  return OTR_OK;
}

/* ---- 4. The timeline of a queue: all of it under the lock of the driver ---------------------------- */
static void queue_unref(otr_queue_t* queue) {
  if (--queue->refs > 0) return;
  pthread_cond_destroy(&queue->progress);
  pthread_cond_destroy(&queue->work);
  free(queue);
}

static void point_unref(struct point* point) {
  if (point == NULL || --point->refs > 0) return;
  queue_unref(point->queue);
  free(point);
}

/* Puts the point behind all work of the queue so far (R21). */
static void mark(otr_queue_t* queue, struct point* point) {
  *point = (struct point){1, queue, queue->submitted, now(), queue->failure, NULL};
  if (queue->completed == queue->submitted) return; /* it has passed already */
  point->refs++;
  if (queue->first_point == NULL) queue->first_point = point;
  else queue->last_point->next = point;
  queue->last_point = point;
}

/* One command has finished. */
static void advance(otr_queue_t* queue) {
  queue->completed++;
  for (struct point* point; (point = queue->first_point) != NULL && point->value <= queue->completed;) {
    queue->first_point = point->next;
    point->failure = queue->failure;
    point->time = now();
    point_unref(point);
    pthread_cond_broadcast(&queue->progress);
  }
}

/* What a query of the point answers. Outrigger reads the command out of the end of the text (R5). */
static otr_code_t answer(const struct point* point) {
  if (point == NULL) return OTR_OK; /* R22 */
  if (point->queue->completed < point->value) return OTR_NOT_READY;
  const struct failure failure = point->failure;
  REQUIRE(failure.code == OTR_OK, failure.code, "a host call of queue %p returned %d [label= submission=%llu]",
          (const void*)failure.queue, failure.code, (ull)failure.command);
  return OTR_OK;
}

/* Waits until the point has been passed, and then gives its answer. Others get the lock meanwhile. */
static otr_code_t await(const struct point* point) {
  while (answer(point) == OTR_NOT_READY) pthread_cond_wait(&point->queue->progress, &point->queue->driver->lock);
  return answer(point);
}

/* ---- 5. Execution: replace this by your hardware queue --------------------------------------------- */
static void fill_bytes(unsigned char* dst, uint64_t size, const unsigned char* pattern, uint32_t n) {
  memcpy(dst, pattern, n);
  for (uint64_t done = n; done < size; done *= 2) { /* R28: what is done grows as a multiple of n */
    memcpy(dst + done, dst, done < size - done ? done : size - done);
  }
}

/* Runs a command without the lock, or does what is left of it in a queue that has failed (R20). */
static otr_code_t execute(const struct command* command, otr_code_t upstream) {
  if (command->kind == HOST_CALL) { /* R27: exactly once, so also after a failure */
    const otr_code_t code = command->function(command->user, upstream);
    if (command->flags & OTR_HOST_CALL_CANNOT_FAIL) return OTR_OK;
    return code == OTR_NOT_READY ? OTR_ERR_EXECUTION : code; /* which no query could tell from "wait" */
  }
  if (upstream != OTR_OK) return OTR_OK;
  if (command->kind == COPY) memcpy(command->dst, command->src, command->size);
  else fill_bytes(command->dst, command->size, command->pattern, command->pattern_size);
  return OTR_OK;
}

static void* worker_main(void* argument) {
  otr_queue_t* queue = argument;
  otr_driver_t* driver = queue->driver;
  lock(driver);
  for (;;) {
    while (queue->first == NULL && !queue->closing) pthread_cond_wait(&queue->work, &driver->lock);
    struct command* command = queue->first;
    if (command == NULL) break; /* R11: closing, and all work is done */
    struct failure outcome = {OTR_OK, queue, queue->completed + 1};
    if (command->kind != WAIT) {
      const otr_code_t upstream = queue->failure.code;
      unlock(driver);
      outcome.code = execute(command, upstream);
      lock(driver);
    } else if (await(command->point) != OTR_OK) {
      /* R24. A queue that has failed waits as well: host calls behind it may free what the wait guards. */
      outcome = command->point->failure;
    }
    point_unref(command->point);
    if (queue->failure.code == OTR_OK) queue->failure = outcome; /* R20: the first one */
    queue->first = command->next;
    free(command);
    advance(queue); /* R16: who sees this sees all effects so far, by the lock */
  }
  driver->workers--;
  queue->next_exited = driver->exited;
  driver->exited = queue;
  pthread_cond_signal(&driver->worker_exit);
  unlock(driver);
  return NULL;
}

/* Joins the threads of destroyed queues: the library could be unloaded while they still end. */
static void join_exited(otr_driver_t* driver, bool all) {
  lock(driver);
  while (all && driver->workers > 0) pthread_cond_wait(&driver->worker_exit, &driver->lock);
  for (otr_queue_t* queue; (queue = driver->exited) != NULL;) {
    driver->exited = queue->next_exited;
    unlock(driver);
    pthread_join(queue->worker, NULL);
    lock(driver);
    queue_unref(queue);
  }
  unlock(driver);
}

/* `awaited` is the event of a WAIT, and NULL for all other commands. */
static otr_code_t submit(otr_queue_t* queue, struct command what, const otr_drv_event_t* awaited) {
  struct command* command = malloc(sizeof *command);
  REQUIRE_MEMORY(command); /* R4: nothing was submitted */
  *command = what;
  lock(queue->driver);
  if (queue->submitted - queue->completed >= BACKLOG_LIMIT) {
    /* R17: a full queue slows its callers down and never stops them, for what keeps it full may be a host
     * call that waits for this very thread. */
    unlock(queue->driver);
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    lock(queue->driver);
  }
  if (awaited != NULL) command->point = awaited->point; /* R21: this one, wherever the event moves later */
  if (command->point != NULL) command->point->refs++;
  if (queue->first == NULL) queue->first = command;
  else queue->last->next = command;
  queue->last = command;
  queue->submitted++;
  pthread_cond_signal(&queue->work); /* R18: it starts at once */
  unlock(queue->driver);
  return OTR_OK;
}

/* ---- 6. Queues ------------------------------------------------------------------------------------ */
static otr_code_t queue_create(otr_driver_t* driver, uint32_t device, const otr_queue_params_t* params,
                               otr_queue_t** out) {
  REQUIRE_DEVICE(driver, device, out);
  /* R3: nothing in `next` is known to us. There is one priority, to which all others are clamped. */
  REQUIRE(params == NULL || !HAS(otr_queue_params_t, params, flags) || params->flags == 0,
          OTR_ERR_INVALID_ARGUMENT, "queue flags 0x%x are unknown: pass 0", params->flags);
  join_exited(driver, false);
  otr_queue_t* queue = malloc(sizeof *queue);
  REQUIRE_MEMORY(queue);
  *queue = (otr_queue_t){.refs = 2, .driver = driver, .device = device,
                         .work = PTHREAD_COND_INITIALIZER, .progress = PTHREAD_COND_INITIALIZER};
  lock(driver);
  const bool started = pthread_create(&queue->worker, NULL, worker_main, queue) == 0;
  driver->workers += started;
  driver->live += started;
  unlock(driver);
  if (!started) free(queue);
  REQUIRE(started, OTR_ERR_OUT_OF_HOST_MEMORY, "the host has no thread left for a queue");
  *out = queue;
  return OTR_OK;
}

static otr_code_t queue_destroy(otr_queue_t* queue) {
  REQUIRE_HANDLE(queue);
  otr_driver_t* driver = queue->driver;
  lock(driver);
  driver->live--;
  queue->closing = true; /* R11: the worker ends by itself once it has run all there is */
  pthread_cond_signal(&queue->work);
  queue_unref(queue);
  unlock(driver);
  return OTR_OK;
}

static otr_code_t queue_query(otr_queue_t* queue) {
  REQUIRE_HANDLE(queue);
  lock(queue->driver);
  const otr_code_t code = answer(&(struct point){.queue = queue, .value = queue->submitted /* R19 */,
                                                 .failure = queue->failure /* R20: and it stays */});
  unlock(queue->driver);
  return code;
}

static otr_code_t queue_synchronize(otr_queue_t* queue) {
  REQUIRE_HANDLE(queue);
  struct point end; /* the queue has a reference until it has passed, and this function has one for ever */
  lock(queue->driver);
  mark(queue, &end);
  const otr_code_t code = await(&end);
  if (queue->failure.queue == end.failure.queue && queue->failure.command == end.failure.command) {
    queue->failure.code = OTR_OK; /* R20: reported here, so the queue takes work again */
  }
  unlock(queue->driver);
  return code;
}

static otr_code_t copy(otr_queue_t* queue, uint64_t dst, uint64_t src, uint64_t size, otr_copy_kind_t kind) {
  REQUIRE_HANDLE(queue);
  REQUIRE(kind >= OTR_COPY_HOST_TO_DEVICE && kind <= OTR_COPY_HOST_TO_HOST, OTR_ERR_INVALID_ARGUMENT,
          "copy kind %u is unknown: they are 1 to 4", kind);
  if (size == 0) return OTR_OK; /* R25: to do nothing is in order anywhere */
  REQUIRE(dst != 0 && src != 0, OTR_ERR_INVALID_ARGUMENT, "the source or the destination is NULL");
  REQUIRE(dst - src >= size && src - dst >= size, OTR_ERR_INVALID_ARGUMENT, /* R26 */
          "the %llu bytes at 0x%llx and at 0x%llx overlap", (ull)size, (ull)src, (ull)dst);
  const bool from_device = kind == OTR_COPY_DEVICE_TO_HOST || kind == OTR_COPY_DEVICE_TO_DEVICE;
  const bool to_device = kind == OTR_COPY_HOST_TO_DEVICE || kind == OTR_COPY_DEVICE_TO_DEVICE;
  otr_code_t code = from_device ? check_range(queue->driver, src, size) : OTR_OK;
  if (code == OTR_OK && to_device) code = check_range(queue->driver, dst, size);
  if (code != OTR_OK) return code;
  return submit(queue, (struct command){.kind = COPY, .dst = (void*)(uintptr_t)dst,
                                        .src = (const void*)(uintptr_t)src, .size = size}, NULL);
}

static otr_code_t fill(otr_queue_t* queue, otr_address_t dst, uint64_t size, const void* pattern,
                       uint32_t pattern_size) {
  REQUIRE_HANDLE(queue);
  REQUIRE(pattern_size > 0 && pattern_size <= 16 && (pattern_size & (pattern_size - 1)) == 0, /* R28 */
          OTR_ERR_INVALID_ARGUMENT, "a pattern has 1, 2, 4, 8 or 16 bytes, not %u", pattern_size);
  REQUIRE(size % pattern_size == 0, OTR_ERR_INVALID_ARGUMENT,
          "the size, %llu, is not a multiple of the %u bytes of the pattern", (ull)size, pattern_size);
  if (size == 0) return OTR_OK; /* R25 */
  REQUIRE_POINTER(pattern);
  const otr_code_t code = check_range(queue->driver, dst, size);
  if (code != OTR_OK) return code;
  struct command command = {
      .kind = FILL, .dst = (void*)(uintptr_t)dst, .size = size, .pattern_size = pattern_size};
  memcpy(command.pattern, pattern, pattern_size); /* R10: the caller's bytes may go after the call */
  return submit(queue, command, NULL);
}

static otr_code_t host_call(otr_queue_t* queue, otr_host_fn function, void* user, uint32_t flags) {
  REQUIRE_HANDLE(queue);
  REQUIRE_POINTER(function);
  REQUIRE((flags & ~OTR_HOST_CALL_CANNOT_FAIL) == 0, OTR_ERR_INVALID_ARGUMENT, "host call flags 0x%x are unknown", flags);
  return submit(queue, (struct command){.kind = HOST_CALL, .function = function, .user = user, .flags = flags}, NULL);
}

/* ---- 7. Events ------------------------------------------------------------------------------------ */
static otr_code_t event_create(otr_driver_t* driver, uint32_t device, uint32_t flags, otr_drv_event_t** out) {
  REQUIRE_DEVICE(driver, device, out);
  REQUIRE((flags & ~OTR_EVENT_TIMING) == 0, OTR_ERR_INVALID_ARGUMENT, "event flags 0x%x are unknown", flags);
  otr_drv_event_t* event = malloc(sizeof *event);
  REQUIRE_MEMORY(event);
  *event = (otr_drv_event_t){.driver = driver, .timed = flags != 0};
  driver->live++;
  *out = event;
  return OTR_OK;
}

static otr_code_t event_destroy(otr_drv_event_t* event) {
  REQUIRE_HANDLE(event);
  lock(event->driver);
  point_unref(event->point); /* R11: waits under way have references of their own */
  event->driver->live--;
  unlock(event->driver);
  free(event);
  return OTR_OK;
}

static otr_code_t event_record(otr_drv_event_t* event, otr_queue_t* queue) {
  REQUIRE_SAME_DRIVER(event, queue);
  struct point* point = malloc(sizeof *point);
  REQUIRE_MEMORY(point);
  lock(queue->driver);
  mark(queue, point);
  queue->refs++;
  point_unref(event->point);
  event->point = point;
  unlock(queue->driver);
  return OTR_OK;
}

static otr_code_t event_query(otr_drv_event_t* event) {
  REQUIRE_HANDLE(event);
  lock(event->driver);
  const otr_code_t code = answer(event->point);
  unlock(event->driver);
  return code;
}

static otr_code_t event_synchronize(otr_drv_event_t* event) {
  REQUIRE_HANDLE(event);
  lock(event->driver);
  struct point* point = event->point; /* this one, wherever the event moves meanwhile */
  if (point != NULL) point->refs++;
  const otr_code_t code = await(point);
  point_unref(point);
  unlock(event->driver);
  return code;
}

static otr_code_t queue_wait_event(otr_queue_t* queue, otr_drv_event_t* event) {
  REQUIRE_SAME_DRIVER(event, queue);
  return submit(queue, (struct command){.kind = WAIT}, event);
}

static otr_code_t event_time(otr_drv_event_t* event, uint64_t* nanoseconds) {
  REQUIRE_HANDLE(event);
  REQUIRE_POINTER(nanoseconds);
  REQUIRE(event->timed, OTR_ERR_INVALID_ARGUMENT, "the event was created without OTR_EVENT_TIMING");
  lock(event->driver);
  const struct point* point = event->point;
  const otr_code_t code = answer(point);
  if (point != NULL && code == OTR_OK) *nanoseconds = point->time;
  unlock(event->driver);
  REQUIRE(point != NULL, OTR_ERR_INVALID_ARGUMENT, "the event was never recorded and has no time");
  return code;
}

static otr_code_t device_time(otr_driver_t* driver, uint32_t device, uint64_t* nanoseconds) {
  REQUIRE_DEVICE(driver, device, nanoseconds);
  *nanoseconds = now(); /* the clock of the events */
  return OTR_OK;
}

/* ---- 8. The driver -------------------------------------------------------------------------------- */
/* Such as "devices=2,memory=1073741824". */
static otr_code_t parse_options(const char* text, ull* devices, ull* memory) {
  for (int used = 0; *text != '\0'; text += used + (text[used] == ',')) {
    const bool known = sscanf(text, "devices=%llu%n", devices, &used) == 1 ||
                       sscanf(text, "memory=%llu%n", memory, &used) == 1;
    REQUIRE(known && (text[used] == ',' || text[used] == '\0') && *devices - 1 < MAX_DEVICES &&
                *memory - 1 < SIZE_MAX / 2,
            OTR_ERR_INVALID_ARGUMENT, "option '%.*s' is unknown or out of range: there are devices=1 to %u, and "
            "memory=1 to %llu (bytes)", (int)strcspn(text, ","), text, MAX_DEVICES, (ull)SIZE_MAX / 2);
  }
  return OTR_OK;
}

static otr_code_t driver_open(const otr_open_params_t* params, otr_driver_t** out) {
  REQUIRE_POINTER(out);
  ull devices = 1, memory = (ull)sysconf(_SC_PHYS_PAGES) * (ull)sysconf(_SC_PAGESIZE) / 2;
  if (params != NULL && HAS(otr_open_params_t, params, options) && params->options != NULL) {
    const otr_code_t code = parse_options(params->options, &devices, &memory);
    if (code != OTR_OK) return code;
  }
  otr_driver_t* driver = malloc(sizeof *driver);
  REQUIRE_MEMORY(driver);
  *driver = (otr_driver_t){.device_count = (uint32_t)devices, .memory_limit = memory,
                           .lock = PTHREAD_MUTEX_INITIALIZER, .worker_exit = PTHREAD_COND_INITIALIZER};
  *out = driver;
  return OTR_OK;
}

static otr_code_t driver_close(otr_driver_t* driver) {
  REQUIRE_HANDLE(driver);
  REQUIRE(driver->live == 0, OTR_ERR_BUSY, /* R12 */
          "%llu allocations, queues and events are alive: the driver is closed after them", (ull)driver->live);
  join_exited(driver, true);
  pthread_cond_destroy(&driver->worker_exit);
  pthread_mutex_destroy(&driver->lock);
  free(driver);
  return OTR_OK;
}

static otr_code_t device_count(otr_driver_t* driver, uint32_t* count) {
  REQUIRE_HANDLE(driver);
  REQUIRE_POINTER(count);
  *count = driver->device_count;
  return OTR_OK;
}

static otr_code_t device_properties(otr_driver_t* driver, uint32_t device, otr_device_properties_t* out) {
  REQUIRE_DEVICE(driver, device, out);
  otr_device_properties_t all = {.struct_size = out->struct_size, .next = out->next, .vendor = "Outrigger",
                                 .flags = OTR_DEVICE_HOST_VISIBLE, .total_memory = driver->memory_limit,
                                 .address_alignment = ALIGNMENT};
  snprintf(all.name, sizeof all.name, "Outrigger example device %u", device);
  memcpy(out, &all, all.struct_size < sizeof all ? all.struct_size : sizeof all); /* R1 */
  return OTR_OK;
}

/* ---- 9. The table: what is not named is NULL, and Outrigger does without it ------------------------ */
static const otr_memory_info_api_t memory_info_api = {sizeof memory_info_api, memory_info};
static const otr_timing_api_t timing_api = {sizeof timing_api, event_time, device_time};

static const otr_driver_api_t table = {
    .struct_size = sizeof table, .api_major = OTR_DRIVER_API_MAJOR, .api_minor = OTR_DRIVER_API_MINOR,
    .name = "example", .vendor = "Outrigger", .version = "1.0.0",
    .open = driver_open, .close = driver_close, .last_error = last_error,
    .device_count = device_count, .device_properties = device_properties,
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
