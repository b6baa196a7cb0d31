//! Host calls under `validate`: each stands between the driver and the host's function. It sees when
//! and how often the driver calls it, and with which failure.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_device::{Code, sys};
use parking_lot::Mutex;

use super::books::{CallBook, Point};
use super::finding::{Finding, Side, Sink};
use super::threads::{host_call, submitting};

/// A host call that was submitted.
pub(super) struct HostCall {
    function: unsafe extern "C" fn(*mut c_void, i32) -> i32,
    user: *mut c_void,
    /// Whether what it returns is the outcome.
    can_fail: bool,
    ran: AtomicBool,
    /// Whether it has returned, so that nobody looks at it any more.
    done: AtomicBool,
    /// The place of the call among those of its queue; `None` in a graph, which calls it once for each
    /// launch.
    place: Option<Place>,
    /// The driver that must not be called from the call.
    driver: usize,
    sink: Sink,
}

struct Place {
    number: u64,
    queue: u32,
    book: Arc<Mutex<CallBook>>,
    needs: Vec<Point>,
}

// SAFETY: R27: a host call may run on any thread with its pointer.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

/// Host calls. They are kept for a while after they ran, because a wrong driver may call them again.
#[derive(Default)]
pub(super) struct HostCalls(Mutex<VecDeque<Arc<HostCall>>>);

impl HostCalls {
    /// Makes the host call for the driver, with its data. In a queue that does not record, the call takes
    /// its place among those of the queue.
    pub(super) fn make(
        &self,
        (function, user, flags): (
            unsafe extern "C" fn(*mut c_void, i32) -> i32,
            *mut c_void,
            u32,
        ),
        queue: Option<(u32, &Arc<Mutex<CallBook>>)>,
        driver: usize,
        sink: &Sink,
    ) -> (sys::otr_host_fn, *mut c_void) {
        const KEPT: usize = 4096;
        let place = queue.map(|(queue, book)| {
            let mut open = book.lock();
            open.submitted += 1;
            Place {
                number: open.submitted - 1,
                queue,
                needs: open.needs.clone(),
                book: Arc::clone(book),
            }
        });
        let call = Arc::new(HostCall {
            function,
            user,
            can_fail: flags & sys::OTR_HOST_CALL_CANNOT_FAIL == 0,
            ran: AtomicBool::new(false),
            done: AtomicBool::new(false),
            place,
            driver,
            sink: Arc::clone(sink),
        });
        let pointer = Arc::as_ptr(&call).cast_mut().cast();
        let mut calls = self.0.lock();
        calls.push_back(call);
        // Calls that never ran, and those that a graph may make again, are kept as long as the driver.
        let over = |call: &Arc<HostCall>| call.place.is_some() && call.done.load(Ordering::Acquire);
        if calls.len() > KEPT && calls.front().is_some_and(over) {
            calls.pop_front();
        }
        (Some(run), pointer)
    }

    /// Takes back the last call of a queue, which the driver refused.
    pub(super) fn refused(&self, pointer: *mut c_void) {
        let mut calls = self.0.lock();
        let refused = calls
            .iter()
            .rposition(|call| Arc::as_ptr(call).cast::<c_void>() == pointer.cast_const());
        if let Some(call) = refused.and_then(|at| calls.remove(at))
            && let Some(place) = &call.place
        {
            let mut book = place.book.lock();
            book.submitted = book.submitted.min(place.number);
        }
    }
}

/// # Safety
/// `user` is a [`HostCall`] that is kept.
unsafe extern "C" fn run(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: `user` is a `HostCall` that is kept.
    let call = unsafe { &*user.cast_const().cast::<HostCall>() };
    let report = |side, rule, text: String| {
        (call.sink)(&Finding { side, rule, text });
    };
    if let Some(place) = &call.place {
        let (number, queue) = (place.number, place.queue);
        if call.ran.swap(true, Ordering::AcqRel) {
            let text = format!("host call {number} of queue {queue} was called twice");
            report(Side::Driver, "R27", text);
            return upstream;
        }
        for need in &place.needs {
            let ran = need.book.lock().ran;
            if ran < need.calls && !Arc::ptr_eq(&need.book, &place.book) {
                let text = format!(
                    "host call {number} of queue {queue} ran before work that the queue waits for"
                );
                report(Side::Driver, "R24", text);
            }
        }
        let mut book = place.book.lock();
        if book.ran != number {
            let text = format!(
                "host call {number} of queue {queue} ran where number {} was due",
                book.ran
            );
            drop(book);
            report(Side::Driver, "R16", text);
            book = place.book.lock();
        }
        if let Some((failed, code)) = book.failure_beside(0)
            && failed < number
            && upstream == Code::OK.0
        {
            let text = format!(
                "host call {number} of queue {queue} was called with OK, after {:?}",
                Code(code)
            );
            drop(book);
            report(Side::Driver, "R20", text);
        }
    }
    if submitting(call.driver) {
        let text =
            "a host call was called within a submission, which thereby waits for it".to_owned();
        report(Side::Driver, "R17", text);
    }
    // SAFETY: the host's function and its data, as the host asked for.
    let code = host_call(call.driver, || unsafe {
        (call.function)(call.user, upstream)
    });
    if call.can_fail && code == Code::NOT_READY.0 {
        let text = "a host call returned OTR_NOT_READY, which is not an outcome".to_owned();
        report(Side::Host, "R27", text);
    }
    if let Some(place) = &call.place {
        let mut book = place.book.lock();
        book.ran = book.ran.max(place.number + 1);
        if call.can_fail && upstream == Code::OK.0 && code != Code::OK.0 && book.failure.is_none() {
            let code = match Code(code) {
                Code::NOT_READY => Code::EXECUTION.0,
                code => code.0,
            };
            book.failure = Some((place.number, code));
        }
    }
    call.done.store(true, Ordering::Release);
    code
}
