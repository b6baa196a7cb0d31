//! Whether work is over. Only an outcome says so: a wait or a query that has failed is no answer.

use crate::{Error, Event, Queue, Result};

/// The end of the work that a queue was given up to a point: an event that is recorded once. Memory that the work uses
/// may go back when the tail is over.
#[derive(Debug)]
pub struct Tail {
    event: Event,
}

impl Tail {
    /// The end of all work that a queue was given so far.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn of(queue: &Queue) -> Result<Self> {
        let event = queue.driver().event_create(queue.device(), false)?;
        event.record(queue)?;
        Ok(Self { event })
    }

    /// The event, for queues that wait for it.
    #[inline]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Whether the work is over, with or without a failure. Never waits. The answer is no for as long as the driver does
    /// not say so; on a lost device it stays no.
    pub fn is_over(&self) -> bool {
        self.event
            .query()
            .unwrap_or_else(|error| error.is_outcome())
    }

    /// Waits until the work is over. A failure of that work is reported to whoever waits for its stream.
    ///
    /// # Errors
    /// Why nobody knows whether the work is over.
    pub fn wait(&self) -> Result<()> {
        match self.event.synchronize() {
            Err(error) if !error.is_outcome() => Err(error),
            _ => Ok(()),
        }
    }
}

impl Queue {
    /// Waits until nothing of the queue runs. Returns the failure of the work, which is cleared, or of the call; and
    /// whether the work is over, which a failed call leaves open. A wait that is refused is made once more: without an
    /// outcome, whatever the work uses is lost.
    pub fn finish(&self) -> (Result<()>, bool) {
        let finished = match self.synchronize() {
            Err(refusal) if !refusal.is_outcome() => self.synchronize(),
            told => told,
        };
        let over = finished.as_ref().map_or_else(Error::is_outcome, |()| true);
        (finished, over)
    }
}
