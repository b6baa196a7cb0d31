/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/outrigger.h: the host contract, version 1.0. What a framework or an application calls.
 *
 * Link with liboutrigger, or load it at run time and take all functions from otr_host_api(). For C++
 * there is outrigger/outrigger.hpp, which owns what these functions hand out.
 *
 * THE RULES
 *
 * Outcomes
 *   H1  A call returns NULL on success, else a status, which is the caller's until otr_status_free and
 *       may be read and freed on any thread. What returns something else than a status cannot fail.
 *   H2  Outputs are written only on success. A call that fails has changed nothing, but where its
 *       entry says otherwise.
 *   H3  A status has a code of base.h, never OTR_OK, and a text, never empty: what was wrong, and what
 *       would be right. Where work of a stream failed, it names the stream, and the operator and the
 *       submission as far as the driver told them.
 *   H4  No C++ exception, panic or unwinding crosses this boundary, in either direction. A defect
 *       inside is OTR_ERR_INTERNAL.
 * Arguments
 *   H5  Streams, events, generators, observers, pools, graphs and executable graphs are 64-bit ids:
 *       never 0, never used again, the top bit never set. 0, a stale id, an id of another kind and
 *       garbage are OTR_ERR_INVALID_HANDLE.
 *   H6  Pointers are valid for the call. NULL where a pointer is needed is OTR_ERR_INVALID_ARGUMENT, and
 *       the text names the argument. An array of no elements may be NULL.
 *   H7  Strings are NUL-terminated UTF-8; others are OTR_ERR_INVALID_ARGUMENT.
 *   H8  A device is a number below that of otr_device_count; others are OTR_ERR_INVALID_DEVICE. A flag,
 *       mode, kind or format that is not documented is OTR_ERR_INVALID_ARGUMENT.
 *   H9  Structs start with `struct_size`, sizeof of the struct that the caller was compiled with. Of a
 *       struct that the library fills, no byte beyond it is written, nor is it itself. Too small for what
 *       version 1.0 of the struct needs is OTR_ERR_INVALID_ARGUMENT: for a struct that the library
 *       reads, all of version 1.0; for one that it fills, `struct_size` alone.
 *   H10 `reserved` is 0 and `next` is NULL, else OTR_ERR_INVALID_ARGUMENT: they may get a meaning.
 * Ownership
 *   H11 What a create, alloc or add call hands out is the caller's until it is given to the destroy,
 *       free or remove call of its kind. Strings that are handed out go to otr_string_free. What a call
 *       is given may be freed when it returns; what it keeps longer is said at the call.
 *   H12 Default streams, streams from pools and default generators are the runtime's: to destroy one is
 *       OTR_ERR_INVALID_ARGUMENT.
 *   H13 Destroying does not wait. Work that was submitted still runs, with all that it needs.
 * Threads
 *   H14 Every function may be called from any thread, also at the same time on the same object.
 *   H15 Current device, current streams, memory labels and uses of pools are per thread. A thread starts
 *       on device 0, on default streams, without label and pool.
 *   H16 Functions of the host that run in stream order (otr_host_fn, otr_host_node_fn,
 *       otr_host_kernel_fn) must not call the library. Observers may, but must not remove themselves.
 *   H17 After a fork the child's calls fail with OTR_ERR_FORKED, if the parent had made the runtime.
 * Order
 *   H18 Work of a stream takes effect in the order of submission. Submitting does not wait for work to
 *       finish, but where the entry says so. Streams are independent, but for events.
 *   H19 When work fails, later work of its stream does not run, but for host functions, which are told.
 *       otr_stream_query and otr_stream_synchronize report the first failure; otr_stream_synchronize
 *       clears it, and the stream takes work again.
 *   H20 An event is a point of a stream. One that was never recorded counts as passed. Recording again
 *       moves it; waits that were made before keep the old point. It carries the failure of the work
 *       before it to whoever asks or waits.
 * Memory
 *   H21 A device address is a number that can be offset within its allocation; 0 is none. Sizes are in
 *       bytes. 0 bytes are address 0, and freeing 0 does nothing.
 *   H22 Ranges of copies and fills are checked: what is not within one live allocation of the device is
 *       OTR_ERR_INVALID_ARGUMENT, as is freeing what is not allocated. That operands of operators and
 *       kernels lie in live memory is the host's to see to.
 *   H23 Memory is freed at any time, and reused in the order of the stream that it was allocated on. For
 *       work of other streams the host says otr_memory_record_stream, or orders the streams itself.
 *   H24 A request that cannot be met is OTR_ERR_OUT_OF_MEMORY, after caches were given back; nothing else
 *       has changed then, and what is there stays usable.
 * Capture and graphs
 *   H25 From otr_capture_begin to otr_capture_end the work of a stream is kept, and nothing of it runs.
 *       A stream that waits for an event recorded there joins.
 *   H26 What would wait for a stream that captures is OTR_ERR_CAPTURE, as is what no graph can hold. The
 *       first failure of a call in a capture is what otr_capture_end reports; the streams are usable
 *       then. What other threads do elsewhere cannot break a capture.
 *   H27 A graph that was destroyed lives on in what was instantiated from it. An executable graph keeps
 *       the memory that it uses alive, also when the host has freed it.
 *   H28 Bindings and updates are for later replays; those that were submitted keep what they had.
 *       Replays of one executable graph run one after the other, in the order of the calls.
 * Operators
 *   H29 OTR_ERR_UNSUPPORTED from an operator says that there is no kernel for these arguments and that
 *       nothing was done: the host may do it elsewhere, between otr_fallback_begin and _end.
 * Evolution
 *   H30 Numbers and entries are never changed, removed or used again within a major version. Structs and
 *       otr_host_api_t grow at their end only: what was compiled against an older minor version runs on
 *       a newer library.
 */

#ifndef OUTRIGGER_H
#define OUTRIGGER_H

/* Generated from ffi/ by `cargo xtask gen`. Do not edit. */

#include "base.h"

typedef struct otr_status otr_status_t;

/* Whether a table has an entry: OTR_HOST_API_HAS(api, memory_trim). */
#define OTR_HOST_API_HAS(api, entry) \
  (offsetof(otr_host_api_t, entry) + sizeof((api)->entry) <= (api)->struct_size)

// A stream does not capture.
#define OTR_CAPTURE_NONE 0

// A stream captures.
#define OTR_CAPTURE_ACTIVE 1

// A stream captures, and a call in the capture has failed.
#define OTR_CAPTURE_FAILED 2

// Capture mode: waiting for the whole device is refused on threads that record. Nothing that other
// threads do can break a capture, so that this is no different from OTR_CAPTURE_THREAD_LOCAL.
#define OTR_CAPTURE_GLOBAL 0

// Capture mode: waiting for the whole device is refused on threads that record.
#define OTR_CAPTURE_THREAD_LOCAL 1

// Capture mode: waiting for the whole device leaves capturing streams out.
#define OTR_CAPTURE_RELAXED 2

// The event can be used with otr_event_elapsed.
#define OTR_EVENT_TIMED 1

// Fallbacks are counted.
#define OTR_FALLBACK_SILENT 0

// Fallbacks are counted, and the first of each operator is worth a warning.
#define OTR_FALLBACK_WARN 1

// Fallbacks are refused.
#define OTR_FALLBACK_ERROR 2

// A conditional node that runs its first body if the predicate is not 0, else its second one if there
// is one.
#define OTR_GRAPH_IF 1

// A conditional node that runs its body again and again, as long as the predicate is not 0.
#define OTR_GRAPH_WHILE 2

// A conditional node that runs the body whose number is the predicate; none if there is none.
#define OTR_GRAPH_SWITCH 3

// A graph in the language of Graphviz.
#define OTR_GRAPH_DOT 1

// A graph's nodes and buffers as JSON.
#define OTR_GRAPH_JSON 2

// A picture of a graph.
#define OTR_GRAPH_SVG 3

// Replays never use more than one thread.
#define OTR_GRAPH_SERIAL 1

// Replays go through the driver's queue node by node.
#define OTR_GRAPH_SUBMIT 2

// Replays are launches of a graph of the driver's own. OTR_ERR_UNSUPPORTED where it has none.
#define OTR_GRAPH_NATIVE 4

// A replay is one launch of a host kernel that runs all nodes.
#define OTR_GRAPH_MODE_LAUNCH 1

// A replay is one host call that runs all nodes.
#define OTR_GRAPH_MODE_HOST_CALL 2

// A replay goes through the driver's queue node by node.
#define OTR_GRAPH_MODE_SUBMIT 3

// A replay is one launch of a graph of the driver's own.
#define OTR_GRAPH_MODE_NATIVE 4

// Frees are given a context as well, not only allocations.
#define OTR_HISTORY_CONTEXT_OF_FREES 1

// All devices, where a call takes one device or all.
#define OTR_ALL_DEVICES 4294967295

// Pinned host memory, where a call takes it in place of a device.
#define OTR_HOST_MEMORY 4294967294

