//! The table of all functions, for hosts that load the library at run time. Generated from the
//! other modules by `cargo xtask gen`; do not edit. Entries are added at the end only.
#![expect(
    missing_docs,
    reason = "an entry is the function of its name with otr_ before it"
)]
use std::ffi::{c_char, c_void};
use outrigger_device::sys::{
    otr_host_fn, otr_launch_t, otr_operator_call_t, otr_scalar_t, otr_transfer_t,
};
use crate::*;
/// The major number of the host contract.
pub const OTR_HOST_API_MAJOR: u32 = 1;
/// The minor number of the host contract, which counts additions.
pub const OTR_HOST_API_MINOR: u32 = 0;
/// All functions but otr_host_api, each under its name without `otr_`. Up to `api_minor` it is
/// the same in all major versions; of the rest, what lies within `struct_size` is there.
#[repr(C)]
#[derive(Debug)]
pub struct otr_host_api_t {
    /// sizeof(otr_host_api_t), of the library
    pub struct_size: usize,
    /// OTR_HOST_API_MAJOR of the library
    pub api_major: u32,
    /// OTR_HOST_API_MINOR of the library
    pub api_minor: u32,
    pub kernel_launch: unsafe extern "C" fn(
        stream: otr_stream_t,
        call: *const otr_kernel_call_t,
    ) -> *mut otr_status_t,
    pub host_node: unsafe extern "C" fn(
        stream: otr_stream_t,
        node: *const otr_host_node_t,
    ) -> *mut otr_status_t,
    pub capture_begin: unsafe extern "C" fn(
        stream: otr_stream_t,
        mode: u32,
        pool: otr_pool_t,
    ) -> *mut otr_status_t,
    pub capture_end: unsafe extern "C" fn(
        stream: otr_stream_t,
        graph: *mut otr_graph_t,
    ) -> *mut otr_status_t,
    pub capture_abort: unsafe extern "C" fn(
        stream: otr_stream_t,
        reason: *const c_char,
    ) -> *mut otr_status_t,
    pub capture_partial: unsafe extern "C" fn(
        stream: otr_stream_t,
        graph: *mut otr_graph_t,
    ) -> *mut otr_status_t,
    pub capture_info: unsafe extern "C" fn(
        stream: otr_stream_t,
        info: *mut otr_capture_info_t,
    ) -> *mut otr_status_t,
    pub capture_label: unsafe extern "C" fn(
        stream: otr_stream_t,
        label: *const c_char,
    ) -> *mut otr_status_t,
    pub capture_conditional: unsafe extern "C" fn(
        stream: otr_stream_t,
        kind: u32,
        predicate: u64,
        dtype: u32,
        bodies: *const otr_graph_t,
        body_count: u32,
    ) -> *mut otr_status_t,
    pub copy: unsafe extern "C" fn(
        stream: otr_stream_t,
        dst: u64,
        src: u64,
        size: u64,
        kind: u32,
    ) -> *mut otr_status_t,
    pub copy_peer: unsafe extern "C" fn(
        stream: otr_stream_t,
        dst: u64,
        src: u64,
        size: u64,
    ) -> *mut otr_status_t,
    pub fill: unsafe extern "C" fn(
        stream: otr_stream_t,
        dst: u64,
        size: u64,
        pattern: *const c_void,
        pattern_size: u32,
    ) -> *mut otr_status_t,
    pub host_call: unsafe extern "C" fn(
        stream: otr_stream_t,
        function: otr_host_fn,
        user: *mut c_void,
    ) -> *mut otr_status_t,
    pub trace_begin: unsafe extern "C" fn(path: *const c_char) -> *mut otr_status_t,
    pub trace_end: unsafe extern "C" fn() -> *mut otr_status_t,
    pub event_create: unsafe extern "C" fn(
        device: u32,
        flags: u32,
        event: *mut otr_event_t,
    ) -> *mut otr_status_t,
    pub event_destroy: unsafe extern "C" fn(event: otr_event_t) -> *mut otr_status_t,
    pub event_record: unsafe extern "C" fn(
        event: otr_event_t,
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub event_query: unsafe extern "C" fn(
        event: otr_event_t,
        finished: *mut u32,
    ) -> *mut otr_status_t,
    pub event_synchronize: unsafe extern "C" fn(event: otr_event_t) -> *mut otr_status_t,
    pub event_elapsed: unsafe extern "C" fn(
        start: otr_event_t,
        end: otr_event_t,
        milliseconds: *mut f64,
    ) -> *mut otr_status_t,
    pub fallback_begin: unsafe extern "C" fn(
        operator_name: *const c_char,
        first_warning: *mut u32,
    ) -> *mut otr_status_t,
    pub fallback_end: unsafe extern "C" fn(
        operator_name: *const c_char,
        nanoseconds: u64,
        staged_bytes: u64,
    ) -> *mut otr_status_t,
    pub fallback_set_mode: unsafe extern "C" fn(mode: u32) -> *mut otr_status_t,
    pub fallback_mode: unsafe extern "C" fn(mode: *mut u32) -> *mut otr_status_t,
    pub fallback_report: unsafe extern "C" fn(
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub fallback_reset: unsafe extern "C" fn() -> *mut otr_status_t,
    pub generator_create: unsafe extern "C" fn(
        device: u32,
        generator: *mut otr_generator_t,
    ) -> *mut otr_status_t,
    pub generator_default: unsafe extern "C" fn(
        device: u32,
        generator: *mut otr_generator_t,
    ) -> *mut otr_status_t,
    pub generator_destroy: unsafe extern "C" fn(
        generator: otr_generator_t,
    ) -> *mut otr_status_t,
    pub generator_seed: unsafe extern "C" fn(
        generator: otr_generator_t,
        seed: u64,
    ) -> *mut otr_status_t,
    pub generator_state: unsafe extern "C" fn(
        generator: otr_generator_t,
        seed: *mut u64,
        offset: *mut u64,
    ) -> *mut otr_status_t,
    pub generator_set_state: unsafe extern "C" fn(
        generator: otr_generator_t,
        seed: u64,
        offset: u64,
    ) -> *mut otr_status_t,
    pub generator_reserve: unsafe extern "C" fn(
        generator: otr_generator_t,
        count: u64,
        seed: *mut u64,
        offset: *mut u64,
    ) -> *mut otr_status_t,
    pub graph_create: unsafe extern "C" fn(
        device: u32,
        pool: otr_pool_t,
        graph: *mut otr_graph_t,
    ) -> *mut otr_status_t,
    pub graph_destroy: unsafe extern "C" fn(graph: otr_graph_t) -> *mut otr_status_t,
    pub graph_info: unsafe extern "C" fn(
        graph: otr_graph_t,
        info: *mut otr_graph_info_t,
    ) -> *mut otr_status_t,
    pub graph_dump: unsafe extern "C" fn(
        graph: otr_graph_t,
        format: u32,
        text: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub graph_name_buffer: unsafe extern "C" fn(
        graph: otr_graph_t,
        name: *const c_char,
        address: u64,
        size: u64,
    ) -> *mut otr_status_t,
    pub graph_name_scalar: unsafe extern "C" fn(
        graph: otr_graph_t,
        name: *const c_char,
        node: otr_node_t,
        scalar_index: u32,
    ) -> *mut otr_status_t,
    pub graph_add_kernel: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        call: *const otr_kernel_call_t,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_operator: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        operator_id: otr_operator_id_t,
        call: *const otr_operator_call_t,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_copy: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        dst: u64,
        src: u64,
        size: u64,
        kind: u32,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_fill: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        dst: u64,
        size: u64,
        pattern: *const c_void,
        pattern_size: u32,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_host: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        host: *const otr_host_node_t,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_empty: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_child: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        child: otr_graph_t,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_conditional: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        kind: u32,
        predicate: u64,
        dtype: u32,
        bodies: *const otr_graph_t,
        body_count: u32,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_alloc: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        size: u64,
        address: *mut u64,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_add_free: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        address: u64,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub graph_instantiate: unsafe extern "C" fn(
        graph: otr_graph_t,
        flags: u32,
        exec: *mut otr_graph_exec_t,
    ) -> *mut otr_status_t,
    pub graph_exec_destroy: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
    ) -> *mut otr_status_t,
    pub graph_replay: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub graph_slot: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        name: *const c_char,
        slot: *mut u32,
    ) -> *mut otr_status_t,
    pub graph_bind: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        slot: u32,
        address: u64,
    ) -> *mut otr_status_t,
    pub graph_bind_scalar: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        slot: u32,
        value: *const otr_scalar_t,
    ) -> *mut otr_status_t,
    pub graph_update: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        graph: otr_graph_t,
    ) -> *mut otr_status_t,
    pub graph_exec_info: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        info: *mut otr_graph_exec_info_t,
    ) -> *mut otr_status_t,
    pub graph_profile: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        stream: otr_stream_t,
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub graph_cost: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        stream: otr_stream_t,
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub graph_check: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub memory_history_start: unsafe extern "C" fn(
        device: u32,
        options: *const otr_history_options_t,
    ) -> *mut otr_status_t,
    pub memory_history_stop: unsafe extern "C" fn(device: u32) -> *mut otr_status_t,
    pub memory_history_clear: unsafe extern "C" fn(device: u32) -> *mut otr_status_t,
    pub memory_label_push: unsafe extern "C" fn(
        label: *const c_char,
    ) -> *mut otr_status_t,
    pub memory_label_pop: unsafe extern "C" fn() -> *mut otr_status_t,
    pub memory_holders: unsafe extern "C" fn(
        device: u32,
        count: u32,
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub memory_trace_start: unsafe extern "C" fn(
        device: u32,
        path: *const c_char,
    ) -> *mut otr_status_t,
    pub memory_trace_stop: unsafe extern "C" fn(device: u32) -> *mut otr_status_t,
    pub memory_trace_mark: unsafe extern "C" fn(
        device: u32,
        label: *const c_char,
    ) -> *mut otr_status_t,
    pub memory_alloc: unsafe extern "C" fn(
        device: u32,
        size: u64,
        stream: otr_stream_t,
        address: *mut u64,
    ) -> *mut otr_status_t,
    pub memory_free: unsafe extern "C" fn(address: u64) -> *mut otr_status_t,
    pub memory_record_stream: unsafe extern "C" fn(
        address: u64,
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub memory_pointer_info: unsafe extern "C" fn(
        address: u64,
        info: *mut otr_pointer_info_t,
    ) -> *mut otr_status_t,
    pub memory_export: unsafe extern "C" fn(
        address: u64,
        exported: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub memory_import: unsafe extern "C" fn(
        device: u32,
        exported: *const c_char,
        address: *mut u64,
        size: *mut u64,
    ) -> *mut otr_status_t,
    pub memory_close: unsafe extern "C" fn(
        device: u32,
        address: u64,
    ) -> *mut otr_status_t,
    pub memory_empty_cache: unsafe extern "C" fn(device: u32) -> *mut otr_status_t,
    pub memory_trim: unsafe extern "C" fn(
        device: u32,
        keep: u64,
        released: *mut u64,
    ) -> *mut otr_status_t,
    pub memory_info: unsafe extern "C" fn(
        device: u32,
        free_bytes: *mut u64,
        total_bytes: *mut u64,
    ) -> *mut otr_status_t,
    pub memory_stats: unsafe extern "C" fn(
        device: u32,
        stats: *mut otr_memory_stats_t,
    ) -> *mut otr_status_t,
    pub memory_reset_peak: unsafe extern "C" fn(device: u32) -> *mut otr_status_t,
    pub memory_reset_accumulated: unsafe extern "C" fn(device: u32) -> *mut otr_status_t,
    pub memory_stats_json: unsafe extern "C" fn(
        device: u32,
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub memory_set_limit: unsafe extern "C" fn(
        device: u32,
        bytes: u64,
    ) -> *mut otr_status_t,
    pub memory_limit: unsafe extern "C" fn(
        device: u32,
        bytes: *mut u64,
    ) -> *mut otr_status_t,
    pub memory_set_fraction: unsafe extern "C" fn(
        device: u32,
        fraction: f64,
    ) -> *mut otr_status_t,
    pub memory_fraction: unsafe extern "C" fn(
        device: u32,
        fraction: *mut f64,
    ) -> *mut otr_status_t,
    pub memory_set_process_limit: unsafe extern "C" fn(bytes: u64) -> *mut otr_status_t,
    pub memory_process_info: unsafe extern "C" fn(
        held_bytes: *mut u64,
        limit_bytes: *mut u64,
    ) -> *mut otr_status_t,
    pub memory_snapshot: unsafe extern "C" fn(
        device: u32,
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub observer_add: unsafe extern "C" fn(
        kinds: u32,
        function: otr_observer_fn,
        user: *mut c_void,
        observer: *mut otr_observer_t,
    ) -> *mut otr_status_t,
    pub observer_add_pressure: unsafe extern "C" fn(
        function: otr_pressure_fn,
        user: *mut c_void,
        observer: *mut otr_observer_t,
    ) -> *mut otr_status_t,
    pub observer_remove: unsafe extern "C" fn(
        observer: otr_observer_t,
    ) -> *mut otr_status_t,
    pub operator_find: unsafe extern "C" fn(
        name: *const c_char,
        operator_id: *mut otr_operator_id_t,
    ) -> *mut otr_status_t,
    pub operator_call: unsafe extern "C" fn(
        stream: otr_stream_t,
        operator_id: otr_operator_id_t,
        call: *const otr_operator_call_t,
    ) -> *mut otr_status_t,
    pub set_parallel_for: unsafe extern "C" fn(
        function: otr_parallel_for_fn,
    ) -> *mut otr_status_t,
    pub set_threads: unsafe extern "C" fn(threads: u32) -> *mut otr_status_t,
    pub host_alloc: unsafe extern "C" fn(
        size: u64,
        pointer: *mut *mut c_void,
    ) -> *mut otr_status_t,
    pub host_free: unsafe extern "C" fn(pointer: *mut c_void) -> *mut otr_status_t,
    pub host_record_stream: unsafe extern "C" fn(
        pointer: *mut c_void,
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub host_is_pinned: unsafe extern "C" fn(
        pointer: *const c_void,
        yes: *mut u32,
    ) -> *mut otr_status_t,
    pub host_empty_cache: unsafe extern "C" fn() -> *mut otr_status_t,
    pub host_stats: unsafe extern "C" fn(
        stats: *mut otr_memory_stats_t,
    ) -> *mut otr_status_t,
    pub host_stats_json: unsafe extern "C" fn(
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub host_reset_peak: unsafe extern "C" fn() -> *mut otr_status_t,
    pub host_reset_accumulated: unsafe extern "C" fn() -> *mut otr_status_t,
    pub host_set_limit: unsafe extern "C" fn(bytes: u64) -> *mut otr_status_t,
    pub pool_create: unsafe extern "C" fn(
        device: u32,
        pool: *mut otr_pool_t,
    ) -> *mut otr_status_t,
    pub pool_destroy: unsafe extern "C" fn(pool: otr_pool_t) -> *mut otr_status_t,
    pub pool_info: unsafe extern "C" fn(
        pool: otr_pool_t,
        info: *mut otr_pool_info_t,
    ) -> *mut otr_status_t,
    pub pool_alloc: unsafe extern "C" fn(
        pool: otr_pool_t,
        size: u64,
        stream: otr_stream_t,
        address: *mut u64,
    ) -> *mut otr_status_t,
    pub pool_begin_use: unsafe extern "C" fn(
        pool: otr_pool_t,
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub pool_end_use: unsafe extern "C" fn(pool: otr_pool_t) -> *mut otr_status_t,
    pub pool_set_limit: unsafe extern "C" fn(
        pool: otr_pool_t,
        bytes: u64,
    ) -> *mut otr_status_t,
    pub pool_sleep: unsafe extern "C" fn(
        pool: otr_pool_t,
        released: *mut u64,
    ) -> *mut otr_status_t,
    pub pool_wake: unsafe extern "C" fn(pool: otr_pool_t) -> *mut otr_status_t,
    pub pool_snapshot: unsafe extern "C" fn(
        pool: otr_pool_t,
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub version: extern "C" fn() -> *const c_char,
    pub runtime_init: unsafe extern "C" fn() -> *mut otr_status_t,
    pub driver_load: unsafe extern "C" fn(spec: *const c_char) -> *mut otr_status_t,
    pub load_report: unsafe extern "C" fn(json: *mut *mut c_char) -> *mut otr_status_t,
    pub device_count: unsafe extern "C" fn(count: *mut u32) -> *mut otr_status_t,
    pub device_info: unsafe extern "C" fn(
        device: u32,
        info: *mut otr_device_info_t,
    ) -> *mut otr_status_t,
    pub device_current: unsafe extern "C" fn(device: *mut u32) -> *mut otr_status_t,
    pub device_set_current: unsafe extern "C" fn(device: u32) -> *mut otr_status_t,
    pub device_synchronize: unsafe extern "C" fn(device: u32) -> *mut otr_status_t,
    pub status_code: unsafe extern "C" fn(status: *const otr_status_t) -> i32,
    pub status_message: unsafe extern "C" fn(
        status: *const otr_status_t,
    ) -> *const c_char,
    pub status_operator: unsafe extern "C" fn(
        status: *const otr_status_t,
    ) -> *const c_char,
    pub status_stream: unsafe extern "C" fn(status: *const otr_status_t) -> u64,
    pub status_submission: unsafe extern "C" fn(status: *const otr_status_t) -> u64,
    pub status_free: unsafe extern "C" fn(status: *mut otr_status_t),
    pub string_free: unsafe extern "C" fn(string: *mut c_char),
    pub stream_default: unsafe extern "C" fn(
        device: u32,
        stream: *mut otr_stream_t,
    ) -> *mut otr_status_t,
    pub stream_from_pool: unsafe extern "C" fn(
        device: u32,
        priority: i32,
        stream: *mut otr_stream_t,
    ) -> *mut otr_status_t,
    pub stream_create: unsafe extern "C" fn(
        device: u32,
        priority: i32,
        stream: *mut otr_stream_t,
    ) -> *mut otr_status_t,
    pub stream_destroy: unsafe extern "C" fn(stream: otr_stream_t) -> *mut otr_status_t,
    pub stream_device: unsafe extern "C" fn(
        stream: otr_stream_t,
        device: *mut u32,
    ) -> *mut otr_status_t,
    pub stream_priority: unsafe extern "C" fn(
        stream: otr_stream_t,
        priority: *mut i32,
    ) -> *mut otr_status_t,
    pub stream_current: unsafe extern "C" fn(
        device: u32,
        stream: *mut otr_stream_t,
    ) -> *mut otr_status_t,
    pub stream_set_current: unsafe extern "C" fn(
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub stream_query: unsafe extern "C" fn(
        stream: otr_stream_t,
        finished: *mut u32,
    ) -> *mut otr_status_t,
    pub stream_synchronize: unsafe extern "C" fn(
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub stream_flush: unsafe extern "C" fn(stream: otr_stream_t) -> *mut otr_status_t,
    pub stream_wait_event: unsafe extern "C" fn(
        stream: otr_stream_t,
        event: otr_event_t,
    ) -> *mut otr_status_t,
    pub copy_peer_on: unsafe extern "C" fn(
        stream: otr_stream_t,
        dst_device: u32,
        dst: u64,
        src_device: u32,
        src: u64,
        size: u64,
    ) -> *mut otr_status_t,
    pub memory_free_on: unsafe extern "C" fn(
        device: u32,
        address: u64,
    ) -> *mut otr_status_t,
    pub memory_record_stream_on: unsafe extern "C" fn(
        device: u32,
        address: u64,
        stream: otr_stream_t,
    ) -> *mut otr_status_t,
    pub memory_pointer_info_on: unsafe extern "C" fn(
        device: u32,
        address: u64,
        info: *mut otr_pointer_info_t,
    ) -> *mut otr_status_t,
    pub memory_export_on: unsafe extern "C" fn(
        device: u32,
        address: u64,
        exported: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub fallback_set_policy: unsafe extern "C" fn(
        policy: *const c_char,
    ) -> *mut otr_status_t,
    pub fallback_policy: unsafe extern "C" fn(
        policy: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub operator_report: unsafe extern "C" fn(
        json: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub operator_timing: unsafe extern "C" fn(on: u32) -> *mut otr_status_t,
    pub operator_offered: unsafe extern "C" fn(
        device: u32,
        operator_id: otr_operator_id_t,
        yes: *mut u32,
    ) -> *mut otr_status_t,
    pub operator_keep_whole: unsafe extern "C" fn(
        device: u32,
        ids: *const otr_operator_id_t,
        count: u32,
    ) -> *mut otr_status_t,
    pub operator_register: unsafe extern "C" fn(
        params: *const otr_operator_registration_t,
        registration: *mut otr_registration_t,
    ) -> *mut otr_status_t,
    pub operator_withdraw: unsafe extern "C" fn(
        registration: otr_registration_t,
    ) -> *mut otr_status_t,
    pub operator_list: unsafe extern "C" fn(json: *mut *mut c_char) -> *mut otr_status_t,
    pub status_new: unsafe extern "C" fn(
        code: i32,
        message: *const c_char,
    ) -> *mut otr_status_t,
    pub graph_name_argument: unsafe extern "C" fn(
        graph: otr_graph_t,
        name: *const c_char,
        node: otr_node_t,
        index: u32,
    ) -> *mut otr_status_t,
    pub graph_bind_argument: unsafe extern "C" fn(
        exec: otr_graph_exec_t,
        slot: u32,
        value: *const c_void,
        size: u32,
    ) -> *mut otr_status_t,
    pub module_load: unsafe extern "C" fn(
        device: u32,
        params: *const otr_module_params_t,
        module: *mut otr_module_t,
    ) -> *mut otr_status_t,
    pub module_query: unsafe extern "C" fn(
        module: otr_module_t,
        loaded: *mut u32,
    ) -> *mut otr_status_t,
    pub module_destroy: unsafe extern "C" fn(module: otr_module_t) -> *mut otr_status_t,
    pub kernel_get: unsafe extern "C" fn(
        module: otr_module_t,
        name: *const c_char,
        kernel: *mut otr_kernel_t,
    ) -> *mut otr_status_t,
    pub kernel_destroy: unsafe extern "C" fn(kernel: otr_kernel_t) -> *mut otr_status_t,
    pub launch: unsafe extern "C" fn(
        stream: otr_stream_t,
        kernel: otr_kernel_t,
        launch: *const otr_launch_t,
    ) -> *mut otr_status_t,
    pub graph_add_launch: unsafe extern "C" fn(
        graph: otr_graph_t,
        deps: *const otr_node_t,
        dep_count: u32,
        kernel: otr_kernel_t,
        launch: *const otr_launch_t,
        node: *mut otr_node_t,
    ) -> *mut otr_status_t,
    pub communicator_id: unsafe extern "C" fn(
        device: u32,
        id: *mut *mut c_char,
    ) -> *mut otr_status_t,
    pub communicator_create: unsafe extern "C" fn(
        device: u32,
        params: *const otr_communicator_params_t,
        communicator: *mut otr_communicator_t,
    ) -> *mut otr_status_t,
    pub communicator_destroy: unsafe extern "C" fn(
        communicator: otr_communicator_t,
    ) -> *mut otr_status_t,
    pub communicator_abort: unsafe extern "C" fn(
        communicator: otr_communicator_t,
    ) -> *mut otr_status_t,
    pub communicator_query: unsafe extern "C" fn(
        communicator: otr_communicator_t,
    ) -> *mut otr_status_t,
    pub all_reduce: unsafe extern "C" fn(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        send: u64,
        receive: u64,
        count: u64,
        dtype: u32,
        reduction: u32,
    ) -> *mut otr_status_t,
    pub reduce: unsafe extern "C" fn(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        send: u64,
        receive: u64,
        count: u64,
        dtype: u32,
        reduction: u32,
        root: u32,
    ) -> *mut otr_status_t,
    pub reduce_scatter: unsafe extern "C" fn(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        send: u64,
        receive: u64,
        count: u64,
        dtype: u32,
        reduction: u32,
    ) -> *mut otr_status_t,
    pub broadcast: unsafe extern "C" fn(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        address: u64,
        size: u64,
        root: u32,
    ) -> *mut otr_status_t,
    pub all_gather: unsafe extern "C" fn(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        send: u64,
        receive: u64,
        size: u64,
    ) -> *mut otr_status_t,
    pub exchange: unsafe extern "C" fn(
        stream: otr_stream_t,
        communicator: otr_communicator_t,
        transfers: *const otr_transfer_t,
        count: u32,
    ) -> *mut otr_status_t,
    pub driver_default: unsafe extern "C" fn(specs: *const c_char) -> *mut otr_status_t,
    pub profile_start: unsafe extern "C" fn() -> *mut otr_status_t,
    pub profile_stop: unsafe extern "C" fn(
        function: otr_profile_fn,
        user: *mut c_void,
    ) -> *mut otr_status_t,
    pub profile_correlate: unsafe extern "C" fn(
        id: u64,
        previous: *mut u64,
    ) -> *mut otr_status_t,
    pub device_can_access_peer: unsafe extern "C" fn(
        device: u32,
        peer: u32,
        yes: *mut u32,
    ) -> *mut otr_status_t,
    pub stream_from_native: unsafe extern "C" fn(
        device: u32,
        native: u64,
        stream: *mut otr_stream_t,
    ) -> *mut otr_status_t,
    pub stream_native: unsafe extern "C" fn(
        stream: otr_stream_t,
        native: *mut u64,
    ) -> *mut otr_status_t,
    pub tune_choose: unsafe extern "C" fn(
        device: u32,
        params: *const otr_tune_params_t,
        chosen: *mut u32,
        times_ns: *mut u64,
    ) -> *mut otr_status_t,
    pub store_get: unsafe extern "C" fn(
        key: *const c_void,
        key_size: u64,
        value: *mut c_void,
        capacity: u64,
        size: *mut u64,
    ) -> *mut otr_status_t,
    pub store_put: unsafe extern "C" fn(
        key: *const c_void,
        key_size: u64,
        value: *const c_void,
        size: u64,
        kept: *mut u32,
    ) -> *mut otr_status_t,
}
pub(crate) static HOST_API: otr_host_api_t = otr_host_api_t {
    struct_size: size_of::<otr_host_api_t>(),
    api_major: OTR_HOST_API_MAJOR,
    api_minor: OTR_HOST_API_MINOR,
    kernel_launch: crate::otr_kernel_launch,
    host_node: crate::otr_host_node,
    capture_begin: crate::otr_capture_begin,
    capture_end: crate::otr_capture_end,
    capture_abort: crate::otr_capture_abort,
    capture_partial: crate::otr_capture_partial,
    capture_info: crate::otr_capture_info,
    capture_label: crate::otr_capture_label,
    capture_conditional: crate::otr_capture_conditional,
    copy: crate::otr_copy,
    copy_peer: crate::otr_copy_peer,
    fill: crate::otr_fill,
    host_call: crate::otr_host_call,
    trace_begin: crate::otr_trace_begin,
    trace_end: crate::otr_trace_end,
    event_create: crate::otr_event_create,
    event_destroy: crate::otr_event_destroy,
    event_record: crate::otr_event_record,
    event_query: crate::otr_event_query,
    event_synchronize: crate::otr_event_synchronize,
    event_elapsed: crate::otr_event_elapsed,
    fallback_begin: crate::otr_fallback_begin,
    fallback_end: crate::otr_fallback_end,
    fallback_set_mode: crate::otr_fallback_set_mode,
    fallback_mode: crate::otr_fallback_mode,
    fallback_report: crate::otr_fallback_report,
    fallback_reset: crate::otr_fallback_reset,
    generator_create: crate::otr_generator_create,
    generator_default: crate::otr_generator_default,
    generator_destroy: crate::otr_generator_destroy,
    generator_seed: crate::otr_generator_seed,
    generator_state: crate::otr_generator_state,
    generator_set_state: crate::otr_generator_set_state,
    generator_reserve: crate::otr_generator_reserve,
    graph_create: crate::otr_graph_create,
    graph_destroy: crate::otr_graph_destroy,
    graph_info: crate::otr_graph_info,
    graph_dump: crate::otr_graph_dump,
    graph_name_buffer: crate::otr_graph_name_buffer,
    graph_name_scalar: crate::otr_graph_name_scalar,
    graph_add_kernel: crate::otr_graph_add_kernel,
    graph_add_operator: crate::otr_graph_add_operator,
    graph_add_copy: crate::otr_graph_add_copy,
    graph_add_fill: crate::otr_graph_add_fill,
    graph_add_host: crate::otr_graph_add_host,
    graph_add_empty: crate::otr_graph_add_empty,
    graph_add_child: crate::otr_graph_add_child,
    graph_add_conditional: crate::otr_graph_add_conditional,
    graph_add_alloc: crate::otr_graph_add_alloc,
    graph_add_free: crate::otr_graph_add_free,
    graph_instantiate: crate::otr_graph_instantiate,
    graph_exec_destroy: crate::otr_graph_exec_destroy,
    graph_replay: crate::otr_graph_replay,
    graph_slot: crate::otr_graph_slot,
    graph_bind: crate::otr_graph_bind,
    graph_bind_scalar: crate::otr_graph_bind_scalar,
    graph_update: crate::otr_graph_update,
    graph_exec_info: crate::otr_graph_exec_info,
    graph_profile: crate::otr_graph_profile,
    graph_cost: crate::otr_graph_cost,
    graph_check: crate::otr_graph_check,
    memory_history_start: crate::otr_memory_history_start,
    memory_history_stop: crate::otr_memory_history_stop,
    memory_history_clear: crate::otr_memory_history_clear,
    memory_label_push: crate::otr_memory_label_push,
    memory_label_pop: crate::otr_memory_label_pop,
    memory_holders: crate::otr_memory_holders,
    memory_trace_start: crate::otr_memory_trace_start,
    memory_trace_stop: crate::otr_memory_trace_stop,
    memory_trace_mark: crate::otr_memory_trace_mark,
    memory_alloc: crate::otr_memory_alloc,
    memory_free: crate::otr_memory_free,
    memory_record_stream: crate::otr_memory_record_stream,
    memory_pointer_info: crate::otr_memory_pointer_info,
    memory_export: crate::otr_memory_export,
    memory_import: crate::otr_memory_import,
    memory_close: crate::otr_memory_close,
    memory_empty_cache: crate::otr_memory_empty_cache,
    memory_trim: crate::otr_memory_trim,
    memory_info: crate::otr_memory_info,
    memory_stats: crate::otr_memory_stats,
    memory_reset_peak: crate::otr_memory_reset_peak,
    memory_reset_accumulated: crate::otr_memory_reset_accumulated,
    memory_stats_json: crate::otr_memory_stats_json,
    memory_set_limit: crate::otr_memory_set_limit,
    memory_limit: crate::otr_memory_limit,
    memory_set_fraction: crate::otr_memory_set_fraction,
    memory_fraction: crate::otr_memory_fraction,
    memory_set_process_limit: crate::otr_memory_set_process_limit,
    memory_process_info: crate::otr_memory_process_info,
    memory_snapshot: crate::otr_memory_snapshot,
    observer_add: crate::otr_observer_add,
    observer_add_pressure: crate::otr_observer_add_pressure,
    observer_remove: crate::otr_observer_remove,
    operator_find: crate::otr_operator_find,
    operator_call: crate::otr_operator_call,
    set_parallel_for: crate::otr_set_parallel_for,
    set_threads: crate::otr_set_threads,
    host_alloc: crate::otr_host_alloc,
    host_free: crate::otr_host_free,
    host_record_stream: crate::otr_host_record_stream,
    host_is_pinned: crate::otr_host_is_pinned,
    host_empty_cache: crate::otr_host_empty_cache,
    host_stats: crate::otr_host_stats,
    host_stats_json: crate::otr_host_stats_json,
    host_reset_peak: crate::otr_host_reset_peak,
    host_reset_accumulated: crate::otr_host_reset_accumulated,
    host_set_limit: crate::otr_host_set_limit,
    pool_create: crate::otr_pool_create,
    pool_destroy: crate::otr_pool_destroy,
    pool_info: crate::otr_pool_info,
    pool_alloc: crate::otr_pool_alloc,
    pool_begin_use: crate::otr_pool_begin_use,
    pool_end_use: crate::otr_pool_end_use,
    pool_set_limit: crate::otr_pool_set_limit,
    pool_sleep: crate::otr_pool_sleep,
    pool_wake: crate::otr_pool_wake,
    pool_snapshot: crate::otr_pool_snapshot,
    version: crate::otr_version,
    runtime_init: crate::otr_runtime_init,
    driver_load: crate::otr_driver_load,
    load_report: crate::otr_load_report,
    device_count: crate::otr_device_count,
    device_info: crate::otr_device_info,
    device_current: crate::otr_device_current,
    device_set_current: crate::otr_device_set_current,
    device_synchronize: crate::otr_device_synchronize,
    status_code: crate::otr_status_code,
    status_message: crate::otr_status_message,
    status_operator: crate::otr_status_operator,
    status_stream: crate::otr_status_stream,
    status_submission: crate::otr_status_submission,
    status_free: crate::otr_status_free,
    string_free: crate::otr_string_free,
    stream_default: crate::otr_stream_default,
    stream_from_pool: crate::otr_stream_from_pool,
    stream_create: crate::otr_stream_create,
    stream_destroy: crate::otr_stream_destroy,
    stream_device: crate::otr_stream_device,
    stream_priority: crate::otr_stream_priority,
    stream_current: crate::otr_stream_current,
    stream_set_current: crate::otr_stream_set_current,
    stream_query: crate::otr_stream_query,
    stream_synchronize: crate::otr_stream_synchronize,
    stream_flush: crate::otr_stream_flush,
    stream_wait_event: crate::otr_stream_wait_event,
    copy_peer_on: crate::otr_copy_peer_on,
    memory_free_on: crate::otr_memory_free_on,
    memory_record_stream_on: crate::otr_memory_record_stream_on,
    memory_pointer_info_on: crate::otr_memory_pointer_info_on,
    memory_export_on: crate::otr_memory_export_on,
    fallback_set_policy: crate::otr_fallback_set_policy,
    fallback_policy: crate::otr_fallback_policy,
    operator_report: crate::otr_operator_report,
    operator_timing: crate::otr_operator_timing,
    operator_offered: crate::otr_operator_offered,
    operator_keep_whole: crate::otr_operator_keep_whole,
    operator_register: crate::otr_operator_register,
    operator_withdraw: crate::otr_operator_withdraw,
    operator_list: crate::otr_operator_list,
    status_new: crate::otr_status_new,
    graph_name_argument: crate::otr_graph_name_argument,
    graph_bind_argument: crate::otr_graph_bind_argument,
    module_load: crate::otr_module_load,
    module_query: crate::otr_module_query,
    module_destroy: crate::otr_module_destroy,
    kernel_get: crate::otr_kernel_get,
    kernel_destroy: crate::otr_kernel_destroy,
    launch: crate::otr_launch,
    graph_add_launch: crate::otr_graph_add_launch,
    communicator_id: crate::otr_communicator_id,
    communicator_create: crate::otr_communicator_create,
    communicator_destroy: crate::otr_communicator_destroy,
    communicator_abort: crate::otr_communicator_abort,
    communicator_query: crate::otr_communicator_query,
    all_reduce: crate::otr_all_reduce,
    reduce: crate::otr_reduce,
    reduce_scatter: crate::otr_reduce_scatter,
    broadcast: crate::otr_broadcast,
    all_gather: crate::otr_all_gather,
    exchange: crate::otr_exchange,
    driver_default: crate::otr_driver_default,
    profile_start: crate::otr_profile_start,
    profile_stop: crate::otr_profile_stop,
    profile_correlate: crate::otr_profile_correlate,
    device_can_access_peer: crate::otr_device_can_access_peer,
    stream_from_native: crate::otr_stream_from_native,
    stream_native: crate::otr_stream_native,
    tune_choose: crate::otr_tune_choose,
    store_get: crate::otr_store_get,
    store_put: crate::otr_store_put,
};
/// The entry of a table that has the function of this name: for hosts that call one library or
/// another.
#[macro_export]
macro_rules! host_entry {
    ($table:expr, otr_kernel_launch) => {
        $table .kernel_launch
    };
    ($table:expr, otr_host_node) => {
        $table .host_node
    };
    ($table:expr, otr_capture_begin) => {
        $table .capture_begin
    };
    ($table:expr, otr_capture_end) => {
        $table .capture_end
    };
    ($table:expr, otr_capture_abort) => {
        $table .capture_abort
    };
    ($table:expr, otr_capture_partial) => {
        $table .capture_partial
    };
    ($table:expr, otr_capture_info) => {
        $table .capture_info
    };
    ($table:expr, otr_capture_label) => {
        $table .capture_label
    };
    ($table:expr, otr_capture_conditional) => {
        $table .capture_conditional
    };
    ($table:expr, otr_copy) => {
        $table .copy
    };
    ($table:expr, otr_copy_peer) => {
        $table .copy_peer
    };
    ($table:expr, otr_fill) => {
        $table .fill
    };
    ($table:expr, otr_host_call) => {
        $table .host_call
    };
    ($table:expr, otr_trace_begin) => {
        $table .trace_begin
    };
    ($table:expr, otr_trace_end) => {
        $table .trace_end
    };
    ($table:expr, otr_event_create) => {
        $table .event_create
    };
    ($table:expr, otr_event_destroy) => {
        $table .event_destroy
    };
    ($table:expr, otr_event_record) => {
        $table .event_record
    };
    ($table:expr, otr_event_query) => {
        $table .event_query
    };
    ($table:expr, otr_event_synchronize) => {
        $table .event_synchronize
    };
    ($table:expr, otr_event_elapsed) => {
        $table .event_elapsed
    };
    ($table:expr, otr_fallback_begin) => {
        $table .fallback_begin
    };
    ($table:expr, otr_fallback_end) => {
        $table .fallback_end
    };
    ($table:expr, otr_fallback_set_mode) => {
        $table .fallback_set_mode
    };
    ($table:expr, otr_fallback_mode) => {
        $table .fallback_mode
    };
    ($table:expr, otr_fallback_report) => {
        $table .fallback_report
    };
    ($table:expr, otr_fallback_reset) => {
        $table .fallback_reset
    };
    ($table:expr, otr_generator_create) => {
        $table .generator_create
    };
    ($table:expr, otr_generator_default) => {
        $table .generator_default
    };
    ($table:expr, otr_generator_destroy) => {
        $table .generator_destroy
    };
    ($table:expr, otr_generator_seed) => {
        $table .generator_seed
    };
    ($table:expr, otr_generator_state) => {
        $table .generator_state
    };
    ($table:expr, otr_generator_set_state) => {
        $table .generator_set_state
    };
    ($table:expr, otr_generator_reserve) => {
        $table .generator_reserve
    };
    ($table:expr, otr_graph_create) => {
        $table .graph_create
    };
    ($table:expr, otr_graph_destroy) => {
        $table .graph_destroy
    };
    ($table:expr, otr_graph_info) => {
        $table .graph_info
    };
    ($table:expr, otr_graph_dump) => {
        $table .graph_dump
    };
    ($table:expr, otr_graph_name_buffer) => {
        $table .graph_name_buffer
    };
    ($table:expr, otr_graph_name_scalar) => {
        $table .graph_name_scalar
    };
    ($table:expr, otr_graph_add_kernel) => {
        $table .graph_add_kernel
    };
    ($table:expr, otr_graph_add_operator) => {
        $table .graph_add_operator
    };
    ($table:expr, otr_graph_add_copy) => {
        $table .graph_add_copy
    };
    ($table:expr, otr_graph_add_fill) => {
        $table .graph_add_fill
    };
    ($table:expr, otr_graph_add_host) => {
        $table .graph_add_host
    };
    ($table:expr, otr_graph_add_empty) => {
        $table .graph_add_empty
    };
    ($table:expr, otr_graph_add_child) => {
        $table .graph_add_child
    };
    ($table:expr, otr_graph_add_conditional) => {
        $table .graph_add_conditional
    };
    ($table:expr, otr_graph_add_alloc) => {
        $table .graph_add_alloc
    };
    ($table:expr, otr_graph_add_free) => {
        $table .graph_add_free
    };
    ($table:expr, otr_graph_instantiate) => {
        $table .graph_instantiate
    };
    ($table:expr, otr_graph_exec_destroy) => {
        $table .graph_exec_destroy
    };
    ($table:expr, otr_graph_replay) => {
        $table .graph_replay
    };
    ($table:expr, otr_graph_slot) => {
        $table .graph_slot
    };
    ($table:expr, otr_graph_bind) => {
        $table .graph_bind
    };
    ($table:expr, otr_graph_bind_scalar) => {
        $table .graph_bind_scalar
    };
    ($table:expr, otr_graph_update) => {
        $table .graph_update
    };
    ($table:expr, otr_graph_exec_info) => {
        $table .graph_exec_info
    };
    ($table:expr, otr_graph_profile) => {
        $table .graph_profile
    };
    ($table:expr, otr_graph_cost) => {
        $table .graph_cost
    };
    ($table:expr, otr_graph_check) => {
        $table .graph_check
    };
    ($table:expr, otr_memory_history_start) => {
        $table .memory_history_start
    };
    ($table:expr, otr_memory_history_stop) => {
        $table .memory_history_stop
    };
    ($table:expr, otr_memory_history_clear) => {
        $table .memory_history_clear
    };
    ($table:expr, otr_memory_label_push) => {
        $table .memory_label_push
    };
    ($table:expr, otr_memory_label_pop) => {
        $table .memory_label_pop
    };
    ($table:expr, otr_memory_holders) => {
        $table .memory_holders
    };
    ($table:expr, otr_memory_trace_start) => {
        $table .memory_trace_start
    };
    ($table:expr, otr_memory_trace_stop) => {
        $table .memory_trace_stop
    };
    ($table:expr, otr_memory_trace_mark) => {
        $table .memory_trace_mark
    };
    ($table:expr, otr_memory_alloc) => {
        $table .memory_alloc
    };
    ($table:expr, otr_memory_free) => {
        $table .memory_free
    };
    ($table:expr, otr_memory_record_stream) => {
        $table .memory_record_stream
    };
    ($table:expr, otr_memory_pointer_info) => {
        $table .memory_pointer_info
    };
    ($table:expr, otr_memory_export) => {
        $table .memory_export
    };
    ($table:expr, otr_memory_import) => {
        $table .memory_import
    };
    ($table:expr, otr_memory_close) => {
        $table .memory_close
    };
    ($table:expr, otr_memory_empty_cache) => {
        $table .memory_empty_cache
    };
    ($table:expr, otr_memory_trim) => {
        $table .memory_trim
    };
    ($table:expr, otr_memory_info) => {
        $table .memory_info
    };
    ($table:expr, otr_memory_stats) => {
        $table .memory_stats
    };
    ($table:expr, otr_memory_reset_peak) => {
        $table .memory_reset_peak
    };
    ($table:expr, otr_memory_reset_accumulated) => {
        $table .memory_reset_accumulated
    };
    ($table:expr, otr_memory_stats_json) => {
        $table .memory_stats_json
    };
    ($table:expr, otr_memory_set_limit) => {
        $table .memory_set_limit
    };
    ($table:expr, otr_memory_limit) => {
        $table .memory_limit
    };
    ($table:expr, otr_memory_set_fraction) => {
        $table .memory_set_fraction
    };
    ($table:expr, otr_memory_fraction) => {
        $table .memory_fraction
    };
    ($table:expr, otr_memory_set_process_limit) => {
        $table .memory_set_process_limit
    };
    ($table:expr, otr_memory_process_info) => {
        $table .memory_process_info
    };
    ($table:expr, otr_memory_snapshot) => {
        $table .memory_snapshot
    };
    ($table:expr, otr_observer_add) => {
        $table .observer_add
    };
    ($table:expr, otr_observer_add_pressure) => {
        $table .observer_add_pressure
    };
    ($table:expr, otr_observer_remove) => {
        $table .observer_remove
    };
    ($table:expr, otr_operator_find) => {
        $table .operator_find
    };
    ($table:expr, otr_operator_call) => {
        $table .operator_call
    };
    ($table:expr, otr_set_parallel_for) => {
        $table .set_parallel_for
    };
    ($table:expr, otr_set_threads) => {
        $table .set_threads
    };
    ($table:expr, otr_host_alloc) => {
        $table .host_alloc
    };
    ($table:expr, otr_host_free) => {
        $table .host_free
    };
    ($table:expr, otr_host_record_stream) => {
        $table .host_record_stream
    };
    ($table:expr, otr_host_is_pinned) => {
        $table .host_is_pinned
    };
    ($table:expr, otr_host_empty_cache) => {
        $table .host_empty_cache
    };
    ($table:expr, otr_host_stats) => {
        $table .host_stats
    };
    ($table:expr, otr_host_stats_json) => {
        $table .host_stats_json
    };
    ($table:expr, otr_host_reset_peak) => {
        $table .host_reset_peak
    };
    ($table:expr, otr_host_reset_accumulated) => {
        $table .host_reset_accumulated
    };
    ($table:expr, otr_host_set_limit) => {
        $table .host_set_limit
    };
    ($table:expr, otr_pool_create) => {
        $table .pool_create
    };
    ($table:expr, otr_pool_destroy) => {
        $table .pool_destroy
    };
    ($table:expr, otr_pool_info) => {
        $table .pool_info
    };
    ($table:expr, otr_pool_alloc) => {
        $table .pool_alloc
    };
    ($table:expr, otr_pool_begin_use) => {
        $table .pool_begin_use
    };
    ($table:expr, otr_pool_end_use) => {
        $table .pool_end_use
    };
    ($table:expr, otr_pool_set_limit) => {
        $table .pool_set_limit
    };
    ($table:expr, otr_pool_sleep) => {
        $table .pool_sleep
    };
    ($table:expr, otr_pool_wake) => {
        $table .pool_wake
    };
    ($table:expr, otr_pool_snapshot) => {
        $table .pool_snapshot
    };
    ($table:expr, otr_version) => {
        $table .version
    };
    ($table:expr, otr_runtime_init) => {
        $table .runtime_init
    };
    ($table:expr, otr_driver_load) => {
        $table .driver_load
    };
    ($table:expr, otr_load_report) => {
        $table .load_report
    };
    ($table:expr, otr_device_count) => {
        $table .device_count
    };
    ($table:expr, otr_device_info) => {
        $table .device_info
    };
    ($table:expr, otr_device_current) => {
        $table .device_current
    };
    ($table:expr, otr_device_set_current) => {
        $table .device_set_current
    };
    ($table:expr, otr_device_synchronize) => {
        $table .device_synchronize
    };
    ($table:expr, otr_status_code) => {
        $table .status_code
    };
    ($table:expr, otr_status_message) => {
        $table .status_message
    };
    ($table:expr, otr_status_operator) => {
        $table .status_operator
    };
    ($table:expr, otr_status_stream) => {
        $table .status_stream
    };
    ($table:expr, otr_status_submission) => {
        $table .status_submission
    };
    ($table:expr, otr_status_free) => {
        $table .status_free
    };
    ($table:expr, otr_string_free) => {
        $table .string_free
    };
    ($table:expr, otr_stream_default) => {
        $table .stream_default
    };
    ($table:expr, otr_stream_from_pool) => {
        $table .stream_from_pool
    };
    ($table:expr, otr_stream_create) => {
        $table .stream_create
    };
    ($table:expr, otr_stream_destroy) => {
        $table .stream_destroy
    };
    ($table:expr, otr_stream_device) => {
        $table .stream_device
    };
    ($table:expr, otr_stream_priority) => {
        $table .stream_priority
    };
    ($table:expr, otr_stream_current) => {
        $table .stream_current
    };
    ($table:expr, otr_stream_set_current) => {
        $table .stream_set_current
    };
    ($table:expr, otr_stream_query) => {
        $table .stream_query
    };
    ($table:expr, otr_stream_synchronize) => {
        $table .stream_synchronize
    };
    ($table:expr, otr_stream_flush) => {
        $table .stream_flush
    };
    ($table:expr, otr_stream_wait_event) => {
        $table .stream_wait_event
    };
    ($table:expr, otr_copy_peer_on) => {
        $table .copy_peer_on
    };
    ($table:expr, otr_memory_free_on) => {
        $table .memory_free_on
    };
    ($table:expr, otr_memory_record_stream_on) => {
        $table .memory_record_stream_on
    };
    ($table:expr, otr_memory_pointer_info_on) => {
        $table .memory_pointer_info_on
    };
    ($table:expr, otr_memory_export_on) => {
        $table .memory_export_on
    };
    ($table:expr, otr_fallback_set_policy) => {
        $table .fallback_set_policy
    };
    ($table:expr, otr_fallback_policy) => {
        $table .fallback_policy
    };
    ($table:expr, otr_operator_report) => {
        $table .operator_report
    };
    ($table:expr, otr_operator_timing) => {
        $table .operator_timing
    };
    ($table:expr, otr_operator_offered) => {
        $table .operator_offered
    };
    ($table:expr, otr_operator_keep_whole) => {
        $table .operator_keep_whole
    };
    ($table:expr, otr_operator_register) => {
        $table .operator_register
    };
    ($table:expr, otr_operator_withdraw) => {
        $table .operator_withdraw
    };
    ($table:expr, otr_operator_list) => {
        $table .operator_list
    };
    ($table:expr, otr_status_new) => {
        $table .status_new
    };
    ($table:expr, otr_graph_name_argument) => {
        $table .graph_name_argument
    };
    ($table:expr, otr_graph_bind_argument) => {
        $table .graph_bind_argument
    };
    ($table:expr, otr_module_load) => {
        $table .module_load
    };
    ($table:expr, otr_module_query) => {
        $table .module_query
    };
    ($table:expr, otr_module_destroy) => {
        $table .module_destroy
    };
    ($table:expr, otr_kernel_get) => {
        $table .kernel_get
    };
    ($table:expr, otr_kernel_destroy) => {
        $table .kernel_destroy
    };
    ($table:expr, otr_launch) => {
        $table .launch
    };
    ($table:expr, otr_graph_add_launch) => {
        $table .graph_add_launch
    };
    ($table:expr, otr_communicator_id) => {
        $table .communicator_id
    };
    ($table:expr, otr_communicator_create) => {
        $table .communicator_create
    };
    ($table:expr, otr_communicator_destroy) => {
        $table .communicator_destroy
    };
    ($table:expr, otr_communicator_abort) => {
        $table .communicator_abort
    };
    ($table:expr, otr_communicator_query) => {
        $table .communicator_query
    };
    ($table:expr, otr_all_reduce) => {
        $table .all_reduce
    };
    ($table:expr, otr_reduce) => {
        $table .reduce
    };
    ($table:expr, otr_reduce_scatter) => {
        $table .reduce_scatter
    };
    ($table:expr, otr_broadcast) => {
        $table .broadcast
    };
    ($table:expr, otr_all_gather) => {
        $table .all_gather
    };
    ($table:expr, otr_exchange) => {
        $table .exchange
    };
    ($table:expr, otr_driver_default) => {
        $table .driver_default
    };
    ($table:expr, otr_profile_start) => {
        $table .profile_start
    };
    ($table:expr, otr_profile_stop) => {
        $table .profile_stop
    };
    ($table:expr, otr_profile_correlate) => {
        $table .profile_correlate
    };
    ($table:expr, otr_device_can_access_peer) => {
        $table .device_can_access_peer
    };
    ($table:expr, otr_stream_from_native) => {
        $table .stream_from_native
    };
    ($table:expr, otr_stream_native) => {
        $table .stream_native
    };
    ($table:expr, otr_tune_choose) => {
        $table .tune_choose
    };
    ($table:expr, otr_store_get) => {
        $table .store_get
    };
    ($table:expr, otr_store_put) => {
        $table .store_put
    };
}
