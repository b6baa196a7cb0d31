/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * outrigger/table.h: all functions of outrigger.h and framework.h as a table, for hosts that load
 * liboutrigger at run time and do not link with it. The rules H1 to H30 of outrigger.h hold.
 */

#ifndef OUTRIGGER_TABLE_H
#define OUTRIGGER_TABLE_H

/* Generated from ffi/ by `cargo xtask gen`. Do not edit. */

#include "framework.h"

/* Whether a table has an entry: OTR_HOST_API_HAS(api, memory_trim). */
#define OTR_HOST_API_HAS(api, entry) \
  (offsetof(otr_host_api_t, entry) + sizeof((api)->entry) <= (api)->struct_size)

// The major number of the host contract.
#define OTR_HOST_API_MAJOR 1

// The minor number of the host contract, which counts additions.
#define OTR_HOST_API_MINOR 0

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
  otr_status_t *(*memory_pointer_info)(uint32_t device, uint64_t address, otr_pointer_info_t *info);
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
  otr_status_t *(*fallback_set_policy)(const char *policy);
  otr_status_t *(*fallback_policy)(char **policy);
  otr_status_t *(*operator_report)(char **json);
  otr_status_t *(*operator_timing)(uint32_t on);
  otr_status_t *(*operator_offered)(uint32_t device, otr_operator_id_t operator_id, uint32_t *yes);
  otr_status_t *(*operator_keep_whole)(uint32_t device, const otr_operator_id_t *ids, uint32_t count);
  otr_status_t *(*operator_register)(const otr_operator_registration_t *params,
                                     otr_registration_t *registration);
  otr_status_t *(*operator_withdraw)(otr_registration_t registration);
  otr_status_t *(*operator_list)(char **json);
  otr_status_t *(*status_new)(int32_t code, const char *message);
  otr_status_t *(*graph_name_argument)(otr_graph_t graph,
                                       const char *name,
                                       otr_node_t node,
                                       uint32_t index);
  otr_status_t *(*graph_bind_argument)(otr_graph_exec_t exec,
                                       uint32_t slot,
                                       const void *value,
                                       uint32_t size);
  otr_status_t *(*module_load)(uint32_t device,
                               const otr_module_params_t *params,
                               otr_module_t *module);
  otr_status_t *(*module_query)(otr_module_t module, uint32_t *loaded);
  otr_status_t *(*module_destroy)(otr_module_t module);
  otr_status_t *(*kernel_get)(otr_module_t module, const char *name, otr_kernel_t *kernel);
  otr_status_t *(*kernel_destroy)(otr_kernel_t kernel);
  otr_status_t *(*kernel_launch)(otr_stream_t stream,
                                 otr_kernel_t kernel,
                                 const otr_launch_t *launch);
  otr_status_t *(*graph_add_kernel)(otr_graph_t graph,
                                    const otr_node_t *deps,
                                    uint32_t dep_count,
                                    otr_kernel_t kernel,
                                    const otr_launch_t *launch,
                                    otr_node_t *node);
  otr_status_t *(*communicator_id)(uint32_t device, char **id);
  otr_status_t *(*communicator_create)(uint32_t device,
                                       const otr_communicator_params_t *params,
                                       otr_communicator_t *communicator);
  otr_status_t *(*communicator_destroy)(otr_communicator_t communicator);
  otr_status_t *(*communicator_abort)(otr_communicator_t communicator);
  otr_status_t *(*communicator_query)(otr_communicator_t communicator);
  otr_status_t *(*all_reduce)(otr_stream_t stream,
                              otr_communicator_t communicator,
                              uint64_t send,
                              uint64_t receive,
                              uint64_t count,
                              uint32_t dtype,
                              uint32_t reduction);
  otr_status_t *(*reduce)(otr_stream_t stream,
                          otr_communicator_t communicator,
                          uint64_t send,
                          uint64_t receive,
                          uint64_t count,
                          uint32_t dtype,
                          uint32_t reduction,
                          uint32_t root);
  otr_status_t *(*reduce_scatter)(otr_stream_t stream,
                                  otr_communicator_t communicator,
                                  uint64_t send,
                                  uint64_t receive,
                                  uint64_t count,
                                  uint32_t dtype,
                                  uint32_t reduction);
  otr_status_t *(*broadcast)(otr_stream_t stream,
                             otr_communicator_t communicator,
                             uint64_t address,
                             uint64_t size,
                             uint32_t root);
  otr_status_t *(*all_gather)(otr_stream_t stream,
                              otr_communicator_t communicator,
                              uint64_t send,
                              uint64_t receive,
                              uint64_t size);
  otr_status_t *(*exchange)(otr_stream_t stream,
                            otr_communicator_t communicator,
                            const otr_transfer_t *transfers,
                            uint32_t count);
  otr_status_t *(*driver_default)(const char *specs);
  otr_status_t *(*profile_start)(void);
  otr_status_t *(*profile_stop)(otr_profile_fn function, void *user);
  otr_status_t *(*profile_correlate)(uint64_t id, uint64_t *previous);
  otr_status_t *(*device_can_access_peer)(uint32_t device, uint32_t peer, uint32_t *yes);
  otr_status_t *(*stream_from_native)(uint32_t device, uint64_t native, otr_stream_t *stream);
  otr_status_t *(*stream_native)(otr_stream_t stream, uint64_t *native);
  otr_status_t *(*tune_choose)(uint32_t device,
                               const otr_tune_params_t *params,
                               uint32_t *chosen,
                               uint64_t *times_ns);
  otr_status_t *(*store_get)(const void *key,
                             uint64_t key_size,
                             void *value,
                             uint64_t capacity,
                             uint64_t *size);
  otr_status_t *(*store_put)(const void *key,
                             uint64_t key_size,
                             const void *value,
                             uint64_t size,
                             uint32_t *kept);
  otr_status_t *(*memory_find)(uint64_t address, uint32_t *device);
} otr_host_api_t;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// All functions as a table, for hosts that load the library at run time: they look up only this
// symbol. The table lives as long as the process. A host continues only if `api_major` is its own
// OTR_HOST_API_MAJOR. The table has an entry if the entry lies within `struct_size`
// (OTR_HOST_API_HAS).
const otr_host_api_t *otr_host_api(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OUTRIGGER_TABLE_H */