// Memory was handed out.
#define OTR_OBSERVE_ALLOC 1

// Memory was given back to the cache.
#define OTR_OBSERVE_FREE 2

// The cache took memory from the device.
#define OTR_OBSERVE_SEGMENT_ALLOC 4

// The cache gave memory back to the device.
#define OTR_OBSERVE_SEGMENT_FREE 8

// A request could not be met.
#define OTR_OBSERVE_OUT_OF_MEMORY 16

// An operator ran on the CPU in place of the device.
#define OTR_OBSERVE_FALLBACK 32

// The most inputs, outputs or scalars of one call.
#define OTR_OPERANDS_MAX 64

// The major number of the host contract.
#define OTR_HOST_API_MAJOR 1

// The minor number of the host contract, which counts additions.
#define OTR_HOST_API_MINOR 0

// A stream: a generational id, never 0.
typedef uint64_t otr_stream_t;

// A host kernel to launch.
typedef struct {
  // sizeof(otr_host_kernel_call_t)
  size_t struct_size;
  // NULL
  const void *next;
  // What runs, on a thread of the driver's choice.
  otr_host_kernel_fn function;
  // Its argument block, which is copied.
  const void *args;
  // The bytes of the block.
  uint32_t args_size;
  // Estimated time in nanoseconds, 0 if unknown: what runs in parallel is decided by it.
  uint32_t cost_ns;
  // Its name, for failures and pictures. Lives as long as the process; or NULL.
  const char *label;
  // Where in the block device addresses stand, in bytes, each a multiple of 8. A graph keeps their
  // memory alive, and can bind other memory in its place.
  const uint32_t *address_offsets;
  // How many there are.
  uint32_t address_count;
  // 0
  uint32_t reserved;
} otr_host_kernel_call_t;

// A host function of a stream or graph. `bias`: add it to an address of this device to reach its
// bytes. `upstream`: the failure of the work before it, else OTR_OK; then it only cleans up. It must
// not call back into Outrigger. Any other result than OTR_OK makes the stream fail.
typedef int32_t (*otr_host_node_fn)(void *user, int64_t bias, int32_t upstream);

// Gives user data back.
typedef void (*otr_destroy_fn)(void *user);

// A host function, and what it uses.
typedef struct {
  // sizeof(otr_host_node_t)
  size_t struct_size;
  // NULL
  const void *next;
  // What is called.
  otr_host_node_fn function;
  // What it is given.
  void *user;
  // Called once with `user`, when the function will not be called again; or NULL. Not called if the
  // call that takes this struct fails.
  otr_destroy_fn destroy;
  // Its name, copied; or NULL.
  const char *label;
  // Addresses within allocations that it reads: a graph keeps them alive.
  const uint64_t *reads;
  // Addresses within allocations that it writes, or reads and writes.
  const uint64_t *writes;
  // How many it reads.
  uint32_t read_count;
  // How many it writes.
  uint32_t write_count;
  // Estimated time in nanoseconds, 0 if unknown.
  uint32_t cost_ns;
  // 0
  uint32_t reserved;
} otr_host_node_t;

// A pool of memory that graphs share: a generational id, never 0.
typedef uint64_t otr_pool_t;

// A graph, nodes and edges: a generational id, never 0.
typedef uint64_t otr_graph_t;

// What is known of a stream's capture. Set `struct_size` before the call.
typedef struct {
  // sizeof(otr_capture_info_t)
  size_t struct_size;
  // The number of the capture; 0 if the stream does not capture.
  uint64_t id;
  // OTR_CAPTURE_NONE, _ACTIVE or _FAILED.
  uint32_t status;
  // OTR_CAPTURE_GLOBAL, _THREAD_LOCAL or _RELAXED.
  uint32_t mode;
  // Nodes so far.
  uint32_t node_count;
  // Streams that record, the first included.
  uint32_t stream_count;
} otr_capture_info_t;

// An event: a generational id, never 0.
typedef uint64_t otr_event_t;

// A random number generator: a generational id, never 0.
typedef uint64_t otr_generator_t;

// Figures of a graph. Set `struct_size` before the call.
typedef struct {
  // sizeof(otr_graph_info_t)
  size_t struct_size;
  // Bytes that its pool holds.
  uint64_t memory_bytes;
  // The device.
  uint32_t device;
  // Nodes.
  uint32_t nodes;
  // Edges.
  uint32_t edges;
  // 1 for what a capture had recorded at some moment: it can be looked at only.
  uint32_t partial;
} otr_graph_info_t;

// A node, by its number within its graph.
typedef uint32_t otr_node_t;

// An operator: a dense number.
typedef uint32_t otr_operator_id_t;

// A graph that can be replayed: a generational id, never 0.
typedef uint64_t otr_graph_exec_t;

// Figures of an executable graph. Set `struct_size` before the call.
typedef struct {
  // sizeof(otr_graph_exec_info_t)
  size_t struct_size;
  // Replays so far.
  uint64_t replays;
  // Bytes that its pool holds.
  uint64_t memory_bytes;
  // Estimated time of a replay on one thread, in nanoseconds.
  uint64_t estimated_ns;
  // Nodes that run.
  uint32_t nodes;
  // Nodes that were dropped, since nobody sees their results.
  uint32_t dropped;
  // Parts that run one after the other.
  uint32_t levels;
  // Those of them that run on several threads.
  uint32_t parallel_levels;
  // OTR_GRAPH_MODE_*
  uint32_t mode;
  // 0
  uint32_t reserved;
} otr_graph_exec_info_t;

// Captures where the calling thread is, as a number of the host's. 0 is nothing, and is not released.
typedef uint64_t (*otr_context_capture_fn)(void *user);

// Nothing refers to a context any more. Called once for each that was captured, from any thread.
typedef void (*otr_context_release_fn)(void *user, uint64_t context);

// Takes one frame of a context: called by otr_context_frames_fn, for the innermost frame first. `file`
// and `name` are copied; NULL is "". `line` counts from 1; 0 if unknown.
typedef void (*otr_frame_fn)(void *frames, const char *file, uint32_t line, const char *name);

// Tells the frames of a context: calls `frame(frames, ...)` for each.
typedef void (*otr_context_frames_fn)(void *user, uint64_t context, otr_frame_fn frame, void *frames);

// What otr_memory_history_start keeps. The functions are called outside of all locks of the runtime,
// from any thread, until `release` was called for each context that was captured. They must not throw.
// What `capture` itself allocates has no context.
typedef struct {
  // sizeof(otr_history_options_t)
  size_t struct_size;
  // The most events that are kept, the latest ones. 0 keeps labels and contexts of live blocks only.
  uint64_t entries;
  // OTR_HISTORY_CONTEXT_OF_FREES, or 0.
  uint32_t flags;
  // 0
  uint32_t reserved;
  // NULL: allocations have no context.
  otr_context_capture_fn capture;
  // NULL: contexts need not be released.
  otr_context_release_fn release;
  // NULL: snapshots have no frames.
  otr_context_frames_fn frames;
  // Passed to the functions.
  void *user;
} otr_history_options_t;

// What is known of an address within an allocation. Set `struct_size` before the call.
typedef struct {
  // sizeof(otr_pointer_info_t)
  size_t struct_size;
  // Where the allocation starts.
  uint64_t base;
  // Its usable bytes.
  uint64_t size;
  // The stream that it was allocated on.
  otr_stream_t stream;
  // Bytes that were asked for.
  uint64_t requested;
  // The pool that it is of; 0 for the memory that all share, and for a pool whose handle was given up.
  otr_pool_t pool;
  // The number of the pool within its device, as snapshots name it; 0 for the memory that all share.
  uint64_t pool_number;
  // The label under which it was allocated, valid for the life of the process; NULL if none is known.
  const char *label;
} otr_pointer_info_t;

// One statistic.
typedef struct {
  // Now.
  uint64_t current;
  // The most since the peaks were reset.
  uint64_t peak;
  // All that came since the accumulated counts were reset.
  uint64_t allocated;
  // All that went since the accumulated counts were reset.
  uint64_t freed;
} otr_stat_t;

// Statistics of the blocks of one size class. The members mean what those of otr_memory_stats_t mean.
typedef struct {
  // Bytes handed out, rounded up.
  otr_stat_t allocated_bytes;
  // Bytes taken from the device.
  otr_stat_t reserved_bytes;
  // Bytes handed out, as they were asked for.
  otr_stat_t requested_bytes;
  // Bytes handed out or waiting for a stream.
  otr_stat_t active_bytes;
  // Bytes that are cached.
  otr_stat_t inactive_split_bytes;
  // Blocks handed out.
  otr_stat_t allocations;
  // Pieces of memory taken from the device.
  otr_stat_t segments;
  // Blocks handed out or waiting for a stream.
  otr_stat_t active;
  // Free blocks.
  otr_stat_t inactive_split;
} otr_class_stats_t;

