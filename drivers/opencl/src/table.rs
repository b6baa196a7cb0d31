//! The table that the host gets: every entry of it, each declared by the kit's macro, and the one exported symbol.

use std::ffi::{c_char, c_void};

use outrigger_contract as c;
use outrigger_driver_kit::table::{Static, negotiate};
use outrigger_driver_kit::{entries, guard, last_error, outcomes};

use crate::{driver, event, launch as start, memory, module, queue};

type Drivers = *mut c::otr_driver;
type Queues = *mut c::otr_queue;
type Events = *mut c::otr_drv_event;

entries! {
    fn open(params: *const c::otr_open_params, place: *mut Drivers) = driver::open;
    fn close(driver: Drivers) = driver::close;
    fn device_count(driver: Drivers, count: *mut u32) = driver::device_count;
    fn device_properties(driver: Drivers, device: u32, place: *mut c::otr_device_properties)
        = driver::device_properties;
    fn device_open(driver: Drivers, device: u32, params: *const c::otr_device_params) = driver::device_open;
    fn device_close(driver: Drivers, device: u32) = driver::device_close;
    fn memory_alloc(driver: Drivers, device: u32, params: *const c::otr_memory_params, place: *mut u64)
        = memory::alloc;
    fn memory_free(driver: Drivers, address: u64) = memory::free;
    fn memory_info(driver: Drivers, device: u32, free: *mut u64, total: *mut u64) = memory::info;
    fn pinned_alloc(driver: Drivers, size: u64, place: *mut *mut c_void) = memory::pinned_alloc;
    fn pinned_free(driver: Drivers, pointer: *mut c_void) = memory::pinned_free;
    fn queue_create(driver: Drivers, device: u32, params: *const c::otr_queue_params, place: *mut Queues)
        = queue::create;
    fn queue_destroy(queue: Queues) = queue::destroy;
    fn queue_flush(queue: Queues) = queue::flush;
    fn native_handle(queue: Queues, native: *mut u64) = queue::native_handle;
    fn native_adopt(driver: Drivers, device: u32, native: u64, place: *mut Queues) = queue::native_adopt;
    fn queue_wait_event(queue: Queues, event: Events) = event::queue_wait;
    fn event_create(driver: Drivers, device: u32, params: *const c::otr_event_params, place: *mut Events)
        = event::create;
    fn event_destroy(event: Events) = event::destroy;
    fn event_record(event: Events, queue: Queues) = event::record;
    fn device_time(driver: Drivers, device: u32, nanoseconds: *mut u64) = event::device_time;
    fn copy(queue: Queues, copy: *const c::otr_copy) = queue::copy;
    fn fill(queue: Queues, fill: *const c::otr_fill) = queue::fill;
    fn host_call(queue: Queues, call: *const c::otr_host_call) = queue::host_call;
    fn can_access(driver: Drivers, device: u32, peer: u32, yes: *mut u32) = queue::can_access;
    fn peer_copy(queue: Queues, copy: *const c::otr_copy) = queue::peer_copy;
    fn module_load(driver: Drivers, device: u32, format: u32, code: *const c_void, size: usize,
        options: *const c_char, place: *mut *mut c::otr_drv_module) = module::load;
    fn module_unload(module: *mut c::otr_drv_module) = module::unload;
    fn kernel_get(module: *mut c::otr_drv_module, name: *const c_char, place: *mut *mut c::otr_drv_kernel)
        = module::kernel_get;
    fn launch(queue: Queues, kernel: *mut c::otr_drv_kernel, launch: *const c::otr_launch) = start::launch;
    fn module_binary(module: *mut c::otr_drv_module, binary: *mut c_void, size: *mut u64) = module::binary;
}

outcomes! {
    fn queue_query(queue: Queues) = queue::query;
    fn queue_synchronize(queue: Queues) = queue::synchronize;
    fn event_query(event: Events) = event::query;
    fn event_synchronize(event: Events) = event::synchronize;
    fn event_time(event: Events, nanoseconds: *mut u64) = event::time;
}

