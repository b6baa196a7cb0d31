//! The list of all entries of a driver's table that have a handle: from it come the methods of a layer,
//! the calls to the driver below it, and the functions of the table above it. It holds no behaviour.
//!
//! A line reads: how handles change hands, the method's name, group and entry, the arguments, and in
//! brackets the handle that the entry makes. `plain` and `makes` are served by one function each; the
//! lines of `other` have one of their own in `thunks`.

macro_rules! entries {
    ($callback:ident) => {
        $callback! {
            other close: core.close(driver: otr_driver) [];
            plain device_count: core.device_count(driver: otr_driver, count: *mut u32) [];
            plain device_properties: core.device_properties(driver: otr_driver, device: u32,
                properties: *mut sys::otr_device_properties) [];
            plain memory_alloc: core.memory_alloc(driver: otr_driver, device: u32, size: u64,
                address: *mut u64) [];
            plain memory_free: core.memory_free(driver: otr_driver, address: u64) [];
            makes queue_create: core.queue_create(driver: otr_driver, device: u32,
                params: *const sys::otr_queue_params) [queue: otr_queue];
            takes queue_destroy: core.queue_destroy(queue: otr_queue) [];
            plain queue_query: core.queue_query(queue: otr_queue) [];
            plain queue_synchronize: core.queue_synchronize(queue: otr_queue) [];
            plain queue_wait_event: core.queue_wait_event(queue: otr_queue,
                event: *mut sys::otr_drv_event) [];
            makes event_create: core.event_create(driver: otr_driver, device: u32, flags: u32)
                [event: otr_drv_event];
            takes event_destroy: core.event_destroy(event: otr_drv_event) [];
            plain event_record: core.event_record(event: otr_drv_event,
                queue: *mut sys::otr_queue) [];
            plain event_query: core.event_query(event: otr_drv_event) [];
            plain event_synchronize: core.event_synchronize(event: otr_drv_event) [];
            plain copy: core.copy(queue: otr_queue, dst: u64, src: u64, size: u64, kind: u32) [];
            plain fill: core.fill(queue: otr_queue, dst: u64, size: u64, pattern: *const c_void,
                pattern_size: u32) [];
            plain host_call: core.host_call(queue: otr_queue, function: sys::otr_host_fn,
                user: *mut c_void) [];
            plain queue_flush: core.queue_flush(queue: otr_queue) [];
            plain memory_info: memory_info.info(driver: otr_driver, device: u32,
                free_bytes: *mut u64, total_bytes: *mut u64) [];
            plain virtual_granularity: virtual_memory.granularity(driver: otr_driver, device: u32,
                bytes: *mut u64) [];
            plain virtual_reserve: virtual_memory.reserve(driver: otr_driver, device: u32,
                size: u64, alignment: u64, address: *mut u64) [];
            plain virtual_release: virtual_memory.release(driver: otr_driver, address: u64,
                size: u64) [];
            makes virtual_create: virtual_memory.create(driver: otr_driver, device: u32, size: u64)
                [physical: otr_physical];
            other virtual_destroy: virtual_memory.destroy(driver: otr_driver,
                physical: *mut sys::otr_physical) [];
            other virtual_map: virtual_memory.map(driver: otr_driver, address: u64,
                physical: *const *mut sys::otr_physical, count: u32) [];
            plain virtual_unmap: virtual_memory.unmap(driver: otr_driver, address: u64,
                size: u64) [];
            plain unified_alloc: unified_memory.alloc(driver: otr_driver, device: u32, size: u64,
                address: *mut u64) [];
            plain unified_free: unified_memory.free(driver: otr_driver, address: u64) [];
            plain unified_prefetch: unified_memory.prefetch(queue: otr_queue, address: u64,
                size: u64, device: u32) [];
            plain pinned_alloc: pinned_memory.alloc(driver: otr_driver, size: u64,
                pointer: *mut *mut c_void) [];
            plain pinned_free: pinned_memory.free(driver: otr_driver, pointer: *mut c_void) [];
            plain pinned_pin: pinned_memory.pin(driver: otr_driver, pointer: *mut c_void,
                size: u64) [];
            plain pinned_unpin: pinned_memory.unpin(driver: otr_driver, pointer: *mut c_void) [];
            plain peer_can_access: peer.can_access(driver: otr_driver, device: u32, peer: u32,
                yes: *mut u32) [];
            plain peer_copy: peer.copy(queue: otr_queue, dst_device: u32, dst: u64,
                src_device: u32, src: u64, size: u64) [];
            plain event_time: timing.event_time(event: otr_drv_event, nanoseconds: *mut u64) [];
            plain device_time: timing.device_time(driver: otr_driver, device: u32,
                nanoseconds: *mut u64) [];
            makes module_load: kernel.module_load(driver: otr_driver, device: u32, format: u32,
                code: *const c_void, size: usize, options: *const c_char) [module: otr_module];
            takes module_unload: kernel.module_unload(module: otr_module) [];
            other kernel_get: kernel.kernel_get(module: otr_module, name: *const c_char)
                [kernel: otr_kernel];
            plain kernel_launch: kernel.launch(queue: otr_queue, kernel: *mut sys::otr_kernel,
                launch: *const sys::otr_launch) [];
            makes operator_prepare: operators.prepare(driver: otr_driver, device: u32,
                call: *const sys::otr_operator_call, workspace_bytes: *mut u64)
                [operator: otr_operator];
            takes operator_release: operators.release(operator: otr_operator) [];
            plain operator_launch: operators.launch(queue: otr_queue,
                operator: *mut sys::otr_operator, call: *const sys::otr_operator_call,
                workspace: u64) [];
            plain graph_record_begin: graph.record_begin(queue: otr_queue) [];
            makes graph_record_end: graph.record_end(queue: otr_queue) [graph: otr_drv_graph];
            plain graph_launch: graph.launch(queue: otr_queue, graph: *mut sys::otr_drv_graph) [];
            plain graph_update: graph.update(graph: otr_drv_graph, from: *mut sys::otr_drv_graph) [];
            takes graph_destroy: graph.destroy(graph: otr_drv_graph) [];
            plain ipc_memory_export: ipc.memory_export(driver: otr_driver, base: u64,
                handle: *mut sys::otr_ipc_handle) [];
            plain ipc_memory_import: ipc.memory_import(driver: otr_driver, device: u32,
                handle: *const sys::otr_ipc_handle, base: *mut u64) [];
            plain ipc_memory_close: ipc.memory_close(driver: otr_driver, base: u64) [];
            plain ipc_event_export: ipc.event_export(event: otr_drv_event,
                handle: *mut sys::otr_ipc_handle) [];
            makes ipc_event_import: ipc.event_import(driver: otr_driver,
                handle: *const sys::otr_ipc_handle) [event: otr_drv_event];
            plain ipc_physical_export: ipc.physical_export(driver: otr_driver,
                physical: *mut sys::otr_physical, handle: *mut sys::otr_ipc_handle) [];
            makes ipc_physical_import: ipc.physical_import(driver: otr_driver, device: u32,
                handle: *const sys::otr_ipc_handle) [physical: otr_physical];
        }
    };
}
pub(crate) use entries;