// Statistics of a device's memory; names and meanings are PyTorch's. Set `struct_size` before the
// call.
typedef struct {
  // sizeof(otr_memory_stats_t)
  size_t struct_size;
  // Bytes handed out, rounded up.
  otr_stat_t allocated_bytes;
  // Bytes taken from the device.
  otr_stat_t reserved_bytes;
  // Bytes handed out, as they were asked for.
  otr_stat_t requested_bytes;
  // Bytes handed out or waiting for a stream.
  otr_stat_t active_bytes;
  // Bytes that are cached: free, and taken from the device.
  otr_stat_t inactive_split_bytes;
  // Blocks handed out.
  otr_stat_t allocations;
  // Pieces of memory taken from the device: segments, or chunks of physical memory.
  otr_stat_t segments;
  // Blocks handed out or waiting for a stream.
  otr_stat_t active;
  // Free blocks.
  otr_stat_t inactive_split;
  // Calls of the driver that allocate.
  uint64_t device_allocs;
  // Calls of the driver that free.
  uint64_t device_frees;
  // Requests that were met only after caches had been given back.
  uint64_t alloc_retries;
  // Requests that could not be met.
  uint64_t ooms;
  // Times that all streams were waited for to get memory back.
  uint64_t sync_all_streams;
  // Times that memory was mapped.
  uint64_t maps;
  // Times that memory was unmapped.
  uint64_t unmaps;
  // Large requests that were met by idle memory that lies apart, mapped once more.
  uint64_t views;
  // Large requests that were met so without mapping anything.
  uint64_t view_reuses;
  // Times that a stream was made to wait for another, to use memory that the other had freed.
  uint64_t stream_waits;
  // Times that a thread had to wait for a stream.
  uint64_t host_waits;
  // Of blocks up to 1 MiB.
  otr_class_stats_t small;
  // Of blocks above 1 MiB.
  otr_class_stats_t large;
} otr_memory_stats_t;

// One thing that happened. Lives as long as the observer's call.
typedef struct {
  // sizeof(otr_observation_t), of the library
  size_t struct_size;
  // One of OTR_OBSERVE_*.
  uint32_t kind;
  // The device that it concerns.
  uint32_t device;
  // The address, for memory; else 0.
  uint64_t address;
  // Bytes: of the block, of the segment, requested, or staged by a fallback.
  uint64_t size;
  // Bytes handed out, for memory.
  uint64_t allocated_bytes;
  // Bytes that the cache holds, for memory.
  uint64_t reserved_bytes;
  // The operator, for a fallback; else "".
  const char *name;
  // How long a fallback took.
  uint64_t nanoseconds;
  // The text of the error where a request could not be met; else "".
  const char *text;
  // Bytes that the device has left where a request could not be met, as far as it tells; else 0.
  uint64_t device_free;
  // Bytes that the device has in all, likewise.
  uint64_t device_total;
} otr_observation_t;

// Called on the thread that caused the event, outside of all locks of the runtime. It must not throw.
typedef void (*otr_observer_fn)(void *user, const otr_observation_t *observation);

// An observer: a generational id, never 0.
typedef uint64_t otr_observer_t;

// Asked to release memory: `needed` bytes of a device cannot be had, though caches were given back and
// pending frees waited for. Returns 0 if it released nothing; else the allocation is tried once more.
// Called on the thread that allocates, outside of all locks of the runtime; it may call the runtime, and
// allocate, where what cannot be had is an error. It must not throw.
typedef uint32_t (*otr_pressure_fn)(void *user, uint32_t device, uint64_t needed);

// Runs `body` over parts of a range.
typedef void (*otr_parallel_body_fn)(void *context, int64_t begin, int64_t end);

// Splits a range into parts of at least `grain`, runs `body` on each, from any threads, and returns
// when all have run.
typedef void (*otr_parallel_for_fn)(int64_t begin,
                                    int64_t end,
                                    int64_t grain,
                                    otr_parallel_body_fn body,
                                    void *context);

// What a pool holds. Set `struct_size` before the call.
typedef struct {
  // sizeof(otr_pool_info_t)
  size_t struct_size;
  // Bytes taken from the device.
  uint64_t reserved_bytes;
  // Bytes in use, rounded up.
  uint64_t allocated_bytes;
  // The most that were in use.
  uint64_t peak_allocated_bytes;
  // The device.
  uint32_t device;
  // Captures, graphs, executable graphs, and uses by threads, that refer to it.
  uint32_t users;
  // Its number within the device, as snapshots name it.
  uint64_t number;
  // Segments taken from the device.
  uint64_t segments;
  // The most bytes that may be in use; UINT64_MAX if there is no limit.
  uint64_t limit;
  // Bytes that the device has got back while it sleeps, else 0.
  uint64_t asleep_bytes;
  // 1 while it sleeps, else 0.
  uint32_t asleep;
  // 0
  uint32_t reserved;
} otr_pool_info_t;

// What is known of a device. Set `struct_size` before the call.
typedef struct {
  // sizeof(otr_device_info_t)
  size_t struct_size;
  // The device's name.
  char name[128];
  // Who makes it.
  char vendor[64];
  // The driver's name.
  char driver[64];
  // The driver's version.
  char driver_version[32];
  // Bytes of memory.
  uint64_t total_memory;
  // 1 if a device address is a host pointer to the same bytes.
  uint32_t host_visible;
  // Alignment of allocations in bytes.
  uint32_t address_alignment;
  // 0: unknown.
  uint32_t compute_units;
  // Of streams; a lower number is more urgent.
  int32_t priority_lowest;
  // Of streams.
  int32_t priority_highest;
  // The device's number within its driver.
  uint32_t driver_ordinal;
} otr_device_info_t;

