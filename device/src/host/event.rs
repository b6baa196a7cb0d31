//! Events: the entries of the table. An event is a copy of a point: a queue and a value of its counter.
//! It holds nothing that a queue would have to know.

use std::collections::HashSet;
use std::ptr::NonNull;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, OnceLock};

use parking_lot::Mutex;

use super::board::{Exported, Imported};
use super::command::{Command, Stamp};
use super::driver::{Host, give, writable};
use super::exports::Handle;
use super::fault::{Fault, done, params, tell};
use super::point::Point;
use super::queue::Queue;
use super::recording::Marked;
use crate::{Code, sys};

/// All events of the process: what they name of a queue's past is kept there.
static ALL: LazyLock<Mutex<HashSet<Known>>> = LazyLock::new(Mutex::default);

#[derive(PartialEq, Eq, Hash)]
struct Known(NonNull<Event>);

// SAFETY: events are used by all threads; it is followed under the lock only, under which it is taken out before its
// event is freed.
unsafe impl Send for Known {}

/// Lets a queue forget the failures that no event and no wait names any more.
#[cold]
pub(super) fn forget_unnamed_failures(queue: &'static Queue) {
    let all = ALL.lock();
    let mut named = Vec::new();
    for known in all.iter() {
        // SAFETY: not freed, see `Known`.
        let event = unsafe { known.0.as_ref() };
        let exported = event.exported.get();
        let stamping = event.stamp.as_ref().is_some_and(Mutex::is_locked);
        if stamping || exported.is_some_and(|exported| exported.is_recording()) {
            // Its point is known to another thread only. The next failure is soon enough.
            return;
        }
        event.point.settle();
        match event.point.read() {
            Some((at, value)) if std::ptr::eq(at, queue) => named.push(value),
            _ => {}
        }
    }
    drop(all);
    queue.forget_failures(named);
}

/// An event of the host.
pub(super) struct Event {
    point: Point<Queue>,
    /// With timing: when the point passed. The lock also makes the two change together.
    stamp: Option<Mutex<Arc<Stamp>>>,
    /// In place of the point, if it was recorded last in a recording.
    marked: Marked,
    /// Where other processes see it.
    exported: OnceLock<Box<Exported>>,
    /// Where it comes from, if that is a handle. Then there is no point of this process.
    imported: Option<Imported>,
    host: Arc<Host>,
}

impl Event {
    pub(super) fn new(host: &Arc<Host>, timed: bool, imported: Option<Imported>) -> Self {
        host.events.fetch_add(1, Ordering::Relaxed);
        Self {
            point: Point::default(),
            stamp: timed.then(Mutex::default),
            marked: Marked::default(),
            exported: OnceLock::new(),
            imported,
            host: Arc::clone(host),
        }
    }

    /// An event of another process.
    pub(super) fn import(host: &Arc<Host>, handle: &Handle) -> Result<Self, Fault> {
        let imported = Imported::new(host, handle)?;
        Ok(Self::new(host, false, Some(imported)))
    }

    /// The event as the host names it.
    pub(super) fn handle(self) -> *mut sys::otr_drv_event {
        let event = NonNull::from(Box::leak(Box::new(self)));
        ALL.lock().insert(Known(event));
        event.as_ptr().cast()
    }

    /// The handle by which other processes see the event.
    pub(super) fn export(&self) -> Result<Handle, Fault> {
        if self.stamp.is_some() || self.imported.is_some() {
            return Err(Fault::new(
                Code::UNSUPPORTED,
                "an event with a timestamp, or of another process, is not exported",
            ));
        }
        self.marked.refuse("an export")?;
        // One at a time, so that no handle is given out before it leads to the newest point.
        static EXPORTING: Mutex<()> = Mutex::new(());
        let _exporting = EXPORTING.lock();
        let exported = match self.exported.get() {
            Some(exported) => exported,
            None => {
                let new = Box::new(Exported::new()?);
                self.exported.get_or_init(|| new)
            }
        };
        if exported.is_blank() {
            // A record that did not see it has moved the point by then; later ones see it.
            self.point.settle();
            exported.follow(&self.host, &self.point)?;
        }
        exported.handle(&self.host)
    }

