/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/driver.h: the driver contract, version 1.0. What a vendor implements, and all of it.
 *
 * A driver is a shared library that exports one symbol, `otr_driver_get_api`. It returns a table of
 * functions. Twenty-two are mandatory; the groups behind them and the tables of its chain are optional. A NULL
 * group, a table that is not in the chain, and a NULL entry that is marked optional mean "not
 * supported": Outrigger supplies the feature above the driver or reports it as absent.
 *
 * THE RULES
 *
 * Evolution
 *   R1  Every struct that crosses the boundary starts with `struct_size`, the size its writer was
 *       compiled with. A reader uses only what lies within it. Structs grow at their end only.
 *   R2  A difference in the major number is refused, with both numbers in the message. A driver
 *       accepts any host minor, and a host any driver minor.
 *   R3  `next` chains hold `otr_ext_t` records, the last with NULL for the next. A record of unknown type
 *       is skipped, not refused; of several of one type the first counts. Records in the chain of
 *       otr_driver_api_t are tables with a version of their own. A host that knows another major of
 *       one goes on as if it were not there, and says so in its log; R2 holds for the minors.
 * Errors
 *   R4  Every function returns a code, which says whether the call has done what it is for. On failure
 *       it has changed nothing and written no output. What became of submitted work is another
 *       question, which an outcome answers (R19).
 *   R5  `last_error` gives the text of the calling thread's most recent failed call: what was wrong,
 *       and what would be right. It is never NULL and is valid until the thread's next call.
 *   R6  No function throws, unwinds, exits, or prints. This is about the driver's own code: it turns off
 *       what an SDK below it prints, as far as the SDK lets it, and the rest is not the driver's fault.
 *   R7  An argument that the driver can check cheaply (NULL, index, size, flag) is checked, and
 *       answered with the code that base.h documents, not with undefined behaviour: a handle that is
 *       NULL or foreign (of another kind, or of another `open`) with OTR_ERR_INVALID_HANDLE; a device
 *       index with OTR_ERR_INVALID_DEVICE; any other pointer that is NULL, an address, a range, a
 *       size, a kind or a flag with OTR_ERR_INVALID_ARGUMENT. An address is no handle. For the memory
 *       that a launch works on (the argument block of a kernel, the operands and the workspace of an
 *       operator) a check for NULL is enough: the host sees to it that the addresses lie in live
 *       memory.
 * Threads
 *   R8  Every function may be called from any thread, also at the same time on the same object.
 *       Only destroying or freeing an object while another call uses it is the host's fault.
 *   R9  A driver keeps no current device and no other per-thread state except `last_error`.
 * Ownership
 *   R10 What a create, alloc, open, load or import call returned belongs to the host until it is
 *       given to the matching destroy, free, close or unload. Strings and structs that are passed
 *       in may be freed as soon as the call returns, unless an entry says otherwise.
 *   R11 `queue_destroy` and `event_destroy` return without waiting. Work that was submitted still
 *       runs (or is cancelled, with its host calls still called); the driver keeps what it needs.
 *   R12 The host frees memory only after the work that uses it has finished. `close` comes last: it
 *       may answer OTR_ERR_BUSY while objects live, and waits for the work of destroyed queues.
 * Devices and addresses
 *   R13 A device address is a 64-bit number. Any address within an allocation is valid: base plus
 *       offset. 0 is never a valid address. Addresses of live allocations never overlap, over all
 *       devices of a driver and with host memory.
 *   R14 Allocations are aligned to `address_alignment` of the device (a power of two, at least 64), and to
 *       the alignment that was asked for, where that is more; one that the driver cannot keep to is
 *       OTR_ERR_UNSUPPORTED. So is a kind of memory that the device does not have.
 *   R15 OTR_DEVICE_HOST_VISIBLE promises that a device address is a host pointer to the same bytes,
 *       coherent once the work has finished. Without it the host never touches a device address.
 * Queues
 *   R16 Work of one queue takes effect in the order of submission, as if one after the other. A
 *       command sees all effects of those before it in its queue.
 *   R17 Queues are independent: work of one never waits for work of another, except by
 *       `queue_wait_event`. A submission never waits for work to finish, except for back-pressure
 *       that resolves without the host: a full queue may slow a caller down, but takes its work
 *       also while a host call in it waits for that caller.
 *   R18 Submitted work makes progress by itself after `queue_flush`, or at once where
 *       `queue_flush` is NULL. Whoever asks or waits for work flushes it: `queue_query`,
 *       `queue_synchronize`, `event_query`, `event_synchronize`, and a `queue_wait_event` of
 *       another queue. Without any of these a driver may keep work back for as long as it likes.
 *   R19 Whoever asks or waits for work is told two things. The code of the call says whether there is an
 *       outcome, and is never OTR_NOT_READY. The otr_outcome_t says what became of all that was submitted
 *       before the call: OTR_OK, it has finished well; OTR_NOT_READY (of a query alone), some of it has
 *       not finished; any other code, it has finished, and this was the first failure. A call that fails
 *       tells nothing of the work. So a device that is lost answers OTR_ERR_DEVICE_LOST, again and again:
 *       whether its work is over, nobody knows. In an outcome this is only the code of a host call, or
 *       that of R24.
 *   R20 When a command fails, later commands of its queue are not executed, but for host calls,
 *       which are called with the failure as `upstream`. The outcome of the queue is that failure, the
 *       first one, once all has finished. `queue_synchronize` clears what it has written into an
 *       outcome, and nothing else, so that the queue takes work again. A failed queue still waits where
 *       `queue_wait_event` says so.
 * Events
 *   R21 `event_record` captures the work submitted to the queue so far. Recording again moves the
 *       event to the new point; waits that were made earlier keep the old point.
 *   R22 An event that was never recorded counts as finished.
 *   R23 An event whose work failed has that failure, the first one, as its outcome, for every query,
 *       synchronize and dependent queue, for as long as it is not recorded again.
 *   R24 `queue_wait_event` returns at once. Later work of the queue starts after the event's point,
 *       also on another device of the driver, and for an event of the same queue. If the event
 *       failed, the queue fails with its code, and names its command; if the event's device is lost, a
 *       queue of another device fails with OTR_ERR_DEVICE_LOST.
 * Commands
 *   R25 `copy` and `fill` accept a size of 0 and then do nothing but keep the order: the addresses
 *       are not looked at. A copy with several `rows` moves as many pieces of `size` bytes, which begin
 *       `dst_pitch` and `src_pitch` bytes apart, each pitch at least `size`; what lies between them is left
 *       alone. It is one command. A driver without such copies refuses them with OTR_ERR_UNSUPPORTED, and
 *       Outrigger copies row by row.
 *   R26 Host memory of a `copy` stays valid and untouched until the copy finished: the host sees
 *       to it. Source and destination do not overlap.
 *   R27 A host call is called exactly once, in queue order, on a thread of the driver's choice, and
 *       must not call the driver, nor throw or unwind. The code that it returns is the outcome of the
 *       command; OTR_NOT_READY, which is no failure, counts as OTR_ERR_EXECUTION. With
 *       OTR_HOST_CALL_CANNOT_FAIL the command has no outcome of its own, whatever the function returns:
 *       a driver may give the device what comes behind it at once.
 *   R28 `fill` repeats a pattern of 1, 2, 4, 8 or 16 bytes. The size is a multiple of it.
 *   R29 Out of memory is OTR_ERR_OUT_OF_MEMORY for device memory and OTR_ERR_OUT_OF_HOST_MEMORY for
 *       everything else, and leaves the driver as usable as before.
 *   R30 Arguments of a launch are copied during the call. Where the format of the code needs more than
 *       the packed block, `arguments` says what each one is, in the order of the kernel's parameters; one
 *       that reaches beyond the block is refused (R7).
 * Graphs (the optional group `graph`)
 *   R31 From `record_begin` to `record_end` what is submitted to the queue is kept and nothing of it
 *       runs: copies, fills, launches, host calls, waits for events, and launches of graphs, whose
 *       commands are kept as they are then. Arguments and patterns are copied as ever; memory,
 *       modules, operators and the data of host calls that the commands name stay valid until the
 *       graph is destroyed and its last launch has finished. A command that a driver cannot keep is
 *       refused with OTR_ERR_UNSUPPORTED when it is submitted, and the recording goes on.
 *   R32 An event that is recorded on a recording queue is a point of the recording. A queue that
 *       waits for it joins the recording: what is submitted to it is kept too, until the end. The
 *       recording queue has to wait for all that joined queues were given, else `record_end` answers
 *       OTR_ERR_INVALID_ARGUMENT; the recording is lost then, and its queues are usable.
 *   R33 Calls that would wait, and calls that lead out of a recording, are refused with
 *       OTR_ERR_CAPTURE, and the recording goes on: `queue_query`, `queue_synchronize` and
 *       `record_begin` on a queue that records; `event_query`, `event_synchronize` and `event_time` of
 *       a point of the recording; `queue_wait_event` for a point outside of it, unless that was
 *       reached without a failure; a point of it on a queue of another recording. `queue_flush` does
 *       nothing. When the recording ends, its events count as never recorded. Destroying a queue that
 *       records gives its recording up: where it had only joined, `record_end` fails.
 *   R34 A launch of a graph is one submission to its queue, which is of the device that was recorded
 *       (else OTR_ERR_INVALID_DEVICE). The commands take effect as if submitted in the order in which
 *       they were recorded; those that the recording does not order may overlap. Failures are as in
 *       R20, within the graph too, and have the launch's number. A host call is called once for
 *       each launch. Launches on several queues are ordered by events, as all work is; a driver may
 *       order those of one graph besides.
 *   R35 `update` is for later launches: those that were submitted keep what they had. Where kinds,
 *       kernels, number or order of the commands differ, it answers OTR_ERR_INVALID_ARGUMENT and
 *       changes nothing. `from` stays as it is, and the host's. `update_part` compares and updates a
 *       run of commands. They are numbered from 0 in the order of their calls, without waits for
 *       events; a launch of a graph is one.
 *   R36 `destroy` returns without waiting: launches that were submitted still run. A graph may hold
 *       memory of its device until it is destroyed and they have finished.
 * Virtual memory (the optional group `virtual_memory`)
 *   R37 Addresses, sizes and alignments are multiples of the device's `granularity`, a power of two of
 *       at least `address_alignment`. `reserve` gives a range of addresses of that device, without
 *       memory, aligned to a power of two (0: to the granularity). R13 holds for reserved ranges, used
 *       or not. `release` takes the whole of one back, and answers OTR_ERR_BUSY while something is
 *       mapped in it. Queues of the device reach what is mapped there, and `memory_free` refuses it.
 *   R38 `create` takes the memory, of a kind and with flags as in `memory_alloc`, and
 *       OTR_ERR_OUT_OF_MEMORY comes from there: an object counts as used, in `memory_info` too, until it
 *       is gone. `destroy` takes the handle back, also of an object that is mapped, whose memory then goes
 *       with its last unmap.
 *   R39 `map` puts whole objects one behind the other, from `address` on: all of them or none, and
 *       out of memory (for page tables) leaves nothing mapped. The range lies in one reservation, of
 *       the device of the objects, and nothing is mapped in it yet. An object may be mapped at several
 *       addresses at a time, all of which reach the same bytes: what work wrote at one of them, work
 *       that is ordered behind it (R16, R24) reads at any. No initial value.
 *   R40 `map` never waits for work, and is called also while work runs on other addresses, those of
 *       other mappings of the same objects included. `unmap` takes a range without gaps that begins
 *       and ends where mapped objects do, of one `map` or of several. It is called after all work that
 *       uses the range has finished (R12), while other work runs.
 *   R41 Commands and kernels reach mapped memory as they do what `memory_alloc` gave (R13), also across
 *       the borders of objects. To touch what is not mapped is the host's fault (R7).
 * Memory of other processes (the optional group `ipc`)
 *   R42 A handle is plain bytes, which own nothing. It is good in processes of the same user on the
 *       same machine, for any number of imports, as long as the exporter keeps the memory or the event:
 *       an import after that answers OTR_ERR_NOT_FOUND, and bytes that are no handle of the driver, or
 *       one of another kind, OTR_ERR_INVALID_HANDLE. A driver may refuse an import in the exporting
 *       process, and the export of what it cannot share, with OTR_ERR_UNSUPPORTED.
 *   R43 What was imported reaches the bytes of the exporter: all of the allocation or object, at an
 *       address of the importer's own device. The import says how many bytes these are, as many as were asked
 *       for or more. They do not count as used there. Work of two processes
 *       is ordered by an imported event or by the hosts. An imported event is queried, waited for and
 *       destroyed as any other (R21 to R24), and stands at the point where the exporter recorded it
 *       last; a driver may refuse to record it with OTR_ERR_UNSUPPORTED. Recording an exported event
 *       flushes its queue (R18): importers cannot.
 *   R44 The exporter frees or destroys only what importers have closed. Where it does so earlier, or
 *       ends, the bytes are of no value from then on, and closing still succeeds. Points of an event that
 *       an exporter has not reached when it ends fail with OTR_ERR_CANCELLED.
 * Operators (the optional group `operators`)
 *   R45 `names` lists the operators that the driver has on a device, and no others are asked for: names
 *       of docs/operators.md, and operators of a framework by their schema name, with the overload behind
 *       a point where there is one ("aten::grid_sampler_2d", "aten::scatter.src"). `prepare` asks for an
 *       operator by its name, by dtypes, sizes and strides of its operands, and by its arguments
 *       (otr_operator_args_t) where it has some. A driver that does not have it, or not for these operands
 *       with all scalars that docs/operators.md allows, answers OTR_ERR_UNSUPPORTED, and Outrigger uses
 *       something else.
 *   R46 `launch` is given a call with the same name, dtypes, sizes, strides and arguments, and addresses and
 *       scalars of its own, on a queue of the device (else OTR_ERR_INVALID_DEVICE); as often as the host
 *       likes, on several queues at a time too. The call is copied, with all that it points to. The
 *       command gives what docs/operators.md says, and writes the elements of the outputs alone.
 *   R47 The workspace of a launch is `workspace_bytes` bytes of memory of the device, aligned as in
 *       R14. It belongs to the launch alone until the launch has finished, and has no initial value.
 *       If none was asked for, its address is 0. `release` comes after the last launch has finished.
 * Communicators (the optional table `collectives`)
 *   R48 A communicator joins ranks, numbered from 0, which live in any processes and have a device each.
 *       `id` makes plain bytes, and the host takes them to all ranks. They are good for one communicator,
 *       as long as the driver that made them is open. `create` is the one call that waits for other ranks,
 *       so a host with several ranks makes them on a thread each. It fails with OTR_ERR_PEER_LOST if
 *       not all have come within the timeout; with OTR_ERR_INVALID_ARGUMENT for a rank that was there
 *       before, and where the numbers of ranks differ; with OTR_ERR_INVALID_HANDLE for bytes that are
 *       no id of the driver, and OTR_ERR_NOT_FOUND for an id whose driver is closed, or that was used.
 *   R49 A call with a communicator is a command of its queue (R16 to R20), which is of the rank's device,
 *       else OTR_ERR_INVALID_DEVICE; a queue of another `open` is OTR_ERR_INVALID_HANDLE. A submission
 *       does not wait for other ranks, and what one command waits for holds up no other queue. All ranks
 *       submit the same calls to a communicator in the same order, with the same sizes, types, reductions
 *       and roots; where they do not, the communicator fails (R52), with OTR_ERR_INVALID_ARGUMENT if the
 *       driver finds it out. The commands of a communicator run in this order on whatever queues they
 *       are. Hosts with two communicators of the same devices order their calls on these in the same way
 *       on all ranks, and a driver may run them one after the other.
 *   R50 Memory is that of the rank's device. What is sent and what is received do not overlap (R26), but
 *       for work in place: `receive` is `send` in `all_reduce` and in `reduce`; `send` is the rank's own part of
 *       `receive` in `all_gather`; `receive` is the rank's own part of `send` in `reduce_scatter`. Parts
 *       lie in the order of the ranks. A size or count of 0 keeps the order and does nothing (R25). One
 *       rank alone is a communicator, too.
 *   R51 Reductions combine each element of all ranks, in an order of the driver's choice; all ranks get
 *       the same bits. Integers wrap around. What a driver has not, of dtypes and reductions, it
 *       refuses on every rank with OTR_ERR_UNSUPPORTED when it is submitted; OTR_REDUCE_SUM, _MIN and _MAX of
 *       OTR_DTYPE_F32 are never refused. All other calls move bytes.
 *   R52 A communicator fails if a rank ends, if a rank does not come to a command within the timeout,
 *       if the queue of a rank had failed before a command (which R20 does not execute then), or if it is
 *       aborted. Its commands that wait, and all later ones, fail on every rank: with
 *       OTR_ERR_CANCELLED where the rank itself was aborted, else with OTR_ERR_PEER_LOST. This takes as
 *       long as the timeout at most, and no command waits for ever. The failure stays: it is the outcome
 *       that `query` gives, and later commands fail with it, or are refused with its code. A rank that
 *       was destroyed has not ended in this sense as long as the others need nothing more of it.
 *   R53 `exchange` is of the ranks alone that it names. The transfers of one call go on side by side:
 *       none waits for another of them. What rank A sends to B arrives in the order in which both
 *       submitted it, sizes included. A rank may send to itself.
 *   R54 `abort` is called at any time, also while commands of the rank wait, and returns without waiting.
 *       `destroy` comes after the last command of the rank has finished, or after `abort`, and does not
 *       wait for other ranks. Where a queue records (R31), a driver keeps these calls, or refuses them
 *       with OTR_ERR_UNSUPPORTED.
 * Queues that other libraries use too (the optional table `native_queue`)
 *   R55 `handle` gives what the vendor's own interface calls a queue (a cl_command_queue, a CUstream); the
 *       driver's documentation says which. It stays the same, and is good until the queue is destroyed. All
 *       that was submitted to the queue is in the native one when the call returns, which may wait for that.
 *       So what another library puts in then comes behind it, and before the next submission. It is refused
 *       for a queue that has failed, with OTR_ERR_CANCELLED, and for one that records, with
 *       OTR_ERR_CAPTURE. From the first such call on, queries, waits and events of the queue are about the
 *       other library's work, too.
 *   R56 `adopt` makes a queue of a native one, which is of the device, in order, and may be one of this
 *       driver's; else OTR_ERR_INVALID_DEVICE or OTR_ERR_INVALID_ARGUMENT. What its library has put in
 *       before a submission comes before that. The native queue is good until the queue was destroyed and
 *       its work has finished: its library sees to that. Both may use it at any time; failures of one may
 *       be reported to the other.
 * Devices, one by one
 *   R57 `open` finds the devices, and makes none ready: no context, no memory and no thread of a device.
 *       Until a device is open, it answers `device_count`, `device_properties` and `names` of
 *       `operators`, and every other call that names it is refused with OTR_ERR_INVALID_DEVICE, whose text
 *       says that it is not open. A call that names none may need that some device is open. Properties are
 *       the same before and after, but for the priorities, which may be 0 until the device is open.
 *   R58 `device_open` makes one device ready, and no other, as far as the interface below the driver can
 *       tell them apart. Opening a device that is open does nothing, so that threads may do it at a time.
 *       A device that cannot be opened says why, stays closed and may be tried again, and the others
 *       are as they were. `device_close` takes back what `device_open` took, however often that was
 *       called: it may answer OTR_ERR_BUSY while objects or memory of the device live, and waits for the
 *       work of its destroyed queues. The device may be opened again. `close` closes devices that are open.
 * Memory and semaphores by file descriptor (the optional table `external`)
 *   R59 A descriptor has a kind: OTR_FD_OPAQUE, of the driver and of those that its documentation names;
 *       OTR_FD_DMA_BUF, a dma-buf of Linux. A kind that the driver does not have, for memory or for
 *       semaphores, is OTR_ERR_UNSUPPORTED; a descriptor that is none of the kind, as far as the driver can
 *       tell, OTR_ERR_INVALID_HANDLE. What an export gives is the host's, which closes it; each call gives
 *       another one. An import looks at a descriptor during the call alone: it stays the host's, whatever
 *       the answer. So a driver gives an interface that takes descriptors over one of its own.
 *   R60 What was allocated with OTR_MEMORY_EXPORTABLE_FD is exported: `offset` and `size` say where in the
 *       descriptor it lies. An import reaches `size` bytes from `offset` on at an address of the importer's
 *       device; more than there are, or an offset that cannot be mapped, is OTR_ERR_INVALID_ARGUMENT. The
 *       bytes stay as long as the allocation, a descriptor or an import does: the exporter may free first,
 *       or end. An import does not count as used, `memory_free` refuses it, and `memory_close` takes it back
 *       (R12).
 *   R61 A semaphore is a number of 64 bits that only grows. `signal` sets it, once all before it in its queue
 *       has taken effect; work behind `wait` starts when it has come to the value. Both return at once, and
 *       are commands of a queue of the semaphore's device (else OTR_ERR_INVALID_DEVICE; of another `open`,
 *       OTR_ERR_INVALID_HANDLE). A `wait` may come before its `signal`, which flushes its queue (R18):
 *       another process cannot. Numbers that do not grow are the host's fault. `semaphore_destroy` returns
 *       without waiting; commands, descriptors and other imports go on.
 *   R62 A `signal` behind a failure (R20) is executed: nobody waits for ever because a queue has failed. A
 *       driver whose semaphores can carry a failure fails waits for the numbers that came with it, and for
 *       all larger ones, with its code (R24), for as long as the semaphore lives; with others, they pass.
 *       What a lost device or an ended process has not signalled never comes, unless somebody signals in
 *       its place.
 *   R63 Where a queue records (R31), `signal` and `wait` are refused with OTR_ERR_UNSUPPORTED.
 */
