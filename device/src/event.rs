//! Events: points in the work of a queue.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_locks::{Mutex, Rank};

use crate::fork::{forked, refuse_fork};
use crate::held::{self, HeldPoint, Mark};
use crate::table::entry;
use crate::{Code, Driver, Error, Queue, Result, sys};

/// A point in the work of a queue, once it was recorded. Before that it counts as finished (R22).
pub struct Event {
    handle: NonNull<sys::otr_drv_event>,
    device: u32,
    timing: bool,
    /// Whether the driver's event alone is not enough, and `place` is looked at.
    special: AtomicBool,
    place: Mutex<Place>,
    // Declared last: the driver stays open until the event is destroyed.
    driver: Driver,
}

/// Where an event stands that queues which hold have to do with.
#[derive(Default)]
struct Place {
    /// The driver's event, where queues that hold wait for it. It belongs to them, too, and is not recorded again.
    lent: Option<Arc<HeldPoint>>,
    /// The point at which the event was recorded last, if not by the driver's event.
    now: Option<Arc<HeldPoint>>,
    /// Other processes see the driver's event, so that nothing stands for it.
    is_seen: bool,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        if forked() || self.place.get_mut().lent.is_some() {
            return;
        }
        let Some(destroy) = self.driver.table().api.event_destroy else {
            return;
        };
        // SAFETY: the handle is live and nobody else holds this value.
        if let Err(error) = self.driver.check(unsafe { destroy(self.raw()) }) {
            tracing::warn!(target: "outrigger::device", %error, "an event could not be destroyed");
        }
    }
}

impl Event {
    pub(crate) fn create(driver: &Driver, device: u32, timing: bool) -> Result<Self> {
        if timing && driver.table().timing.is_none() {
            return Err(Error::new(
                Code::UNSUPPORTED,
                format!(
                    "the driver {} has no timestamps: make the event without",
                    driver.name()
                ),
            ));
        }
        let mark = Mark::create(driver.shared(), device, timing)?;
        Ok(Self::over(driver, device, timing, mark.into_raw(), false))
    }