// All functions but otr_host_api, each under its name without `otr_`. Up to `api_minor` it is
// the same in all major versions; of the rest, what lies within `struct_size` is there.
typedef struct {
  // sizeof(otr_host_api_t), of the library
  size_t struct_size;
  // OTR_HOST_API_MAJOR of the library
  uint32_t api_major;
  // OTR_HOST_API_MINOR of the library
  uint32_t api_minor;
  otr_status_t *(*host_kernel_launch)(otr_stream_t stream, const otr_host_kernel_call_t *call);
  otr_status_t *(*host_node)(otr_stream_t stream, const otr_host_node_t *node);
  otr_status_t *(*capture_begin)(otr_stream_t stream, uint32_t mode, otr_pool_t pool);
  otr_status_t *(*capture_end)(otr_stream_t stream, otr_graph_t *graph);
  otr_status_t *(*capture_abort)(otr_stream_t stream, const char *reason);
  otr_status_t *(*capture_partial)(otr_stream_t stream, otr_graph_t *graph);
  otr_status_t *(*capture_info)(otr_stream_t stream, otr_capture_info_t *info);
  otr_status_t *(*capture_label)(otr_stream_t stream, const char *label);
  otr_status_t *(*capture_conditional)(otr_stream_t stream,
                                       uint32_t kind,
                                       uint64_t predicate,
                                       uint32_t dtype,
                                       const otr_graph_t *bodies,
                                       uint32_t body_count);
  otr_status_t *(*copy)(otr_stream_t stream,
                        uint64_t dst,
                        uint64_t src,
                        uint64_t size,
                        uint32_t kind);
  otr_status_t *(*copy_peer)(otr_stream_t stream,
                             uint32_t dst_device,
                             uint64_t dst,
                             uint32_t src_device,
                             uint64_t src,
                             uint64_t size);
  otr_status_t *(*fill)(otr_stream_t stream,
                        uint64_t dst,
                        uint64_t size,
                        const void *pattern,
                        uint32_t pattern_size);
  otr_status_t *(*host_call)(otr_stream_t stream, otr_host_fn function, void *user);
  otr_status_t *(*trace_begin)(const char *path);
  otr_status_t *(*trace_end)(void);
  otr_status_t *(*event_create)(uint32_t device, uint32_t flags, otr_event_t *event);
  otr_status_t *(*event_destroy)(otr_event_t event);
  otr_status_t *(*event_record)(otr_event_t event, otr_stream_t stream);
  otr_status_t *(*event_query)(otr_event_t event, uint32_t *finished);
  otr_status_t *(*event_synchronize)(otr_event_t event);
  otr_status_t *(*event_elapsed)(otr_event_t start, otr_event_t end, double *milliseconds);
  otr_status_t *(*fallback_begin)(const char *operator_name, uint32_t *first_warning);
  otr_status_t *(*fallback_end)(const char *operator_name,
                                uint64_t nanoseconds,
                                uint64_t staged_bytes);
  otr_status_t *(*fallback_set_mode)(uint32_t mode);
  otr_status_t *(*fallback_mode)(uint32_t *mode);
  otr_status_t *(*fallback_report)(char **json);
  otr_status_t *(*fallback_reset)(void);
  otr_status_t *(*generator_create)(uint32_t device, otr_generator_t *generator);
  otr_status_t *(*generator_default)(uint32_t device, otr_generator_t *generator);
  otr_status_t *(*generator_destroy)(otr_generator_t generator);
  otr_status_t *(*generator_seed)(otr_generator_t generator, uint64_t seed);
  otr_status_t *(*generator_state)(otr_generator_t generator, uint64_t *seed, uint64_t *offset);
  otr_status_t *(*generator_set_state)(otr_generator_t generator, uint64_t seed, uint64_t offset);
  otr_status_t *(*generator_reserve)(otr_generator_t generator,
                                     uint64_t count,
                                     uint64_t *seed,
                                     uint64_t *offset);
  otr_status_t *(*graph_create)(uint32_t device, otr_pool_t pool, otr_graph_t *graph);
  otr_status_t *(*graph_destroy)(otr_graph_t graph);
  otr_status_t *(*graph_info)(otr_graph_t graph, otr_graph_info_t *info);
  otr_status_t *(*graph_dump)(otr_graph_t graph, uint32_t format, char **text);
  otr_status_t *(*graph_name_buffer)(otr_graph_t graph,
                                     const char *name,
                                     uint64_t address,
                                     uint64_t size);
  otr_status_t *(*graph_name_scalar)(otr_graph_t graph,
                                     const char *name,
                                     otr_node_t node,
                                     uint32_t scalar_index);
  otr_status_t *(*graph_add_host_kernel)(otr_graph_t graph,
                                         const otr_node_t *deps,
                                         uint32_t dep_count,
                                         const otr_host_kernel_call_t *call,
                                         otr_node_t *node);
  otr_status_t *(*graph_add_operator)(otr_graph_t graph,
                                      const otr_node_t *deps,
                                      uint32_t dep_count,
                                      otr_operator_id_t operator_id,
                                      const otr_operator_call_t *call,
                                      otr_node_t *node);
  otr_status_t *(*graph_add_copy)(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  uint64_t dst,
                                  uint64_t src,
                                  uint64_t size,
                                  uint32_t kind,
                                  otr_node_t *node);
  otr_status_t *(*graph_add_fill)(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  uint64_t dst,
                                  uint64_t size,
                                  const void *pattern,
                                  uint32_t pattern_size,
                                  otr_node_t *node);
  otr_status_t *(*graph_add_host)(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  const otr_host_node_t *host,
                                  otr_node_t *node);
  otr_status_t *(*graph_add_empty)(otr_graph_t graph,
                                   const otr_node_t *deps,
                                   uint32_t dep_count,
                                   otr_node_t *node);
  otr_status_t *(*graph_add_child)(otr_graph_t graph,
                                   const otr_node_t *deps,
                                   uint32_t dep_count,
                                   otr_graph_t child,
                                   otr_node_t *node);
  otr_status_t *(*graph_add_conditional)(otr_graph_t graph,
                                         const otr_node_t *deps,
                                         uint32_t dep_count,
                                         uint32_t kind,
                                         uint64_t predicate,
                                         uint32_t dtype,
                                         const otr_graph_t *bodies,
                                         uint32_t body_count,
                                         otr_node_t *node);
  otr_status_t *(*graph_add_alloc)(otr_graph_t graph,
                                   const otr_node_t *deps,
                                   uint32_t dep_count,
                                   uint64_t size,
                                   uint64_t *address,
                                   otr_node_t *node);
  otr_status_t *(*graph_add_free)(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  uint64_t address,
                                  otr_node_t *node);
  otr_status_t *(*graph_instantiate)(otr_graph_t graph, uint32_t flags, otr_graph_exec_t *exec);
  otr_status_t *(*graph_exec_destroy)(otr_graph_exec_t exec);
  otr_status_t *(*graph_replay)(otr_graph_exec_t exec, otr_stream_t stream);
  otr_status_t *(*graph_slot)(otr_graph_exec_t exec, const char *name, uint32_t *slot);
  otr_status_t *(*graph_bind)(otr_graph_exec_t exec, uint32_t slot, uint64_t address);
  otr_status_t *(*graph_bind_scalar)(otr_graph_exec_t exec, uint32_t slot, const otr_scalar_t *value);
  otr_status_t *(*graph_update)(otr_graph_exec_t exec, otr_graph_t graph);
  otr_status_t *(*graph_exec_info)(otr_graph_exec_t exec, otr_graph_exec_info_t *info);
  otr_status_t *(*graph_profile)(otr_graph_exec_t exec, otr_stream_t stream, char **json);
  otr_status_t *(*graph_cost)(otr_graph_exec_t exec, otr_stream_t stream, char **json);
  otr_status_t *(*graph_check)(otr_graph_exec_t exec, otr_stream_t stream);
  otr_status_t *(*memory_history_start)(uint32_t device, const otr_history_options_t *options);
  otr_status_t *(*memory_history_stop)(uint32_t device);
  otr_status_t *(*memory_history_clear)(uint32_t device);
  otr_status_t *(*memory_label_push)(const char *label);
  otr_status_t *(*memory_label_pop)(void);
  otr_status_t *(*memory_holders)(uint32_t device, uint32_t count, char **json);
  otr_status_t *(*memory_trace_start)(uint32_t device, const char *path);
  otr_status_t *(*memory_trace_stop)(uint32_t device);
  otr_status_t *(*memory_trace_mark)(uint32_t device, const char *label);
  otr_status_t *(*memory_alloc)(uint32_t device,
                                uint64_t size,
                                otr_stream_t stream,
                                uint64_t *address);
  otr_status_t *(*memory_free)(uint32_t device, uint64_t address);
  otr_status_t *(*memory_record_stream)(uint32_t device, uint64_t address, otr_stream_t stream);
  otr_status_t *(*memory_pointer_info)(uint32_t device,
                                       uint64_t address,
                                       otr_pointer_info_t *info);
  otr_status_t *(*memory_export)(uint32_t device, uint64_t address, char **exported);
  otr_status_t *(*memory_import)(uint32_t device,
                                 const char *exported,
                                 uint64_t *address,
                                 uint64_t *size);
  otr_status_t *(*memory_close)(uint32_t device, uint64_t address);
  otr_status_t *(*memory_empty_cache)(uint32_t device);
  otr_status_t *(*memory_trim)(uint32_t device, uint64_t keep, uint64_t *released);
  otr_status_t *(*memory_info)(uint32_t device, uint64_t *free_bytes, uint64_t *total_bytes);
  otr_status_t *(*memory_stats)(uint32_t device, otr_memory_stats_t *stats);
  otr_status_t *(*memory_reset_peak)(uint32_t device);
  otr_status_t *(*memory_reset_accumulated)(uint32_t device);
  otr_status_t *(*memory_set_limit)(uint32_t device, uint64_t bytes);
  otr_status_t *(*memory_limit)(uint32_t device, uint64_t *bytes);
  otr_status_t *(*memory_set_fraction)(uint32_t device, double fraction);
  otr_status_t *(*memory_fraction)(uint32_t device, double *fraction);
  otr_status_t *(*memory_set_process_limit)(uint64_t bytes);
  otr_status_t *(*memory_process_info)(uint64_t *held_bytes, uint64_t *limit_bytes);
  otr_status_t *(*memory_snapshot)(uint32_t device, char **json);
  otr_status_t *(*observer_add)(uint32_t kinds,
                                otr_observer_fn function,
                                void *user,
                                otr_observer_t *observer);
  otr_status_t *(*observer_add_pressure)(otr_pressure_fn function,
                                         void *user,
                                         otr_observer_t *observer);
  otr_status_t *(*observer_remove)(otr_observer_t observer);
  otr_status_t *(*operator_find)(const char *name, otr_operator_id_t *operator_id);
  otr_status_t *(*operator_call)(otr_stream_t stream,
                                 otr_operator_id_t operator_id,
                                 const otr_operator_call_t *call);
  otr_status_t *(*set_parallel_for)(otr_parallel_for_fn function);
  otr_status_t *(*set_threads)(uint32_t threads);
  otr_status_t *(*host_alloc)(uint64_t size, void **pointer);
  otr_status_t *(*host_free)(void *pointer);
  otr_status_t *(*host_record_stream)(void *pointer, otr_stream_t stream);
  otr_status_t *(*host_is_pinned)(const void *pointer, uint32_t *yes);
  otr_status_t *(*host_empty_cache)(void);
  otr_status_t *(*host_stats)(otr_memory_stats_t *stats);
  otr_status_t *(*host_reset_peak)(void);
  otr_status_t *(*host_reset_accumulated)(void);
  otr_status_t *(*host_set_limit)(uint64_t bytes);
  otr_status_t *(*pool_create)(uint32_t device, otr_pool_t *pool);
  otr_status_t *(*pool_destroy)(otr_pool_t pool);
  otr_status_t *(*pool_info)(otr_pool_t pool, otr_pool_info_t *info);
  otr_status_t *(*pool_alloc)(otr_pool_t pool, uint64_t size, otr_stream_t stream, uint64_t *address);
  otr_status_t *(*pool_begin_use)(otr_pool_t pool, otr_stream_t stream);
  otr_status_t *(*pool_end_use)(otr_pool_t pool);
  otr_status_t *(*pool_set_limit)(otr_pool_t pool, uint64_t bytes);
  otr_status_t *(*pool_sleep)(otr_pool_t pool, uint64_t *released);
  otr_status_t *(*pool_wake)(otr_pool_t pool);
  otr_status_t *(*pool_snapshot)(otr_pool_t pool, char **json);
  const char *(*version)(void);
  otr_status_t *(*runtime_init)(void);
  otr_status_t *(*driver_load)(const char *spec);
  otr_status_t *(*load_report)(char **json);
  otr_status_t *(*device_count)(uint32_t *count);
  otr_status_t *(*device_info)(uint32_t device, otr_device_info_t *info);
  otr_status_t *(*device_current)(uint32_t *device);
  otr_status_t *(*device_set_current)(uint32_t device);
  otr_status_t *(*device_synchronize)(uint32_t device);
  int32_t (*status_code)(const otr_status_t *status);
  const char *(*status_message)(const otr_status_t *status);
  const char *(*status_operator)(const otr_status_t *status);
  uint64_t (*status_stream)(const otr_status_t *status);
  uint64_t (*status_submission)(const otr_status_t *status);
  void (*status_free)(otr_status_t *status);
  void (*string_free)(char *string);
  otr_status_t *(*stream_default)(uint32_t device, otr_stream_t *stream);
  otr_status_t *(*stream_from_pool)(uint32_t device, int32_t priority, otr_stream_t *stream);
  otr_status_t *(*stream_create)(uint32_t device, int32_t priority, otr_stream_t *stream);
  otr_status_t *(*stream_destroy)(otr_stream_t stream);
  otr_status_t *(*stream_device)(otr_stream_t stream, uint32_t *device);
  otr_status_t *(*stream_priority)(otr_stream_t stream, int32_t *priority);
  otr_status_t *(*stream_current)(uint32_t device, otr_stream_t *stream);
  otr_status_t *(*stream_set_current)(otr_stream_t stream);
  otr_status_t *(*stream_query)(otr_stream_t stream, uint32_t *finished);
  otr_status_t *(*stream_synchronize)(otr_stream_t stream);
  otr_status_t *(*stream_flush)(otr_stream_t stream);
  otr_status_t *(*stream_wait_event)(otr_stream_t stream, otr_event_t event);
} otr_host_api_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Launches a host kernel in stream order and returns at once. OTR_ERR_UNSUPPORTED if the device
// runs none and its memory is not visible to the host.
otr_status_t *otr_host_kernel_launch(otr_stream_t stream, const otr_host_kernel_call_t *call);