#ifndef OUTRIGGER_DRIVER_H
#define OUTRIGGER_DRIVER_H

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OTR_DRIVER_API_MAJOR 1
#define OTR_DRIVER_API_MINOR 0

#if defined(_WIN32)
#define OTR_DRIVER_EXPORT __declspec(dllexport)
#else
#define OTR_DRIVER_EXPORT __attribute__((visibility("default")))
#endif

/* Objects of the driver. The host never looks inside. */
typedef struct otr_driver otr_driver_t;
typedef struct otr_queue otr_queue_t;
typedef struct otr_drv_event otr_drv_event_t;
typedef struct otr_drv_module otr_drv_module_t;
typedef struct otr_drv_kernel otr_drv_kernel_t;
typedef struct otr_operator otr_operator_t;
typedef struct otr_drv_graph otr_drv_graph_t;
typedef struct otr_physical otr_physical_t; /* memory without an address, until it is mapped */
typedef struct otr_drv_comm otr_drv_comm_t; /* one rank of a communicator */
typedef struct otr_drv_semaphore otr_drv_semaphore_t;

/* ---- Negotiation --------------------------------------------------------------------------- */
#define OTR_LOG_ERROR 1
#define OTR_LOG_WARN 2
#define OTR_LOG_INFO 3
#define OTR_LOG_DEBUG 4

