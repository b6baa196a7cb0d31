//! Makes layered drivers: a table with the shape of the table below, its handle, and `open` for a
//! library that exports such a driver.

use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use outrigger_device::{Code, Driver, Error, RawDriver, Result, sys};

use crate::failure::{answer, last_error};
use crate::handle::Handle;
use crate::layer::{Layer, Next};
use crate::{fail, thunks};

/// A driver with a layer over it. Each of its handles leads here.
pub(crate) struct Layered {
    // Before the driver below: what a layer holds of it goes first.
    pub(crate) layer: Box<dyn Layer>,
    /// The table that the host reads.
    table: LayerTable,
    pub(crate) next: Next,
}

/// Puts a layer over an open driver. From now on the host gets the answers of the layer.
///
/// # Errors
/// `BUSY` while clones, queues, events or kernels of the driver live; `LOAD` if the layered driver does
/// not answer for its devices. The driver is closed then.
pub fn layered(driver: Driver, layer: impl Layer) -> Result<Driver> {
    let raw = driver.into_raw().map_err(|driver| {
        Error::new(
            Code::BUSY,
            format!(
                "the driver {} is in use: put a layer over it before anything is created",
                driver.name()
            ),
        )
    })?;
    let (table, handle) = put_over(raw, Box::new(layer));
    let Some(handle) = NonNull::new(handle) else {
        return Err(Error::new(Code::INTERNAL, "a handle at the address 0"));
    };
    // SAFETY: the table was made for this handle, which nobody else has. Both live until the driver is
    // closed, and the functions as long as this library.
    Driver::from_raw(unsafe { RawDriver::from_parts(table, handle, None)? })
}

fn put_over(
    raw: RawDriver,
    layer: Box<dyn Layer>,
) -> (*const sys::otr_driver_api, *mut sys::otr_driver) {
    let table = LayerTable::over(&raw, |what, below| layer.offers(what, below), open_again);
    let below = raw.handle();
    let layered = Arc::new(Layered {
        layer,
        table,
        next: Next::new(raw),
    });
    (layered.table.as_ptr(), Handle::make(below, layered))
}

/// `open` of a layered driver, which has no way to know its layer.
unsafe extern "C" fn open_again(
    _params: *const sys::otr_open_params,
    _driver: *mut *mut sys::otr_driver,
) -> i32 {
    answer(
        || {
            fail(
                Code::UNSUPPORTED,
                "a layer is put over an open driver: open the driver below again",
            )
        },
        || None,
    )
}

/// The type of `open` of a driver.
pub type OpenFn =
    unsafe extern "C" fn(*const sys::otr_open_params, *mut *mut sys::otr_driver) -> i32;

/// Implements `open` for a library that exports a layered driver. `make` returns the driver below and
/// the layer for the options of the contract (`key=value,key=value`, or empty).
///
/// # Safety
/// `params` is NULL or a struct of the size that it states, and `place` NULL or writable.
pub unsafe fn open_with(
    params: *const sys::otr_open_params,
    place: *mut *mut sys::otr_driver,
    make: impl FnOnce(&str) -> Result<(RawDriver, Box<dyn Layer>)>,
) -> i32 {
    let body = || {
        if place.is_null() {
            return fail(Code::INVALID_ARGUMENT, "the place for the driver is NULL");
        }
        // SAFETY: not NULL, so a struct of the size that stands in it (R1).
        let options = match unsafe { params.as_ref() } {
            Some(params)
                if params.struct_size >= size_of::<sys::otr_open_params>()
                    && !params.options.is_null() =>
            {
                // SAFETY: a NUL-terminated string by the contract.
                unsafe { CStr::from_ptr(params.options) }.to_string_lossy()
            }
            _ => "".into(),
        };
        match make(&options) {
            Ok((raw, layer)) => {
                let (_, handle) = put_over(raw, layer);
                // SAFETY: not NULL, so writable.
                unsafe { *place = handle };
                Code::OK.0
            }
            Err(error) => fail(error.code(), error.message()),
        }
    };
    answer(body, || None)
}

/// A driver's table whose functions lead to layers.
pub struct LayerTable(Box<Groups>);

struct Groups {
    api: sys::otr_driver_api,
    memory_info: sys::otr_memory_info_api,
    virtual_memory: sys::otr_virtual_memory_api,
    pinned_memory: sys::otr_pinned_memory_api,
    peer: sys::otr_peer_api,
    timing: sys::otr_timing_api,
    kernel: sys::otr_kernel_api,
    operators: sys::otr_operator_api,
    graph: sys::otr_graph_api,
    ipc: sys::otr_ipc_api,
    collectives: sys::otr_collective_api,
    native_queue: sys::otr_native_queue_api,
    external: sys::otr_external_api,
}

// SAFETY: a table is not written after it was made; its strings are those of the driver below, which
// lives at least as long.
unsafe impl Send for LayerTable {}
// SAFETY: as above.
unsafe impl Sync for LayerTable {}