// Calls a host function in stream order: once; where the stream captures, at every replay.
otr_status_t *otr_host_node(otr_stream_t stream, const otr_host_node_t *node);

// Begins a capture: work of this stream is recorded, not run, until otr_capture_end; so is work of
// streams that wait for an event that was recorded in the capture. `mode` is OTR_CAPTURE_*. Memory
// that is allocated on these streams comes from `pool`, or with 0 from a pool of the graph's own.
// The first call that fails in a capture makes it fail.
otr_status_t *otr_capture_begin(otr_stream_t stream, uint32_t mode, otr_pool_t pool);

// Ends the capture that was begun on this stream. Fails with the first failure of a call in the
// capture, or OTR_ERR_CAPTURE if work of another stream was not joined: the capture has then
// ended all the same, its streams are usable, and its memory is given back.
otr_status_t *otr_capture_end(otr_stream_t stream, otr_graph_t *graph);

// Makes a capture fail for a reason of the caller's, which otr_capture_end then reports.
otr_status_t *otr_capture_abort(otr_stream_t stream, const char *reason);

// What was recorded so far, to look at: it cannot be instantiated.
otr_status_t *otr_capture_partial(otr_stream_t stream, otr_graph_t *graph);

// What is known of a stream's capture.
otr_status_t *otr_capture_info(otr_stream_t stream, otr_capture_info_t *info);

// Nodes that this stream records from here on carry this text, until the next one; NULL ends it.
// Without a capture it does nothing.
otr_status_t *otr_capture_label(otr_stream_t stream, const char *label);

// Records a conditional node; see otr_graph_add_conditional.
otr_status_t *otr_capture_conditional(otr_stream_t stream,
                                      uint32_t kind,
                                      uint64_t predicate,
                                      uint32_t dtype,
                                      const otr_graph_t *bodies,
                                      uint32_t body_count);

// Copies `size` bytes in stream order. Addresses are device addresses of the stream's device or
// host pointers, as `kind` says. Host memory stays valid and untouched until the copy has
// finished; device ranges must lie in live allocations (H22), and source and destination must not
// overlap. 0 bytes are fine, and then addresses are not looked at.
otr_status_t *otr_copy(otr_stream_t stream,
                       uint64_t dst,
                       uint64_t src,
                       uint64_t size,
                       uint32_t kind);

// Copies `size` bytes between live allocations of two devices, of any drivers. The stream is of
// one of the two, and the copy is in its order; where the drivers offer no better way, the call
// waits and copies through the host.
otr_status_t *otr_copy_peer(otr_stream_t stream,
                            uint32_t dst_device,
                            uint64_t dst,
                            uint32_t src_device,
                            uint64_t src,
                            uint64_t size);

// Fills `size` bytes with a repeated pattern of 1, 2, 4, 8 or 16 bytes, in stream order. The
// pattern is copied during the call. The size is a multiple of the pattern's.
otr_status_t *otr_fill(otr_stream_t stream,
                       uint64_t dst,
                       uint64_t size,
                       const void *pattern,
                       uint32_t pattern_size);

// Runs a function on the host in stream order, on a thread of the library's choice: exactly once, or
// where the stream captures, at every replay; after a failure of the work before it, too, which it is
// told. It must not call the library. Any other result than OTR_OK makes the stream fail with it.
// `user` is the host's to keep until then; otr_host_node tells when that is. If this call fails, the
// function does not run.
otr_status_t *otr_host_call(otr_stream_t stream,
                            otr_host_fn function,
                            void *user);

// Starts writing what devices run (operators, copies, fills, host calls, by stream) to a file in
// Chrome's JSON format, which Perfetto opens, until otr_trace_end.
otr_status_t *otr_trace_begin(const char *path);

// Ends the trace and closes its file.
otr_status_t *otr_trace_end(void);

// Makes an event for streams of a device, the caller's until otr_event_destroy. `flags` is 0 or
// OTR_EVENT_TIMED. Until it is recorded it counts as passed. OTR_ERR_UNSUPPORTED for a timed one of
// a device that has no timestamps.
otr_status_t *otr_event_create(uint32_t device, uint32_t flags, otr_event_t *event);

// Destroys an event without waiting. What waits for it goes on waiting.
otr_status_t *otr_event_destroy(otr_event_t event);

// Moves an event to the end of the work submitted to a stream of its device so far. Waits that were
// made before keep the old point. Where the stream captures it becomes a point of the capture.
otr_status_t *otr_event_record(otr_event_t event, otr_stream_t stream);

// Sets `finished` to 1 if the work before an event has finished, else to 0. Never waits.
// Fails with the failure of that work, at every call; with OTR_ERR_CAPTURE for a point of a capture.
otr_status_t *otr_event_query(otr_event_t event,
                              uint32_t *finished);

// Waits for the work before an event. Fails with the failure of that work, at every call; with
// OTR_ERR_CAPTURE for a point of a capture.
otr_status_t *otr_event_synchronize(otr_event_t event);

// Milliseconds between two events that were made with OTR_EVENT_TIMED and have passed.
otr_status_t *otr_event_elapsed(otr_event_t start, otr_event_t end, double *milliseconds);

// Asks leave to run an operator on the CPU. Sets `first_warning` to 1 if the adapter should warn
// its user. Fails with OTR_ERR_UNSUPPORTED where OUTRIGGER_FALLBACK=error.
otr_status_t *otr_fallback_begin(const char *operator_name, uint32_t *first_warning);

// Counts a fallback that has run: how long it took, staging included, and how many bytes were
// copied between device and host for it.
otr_status_t *otr_fallback_end(const char *operator_name,
                               uint64_t nanoseconds,
                               uint64_t staged_bytes);

// Sets the mode for the whole process, in place of that of the variable OUTRIGGER_FALLBACK:
// OTR_FALLBACK_SILENT, _WARN or _ERROR.
otr_status_t *otr_fallback_set_mode(uint32_t mode);

// The mode in force.
otr_status_t *otr_fallback_mode(uint32_t *mode);

// All operators that fell back, the most expensive first, as JSON:
// [{"operator", "calls", "seconds", "staged_bytes"}]. Free it with otr_string_free.
otr_status_t *otr_fallback_report(char **json);

// Forgets all counts.
otr_status_t *otr_fallback_reset(void);

