//! The built-in driver `host`: the memory of its devices is memory of this process, and its queues run
//! on threads of this process. It is called through the same table as any other driver; no code above
//! can tell the difference.
//!
//! It has two faces. On `unified` a device address is a host pointer. On `discrete` the device's range
//! of addresses is reserved and empty, so that a host access faults as it would on a device across a
//! bus, and the driver reaches the bytes through a second mapping: the bias.
//!
//! Options: `devices=N` (2), `memory=BYTES` of each device (half of the physical memory),
//! `face=unified` or `discrete`, `graphs=none` or `native`, `operators=none` or `native`,
//! `virtual_memory=auto`, `on` or `off`. Native graphs and operators exist to test the code above them:
//! one launch of a host kernel that runs all nodes is cheaper, and Outrigger's own operators are
//! faster. With `auto`, virtual memory is on if shared memory can have huge pages; without huge pages
//! it costs bandwidth.

mod board;
mod collectives;
mod command;
mod driver;
mod event;
mod exports;
mod external;
mod failure;
mod fault;
mod graph;
mod ipc;
mod mapping;
mod memory;
mod operators;
mod options;
mod pages;
mod point;
mod queue;
mod ranges;
mod recording;
mod segment;
mod semaphore;
mod submit;
mod sync;
mod ticker;
mod virtual_memory;
mod worker;

use crate::sys;

/// The name by which the driver is asked for.
pub(crate) const NAME: &str = "host";

/// The table of the driver, for options in the form of the contract. Those that are wrong are refused
/// by `open`.
pub(crate) fn api(options: &str) -> &'static sys::otr_driver_api {
    let groups = options::Options::parse(options).map_or([false; 3], |options| {
        [
            options.native_graphs,
            options.native_operators,
            options.virtual_memory,
        ]
    });
    let [graphs, operators, virtual_memory] = groups.map(usize::from);
    &APIS[graphs][operators][virtual_memory].0
}

/// A table is shared by all threads.
struct Shared<T>(T);

// SAFETY: never written; all pointers in it are to statics and functions.
unsafe impl<T> Sync for Shared<T> {}

/// By whether it has graphs, whether it has operators, and whether it has virtual memory.
static APIS: [[[Shared<sys::otr_driver_api>; 2]; 2]; 2] = [tables(false), tables(true)];

const fn tables(graphs: bool) -> [[Shared<sys::otr_driver_api>; 2]; 2] {
    [
        [
            Shared(table(graphs, false, false)),
            Shared(table(graphs, false, true)),
        ],
        [
            Shared(table(graphs, true, false)),
            Shared(table(graphs, true, true)),
        ],
    ]
}

const fn table(graphs: bool, operators: bool, virtual_memory: bool) -> sys::otr_driver_api {
    let mut table = TABLE;
    if graphs {
        table.graph = &raw const GRAPH;
    }
    if operators {
        table.operators = &raw const OPERATORS;
    }
    if virtual_memory {
        table.virtual_memory = &raw const VIRTUAL_MEMORY;
        table.ipc = &raw const IPC_WITH_OBJECTS;
    }
    table
}

const TABLE: sys::otr_driver_api = sys::otr_driver_api {
    struct_size: size_of::<sys::otr_driver_api>(),
    next: &raw const COLLECTIVES.0.ext,
    api_major: sys::OTR_DRIVER_API_MAJOR,
    api_minor: sys::OTR_DRIVER_API_MINOR,
    name: c"host".as_ptr(),
    vendor: c"Outrigger".as_ptr(),
    version: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
    open: Some(driver::open),
    close: Some(driver::close),
    last_error: Some(fault::last_error),
    device_count: Some(driver::device_count),
    device_properties: Some(driver::device_properties),
    device_open: Some(driver::device_open),
    device_close: Some(driver::device_close),
    memory_alloc: Some(driver::memory_alloc),
    memory_free: Some(driver::memory_free),
    queue_create: Some(submit::create),
    queue_destroy: Some(submit::destroy),
    queue_query: Some(submit::query),
    queue_synchronize: Some(submit::synchronize),
    queue_wait_event: Some(event::queue_wait),
    event_create: Some(event::create),
    event_destroy: Some(event::destroy),
    event_record: Some(event::record),
    event_query: Some(event::query),
    event_synchronize: Some(event::synchronize),
    copy: Some(submit::copy),
    fill: Some(submit::fill),
    host_call: Some(submit::host_call),
    queue_flush: Some(submit::flush),
    memory_info: &raw const MEMORY_INFO,
    virtual_memory: std::ptr::null(),
    pinned_memory: &raw const PINNED_MEMORY,
    peer: &raw const PEER,
    timing: &raw const TIMING,
    kernel: &raw const KERNEL,
    operators: std::ptr::null(),
    graph: std::ptr::null(),
    ipc: &raw const IPC,
};

static MEMORY_INFO: sys::otr_memory_info_api = sys::otr_memory_info_api {
    struct_size: size_of::<sys::otr_memory_info_api>(),
    info: Some(driver::memory_info),
};

static VIRTUAL_MEMORY: sys::otr_virtual_memory_api = sys::otr_virtual_memory_api {
    struct_size: size_of::<sys::otr_virtual_memory_api>(),
    granularity: Some(virtual_memory::granularity),
    reserve: Some(virtual_memory::reserve),
    release: Some(virtual_memory::release),
    create: Some(virtual_memory::create),
    destroy: Some(virtual_memory::destroy),
    map: Some(virtual_memory::map),
    unmap: Some(virtual_memory::unmap),
};

