/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/outrigger.h: the host contract, version 1.0. What a framework or an application calls.
 *
 * Link with liboutrigger, or load it at run time and take all functions from a table (outrigger/table.h).
 * For C++ there is outrigger/outrigger.hpp, which owns what these functions hand out. Functions that
 * frameworks alone need are in outrigger/framework.h.
 *
 * THE RULES
 *
 * Outcomes
 *   H1  A call returns NULL on success, else a status, which is the caller's until otr_status_free and
 *       may be read and freed on any thread. A function that does not return a status cannot fail.
 *   H2  Outputs are written only on success. A call that fails has changed nothing, unless its entry says
 *       otherwise.
 *   H3  A status has a code of base.h, never OTR_OK, and a text, never empty: what was wrong, and what
 *       would be right. Where work of a stream failed, it names the stream, and the operator and the
 *       submission as far as the driver told them.
 *   H4  No C++ exception, panic or unwinding crosses this boundary, in either direction. A defect inside
 *       is OTR_ERR_INTERNAL. A function of the host catches what is thrown in it and answers with a code;
 *       what leaves it ends the process there. outrigger.hpp and the Rust package catch for their hosts:
 *       what is thrown in work is the failure OTR_ERR_EXECUTION of its stream, and a panic of an observer
 *       or a context goes no further.
 * Arguments
 *   H5  Streams, events, generators, observers, registrations, pools, graphs, executable graphs, modules and
 *       kernels are 64-bit ids: never 0, never used again, the top bit never set. 0, a stale id, an id of
 *       another kind and garbage are OTR_ERR_INVALID_HANDLE.
 *   H6  Pointers are valid for the call. NULL where a pointer is needed is OTR_ERR_INVALID_ARGUMENT, and
 *       the text names the argument. An array of no elements may be NULL.
 *   H7  Strings are NUL-terminated UTF-8; others are OTR_ERR_INVALID_ARGUMENT.
 *   H8  A device is a number below that of otr_device_count; others are OTR_ERR_INVALID_DEVICE. A device is
 *       opened by the first call that uses it; if it cannot be opened, each such call says why and tries
 *       again, and the others work. To count devices, to ask for otr_device_info, to set the current
 *       device or to seed a generator opens none. A flag, mode, kind or format that is not documented is
 *       OTR_ERR_INVALID_ARGUMENT.
 *   H9  Structs start with `struct_size`, sizeof of the struct that the caller was compiled with. The
 *       library writes no byte beyond it, and never writes `struct_size` itself. A size that is too small
 *       is OTR_ERR_INVALID_ARGUMENT: a struct that the library reads has at least all members of version
 *       1.0, and one that it fills has at least `struct_size`.
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
 *       otr_host_kernel_fn) must not call the library. Observers and registered operators may: no lock of the
 *       library is held then.
 *   H17 After a fork the child's calls fail with OTR_ERR_FORKED, if the parent had made the runtime.
 * Order
 *   H18 Work of a stream takes effect in the order of submission. Submitting does not wait for work to
 *       finish, unless the entry says so. Streams are independent, except for events.
 *   H19 When work fails, later work of its stream does not run, except host functions, which get the
 *       failure. otr_stream_query and otr_stream_synchronize report the first failure;
 *       otr_stream_synchronize clears it, and the stream takes work again.
 *   H20 An event is a point of a stream. One that was never recorded counts as passed. Recording again
 *       moves it; waits that were made before keep the old point. It carries the failure of the work
 *       before it to whoever asks or waits.
 * Memory
 *   H21 A device address is a number that can be offset within its allocation; 0 is none. Sizes are in
 *       bytes. 0 bytes are address 0, and freeing 0 does nothing. Devices of two drivers may have equal
 *       addresses: an address is one of the device that the call takes, or of the device of its stream, pool
 *       or graph. otr_memory_find tells whose a number is, for a host that has nothing else.
 *   H22 Ranges of copies and fills are checked: a range that is not within one live allocation of the
 *       device is OTR_ERR_INVALID_ARGUMENT. So is freeing what is not allocated, and so are sizes and
 *       strides of an operand that no memory could hold. The host sees to it that operands of operators
 *       and kernels lie in live memory.
 *   H23 Memory is freed at any time, and reused in the order of the stream that it was allocated on. For
 *       work of other streams the host says otr_memory_record_stream, or orders the streams itself.
 *   H24 A request that cannot be met is OTR_ERR_OUT_OF_MEMORY, after caches were given back; nothing else
 *       has changed then, and what is there stays usable.
 * Capture and graphs
 *   H25 From otr_capture_begin to otr_capture_end the work of a stream is kept, and nothing of it runs.
 *       A stream that waits for an event recorded there joins.
 *   H26 A call that would wait for a stream that captures is OTR_ERR_CAPTURE, and so is work that no
 *       graph can hold. The first failure of a call in a capture is what otr_capture_end reports; the
 *       streams are usable then. What other threads do elsewhere cannot break a capture.
 *   H27 A graph that was destroyed lives on in what was instantiated from it. An executable graph keeps
 *       the memory that it uses alive, also when the host has freed it. Memory that it needs only while
 *       it runs may serve others in between.
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

// A stream does not capture.
#define OTR_CAPTURE_NONE 0

// A stream captures.
#define OTR_CAPTURE_ACTIVE 1

// A stream captures, and a call in the capture has failed.
#define OTR_CAPTURE_FAILED 2

// Capture mode: waiting for the whole device is refused on threads that record. Other threads cannot
// break a capture, so this is the same as OTR_CAPTURE_THREAD_LOCAL.
#define OTR_CAPTURE_GLOBAL 0

// Capture mode: waiting for the whole device is refused on threads that record.
#define OTR_CAPTURE_THREAD_LOCAL 1

// Capture mode: waiting for the whole device is allowed. It does not wait for what is recorded.
#define OTR_CAPTURE_RELAXED 2

// The event can be used with otr_event_elapsed.
#define OTR_EVENT_TIMED 1

// A conditional node that runs its first body if the predicate is not 0; otherwise its second body, if
// there is one.
#define OTR_GRAPH_IF 1

// A conditional node that repeats its body as long as the predicate is not 0.
#define OTR_GRAPH_WHILE 2

// A conditional node that runs the body whose number is the predicate; if there is none, it runs
// nothing.
#define OTR_GRAPH_SWITCH 3

// A graph in the language of Graphviz.
#define OTR_GRAPH_DOT 1

// A graph's nodes and buffers as JSON.
#define OTR_GRAPH_JSON 2

// A picture of a graph, as SVG.
#define OTR_GRAPH_SVG 3

// Replays never use more than one thread.
#define OTR_GRAPH_SERIAL 1

// Replays go through the driver's queue node by node.
#define OTR_GRAPH_SUBMIT 2

// Replays are launches of a graph of the driver. OTR_ERR_UNSUPPORTED if the driver has no graphs.
#define OTR_GRAPH_NATIVE 4

// A replay is one launch of a host kernel that runs all nodes. If the driver takes no host functions
// but the host sees its memory, a host call takes the place of the kernel.
#define OTR_GRAPH_MODE_LAUNCH 1

// A replay goes through the driver's queue node by node.
#define OTR_GRAPH_MODE_SUBMIT 3

// A replay is one launch of a graph of the driver.
#define OTR_GRAPH_MODE_NATIVE 4

// Frees are given a context as well, not only allocations.
#define OTR_HISTORY_CONTEXT_OF_FREES 1

// All devices, for a call that takes one device or all.
#define OTR_ALL_DEVICES 4294967295

// Pinned host memory, for a call that takes it instead of a device.
#define OTR_HOST_MEMORY 4294967294

// `flags` of a module: the call returns at once, and the code is compiled on threads of the library.
#define OTR_MODULE_BACKGROUND 1

// `flags` of a module: nothing is compiled. Code that is not loaded already, and whose compiled form is not on disk
// (OUTRIGGER_CACHE), is OTR_ERR_NOT_FOUND.
#define OTR_MODULE_STORED 2

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

// A host kernel served an operator on a device that is not the CPU. Seen in the mode OTR_FALLBACK_WARN, the first
// time for each operator.
#define OTR_OBSERVE_HOST_KERNEL 64

// The most scalars of one call.
#define OTR_SCALARS_MAX 64