/* What the host says of itself. Lives as long as the process. */
typedef struct otr_host_info {
  size_t struct_size;
  const otr_ext_t* next;
  uint32_t api_major;
  uint32_t api_minor;
  const char* version; /* of Outrigger, for messages */
  /* Optional. The driver's only way to log. Any thread. */
  void (*log)(int32_t level, const char* message);
} otr_host_info_t;

/* ---- Devices ------------------------------------------------------------------------------- */
#define OTR_DEVICE_HOST_VISIBLE 0x1u /* R15 */
#define OTR_DEVICE_CPU 0x2u          /* the device is the CPU of the host: host functions are its own code */
#define OTR_DEVICE_PCI 0x4u          /* `pci_domain` to `pci_function` say where the device is plugged in */
#define OTR_DEVICE_NUMA 0x8u         /* `numa_node` says which memory of the host is nearest */

/* Kinds of memory that a device has, at most. */
#define OTR_MEMORY_KINDS 4

/* How far a failure of the device's own work reaches (a kernel, a copy). What host calls answer fails their
 * queue alone, on every device. */
typedef uint32_t otr_failure_scope_t;
#define OTR_FAILURE_QUEUE 0   /* R20 */
#define OTR_FAILURE_COMMAND 1 /* R20, but commands that were submitted before the failure was seen may run */
#define OTR_FAILURE_DEVICE 2  /* the device answers OTR_ERR_DEVICE_LOST from then on */

