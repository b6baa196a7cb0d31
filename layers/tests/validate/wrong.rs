//! A layer that makes of a right driver a wrong one.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outrigger_device::{Code, params, sys};
use outrigger_layers::{Layer, Next, fail};

/// The fault of a wrong driver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Wrong {
    OutputOnFailure,
    OutcomeOnFailure,
    UnreadyAnswer,
    NoText,
    Overlap,
    Misaligned,
    TooFar,
    EarlyQuery,
    EarlyEvent,
    LostFailure,
    OtherFailure,
    EventWithoutFailure,
    UnrecordedEvent,
    TwoCalls,
    FalseUpstream,
    ReorderedCalls,
    IgnoredWait,
    ZeroCopy,
    OddFill,
    RecordingAnswers,
    Granularity,
    Backwards,
}

/// A driver that is wrong in one way.
pub(super) struct WrongDriver {
    wrong: Wrong,
    /// The last allocation.
    last: AtomicU64,
    /// A host call that is held back.
    held: Mutex<Option<(sys::otr_host_fn, usize)>>,
    /// Whether it writes too far by now.
    pub(super) armed: Arc<AtomicBool>,
}

impl WrongDriver {
    pub(super) fn new(wrong: Wrong) -> Self {
        Self {
            wrong,
            last: AtomicU64::new(0),
            held: Mutex::new(None),
            armed: Arc::default(),
        }
    }

    fn is(&self, wrong: Wrong) -> bool {
        self.wrong == wrong
    }
}

type Call = (unsafe extern "C" fn(*mut c_void, i32) -> i32, *mut c_void);

/// # Safety
/// `user` is a boxed [`Call`].
unsafe extern "C" fn twice(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: `user` is a boxed `Call`; R27: this runs once.
    let (function, user) = *unsafe { Box::from_raw(user.cast::<Call>()) };
    // SAFETY: this is what a wrong driver does; the layer above bears it.
    unsafe {
        function(user, upstream);
        function(user, upstream)
    }
}

/// # Safety
/// `user` is a boxed [`Call`].
unsafe extern "C" fn all_is_well(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: `user` is a boxed `Call`; R27: this runs once.
    let (function, user) = *unsafe { Box::from_raw(user.cast::<Call>()) };
    // SAFETY: the function takes any code.
    unsafe { function(user, 0) };
    upstream
}

impl Layer for WrongDriver {
    fn error_text(&self, next: &Next) -> Option<CString> {
        if self.is(Wrong::NoText) {
            None
        } else {
            next.last_error()
        }
    }

    unsafe fn memory_alloc(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        params: *const sys::otr_memory_params,
        address: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the output is writable.
        unsafe {
            let code = next.memory_alloc(driver, device, params, address);
            match self.wrong {
                Wrong::OutputOnFailure if code != 0 => *address = 77,
                Wrong::Misaligned if code == 0 => *address += 8,
                Wrong::Overlap if code == 0 => {
                    let last = self.last.swap(*address, Ordering::Relaxed);
                    if last != 0 {
                        *address = last + 64;
                    }
                }
                _ => {}
            }
            code
        }
    }

    unsafe fn device_properties(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        properties: *mut sys::otr_device_properties,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments; a write behind the struct hits only the layer's own copy.
        unsafe {
            let code = next.device_properties(driver, device, properties);
            if self.is(Wrong::TooFar) && self.armed.load(Ordering::Relaxed) {
                *properties.add(1).cast::<u8>() = 1;
            }
            code
        }
    }

    unsafe fn queue_query(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the outcome is writable.
        unsafe {
            let code = next.queue_query(queue, outcome);
            match (self.wrong, Code(code), Code((*outcome).code)) {
                (Wrong::EarlyQuery, Code::OK, Code::NOT_READY) => (*outcome).code = 0,
                (Wrong::OutcomeOnFailure, Code::CAPTURE, _) => (*outcome).code = 0,
                (Wrong::RecordingAnswers, Code::CAPTURE, _) => return 0,
                (Wrong::UnreadyAnswer, Code::OK, Code::NOT_READY) => return Code::NOT_READY.0,
                _ => {}
            }
            code
        }
    }