// `flags` of a call: nothing but a registered function or an operator of the driver may serve it. Without one the
// answer is OTR_ERR_UNSUPPORTED, whatever host kernels there are.
#define OTR_CALL_DEVICE_ONLY 1

// The operator is not made of others: the driver serves the whole, or a host kernel does.
#define OTR_CALL_WHOLE 2

// A kernel.
#define OTR_WORK_KERNEL 1

// An operator of the driver.
#define OTR_WORK_OPERATOR 2

// A copy.
#define OTR_WORK_COPY 3

// A fill.
#define OTR_WORK_FILL 4

// A function of the host, in stream order.
#define OTR_WORK_HOST_CALL 5

// A graph that the driver replays, as a whole.
#define OTR_WORK_GRAPH 6

// Work that several devices do together.
#define OTR_WORK_COLLECTIVE 7

// The device has measured when the work ran.
#define OTR_CLOCK_DEVICE 0

// The driver has no timestamps: the host has measured when the work was submitted and when it had finished.
#define OTR_CLOCK_HOST 1

// `flags` of a registration: it replaces the one that is there for the same operator and the same device, or for
// all.
#define OTR_REGISTER_REPLACE 1

// A stream: a generational id, never 0.
typedef uint64_t otr_stream_t;

// The bytes that a kernel uses from one of its addresses on.
typedef struct {
  // Bytes, all within one allocation.
  uint64_t bytes;
  // 1 if the kernel writes to them, else 0.
  uint32_t written;
  // 0
  uint32_t reserved;
} otr_address_range_t;

// A host kernel: a function of the host that runs as a kernel of the device, with its arguments.
typedef struct {
  // sizeof(otr_host_kernel_call_t)
  size_t struct_size;
  // NULL
  const void *next;
  // The function that runs, on a thread of the driver's choice.
  otr_host_kernel_fn function;
  // The argument block. The call copies it.
  const void *args;
  // The bytes of the block.
  uint32_t args_size;
  // Estimated time in nanoseconds, 0 if unknown. It decides what runs in parallel.
  uint32_t cost_ns;
  // The name of the kernel, for failures and pictures. Lives as long as the process; or NULL.
  const char *label;
  // The offsets of device addresses in the block, in bytes, each a multiple of 8. A graph keeps the
  // memory of these addresses alive, and can bind other memory in its place.
  const uint32_t *address_offsets;
  // The number of these offsets.
  uint32_t address_count;
  // 0
  uint32_t reserved;
  // For each address what the kernel uses from there on; or NULL. With it, the kernel runs on every
  // device: over copies in host memory where the driver runs no host kernels and the host does not
  // see the memory.
  const otr_address_range_t *address_ranges;
} otr_host_kernel_call_t;

// A host function of a stream or graph. `bias`: add it to an address of this device to reach the
// bytes. `upstream`: OTR_OK, or the failure of the work before it; after a failure the function only
// cleans up. It must not call back into Outrigger. Any result other than OTR_OK makes the stream fail.
typedef int32_t (*otr_host_node_fn)(void *user, int64_t bias, int32_t upstream);

// Gives user data back.
typedef void (*otr_destroy_fn)(void *user);

// A host function, and what it uses.
typedef struct {
  // sizeof(otr_host_node_t)
  size_t struct_size;
  // NULL
  const void *next;
  // The function.
  otr_host_node_fn function;
  // The argument of the function.
  void *user;
  // Called once with `user` when the function will not be called again; or NULL. It is not called if
  // the call that takes this struct fails.
  otr_destroy_fn destroy;
  // The name of the function, copied; or NULL.
  const char *label;
  // Addresses within allocations that the function reads. A graph keeps these allocations alive.
  const uint64_t *reads;
  // Addresses within allocations that the function writes, or reads and writes.
  const uint64_t *writes;
  // The number of addresses in `reads`.
  uint32_t read_count;
  // The number of addresses in `writes`.
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

// The state of a stream's capture. Set `struct_size` before the call.
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

// The place of a rank in a communicator that it joins.
typedef struct {
  // sizeof(otr_communicator_params_t)
  size_t struct_size;
  // NULL
  const void *next;
  // The id that otr_communicator_id gave, in any process.
  const char *id;
  // The number of ranks.
  uint32_t rank_count;
  // The number of this rank, from 0.
  uint32_t rank;
  // Milliseconds that ranks wait for one another; 0: the driver's choice, some minutes.
  uint64_t timeout_ms;
} otr_communicator_params_t;

// One rank of a communicator: a generational id, never 0.
typedef uint64_t otr_communicator_t;

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
  // 1 for a graph of otr_capture_partial, which cannot be instantiated; else 0.
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
  // Nodes that were dropped, because nobody sees their results.
  uint32_t dropped;
  // Parts that run one after the other.
  uint32_t levels;
  // Parts of these that run on several threads.
  uint32_t parallel_levels;
  // OTR_GRAPH_MODE_*
  uint32_t mode;
  // 0
  uint32_t reserved;
} otr_graph_exec_info_t;

// Captures the place of the calling thread, as a number of the host's choice. 0 means nothing, and is
// not released.
typedef uint64_t (*otr_context_capture_fn)(void *user);

// Releases a context to which nothing refers any more. Called once for each that was captured, from
// any thread.
typedef void (*otr_context_release_fn)(void *user, uint64_t context);

// Takes one frame of a context. otr_context_frames_fn calls it, for the innermost frame first. `file`
// and `name` are copied; NULL is "". `line` counts from 1; 0 if unknown.
typedef void (*otr_frame_fn)(void *frames, const char *file, uint32_t line, const char *name);

// Lists the frames of a context: calls `frame(frames, ...)` for each.
typedef void (*otr_context_frames_fn)(void *user, uint64_t context, otr_frame_fn frame, void *frames);

// The settings of otr_memory_history_start. The functions are called outside of all locks of the runtime, from any
// thread, until `release` was called for each captured context. They must not throw. Memory that `capture` itself
// allocates has no context.
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

// Facts of an address within an allocation. Set `struct_size` before the call.
typedef struct {
  // sizeof(otr_pointer_info_t)
  size_t struct_size;
  // The first address of the allocation.
  uint64_t base;
  // The usable bytes of the allocation.
  uint64_t size;
  // The stream that the memory was allocated on.
  otr_stream_t stream;
  // Bytes that were asked for.
  uint64_t requested;
  // The pool of the allocation; 0 for the memory that all share, and for a pool whose handle was given up.
  otr_pool_t pool;
  // The number of the pool within its device, as snapshots name it; 0 for the memory that all share.
  uint64_t pool_number;
  // The label under which the memory was allocated, valid for the life of the process; NULL if none is known.
  const char *label;
} otr_pointer_info_t;

// One statistic.
typedef struct {
  // The value now.
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
  // Large requests that were met by idle memory that lies apart, which was mapped a second time.
  uint64_t views;
  // Large requests that were met by such memory that was mapped already.
  uint64_t view_reuses;
  // Times that a stream was made to wait on the device for another, to use memory that the other had
  // freed.
  uint64_t stream_waits;
  // Times that a thread had to wait for a stream.
  uint64_t host_waits;
  // The counts of blocks up to 1 MiB.
  otr_class_stats_t small;
  // The counts of blocks above 1 MiB.
  otr_class_stats_t large;
} otr_memory_stats_t;

// Code for a device.
typedef struct {
  // sizeof(otr_module_params_t)
  size_t struct_size;
  // NULL
  const void *next;
  // The code: source or a compiled form, as `format` says.
  const void *code;
  // The bytes of the code, without a NUL at the end of a source.
  uint64_t size;
  // Options for the compiler of the format; or NULL.
  const char *options;
  // OTR_CODE_*, but not OTR_CODE_HOST_FUNCTION: see otr_host_kernel_launch for these.
  otr_code_format_t format;
  // 0, OTR_MODULE_BACKGROUND or OTR_MODULE_STORED.
  uint32_t flags;
} otr_module_params_t;

// Code that is loaded on a device: a generational id, never 0.
typedef uint64_t otr_module_t;

// A kernel of a module: a generational id, never 0.
typedef uint64_t otr_kernel_t;

// One event. It lives as long as the observer's call.
typedef struct {
  // sizeof(otr_observation_t), of the library
  size_t struct_size;
  // One of OTR_OBSERVE_*.
  uint32_t kind;
  // The device that the observation concerns.
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
  // The time that a fallback took.
  uint64_t nanoseconds;
  // The text of the error if a request could not be met; else "".
  const char *text;
  // If a request could not be met: bytes that the device has left, if it tells them; else 0.
  uint64_t device_free;
  // If a request could not be met: bytes that the device has in all, if it tells them; else 0.
  uint64_t device_total;
} otr_observation_t;