typedef struct otr_device_properties {
  size_t struct_size; /* set by the host; the driver writes no further */
  otr_ext_t* next;
  char name[128];
  char vendor[64];
  uint8_t uuid[16];           /* all zero: none */
  uint64_t flags;             /* OTR_DEVICE_* */
  uint64_t total_memory;      /* bytes */
  uint32_t address_alignment; /* bytes, R14 */
  uint32_t compute_units;     /* 0: unknown */
  int32_t priority_lowest;    /* of queues; as in CUDA a lower number is more urgent; R57 */
  int32_t priority_highest;
  uint64_t peak_bytes_per_second; /* device memory; 0: unknown */
  uint64_t peak_flops_f32;        /* per second; 0: unknown */
  uint64_t peak_flops_f16;
  uint64_t largest_allocation; /* bytes of one `memory_alloc`; 0: all of the memory */
  otr_failure_scope_t failure_scope;
  uint32_t code_formats; /* that `kernel` loads: bit N is otr_code_format_t N, of those below 32 */
  /* Of code that it loads, host functions apart; 0: unknown. */
  uint32_t features;         /* OTR_FEATURE_* */
  uint32_t largest_group;    /* work-items of a group, in all */
  uint32_t largest_block[3]; /* the same for each dimension */
  uint32_t sub_group;        /* work-items that run in step */
  uint32_t local_memory_bytes;   /* of a group */
  uint32_t argument_block_bytes; /* of a launch */
  /* 0 without their flags, OTR_DEVICE_PCI and OTR_DEVICE_NUMA. Parts of one board may share a place. */
  uint32_t pci_domain;
  uint32_t pci_bus;
  uint32_t pci_device;
  uint32_t pci_function;
  uint32_t numa_node;
  uint32_t reserved;
  /* Bytes of memory of each kind, by its number; 0: the device has none of it. Kind 0, the device's own, need
   * not be written: its size is `total_memory`. */
  uint64_t memory_bytes[OTR_MEMORY_KINDS];
} otr_device_properties_t;