impl LayerTable {
    /// A table with the groups, chained tables and optional entries of `below`, but where `offers` says otherwise. It has
    /// the strings of `below`, which has to live as long. Records that this library does not know are left out: their
    /// functions would be given handles of the layer.
    pub fn over(below: &RawDriver, offers: impl Fn(&str, bool) -> bool, open: OpenFn) -> Self {
        let has = |entry: bool, name: &str| offers(name, entry);
        let pinned = below.pinned_memory();
        let ipc = below.ipc();
        let external = below.external();
        let mut groups = Box::new(Groups {
            api: core(below, open),
            memory_info: sys::otr_memory_info_api {
                struct_size: size_of::<sys::otr_memory_info_api>(),
                info: Some(thunks::memory_info),
            },
            virtual_memory: sys::otr_virtual_memory_api {
                struct_size: size_of::<sys::otr_virtual_memory_api>(),
                granularity: Some(thunks::virtual_granularity),
                reserve: Some(thunks::virtual_reserve),
                release: Some(thunks::virtual_release),
                create: Some(thunks::virtual_create),
                destroy: Some(thunks::virtual_destroy),
                map: Some(thunks::virtual_map),
                unmap: Some(thunks::virtual_unmap),
            },
            pinned_memory: sys::otr_pinned_memory_api {
                struct_size: size_of::<sys::otr_pinned_memory_api>(),
                alloc: Some(thunks::pinned_alloc),
                free: Some(thunks::pinned_free),
                pin: has(pinned.is_some_and(|g| g.pin.is_some()), "pinned_memory.pin")
                    .then_some(thunks::pinned_pin),
                unpin: has(
                    pinned.is_some_and(|g| g.unpin.is_some()),
                    "pinned_memory.unpin",
                )
                .then_some(thunks::pinned_unpin),
            },
            peer: sys::otr_peer_api {
                struct_size: size_of::<sys::otr_peer_api>(),
                can_access: Some(thunks::peer_can_access),
                copy: Some(thunks::peer_copy),
            },
            timing: sys::otr_timing_api {
                struct_size: size_of::<sys::otr_timing_api>(),
                event_time: Some(thunks::event_time),
                device_time: Some(thunks::device_time),
            },
            kernel: sys::otr_kernel_api {
                struct_size: size_of::<sys::otr_kernel_api>(),
                module_load: Some(thunks::module_load),
                module_unload: Some(thunks::module_unload),
                kernel_get: Some(thunks::kernel_get),
                launch: Some(thunks::kernel_launch),
                module_binary: has(
                    below.kernel().is_some_and(|g| g.module_binary.is_some()),
                    "kernel.module_binary",
                )
                .then_some(thunks::module_binary),
            },
            operators: sys::otr_operator_api {
                struct_size: size_of::<sys::otr_operator_api>(),
                names: Some(thunks::operator_names),
                prepare: Some(thunks::operator_prepare),
                release: Some(thunks::operator_release),
                launch: Some(thunks::operator_launch),
            },
            graph: sys::otr_graph_api {
                struct_size: size_of::<sys::otr_graph_api>(),
                record_begin: Some(thunks::graph_record_begin),
                record_end: Some(thunks::graph_record_end),
                launch: Some(thunks::graph_launch),
                update: has(
                    below.graph().is_some_and(|g| g.update.is_some()),
                    "graph.update",
                )
                .then_some(thunks::graph_update),
                destroy: Some(thunks::graph_destroy),
                update_part: has(
                    below.graph().is_some_and(|g| g.update_part.is_some()),
                    "graph.update_part",
                )
                .then_some(thunks::graph_update_part),
            },
            ipc: sys::otr_ipc_api {
                struct_size: size_of::<sys::otr_ipc_api>(),
                memory_export: Some(thunks::ipc_memory_export),
                memory_import: Some(thunks::ipc_memory_import),
                memory_close: Some(thunks::ipc_memory_close),
                event_export: has(
                    ipc.is_some_and(|g| g.event_export.is_some()),
                    "ipc.event_export",
                )
                .then_some(thunks::ipc_event_export),
                event_import: has(
                    ipc.is_some_and(|g| g.event_import.is_some()),
                    "ipc.event_import",
                )
                .then_some(thunks::ipc_event_import),
                physical_export: has(
                    ipc.is_some_and(|g| g.physical_export.is_some()),
                    "ipc.physical_export",
                )
                .then_some(thunks::ipc_physical_export),
                physical_import: has(
                    ipc.is_some_and(|g| g.physical_import.is_some()),
                    "ipc.physical_import",
                )
                .then_some(thunks::ipc_physical_import),
            },
            collectives: sys::otr_collective_api {
                ext: record::<sys::otr_collective_api>(sys::OTR_EXT_COLLECTIVES),
                major: sys::OTR_COLLECTIVES_MAJOR,
                minor: sys::OTR_COLLECTIVES_MINOR,
                id: Some(thunks::comm_id),
                create: Some(thunks::comm_create),
                destroy: Some(thunks::comm_destroy),
                abort: Some(thunks::comm_abort),
                query: Some(thunks::comm_query),
                all_reduce: Some(thunks::comm_all_reduce),
                reduce: Some(thunks::comm_reduce),
                reduce_scatter: Some(thunks::comm_reduce_scatter),
                broadcast: Some(thunks::comm_broadcast),
                all_gather: Some(thunks::comm_all_gather),
                exchange: has(
                    below.collectives().is_some_and(|g| g.exchange.is_some()),
                    "collectives.exchange",
                )
                .then_some(thunks::comm_exchange),
            },
            native_queue: sys::otr_native_queue_api {
                ext: record::<sys::otr_native_queue_api>(sys::OTR_EXT_NATIVE_QUEUE),
                major: sys::OTR_NATIVE_QUEUE_MAJOR,
                minor: sys::OTR_NATIVE_QUEUE_MINOR,
                handle: Some(thunks::native_handle),
                adopt: Some(thunks::native_adopt),
            },
            external: sys::otr_external_api {
                ext: record::<sys::otr_external_api>(sys::OTR_EXT_EXTERNAL),
                major: sys::OTR_EXTERNAL_MAJOR,
                minor: sys::OTR_EXTERNAL_MINOR,
                memory_import: Some(thunks::external_memory_import),
                memory_close: Some(thunks::external_memory_close),
                semaphore_import: Some(thunks::external_semaphore_import),
                semaphore_destroy: Some(thunks::external_semaphore_destroy),
                signal: Some(thunks::external_signal),
                wait: Some(thunks::external_wait),
                memory_export: has(
                    external.is_some_and(|g| g.memory_export.is_some()),
                    "external.memory_export",
                )
                .then_some(thunks::external_memory_export),
                semaphore_create: has(
                    external.is_some_and(|g| g.semaphore_create.is_some()),
                    "external.semaphore_create",
                )
                .then_some(thunks::external_semaphore_create),
                semaphore_export: has(
                    external.is_some_and(|g| g.semaphore_export.is_some()),
                    "external.semaphore_export",
                )
                .then_some(thunks::external_semaphore_export),
            },
        });
        macro_rules! groups {
            ($($name:ident)*) => {
                $(if has(below.$name().is_some(), stringify!($name)) {
                    groups.api.$name = &raw const groups.$name;
                })*
            };
        }
        groups! {
            memory_info virtual_memory pinned_memory peer timing kernel operators graph ipc
        }
        macro_rules! tables {
            ($($name:ident)*) => {
                $(if has(below.$name().is_some(), stringify!($name)) {
                    groups.$name.ext.next = groups.api.next;
                    groups.api.next = &raw const groups.$name.ext;
                })*
            };
        }
        tables! { collectives native_queue external }
        if !has(below.api().queue_flush.is_some(), "queue_flush") {
            groups.api.queue_flush = None;
        }
        Self(groups)
    }

