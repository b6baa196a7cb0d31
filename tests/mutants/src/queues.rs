//! Defects of queues: what they answer, when they wait, what they share, and what becomes of failures.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger_device::{Code, NO_OUTCOME, sys};
use outrigger_layers::Next;
use parking_lot::{Condvar, Mutex};

use crate::calls::{Numbers, Queues, around, callable, change, is_busy, is_failure, key, submit};
use crate::mutant::{mutants, types::*};

/// A second queue behind each, for what does not wait for the work before it.
#[derive(Default)]
pub(crate) struct Side(Mutex<HashMap<usize, (usize, usize)>>);

impl Side {
    /// # Safety
    /// That of `queue_create`.
    pub(crate) unsafe fn create(
        &self,
        next: &Next,
        driver: Driver,
        device: u32,
        params: QueueParams,
        queue: *mut Queue,
    ) -> i32 {
        let (mut side, mut event) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: R7: the host's own arguments, handed on; the places are on this stack.
        unsafe {
            let code = next.queue_create(driver, device, params, queue);
            if code == Code::OK.0
                && next.queue_create(driver, device, params, &mut side) == Code::OK.0
                && next.event_create(driver, device, std::ptr::null(), &mut event) == Code::OK.0
            {
                self.0.lock().insert(
                    key(*queue),
                    (side.expose_provenance(), event.expose_provenance()),
                );
            }
            code
        }
    }

    /// # Safety
    /// That of `queue_destroy`.
    pub(crate) unsafe fn destroy(&self, next: &Next, queue: Queue) -> i32 {
        let pair = self.0.lock().remove(&key(queue));
        // SAFETY: R8: no other call uses the queue. The other two were made for it, and are gone from the
        // table.
        unsafe {
            if let Some((side, event)) = pair {
                next.queue_destroy(handle(side));
                next.event_destroy(handle(event));
            }
            next.queue_destroy(queue)
        }
    }

    /// Submits to the second queue, and lets the first wait for that.
    ///
    /// # Safety
    /// The queue is one of the driver below.
    pub(crate) unsafe fn beside(
        &self,
        next: &Next,
        queue: Queue,
        submit: impl FnOnce(Queue) -> i32,
    ) -> i32 {
        let Some((side, event)) = self.0.lock().get(&key(queue)).copied() else {
            return submit(queue);
        };
        let code = submit(handle(side));
        if code == Code::OK.0 {
            // SAFETY: they live as long as the queue.
            unsafe {
                next.event_record(handle(event), handle(side));
                next.queue_wait_event(queue, handle(event));
            }
        }
        code
    }
}

fn handle<T>(key: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(key)
}

/// A queue that all work of a device goes to, made when it is first needed.
#[derive(Default)]
struct Common {
    queues: Mutex<HashMap<u32, usize>>,
    devices: Mutex<HashMap<usize, u32>>,
}

impl Common {
    fn of(&self, queue: Queue) -> Queue {
        let devices = self.devices.lock();
        let device = devices.get(&key(queue));
        let common = device.and_then(|device| self.queues.lock().get(device).copied());
        common.map_or(queue, handle)
    }
}

/// A door in front of each queue's work.
#[derive(Clone, Default)]
struct Doors(Arc<Mutex<HashMap<usize, Arc<Door>>>>);

#[derive(Default)]
struct Door {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Doors {
    /// Puts a door in front of what comes, unless there is one.
    ///
    /// # Safety
    /// The queue is one of the driver below.
    unsafe fn shut(&self, next: &Next, queue: Queue) {
        let mut doors = self.0.lock();
        if doors.contains_key(&key(queue)) {
            return;
        }
        let door = Arc::new(Door::default());
        doors.insert(key(queue), Arc::clone(&door));
        drop(doors);
        let body = move |upstream| {
            let mut open = door.open.lock();
            door.opened.wait_while(&mut open, |open| !*open);
            upstream
        };
        // SAFETY: R8: the host destroys no queue that a call uses.
        unsafe { submit(next, queue, 0, body) };
    }