    /// Takes over an event of another process.
    pub(crate) fn imported(driver: &Driver, handle: *mut sys::otr_drv_event) -> Result<Self> {
        match NonNull::new(handle) {
            Some(handle) => Ok(Self::over(driver, 0, false, handle, true)),
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for an event",
            )),
        }
    }

    fn over(
        driver: &Driver,
        device: u32,
        timing: bool,
        handle: NonNull<sys::otr_drv_event>,
        is_seen: bool,
    ) -> Self {
        let place = Place {
            is_seen,
            ..Place::default()
        };
        Self {
            handle,
            device,
            timing,
            special: AtomicBool::new(is_seen),
            place: Mutex::new(Rank::HeldEvent, place),
            driver: driver.clone(),
        }
    }

    /// The index of the device within its driver; 0 for an event of another process.
    #[inline]
    pub fn device(&self) -> u32 {
        self.device
    }

    /// The driver of the event.
    #[inline]
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    #[inline]
    pub(crate) fn raw(&self) -> *mut sys::otr_drv_event {
        self.handle.as_ptr()
    }

    #[inline]
    pub(crate) fn check_driver(&self, driver: &Driver) -> Result<()> {
        if self.driver.same_as(driver) {
            Ok(())
        } else {
            Err(self.foreign(driver))
        }
    }

    #[cold]
    fn foreign(&self, driver: &Driver) -> Error {
        Error::new(
            Code::INVALID_ARGUMENT,
            format!(
                "an event of the driver {} with a queue of the driver {}: wait for it on the host, or \
                 use one driver",
                self.driver.name(),
                driver.name()
            ),
        )
    }

    /// Whether the driver's event says all.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        !self.special.load(Ordering::Acquire)
    }

    /// The point of the event, if it is not the driver's event alone.
    fn now(&self) -> Option<Arc<HeldPoint>> {
        if self.is_plain() {
            return None;
        }
        self.place.lock().now.clone()
    }

    /// The point of the event for a queue that holds, whatever becomes of the event. `None` for one that other
    /// processes see.
    pub(crate) fn lend(&self) -> Option<Arc<HeldPoint>> {
        let mut place = self.place.lock();
        if place.is_seen {
            return None;
        }
        if let Some(now) = &place.now {
            return Some(Arc::clone(now));
        }
        self.special.store(true, Ordering::Release);
        let lent = place.lent.get_or_insert_with(|| {
            Arc::new(HeldPoint::marked(Mark::of(
                self.driver.shared(),
                self.handle,
            )))
        });
        Some(Arc::clone(lent))
    }

    /// Lets other processes see the event, where it was recorded last.
    ///
    /// # Errors
    /// `UNSUPPORTED` for one that queues which hold wait for; `CANCELLED` if its work has failed by a host call; what
    /// the driver answers.
    pub(crate) fn show(&self) -> Result<()> {
        if let Some(now) = self.now() {
            held::wait_for(&now)?;
            // The driver's event was not recorded there, and counts as finished when the work is.
            now.mark().synchronize()?;
            if let Some(Some(failure)) = now.reached() {
                let text = format!("the event's work has failed before: {failure}");
                return Err(Error::new(Code::CANCELLED, text));
            }
        }
        let mut place = self.place.lock();
        if place.lent.is_some() {
            return Err(Error::new(
                Code::UNSUPPORTED,
                "a queue that holds has waited for the event, which is not shown to other processes then: make another one",
            ));
        }
        let before = place.now.take();
        place.is_seen = true;
        self.special.store(true, Ordering::Release);
        drop(place);
        // Outside of the lock: its mark may be destroyed now.
        drop(before);
        Ok(())
    }

    /// Moves the event to the point after all that was submitted to the queue so far.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a queue of another driver; what else the driver answers.
    #[inline]
    pub fn record(&self, queue: &Queue) -> Result<()> {
        refuse_fork()?;
        self.check_driver(queue.driver())?;
        if queue.order().is_open() && self.is_plain() {
            return self.record_now(queue);
        }
        self.record_held(queue)
    }

    #[inline]
    fn record_now(&self, queue: &Queue) -> Result<()> {
        let record = entry!(self.driver.table().api, event_record);
        // SAFETY: event and queue are live and of the same driver.
        self.driver
            .check(unsafe { record(self.raw(), queue.raw()) })
    }

    #[cold]
    fn record_held(&self, queue: &Queue) -> Result<()> {
        let (is_seen, is_lent) = {
            let mut place = self.place.lock();
            let alone = |lent: &mut Arc<HeldPoint>| Arc::strong_count(lent) == 1;
            if let Some(lent) = place.lent.take_if(alone).and_then(Arc::into_inner) {
                // Nobody waits for the driver's event any more: it is this event's alone again.
                let _ = lent.into_mark().into_raw();
            }
            (place.is_seen, place.lent.is_some())
        };
        if is_seen {
            queue.settle()?;
            return self.record_now(queue);
        }
        if queue.order().is_open() && !is_lent {
            self.record_now(queue)?;
            let before = {
                let mut place = self.place.lock();
                self.special.store(place.lent.is_some(), Ordering::Release);
                place.now.take()
            };
            drop(before);
            return Ok(());
        }
        let mark = Mark::create(self.driver.shared(), self.device, self.timing)?;
        let point = if queue.order().is_open() {
            mark.record(queue.raw())?;
            Arc::new(HeldPoint::marked(mark))
        } else {
            queue.keep_mark(mark)
        };
        let before = {
            let mut place = self.place.lock();
            self.special.store(true, Ordering::Release);
            place.now.replace(point)
        };
        // Outside of the lock: its mark may be destroyed now.
        drop(before);
        Ok(())
    }

    /// Whether the event's point has passed.
    ///
    /// # Errors
    /// The failure of the work before its point; why there is no outcome.
    #[inline]
    pub fn query(&self) -> Result<bool> {
        refuse_fork()?;
        if let Some(point) = self.now() {
            return query_held(&point);
        }
        let query = entry!(self.driver.table().api, event_query);
        // SAFETY: the event is live, and the outcome lives through the call.
        self.driver
            .ask(|outcome| unsafe { query(self.raw(), outcome) })
    }

    /// Waits until the event's point has passed.
    ///
    /// # Errors
    /// The failure of the work before its point; why there is no outcome, as `WOULD_DEADLOCK`.
    #[inline]
    pub fn synchronize(&self) -> Result<()> {
        refuse_fork()?;
        if let Some(point) = self.now() {
            held::wait_for(&point)?;
            let told = point.mark().synchronize();
            return merged(&point, told);
        }
        let synchronize = entry!(self.driver.table().api, event_synchronize);
        // SAFETY: the event is live, and the outcome lives through the call.
        self.driver
            .wait(|outcome| unsafe { synchronize(self.raw(), outcome) })
    }

    /// When the event's point passed, in nanoseconds of its device's clock; `None` before.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an event that was made without timing; the failure of its work.
    pub fn time_ns(&self) -> Result<Option<u64>> {
        refuse_fork()?;
        let Some(group) = &self.driver.table().timing else {
            return Err(Error::new(
                Code::UNSUPPORTED,
                format!("the driver {} has no timestamps", self.driver.name()),
            ));
        };
        let now = self.now();
        if let Some(point) = &now
            && !query_held(point)?
        {
            return Ok(None);
        }
        let event = now.as_ref().map_or(self.raw(), |point| point.mark().raw());
        let mut time = 0;
        let event_time = entry!(group, event_time);
        // SAFETY: the event is live; the outcome and `time` live through the call.
        let passed = self
            .driver
            .ask(|outcome| unsafe { event_time(event, outcome, &mut time) })?;
        Ok(passed.then_some(time))
    }
}

/// Whether a point has passed that a list had to come to.
fn query_held(point: &HeldPoint) -> Result<bool> {
    if point.reached().is_none() {
        point.ask();
        return Ok(false);
    }
    match point.mark().query() {
        Ok(false) => Ok(false),
        told => merged(point, told.map(drop)).map(|()| true),
    }
}

/// The outcome at a point whose mark has passed: the failure that the list had there, or what the driver tells.
fn merged(point: &HeldPoint, told: Result<()>) -> Result<()> {
    match (told, point.reached()) {
        (Err(refusal), _) if !refusal.is_outcome() => Err(refusal),
        (_, Some(Some(failure))) => Err(failure.again()),
        (told, _) => told,
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("driver", &self.driver.name())
            .field("device", &self.device)
            .field("handle", &self.handle)
            .finish()
    }
}
