/* DRAFT of the host contract; the final file is generated from ffi/. */
#ifndef OUTRIGGER_H
#define OUTRIGGER_H
#include "base.h"
#ifdef __cplusplus
extern "C" {
#endif
/* Ownership: every call returns a status: NULL on success, else an object to give to otr_status_free.
   Outputs are written only on success. Strings handed out by otr_string_* results are freed with otr_string_free.
   Handles (u64) are generational: 0 = never valid; stale or foreign = OTR_ERR_INVALID_HANDLE. Any thread. */
typedef struct otr_status otr_status_t;
typedef uint64_t otr_stream_t;
typedef uint64_t otr_event_t;
typedef uint64_t otr_generator_t;
typedef uint64_t otr_observer_t;
typedef uint32_t otr_operator_id_t;

/* status */
otr_code_t otr_status_code(const otr_status_t*);          /* NULL -> OTR_OK */
const char* otr_status_message(const otr_status_t*);      /* never NULL; lives as long as the status */
const char* otr_status_operator(const otr_status_t*);     /* NULL where it does not apply */
uint64_t otr_status_stream(const otr_status_t*);          /* 0 where it does not apply */
uint64_t otr_status_submission(const otr_status_t*);      /* index of the failed command in its stream, 0: n/a */
void otr_status_free(otr_status_t*);
void otr_string_free(char*);

/* runtime. Drivers: OUTRIGGER_DRIVER="host?face=discrete&devices=2,/path/libacme.so" loaded at first use (default "host"). */
const char* otr_version(void);
otr_status_t* otr_runtime_init(void);                     /* idempotent; otherwise done by the first call that needs it */
otr_status_t* otr_driver_load(const char* spec);          /* adds the devices of one more driver */
otr_status_t* otr_load_report(char** json_out);           /* what was tried, taken, refused and why */
otr_status_t* otr_device_count(uint32_t* out);
typedef struct otr_device_info {
  size_t struct_size; char name[128]; char vendor[64]; char driver[64]; char driver_version[32];
  uint64_t total_memory; uint32_t host_visible; uint32_t address_alignment; uint32_t compute_units;
  int32_t priority_lowest; int32_t priority_highest; uint32_t driver_index; uint32_t reserved;
} otr_device_info_t;
otr_status_t* otr_device_info(uint32_t device, otr_device_info_t* out);
otr_status_t* otr_device_current(uint32_t* out);          /* per thread */
otr_status_t* otr_device_set_current(uint32_t device);
otr_status_t* otr_device_synchronize(uint32_t device);

/* memory */
otr_status_t* otr_memory_alloc(uint32_t device, uint64_t size, otr_stream_t stream, otr_address_t* out); /* size 0 -> address 0 */
otr_status_t* otr_memory_free(otr_address_t address);     /* any time; reuse is in stream order. 0 is ignored */
otr_status_t* otr_memory_record_stream(otr_address_t address, otr_stream_t stream);
typedef struct otr_pointer_info { size_t struct_size; otr_address_t base; uint64_t size; otr_stream_t stream; uint32_t device; uint32_t reserved; } otr_pointer_info_t;
otr_status_t* otr_memory_pointer_info(otr_address_t any_address_inside, otr_pointer_info_t* out); /* NOT_FOUND if not ours */
otr_status_t* otr_memory_empty_cache(uint32_t device);
otr_status_t* otr_memory_info(uint32_t device, uint64_t* free_bytes, uint64_t* total_bytes);
typedef struct otr_stat { uint64_t current, peak, allocated, freed; } otr_stat_t;
typedef struct otr_memory_stats { size_t struct_size;
  otr_stat_t allocated_bytes, reserved_bytes, requested_bytes, active_bytes, inactive_split_bytes;
  otr_stat_t allocations, segments, active, inactive_split;
  uint64_t device_allocs, device_frees, alloc_retries, ooms, sync_all_streams, reserved; } otr_memory_stats_t;
otr_status_t* otr_memory_stats(uint32_t device, otr_memory_stats_t* out);
otr_status_t* otr_memory_reset_peak(uint32_t device);
otr_status_t* otr_memory_reset_accumulated(uint32_t device);
otr_status_t* otr_memory_set_limit(uint32_t device, uint64_t bytes); /* UINT64_MAX: none */
otr_status_t* otr_memory_snapshot(uint32_t device, char** json_out);
/* pinned host memory, cached; a freed block is reused only after streams recorded on it have passed */
otr_status_t* otr_host_alloc(uint64_t size, void** out);
otr_status_t* otr_host_free(void*);
otr_status_t* otr_host_record_stream(void*, otr_stream_t);
otr_status_t* otr_host_is_pinned(const void* any_pointer_inside, uint32_t* yes);
otr_status_t* otr_host_empty_cache(void);

/* streams. Pool streams are owned by the runtime and live forever. */
otr_status_t* otr_stream_default(uint32_t device, otr_stream_t* out);
otr_status_t* otr_stream_from_pool(uint32_t device, int32_t priority, otr_stream_t* out);
otr_status_t* otr_stream_create(uint32_t device, int32_t priority, otr_stream_t* out);
otr_status_t* otr_stream_destroy(otr_stream_t);           /* does not wait; work already submitted runs */
otr_status_t* otr_stream_device(otr_stream_t, uint32_t* out);
otr_status_t* otr_stream_priority(otr_stream_t, int32_t* out);
otr_status_t* otr_stream_current(uint32_t device, otr_stream_t* out); /* of this thread */
otr_status_t* otr_stream_set_current(otr_stream_t);       /* for the stream's device; does not change the current device */
otr_status_t* otr_stream_query(otr_stream_t, uint32_t* finished);
otr_status_t* otr_stream_synchronize(otr_stream_t);
otr_status_t* otr_stream_flush(otr_stream_t);
otr_status_t* otr_stream_wait_event(otr_stream_t, otr_event_t);

/* events */
#define OTR_EVENT_TIMED 1u
otr_status_t* otr_event_create(uint32_t device, uint32_t flags, otr_event_t* out);
otr_status_t* otr_event_destroy(otr_event_t);
otr_status_t* otr_event_record(otr_event_t, otr_stream_t);
otr_status_t* otr_event_query(otr_event_t, uint32_t* finished);
otr_status_t* otr_event_synchronize(otr_event_t);
otr_status_t* otr_event_elapsed(otr_event_t start, otr_event_t end, double* milliseconds);

/* commands */
otr_status_t* otr_copy(otr_stream_t, uint64_t dst, uint64_t src, uint64_t size, otr_copy_kind_t kind); /* ranges on devices are checked */
otr_status_t* otr_copy_peer(otr_stream_t, otr_address_t dst, otr_address_t src, uint64_t size);       /* two devices, any drivers */
otr_status_t* otr_fill(otr_stream_t, otr_address_t dst, uint64_t size, const void* pattern, uint32_t pattern_size);
otr_status_t* otr_host_call(otr_stream_t, otr_host_fn fn, void* user);

/* operators: docs/operators.md */
otr_status_t* otr_operator_find(const char* name, otr_operator_id_t* out);
otr_status_t* otr_operator_call(otr_stream_t, otr_operator_id_t, const otr_operator_call_t*); /* UNSUPPORTED: no kernel for this signature; nothing was done */

/* fallback accounting (an adapter that runs an operator on the CPU reports it here). OUTRIGGER_FALLBACK=silent|warn|error */
#define OTR_FALLBACK_SILENT 0u
#define OTR_FALLBACK_WARN 1u
#define OTR_FALLBACK_ERROR 2u
otr_status_t* otr_fallback_begin(const char* op, uint32_t* first_warning); /* fails with UNSUPPORTED in mode error; *first_warning=1: mode warn and op not seen before */
otr_status_t* otr_fallback_end(const char* op, uint64_t nanoseconds, uint64_t staged_bytes);
otr_status_t* otr_fallback_set_mode(uint32_t mode);
otr_status_t* otr_fallback_mode(uint32_t* out);
otr_status_t* otr_fallback_report(char** json_out);       /* [{"operator","calls","seconds","staged_bytes"}], most expensive first */
otr_status_t* otr_fallback_reset(void);

/* generators: Philox 4x32-10, (seed, offset) */
otr_status_t* otr_generator_create(uint32_t device, otr_generator_t* out);
otr_status_t* otr_generator_default(uint32_t device, otr_generator_t* out); /* owned by the runtime */
otr_status_t* otr_generator_destroy(otr_generator_t);
otr_status_t* otr_generator_seed(otr_generator_t, uint64_t seed);           /* offset = 0 */
otr_status_t* otr_generator_state(otr_generator_t, uint64_t* seed, uint64_t* offset);
otr_status_t* otr_generator_set_state(otr_generator_t, uint64_t seed, uint64_t offset);
otr_status_t* otr_generator_reserve(otr_generator_t, uint64_t count, uint64_t* seed, uint64_t* offset); /* takes `count` 128-bit outputs; returns where they start */

/* observers: called on the thread that caused the event, outside of all locks */
#define OTR_OBSERVE_ALLOC 1u
#define OTR_OBSERVE_FREE 2u
#define OTR_OBSERVE_SEGMENT_ALLOC 4u
#define OTR_OBSERVE_SEGMENT_FREE 8u
#define OTR_OBSERVE_OUT_OF_MEMORY 16u
#define OTR_OBSERVE_FALLBACK 32u
typedef struct otr_observation { size_t struct_size; uint32_t kind; uint32_t device; otr_address_t address; uint64_t size; uint64_t allocated_bytes; uint64_t reserved_bytes; const char* name; uint64_t nanoseconds; } otr_observation_t;
typedef void (*otr_observer_fn)(void* user, const otr_observation_t*);
otr_status_t* otr_observer_add(uint32_t kinds, otr_observer_fn, void* user, otr_observer_t* out);
otr_status_t* otr_observer_remove(otr_observer_t);        /* returns after the last running call of it */

/* host execution: lets a framework lend its own thread pool to host kernels */
typedef void (*otr_parallel_body_fn)(void* context, int64_t begin, int64_t end);
typedef void (*otr_parallel_for_fn)(int64_t begin, int64_t end, int64_t grain, otr_parallel_body_fn body, void* context);
otr_status_t* otr_set_parallel_for(otr_parallel_for_fn fn); /* NULL: the built-in pool */
otr_status_t* otr_set_threads(uint32_t threads);            /* of the built-in pool; 0: all cores */

/* diagnostics */
otr_status_t* otr_trace_begin(const char* path);            /* Chrome/Perfetto JSON of commands and calls until otr_trace_end */
otr_status_t* otr_trace_end(void);
#ifdef __cplusplus
}
#endif
#endif