    /// The table, for as long as this value lives.
    pub fn as_ptr(&self) -> *const sys::otr_driver_api {
        &raw const self.0.api
    }
}

impl fmt::Debug for LayerTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayerTable").finish_non_exhaustive()
    }
}

/// The entries of no group, without groups.
fn core(below: &RawDriver, open: OpenFn) -> sys::otr_driver_api {
    let api = below.api();
    sys::otr_driver_api {
        struct_size: size_of::<sys::otr_driver_api>(),
        next: std::ptr::null(),
        api_major: sys::OTR_DRIVER_API_MAJOR,
        api_minor: sys::OTR_DRIVER_API_MINOR,
        name: api.name,
        vendor: api.vendor,
        version: api.version,
        open: Some(open),
        close: Some(thunks::close),
        last_error: Some(last_error),
        device_count: Some(thunks::device_count),
        device_properties: Some(thunks::device_properties),
        device_open: Some(thunks::device_open),
        device_close: Some(thunks::device_close),
        memory_alloc: Some(thunks::memory_alloc),
        memory_free: Some(thunks::memory_free),
        queue_create: Some(thunks::queue_create),
        queue_destroy: Some(thunks::queue_destroy),
        queue_query: Some(thunks::queue_query),
        queue_synchronize: Some(thunks::queue_synchronize),
        queue_wait_event: Some(thunks::queue_wait_event),
        event_create: Some(thunks::event_create),
        event_destroy: Some(thunks::event_destroy),
        event_record: Some(thunks::event_record),
        event_query: Some(thunks::event_query),
        event_synchronize: Some(thunks::event_synchronize),
        copy: Some(thunks::copy),
        fill: Some(thunks::fill),
        host_call: Some(thunks::host_call),
        queue_flush: Some(thunks::queue_flush),
        memory_info: std::ptr::null(),
        virtual_memory: std::ptr::null(),
        pinned_memory: std::ptr::null(),
        peer: std::ptr::null(),
        timing: std::ptr::null(),
        kernel: std::ptr::null(),
        operators: std::ptr::null(),
        graph: std::ptr::null(),
        ipc: std::ptr::null(),
    }
}

/// The head of a table of the chain, which is put in front of the others.
fn record<T>(type_: u32) -> sys::otr_ext {
    sys::otr_ext {
        struct_size: size_of::<T>(),
        type_,
        reserved: 0,
        next: std::ptr::null(),
    }
}