    unsafe fn queue_synchronize(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the outcome is writable.
        unsafe {
            let code = next.queue_synchronize(queue, outcome);
            match (self.wrong, code, Code((*outcome).code)) {
                (_, 0, Code::OK) => {}
                (Wrong::LostFailure, 0, _) => (*outcome).code = 0,
                (Wrong::OtherFailure, 0, _) => (*outcome).code = Code::CANCELLED.0,
                _ => {}
            }
            code
        }
    }

    unsafe fn queue_wait_event(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        event: *mut sys::otr_drv_event,
    ) -> i32 {
        if self.is(Wrong::IgnoredWait) {
            return 0;
        }
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe { next.queue_wait_event(queue, event) }
    }

    unsafe fn event_query(
        &self,
        next: &Next,
        event: *mut sys::otr_drv_event,
        outcome: *mut sys::otr_outcome,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the outcome is writable.
        unsafe {
            let code = next.event_query(event, outcome);
            let told = &mut (*outcome).code;
            match (self.wrong, Code(*told)) {
                (Wrong::EarlyEvent, Code::NOT_READY) => *told = 0,
                (Wrong::EventWithoutFailure, Code::EXECUTION) => *told = 0,
                (Wrong::UnrecordedEvent, Code::OK) => *told = Code::NOT_READY.0,
                _ => {}
            }
            code
        }
    }

    unsafe fn copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        copy: *const sys::otr_copy,
    ) -> i32 {
        // SAFETY: R26: both ranges stay valid until the copy has finished; the tests copy with parameters.
        unsafe {
            if self.is(Wrong::ZeroCopy) && (*copy).size == 0 {
                return fail(Code::INVALID_ARGUMENT, "nothing to copy");
            }
            next.copy(queue, copy)
        }
    }

    unsafe fn fill(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        fill: *const sys::otr_fill,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on; the tests fill with parameters.
        unsafe {
            if self.is(Wrong::OddFill) && (*fill).pattern_size == 3 {
                return 0;
            }
            next.fill(queue, fill)
        }
    }

    unsafe fn host_call(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        host_call: *const sys::otr_host_call,
    ) -> i32 {
        let wrapper: sys::otr_host_fn = match self.wrong {
            Wrong::TwoCalls => Some(twice),
            Wrong::FalseUpstream => Some(all_is_well),
            _ => None,
        };
        // SAFETY: R27: what is boxed is called once.
        unsafe {
            let (function, user) = ((*host_call).function, (*host_call).user);
            let flags = (*host_call).flags;
            let below =
                |function, user| next.host_call(queue, &params::host_call(function, user, flags));
            if let (Some(wrapper), Some(function)) = (wrapper, function) {
                let call: Call = (function, user);
                return below(Some(wrapper), Box::into_raw(Box::new(call)).cast());
            }
            if self.is(Wrong::ReorderedCalls) {
                let mut held = self.held.lock().unwrap();
                let Some((first, data)) = held.take() else {
                    *held = Some((function, user.expose_provenance()));
                    return 0;
                };
                below(function, user);
                return below(first, std::ptr::with_exposed_provenance_mut(data));
            }
            below(function, user)
        }
    }

    unsafe fn virtual_granularity(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        bytes: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe {
            let code = next.virtual_granularity(driver, device, bytes);
            if self.is(Wrong::Granularity) {
                *bytes += 1;
            }
            code
        }
    }

    unsafe fn device_time(
        &self,
        next: &Next,
        driver: *mut sys::otr_driver,
        device: u32,
        nanoseconds: *mut u64,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        unsafe {
            let code = next.device_time(driver, device, nanoseconds);
            if self.is(Wrong::Backwards) {
                *nanoseconds = u64::MAX - *nanoseconds;
            }
            code
        }
    }
}