    /// Looks at the point where the event stands; `None` if it was never recorded. Behind work that is over, and went
    /// well, it is `well`.
    #[inline(always)] // so that an answer of two words goes through no memory
    fn look<T>(
        &self,
        call: &str,
        well: T,
        look: impl Fn(&'static Queue, u64) -> Result<T, Fault>,
    ) -> Result<Option<T>, Fault> {
        if self.marked.is_set() {
            return self.marked.refuse(call).map(|()| None);
        }
        while let Some((queue, value)) = self.point.read() {
            if queue.passed(value) && !queue.has_failed() {
                return Ok(Some(well));
            }
            // Where the event was moved before the queue knew of this look, a failure there may be forgotten.
            let there = || self.stands_at(queue, value);
            if let Some(seen) = queue.keep_failures_while(there, || look(queue, value)) {
                return seen.map(Some);
            }
        }
        Ok(None)
    }

    #[cold]
    fn stands_at(&self, queue: &'static Queue, value: u64) -> bool {
        let now = self.point.read();
        now.is_some_and(|(at, now)| std::ptr::eq(at, queue) && now == value)
    }
}

/// The event and the queue of one call, which belong to one driver (R7).
///
/// # Safety
/// As of [`event`] and [`queue`].
#[inline]
unsafe fn both<'a>(
    of: *mut sys::otr_drv_event,
    on: *mut sys::otr_queue,
) -> Result<(&'a Event, &'static Queue), Fault> {
    // SAFETY: R8: no call uses an event or a queue that the host destroys, so each is NULL or live.
    let (event, queue) = unsafe { (event(of)?, queue(on)?) };
    if queue.is_of(&event.host) {
        return Ok((event, queue));
    }
    Err(foreign())
}

#[cold]
fn foreign() -> Fault {
    Fault::new(
        Code::INVALID_HANDLE,
        "the event and the queue are of two open drivers: both have to be of one",
    )
}

/// The event behind a handle.
///
/// # Safety
/// `handle` is NULL or came from `event_create` and was not destroyed.
#[inline]
pub(super) unsafe fn event<'a>(handle: *mut sys::otr_drv_event) -> Result<&'a Event, Fault> {
    // SAFETY: NULL, or from `event_create` and not destroyed.
    unsafe { handle.cast::<Event>().as_ref() }
        .ok_or_else(|| Fault::null("the event", Code::INVALID_HANDLE))
}

/// The queue behind a handle.
///
/// # Safety
/// `handle` is NULL or came from `queue_create` and was not destroyed.
#[inline]
pub(super) unsafe fn queue(handle: *mut sys::otr_queue) -> Result<&'static Queue, Fault> {
    let queue = handle.map_addr(Queue::address_of).cast::<Queue>();
    // SAFETY: NULL, or from `queue_create` or `adopt` and not destroyed; queues are never freed.
    unsafe { queue.as_ref() }.ok_or_else(|| Fault::null("the queue", Code::INVALID_HANDLE))
}

pub(super) unsafe extern "C" fn create(
    driver: *mut sys::otr_driver,
    device: u32,
    given: *const sys::otr_event_params,
    place: *mut *mut sys::otr_drv_event,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        let flags = match given.is_null() {
            true => 0,
            // SAFETY: R1: a struct of the size that stands in it.
            false => unsafe { params(given, "the parameters of the event")? }.flags,
        };
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
        let event = Event::new(&host, flags != 0, None);
        // SAFETY: not NULL, so writable.
        unsafe { give(place, event.handle()) }
    })
}

pub(super) unsafe extern "C" fn destroy(handle: *mut sys::otr_drv_event) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses an event that the host destroys, so it is NULL or live.
        let event = unsafe { event(handle)? };
        event.host.events.fetch_sub(1, Ordering::Relaxed);
        if let Some(exported) = event.exported.get() {
            exported.forget(&event.host);
        }
        ALL.lock().remove(&Known(NonNull::from(event)));
        // SAFETY: leaked in `handle`, and given back by the host; waits that were submitted hold copies of
        // the point.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(event).cast_mut()) });
        Ok(())
    })
}

