//! Functions that know their library. The entries of a table that are for a driver as a whole get no pointer
//! that leads to the library, so each library has a slot with functions of its own.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::ptr::null;
use std::sync::Arc;

use outrigger_device::{Code, sys};
use parking_lot::RwLock;

use crate::entries;
use crate::graph;
use crate::group::{self, Library};

/// The most drivers with kernels at a time.
pub(crate) const SLOTS: usize = 64;

static LIBRARIES: [RwLock<Option<Arc<Library>>>; SLOTS] = [const { RwLock::new(None) }; SLOTS];

/// The library in a slot.
pub(crate) fn library(slot: usize) -> Option<Arc<Library>> {
    LIBRARIES[slot].read().clone()
}

/// A slot that is a library's until this is dropped.
pub(crate) struct Slot(usize);

impl Slot {
    /// Puts a library into a free slot; `None` if there is none.
    pub(crate) fn take(library: &Arc<Library>) -> Option<Self> {
        for (at, place) in LIBRARIES.iter().enumerate() {
            let mut place = place.write();
            if place.is_none() {
                *place = Some(Arc::clone(library));
                let recorder = library.below.recorder.as_ref();
                entries::set(at, recorder.map_or(null(), std::ptr::from_ref));
                return Some(Self(at));
            }
        }
        None
    }

    pub(crate) fn number(&self) -> usize {
        self.0
    }

    pub(crate) fn entries(&self) -> &'static Entries {
        &ENTRIES[self.0]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        entries::set(self.0, null());
        let gone = LIBRARIES[self.0].write().take();
        // Not under the lock: it may be the last owner, and modules are unloaded then.
        drop(gone);
    }
}

/// The functions of a slot.
pub(crate) struct Entries {
    pub(crate) last_error: unsafe extern "C" fn() -> *const c_char,
    pub(crate) close: unsafe extern "C" fn(*mut sys::otr_driver) -> i32,
    pub(crate) device_open:
        unsafe extern "C" fn(*mut sys::otr_driver, u32, *const sys::otr_device_params) -> i32,
    pub(crate) device_close: unsafe extern "C" fn(*mut sys::otr_driver, u32) -> i32,
    pub(crate) names:
        unsafe extern "C" fn(*mut sys::otr_driver, u32, *mut *const *const c_char, *mut u32) -> i32,
    pub(crate) prepare: unsafe extern "C" fn(
        *mut sys::otr_driver,
        u32,
        *const sys::otr_operator_call,
        *mut sys::otr_operator_answer,
        *mut *mut sys::otr_operator,
    ) -> i32,
    pub(crate) graph: sys::otr_graph_api,
}

macro_rules! entries {
    ($($slot:literal)*) => {
        static ENTRIES: [Entries; SLOTS] = [$(Entries {
            last_error: last_error::<$slot>,
            close: close::<$slot>,
            device_open: device_open::<$slot>,
            device_close: device_close::<$slot>,
            names: names::<$slot>,
            prepare: prepare::<$slot>,
            graph: graph::group::<$slot>(),
        }),*];
    };
}
entries! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
}

/// A text of ours for a thread's most recent failed call, and what the driver below said at that time.
struct Said {
    slot: usize,
    ours: CString,
    below: Option<CString>,
}

thread_local! {
    static SAID: RefCell<Option<Said>> = const { RefCell::new(None) };
    static TEXT: RefCell<CString> = RefCell::new(CString::default());
}

/// Keeps the text of a failure of ours.
pub(crate) fn say(slot: usize, library: &Library, code: Code, text: &str) -> i32 {
    let ours = CString::new(text.replace('\0', " ")).unwrap_or_default();
    let below = library.below.last_error();
    SAID.set(Some(Said { slot, ours, below }));
    code.0
}

/// The last text of the driver below is the text of the failure.
pub(crate) fn say_nothing(code: i32) -> i32 {
    SAID.set(None);
    code
}

/// The answer of the driver below, whose text is that of a failure.
fn passed_on(code: i32) -> i32 {
    match Code(code) {
        Code::OK => code,
        _ => say_nothing(code),
    }
}

/// Ours, unless the driver below has failed since: calls of its other entries do not come by here.
unsafe extern "C" fn last_error<const SLOT: usize>() -> *const c_char {
    let Some(library) = library(SLOT) else {
        return c"the driver is closed".as_ptr();
    };
    let now = library.below.last_error();
    SAID.with_borrow(|said| {
        match said {
            Some(said) if said.slot == SLOT && said.below == now => TEXT.with_borrow_mut(|text| {
                text.clone_from(&said.ours);
                text.as_ptr()
            }),
            _ => library
                .below
                .raw()
                .api()
                .last_error
                .map_or(c"".as_ptr(), |below| {
                    // SAFETY: takes nothing; the text is valid until this thread's next call (R5).
                    unsafe { below() }
                }),
        }
    })
}

unsafe extern "C" fn close<const SLOT: usize>(driver: *mut sys::otr_driver) -> i32 {
    match library(SLOT) {
        Some(library) => {
            SAID.set(None);
            // SAFETY: the host's arguments: R12, nothing uses the driver any more.
            unsafe { library.close(driver) }
        }
        None => Code::INVALID_HANDLE.0,
    }
}

unsafe extern "C" fn device_open<const SLOT: usize>(
    driver: *mut sys::otr_driver,
    device: u32,
    params: *const sys::otr_device_params,
) -> i32 {
    match library(SLOT) {
        // SAFETY: the host's arguments.
        Some(library) => passed_on(unsafe { library.open_device(driver, device, params) }),
        None => Code::INVALID_HANDLE.0,
    }
}

unsafe extern "C" fn device_close<const SLOT: usize>(
    driver: *mut sys::otr_driver,
    device: u32,
) -> i32 {
    match library(SLOT) {
        // SAFETY: the host's arguments: R8, nothing uses the device any more.
        Some(library) => passed_on(unsafe { library.close_device(driver, device) }),
        None => Code::INVALID_HANDLE.0,
    }
}

unsafe extern "C" fn names<const SLOT: usize>(
    driver: *mut sys::otr_driver,
    device: u32,
    names: *mut *const *const c_char,
    count: *mut u32,
) -> i32 {
    match library(SLOT) {
        // SAFETY: the host's arguments.
        Some(library) => unsafe { group::names(SLOT, &library, driver, device, names, count) },
        None => Code::INVALID_HANDLE.0,
    }
}

unsafe extern "C" fn prepare<const SLOT: usize>(
    driver: *mut sys::otr_driver,
    device: u32,
    call: *const sys::otr_operator_call,
    answer: *mut sys::otr_operator_answer,
    place: *mut *mut sys::otr_operator,
) -> i32 {
    match library(SLOT) {
        // SAFETY: the host's arguments.
        Some(library) => unsafe {
            group::prepare(SLOT, &library, driver, device, call, answer, place)
        },
        None => Code::INVALID_HANDLE.0,
    }
}