typedef struct otr_open_params {
  size_t struct_size;
  const otr_ext_t* next;
  /* "key=value,key=value", or NULL. An unknown key is OTR_ERR_INVALID_ARGUMENT, and the text names it. */
  const char* options;
} otr_open_params_t;

typedef struct otr_device_params {
  size_t struct_size;
  const otr_ext_t* next;
  uint32_t flags; /* 0 */
  uint32_t reserved; /* 0 */
} otr_device_params_t;

typedef struct otr_queue_params {
  size_t struct_size;
  const otr_ext_t* next;
  int32_t priority; /* clamped to the device's range; 0 is normal */
  uint32_t flags;   /* 0 */
} otr_queue_params_t;

#define OTR_EVENT_TIMING 0x1u /* the event carries a timestamp; needs `timing` */

typedef struct otr_event_params {
  size_t struct_size;
  const otr_ext_t* next;
  uint32_t flags;    /* OTR_EVENT_* */
  uint32_t reserved; /* 0 */
} otr_event_params_t;

/* ---- Memory -------------------------------------------------------------------------------- */
typedef uint32_t otr_memory_kind_t;
#define OTR_MEMORY_DEVICE 0           /* the device's own */
#define OTR_MEMORY_VENDOR 0x80000000u /* and above */

/* A hint that the memory may be given to `ipc`: what was allocated without it a driver may refuse to export.
 * A driver to which it means nothing ignores it. */
#define OTR_MEMORY_EXPORTABLE 0x1u
/* Of `memory_alloc` alone: the memory can be given to `memory_export` of the table `external`. An unknown flag without
 * that entry. */
#define OTR_MEMORY_EXPORTABLE_FD 0x2u

/* What `memory_alloc` allocates, and `create` of `virtual_memory`. */
typedef struct otr_memory_params {
  size_t struct_size;
  const otr_ext_t* next;
  uint64_t size;      /* bytes, > 0 */
  uint64_t alignment; /* R14: a power of two, or 0. Of `create`: 0 */
  otr_memory_kind_t kind;
  uint32_t flags; /* OTR_MEMORY_* */
} otr_memory_params_t;

/* A range of addresses (R37). */
typedef struct otr_reserve_params {
  size_t struct_size;
  const otr_ext_t* next;
  uint64_t size;
  uint64_t alignment; /* 0: the granularity */
  uint32_t flags;     /* 0 */
  uint32_t reserved;  /* 0 */
} otr_reserve_params_t;

/* Objects that are put one behind the other (R39), readable and writable on their device. */
typedef struct otr_map_params {
  size_t struct_size;
  const otr_ext_t* next;
  otr_address_t address;
  otr_physical_t* const* physical;
  uint32_t count; /* > 0 */
  uint32_t flags; /* 0 */
} otr_map_params_t;

/* ---- Commands ------------------------------------------------------------------------------
 * The struct of a command, and what a pattern in it leads to, may go as soon as the call returns (R10).
 */
typedef struct otr_copy {
  size_t struct_size;
  const otr_ext_t* next;
  uint64_t dst; /* a device address or a host pointer, as `kind` says */
  uint64_t src;
  uint64_t size; /* bytes of a row */
  otr_copy_kind_t kind;
  uint32_t rows;      /* R25; 0 or 1: one */
  uint64_t dst_pitch; /* bytes from a row to the next; not looked at for one row */
  uint64_t src_pitch;
  uint32_t dst_device; /* looked at by `copy` of the group `peer` alone */
  uint32_t src_device;
} otr_copy_t;

typedef struct otr_fill {
  size_t struct_size;
  const otr_ext_t* next;
  otr_address_t dst;
  uint64_t size; /* bytes */
  const void* pattern;
  uint32_t pattern_size; /* R28 */
  uint32_t reserved;     /* 0 */
} otr_fill_t;

#define OTR_HOST_CALL_CANNOT_FAIL 0x1u /* R27 */

typedef struct otr_host_call {
  size_t struct_size;
  const otr_ext_t* next;
  otr_host_fn function;
  void* user;
  uint32_t flags;    /* OTR_HOST_CALL_* */
  uint32_t reserved; /* 0 */
} otr_host_call_t;

/* ---- Outcomes ------------------------------------------------------------------------------ */
#define OTR_LABEL_BYTES 128
#define OTR_MESSAGE_BYTES 256

/* What became of work (R19). The driver writes `code`, and no more than that unless it is a failure. Texts are
 * UTF-8 and end in NUL; a longer one is cut in front of a character. */
typedef struct otr_outcome {
  size_t struct_size; /* set by the host, at least that of version 1.0; the driver writes no further */
  otr_ext_t* next;
  otr_code_t code;
  uint32_t reserved;
  /* The number of the command in its queue, from 1; 0: not known. Copies, fills, launches and host calls count;
   * records of events do not. Whether a wait for an event or a call of a semaphore counts, and a copy or fill
   * of 0 bytes, is the driver's choice. */
  uint64_t submission;
  char label[OTR_LABEL_BYTES]; /* of the launch; empty: none, or not known */
  char message[OTR_MESSAGE_BYTES];
} otr_outcome_t;

/* ---- Optional groups ----------------------------------------------------------------------- */

