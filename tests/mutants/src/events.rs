//! Defects of events: points, waits, failures and times.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use outrigger_device::{Code, NO_OUTCOME};
use parking_lot::Mutex;

use crate::calls::{Numbers, around, change, is_failure, key, submit};
use crate::mutant::{mutants, types::*};

mutants! {
    /// An event answers that it was reached before it was.
    event_query_early [R21] (()) {
        event_query(self, next, event, outcome) {
            change(next.event_query(event, outcome), outcome, |told| match Code(told) {
                Code::NOT_READY => Code::OK.0,
                _ => told,
            })
        }
    }

    /// Waiting for an event returns before it was reached.
    event_synchronize_early [R21] (()) {
        event_synchronize(self, next, event, outcome) {
            let code = next.event_query(event, outcome);
            if code != Code::OK.0 || (*outcome).code != Code::NOT_READY.0 {
                return next.event_synchronize(event, outcome);
            }
            (*outcome).code = Code::OK.0;
            code
        }
    }

    /// Queues do not wait for events.
    wait_ignored [R24] (()) {
        queue_wait_event(self, next, queue, event) {
            if event.is_null() { next.queue_wait_event(queue, event) } else { Code::OK.0 }
        }
    }

    /// Every fourth wait for an event is lost.
    wait_sometimes_ignored [R24] (AtomicU64) {
        queue_wait_event(self, next, queue, event) {
            if !event.is_null() && self.state.fetch_add(1, Ordering::Relaxed) % 4 == 3 {
                return Code::OK.0;
            }
            next.queue_wait_event(queue, event)
        }
    }

    /// A queue does not wait for events that were recorded on another device.
    wait_across_devices_ignored [R24] (Numbers) {
        queue_create(self, next, driver, device, params, queue) {
            let code = next.queue_create(driver, device, params, queue);
            if code == Code::OK.0 {
                self.state.put(key(*queue), device.into());
            }
            code
        }
        event_record(self, next, event, queue) {
            if let Some(device) = self.state.get(key(queue)) {
                self.state.put(event.addr(), device);
            }
            next.event_record(event, queue)
        }
        queue_wait_event(self, next, queue, event) {
            if let Some(device) = self.state.get(event.addr())
                && self.state.get(key(queue)) != Some(device)
            {
                return Code::OK.0;
            }
            next.queue_wait_event(queue, event)
        }
    }

    /// A wait blocks the caller until the event was reached.
    wait_blocks_the_caller [R24] (()) {
        queue_wait_event(self, next, queue, event) {
            let code = next.queue_wait_event(queue, event);
            let mut outcome = NO_OUTCOME;
            while code == Code::OK.0
                && next.event_query(event, &mut outcome) == Code::OK.0
                && outcome.code == Code::NOT_READY.0
            {
                std::thread::yield_now();
            }
            code
        }
    }

    /// Waits that were made follow the event to where it is recorded next.
    wait_follows_the_event [R21] (Arc<Mutex<HashSet<usize>>>) {
        event_create(self, next, driver, device, params, event) {
            let code = next.event_create(driver, device, params, event);
            if code == Code::OK.0 {
                self.state.lock().insert((*event).addr());
            }
            code
        }
        event_destroy(self, next, event) {
            self.state.lock().remove(&event.addr());
            next.event_destroy(event)
        }
        queue_wait_event(self, next, queue, event) {
            let query = next.raw().api().event_query;
            let (live, event_key) = (Arc::clone(&self.state), event.expose_provenance());
            let Some(query) = query.filter(|_| live.lock().contains(&event_key)) else {
                return next.queue_wait_event(queue, event);
            };
            submit(next, queue, 0, move |upstream| loop {
                let live = live.lock();
                let mut outcome = NO_OUTCOME;
                outcome.code = Code::OK.0;
                if live.contains(&event_key) {
                    let event = std::ptr::with_exposed_provenance_mut(event_key);
                    // SAFETY: it cannot be destroyed while the lock is held. That host calls must not
                    // call the driver is what `host` asks of its host; it bears a query.
                    query(event, &mut outcome);
                }
                drop(live);
                if outcome.code != Code::NOT_READY.0 {
                    return if upstream == 0 { outcome.code } else { upstream };
                }
                std::thread::yield_now();
            })
        }
    }

    /// An event that was never recorded counts as pending.
    unrecorded_event_pending [R22] (Mutex<HashSet<usize>>) {
        event_record(self, next, event, queue) {
            self.state.lock().insert(event.addr());
            next.event_record(event, queue)
        }
        event_destroy(self, next, event) {
            self.state.lock().remove(&event.addr());
            next.event_destroy(event)
        }
        event_query(self, next, event, outcome) {
            change(next.event_query(event, outcome), outcome, |told| match told {
                0 if !self.state.lock().contains(&event.addr()) => Code::NOT_READY.0,
                told => told,
            })
        }
    }

    /// An event whose work failed answers that all went well.
    event_failure_lost [R23] (()) {
        event_query(self, next, event, outcome) {
            let code = next.event_query(event, outcome);
            change(code, outcome, |told| if is_failure(told) { Code::OK.0 } else { told })
        }
        event_synchronize(self, next, event, outcome) {
            let code = next.event_synchronize(event, outcome);
            change(code, outcome, |told| if is_failure(told) { Code::OK.0 } else { told })
        }
    }

    /// An event reports its failure once only.
    event_failure_once [R23] (Mutex<HashSet<usize>>) {
        event_record(self, next, event, queue) {
            self.state.lock().remove(&event.addr());
            next.event_record(event, queue)
        }
        event_query(self, next, event, outcome) {
            let code = next.event_query(event, outcome);
            change(code, outcome, |told| {
                if is_failure(told) && !self.state.lock().insert(event.addr()) { Code::OK.0 } else { told }
            })
        }
        event_synchronize(self, next, event, outcome) {
            let code = next.event_synchronize(event, outcome);
            change(code, outcome, |told| {
                if is_failure(told) && !self.state.lock().insert(event.addr()) { Code::OK.0 } else { told }
            })
        }
    }

    /// When a queue has reported its failure, events have forgotten it.
    event_failure_cleared_with_queue [R23] (AtomicBool) {
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            if code == Code::OK.0 && is_failure((*outcome).code) {
                self.state.store(true, Ordering::Relaxed);
            }
            code
        }
        event_query(self, next, event, outcome) {
            let code = next.event_query(event, outcome);
            change(code, outcome, |told| {
                if is_failure(told) && self.state.load(Ordering::Relaxed) { Code::OK.0 } else { told }
            })
        }
    }

    /// A wait for an event that has failed does not make the queue fail.
    wait_ignores_failure [R24] (()) {
        queue_wait_event(self, next, queue, event) {
            // Given the time to be reached, as it has in any test of this.
            std::thread::sleep(std::time::Duration::from_millis(5));
            let mut outcome = NO_OUTCOME;
            if next.event_query(event, &mut outcome) == Code::OK.0 && is_failure(outcome.code) {
                return Code::OK.0;
            }
            next.queue_wait_event(queue, event)
        }
    }

    /// A queue that fails by an event has a code of its own instead of the event's.
    wait_changes_the_code [R24] (Numbers) {
        host_call(self, next, queue, call) {
            let (own, at) = (self.state.clone(), key(queue));
            around(next, queue, call, move |original, upstream| {
                let code = original(upstream);
                if code != 0 && upstream == 0 {
                    own.put(at, code.into());
                }
                code
            })
        }
        queue_synchronize(self, next, queue, outcome) {
            let code = next.queue_synchronize(queue, outcome);
            let own = self.state.take(key(queue));
            change(code, outcome, |told| {
                if is_failure(told) && own.is_none() { Code::CANCELLED.0 } else { told }
            })
        }
    }

    /// A second record of an event is ignored.
    recorded_once_only [R21] (Mutex<HashSet<usize>>) {
        event_record(self, next, event, queue) {
            if self.state.lock().contains(&event.addr()) && !queue.is_null() {
                return Code::OK.0;
            }
            let code = next.event_record(event, queue);
            if code == Code::OK.0 {
                self.state.lock().insert(event.addr());
            }
            code
        }
        event_destroy(self, next, event) {
            self.state.lock().remove(&event.addr());
            next.event_destroy(event)
        }
    }

    /// Times of events run backwards.
    event_time_backwards [R21] (()) {
        event_time(self, next, event, outcome, nanoseconds) {
            let code = next.event_time(event, outcome, nanoseconds);
            if code == Code::OK.0 && (*outcome).code == Code::OK.0 {
                *nanoseconds = (1 << 62) - *nanoseconds;
            }
            code
        }
    }

    /// The time of an event is that of the question.
    event_time_of_now [R21] (Mutex<HashMap<usize, usize>>) {
        event_create(self, next, driver, device, params, event) {
            let code = next.event_create(driver, device, params, event);
            if code == Code::OK.0 {
                self.state.lock().insert((*event).addr(), driver.expose_provenance());
            }
            code
        }
        event_time(self, next, event, outcome, nanoseconds) {
            let code = next.event_time(event, outcome, nanoseconds);
            let driver = self.state.lock().get(&event.addr()).copied();
            match driver {
                Some(driver) if code == Code::OK.0 && (*outcome).code == Code::OK.0 => {
                    next.device_time(std::ptr::with_exposed_provenance_mut(driver), 0, nanoseconds)
                }
                _ => code,
            }
        }
    }
}
