//! Events (R21 to R24). An event refers to a point, a place behind the work of a queue, which keeps its outcome. Those
//! who wait keep the point, wherever the event moves.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::queue::{Lane, Point, Queue};
use crate::{Progress, Result};

/// An event of the driver.
pub struct Event<L: Lane> {
    timed: bool,
    /// The point at which the event was recorded last. The lock is held to read or write it, and no longer.
    point: Mutex<Option<Arc<Point<L>>>>,
}

impl<L: Lane> Event<L> {
    /// An event that was never recorded.
    pub fn new(timed: bool) -> Self {
        Self {
            timed,
            point: Mutex::new(None),
        }
    }

    /// Whether it carries a timestamp.
    pub fn is_timed(&self) -> bool {
        self.timed
    }

    /// Moves the event behind all that was submitted to a queue (R21).
    ///
    /// # Errors
    /// What the hardware answers, `OTR_ERR_OUT_OF_HOST_MEMORY`.
    pub fn record(&self, queue: &Arc<Queue<L>>) -> Result {
        let point = queue.point(self.timed)?;
        let old = self.point.lock().replace(point);
        // Outside of the lock: it may be the last that keeps a queue.
        drop(old);
        Ok(())
    }

    /// Makes it an event that was never recorded, as one counts that was recorded last on a queue that records (R33).
    pub fn forget(&self) {
        let old = self.point.lock().take();
        drop(old);
    }

    /// The point at which the event was recorded last; `None` if it never was.
    pub fn point(&self) -> Option<Arc<Point<L>>> {
        self.point.lock().clone()
    }

    /// Whether its work has finished (R22, R23).
    ///
    /// # Errors
    /// The failure of its work.
    pub fn query(&self) -> Result<Progress> {
        self.point()
            .map_or(Ok(Progress::Done), |point| point.query())
    }

    /// Waits for its work.
    ///
    /// # Errors
    /// The failure of its work; what the hardware answers that refuses the wait.
    pub fn synchronize(&self) -> Result {
        self.point().map_or(Ok(()), |point| point.synchronize())
    }
}