/* Free and total bytes of a device. */
typedef struct otr_memory_info_api {
  size_t struct_size;
  otr_code_t (*info)(otr_driver_t*, uint32_t device, uint64_t* free_bytes, uint64_t* total_bytes);
} otr_memory_info_api_t;

/* Addresses and memory apart (R37 to R41). */
typedef struct otr_virtual_memory_api {
  size_t struct_size;
  otr_code_t (*granularity)(otr_driver_t*, uint32_t device, uint64_t* bytes);
  otr_code_t (*reserve)(otr_driver_t*, uint32_t device, const otr_reserve_params_t*,
                        otr_address_t* address);
  otr_code_t (*release)(otr_driver_t*, otr_address_t address, uint64_t size);
  otr_code_t (*create)(otr_driver_t*, uint32_t device, const otr_memory_params_t*,
                       otr_physical_t** physical);
  otr_code_t (*destroy)(otr_driver_t*, otr_physical_t*);
  otr_code_t (*map)(otr_driver_t*, const otr_map_params_t*);
  otr_code_t (*unmap)(otr_driver_t*, otr_address_t address, uint64_t size);
} otr_virtual_memory_api_t;

/* Host memory that the device reaches fast and asynchronously. */
typedef struct otr_pinned_memory_api {
  size_t struct_size;
  otr_code_t (*alloc)(otr_driver_t*, uint64_t size, void** pointer);
  otr_code_t (*free)(otr_driver_t*, void* pointer);
  otr_code_t (*pin)(otr_driver_t*, void* pointer, uint64_t size); /* optional */
  otr_code_t (*unpin)(otr_driver_t*, void* pointer);              /* optional */
} otr_pinned_memory_api_t;

/* Copies between two devices of one driver. */
typedef struct otr_peer_api {
  size_t struct_size;
  otr_code_t (*can_access)(otr_driver_t*, uint32_t device, uint32_t peer, uint32_t* yes);
  /* On a queue of either device. The kind is OTR_COPY_DEVICE_TO_DEVICE. */
  otr_code_t (*copy)(otr_queue_t*, const otr_copy_t*);
} otr_peer_api_t;

/* Nanoseconds on a clock of the device that never runs backwards. */
typedef struct otr_timing_api {
  size_t struct_size;
  /* As `event_query`; with an outcome of OTR_OK the time of the event's point is written too.
   * OTR_ERR_INVALID_ARGUMENT without OTR_EVENT_TIMING, and for an event that was never recorded. */
  otr_code_t (*event_time)(otr_drv_event_t*, otr_outcome_t*, uint64_t* nanoseconds);
  otr_code_t (*device_time)(otr_driver_t*, uint32_t device, uint64_t* nanoseconds);
} otr_timing_api_t;

/* Code and kernels (otr_launch_t is in base.h). */
typedef struct otr_kernel_api {
  size_t struct_size;
  /* OTR_ERR_UNSUPPORTED for a format that the driver does not take. `options` are for the compiler of
   * the format, or NULL. Code that does not compile is OTR_ERR_INVALID_ARGUMENT, and the text has the
   * compiler's log. */
  otr_code_t (*module_load)(otr_driver_t*, uint32_t device, otr_code_format_t format,
                            const void* code, size_t size, const char* options, otr_drv_module_t**);
  otr_code_t (*module_unload)(otr_drv_module_t*); /* after its last launch has finished */
  /* name NULL: the only kernel of the module; OTR_ERR_NOT_FOUND for a name that it does not have. The
   * kernel lives as long as the module. */
  otr_code_t (*kernel_get)(otr_drv_module_t*, const char* name, otr_drv_kernel_t**);
  otr_code_t (*launch)(otr_queue_t*, otr_drv_kernel_t*, const otr_launch_t*);
  /* The compiled form of a module, which this version of the driver loads as OTR_CODE_ELF on this device, in
   * other processes too. `*size` is what `binary` has room for, and becomes what there is; with NULL that
   * alone is told, and too little room is OTR_ERR_INVALID_ARGUMENT. Optional. */
  otr_code_t (*module_binary)(otr_drv_module_t*, void* binary, uint64_t* size);
} otr_kernel_api_t;

/* What a driver says of an operator that it prepared. The host sets `struct_size`, and 0 elsewhere. */
typedef struct otr_operator_answer {
  size_t struct_size;
  const otr_ext_t* next;
  uint64_t workspace_bytes; /* that each launch needs (R47) */
  /* The time of one launch in nanoseconds; 0: unknown. A host that sees the memory of the device uses a kernel
   * of its own where that takes less time. */
  uint64_t cost_ns;
} otr_operator_answer_t;

/* Operators that the driver brings as a library (R45 to R47). Names, scalars and arguments are those of
 * docs/operators.md; Outrigger uses its own kernels or the CPU where the answer is no. */
typedef struct otr_operator_api {
  size_t struct_size;
  /* `names` gets an array of `count` names, which lives until the driver is closed. */
  otr_code_t (*names)(otr_driver_t*, uint32_t device, const char* const** names, uint32_t* count);
  /* Addresses and scalars in `call` are ignored. The answer, also a no, is kept and used for every
   * later call with the same name, dtypes, sizes, strides and arguments. */
  otr_code_t (*prepare)(otr_driver_t*, uint32_t device, const otr_operator_call_t* call,
                        otr_operator_answer_t*, otr_operator_t**);
  otr_code_t (*release)(otr_operator_t*);
  otr_code_t (*launch)(otr_queue_t*, otr_operator_t*, const otr_operator_call_t* call,
                       otr_address_t workspace);
} otr_operator_api_t;

/* Native graphs: commands are recorded from a queue and replayed as one (R31 to R36). */
typedef struct otr_graph_api {
  size_t struct_size;
  otr_code_t (*record_begin)(otr_queue_t*);
  /* Of the queue that began, else OTR_ERR_INVALID_ARGUMENT. The graph may have no commands. */
  otr_code_t (*record_end)(otr_queue_t*, otr_drv_graph_t**);
  otr_code_t (*launch)(otr_queue_t*, otr_drv_graph_t*);
  /* Gives `graph` the arguments of `from`, which has the same commands. Optional. */
  otr_code_t (*update)(otr_drv_graph_t* graph, otr_drv_graph_t* from);
  otr_code_t (*destroy)(otr_drv_graph_t*);
  /* As `update`, for the commands of `graph` from number `first` on, as many as `from` has. Optional. */
  otr_code_t (*update_part)(otr_drv_graph_t* graph, uint32_t first, otr_drv_graph_t* from);
} otr_graph_api_t;

