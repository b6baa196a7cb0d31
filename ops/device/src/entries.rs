//! Entries of a table that stand in front of the driver's, because a queue may record. Each costs two loads while no queue
//! does.
//!
//! The functions get no pointer that leads to the driver that is open, so each slot has functions of its own.

use std::ffi::{c_char, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use outrigger_device::{Code, RawDriver, sys};

use crate::call::Result;
use crate::recording::Recorder;
use crate::seen;
use crate::slots::{SLOTS, library, say, say_nothing};

/// The recorder of each slot's driver, while it is open.
static RECORDERS: [AtomicPtr<Recorder>; SLOTS] = [const { AtomicPtr::new(null_mut()) }; SLOTS];

/// Tells the entries of a slot what they stand in front of; NULL when the driver is gone.
pub(crate) fn set(slot: usize, recorder: *const Recorder) {
    RECORDERS[slot].store(recorder.cast_mut(), Ordering::Relaxed);
}

#[inline]
fn recorder(slot: usize) -> Option<&'static Recorder> {
    // SAFETY: the recorder lives while the driver is open, and with it all calls of its table. The host got the table from
    // a thread that had written the pointer.
    unsafe { RECORDERS[slot].load(Ordering::Relaxed).as_ref() }
}

macro_rules! entries {
    ($($name:ident($($argument:ident: $type:ty),*) = $instead:path, $alone:expr $(, $outcome:ident)?;)*) => {
        /// Entries of a driver.
        #[derive(Clone, Copy)]
        pub(crate) struct Calls {
            $(pub(crate) $name: unsafe extern "C" fn($($type),*) -> i32,)*
        }

        const fn of_slot<const SLOT: usize>() -> Calls {
            Calls { $($name: $name::<SLOT>),* }
        }

        $(unsafe extern "C" fn $name<const SLOT: usize>($($argument: $type),*) -> i32 {
            let Some(recorder) = recorder(SLOT) else {
                return Code::INVALID_HANDLE.0;
            };
            // Calls that make or destroy objects are always seen.
            let code = if $alone && recorder.is_idle() {
                // SAFETY: the host's arguments.
                unsafe { (recorder.calls.$name)($($argument),*) }
            } else {
                // SAFETY: as above.
                answer(SLOT, unsafe { $instead(recorder, $($argument),*) })
            };
            $(if code == Code::OK.0 && recorder.has_split() {
                // SAFETY: the call has written the outcome.
                unsafe { hide_number($outcome) };
            })?
            code
        })*
    };
}

type Driver = *mut sys::otr_driver;
type Queue = *mut sys::otr_queue;
type Event = *mut sys::otr_drv_event;
type Outcome = *mut sys::otr_outcome;
type Module = *mut sys::otr_drv_module;
type Kernel = *mut sys::otr_drv_kernel;

entries! {
    queue_query(queue: Queue, outcome: Outcome) = seen::queue_query, true, outcome;
    queue_synchronize(queue: Queue, outcome: Outcome) = seen::queue_synchronize, true, outcome;
    queue_wait_event(queue: Queue, event: Event) = seen::queue_wait_event, true;
    event_destroy(event: Event) = seen::event_destroy, true;
    event_record(event: Event, queue: Queue) = seen::event_record, true;
    event_query(event: Event, outcome: Outcome) = seen::event_query, true, outcome;
    event_synchronize(event: Event, outcome: Outcome) = seen::event_synchronize, true, outcome;
    event_time(event: Event, outcome: Outcome, nanoseconds: *mut u64) = seen::event_time, true, outcome;
    copy(queue: Queue, copy: *const sys::otr_copy) = seen::copy, true;
    fill(queue: Queue, fill: *const sys::otr_fill) = seen::fill, true;
    host_call(queue: Queue, call: *const sys::otr_host_call) = seen::host_call, true;
    peer_copy(queue: Queue, copy: *const sys::otr_copy) = seen::peer_copy, true;
    launch(queue: Queue, kernel: Kernel, launch: *const sys::otr_launch) = seen::launch, true;
    queue_create(driver: Driver, device: u32, params: *const sys::otr_queue_params, place: *mut Queue)
        = seen::queue_create, false;
    queue_destroy(queue: Queue) = seen::queue_destroy, false;
    native_handle(queue: Queue, native: *mut u64) = seen::native_handle, true;
    native_adopt(driver: Driver, device: u32, native: u64, place: *mut Queue) = seen::native_adopt, false;
    module_load(driver: Driver, device: u32, format: u32, code: *const c_void, size: usize, options: *const c_char,
        place: *mut Module) = seen::module_load, false;
    module_unload(module: Module) = seen::module_unload, false;
    module_binary(module: Module, binary: *mut c_void, size: *mut u64) = seen::module_binary, false;
    kernel_get(module: Module, name: *const c_char, place: *mut Kernel) = seen::kernel_get, false;
}