// Makes a generator for a device, the caller's until otr_generator_destroy. Its outputs are those of
// Philox 4x32-10: a seed, and the number of 128-bit outputs that were drawn.
otr_status_t *otr_generator_create(uint32_t device,
                                   otr_generator_t *generator);

// The default generator of a device. It belongs to the runtime.
otr_status_t *otr_generator_default(uint32_t device, otr_generator_t *generator);

// Destroys a generator. OTR_ERR_INVALID_ARGUMENT for the default one of a device.
otr_status_t *otr_generator_destroy(otr_generator_t generator);

// Seeds a generator and goes back to the start of its sequence.
otr_status_t *otr_generator_seed(otr_generator_t generator, uint64_t seed);

// Seed and offset (in 128-bit outputs) of what comes next.
otr_status_t *otr_generator_state(otr_generator_t generator, uint64_t *seed, uint64_t *offset);

// Sets what comes next: the 128-bit output number `offset` of the sequence of `seed`.
otr_status_t *otr_generator_set_state(otr_generator_t generator, uint64_t seed, uint64_t offset);

// Takes the next `count` 128-bit outputs (four 32-bit numbers each): gives the seed, and the
// offset at which they start.
otr_status_t *otr_generator_reserve(otr_generator_t generator,
                                    uint64_t count,
                                    uint64_t *seed,
                                    uint64_t *offset);

// Makes an empty graph, to be built node by node. A node runs after those in its `deps`, which are
// nodes of the same graph. Memory of otr_graph_add_alloc comes from `pool`, or with 0 from a pool
// of the graph's own.
otr_status_t *otr_graph_create(uint32_t device, otr_pool_t pool, otr_graph_t *graph);

// Destroys a graph. What was instantiated from it lives on.
otr_status_t *otr_graph_destroy(otr_graph_t graph);

// Figures of a graph.
otr_status_t *otr_graph_info(otr_graph_t graph, otr_graph_info_t *info);

// The graph as text: OTR_GRAPH_DOT, _JSON or _SVG. Free it with otr_string_free.
otr_status_t *otr_graph_dump(otr_graph_t graph, uint32_t format, char **text);

// Gives memory that nodes use a name, before the graph is instantiated: replays may then use other
// memory in its place (otr_graph_bind). The range lies in one live allocation.
otr_status_t *otr_graph_name_buffer(otr_graph_t graph,
                                    const char *name,
                                    uint64_t address,
                                    uint64_t size);

// Gives a scalar of an operator's node a name, before the graph is instantiated
// (otr_graph_bind_scalar).
otr_status_t *otr_graph_name_scalar(otr_graph_t graph,
                                    const char *name,
                                    otr_node_t node,
                                    uint32_t scalar_index);

// Adds a host kernel.
otr_status_t *otr_graph_add_host_kernel(otr_graph_t graph,
                                        const otr_node_t *deps,
                                        uint32_t dep_count,
                                        const otr_host_kernel_call_t *call,
                                        otr_node_t *node);

// Adds an operator. OTR_ERR_UNSUPPORTED: there is no kernel for these arguments.
otr_status_t *otr_graph_add_operator(otr_graph_t graph,
                                     const otr_node_t *deps,
                                     uint32_t dep_count,
                                     otr_operator_id_t operator_id,
                                     const otr_operator_call_t *call,
                                     otr_node_t *node);

// Adds a copy; see otr_copy. Host memory stays valid as long as the graph is replayed.
otr_status_t *otr_graph_add_copy(otr_graph_t graph,
                                 const otr_node_t *deps,
                                 uint32_t dep_count,
                                 uint64_t dst,
                                 uint64_t src,
                                 uint64_t size,
                                 uint32_t kind,
                                 otr_node_t *node);

// Adds a fill; see otr_fill.
otr_status_t *otr_graph_add_fill(otr_graph_t graph,
                                 const otr_node_t *deps,
                                 uint32_t dep_count,
                                 uint64_t dst,
                                 uint64_t size,
                                 const void *pattern,
                                 uint32_t pattern_size,
                                 otr_node_t *node);

// Adds a host function, called at every replay.
otr_status_t *otr_graph_add_host(otr_graph_t graph,
                                 const otr_node_t *deps,
                                 uint32_t dep_count,
                                 const otr_host_node_t *host,
                                 otr_node_t *node);

// Adds a node that does nothing but join edges.
otr_status_t *otr_graph_add_empty(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  otr_node_t *node);

// Copies all nodes of another graph in. `node` runs after all of them.
otr_status_t *otr_graph_add_child(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  otr_graph_t child,
                                  otr_node_t *node);

// Adds a conditional node: OTR_GRAPH_IF, _WHILE or _SWITCH. The predicate is one number in device
// memory, of dtype bool, u8, i32 or i64, read when the node runs. The bodies are graphs of the
// same device, taken as they are now.
otr_status_t *otr_graph_add_conditional(otr_graph_t graph,
                                        const otr_node_t *deps,
                                        uint32_t dep_count,
                                        uint32_t kind,
                                        uint64_t predicate,
                                        uint32_t dtype,
                                        const otr_graph_t *bodies,
                                        uint32_t body_count,
                                        otr_node_t *node);

// Adds an allocation from the graph's pool, and gives its address. It may be memory that another
// node has freed: then it runs after that node.
otr_status_t *otr_graph_add_alloc(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  uint64_t size,
                                  uint64_t *address,
                                  otr_node_t *node);

// Adds the end of an allocation of otr_graph_add_alloc: later nodes must not use it.
otr_status_t *otr_graph_add_free(otr_graph_t graph,
                                 const otr_node_t *deps,
                                 uint32_t dep_count,
                                 uint64_t address,
                                 otr_node_t *node);

// Makes a graph executable. `flags` is 0 or of OTR_GRAPH_SERIAL, and OTR_GRAPH_SUBMIT or
// OTR_GRAPH_NATIVE. Without either of these the way that costs least is taken.
otr_status_t *otr_graph_instantiate(otr_graph_t graph, uint32_t flags, otr_graph_exec_t *exec);

// Destroys an executable graph without waiting: replays that were submitted still run, and what
// they use is given back afterwards.
otr_status_t *otr_graph_exec_destroy(otr_graph_exec_t exec);

// Replays a graph in stream order, and returns at once. Replays of one executable graph run in the
// order of these calls, on whatever streams.
otr_status_t *otr_graph_replay(otr_graph_exec_t exec, otr_stream_t stream);

// The slot of a name, for otr_graph_bind. OTR_ERR_NOT_FOUND.
otr_status_t *otr_graph_slot(otr_graph_exec_t exec, const char *name, uint32_t *slot);

// Puts other memory in place of a named buffer, for later replays: without a copy, and without
// recording anew. The memory is kept alive until other memory takes its place.
otr_status_t *otr_graph_bind(otr_graph_exec_t exec, uint32_t slot, uint64_t address);

// Puts another number in place of a named one, for later replays.
otr_status_t *otr_graph_bind_scalar(otr_graph_exec_t exec,
                                    uint32_t slot,
                                    const otr_scalar_t *value);

// Takes over addresses and numbers of another graph of the same shape: same kinds of nodes, same
// operators, same edges. OTR_ERR_INVALID_ARGUMENT names the first node that differs, and nothing
// has changed then. Bindings go back to what that graph recorded.
otr_status_t *otr_graph_update(otr_graph_exec_t exec, otr_graph_t graph);

// Figures of an executable graph.
otr_status_t *otr_graph_exec_info(otr_graph_exec_t exec, otr_graph_exec_info_t *info);

// Replays once, timing each node, and waits. The result is JSON: `total_ns`, and `nodes` with `id`,
// `label`, `scope`, `ns`; as a file it opens in Perfetto (`traceEvents`). Free it with
// otr_string_free.
otr_status_t *otr_graph_profile(otr_graph_exec_t exec, otr_stream_t stream, char **json);

// Compares the time of a replay with that of submitting its nodes one by one, the best of some rounds
// each, and waits. The result is JSON: `nodes`, `replay_ns`, `node_by_node_ns`, `slower`. Memory is as
// it was before; host functions are called, and random numbers are drawn, in every round. Free it
// with otr_string_free.
otr_status_t *otr_graph_cost(otr_graph_exec_t exec,
                             otr_stream_t stream,
                             char **json);

// Runs the nodes in the order in which they were recorded, then as a replay does, from the same
// contents of memory, and waits. Fails with the first node whose result differs.
otr_status_t *otr_graph_check(otr_graph_exec_t exec, otr_stream_t stream);

// Starts to keep what happens to the memory of a device, or of OTR_HOST_MEMORY, for
// otr_memory_snapshot; or goes on, with other options. Blocks that are live already have neither label
// nor context.
otr_status_t *otr_memory_history_start(uint32_t device,
                                       const otr_history_options_t *options);

// Stops to keep what happens, and forgets what was kept: contexts are released.
otr_status_t *otr_memory_history_stop(uint32_t device);