// Called on the thread that caused the event, outside of all locks of the runtime. It must not throw.
typedef void (*otr_observer_fn)(void *user, const otr_observation_t *observation);

// An observer: a generational id, never 0.
typedef uint64_t otr_observer_t;

// Asked to release memory: a device has no `needed` bytes, although caches were given back and pending
// frees were waited for. Returns 0 if it released nothing; otherwise the allocation is tried once
// more. Called on the thread that allocates, outside of all locks of the runtime. It may call the
// runtime and may allocate; an allocation of its own that cannot be met is an error. It must not
// throw.
typedef uint32_t (*otr_pressure_fn)(void *user, uint32_t device, uint64_t needed);

// Figures of a pool. Set `struct_size` before the call.
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
  // The number of the pool within the device, as snapshots name it.
  uint64_t number;
  // Segments taken from the device.
  uint64_t segments;
  // The most bytes that may be in use; UINT64_MAX if there is no limit.
  uint64_t limit;
  // The bytes that the device has got back while the pool sleeps; else 0.
  uint64_t asleep_bytes;
  // 1 while the pool sleeps, else 0.
  uint32_t asleep;
  // 0
  uint32_t reserved;
} otr_pool_info_t;

// One piece of work that a stream was given. Times are nanoseconds of the host's clock since 1970; those that a
// device has measured are converted to it. It lives as long as the call that tells it.
typedef struct {
  // sizeof(otr_profiled_work_t), of the library
  size_t struct_size;
  // One of OTR_WORK_*.
  uint32_t kind;
  // The device.
  uint32_t device;
  // The stream, which may have been destroyed since.
  otr_stream_t stream;
  // The number that the thread had chosen by otr_profile_correlate.
  uint64_t correlation;
  // The thread that submitted the work, by the number of the operating system.
  uint64_t thread;
  // The name of the kernel or operator, or what the work does.
  const char *name;
  // The bytes that are moved or written; 0 for other kinds.
  uint64_t bytes;
  // The time when the submission began.
  uint64_t submit_begin;
  // The time when the submission ended.
  uint64_t submit_end;
  // The time when the work began; 0 unless `outcome` is OTR_OK.
  uint64_t begin;
  // The time when the work ended; 0 unless `outcome` is OTR_OK.
  uint64_t end;
  // One of OTR_CLOCK_*.
  uint32_t clock;
  // OTR_NOT_READY if the work had not finished when the profile ended; else OTR_OK, or the failure of its stream.
  int32_t outcome;
} otr_profiled_work_t;

// Is told one piece of work, on the thread that stops the profile. It must not throw.
typedef void (*otr_profile_fn)(void *user, const otr_profiled_work_t *work);

// Serves a call of an operator by giving work to the stream: copies, fills, kernels, host nodes, other operators. It
// is called on the thread that calls the operator, outside of all locks of the runtime, and from several threads at
// a time. Returns NULL, or a status, which the runtime frees: one that a call gave it, or one of otr_status_new. The
// code OTR_ERR_UNSUPPORTED passes the call on; it is right only while the function has given no work to the stream. A
// call of the same operator from within the function goes to what comes after it. `call` lives as long as the
// function runs. The function must not throw.
typedef otr_status_t *(*otr_operator_fn)(void *user,
                                         otr_stream_t stream,
                                         otr_operator_id_t operator_id,
                                         const otr_operator_call_t *call);

// A function that serves an operator.
typedef struct {
  // sizeof(otr_operator_registration_t)
  size_t struct_size;
  // NULL
  const void *next;
  // The operator: a name that otr_operator_find takes, such as "mylib::scale_add".
  const char *name;
  // The owner of the registration, for texts. Copied.
  const char *owner;
  // The function.
  otr_operator_fn function;
  // The argument of the function.
  void *user;
  // Called once with `user` when the registration has ended and its last call is over, on whichever thread that
  // is; or NULL. It is not called if otr_operator_register fails.
  otr_destroy_fn destroy;
  // The device that the function serves, or OTR_ALL_DEVICES.
  uint32_t device;
  // 0 or OTR_REGISTER_REPLACE.
  uint32_t flags;
} otr_operator_registration_t;

// A registered operator: a generational id, never 0.
typedef uint64_t otr_registration_t;

// Facts of a device. Set `struct_size` before the call.
typedef struct {
  // sizeof(otr_device_info_t)
  size_t struct_size;
  // The device's name.
  char name[128];
  // The maker's name.
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
  // The least urgent priority of streams; a lower number is more urgent. Both may be 0 until the device is used for
  // the first time.
  int32_t priority_lowest;
  // The most urgent priority of streams.
  int32_t priority_highest;
  // The device's number within its driver.
  uint32_t driver_ordinal;
  // Bytes of the largest allocation.
  uint64_t largest_allocation;
  // Formats of code that otr_module_load takes: bit N is OTR_CODE_* number N.
  uint32_t code_formats;
  // Features of code for the device, 0 unknown: OTR_FEATURE_*.
  uint32_t features;
  // Work-items of a group, in all.
  uint32_t largest_group;
  // Work-items of a group in each dimension.
  uint32_t largest_block[3];
  // Work-items that run in step.
  uint32_t sub_group;
  // Bytes of local memory of a group.
  uint32_t local_memory_bytes;
  // Bytes of the argument block of a launch.
  uint32_t argument_block_bytes;
  // The node of the host's memory that is nearest; -1: unknown.
  int32_t numa_node;
  // Identifies the device across processes; all zero: there is no such number.
  uint8_t uuid[16];
  // 1 if the numbers of its PCI place, which follow, are known; else they are 0.
  uint32_t has_pci;
  // The PCI domain.
  uint32_t pci_domain;
  // The bus within the domain.
  uint32_t pci_bus;
  // The device on the bus.
  uint32_t pci_device;
  // The function of the device.
  uint32_t pci_function;
  // 0
  uint32_t reserved;
  // Bytes of memory of each kind, by its number; 0: there is none of it. The first is `total_memory`.
  uint64_t memory_bytes[4];
} otr_device_info_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Launches a host kernel, a function of the host, in stream order, and returns at once; a kernel of a module
// is launched by otr_kernel_launch. OTR_ERR_UNSUPPORTED if the driver runs no host kernels, its memory is not
// visible to the host, and the call says nothing of what to copy.
otr_status_t *otr_host_kernel_launch(otr_stream_t stream,
                                     const otr_host_kernel_call_t *call);

// Runs a host function as otr_host_call does, with what a graph has to know of it: the memory that it uses, which
// the graph keeps, and `destroy`, which tells that it will not be called again.
otr_status_t *otr_host_node(otr_stream_t stream,
                            const otr_host_node_t *node);

// Begins a capture: until otr_capture_end the work of this stream is recorded, not run. A stream
// that waits for an event that was recorded in the capture joins it. `mode` is OTR_CAPTURE_*.
// Memory that is allocated on these streams comes from `pool`; if it is 0, from a pool of the
// graph's own. The first call that fails in a capture makes the capture fail.
otr_status_t *otr_capture_begin(otr_stream_t stream, uint32_t mode, otr_pool_t pool);

// Ends the capture that was begun on this stream. Fails with the first failure of a call in the
// capture, or with OTR_ERR_CAPTURE if work of another stream was not joined. The capture has ended
// then, too: its streams are usable, and its memory is given back.
otr_status_t *otr_capture_end(otr_stream_t stream, otr_graph_t *graph);

// Makes a capture fail. otr_capture_end then reports the caller's reason.
otr_status_t *otr_capture_abort(otr_stream_t stream, const char *reason);

// A graph of what was recorded so far, to look at. It cannot be instantiated.
otr_status_t *otr_capture_partial(otr_stream_t stream, otr_graph_t *graph);

// Tells the state of a stream's capture.
otr_status_t *otr_capture_info(otr_stream_t stream, otr_capture_info_t *info);

// Labels the nodes that this stream records from here on, until the next label; NULL ends it. If
// the stream does not capture, the call does nothing.
otr_status_t *otr_capture_label(otr_stream_t stream, const char *label);