/* Memory and events of other processes (R42 to R44). */
#define OTR_IPC_HANDLE_BYTES 64
typedef struct otr_ipc_handle {
  size_t struct_size; /* set by the host, for exports too: the driver writes no further */
  uint8_t bytes[OTR_IPC_HANDLE_BYTES];
} otr_ipc_handle_t;

/* What an import has found. */
typedef struct otr_imported {
  size_t struct_size; /* set by the host; the driver writes no further */
  otr_ext_t* next;
  otr_address_t address; /* where the memory begins; 0: an object, which has no address */
  uint64_t size;         /* bytes */
} otr_imported_t;

typedef struct otr_ipc_api {
  size_t struct_size;
  /* Of what `memory_alloc` gave. */
  otr_code_t (*memory_export)(otr_driver_t*, otr_address_t base, otr_ipc_handle_t*);
  otr_code_t (*memory_import)(otr_driver_t*, uint32_t device, const otr_ipc_handle_t*,
                              otr_imported_t*);
  otr_code_t (*memory_close)(otr_driver_t*, otr_address_t base);
  /* Of an event without OTR_EVENT_TIMING. Both or none of the two; optional. */
  otr_code_t (*event_export)(otr_drv_event_t*, otr_ipc_handle_t*);
  otr_code_t (*event_import)(otr_driver_t*, const otr_ipc_handle_t*, otr_drv_event_t**);
  /* Of what `create` of `virtual_memory` gave. What was imported is mapped as any object is, and given
   * back to `destroy`. Both or none of the two; optional. */
  otr_code_t (*physical_export)(otr_driver_t*, otr_physical_t*, otr_ipc_handle_t*);
  otr_code_t (*physical_import)(otr_driver_t*, uint32_t device, const otr_ipc_handle_t*,
                                otr_imported_t*, otr_physical_t**);
} otr_ipc_api_t;

/* ---- Optional tables, in the chain of otr_driver_api_t (R3) ----------------------------------- */

/* How a rank joins a communicator. */
typedef struct otr_comm_params {
  size_t struct_size;
  const otr_ext_t* next;
  const void* id; /* what `id` gave, in any process */
  uint64_t id_size;
  uint32_t rank_count;
  uint32_t rank;
  uint64_t timeout_ms; /* R48, R52; 0: the driver's choice, some minutes */
} otr_comm_params_t;

/* What `exchange` sends and receives. */
typedef struct otr_exchange {
  size_t struct_size;
  const otr_ext_t* next;
  const otr_transfer_t* transfers;
  uint32_t count;
  uint32_t reserved; /* 0 */
} otr_exchange_t;

#define OTR_COLLECTIVES_MAJOR 1
#define OTR_COLLECTIVES_MINOR 0

/* Work that devices of one or many processes do together (R48 to R54). */
typedef struct otr_collective_api {
  otr_ext_t ext;  /* of type OTR_EXT_COLLECTIVES; its size is that of the table */
  uint32_t major; /* OTR_COLLECTIVES_MAJOR that the driver was compiled with */
  uint32_t minor;
  /* `*size` is what `bytes` has room for, and becomes what there is; with NULL that alone is told, and
   * too little room is OTR_ERR_INVALID_ARGUMENT. At most 8192. */
  otr_code_t (*id)(otr_driver_t*, void* bytes, uint64_t* size);
  otr_code_t (*create)(otr_driver_t*, uint32_t device, const otr_comm_params_t*, otr_drv_comm_t**);
  otr_code_t (*destroy)(otr_drv_comm_t*);
  otr_code_t (*abort)(otr_drv_comm_t*);
  /* OTR_OK, or why the communicator has failed; never OTR_NOT_READY. */
  otr_code_t (*query)(otr_drv_comm_t*, otr_outcome_t*);
  /* `count` elements of each rank. */
  otr_code_t (*all_reduce)(otr_queue_t*, otr_drv_comm_t*, otr_address_t send, otr_address_t receive,
                           uint64_t count, otr_dtype_t dtype, otr_reduction_t reduction);
  /* `receive` is that of the root, and ignored on other ranks. */
  otr_code_t (*reduce)(otr_queue_t*, otr_drv_comm_t*, otr_address_t send, otr_address_t receive,
                       uint64_t count, otr_dtype_t dtype, otr_reduction_t reduction, uint32_t root);
  /* `count` elements for each rank: `send` has as many for all of them. */
  otr_code_t (*reduce_scatter)(otr_queue_t*, otr_drv_comm_t*, otr_address_t send,
                               otr_address_t receive, uint64_t count, otr_dtype_t dtype,
                               otr_reduction_t reduction);
  /* `size` bytes, read on the root and written on the others. */
  otr_code_t (*broadcast)(otr_queue_t*, otr_drv_comm_t*, otr_address_t address, uint64_t size,
                          uint32_t root);
  /* `size` bytes of each rank: `receive` gets as many from all of them. */
  otr_code_t (*all_gather)(otr_queue_t*, otr_drv_comm_t*, otr_address_t send, otr_address_t receive,
                           uint64_t size);
  /* Sends and receives. Optional. */
  otr_code_t (*exchange)(otr_queue_t*, otr_drv_comm_t*, const otr_exchange_t*);
} otr_collective_api_t;

#define OTR_NATIVE_QUEUE_MAJOR 1
#define OTR_NATIVE_QUEUE_MINOR 0

/* Queues that other libraries use too (R55, R56). */
typedef struct otr_native_queue_api {
  otr_ext_t ext;  /* of type OTR_EXT_NATIVE_QUEUE; its size is that of the table */
  uint32_t major; /* OTR_NATIVE_QUEUE_MAJOR that the driver was compiled with */
  uint32_t minor;
  otr_code_t (*handle)(otr_queue_t*, uint64_t* native);
  otr_code_t (*adopt)(otr_driver_t*, uint32_t device, uint64_t native, otr_queue_t**);
} otr_native_queue_api_t;

typedef uint32_t otr_fd_kind_t; /* R59 */
#define OTR_FD_OPAQUE 1
#define OTR_FD_DMA_BUF 2
#define OTR_FD_VENDOR 0x80000000u /* and above */