    fn open_all(&self) {
        for (_, door) in self.0.lock().drain() {
            *door.open.lock() = true;
            door.opened.notify_all();
        }
    }
}

mutants! {
    /// A query always answers that all has finished.
    query_early [R19] (()) {
        queue_query(self, next, queue, outcome) {
            change(next.queue_query(queue, outcome), outcome, |told| match Code(told) {
                Code::NOT_READY => Code::OK.0,
                _ => told,
            })
        }
    }

    /// A query waits for the work.
    query_waits [R20] (()) {
        queue_query(self, next, queue, outcome) {
            while is_busy(next, queue) {
                std::thread::yield_now();
            }
            next.queue_query(queue, outcome)
        }
    }

    /// A query answers a failure while work is still to finish.
    query_fails_early [R20] (Numbers) {
        host_call(self, next, queue, call) {
            let (failures, at) = (self.state.clone(), key(queue));
            around(next, queue, call, move |original, upstream| {
                let code = original(upstream);
                if code != 0 && upstream == 0 {
                    failures.put(at, code.into());
                }
                code
            })
        }
        queue_query(self, next, queue, outcome) {
            let failure = self.state.get(key(queue));
            change(next.queue_query(queue, outcome), outcome, |told| {
                failure.map_or(told, |failure| failure as i32)
            })
        }
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            self.state.take(key(queue));
            code
        }
    }

    /// A query that reports a failure also clears it.
    query_clears [R20] (()) {
        queue_query(self, next, queue, outcome) {
            let code = next.queue_query(queue, outcome);
            if code == Code::OK.0 && is_failure((*outcome).code) {
                return next.queue_synchronize(queue, outcome);
            }
            code
        }
    }

    /// A failure is reported by every synchronize, not by one.
    synchronize_does_not_clear [R20] (Numbers) {
        queue_synchronize(self, next, queue, outcome) {
            let before = self.state.get(key(queue));
            change(next.queue_synchronize(queue, outcome), outcome, |told| match before {
                Some(before) => before as i32,
                None => {
                    if is_failure(told) {
                        self.state.put(key(queue), told.into());
                    }
                    told
                }
            })
        }
        queue_destroy(self, next, queue) {
            self.state.take(key(queue));
            next.queue_destroy(queue)
        }
    }

    /// Synchronize does not wait.
    synchronize_early [R18 R20] (()) {
        queue_synchronize(self, next, queue, outcome) {
            next.queue_flush(queue);
            if outcome.is_null() || !is_busy(next, queue) {
                return next.queue_synchronize(queue, outcome);
            }
            (*outcome).code = Code::OK.0;
            Code::OK.0
        }
    }

    /// Synchronize never reports a failure.
    failure_lost [R20] (()) {
        queue_synchronize(self, next, queue, outcome) {
            change(next.queue_synchronize(queue, outcome), outcome, |_| Code::OK.0)
        }
    }

