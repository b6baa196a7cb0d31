//! Events: points in the work of a queue.

use std::fmt;
use std::ptr::NonNull;

use crate::fork::{forked, refuse_fork};
use crate::table::entry;
use crate::{Code, Driver, Error, Queue, Result, params, sys};

/// A point in the work of a queue, once it was recorded. Before that it counts as finished (R22).
pub struct Event {
    handle: NonNull<sys::otr_drv_event>,
    device: u32,
    // Declared last: the driver stays open until the event is destroyed.
    driver: Driver,
}

// SAFETY: R8: every function may be called from any thread, also at the same time on one object.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        if forked() {
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
        let params = params::event(if timing { sys::OTR_EVENT_TIMING } else { 0 });
        let mut handle = std::ptr::null_mut();
        let create = entry!(driver.table().api, event_create);
        // SAFETY: the driver is open; the parameters and the handle live through the call.
        driver.check(unsafe { create(driver.handle(), device, &params, &mut handle) })?;
        Self::from_handle(driver, device, handle)
    }

    /// Takes over what the driver gave.
    pub(crate) fn from_handle(
        driver: &Driver,
        device: u32,
        handle: *mut sys::otr_drv_event,
    ) -> Result<Self> {
        match NonNull::new(handle) {
            Some(handle) => Ok(Self {
                handle,
                device,
                driver: driver.clone(),
            }),
            None => Err(Error::new(
                Code::INTERNAL,
                "the driver gave NULL for an event",
            )),
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

    /// Moves the event to the point after all that was submitted to the queue so far.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a queue of another driver; what else the driver answers.
    #[inline]
    pub fn record(&self, queue: &Queue) -> Result<()> {
        refuse_fork()?;
        self.check_driver(queue.driver())?;
        let record = entry!(self.driver.table().api, event_record);
        // SAFETY: event and queue are live and of the same driver.
        self.driver
            .check(unsafe { record(self.raw(), queue.raw()) })
    }

    /// Whether the event's point has passed.
    ///
    /// # Errors
    /// The failure of the work before its point; why there is no outcome.
    #[inline]
    pub fn query(&self) -> Result<bool> {
        refuse_fork()?;
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
        let mut time = 0;
        let event_time = entry!(group, event_time);
        // SAFETY: the event is live; the outcome and `time` live through the call.
        let passed = self
            .driver
            .ask(|outcome| unsafe { event_time(self.raw(), outcome, &mut time) })?;
        Ok(passed.then_some(time))
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