// Records a conditional node; see otr_graph_add_conditional.
otr_status_t *otr_capture_conditional(otr_stream_t stream,
                                      uint32_t kind,
                                      uint64_t predicate,
                                      uint32_t dtype,
                                      const otr_graph_t *bodies,
                                      uint32_t body_count);

// Copies `size` bytes in stream order. `kind` says which addresses are device addresses of the
// stream's device, and which are host pointers. The host keeps its memory valid and untouched
// until the copy has finished. Device ranges must lie in live allocations (H22). Source and
// destination must not overlap. A size of 0 is allowed with any addresses.
otr_status_t *otr_copy(otr_stream_t stream,
                       uint64_t dst,
                       uint64_t src,
                       uint64_t size,
                       uint32_t kind);

// Copies `size` bytes between live allocations of two devices, of any drivers. The stream belongs
// to one of the two devices, and the copy is in its order. If the drivers have no better way, the
// call waits and copies through the host.
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

// Runs a function on the host in stream order, on a thread of the library's choice: exactly once,
// or at every replay if the stream captures. It also runs after a failure of the work before it,
// and is given this failure. It must not call the library. Any result other than OTR_OK makes the
// stream fail with it. The host keeps `user` valid until the function has run for the last time;
// otr_host_node tells when that is. If this call fails, the function does not run.
otr_status_t *otr_host_call(otr_stream_t stream, otr_host_fn function, void *user);

// Makes an id for one communicator, a text that the host takes to all ranks, and frees with
// otr_string_free. It is good as long as this process runs. OTR_ERR_UNSUPPORTED for a device whose driver
// has no communicators.
otr_status_t *otr_communicator_id(uint32_t device,
                                  char **id);

// Joins a communicator as a rank on a device, and waits until all ranks have come: ranks of one process join
// on a thread each, and have a device each. OTR_ERR_PEER_LOST if they do not come within the timeout;
// OTR_ERR_INVALID_ARGUMENT for a text that is no id of the driver, a rank that has come before, and another
// number of ranks; OTR_ERR_NOT_FOUND for an id that was used, or whose process has ended.
otr_status_t *otr_communicator_create(uint32_t device,
                                      const otr_communicator_params_t *params,
                                      otr_communicator_t *communicator);

// Destroys a communicator without waiting. Work that was submitted still runs; other ranks that need more
// of this one get OTR_ERR_PEER_LOST.
otr_status_t *otr_communicator_destroy(otr_communicator_t communicator);

// Makes a communicator fail, on every rank, and returns at once. Its work that waits, and all later calls,
// fail: with OTR_ERR_CANCELLED here, and with OTR_ERR_PEER_LOST on the other ranks.
otr_status_t *otr_communicator_abort(otr_communicator_t communicator);

// Succeeds, or fails with why the communicator has failed: OTR_ERR_PEER_LOST if a rank has ended, failed, or
// not come to a call within the timeout. Never waits.
otr_status_t *otr_communicator_query(otr_communicator_t communicator);

// Gives every rank the combined elements of all ranks, in stream order: `count` of them. `receive` may be
// `send`. All ranks make the same calls, in the same order. The call returns at once; a rank that does not
// come fails the stream with OTR_ERR_PEER_LOST. `reduction` is OTR_REDUCE_*. OTR_ERR_UNSUPPORTED for a type
// or a reduction that the driver has not; OTR_ERR_CAPTURE on a stream that captures.
otr_status_t *otr_all_reduce(otr_stream_t stream,
                             otr_communicator_t communicator,
                             uint64_t send,
                             uint64_t receive,
                             uint64_t count,
                             uint32_t dtype,
                             uint32_t reduction);

// As otr_all_reduce, but gives them to the root alone. `receive` is ignored on the other ranks.
otr_status_t *otr_reduce(otr_stream_t stream,
                         otr_communicator_t communicator,
                         uint64_t send,
                         uint64_t receive,
                         uint64_t count,
                         uint32_t dtype,
                         uint32_t reduction,
                         uint32_t root);

// As otr_all_reduce, but gives each rank a share of `count` elements: `send` has as many for all ranks, in
// their order. `receive` may be the own share of `send`.
otr_status_t *otr_reduce_scatter(otr_stream_t stream,
                                 otr_communicator_t communicator,
                                 uint64_t send,
                                 uint64_t receive,
                                 uint64_t count,
                                 uint32_t dtype,
                                 uint32_t reduction);

// Gives all ranks `size` bytes of the root, in stream order, under the terms of otr_all_reduce.
otr_status_t *otr_broadcast(otr_stream_t stream,
                            otr_communicator_t communicator,
                            uint64_t address,
                            uint64_t size,
                            uint32_t root);

// Gives all ranks `size` bytes of each rank, one part behind the other in the order of the ranks, in stream
// order, under the terms of otr_all_reduce. `send` may be the own part of `receive`.
otr_status_t *otr_all_gather(otr_stream_t stream,
                             otr_communicator_t communicator,
                             uint64_t send,
                             uint64_t receive,
                             uint64_t size);

// Sends bytes to ranks and receives bytes from ranks, in stream order. All transfers of a call go on side by
// side, and only the ranks that they name wait for one another. What one rank sends another arrives in the
// order of their calls. OTR_ERR_UNSUPPORTED if the driver cannot.
otr_status_t *otr_exchange(otr_stream_t stream,
                           otr_communicator_t communicator,
                           const otr_transfer_t *transfers,
                           uint32_t count);

// Writes a trace to a file in Chrome's JSON format, which Perfetto opens, until otr_trace_end. The
// trace holds fallbacks, the log of the drivers, and the work of the built-in driver by stream
// (operators, copies, fills, host calls). For the work of any other driver use the layer `trace`.
otr_status_t *otr_trace_begin(const char *path);

// Ends the trace and closes its file.
otr_status_t *otr_trace_end(void);

// Makes an event for streams of a device. It is the caller's until otr_event_destroy. `flags` is 0
// or OTR_EVENT_TIMED. Until it is recorded, it counts as passed. OTR_ERR_UNSUPPORTED for a timed
// event of a device without timestamps.
otr_status_t *otr_event_create(uint32_t device, uint32_t flags, otr_event_t *event);

// Destroys an event without waiting. Streams that wait for it still do.
otr_status_t *otr_event_destroy(otr_event_t event);

// Moves an event to the end of the work that was submitted to a stream of its device so far.
// Earlier waits keep the old point. If the stream captures, the event becomes a point of the
// capture.
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

// Makes a generator for a device. It is the caller's until otr_generator_destroy. Its outputs are
// those of Philox 4x32-10. Its state is a seed, and the number of 128-bit outputs that were drawn.
otr_status_t *otr_generator_create(uint32_t device, otr_generator_t *generator);

// The default generator of a device. It belongs to the runtime.
otr_status_t *otr_generator_default(uint32_t device, otr_generator_t *generator);

// Destroys a generator. OTR_ERR_INVALID_ARGUMENT for the default one of a device.
otr_status_t *otr_generator_destroy(otr_generator_t generator);

// Seeds a generator and goes back to the start of its sequence. In a capture, each replay does so.
otr_status_t *otr_generator_seed(otr_generator_t generator, uint64_t seed);

// The seed, and the offset of the next output (in 128-bit outputs). On a thread whose current stream
// captures they stand for the state of a replay at this place: to be set in the same capture.
otr_status_t *otr_generator_state(otr_generator_t generator,
                                  uint64_t *seed,
                                  uint64_t *offset);

// Sets the next output: the 128-bit output number `offset` in the sequence of `seed`. In a capture, each
// replay does so. OTR_ERR_CAPTURE for a state of another capture.
otr_status_t *otr_generator_set_state(otr_generator_t generator,
                                      uint64_t seed,
                                      uint64_t offset);

// Reserves the next `count` 128-bit outputs (four 32-bit numbers each). Returns the seed, and the
// offset at which they start.
otr_status_t *otr_generator_reserve(otr_generator_t generator,
                                    uint64_t count,
                                    uint64_t *seed,
                                    uint64_t *offset);

// Makes an empty graph, to be built node by node. A node runs after the nodes in its `deps`, which
// are nodes of the same graph. Memory of otr_graph_add_alloc comes from `pool`; if it is 0, from a
// pool of the graph's own.
otr_status_t *otr_graph_create(uint32_t device, otr_pool_t pool, otr_graph_t *graph);