/// Takes the number of the command out of the outcome of work that failed: the driver counts the parts of launches of graphs
/// too, and the host does not.
///
/// # Safety
/// The outcome was written.
#[cold]
unsafe fn hide_number(outcome: Outcome) {
    // SAFETY: this function's contract.
    unsafe {
        if !matches!(Code((*outcome).code), Code::OK | Code::NOT_READY) {
            (*outcome).submission = 0;
        }
    }
}

/// The code of a call that a recording has looked at.
fn answer(slot: usize, outcome: Result<i32>) -> i32 {
    match outcome {
        Ok(code) => say_nothing(code),
        Err(refusal) => match library(slot) {
            Some(library) => say(slot, &library, refusal.code, &refusal.text),
            None => refusal.code.0,
        },
    }
}

macro_rules! all_slots {
    ($($slot:literal)*) => {
        static CALLS: [Calls; SLOTS] = [$(of_slot::<$slot>()),*];
    };
}
all_slots! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
}

impl Calls {
    /// The entries of a driver. `None` if it lacks one without which there are no graphs. What it lacks besides is never
    /// called, since the table over it lacks it too.
    pub(crate) fn below(api: &sys::otr_driver_api, raw: &RawDriver) -> Option<Self> {
        let kernel = raw.kernel()?;
        Some(Self {
            queue_query: api.queue_query?,
            queue_synchronize: api.queue_synchronize?,
            queue_wait_event: api.queue_wait_event?,
            event_destroy: api.event_destroy?,
            event_record: api.event_record?,
            event_query: api.event_query?,
            event_synchronize: api.event_synchronize?,
            event_time: raw
                .timing()
                .and_then(|group| group.event_time)
                .unwrap_or(absent::time),
            copy: api.copy?,
            fill: api.fill?,
            host_call: api.host_call?,
            peer_copy: raw
                .peer()
                .and_then(|group| group.copy)
                .unwrap_or(absent::copy),
            launch: kernel.launch?,
            queue_create: api.queue_create?,
            queue_destroy: api.queue_destroy?,
            native_handle: raw
                .native_queue()
                .and_then(|group| group.handle)
                .unwrap_or(absent::handle),
            native_adopt: raw
                .native_queue()
                .and_then(|group| group.adopt)
                .unwrap_or(absent::adopt),
            module_load: kernel.module_load?,
            module_unload: kernel.module_unload?,
            module_binary: kernel.module_binary.unwrap_or(absent::binary),
            kernel_get: kernel.kernel_get?,
        })
    }

    /// The entries of a slot.
    pub(crate) fn of(slot: usize) -> &'static Self {
        &CALLS[slot]
    }
}

mod absent {
    //! Functions that stand for entries which a driver does not have.

    use super::*;

    pub(super) unsafe extern "C" fn time(_: Event, _: Outcome, _: *mut u64) -> i32 {
        Code::UNSUPPORTED.0
    }

    pub(super) unsafe extern "C" fn copy(_: Queue, _: *const sys::otr_copy) -> i32 {
        Code::UNSUPPORTED.0
    }

    pub(super) unsafe extern "C" fn handle(_: Queue, _: *mut u64) -> i32 {
        Code::UNSUPPORTED.0
    }

    pub(super) unsafe extern "C" fn adopt(_: Driver, _: u32, _: u64, _: *mut Queue) -> i32 {
        Code::UNSUPPORTED.0
    }

    pub(super) unsafe extern "C" fn binary(_: Module, _: *mut c_void, _: *mut u64) -> i32 {
        Code::UNSUPPORTED.0
    }
}