    /// The last failure is reported, not the first.
    last_failure_wins [R20] (Numbers) {
        host_call(self, next, queue, call) {
            let (last, at) = (self.state.clone(), key(queue));
            around(next, queue, call, move |original, upstream| {
                let code = original(upstream);
                if code != 0 {
                    last.put(at, code.into());
                }
                code
            })
        }
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            let last = self.state.take(key(queue)).filter(|_| code == Code::OK.0);
            change(code, outcome, |told| match last {
                Some(last) if is_failure(told) => last as i32,
                _ => told,
            })
        }
    }

    /// After a failure the queue goes on with its work.
    failed_queue_goes_on [R20] (Numbers) {
        host_call(self, next, queue, call) {
            let (first, at) = (self.state.clone(), key(queue));
            around(next, queue, call, move |original, upstream| {
                let before = first.get(at).map_or(upstream, |code| code as i32);
                let code = original(before);
                if code != 0 && before == 0 {
                    first.put(at, code.into());
                }
                upstream
            })
        }
        queue_query(self, next, queue, outcome) {
            change(next.queue_query(queue, outcome), outcome, |told| match told {
                0 => self.state.get(key(queue)).map_or(0, |code| code as i32),
                told => told,
            })
        }
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            change(code, outcome, |told| self.state.take(key(queue)).map_or(told, |first| first as i32))
        }
    }

    /// A failed queue does not wait for events any more.
    failed_queue_does_not_wait [R20] (Numbers) {
        host_call(self, next, queue, call) {
            let (failed, at) = (self.state.clone(), key(queue));
            around(next, queue, call, move |original, upstream| {
                let code = original(upstream);
                if code != 0 {
                    failed.put(at, 1);
                }
                code
            })
        }
        queue_wait_event(self, next, queue, event) {
            // Given the time to fail, as it has in any test of this.
            std::thread::sleep(std::time::Duration::from_millis(5));
            if self.state.get(key(queue)).is_some() && !event.is_null() {
                return Code::OK.0;
            }
            next.queue_wait_event(queue, event)
        }
        queue_synchronize(self, next, queue, outcome) {
            self.state.take(key(queue));
            next.queue_synchronize(queue, outcome)
        }
    }

    /// Destroying a queue waits for its work.
    destroy_waits [R11] (()) {
        queue_destroy(self, next, queue) {
            if !queue.is_null() {
                next.queue_synchronize(queue, &mut { NO_OUTCOME });
            }
            next.queue_destroy(queue)
        }
    }

    /// Destroying a queue drops the host calls that have not been called.
    destroy_drops [R11 R27] (Queues) {
        queue_create(self, next, driver, device, params, queue) {
            let code = next.queue_create(driver, device, params, queue);
            if code == Code::OK.0 {
                self.state.put(key(*queue));
            }
            code
        }
        host_call(self, next, queue, call) {
            let (live, at) = (self.state.clone(), key(queue));
            around(next, queue, call, move |original, upstream| {
                if live.has(at) { original(upstream) } else { upstream }
            })
        }
        queue_destroy(self, next, queue) {
            self.state.take(key(queue));
            next.queue_destroy(queue)
        }
    }

    /// Work starts only when somebody waits, also where it was flushed.
    flush_does_nothing [R18] (Doors) {
        host_call(self, next, queue, call) {
            if callable(call).is_some() {
                self.state.shut(next, queue);
            }
            next.host_call(queue, call)
        }
        queue_synchronize(self, next, queue, outcome) {
            self.state.open_all();
            next.queue_synchronize(queue, outcome)
        }
        queue_destroy(self, next, queue) {
            self.state.open_all();
            next.queue_destroy(queue)
        }
        event_synchronize(self, next, event, outcome) {
            self.state.open_all();
            next.event_synchronize(event, outcome)
        }
    }

    /// All queues of a device are one: each waits for the others.
    queues_are_one [R17] (Common) {
        queue_create(self, next, driver, device, params, queue) {
            let code = next.queue_create(driver, device, params, queue);
            if code == Code::OK.0 {
                self.state.devices.lock().insert(key(*queue), device);
                let mut common = std::ptr::null_mut();
                let mut queues = self.state.queues.lock();
                if !queues.contains_key(&device)
                    && next.queue_create(driver, device, std::ptr::null(), &mut common) == Code::OK.0
                {
                    queues.insert(device, key(common));
                }
            }
            code
        }
        queue_destroy(self, next, queue) {
            self.state.devices.lock().remove(&key(queue));
            next.queue_destroy(queue)
        }
        close(self, next, driver) {
            for (_, common) in self.state.queues.lock().drain() {
                next.queue_destroy(handle::<sys::otr_queue>(common));
            }
            next.close(driver)
        }
        queue_query(self, next, queue, outcome) { next.queue_query(self.state.of(queue), outcome) }
        queue_synchronize(self, next, queue, outcome) {
            next.queue_synchronize(self.state.of(queue), outcome)
        }
        queue_wait_event(self, next, queue, event) {
            next.queue_wait_event(self.state.of(queue), event)
        }
        event_record(self, next, event, queue) { next.event_record(event, self.state.of(queue)) }
        copy(self, next, queue, copy) {
            next.copy(self.state.of(queue), copy)
        }
        fill(self, next, queue, fill) {
            next.fill(self.state.of(queue), fill)
        }
        host_call(self, next, queue, call) {
            next.host_call(self.state.of(queue), call)
        }
        kernel_launch(self, next, queue, kernel, launch) {
            next.kernel_launch(self.state.of(queue), kernel, launch)
        }
    }

    /// Every thousandth submission waits for the work before it.
    submission_waits [R17] (AtomicUsize) {
        host_call(self, next, queue, call) {
            let code = next.host_call(queue, call);
            if self.state.fetch_add(1, Ordering::Relaxed) % 1000 == 999 {
                while is_busy(next, queue) {
                    std::thread::yield_now();
                }
            }
            code
        }
    }
}