// Destroys a graph. What was instantiated from it lives on.
otr_status_t *otr_graph_destroy(otr_graph_t graph);

// Figures of a graph.
otr_status_t *otr_graph_info(otr_graph_t graph, otr_graph_info_t *info);

// The graph as text: OTR_GRAPH_DOT, _JSON or _SVG. Free it with otr_string_free.
otr_status_t *otr_graph_dump(otr_graph_t graph, uint32_t format, char **text);

// Names memory that nodes use, before the graph is instantiated. Replays may then use other memory
// in its place (otr_graph_bind). The range lies in one live allocation.
otr_status_t *otr_graph_name_buffer(otr_graph_t graph,
                                    const char *name,
                                    uint64_t address,
                                    uint64_t size);

// Names a scalar of an operator's node, before the graph is instantiated (otr_graph_bind_scalar).
otr_status_t *otr_graph_name_scalar(otr_graph_t graph,
                                    const char *name,
                                    otr_node_t node,
                                    uint32_t scalar_index);

// Names an argument of a kernel's node (otr_graph_add_kernel, otr_kernel_launch) by its number, before the graph is
// instantiated (otr_graph_bind_argument). Addresses are named by otr_graph_name_buffer.
otr_status_t *otr_graph_name_argument(otr_graph_t graph,
                                      const char *name,
                                      otr_node_t node,
                                      uint32_t index);

// Adds a launch of a host kernel; see otr_host_kernel_launch.
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

// Adds a copy; see otr_copy. The host keeps its memory valid as long as the graph is replayed.
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

// Adds a node that only joins edges.
otr_status_t *otr_graph_add_empty(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  otr_node_t *node);

// Adds copies of all nodes of another graph. `node` runs after all of them.
otr_status_t *otr_graph_add_child(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  otr_graph_t child,
                                  otr_node_t *node);

// Adds a conditional node: OTR_GRAPH_IF, _WHILE or _SWITCH. The predicate is one number in device
// memory, of dtype bool, u8, i32 or i64, read when the node runs. The bodies are graphs of the
// same device, taken as they are now. OTR_ERR_UNSUPPORTED for bodies that draw random numbers.
otr_status_t *otr_graph_add_conditional(otr_graph_t graph,
                                        const otr_node_t *deps,
                                        uint32_t dep_count,
                                        uint32_t kind,
                                        uint64_t predicate,
                                        uint32_t dtype,
                                        const otr_graph_t *bodies,
                                        uint32_t body_count,
                                        otr_node_t *node);

// Adds an allocation from the graph's pool, and returns its address. If the memory is memory that
// another node frees, the new node runs after that node.
otr_status_t *otr_graph_add_alloc(otr_graph_t graph,
                                  const otr_node_t *deps,
                                  uint32_t dep_count,
                                  uint64_t size,
                                  uint64_t *address,
                                  otr_node_t *node);

// Adds the free of an allocation of otr_graph_add_alloc. Later nodes must not use the memory.
otr_status_t *otr_graph_add_free(otr_graph_t graph,
                                 const otr_node_t *deps,
                                 uint32_t dep_count,
                                 uint64_t address,
                                 otr_node_t *node);

// Makes a graph executable. `flags` is 0, or combines OTR_GRAPH_SERIAL and at most one of
// OTR_GRAPH_SUBMIT and OTR_GRAPH_NATIVE. Without these two the library chooses how replays reach
// the device.
otr_status_t *otr_graph_instantiate(otr_graph_t graph, uint32_t flags, otr_graph_exec_t *exec);

// Destroys an executable graph without waiting. Submitted replays still run; what they use is
// given back afterwards.
otr_status_t *otr_graph_exec_destroy(otr_graph_exec_t exec);

// Replays a graph in stream order, and returns at once. Replays of one executable graph run in the
// order of these calls, on any streams. Since the last replay, other allocations may have used
// free memory of its pool. If one of them is still in use, the call waits for earlier replays and
// takes other memory for the graph. OTR_ERR_OUT_OF_MEMORY if there is none.
otr_status_t *otr_graph_replay(otr_graph_exec_t exec, otr_stream_t stream);

// The slot of a name, for otr_graph_bind. OTR_ERR_NOT_FOUND if the graph has no such name.
otr_status_t *otr_graph_slot(otr_graph_exec_t exec, const char *name, uint32_t *slot);

// Binds other memory in place of a named buffer, for later replays. Nothing is copied or recorded
// again. The graph keeps the memory alive until other memory takes its place. Address 0 binds the
// recorded memory again.
otr_status_t *otr_graph_bind(otr_graph_exec_t exec, uint32_t slot, uint64_t address);

// Binds another number in place of a named one, for later replays.
otr_status_t *otr_graph_bind_scalar(otr_graph_exec_t exec,
                                    uint32_t slot,
                                    const otr_scalar_t *value);

// Binds another value in place of a named argument of a kernel, for later replays. It has as many bytes as the
// recorded one.
otr_status_t *otr_graph_bind_argument(otr_graph_exec_t exec,
                                      uint32_t slot,
                                      const void *value,
                                      uint32_t size);

// Takes over the addresses and numbers of another graph of the same shape: the same kinds of
// nodes, operators and edges. Bindings go back to what that graph recorded. If a node differs,
// OTR_ERR_INVALID_ARGUMENT names the first one, and nothing has changed.
otr_status_t *otr_graph_update(otr_graph_exec_t exec, otr_graph_t graph);

// Figures of an executable graph.
otr_status_t *otr_graph_exec_info(otr_graph_exec_t exec, otr_graph_exec_info_t *info);

// Replays once, measures the time of each node, and waits. The result is JSON: `total_ns`, and
// `nodes` with `id`, `label`, `scope`, `ns`. As a file it opens in Perfetto (`traceEvents`). Free
// it with otr_string_free. OTR_ERR_UNSUPPORTED if a node is an operator of the driver.
otr_status_t *otr_graph_profile(otr_graph_exec_t exec, otr_stream_t stream, char **json);

// Compares the time of a replay with that of the other ways to run its nodes, and waits. Each time
// is the best of some rounds. The result is JSON: `nodes`; `replay_ns`; `node_by_node_ns`, one
// command of the driver for each; `native_ns`, one launch of a graph of the driver, or null where
// there is none; `host_ns`, one launch of a host kernel, or null if the replay is none; `slower`,
// whether the replay takes longer than node by node. Memory is restored afterwards. Every round
// calls host functions and draws random numbers. Free the result with otr_string_free.
otr_status_t *otr_graph_cost(otr_graph_exec_t exec, otr_stream_t stream, char **json);

// Runs the nodes in the order in which they were recorded, and then as a replay does, both from
// the same contents of memory. Waits. Fails if a result differs, and names the first node that
// differs. OTR_ERR_UNSUPPORTED if a node is an operator of the driver.
otr_status_t *otr_graph_check(otr_graph_exec_t exec, otr_stream_t stream);

// Keeps the events of the memory of a device, or of OTR_HOST_MEMORY, from now on, for
// otr_memory_snapshot. If they are kept already, the options change. Blocks that are live already
// have neither label nor context.
otr_status_t *otr_memory_history_start(uint32_t device, const otr_history_options_t *options);

// Stops to keep events and forgets all that were kept. Their contexts are released.
otr_status_t *otr_memory_history_stop(uint32_t device);

// Forgets the events that were kept so far, and continues.
otr_status_t *otr_memory_history_clear(uint32_t device);

// Labels what the calling thread allocates on any device, until otr_memory_label_pop. Labels nest.
// They appear in snapshots, in otr_memory_pointer_info, and in the text of OTR_ERR_OUT_OF_MEMORY.
// The name is kept for the life of the process.
otr_status_t *otr_memory_label_push(const char *label);

// Goes back to the label before the last otr_memory_label_push of the calling thread.
otr_status_t *otr_memory_label_pop(void);

// The labels that hold most memory in use of a device, or of OTR_HOST_MEMORY: at most `count`, the
// largest first, as a JSON list of {"label", "bytes", "blocks"}. The label null stands for memory
// without a label. The list covers memory that was allocated since the first label, the start of
// the history, or the start of a trace. Free it with otr_string_free.
otr_status_t *otr_memory_holders(uint32_t device, uint32_t count, char **json);

