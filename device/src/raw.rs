//! An open driver as its table and handle, with the owner that keeps its functions in memory. A
//! `Driver` is made of it, and a layer wraps it. It closes the driver once, and decides nothing else.

use std::any::Any;
use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fork::forked;
use crate::table::{Table, entry};
use crate::{Code, Error, Result, sys};

/// The owner of a driver's functions, such as a library. It is dropped after the driver was closed.
pub(crate) type Owner = Box<dyn Any + Send + Sync>;

/// An open driver by its table and handle. It is closed when this is dropped, if it was not before.
///
/// The table is a checked copy: entries behind a smaller `struct_size` are NULL in it. In each group
/// that the accessors return, all entries are set, except optional ones.
pub struct RawDriver {
    table: Table,
    handle: NonNull<sys::otr_driver>,
    closed: AtomicBool,
    /// How it is opened once more, in another process too.
    origin: Option<String>,
    // Declared last: the table's functions lie in it. `None` for a built-in driver.
    owner: Option<Owner>,
}

// SAFETY: R8 of the contract: every function may be called from any thread, also at the same time on
// the same object. The table is never written after it was read.
unsafe impl Send for RawDriver {}
// SAFETY: as above.
unsafe impl Sync for RawDriver {}

impl Drop for RawDriver {
    fn drop(&mut self) {
        if forked() || *self.closed.get_mut() {
            // After a fork it is the parent's: its threads and device handles are not in this process.
            return;
        }
        let code = self.close();
        if code != Code::OK {
            // SAFETY: R5, right after the failed call on the same thread.
            let text = unsafe { last_error(&self.table) };
            tracing::warn!(target: "outrigger::device", driver = self.table.name, %code, text,
                "a driver could not be closed");
            // Its threads may still run: the library stays loaded under them.
            std::mem::forget(self.owner.take());
        }
    }
}

