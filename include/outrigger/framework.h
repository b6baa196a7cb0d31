/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/framework.h: the part of the host contract that frameworks alone need: their threads for host
 * kernels, choices among variants of their code, and what may run beside the device. The rules H1 to H30 of
 * outrigger.h hold.
 */

#ifndef OUTRIGGER_FRAMEWORK_H
#define OUTRIGGER_FRAMEWORK_H

/* Generated from ffi/ by `cargo xtask gen`. Do not edit. */

#include "outrigger.h"

// Fallbacks are counted.
#define OTR_FALLBACK_SILENT 0

// Fallbacks are counted, and there is a warning at the first one of each operator.
#define OTR_FALLBACK_WARN 1

// Fallbacks are refused.
#define OTR_FALLBACK_ERROR 2

// `flags` of a question: what is not known is measured, also with OUTRIGGER_TUNE=cached; never with
// OUTRIGGER_TUNE=off.
#define OTR_TUNE_MEASURE 1

// `flags` of a question: as OTR_TUNE_MEASURE, and what is known is measured again, unless a person has pinned it.
#define OTR_TUNE_AGAIN 2

// Runs `body` over parts of a range.
typedef void (*otr_parallel_body_fn)(void *context, int64_t begin, int64_t end);

// Splits a range into parts of at least `grain`, runs `body` on each part, on any threads, and returns
// when all have run.
typedef void (*otr_parallel_for_fn)(int64_t begin,
                                    int64_t end,
                                    int64_t grain,
                                    otr_parallel_body_fn body,
                                    void *context);

// The question which variant of code is the fastest. The library adds the driver, the device and its own version.
typedef struct {
  // sizeof(otr_tune_params_t)
  size_t struct_size;
  // NULL
  const void *next;
  // OTR_TUNE_*
  uint32_t flags;
  // 0
  uint32_t reserved;
  // The operation that is computed: "torch.mm".
  const char *operation;
  // The class of sizes and layouts. Not empty, as the other texts.
  const char *sizes;
  // The element type.
  const char *dtype;
  // All else that the answer depends on, such as a hash of the code and versions.
  const char *code;
  // The names of the variants. The first one is the default.
  const char *const *candidates;
  // The number of the variants, at least 1.
  uint32_t candidate_count;
  // Milliseconds that the measurement of one variant may take, with its compilation; 0 for 30 seconds.
  uint32_t limit_ms;
  // The command that starts a worker: a program, its arguments, and NULL behind the last. NULL: nothing is measured.
  const char *const *worker;
  // The measurement that the worker is to make, as JSON. NULL: nothing is measured.
  const char *task;
} otr_tune_params_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Sets the mode of the whole process, for kernels of frameworks and for host kernels on devices that are not
// the CPU: OTR_FALLBACK_SILENT, _WARN or _ERROR. It replaces what the variable OUTRIGGER_FALLBACK says.
otr_status_t *otr_fallback_set_mode(uint32_t mode);

// The present mode for kernels of frameworks.
otr_status_t *otr_fallback_mode(uint32_t *mode);

// Sets the modes of both places as the variable OUTRIGGER_FALLBACK does: "silent", "warn" or "error" for both,
// or one for each, as in "framework:error,host:warn".
otr_status_t *otr_fallback_set_policy(const char *policy);

// The modes in force, in the form of otr_fallback_set_policy. Free it with otr_string_free.
otr_status_t *otr_fallback_policy(char **policy);

// Lets host kernels use the threads of a framework, in the whole process; NULL returns to the
// built-in pool of threads. Work that runs already continues as it began.
otr_status_t *otr_set_parallel_for(otr_parallel_for_fn function);

// Chooses one of several variants of the host's code for a device, and sets `chosen` to its number in `candidates`: the
// choice that is kept in the store (OUTRIGGER_CACHE); or, with OUTRIGGER_TUNE=on or a flag, the fastest variant after
// the worker has measured each (docs/device-code.md, Tuning), which is kept then. The default stays where another
// variant gains less than 3 percent. A variant has failed if the worker refuses it, crashes or takes too long. `chosen`
// is 0, the default, if all have failed, if no worker starts, or if nothing is known. A process measures a question
// once, unless OTR_TUNE_AGAIN is set, and one variant at a time. `times_ns` is NULL, or takes `candidate_count`
// nanoseconds: 0 for a variant that failed or was not measured. May take minutes. Submits nothing, so it may be
// called while streams capture.
otr_status_t *otr_tune_choose(uint32_t device,
                              const otr_tune_params_t *params,
                              uint32_t *chosen,
                              uint64_t *times_ns);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTRIGGER_FRAMEWORK_H */