// Writes all allocations and frees of a device to a file from now on, in the text format that
// `outrigger memory` reads. Memory that is live already is not in it. If a trace of the device is
// being written already, it ends. OTR_ERR_INVALID_ARGUMENT if the file cannot be written.
otr_status_t *otr_memory_trace_start(uint32_t device, const char *path);

// Ends the trace of a device, if one is being written. Call it before the process ends.
// OTR_ERR_INVALID_ARGUMENT if a part could not be written; the file ends before this part.
otr_status_t *otr_memory_trace_stop(uint32_t device);

// Notes in the trace that a step begins, under this name. Waits for the device, because a trace
// says that the device is idle there.
otr_status_t *otr_memory_trace_mark(uint32_t device, const char *label);

// Allocates at least `size` bytes of a device, in the order of `stream`: freed memory may be
// handed out again while the work before its free still runs on that stream. For 0 bytes the
// address is 0. The text of OTR_ERR_OUT_OF_MEMORY says where the memory is.
otr_status_t *otr_memory_alloc(uint32_t device,
                               uint64_t size,
                               otr_stream_t stream,
                               uint64_t *address);

// Frees an allocation of a device, at any time: it is reused in stream order. 0 is ignored.
otr_status_t *otr_memory_free(uint32_t device, uint64_t address);

// Says that work of another stream, of any device, uses the allocation around an address of a device. Once
// the allocation is freed, it is reused only after the work that this stream had been given until then has
// finished. OTR_ERR_INVALID_ARGUMENT if the address lies in no allocation of the device; 0 is ignored.
otr_status_t *otr_memory_record_stream(uint32_t device,
                                       uint64_t address,
                                       otr_stream_t stream);

// The device that has an address, for a host that was given the number alone. OTR_ERR_NOT_FOUND if no
// device has it; OTR_ERR_INVALID_ARGUMENT, which names both, if two devices have it (H21).
otr_status_t *otr_memory_find(uint64_t address,
                              uint32_t *device);

// Tells the facts of an address of a device. OTR_ERR_NOT_FOUND if it lies in no allocation of the device.
otr_status_t *otr_memory_pointer_info(uint32_t device,
                                      uint64_t address,
                                      otr_pointer_info_t *info);

// Exports the allocation around an address of a device as a text. Other processes of the same user pass the
// text to otr_memory_import, and then reach all bytes of the allocation. Keep the allocation until
// all of them have closed it. Free the text with otr_string_free. OTR_ERR_UNSUPPORTED if the
// driver shares no memory.
otr_status_t *otr_memory_export(uint32_t device,
                                uint64_t address,
                                char **exported);

// Imports an allocation that another process has exported, as memory of a device. Returns its
// address and its size. It can be used as any memory, but graphs cannot capture it.
// otr_memory_close gives it back. The two processes order their work themselves.
// OTR_ERR_INVALID_HANDLE for a text of another driver, and for any other text; OTR_ERR_NOT_FOUND
// if the exporter has given the memory up; OTR_ERR_UNSUPPORTED if the driver shares no memory, or
// none within one process.
otr_status_t *otr_memory_import(uint32_t device,
                                const char *exported,
                                uint64_t *address,
                                uint64_t *size);

// Gives imported memory back, by the address of otr_memory_import. Waits for all work of all
// devices, whose failures stay with its streams. Where that is not known to be over, the call fails,
// and the memory is still there.
otr_status_t *otr_memory_close(uint32_t device,
                               uint64_t address);

// Gives all idle memory of the cache back to the driver, except that of live pools.
otr_status_t *otr_memory_empty_cache(uint32_t device);

// Gives idle memory of the cache back to the driver until at most `keep` bytes of it stay. It
// gives back only whole pieces of memory, and none of live pools. Waits for the streams of this
// memory. `released` gets the number of bytes; it may be NULL.
otr_status_t *otr_memory_trim(uint32_t device, uint64_t keep, uint64_t *released);

// Free and total bytes of a device.
otr_status_t *otr_memory_info(uint32_t device, uint64_t *free_bytes, uint64_t *total_bytes);

// Statistics of a device's memory.
otr_status_t *otr_memory_stats(uint32_t device, otr_memory_stats_t *stats);

// Resets all peaks to the current values.
otr_status_t *otr_memory_reset_peak(uint32_t device);

// Resets all accumulated counts to 0.
otr_status_t *otr_memory_reset_accumulated(uint32_t device);

// Limits the bytes that the cache may take from a device; UINT64_MAX lifts the limit. Memory that
// is already held above the limit stays. As it becomes idle and more is needed, it is given back.
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

// All segments of a device, or of OTR_ALL_DEVICES, with their blocks, and the events that were
// kept (otr_memory_history_start). The result is JSON with the names of PyTorch's memory
// snapshots: "segments", "device_traces" (a list per device) and "allocator_settings". For all
// devices it also has "host_segments" and "host_traces" of pinned memory. Blocks and events also
// have their "label". Free it with otr_string_free.
otr_status_t *otr_memory_snapshot(uint32_t device, char **json);

// Loads code on a device. It is compiled once: the compiled form is kept on disk (OUTRIGGER_CACHE), and equal
// code that is loaded already is the same module. OTR_ERR_UNSUPPORTED for a format that the driver does not
// take; OTR_ERR_INVALID_ARGUMENT for code that does not compile, with the compiler's log and the lines
// that it names. With OTR_MODULE_BACKGROUND, otr_module_query and otr_kernel_get have these failures.
otr_status_t *otr_module_load(uint32_t device,
                              const otr_module_params_t *params,
                              otr_module_t *module);

// Sets `loaded` to 1 if the code of a module is loaded, and to 0 while it is compiled. Never waits. Fails if
// it cannot be loaded, at every call.
otr_status_t *otr_module_query(otr_module_t module,
                               uint32_t *loaded);

// Destroys a module. Its kernels live on.
otr_status_t *otr_module_destroy(otr_module_t module);

// A kernel of a module by its name, or its only kernel if the name is NULL. It is the caller's until
// otr_kernel_destroy. Waits until the code is compiled. OTR_ERR_NOT_FOUND for another name.
otr_status_t *otr_kernel_get(otr_module_t module,
                             const char *name,
                             otr_kernel_t *kernel);

// Destroys a kernel without waiting. Launches that were submitted still run, and so do graphs.
otr_status_t *otr_kernel_destroy(otr_kernel_t kernel);

// Launches a kernel of a module in stream order, and returns at once; a function of the host is launched by
// otr_host_kernel_launch. Block and arguments are copied. The addresses among the arguments lie in live memory
// of the stream's device (H22). OTR_ERR_INVALID_ARGUMENT for arguments that are not those of the kernel, as
// far as the driver can tell.
otr_status_t *otr_kernel_launch(otr_stream_t stream,
                                otr_kernel_t kernel,
                                const otr_launch_t *launch);

// Adds a launch of a kernel of a module; see otr_kernel_launch. What its addresses name is kept alive, and can
// be bound.
otr_status_t *otr_graph_add_kernel(otr_graph_t graph,
                                   const otr_node_t *deps,
                                   uint32_t dep_count,
                                   otr_kernel_t kernel,
                                   const otr_launch_t *launch,
                                   otr_node_t *node);

// Adds an observer: `function` is called for every event of the given kinds (OTR_OBSERVE_*,
// or-ed), from any thread, until the observer is removed. The host keeps `user` valid until
// otr_observer_remove has returned.
otr_status_t *otr_observer_add(uint32_t kinds,
                               otr_observer_fn function,
                               void *user,
                               otr_observer_t *observer);

// Adds an observer of memory pressure: `function` is called when an allocation on any device is
// about to fail, until otr_observer_remove.
otr_status_t *otr_observer_add_pressure(otr_pressure_fn function,
                                        void *user,
                                        otr_observer_t *observer);

// Removes an observer, and waits for its running calls. After the return none is running, and none
// will start. OTR_ERR_BUSY from within an observer, if a call of the observer to be removed is
// running.
otr_status_t *otr_observer_remove(otr_observer_t observer);

// The number of an operator, the same for the life of the process: one of docs/operators.md, by its name
// or that of a framework's operator that it serves, or any operator of a framework by its schema name
// ("aten::grid_sampler_2d"), which drivers may have. OTR_ERR_NOT_FOUND for another name.
otr_status_t *otr_operator_find(const char *name,
                                otr_operator_id_t *operator_id);