static IPC: sys::otr_ipc_api = ipc_table(false);
/// Where there is virtual memory, and so objects without an address.
static IPC_WITH_OBJECTS: sys::otr_ipc_api = ipc_table(true);

const fn ipc_table(objects: bool) -> sys::otr_ipc_api {
    let mut table = sys::otr_ipc_api {
        struct_size: size_of::<sys::otr_ipc_api>(),
        memory_export: Some(ipc::memory_export),
        memory_import: Some(ipc::memory_import),
        memory_close: Some(ipc::memory_close),
        event_export: Some(ipc::event_export),
        event_import: Some(ipc::event_import),
        physical_export: None,
        physical_import: None,
    };
    if objects {
        table.physical_export = Some(ipc::physical_export);
        table.physical_import = Some(ipc::physical_import);
    }
    table
}

static COLLECTIVES: Shared<sys::otr_collective_api> = Shared(sys::otr_collective_api {
    ext: sys::otr_ext {
        struct_size: size_of::<sys::otr_collective_api>(),
        type_: sys::OTR_EXT_COLLECTIVES,
        reserved: 0,
        next: &raw const NATIVE_QUEUE.0.ext,
    },
    major: sys::OTR_COLLECTIVES_MAJOR,
    minor: sys::OTR_COLLECTIVES_MINOR,
    id: Some(collectives::id),
    create: Some(collectives::create),
    destroy: Some(collectives::destroy),
    abort: Some(collectives::abort),
    query: Some(collectives::query),
    all_reduce: Some(collectives::all_reduce),
    reduce: Some(collectives::reduce),
    reduce_scatter: Some(collectives::reduce_scatter),
    broadcast: Some(collectives::broadcast),
    all_gather: Some(collectives::all_gather),
    exchange: Some(collectives::exchange),
});

static NATIVE_QUEUE: Shared<sys::otr_native_queue_api> = Shared(sys::otr_native_queue_api {
    ext: sys::otr_ext {
        struct_size: size_of::<sys::otr_native_queue_api>(),
        type_: sys::OTR_EXT_NATIVE_QUEUE,
        reserved: 0,
        next: &raw const EXTERNAL.0.ext,
    },
    major: sys::OTR_NATIVE_QUEUE_MAJOR,
    minor: sys::OTR_NATIVE_QUEUE_MINOR,
    handle: Some(submit::native_handle),
    adopt: Some(submit::native_adopt),
});

static EXTERNAL: Shared<sys::otr_external_api> = Shared(sys::otr_external_api {
    ext: sys::otr_ext {
        struct_size: size_of::<sys::otr_external_api>(),
        type_: sys::OTR_EXT_EXTERNAL,
        reserved: 0,
        next: std::ptr::null(),
    },
    major: sys::OTR_EXTERNAL_MAJOR,
    minor: sys::OTR_EXTERNAL_MINOR,
    memory_import: Some(external::memory_import),
    memory_close: Some(external::memory_close),
    semaphore_import: Some(external::semaphore_import),
    semaphore_destroy: Some(external::semaphore_destroy),
    signal: Some(external::signal),
    wait: Some(external::wait),
    memory_export: Some(external::memory_export),
    semaphore_create: Some(external::semaphore_create),
    semaphore_export: Some(external::semaphore_export),
});

static PINNED_MEMORY: sys::otr_pinned_memory_api = sys::otr_pinned_memory_api {
    struct_size: size_of::<sys::otr_pinned_memory_api>(),
    alloc: Some(driver::pinned_alloc),
    free: Some(driver::pinned_free),
    // All host memory is as near to the device as any.
    pin: None,
    unpin: None,
};

static PEER: sys::otr_peer_api = sys::otr_peer_api {
    struct_size: size_of::<sys::otr_peer_api>(),
    can_access: Some(driver::can_access),
    copy: Some(submit::peer_copy),
};

static TIMING: sys::otr_timing_api = sys::otr_timing_api {
    struct_size: size_of::<sys::otr_timing_api>(),
    event_time: Some(event::time),
    device_time: Some(driver::device_time),
};

static GRAPH: sys::otr_graph_api = sys::otr_graph_api {
    struct_size: size_of::<sys::otr_graph_api>(),
    record_begin: Some(graph::record_begin),
    record_end: Some(graph::record_end),
    launch: Some(graph::launch),
    update: Some(graph::update),
    destroy: Some(graph::destroy),
    update_part: Some(graph::update_part),
};

static OPERATORS: sys::otr_operator_api = sys::otr_operator_api {
    struct_size: size_of::<sys::otr_operator_api>(),
    names: Some(operators::names),
    prepare: Some(operators::prepare),
    release: Some(operators::release),
    launch: Some(operators::launch),
};

static KERNEL: sys::otr_kernel_api = sys::otr_kernel_api {
    struct_size: size_of::<sys::otr_kernel_api>(),
    module_load: Some(submit::module_load),
    module_unload: Some(submit::module_unload),
    kernel_get: Some(submit::kernel_get),
    launch: Some(submit::launch),
    module_binary: None,
};