pub(super) unsafe extern "C" fn record(
    handle: *mut sys::otr_drv_event,
    on: *mut sys::otr_queue,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses an event or a queue that the host destroys, so each is NULL or live.
        let (event, queue) = unsafe { both(handle, on)? };
        if event.imported.is_some() {
            return Err(Fault::new(
                Code::UNSUPPORTED,
                "an event of another process is recorded there",
            ));
        }
        if queue.recorder().active() || event.marked.is_set() {
            let mark = queue.recorder().mark(queue);
            let marked = mark.is_some();
            event.marked.set(mark);
            if marked {
                return Ok(());
            }
        }
        if let Some(exported) = event.exported.get() {
            return exported.record(&event.point, queue);
        }
        match &event.stamp {
            None => {
                event.point.write(queue, || queue.tail());
                if let Some(exported) = event.exported.get() {
                    // It was exported meanwhile.
                    exported.follow(&event.host, &event.point)?;
                }
            }
            Some(stamp) => {
                let mut stamp = stamp.lock();
                let next = Arc::new(Stamp::default());
                let point = queue.mark(Command::Stamp {
                    stamp: Arc::clone(&next),
                })?;
                *stamp = next;
                event.point.write(queue, || point);
            }
        }
        Ok(())
    })
}

pub(super) unsafe extern "C" fn query(
    handle: *mut sys::otr_drv_event,
    outcome: *mut sys::otr_outcome,
) -> i32 {
    let query = || {
        // SAFETY: R8: no call uses an event that the host destroys, so it is NULL or live.
        let event = unsafe { event(handle)? };
        if let Some(imported) = &event.imported {
            return imported.query();
        }
        let state = event.look("a query", Code::OK, Queue::query)?;
        Ok(state.unwrap_or(Code::OK))
    };
    // SAFETY: R1: the outcome is NULL, or that of version 1.0 or later.
    unsafe { tell(outcome, query) }
}

pub(super) unsafe extern "C" fn synchronize(
    handle: *mut sys::otr_drv_event,
    outcome: *mut sys::otr_outcome,
) -> i32 {
    let synchronize = || {
        // SAFETY: R8: no call uses an event that the host destroys, so it is NULL or live.
        let event = unsafe { event(handle)? };
        match &event.imported {
            Some(imported) => imported.synchronize()?,
            None => {
                event.look("a wait", (), Queue::wait)?;
            }
        }
        Ok(Code::OK)
    };
    // SAFETY: R1: the outcome is NULL, or that of version 1.0 or later.
    unsafe { tell(outcome, synchronize) }
}

pub(super) unsafe extern "C" fn time(
    handle: *mut sys::otr_drv_event,
    outcome: *mut sys::otr_outcome,
    nanoseconds: *mut u64,
) -> i32 {
    let time = || {
        // SAFETY: R8: no call uses an event that the host destroys, so it is NULL or live.
        let event = unsafe { event(handle)? };
        writable(nanoseconds)?;
        let Some(stamp) = &event.stamp else {
            return Err(Fault::argument(
                "the event has no timestamp: make it with OTR_EVENT_TIMING",
            ));
        };
        let stamp = stamp.lock();
        match event.look("the time", Code::OK, Queue::query)? {
            Some(Code::OK) => {}
            Some(code) => return Ok(code),
            None => {
                return Err(Fault::argument(
                    "the event was never recorded, so it has no time",
                ));
            }
        }
        // SAFETY: not NULL, so writable.
        unsafe { give(nanoseconds, stamp.time())? };
        Ok(Code::OK)
    };
    // SAFETY: R1: the outcome is NULL, or that of version 1.0 or later.
    unsafe { tell(outcome, time) }
}

pub(super) unsafe extern "C" fn queue_wait(
    on: *mut sys::otr_queue,
    handle: *mut sys::otr_drv_event,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses an event or a queue that the host destroys, so each is NULL or live.
        let (event, queue) = unsafe { both(handle, on)? };
        if let Some(imported) = &event.imported {
            return imported.queue_wait(&event.host, queue);
        }
        if event.marked.is_set() {
            return event.marked.wait(queue);
        }
        let wait = |other, value| queue.wait_for(other, value);
        event.look("a wait of a queue", (), wait).map(drop)
    })
}
