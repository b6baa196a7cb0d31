//! Wraps host calls, changes outcomes, and keeps what mutants remember of queues. This module has no defect itself.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::Arc;

use outrigger_device::{Code, NO_OUTCOME, params, sys};
use outrigger_layers::Next;
use parking_lot::Mutex;

use crate::Shared;

/// The host's function, to be called with an upstream code.
pub(crate) type Original = Arc<dyn Fn(i32) -> i32 + Send + Sync>;

pub(crate) fn key(queue: *mut sys::otr_queue) -> usize {
    queue.expose_provenance()
}

/// Submits a host call with something around it, which is given the host's function and the upstream
/// code. A NULL function is left to the driver below, which refuses it.
///
/// The surroundings of the call are kept until the process ends, since a graph may call it again.
///
/// # Safety
/// That of `host_call`.
pub(crate) unsafe fn around(
    next: &Next,
    queue: *mut sys::otr_queue,
    call: &sys::otr_host_call,
    body: impl Fn(&Original, i32) -> i32 + Send + Sync + 'static,
) -> i32 {
    // SAFETY: the closure is called by the body, once for each time that the driver calls it (R27).
    let original = unsafe { callable(call) };
    let Some(original) = original else {
        // SAFETY: R27: the function is called exactly once, with what was given for it.
        return unsafe { next.host_call(queue, call) };
    };
    // SAFETY: R8: the host destroys no queue that a call uses.
    unsafe {
        submit(next, queue, call.flags, move |upstream| {
            body(&original, upstream)
        })
    }
}

/// The host's function as a closure; `None` for NULL.
///
/// # Safety
/// That of `host_call`: whoever calls the closure does what R27 says.
pub(crate) unsafe fn callable(call: &sys::otr_host_call) -> Option<Original> {
    let function = call.function?;
    let user = Shared(call.user);
    Some(Arc::new(move |upstream| {
        let user = user;
        // SAFETY: whoever calls the closure does what R27 says.
        unsafe { function(user.0, upstream) }
    }))
}

/// A closure behind a thin pointer.
struct Body(Box<dyn Fn(i32) -> i32 + Send + Sync>);

/// Submits a closure as a host call; it is kept until the process ends.
///
/// # Safety
/// The queue is one of the driver below.
pub(crate) unsafe fn submit(
    next: &Next,
    queue: *mut sys::otr_queue,
    flags: u32,
    body: impl Fn(i32) -> i32 + Send + Sync + 'static,
) -> i32 {
    let body = Box::leak(Box::new(Body(Box::new(body))));
    // SAFETY: R8: the host destroys no queue that a call uses; the closure lives for ever.
    unsafe {
        let call = params::host_call(Some(run), (&raw mut *body).cast(), flags);
        next.host_call(queue, &call)
    }
}

unsafe extern "C" fn run(body: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: `submit` gave a closure that lives for ever.
    let body = unsafe { &*body.cast::<Body>() };
    (body.0)(upstream)
}

/// A set of queues, shared with host calls.
#[derive(Clone, Default)]
pub(crate) struct Queues(Arc<Mutex<HashSet<usize>>>);

impl Queues {
    pub(crate) fn put(&self, queue: usize) {
        self.0.lock().insert(queue);
    }

    pub(crate) fn take(&self, queue: usize) -> bool {
        self.0.lock().remove(&queue)
    }

    pub(crate) fn has(&self, queue: usize) -> bool {
        self.0.lock().contains(&queue)
    }
}

/// A number for each queue or other handle, shared with host calls.
#[derive(Clone, Default)]
pub(crate) struct Numbers(Arc<Mutex<HashMap<usize, i64>>>);

impl Numbers {
    pub(crate) fn put(&self, key: usize, number: i64) {
        self.0.lock().insert(key, number);
    }

    pub(crate) fn take(&self, key: usize) -> Option<i64> {
        self.0.lock().remove(&key)
    }

    pub(crate) fn get(&self, key: usize) -> Option<i64> {
        self.0.lock().get(&key).copied()
    }
}

/// Changes the code of an outcome, where the call with this code has given one. Gives the code of the call.
///
/// # Safety
/// The call was given the outcome.
pub(crate) unsafe fn change(
    code: i32,
    outcome: *mut sys::otr_outcome,
    change: impl FnOnce(i32) -> i32,
) -> i32 {
    if code == Code::OK.0 {
        // SAFETY: this function's contract: a call that succeeds has written it.
        unsafe { (*outcome).code = change((*outcome).code) };
    }
    code
}

/// Whether the code of an outcome says that work failed.
pub(crate) fn is_failure(code: i32) -> bool {
    code != Code::OK.0 && code != Code::NOT_READY.0
}

/// Whether a queue has work that is to finish.
///
/// # Safety
/// The queue is NULL or live.
pub(crate) unsafe fn is_busy(next: &Next, queue: *mut sys::otr_queue) -> bool {
    let mut outcome = NO_OUTCOME;
    // SAFETY: this function's contract, and a place for the outcome.
    let code = unsafe { next.queue_query(queue, &mut outcome) };
    code == Code::OK.0 && outcome.code == Code::NOT_READY.0
}