// Keeps operators whole on a device: they are not made of others where the driver has the parts alone. Operators
// that were kept whole before, by a call or the variable OUTRIGGER_WHOLE, are no longer.
otr_status_t *otr_operator_keep_whole(uint32_t device,
                                      const otr_operator_id_t *ids,
                                      uint32_t count);

// Sets `yes` to 1 if the driver of a device has the operator for some operands, as a whole or in parts, or a function
// is registered for it there, else to 0.
otr_status_t *otr_operator_offered(uint32_t device,
                                   otr_operator_id_t operator_id,
                                   uint32_t *yes);

// Runs an operator in stream order and returns at once. The operands lie in live memory of the
// stream's device. `name` of the call is ignored. The call may be freed after the return.
// OTR_ERR_INVALID_ARGUMENT if operands or scalars do not fit the operator; OTR_ERR_UNSUPPORTED if
// there is no kernel for these arguments. In both cases nothing was done. An index out of bounds
// shows when the work runs: the stream fails with OTR_ERR_OUT_OF_RANGE.
otr_status_t *otr_operator_call(otr_stream_t stream,
                                otr_operator_id_t operator_id,
                                const otr_operator_call_t *call);

// Sets the number of threads of the built-in pool, for the whole process; 0: as many as cores.
otr_status_t *otr_set_threads(uint32_t threads);

// Allocates at least `size` bytes of pinned host memory. For 0 bytes the pointer is NULL.
otr_status_t *otr_host_alloc(uint64_t size, void **pointer);

// Frees pinned memory, at any time. NULL is ignored.
otr_status_t *otr_host_free(void *pointer);

// Says that work of a stream, such as an asynchronous copy, uses pinned memory.
otr_status_t *otr_host_record_stream(void *pointer, otr_stream_t stream);

// Sets `yes` to 1 if a pointer lies within live pinned memory of this runtime, else to 0.
otr_status_t *otr_host_is_pinned(const void *pointer, uint32_t *yes);

// Gives all idle pinned memory of the cache back.
otr_status_t *otr_host_empty_cache(void);

// Statistics of pinned memory.
otr_status_t *otr_host_stats(otr_memory_stats_t *stats);

// Resets all peaks of pinned memory to the current values.
otr_status_t *otr_host_reset_peak(void);

// Resets all accumulated counts of pinned memory to 0.
otr_status_t *otr_host_reset_accumulated(void);

// Limits the bytes of pinned memory that are held, in use or cached; UINT64_MAX lifts the limit.
otr_status_t *otr_host_set_limit(uint64_t bytes);

// Asks for permission to run an operator on the CPU. Sets `first_warning` to 1 if the adapter
// should warn its user. Fails with OTR_ERR_UNSUPPORTED in the mode OTR_FALLBACK_ERROR.
otr_status_t *otr_fallback_begin(const char *operator_name, uint32_t *first_warning);

// Counts a fallback that has run: its time with all staging, without the wait for work that was
// submitted before; and the bytes that were copied between device and host for it.
otr_status_t *otr_fallback_end(const char *operator_name,
                               uint64_t nanoseconds,
                               uint64_t staged_bytes);

// All operators that ran in kernels of a framework, the most expensive first, as JSON in the form of
// otr_operator_report. Free it with otr_string_free.
otr_status_t *otr_fallback_report(char **json);

// Forgets all counts of operators, at all places.
otr_status_t *otr_fallback_reset(void);

// The places where all operators ran so far, as JSON: [{"operator", "place", "calls", "timed_calls", "seconds",
// "staged_bytes"}]. `place` is "device" (an operator of the driver; on a device that is the CPU also a host
// kernel), "host_kernel" (a kernel of Outrigger on the CPU) or "framework" (a kernel of the framework on the CPU).
// `seconds` is of the calls that were timed: those of frameworks, and others while otr_operator_timing is on. Free
// it with otr_string_free.
otr_status_t *otr_operator_report(char **json);

// Times each call of an operator from now on (1), or no longer (0), in the whole process. A timed call waits
// for the work of its stream before it begins, and then for itself.
otr_status_t *otr_operator_timing(uint32_t on);

// Makes a pool: memory of a device that serves only those who name it. There is one exception: the
// free memory of an executable graph's pool may serve others between replays. Graphs can share a
// pool. They may then use the same memory for intermediate results, so their replays must not
// overlap. A host can allocate in a pool, too. Memory that it allocates after a graph was recorded
// may lie where the graph works; replays then overwrite it.
otr_status_t *otr_pool_create(uint32_t device, otr_pool_t *pool);

// Gives the handle up. The memory goes back to the device when the last graph and the last
// allocation that use it are gone.
otr_status_t *otr_pool_destroy(otr_pool_t pool);

// Tells the figures of a pool as they are now.
otr_status_t *otr_pool_info(otr_pool_t pool, otr_pool_info_t *info);

// Allocates from a pool, whatever pool the calling thread uses; otherwise as otr_memory_alloc.
// otr_memory_free returns the memory to the pool.
otr_status_t *otr_pool_alloc(otr_pool_t pool,
                             uint64_t size,
                             otr_stream_t stream,
                             uint64_t *address);

// Until otr_pool_end_use, the calling thread allocates from this pool on the pool's device: on any
// stream, or only on `stream` if it is not 0. Uses nest; the innermost one that fits an allocation
// decides. A stream that captures always allocates from the pool of its graph. The pool lives at
// least until otr_pool_end_use.
otr_status_t *otr_pool_begin_use(otr_pool_t pool, otr_stream_t stream);

// Ends the use that the calling thread has begun last. It must be of this pool. Memory that was
// allocated stays in the pool.
otr_status_t *otr_pool_end_use(otr_pool_t pool);

// Limits the bytes of a pool that may be in use, rounded up; UINT64_MAX lifts the limit. Memory in
// use stays. A request beyond the limit is OTR_ERR_OUT_OF_MEMORY, after observers of pressure were
// asked.
otr_status_t *otr_pool_set_limit(otr_pool_t pool, uint64_t bytes);

// Puts a pool to sleep: its memory in use is copied to the host, and the device gets the pool's
// memory back. Waits for all work of all devices. During the call nobody may submit work on the
// pool's memory, not even by replays. Until otr_pool_wake, allocations from the pool are
// OTR_ERR_BUSY, and so are replays, copies and operators that use its memory, and instantiations
// that make a driver's own graph over it (OTR_GRAPH_NATIVE, or the library's choice). Frees still
// work. `released` gets the number of bytes that the device has got back, 0 if the pool slept
// already; it may be NULL. OTR_ERR_UNSUPPORTED on a driver without virtual memory;
// OTR_ERR_CAPTURE while a graph is recorded into the pool; OTR_ERR_BUSY while another thread
// allocates from it, puts it to sleep or wakes it. If the call fails, the pool is as it was.
otr_status_t *otr_pool_sleep(otr_pool_t pool, uint64_t *released);

// Brings the memory of a pool back to its addresses, with its contents. If there is not enough
// memory, caches are given back and observers of pressure are asked; then it is
// OTR_ERR_OUT_OF_MEMORY. If the call fails, the pool still sleeps, and nothing is lost. For a pool
// that is awake it does nothing.
otr_status_t *otr_pool_wake(otr_pool_t pool);

// The segments of a pool and their blocks, as JSON in the form of otr_memory_snapshot, without
// events. Free it with otr_string_free.
otr_status_t *otr_pool_snapshot(otr_pool_t pool, char **json);

// Starts a profile: from now on it is noted what the streams of all devices are given. There is one profile at a
// time, else OTR_ERR_BUSY. Replays of graphs are told as what they submit: node by node, or as one.
otr_status_t *otr_profile_start(void);

// Ends the profile, and tells each piece of work to `function`, in the order of submission. Does not wait: what has
// not finished is told as such, so wait for the streams first.
otr_status_t *otr_profile_stop(otr_profile_fn function,
                               void *user);

// Chooses the number with which the profile tells what this thread submits from now on, so that a host finds its
// own operators again. `previous` receives the one before, which is 0 at first.
otr_status_t *otr_profile_correlate(uint64_t id,
                                    uint64_t *previous);

