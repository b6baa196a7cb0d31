//! Calls that the layer `record` puts into the host's work: host calls around copies, and itself between the driver
//! and the host's calls.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_device::{Code, NO_OUTCOME, params, sys};
use parking_lot::Mutex;

use super::format::Record;
use super::output::{CALL, Memory, Shared};
use super::values::host_ends;
use crate::{Layer, Next};

/// Puts host calls around copies, and itself between the driver and the host's calls.
pub(super) struct Hooks {
    shared: Arc<Shared>,
    /// The queues on which graphs are being recorded, and whether an end of it has failed. It may be over then (R32).
    recordings: Mutex<HashMap<usize, bool>>,
    /// The number of these queues.
    count: AtomicUsize,
    /// Hooks of work that is kept in a graph and may run again. They live until the driver is closed.
    kept: Mutex<Vec<Kept>>,
}

/// A host call of this layer.
struct Hook {
    shared: Arc<Shared>,
    number: u64,
    what: HookKind,
    once: bool,
}

/// A hook that the driver may call as long as it is open.
struct Kept(*mut Hook);

// SAFETY: a hook may be freed on any thread.
unsafe impl Send for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`, and the driver, which is closed, calls it no more.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

enum HookKind {
    /// The host's own.
    Call(HostFn, *mut c_void, u32),
    /// The source of a copy, before it.
    Source(Memory),
    /// The destination, after it.
    Destination(Memory),
}

type HostFn = unsafe extern "C" fn(*mut c_void, i32) -> i32;

// SAFETY: R27: a host call may run on any thread with its pointer.
unsafe impl Send for Hook {}
// SAFETY: as above; it is not changed.
unsafe impl Sync for Hook {}

/// # Safety
/// `user` is a [`Hook`], which is freed here if it runs once.
unsafe extern "C" fn run(user: *mut c_void, upstream: i32) -> i32 {
    let pointer = user.cast::<Hook>();
    // SAFETY: `user` is a live `Hook`.
    let hook = unsafe { &*pointer };
    let memory = |memory: &Memory, destination| {
        if upstream == Code::OK.0 {
            // SAFETY: host memory of a copy, which the host leaves alone until it finished (R26).
            unsafe { hook.shared.data(hook.number, destination, memory) };
        }
        upstream
    };
    let code = match &hook.what {
        HookKind::Call(function, user, _) => {
            // SAFETY: the host's function and its data, which are called as the host asked for.
            let code = unsafe { function(*user, upstream) };
            hook.shared.write(&Record::Ran {
                number: hook.number,
                upstream,
                code,
            });
            code
        }
        HookKind::Source(source) => memory(source, false),
        HookKind::Destination(destination) => memory(destination, true),
    };
    if hook.once {
        // SAFETY: made by `Box::into_raw`, and called once.
        drop(unsafe { Box::from_raw(pointer) });
    }
    code
}

impl Hooks {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self {
            shared: Arc::clone(shared),
            recordings: Mutex::default(),
            count: AtomicUsize::new(0),
            kept: Mutex::default(),
        }
    }

    /// Whether a graph is being recorded, into which work may go.
    fn records(&self, next: &Next) -> bool {
        if self.count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        self.change(|recordings| {
            recordings.retain(|queue, failed| {
                let queue = std::ptr::with_exposed_provenance_mut(*queue);
                // SAFETY: `queue_destroy` takes a queue out before it goes, and the lock is held.
                let asked = || unsafe { next.queue_query(queue, &mut { NO_OUTCOME }) };
                // R33: a queue that records refuses the question.
                !*failed || asked() == Code::CAPTURE.0
            });
            !recordings.is_empty()
        })
    }

    fn change<T>(&self, body: impl FnOnce(&mut HashMap<usize, bool>) -> T) -> T {
        let mut recordings = self.recordings.lock();
        let result = body(&mut recordings);
        self.count.store(recordings.len(), Ordering::Relaxed);
        result
    }

    /// # Safety
    /// The queue is live, and what the hook names lives until it has run.
    unsafe fn submit(&self, next: &Next, queue: *mut sys::otr_queue, what: HookKind) -> i32 {
        let flags = match what {
            HookKind::Call(.., flags) => flags,
            HookKind::Source(_) | HookKind::Destination(_) => sys::OTR_HOST_CALL_CANNOT_FAIL,
        };
        let once = !self.records(next);
        let hook = Box::new(Hook {
            shared: Arc::clone(&self.shared),
            number: CALL.get(),
            what,
            once,
        });
        let pointer = Box::into_raw(hook);
        // SAFETY: `run` is called with it, once unless it is kept.
        let code =
            unsafe { next.host_call(queue, &params::host_call(Some(run), pointer.cast(), flags)) };
        if code != Code::OK.0 {
            // SAFETY: the driver did not take it (R4).
            drop(unsafe { Box::from_raw(pointer) });
        } else if !once {
            self.kept.lock().push(Kept(pointer));
        }
        code
    }
}

impl Layer for Hooks {
    unsafe fn host_call(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        host_call: *const sys::otr_host_call,
    ) -> i32 {
        // SAFETY: R27: the function is called exactly once, with what was given for it. R10: NULL, or a struct that is valid
        // during the call.
        unsafe {
            let call = host_call.as_ref();
            match call.and_then(|call| Some(HookKind::Call(call.function?, call.user, call.flags)))
            {
                Some(call) => self.submit(next, queue, call),
                None => next.host_call(queue, host_call),
            }
        }
    }

    unsafe fn copy(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        copy: *const sys::otr_copy,
    ) -> i32 {
        // SAFETY: R10: NULL, or a struct that is valid during the call. R26: both ranges stay valid until the copy has
        // finished; the hooks around it run within this time.
        unsafe {
            let (mut source, mut destination) = (None, None);
            if let Some(copy) = copy.as_ref() {
                let (host_dst, host_src) = host_ends(copy);
                let memory = |start: u64, pitch: u64| Memory {
                    start,
                    size: copy.size,
                    rows: copy.rows.max(1).into(),
                    pitch,
                };
                let there = |host: bool, start: u64| host && start != 0 && copy.size > 0;
                source = there(host_src, copy.src).then(|| memory(copy.src, copy.src_pitch));
                destination = there(host_dst, copy.dst).then(|| memory(copy.dst, copy.dst_pitch));
            }
            if let Some(source) = source {
                // Without its data the copy is recorded all the same.
                let _ = self.submit(next, queue, HookKind::Source(source));
            }
            let code = next.copy(queue, copy);
            if let (Code::OK, Some(destination)) = (Code(code), destination) {
                let _ = self.submit(next, queue, HookKind::Destination(destination));
            }
            code
        }
    }

    unsafe fn graph_record_begin(&self, next: &Next, queue: *mut sys::otr_queue) -> i32 {
        let at = queue.expose_provenance();
        // Before the call: another thread may put work into the recording at once.
        let before = self.change(|recordings| recordings.insert(at, false));
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.graph_record_begin(queue) };
        if code != Code::OK.0 {
            self.change(|recordings| match before {
                Some(failed) => recordings.insert(at, failed),
                None => recordings.remove(&at),
            });
        }
        code
    }

    unsafe fn graph_record_end(
        &self,
        next: &Next,
        queue: *mut sys::otr_queue,
        graph: *mut *mut sys::otr_drv_graph,
    ) -> i32 {
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.graph_record_end(queue, graph) };
        self.change(|recordings| {
            if code == Code::OK.0 {
                recordings.remove(&queue.addr());
            } else if let Some(failed) = recordings.get_mut(&queue.addr()) {
                // Whether it goes on is asked later: the text of this call is still wanted (R5).
                *failed = true;
            }
        });
        code
    }

    unsafe fn queue_destroy(&self, next: &Next, queue: *mut sys::otr_queue) -> i32 {
        let before = self.change(|recordings| recordings.remove(&queue.addr()));
        // SAFETY: R7: the host's own arguments, handed on.
        let code = unsafe { next.queue_destroy(queue) };
        if code != Code::OK.0
            && let Some(failed) = before
        {
            self.change(|recordings| recordings.insert(queue.addr(), failed));
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::fs::File;
    use std::sync::Arc;

    use outrigger_device::{Code, Driver, Queue, sys};

    use super::{Hooks, Shared};
    use crate::layered;
    use crate::record::Writer;

    unsafe extern "C" fn nothing(_: *mut c_void, _: i32) -> i32 {
        Code::OK.0
    }

    #[test]
    fn hooks_that_have_run_are_given_back_once_no_recording_goes_on() {
        let file = File::options().write(true).open("/dev/null").unwrap();
        let shared = Arc::new(Shared::new(Writer::new(file).unwrap()));
        let driver = Driver::open(&"host?devices=1&graphs=native".parse().unwrap()).unwrap();
        let driver = layered(driver, Hooks::new(&shared)).unwrap();
        let alone = Arc::strong_count(&shared);
        let hooks = || Arc::strong_count(&shared) - alone;
        let graphs = driver.native_graphs().unwrap();
        let (first, second) = (
            driver.queue_create(0, 0).unwrap(),
            driver.queue_create(0, 0).unwrap(),
        );
        let event = driver.event_create(0, false).unwrap();
        let call = |queue: &Queue| {
            let flags = sys::OTR_HOST_CALL_CANNOT_FAIL;
            // SAFETY: the function uses nothing.
            unsafe { queue.host_call_raw(nothing, std::ptr::null_mut(), flags) }.unwrap();
        };
        // A recording that is lost at its end (R32): it does not wait for the queue that joined.
        graphs.record_begin(&first).unwrap();
        event.record(&first).unwrap();
        second.wait_event(&event).unwrap();
        call(&second);
        // The recording does not end here: it goes on.
        assert!(graphs.record_end(&second).is_err());
        call(&first);
        assert_eq!(hooks(), 2);
        let refused = graphs.record_end(&first).unwrap_err();
        assert_eq!(refused.code(), Code::INVALID_ARGUMENT);
        call(&first);
        first.synchronize().unwrap();
        assert_eq!(hooks(), 2, "the new one has run");
        // A recording that is given up with its queue.
        graphs.record_begin(&second).unwrap();
        drop(second);
        call(&first);
        first.synchronize().unwrap();
        assert_eq!(hooks(), 2);
    }
}
