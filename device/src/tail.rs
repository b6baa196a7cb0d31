//! Whether work is over. A failed wait or query is no answer to that: the work may have failed, and is over then, or the
//! call itself has failed, and says nothing about the work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::{Code, Error, Event, Queue, Result};

/// The end of the work that a queue was given up to a point: an event that is recorded once. Memory that the work uses
/// may go back when the tail is over.
#[derive(Debug)]
pub struct Tail {
    event: Event,
    witness: OnceLock<Witness>,
}

/// A host call behind a tail. R24, R20: it is called once the work before the tail is over, also if that has failed. So
/// the driver answers although it answers no query.
#[derive(Debug)]
struct Witness {
    called: Arc<AtomicBool>,
    // Kept: a driver may cancel the work of a queue that is destroyed (R11).
    queue: Queue,
}

impl Tail {
    /// The end of all work that a queue was given so far.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn of(queue: &Queue) -> Result<Self> {
        let event = queue.driver().event_create(queue.device(), false)?;
        event.record(queue)?;
        Ok(Self {
            event,
            witness: OnceLock::new(),
        })
    }

    /// The event, for queues that wait for it.
    #[inline]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Whether the work is over, with or without a failure. Never waits. The answer is no for as long as the driver does
    /// not say so; on a lost device it stays no.
    pub fn is_over(&self) -> bool {
        match self.event.query() {
            Ok(passed) => passed,
            Err(error) => is_of_command(&error) || self.witness(&error).is_some_and(Witness::saw),
        }
    }

    /// Waits until the work is over. A failure of that work is reported to whoever waits for its stream.
    ///
    /// # Errors
    /// Why nobody knows whether the work is over.
    pub fn wait(&self) -> Result<()> {
        let Err(error) = self.event.synchronize() else {
            return Ok(());
        };
        if is_of_command(&error) || self.is_over() {
            return Ok(());
        }
        if let Some(witness) = self.witness.get() {
            // Whether it saw the end counts, and not the answer: the queue has the failure of the work, too.
            let _ = witness.queue.synchronize();
            if witness.saw() {
                return Ok(());
            }
        }
        Err(error)
    }

    /// The witness, which the first error calls; `None` if the driver takes none now.
    #[cold]
    fn witness(&self, error: &Error) -> Option<&Witness> {
        if error.code() == Code::DEVICE_LOST {
            return None;
        }
        if self.witness.get().is_none() {
            // If another thread was faster, its witness stays.
            let _ = self.witness.set(Witness::behind(&self.event).ok()?);
        }
        self.witness.get()
    }
}

impl Witness {
    fn behind(event: &Event) -> Result<Self> {
        let queue = event.driver().queue_create(event.device(), 0)?;
        queue.wait_event(event)?;
        let called = Arc::new(AtomicBool::new(false));
        let call = Arc::clone(&called);
        queue.host_call(move |upstream| {
            // A driver whose device is lost makes the calls too, and nobody knows what runs there.
            call.store(upstream != Err(Code::DEVICE_LOST), Ordering::Release);
            Ok(())
        })?;
        Ok(Self { called, queue })
    }

    fn saw(&self) -> bool {
        if !self.called.load(Ordering::Acquire) {
            // R18: whoever asks flushes. The answer is the failure of the work at best.
            let _ = self.queue.query();
        }
        self.called.load(Ordering::Acquire)
    }
}

impl Queue {
    /// Waits until nothing of the queue runs. Returns the failure of the work, which is cleared, or of the call; and
    /// whether the work is over, which a failed call leaves open.
    pub fn finish(&self) -> (Result<()>, bool) {
        let finished = self.synchronize();
        // The first wait may have reported a failure of the work, which is over then, and which it has cleared (R20).
        let over = finished.is_ok() || self.synchronize().is_ok();
        (finished, over)
    }
}

/// Whether an error is the failure of a command, which the driver names (R5). The work is over then (R20, R23).
fn is_of_command(error: &Error) -> bool {
    let lost = error.code() == Code::DEVICE_LOST;
    !lost && (error.label().is_some() || error.submission().is_some())
}
