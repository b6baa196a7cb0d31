//! Points: places behind the work of a queue, each with an outcome of its own once it is reached (R21, R23).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::{Lane, Marker, Queue};
use crate::failure::Failure;
use crate::{Progress, Result};

/// The state of a point once the list of its queue has come to it.
struct Marked<L: Lane> {
    /// The place in the hardware queue; `None` if that was idle then.
    marker: Option<Arc<L::Marker>>,
    /// The failure of the queue at this place.
    failure: Option<Arc<Failure>>,
}

/// A place behind the work of a queue.
pub struct Point<L: Lane> {
    queue: Arc<Queue<L>>,
    timed: bool,
    /// The place in the list of the queue; 0 if the point never was in there.
    place: AtomicU64,
    /// So many submissions of its queue are before it.
    count: AtomicU64,
    marked: OnceLock<Marked<L>>,
}

/// A marker, and the failure of the queue there.
pub(crate) type Mark<'a, L> = (
    Option<&'a Arc<<L as Lane>::Marker>>,
    Option<&'a Arc<Failure>>,
);

impl<L: Lane> Point<L> {
    /// A point of a queue whose gate is open.
    pub(crate) fn behind(
        queue: &Arc<Queue<L>>,
        timed: bool,
        count: u64,
        marker: Option<Arc<L::Marker>>,
    ) -> Self {
        let point = Self::ahead(queue, timed);
        point.place_at(0, count);
        point.reach(marker, None);
        point
    }

    /// A point that the list has to come to.
    pub(crate) fn ahead(queue: &Arc<Queue<L>>, timed: bool) -> Self {
        Self {
            queue: Arc::clone(queue),
            timed,
            place: AtomicU64::new(0),
            count: AtomicU64::new(0),
            marked: OnceLock::new(),
        }
    }

    pub(crate) fn queue(&self) -> &Arc<Queue<L>> {
        &self.queue
    }

    pub(crate) fn is_timed(&self) -> bool {
        self.timed
    }

    pub(crate) fn place(&self) -> u64 {
        self.place.load(Ordering::Acquire)
    }

    /// So many submissions of its queue are before it.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn place_at(&self, place: u64, count: u64) {
        self.count.store(count, Ordering::Relaxed);
        self.place.store(place, Ordering::Release);
    }

    /// The list has come to it, which happens once.
    pub(crate) fn reach(&self, marker: Option<Arc<L::Marker>>, failure: Option<Arc<Failure>>) {
        let _ = self.marked.set(Marked { marker, failure });
    }

    /// The marker and the failure of the point, once the list has come to it.
    pub(crate) fn marked(&self) -> Option<Mark<'_, L>> {
        let marked = self.marked.get()?;
        Some((marked.marker.as_ref(), marked.failure.as_ref()))
    }

    /// Whether it was reached.
    ///
    /// # Errors
    /// The failure of the work before it.
    pub fn query(&self) -> Result<Progress> {
        let Some((marker, failure)) = self.marked() else {
            self.queue.ask();
            return Ok(Progress::NotReady);
        };
        let count = self.count();
        // A timestamp is work of its own.
        let known = !self.timed && self.queue.is_known_to_have_finished(count);
        if let Some(marker) = marker
            && (!known || marker.has_failed())
            && !self.queue.is_reached(marker)?
        {
            return Ok(Progress::NotReady);
        }
        self.passed(failure).map(|()| Progress::Done)
    }

    /// Waits until it is reached.
    ///
    /// # Errors
    /// The failure of the work before it; what the hardware answers that refuses the wait.
    pub fn synchronize(&self) -> Result {
        self.queue.await_list(self.place())?;
        let Some((marker, failure)) = self.marked() else {
            return Ok(());
        };
        if let Some(marker) = marker {
            marker.wait()?;
        }
        self.passed(failure)
    }

    /// The marker of a point that was reached, for its timestamp.
    pub fn marker(&self) -> Option<&Arc<L::Marker>> {
        self.marked()?.0
    }

    /// Notes that the point was reached: so was all that is before it, which the queue then need not ask the hardware
    /// for.
    fn passed(&self, failure: Option<&Arc<Failure>>) -> Result {
        self.queue.has_finished(self.count());
        match failure {
            Some(failure) => Err(failure.fault(self.queue.id())),
            None => Ok(()),
        }
    }
}