// Registers a function for an operator, which is asked before the driver. A call asks the registration for its
// device first, then the one for all devices, then the driver, then a host kernel. OTR_ERR_BUSY if there is one
// for the same device, or for all, already; the text names both owners. With OTR_REGISTER_REPLACE that one ends,
// and its id with it. Calls that were served count for the device (otr_operator_report), or as a host kernel if
// an operator that the function called ran as one; what the function calls is not counted on its own. A stream
// that captures records what the function submits. Nodes of otr_graph_add_operator are not served: they have
// no stream.
otr_status_t *otr_operator_register(const otr_operator_registration_t *params,
                                    otr_registration_t *registration);

// Ends a registration. No call of its function begins after that. Calls that are running on other threads go on,
// and `destroy` is called when the last one is over; this call does not wait for them.
otr_status_t *otr_operator_withdraw(otr_registration_t registration);

// All registrations in force, as JSON: [{"operator", "owner", "device", "calls", "replaced"}]. `device` is null
// for all devices, `calls` the number of calls that were served, `replaced` the owner of the registration that
// it replaced, or null. Free it with otr_string_free.
otr_status_t *otr_operator_list(char **json);

// The version of Outrigger, such as "0.1.0". Lives as long as the process.
const char *otr_version(void);

// Makes the runtime ready: reads the environment and loads the drivers of OUTRIGGER_DRIVER
// ("name-or-path?key=value&...", several separated by commas; "host" by default). It also starts
// the log if OUTRIGGER_LOG is set. Any other call that needs the runtime does the same. Fails if
// there is no device at all, with the reason for each driver.
otr_status_t *otr_runtime_init(void);

// Names the drivers that are loaded where OUTRIGGER_DRIVER is not set, instead of "host". For a package that brings
// a driver; before any call that needs the runtime, else OTR_ERR_BUSY.
otr_status_t *otr_driver_default(const char *specs);

// Loads one more driver, or several separated by commas. Their devices get the next numbers.
// Drivers are never unloaded. If a driver is refused, OTR_ERR_LOAD gives the reason for each; the
// devices of the others were added.
otr_status_t *otr_driver_load(const char *spec);

// The drivers that were tried so far, as JSON: which were taken, and which were refused and why.
// Free it with otr_string_free.
otr_status_t *otr_load_report(char **json);

// Tells the number of devices. A device is opened by the first call that uses it (H8).
otr_status_t *otr_device_count(uint32_t *count);

// Tells the facts of a device, which is not opened for that. They do not change while the process lives, but for
// the priorities.
otr_status_t *otr_device_info(uint32_t device,
                              otr_device_info_t *info);

// Sets `yes` to 1 if copies between two devices go from one to the other, by the driver of both, else
// to 0: then otr_copy_peer goes through host memory.
otr_status_t *otr_device_can_access_peer(uint32_t device,
                                         uint32_t peer,
                                         uint32_t *yes);

// The current device of this thread; 0 until it is set.
otr_status_t *otr_device_current(uint32_t *device);

// Makes a device the current one of this thread, which does not open it.
otr_status_t *otr_device_set_current(uint32_t device);

// Waits for all work submitted to any stream of a device, also to streams that were destroyed.
// Reports the first failure, and clears the failures of all streams. OTR_ERR_CAPTURE on a thread that records a capture of this device,
// unless the capture has the mode OTR_CAPTURE_RELAXED.
otr_status_t *otr_device_synchronize(uint32_t device);

// A status of the host, for functions of the host that answer with one. NULL for the code OTR_OK. `message` is copied;
// NULL is an empty text.
//
// NULL, or a string that ends in NUL.
otr_status_t *otr_status_new(int32_t code,
                             const char *message);

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

// Reads a value that a host has kept with otr_store_put, in this process or another one. `key` is all that the value
// depends on, as bytes, and begins with a name of the host; it is not empty. Sets `size` to the bytes of the
// value, and writes the value if it has at most `capacity` bytes; `value` may be NULL if `capacity` is 0.
// OTR_ERR_NOT_FOUND if there is no value that is whole. Nothing is read from a folder (OUTRIGGER_CACHE) that belongs to
// somebody else or that others may write to, so what is read may be run as code of the user.
otr_status_t *otr_store_get(const void *key,
                            uint64_t key_size,
                            void *value,
                            uint64_t capacity,
                            uint64_t *size);

// Keeps a value for otr_store_get, in place of one that the key has. Sets `kept` to 1, or to 0 if the value was not
// kept: OUTRIGGER_CACHE is `off`, its folder belongs to somebody else or others may write to it, the disk refuses
// the value, or it has more than half of OUTRIGGER_CACHE_BYTES. OUTRIGGER_LOG=outrigger::store=debug tells which.
// What was used least recently is removed first, so a value may be gone at any time.
otr_status_t *otr_store_put(const void *key,
                            uint64_t key_size,
                            const void *value,
                            uint64_t size,
                            uint32_t *kept);

// The default stream of a device. It belongs to the runtime (H12): the same at every call.
otr_status_t *otr_stream_default(uint32_t device, otr_stream_t *stream);

// The next stream of a device's pool of streams, in turn. It belongs to the runtime (H12). A lower
// priority number is more urgent; it is clamped to the device's range.
otr_status_t *otr_stream_from_pool(uint32_t device, int32_t priority, otr_stream_t *stream);

// Makes a stream. It is the caller's until otr_stream_destroy. A lower priority number is more
// urgent; it is clamped to the device's range (otr_device_info). OTR_ERR_OUT_OF_HOST_MEMORY if
// there is no room for another stream.
otr_status_t *otr_stream_create(uint32_t device, int32_t priority, otr_stream_t *stream);

// Makes a stream over a queue that another library made by the driver's own interface, such as a
// cl_command_queue or a CUstream: the documentation of the driver says what, and which queues fit. It
// is the caller's until otr_stream_destroy. The native queue lives until then, and until the stream's
// work has finished; both may use it at any time, and what its library has put in before a call comes
// before that. OTR_ERR_UNSUPPORTED if the driver shares no queues, OTR_ERR_INVALID_ARGUMENT or
// OTR_ERR_INVALID_DEVICE for a queue that does not fit.
otr_status_t *otr_stream_from_native(uint32_t device,
                                     uint64_t native,
                                     otr_stream_t *stream);

// A stream's queue as the driver's own interface names it, for another library that puts work into it. All that
// was submitted to the stream is in there when this returns, so that what the library puts in comes behind it, and
// before the next call with the stream. The library asks anew before it does so again. The call may wait.
// OTR_ERR_UNSUPPORTED if the driver shares no queues, OTR_ERR_CAPTURE while the stream captures, OTR_ERR_CANCELLED
// if it has failed.
otr_status_t *otr_stream_native(otr_stream_t stream,
                                uint64_t *native);

// Destroys a stream without waiting. Submitted work still runs; memory that was allocated on the
// stream can be used and freed as before. OTR_ERR_INVALID_ARGUMENT for a stream of the runtime,
// OTR_ERR_BUSY for one that captures.
otr_status_t *otr_stream_destroy(otr_stream_t stream);

// The device of a stream.
otr_status_t *otr_stream_device(otr_stream_t stream, uint32_t *device);

// The clamped priority of a stream. A lower number is more urgent.
otr_status_t *otr_stream_priority(otr_stream_t stream, int32_t *priority);

// The current stream of this thread on a device: its default stream until one is set.
otr_status_t *otr_stream_current(uint32_t device, otr_stream_t *stream);

// Makes a stream the current one of this thread on its device. The current device stays.
otr_status_t *otr_stream_set_current(otr_stream_t stream);

// Sets `finished` to 1 if all work submitted before has finished, else to 0. Never waits. Fails
// with the first failure of the stream's work, and does not clear it. OTR_ERR_CAPTURE while the
// stream captures.
otr_status_t *otr_stream_query(otr_stream_t stream, uint32_t *finished);

// Waits for all work submitted before. Fails with the first failure of the stream's work, and
// clears it: the stream takes work again. OTR_ERR_CAPTURE while the stream captures.
otr_status_t *otr_stream_synchronize(otr_stream_t stream);

// Starts the submitted work if the driver holds it back. Waiting does this, too. While the stream
// captures, the call does nothing.
otr_status_t *otr_stream_flush(otr_stream_t stream);

// Makes later work of a stream start after the point at which an event was recorded last, also on
// another device. The call does not wait, unless the event is of another driver. If the event
// carries a failure, the stream fails, not this call. If the event is a point of a capture, the
// stream joins the capture.
otr_status_t *otr_stream_wait_event(otr_stream_t stream, otr_event_t event);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTRIGGER_H */
