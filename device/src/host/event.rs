//! Events: the entries of the table, over copies of points. An event is a queue and a value of its
//! counter; it holds nothing that a queue would have to know of.

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use parking_lot::Mutex;

use super::command::{Command, Stamp};
use super::driver::{Host, give};
use super::fault::{Fault, answer, done};
use super::queue::Queue;
use crate::{Code, sys};

/// An event of the host.
pub(super) struct Event {
    point: Point,
    /// With timing: when the point passed. The lock also makes the two change together.
    stamp: Option<Mutex<Arc<Stamp>>>,
    host: Arc<Host>,
}

/// A queue and a value of its counter, read without a lock: a sequence lock of which the version is odd
/// while the two are written. Queues live as long as the process, so that the pointer may be followed
/// whenever it was read.
#[derive(Default)]
struct Point {
    version: AtomicU64,
    /// NULL: never recorded.
    queue: AtomicPtr<Queue>,
    value: AtomicU64,
}

impl Point {
    #[inline]
    fn read(&self) -> Option<(&'static Queue, u64)> {
        loop {
            let version = self.version.load(Ordering::Acquire);
            let queue = self.queue.load(Ordering::Relaxed);
            let value = self.value.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if version & 1 == 0 && self.version.load(Ordering::Relaxed) == version {
                // SAFETY: NULL, or a queue, which is never freed.
                return unsafe { queue.as_ref() }.map(|queue| (queue, value));
            }
            spin_loop();
        }
    }

    #[inline]
    fn write(&self, queue: &'static Queue, value: u64) {
        let version = loop {
            let version = self.version.load(Ordering::Relaxed);
            if version & 1 == 0
                && self
                    .version
                    .compare_exchange_weak(
                        version,
                        version + 1,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    )
                    .is_ok()
            {
                break version;
            }
            spin_loop();
        };
        fence(Ordering::Release);
        self.queue
            .store(std::ptr::from_ref(queue).cast_mut(), Ordering::Relaxed);
        self.value.store(value, Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }
}

/// The event behind a handle.
///
/// # Safety
/// `handle` is NULL or came from `event_create` and was not destroyed.
#[inline]
unsafe fn event<'a>(handle: *mut sys::otr_drv_event) -> Result<&'a Event, Fault> {
    // SAFETY: as the caller promises.
    unsafe { handle.cast::<Event>().as_ref() }
        .ok_or_else(|| Fault::null("the event", Code::INVALID_HANDLE))
}

/// The queue behind a handle.
///
/// # Safety
/// `handle` is NULL or came from `queue_create` and was not destroyed.
#[inline]
pub(super) unsafe fn queue(handle: *mut sys::otr_queue) -> Result<&'static Queue, Fault> {
    // SAFETY: as the caller promises; queues are never freed.
    unsafe { handle.cast::<Queue>().as_ref() }
        .ok_or_else(|| Fault::null("the queue", Code::INVALID_HANDLE))
}

pub(super) unsafe extern "C" fn create(
    driver: *mut sys::otr_driver,
    device: u32,
    flags: u32,
    place: *mut *mut sys::otr_drv_event,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        if flags & !sys::OTR_EVENT_TIMING != 0 {
            return Err(Fault::argument(format!(
                "event flags {flags:#x}; known is OTR_EVENT_TIMING ({:#x})",
                sys::OTR_EVENT_TIMING
            )));
        }
        if place.is_null() {
            return Err(Fault::null(
                "the place for the event",
                Code::INVALID_ARGUMENT,
            ));
        }
        host.events.fetch_add(1, Ordering::Relaxed);
        let event = Box::new(Event {
            point: Point::default(),
            stamp: (flags != 0).then(Mutex::default),
            host: Arc::clone(&host),
        });
        // SAFETY: not NULL, so writable.
        unsafe { give(place, Box::into_raw(event).cast()) }
    })
}

pub(super) unsafe extern "C" fn destroy(handle: *mut sys::otr_drv_event) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let event = unsafe { event(handle)? };
        event.host.events.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw` in `create`, and given back by the host; waits that were
        // submitted hold copies of the point.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(event).cast_mut()) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn record(
    handle: *mut sys::otr_drv_event,
    on: *mut sys::otr_queue,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let (event, queue) = unsafe { (event(handle)?, queue(on)?) };
        match &event.stamp {
            None => event.point.write(queue, queue.tail()),
            Some(stamp) => {
                let mut stamp = stamp.lock();
                let next = Arc::new(Stamp::default());
                let point = queue.mark(Command::Stamp {
                    stamp: Arc::clone(&next),
                })?;
                *stamp = next;
                event.point.write(queue, point);
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn query(handle: *mut sys::otr_drv_event) -> i32 {
    answer(|| {
        // SAFETY: the host's promise.
        match unsafe { event(handle)? }.point.read() {
            Some((queue, value)) => queue.query(value),
            None => Ok(Code::OK),
        }
    })
}

pub(super) unsafe extern "C" fn synchronize(handle: *mut sys::otr_drv_event) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        match unsafe { event(handle)? }.point.read() {
            Some((queue, value)) => queue.wait(value),
            None => Ok(()),
        }
    })
}

pub(super) unsafe extern "C" fn time(
    handle: *mut sys::otr_drv_event,
    nanoseconds: *mut u64,
) -> i32 {
    answer(|| {
        // SAFETY: the host's promise.
        let event = unsafe { event(handle)? };
        let Some(stamp) = &event.stamp else {
            return Err(Fault::argument(
                "the event has no timestamp: make it with OTR_EVENT_TIMING",
            ));
        };
        let stamp = stamp.lock();
        let Some((queue, value)) = event.point.read() else {
            return Err(Fault::argument(
                "the event was never recorded, so that it has no time",
            ));
        };
        match queue.query(value)? {
            Code::OK => {}
            code => return Ok(code),
        }
        // SAFETY: the host's promise: NULL or writable.
        unsafe { give(nanoseconds, stamp.time())? };
        Ok(Code::OK)
    })
}

pub(super) unsafe extern "C" fn queue_wait(
    on: *mut sys::otr_queue,
    handle: *mut sys::otr_drv_event,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let (event, queue) = unsafe { (event(handle)?, queue(on)?) };
        match event.point.read() {
            Some((other, value)) => queue.wait_for(other, value),
            None => Ok(()),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::{Point, Queue};

    #[test]
    fn a_point_is_never_read_half_written() {
        let leak = || -> &'static Queue { Box::leak(Box::new(Queue::new().unwrap())) };
        let queues = [leak(), leak()];
        let (point, over) = (Point::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for side in 0..2u64 {
                let (point, over, queue) = (&point, &over, queues[side as usize]);
                // The values of one queue are even, those of the other odd.
                scope.spawn(move || {
                    for value in 0..300_000 {
                        point.write(queue, 2 * value + side);
                    }
                    over.store(true, Ordering::Relaxed);
                });
            }
            while !over.load(Ordering::Relaxed) {
                if let Some((queue, value)) = point.read() {
                    assert!(std::ptr::eq(queue, queues[(value % 2) as usize]));
                }
            }
        });
    }
}