/* A file descriptor. For an export the host sets `struct_size`, `next` and `kind`, and the driver writes the rest. */
typedef struct otr_fd {
  size_t struct_size;
  otr_ext_t* next;
  int32_t fd;
  otr_fd_kind_t kind;
  uint64_t offset; /* R60; of a semaphore 0 */
  uint64_t size;
} otr_fd_t;

typedef struct otr_semaphore_params {
  size_t struct_size;
  const otr_ext_t* next;
  uint64_t initial; /* R61 */
  uint32_t flags;    /* 0 */
  uint32_t reserved; /* 0 */
} otr_semaphore_params_t;

#define OTR_EXTERNAL_MAJOR 1
#define OTR_EXTERNAL_MINOR 0

/* Memory and semaphores of other libraries and processes, by file descriptor (R59 to R63). */
typedef struct otr_external_api {
  otr_ext_t ext;  /* of type OTR_EXT_EXTERNAL; its size is that of the table */
  uint32_t major; /* OTR_EXTERNAL_MAJOR that the driver was compiled with */
  uint32_t minor;
  otr_code_t (*memory_import)(otr_driver_t*, uint32_t device, const otr_fd_t*,
                              otr_address_t* address);
  otr_code_t (*memory_close)(otr_driver_t*, otr_address_t address);
  otr_code_t (*semaphore_import)(otr_driver_t*, uint32_t device, const otr_fd_t*,
                                 otr_drv_semaphore_t**);
  otr_code_t (*semaphore_destroy)(otr_drv_semaphore_t*);
  otr_code_t (*signal)(otr_queue_t*, otr_drv_semaphore_t*, uint64_t value);
  otr_code_t (*wait)(otr_queue_t*, otr_drv_semaphore_t*, uint64_t value);
  otr_code_t (*memory_export)(otr_driver_t*, otr_address_t address, otr_fd_t*); /* optional */
  /* Both or none of the two; optional. params NULL means defaults. */
  otr_code_t (*semaphore_create)(otr_driver_t*, uint32_t device, const otr_semaphore_params_t*,
                                 otr_drv_semaphore_t**);
  otr_code_t (*semaphore_export)(otr_drv_semaphore_t*, otr_fd_t*);
} otr_external_api_t;

/* ---- The table ----------------------------------------------------------------------------- */
typedef struct otr_driver_api {
  size_t struct_size;
  const otr_ext_t* next; /* optional tables */
  uint32_t api_major; /* OTR_DRIVER_API_MAJOR that the driver was compiled with */
  uint32_t api_minor;
  const char* name;    /* short, lower case: "host", "acme" */
  const char* vendor;
  const char* version; /* of the driver */

  /* -- Mandatory: 22 entries -- */

  /* Makes the driver ready and finds its devices (R57); params NULL means defaults. May be called several
   * times; each result is independent. */
  otr_code_t (*open)(const otr_open_params_t*, otr_driver_t**);
  /* After all queues and events were destroyed and all memory was freed. */
  otr_code_t (*close)(otr_driver_t*);
  const char* (*last_error)(void);
  otr_code_t (*device_count)(otr_driver_t*, uint32_t* count);
  otr_code_t (*device_properties)(otr_driver_t*, uint32_t device, otr_device_properties_t*);
  /* Makes a device ready (R58); params NULL means defaults. */
  otr_code_t (*device_open)(otr_driver_t*, uint32_t device, const otr_device_params_t*);
  otr_code_t (*device_close)(otr_driver_t*, uint32_t device);

  /* No initial value. */
  otr_code_t (*memory_alloc)(otr_driver_t*, uint32_t device, const otr_memory_params_t*,
                             otr_address_t*);
  /* `address` is what memory_alloc returned; anything else is OTR_ERR_INVALID_ARGUMENT. */
  otr_code_t (*memory_free)(otr_driver_t*, otr_address_t address);

  /* params NULL means defaults. */
  otr_code_t (*queue_create)(otr_driver_t*, uint32_t device, const otr_queue_params_t*,
                             otr_queue_t**);
  otr_code_t (*queue_destroy)(otr_queue_t*);
  otr_code_t (*queue_query)(otr_queue_t*, otr_outcome_t*);
  otr_code_t (*queue_synchronize)(otr_queue_t*, otr_outcome_t*);
  otr_code_t (*queue_wait_event)(otr_queue_t*, otr_drv_event_t*);

  /* For records on queues of this device; queues of any device of the driver may wait for it. A flag
   * whose group is NULL is an unknown flag. params NULL means defaults. */
  otr_code_t (*event_create)(otr_driver_t*, uint32_t device, const otr_event_params_t*,
                             otr_drv_event_t**);
  otr_code_t (*event_destroy)(otr_drv_event_t*);
  otr_code_t (*event_record)(otr_drv_event_t*, otr_queue_t*);
  otr_code_t (*event_query)(otr_drv_event_t*, otr_outcome_t*);
  otr_code_t (*event_synchronize)(otr_drv_event_t*, otr_outcome_t*);

  /* Device addresses are those of the queue's device: copies between devices are the group `peer`. */
  otr_code_t (*copy)(otr_queue_t*, const otr_copy_t*);
  otr_code_t (*fill)(otr_queue_t*, const otr_fill_t*);
  otr_code_t (*host_call)(otr_queue_t*, const otr_host_call_t*);

  /* -- Optional entry -- */

  /* Starts what was submitted (R18). NULL: submissions start by themselves. */
  otr_code_t (*queue_flush)(otr_queue_t*);

  /* -- Optional groups -- */
  const otr_memory_info_api_t* memory_info;
  const otr_virtual_memory_api_t* virtual_memory;
  const otr_pinned_memory_api_t* pinned_memory;
  const otr_peer_api_t* peer;
  const otr_timing_api_t* timing;
  const otr_kernel_api_t* kernel;
  const otr_operator_api_t* operators;
  const otr_graph_api_t* graph;
  const otr_ipc_api_t* ipc;
} otr_driver_api_t;

/* The one exported symbol. The table lives as long as the library is loaded. Called at least once
 * per load; refuses another major with OTR_ERR_VERSION, after it wrote the table, so that the host
 * can report both numbers. */
typedef otr_code_t (*otr_driver_get_api_fn)(const otr_host_info_t*, const otr_driver_api_t**);
OTR_DRIVER_EXPORT otr_code_t otr_driver_get_api(const otr_host_info_t* host,
                                                const otr_driver_api_t** api);

#ifdef __cplusplus
}
#endif

#endif /* OUTRIGGER_DRIVER_H */