// Forgets the events that were kept so far, and goes on.
otr_status_t *otr_memory_history_clear(uint32_t device);

// Gives this label to what the calling thread allocates from now on, on any device, until
// otr_memory_label_pop. Labels nest, and are told in snapshots, by otr_memory_pointer_info, and in
// the text of OTR_ERR_OUT_OF_MEMORY. The name is kept for the life of the process.
otr_status_t *otr_memory_label_push(const char *label);

// Goes back to the label before the last otr_memory_label_push of the calling thread.
otr_status_t *otr_memory_label_pop(void);

// The labels that hold most memory in use, of a device or of OTR_HOST_MEMORY, the largest first, at
// most `count`, as JSON: a list of {"label", "bytes", "blocks"}, where the label null stands for
// memory without one. Knows what was allocated since the first label, the start of the history or of
// a trace. Free it with otr_string_free.
otr_status_t *otr_memory_holders(uint32_t device,
                                 uint32_t count,
                                 char **json);

// Writes what is allocated and freed on a device from now on to a file, in the text format that
// `outrigger replay` and `outrigger memory` read. What is live already is not in it. A trace of the
// device that is being written ends. OTR_ERR_INVALID_ARGUMENT if the file cannot be written.
otr_status_t *otr_memory_trace_start(uint32_t device, const char *path);

// Ends the trace of a device, if one is being written; to be called before the process ends.
// OTR_ERR_INVALID_ARGUMENT if some of it could not be written: the file ends before that.
otr_status_t *otr_memory_trace_stop(uint32_t device);

// Notes in the trace that a step begins, under this name. Waits for the device, since replays take
// it to be idle there.
otr_status_t *otr_memory_trace_mark(uint32_t device, const char *label);

// Hands out at least `size` bytes of a device, in the order of `stream`: memory that was freed
// may be handed out again while the work before the free is still running on that stream.
// 0 bytes are address 0. OTR_ERR_OUT_OF_MEMORY says where the memory is.
otr_status_t *otr_memory_alloc(uint32_t device,
                               uint64_t size,
                               otr_stream_t stream,
                               uint64_t *address);

// Frees an allocation of a device, at any time: it is reused in stream order. 0 is ignored.
otr_status_t *otr_memory_free(uint32_t device, uint64_t address);

// Says that work of another stream uses an allocation: after it is freed it is reused only when
// what that stream had been given by then has finished.
otr_status_t *otr_memory_record_stream(uint32_t device, uint64_t address, otr_stream_t stream);

// What is known of any address within an allocation of a device. OTR_ERR_NOT_FOUND: it is in none.
otr_status_t *otr_memory_pointer_info(uint32_t device,
                                      uint64_t address,
                                      otr_pointer_info_t *info);

// The allocation around an address as a text that other processes of the same user turn into memory
// of theirs, which reaches all of its bytes. It must be kept until all of them have closed it. Free
// the text with otr_string_free. OTR_ERR_UNSUPPORTED if the driver shares no memory.
otr_status_t *otr_memory_export(uint32_t device, uint64_t address, char **exported);

// Makes an allocation that another process has exported memory of a device, and gives its address
// and its bytes. The work of the two processes is ordered by them. It can be used as any memory,
// but not captured, and is given back by otr_memory_close. OTR_ERR_INVALID_HANDLE for a text of
// another driver, and for what is no such text; OTR_ERR_NOT_FOUND if the exporter has given the
// memory up; OTR_ERR_UNSUPPORTED if the driver shares none, or not within one process.
otr_status_t *otr_memory_import(uint32_t device,
                                const char *exported,
                                uint64_t *address,
                                uint64_t *size);

// Gives imported memory back, by the address that otr_memory_import gave. Waits for the work of
// the device.
otr_status_t *otr_memory_close(uint32_t device, uint64_t address);

// Gives all cached memory that is not in use back to the driver, but for that of live pools.
otr_status_t *otr_memory_empty_cache(uint32_t device);

// Gives cached memory that is not in use back to the driver until at most `keep` bytes of it stay,
// as far as whole pieces of memory are idle, but for that of live pools. Waits for the streams that
// it was of. `released` gets how many bytes; NULL if that does not matter.
otr_status_t *otr_memory_trim(uint32_t device, uint64_t keep, uint64_t *released);

// Free and total bytes of a device.
otr_status_t *otr_memory_info(uint32_t device, uint64_t *free_bytes, uint64_t *total_bytes);

// Statistics of a device's memory.
otr_status_t *otr_memory_stats(uint32_t device, otr_memory_stats_t *stats);

// Starts all peaks anew from the current values.
otr_status_t *otr_memory_reset_peak(uint32_t device);

// Starts all accumulated counts anew from 0.
otr_status_t *otr_memory_reset_accumulated(uint32_t device);

// Limits the bytes that the cache may take from a device; UINT64_MAX lifts the limit. What is held
// already stays: below the limit, memory is given back as it becomes idle and more is needed.
otr_status_t *otr_memory_set_limit(uint32_t device, uint64_t bytes);

// The most bytes that the cache may take from a device; UINT64_MAX if there is no limit.
otr_status_t *otr_memory_limit(uint32_t device, uint64_t *bytes);

// Limits the bytes that the cache may take to a fraction of the device's memory, 0 to 1.
otr_status_t *otr_memory_set_fraction(uint32_t device, double fraction);

// The limit of a device as a fraction of its memory: 1 if there is none.
otr_status_t *otr_memory_fraction(uint32_t device, double *fraction);

// Limits the bytes that the caches of all devices together may hold; UINT64_MAX lifts the limit.
otr_status_t *otr_memory_set_process_limit(uint64_t bytes);

// Bytes that the caches of all devices hold, and the most that they may; UINT64_MAX if there is no
// limit.
otr_status_t *otr_memory_process_info(uint64_t *held_bytes, uint64_t *limit_bytes);

// All segments of a device, or of OTR_ALL_DEVICES, with their blocks and the events that were kept
// (otr_memory_history_start), as JSON under the names of PyTorch's memory snapshots: "segments",
// "device_traces" (a list per device), "allocator_settings"; of all devices also "host_segments" and
// "host_traces", which are of pinned memory. Blocks and events also have their "label". Free it with
// otr_string_free.
otr_status_t *otr_memory_snapshot(uint32_t device,
                                  char **json);

// Has a function called for every event of the given kinds (OTR_OBSERVE_*, or-ed), from any
// thread, until the observer is removed. `user` is the host's to keep until otr_observer_remove has
// returned.
otr_status_t *otr_observer_add(uint32_t kinds,
                               otr_observer_fn function,
                               void *user,
                               otr_observer_t *observer);

// Has a function called when an allocation of any device is about to fail, until the observer is
// removed by otr_observer_remove.
otr_status_t *otr_observer_add_pressure(otr_pressure_fn function,
                                        void *user,
                                        otr_observer_t *observer);

// Removes an observer. When it returns, no call of it is running and none will start; it must
// not be called from within the observer.
otr_status_t *otr_observer_remove(otr_observer_t observer);

// The number of an operator, the same for the life of the process. docs/operators.md lists names,
// operands and scalars. OTR_ERR_NOT_FOUND if the library has none of this name.
otr_status_t *otr_operator_find(const char *name, otr_operator_id_t *operator_id);

// Runs an operator in stream order and returns at once. Operands lie in live memory of the stream's
// device; `name` of the call is ignored, and the call is not looked at after the return.
// OTR_ERR_INVALID_ARGUMENT if operands or scalars do not fit the operator; OTR_ERR_UNSUPPORTED if
// there is no kernel for these arguments; nothing was done in both cases. An index out of bounds
// shows when the work runs: the stream fails with OTR_ERR_OUT_OF_RANGE.
otr_status_t *otr_operator_call(otr_stream_t stream,
                                otr_operator_id_t operator_id,
                                const otr_operator_call_t *call);

// Lends the threads of a framework to host kernels, for the whole process; NULL goes back to the
// built-in pool. Work that runs already goes on as it began.
otr_status_t *otr_set_parallel_for(otr_parallel_for_fn function);

// The number of threads of the built-in pool, for the whole process; 0: as many as cores.
otr_status_t *otr_set_threads(uint32_t threads);

// Hands out at least `size` bytes of pinned host memory. 0 bytes are NULL.
otr_status_t *otr_host_alloc(uint64_t size, void **pointer);

// Frees pinned memory, at any time. NULL is ignored.
otr_status_t *otr_host_free(void *pointer);

// Says that work of a stream uses pinned memory, as an asynchronous copy does.
otr_status_t *otr_host_record_stream(void *pointer, otr_stream_t stream);

// Sets `yes` to 1 if a pointer lies within live pinned memory of this runtime, else to 0.
otr_status_t *otr_host_is_pinned(const void *pointer, uint32_t *yes);

// Gives all cached pinned memory that is not in use back.
otr_status_t *otr_host_empty_cache(void);

// Statistics of pinned memory.
otr_status_t *otr_host_stats(otr_memory_stats_t *stats);