/// The text of this thread's most recent failed call.
///
/// # Safety
/// No other call of the driver was made by this thread since the failed one.
unsafe fn last_error(table: &Table) -> String {
    let Some(last_error) = table.api.last_error else {
        return String::new();
    };
    // SAFETY: takes nothing.
    let text = unsafe { last_error() };
    if text.is_null() {
        return "the driver gave no reason (its last_error is NULL, against R5)".to_owned();
    }
    // SAFETY: R5: NUL-terminated and valid until this thread's next call.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Accessors of the optional groups.
macro_rules! groups {
    ($($name:ident: $type:ident)*) => {
        $(
            #[doc = concat!("The group `", stringify!($name), "`; `None` if the driver has none.")]
            pub fn $name(&self) -> Option<&sys::$type> {
                self.table.$name.as_ref()
            }
        )*
    };
}

impl RawDriver {
    /// Calls `open` of a checked table.
    ///
    /// # Errors
    /// Of `open`, with its text; `LOAD` if it gave NULL.
    ///
    /// # Safety
    /// The functions of `table` keep the driver contract, and lie in `owner` or this library.
    pub(crate) unsafe fn open(
        table: Table,
        owner: Option<Owner>,
        options: Option<&CStr>,
    ) -> Result<Self> {
        let params = sys::otr_open_params {
            struct_size: size_of::<sys::otr_open_params>(),
            next: std::ptr::null(),
            options: options.map_or(std::ptr::null(), CStr::as_ptr),
        };
        let mut handle = std::ptr::null_mut();
        let open = entry!(table.api, open);
        // SAFETY: params and handle live through the call.
        let code = Code(unsafe { open(&params, &mut handle) });
        if code != Code::OK {
            // SAFETY: R5, right after the failed call on the same thread.
            return Err(Error::new(code, unsafe { last_error(&table) }));
        }
        let Some(handle) = NonNull::new(handle) else {
            return Err(Error::new(
                Code::LOAD,
                "its `open` answered OTR_OK but returned no driver (NULL)",
            ));
        };
        // Here and not where tables are read: layers read them again.
        for text in &table.passed_over {
            tracing::warn!(target: "outrigger::device", driver = table.name, "{text}");
        }
        Ok(Self {
            table,
            handle,
            closed: AtomicBool::new(false),
            origin: None,
            owner,
        })
    }

    /// Takes over an open driver: a table, and the handle that belongs to it.
    ///
    /// # Errors
    /// `LOAD` or `VERSION` for a table that is not whole; the handle is left alone then.
    ///
    /// # Safety
    /// The table and its groups are as large as they say, and their functions keep the driver contract;
    /// the handle is open and nobody else closes it. All of that lies in `owner`, or lives as long as
    /// the process.
    pub unsafe fn from_parts(
        api: *const sys::otr_driver_api,
        handle: NonNull<sys::otr_driver>,
        owner: Option<Box<dyn Any + Send + Sync>>,
    ) -> Result<Self> {
        Ok(Self {
            // SAFETY: R1: the table and its groups are as large as they say.
            table: unsafe { Table::read(api) }?,
            handle,
            closed: AtomicBool::new(false),
            origin: None,
            owner,
        })
    }

    /// The entries. Its group pointers are the driver's own: the accessors give the checked copies.
    pub fn api(&self) -> &sys::otr_driver_api {
        &self.table.api
    }

    /// The specification with which another process opens the same driver; `None` for one that no loader opened.
    pub fn origin(&self) -> Option<&str> {
        self.origin.as_deref()
    }

    pub(crate) fn set_origin(&mut self, origin: String) {
        self.origin = Some(origin);
    }

    /// The open handle.
    #[inline]
    pub fn handle(&self) -> *mut sys::otr_driver {
        self.handle.as_ptr()
    }

    groups! {
        memory_info: otr_memory_info_api
        virtual_memory: otr_virtual_memory_api
        pinned_memory: otr_pinned_memory_api
        peer: otr_peer_api
        timing: otr_timing_api
        kernel: otr_kernel_api
        operators: otr_operator_api
        graph: otr_graph_api
        ipc: otr_ipc_api
        collectives: otr_collective_api
        native_queue: otr_native_queue_api
    }

    fn close(&self) -> Code {
        let Some(close) = self.table.api.close else {
            return Code::INTERNAL;
        };
        // SAFETY: the handle is open, and queues, events and kernels keep this alive.
        Code(unsafe { close(self.handle.as_ptr()) })
    }

    /// Notes that a call of the table itself has closed the handle, so that nobody closes it again.
    pub fn set_closed(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Turns the answer of a call that has just returned on this thread into a result.
    #[inline]
    pub(crate) fn check(&self, code: i32) -> Result<()> {
        outrigger_locks::calls_driver();
        if code == Code::OK.0 {
            Ok(())
        } else {
            Err(self.failed(Code(code)))
        }
    }

    /// The error of a call that has just failed on this thread.
    #[cold]
    pub(crate) fn failed(&self, code: Code) -> Error {
        // SAFETY: called right after the failed call, before any other of this thread.
        Error::new(code, unsafe { last_error(&self.table) })
    }
}

impl fmt::Debug for RawDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawDriver")
            .field("name", &self.table.name)
            .field("handle", &self.handle)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::NonNull;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Level, Metadata, Subscriber};

    use super::RawDriver;
    use crate::table::Table;
    use crate::{host, sys};

    /// A listener that counts warnings.
    struct Warnings(Arc<AtomicU32>);

    impl Subscriber for Warnings {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target() == "outrigger::device" && *metadata.level() == Level::WARN
        }
        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }
        fn record(&self, _: &Id, _: &Record<'_>) {}
        fn record_follows_from(&self, _: &Id, _: &Id) {}
        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn enter(&self, _: &Id) {}
        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn a_table_of_another_major_is_told_of_once() {
        let count = Arc::new(AtomicU32::new(0));
        tracing::subscriber::with_default(Warnings(Arc::clone(&count)), || {
            // SAFETY: the host driver has this table, which lives as long as the process.
            let mut native: sys::otr_native_queue_api = unsafe {
                let record =
                    sys::find_record(host::api("").next, sys::OTR_EXT_NATIVE_QUEUE).unwrap();
                record.unwrap().cast().read()
            };
            native.major += 1;
            let api = sys::otr_driver_api {
                next: &raw const native.ext,
                ..*host::api("")
            };
            // SAFETY: the table of the host driver, with a chain of its own; both outlive the drivers.
            unsafe {
                let below = RawDriver::open(Table::read(&api).unwrap(), None, None).unwrap();
                let handle = NonNull::new(below.handle()).unwrap();
                let above = RawDriver::from_parts(&api, handle, None).unwrap();
                assert!(above.native_queue().is_none());
                above.set_closed();
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}