static MEMORY_INFO: c::otr_memory_info_api = c::otr_memory_info_api {
    struct_size: size_of::<c::otr_memory_info_api>(),
    info: Some(memory_info),
};

static PINNED_MEMORY: c::otr_pinned_memory_api = c::otr_pinned_memory_api {
    struct_size: size_of::<c::otr_pinned_memory_api>(),
    alloc: Some(pinned_alloc),
    free: Some(pinned_free),
    // OpenCL pins no memory that it did not allocate.
    pin: None,
    unpin: None,
};

static PEER: c::otr_peer_api = c::otr_peer_api {
    struct_size: size_of::<c::otr_peer_api>(),
    can_access: Some(can_access),
    copy: Some(peer_copy),
};

static TIMING: c::otr_timing_api = c::otr_timing_api {
    struct_size: size_of::<c::otr_timing_api>(),
    event_time: Some(event_time),
    device_time: Some(device_time),
};

static KERNEL: c::otr_kernel_api = c::otr_kernel_api {
    struct_size: size_of::<c::otr_kernel_api>(),
    module_load: Some(module_load),
    module_unload: Some(module_unload),
    kernel_get: Some(kernel_get),
    launch: Some(launch),
    module_binary: Some(module_binary),
};

static NATIVE_QUEUE: Static<c::otr_native_queue_api> = Static(c::otr_native_queue_api {
    ext: c::otr_ext {
        struct_size: size_of::<c::otr_native_queue_api>(),
        type_: c::OTR_EXT_NATIVE_QUEUE,
        reserved: 0,
        next: std::ptr::null(),
    },
    major: c::OTR_NATIVE_QUEUE_MAJOR,
    minor: c::OTR_NATIVE_QUEUE_MINOR,
    handle: Some(native_handle),
    adopt: Some(native_adopt),
});

static TABLE: Static<c::otr_driver_api> = Static(c::otr_driver_api {
    struct_size: size_of::<c::otr_driver_api>(),
    next: &raw const NATIVE_QUEUE.0.ext,
    api_major: c::OTR_DRIVER_API_MAJOR,
    api_minor: c::OTR_DRIVER_API_MINOR,
    name: c"opencl".as_ptr(),
    vendor: c"Outrigger".as_ptr(),
    version: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
    open: Some(open),
    close: Some(close),
    last_error: Some(last_error),
    device_count: Some(device_count),
    device_properties: Some(device_properties),
    device_open: Some(device_open),
    device_close: Some(device_close),
    memory_alloc: Some(memory_alloc),
    memory_free: Some(memory_free),
    queue_create: Some(queue_create),
    queue_destroy: Some(queue_destroy),
    queue_query: Some(queue_query),
    queue_synchronize: Some(queue_synchronize),
    queue_wait_event: Some(queue_wait_event),
    event_create: Some(event_create),
    event_destroy: Some(event_destroy),
    event_record: Some(event_record),
    event_query: Some(event_query),
    event_synchronize: Some(event_synchronize),
    copy: Some(copy),
    fill: Some(fill),
    host_call: Some(host_call),
    queue_flush: Some(queue_flush),
    memory_info: &MEMORY_INFO,
    virtual_memory: std::ptr::null(),
    pinned_memory: &PINNED_MEMORY,
    peer: &PEER,
    timing: &TIMING,
    kernel: &KERNEL,
    operators: std::ptr::null(),
    // Command buffers of OpenCL were not cheaper than enqueueing their commands, which Outrigger does itself.
    graph: std::ptr::null(),
    ipc: std::ptr::null(),
});

/// The symbol that `driver.h` asks for.
///
/// # Safety
/// R1, R2: the host's description and a place for the table, or NULL, which is refused.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn otr_driver_get_api(
    host: *const c::otr_host_info,
    place: *mut *const c::otr_driver_api,
) -> c::otr_code_t {
    // SAFETY: this function's contract.
    guard(|| unsafe { negotiate(host, place, &TABLE) })
}