// Starts all peaks of pinned memory anew from the current values.
otr_status_t *otr_host_reset_peak(void);

// Starts all accumulated counts of pinned memory anew from 0.
otr_status_t *otr_host_reset_accumulated(void);

// Limits the bytes of pinned memory that are held, in use or cached; UINT64_MAX lifts the limit.
otr_status_t *otr_host_set_limit(uint64_t bytes);

// Makes a pool: memory of a device that serves only those who name the pool. Graphs can share one:
// they may then use the same memory for what they need in between, so that their replays must not
// overlap. A host can allocate there, too.
otr_status_t *otr_pool_create(uint32_t device, otr_pool_t *pool);

// Gives the handle up. The memory goes back to the device with the last graph and the last
// allocation that use it.
otr_status_t *otr_pool_destroy(otr_pool_t pool);

// What a pool holds now.
otr_status_t *otr_pool_info(otr_pool_t pool, otr_pool_info_t *info);

// Hands out memory of a pool, whatever pool the calling thread uses; else as otr_memory_alloc.
// otr_memory_free takes it back to the pool.
otr_status_t *otr_pool_alloc(otr_pool_t pool,
                             uint64_t size,
                             otr_stream_t stream,
                             uint64_t *address);

// From now on until otr_pool_end_use, what the calling thread allocates on the pool's device comes
// from this pool: on any stream, or with a `stream` other than 0 on that one only. Uses nest, and
// the innermost that fits an allocation decides; a stream that captures allocates from the pool of
// its graph all the same. The pool lives at least until then.
otr_status_t *otr_pool_begin_use(otr_pool_t pool, otr_stream_t stream);

// Ends the last use that the calling thread has begun, which must be of this pool. Memory that was
// allocated stays the pool's.
otr_status_t *otr_pool_end_use(otr_pool_t pool);

// Limits the bytes of a pool that may be in use, rounded up; UINT64_MAX lifts the limit. What is in
// use stays. A request beyond it is OTR_ERR_OUT_OF_MEMORY, after observers of pressure were asked.
otr_status_t *otr_pool_set_limit(otr_pool_t pool, uint64_t bytes);

// Puts a pool to sleep: what is in use of it moves to memory of the host, and the device gets the
// pool's memory back. Waits for all work of all devices; nobody may submit work on the pool's memory
// until otr_pool_wake. Meanwhile allocations from the pool, replays of graphs, copies and operators
// that use its memory are OTR_ERR_BUSY; frees go on. `released` gets how many bytes the device has got
// back, 0 if the pool slept already; NULL if that does not matter. OTR_ERR_UNSUPPORTED on a driver
// without virtual memory, OTR_ERR_CAPTURE while a graph is recorded into the pool, OTR_ERR_BUSY while
// another thread allocates from it. Where it fails the pool is awake.
otr_status_t *otr_pool_sleep(otr_pool_t pool,
                             uint64_t *released);

// Brings the memory of a pool back to its addresses, with what it has held. OTR_ERR_OUT_OF_MEMORY,
// after caches were given back and observers of pressure were asked; where it fails the pool still
// sleeps, and nothing is lost. A pool that is awake stays so.
otr_status_t *otr_pool_wake(otr_pool_t pool);

// The segments of a pool and their blocks as JSON, as otr_memory_snapshot writes them, without
// events. Free it with otr_string_free.
otr_status_t *otr_pool_snapshot(otr_pool_t pool, char **json);

// The version of Outrigger, such as "0.1.0". Lives as long as the process.
const char *otr_version(void);

// All functions as a table, for hosts that load the library at run time: this is the one symbol that
// they look up. Lives as long as the process. A host goes on only if `api_major` is its
// OTR_HOST_API_MAJOR; an entry is there if it lies within `struct_size` (OTR_HOST_API_HAS).
const otr_host_api_t *otr_host_api(void);

// Makes the runtime ready: reads the environment and loads the drivers of OUTRIGGER_DRIVER
// ("name-or-path?key=value&...", several separated by commas; "host" by default). Any other call
// does it when it needs it. Fails if there is no device at all, with the reason for each driver.
// Where OUTRIGGER_LOG is set, this is also what starts the log.
otr_status_t *otr_runtime_init(void);

// Loads one more driver, or several separated by commas, and adds the devices behind those that are
// there; drivers are never unloaded. OTR_ERR_LOAD with the reason for each that was refused; the devices
// of the others were added.
otr_status_t *otr_driver_load(const char *spec);

// What was tried so far, what was taken, what was refused and why, as JSON.
// Free it with otr_string_free.
otr_status_t *otr_load_report(char **json);

// How many devices there are.
otr_status_t *otr_device_count(uint32_t *count);

// What is known of a device. It does not change while the process lives.
otr_status_t *otr_device_info(uint32_t device, otr_device_info_t *info);

// The current device of this thread; 0 until it is set.
otr_status_t *otr_device_current(uint32_t *device);

// Makes a device the current one of this thread.
otr_status_t *otr_device_set_current(uint32_t device);

// Waits for all work submitted to any stream of a device. Reports the first failure, and clears those
// of all streams. OTR_ERR_CAPTURE on a thread that records a capture of this device, unless that is in
// mode OTR_CAPTURE_RELAXED.
otr_status_t *otr_device_synchronize(uint32_t device);

// The code of a status: OTR_OK for NULL.
//
// NULL, or a status that was not freed.
int32_t otr_status_code(const otr_status_t *status);

// The text of a status: what was wrong, and what would be right. Never NULL; lives as long as the
// status.
//
// NULL, or a status that was not freed.
const char *otr_status_message(const otr_status_t *status);

// The operator that failed, or NULL where it does not apply. Lives as long as the status.
//
// NULL, or a status that was not freed.
const char *otr_status_operator(const otr_status_t *status);

// The stream whose work failed, or 0 where it does not apply.
//
// NULL, or a status that was not freed.
uint64_t otr_status_stream(const otr_status_t *status);

// The number of the failed command within its stream, from 1; 0 where it does not apply.
//
// NULL, or a status that was not freed.
uint64_t otr_status_submission(const otr_status_t *status);

// Frees a status. NULL is ignored.
//
// NULL, or a status that was not freed; it is not used afterwards.
void otr_status_free(otr_status_t *status);

// Frees a string that a call handed out. NULL is ignored.
//
// NULL, or a string that was handed out and not freed; it is not used afterwards.
void otr_string_free(char *string);

// The default stream of a device. It belongs to the runtime (H12): the same at every call.
otr_status_t *otr_stream_default(uint32_t device, otr_stream_t *stream);

// The next stream in turn of a device's pool, which belongs to the runtime. A lower priority
// number is more urgent; it is clamped to the device's range.
otr_status_t *otr_stream_from_pool(uint32_t device, int32_t priority, otr_stream_t *stream);

// Makes a stream, the caller's until otr_stream_destroy. A lower priority number is more urgent; it
// is clamped to the device's range (otr_device_info). OTR_ERR_OUT_OF_HOST_MEMORY if there is no room
// for another one.
otr_status_t *otr_stream_create(uint32_t device,
                                int32_t priority,
                                otr_stream_t *stream);

// Destroys a stream without waiting: work that was submitted still runs, and memory that was
// allocated on it can be used and freed as before. OTR_ERR_INVALID_ARGUMENT for a stream of the
// runtime.
otr_status_t *otr_stream_destroy(otr_stream_t stream);

// The device of a stream.
otr_status_t *otr_stream_device(otr_stream_t stream, uint32_t *device);

// The priority of a stream, as it was clamped; a lower number is more urgent.
otr_status_t *otr_stream_priority(otr_stream_t stream, int32_t *priority);

// The current stream of this thread on a device: its default stream until one is set.
otr_status_t *otr_stream_current(uint32_t device, otr_stream_t *stream);

// Makes a stream the current one of this thread on its device. The current device stays.
otr_status_t *otr_stream_set_current(otr_stream_t stream);

// Sets `finished` to 1 if all work submitted before has finished, else to 0. Never waits.
// Fails with the first failure of the stream's work, which stays; with OTR_ERR_CAPTURE while it
// captures.
otr_status_t *otr_stream_query(otr_stream_t stream, uint32_t *finished);

// Waits for all work submitted before. Fails with the first failure of the stream's work, which
// is thereby cleared: the stream takes work again. OTR_ERR_CAPTURE while it captures.
otr_status_t *otr_stream_synchronize(otr_stream_t stream);

// Sees to it that what was submitted starts by itself. Waiting does it too. While the stream
// captures it does nothing.
otr_status_t *otr_stream_flush(otr_stream_t stream);

// Lets later work of a stream start after the point at which an event was last recorded, also
// on another device. Does not wait, unless the event is of another driver. A failure that the event
// carries fails the stream, not this call. While the event's stream captures, the stream joins.
otr_status_t *otr_stream_wait_event(otr_stream_t stream, otr_event_t event);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTRIGGER_H */
