//! Places of streams and events: the place of a stream in a capture, and the point of a capture that an event was
//! recorded at.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};

use super::{Capture, error};
use crate::Error;
use crate::recorder::{Lane, Mark};

/// The place of a stream in a capture. To ask whether it has one costs one load.
#[derive(Debug)]
pub(super) struct CaptureSlot {
    active: AtomicBool,
    place: Mutex<CapturePlace>,
}

/// The state of a stream's place.
#[derive(Debug)]
enum CapturePlace {
    /// The stream does not capture.
    Free,
    /// A lane of a capture.
    Lane(Arc<Capture>, Lane),
    /// The stream is being destroyed, and captures no more.
    Closed,
}

/// The reason why a stream gets no place in a capture.
pub(super) enum Refusal {
    /// The stream has a place.
    Taken,
    /// The stream is being destroyed.
    Closed,
}

impl Default for CaptureSlot {
    fn default() -> Self {
        Self {
            active: AtomicBool::new(false),
            place: Mutex::new(Rank::CapturePlace, CapturePlace::Free),
        }
    }
}

impl CaptureSlot {
    /// Whether the stream has a place.
    #[inline]
    pub(super) fn is_taken(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    pub(super) fn get(&self) -> Option<(Arc<Capture>, Lane)> {
        self.with(|capture, lane| (Arc::clone(capture), lane))
    }

    /// Calls `with` if the stream has a place.
    pub(super) fn with<R>(&self, with: impl FnOnce(&Arc<Capture>, Lane) -> R) -> Option<R> {
        match &*self.place.lock() {
            CapturePlace::Lane(capture, lane) => Some(with(capture, *lane)),
            CapturePlace::Free | CapturePlace::Closed => None,
        }
    }

    /// Gives the stream the place that `make` makes, if it may have one. A stream has one place at most, so this is one
    /// decision with `make`, which changes nothing if the stream is refused.
    pub(super) fn take(&self, make: impl FnOnce() -> (Arc<Capture>, Lane)) -> Result<(), Refusal> {
        let mut place = self.place.lock();
        match *place {
            CapturePlace::Free => {
                let (capture, lane) = make();
                *place = CapturePlace::Lane(capture, lane);
                self.active.store(true, Ordering::Relaxed);
                Ok(())
            }
            CapturePlace::Lane(..) => Err(Refusal::Taken),
            CapturePlace::Closed => Err(Refusal::Closed),
        }
    }

    /// Takes the stream out of its capture.
    pub(super) fn leave(&self) {
        let mut place = self.place.lock();
        self.active.store(false, Ordering::Relaxed);
        *place = CapturePlace::Free;
    }

    /// Refuses all captures from here on. Returns false if the stream captures: then nothing has changed.
    pub(super) fn close(&self) -> bool {
        let mut place = self.place.lock();
        let closes = !matches!(*place, CapturePlace::Lane(..));
        if closes {
            *place = CapturePlace::Closed;
        }
        closes
    }
}

/// The point of a capture that an event was recorded at, if any.
#[derive(Debug)]
pub struct CapturedMark {
    active: AtomicBool,
    mark: Mutex<Option<(Weak<Capture>, Mark)>>,
}

impl Default for CapturedMark {
    fn default() -> Self {
        Self {
            active: AtomicBool::new(false),
            mark: Mutex::new(Rank::CapturedMark, None),
        }
    }
}

impl CapturedMark {
    /// Whether the event was recorded in a capture.
    #[inline]
    pub fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// Notes that the event was recorded outside of captures.
    pub fn clear(&self) {
        let mut mark = self.mark.lock();
        self.active.store(false, Ordering::Relaxed);
        *mark = None;
    }

    pub(super) fn set(&self, capture: Weak<Capture>, at: Mark) {
        let mut mark = self.mark.lock();
        self.active.store(true, Ordering::Relaxed);
        *mark = Some((capture, at));
    }

    pub(super) fn get(&self) -> Option<(Option<Arc<Capture>>, Mark)> {
        let mark = self.mark.lock();
        mark.as_ref()
            .map(|(capture, mark)| (capture.upgrade(), mark.clone()))
    }

    /// The error for a host that queries the event or waits for it.
    pub fn refusal(&self, what: &str) -> Error {
        let error = error(format!(
            "{what} of an event that was recorded in a capture: it has no point in time; record it again \
             outside of the capture"
        ));
        if let Some((Some(capture), _)) = self.get() {
            capture.fail_here(&error);
        }
        error
    }
}

impl Refusal {
    /// The error for a stream that cannot capture.
    #[cold]
    pub(super) fn error(&self, stream: u64) -> Error {
        let refused = match self {
            Self::Taken => error("the stream is capturing already: end that capture first"),
            Self::Closed => Error::new(Code::INVALID_HANDLE, "the stream was destroyed"),
        };
        refused.on_stream(stream)
    }
}
