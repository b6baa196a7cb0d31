//! The state of an event under `validate`. Several threads may record and query an event at the same
//! time. This module counts the records, and judges an answer only if it knows about which record the
//! driver answered.

use super::books::{Behind, Point};

#[derive(Debug)]
pub(super) struct Event {
    pub(super) number: u32,
    state: State,
    /// So many records of it were begun.
    begun: u64,
    /// So many of these have not ended.
    open: u32,
}

#[derive(Clone, Debug)]
pub(super) enum State {
    Never,
    /// A point of a recording, by its number. After that it counts as never recorded.
    Point(u32),
    On(Recorded),
    /// Recorded, and only the driver knows where.
    Unknown,
}

/// The place at which an event was recorded.
#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) queue: usize,
    /// Of the queue: a later one may have the same handle.
    pub(super) number: u32,
    pub(super) submitted: u64,
    /// The work that the event's work comes after.
    pub(super) behind: Behind,
    pub(super) point: Point,
}

/// An event when a call begins that asks it or waits for it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) number: u32,
    /// `None`: never, or as a point of a recording.
    pub(super) recorded: Option<Recorded>,
    /// The recording of which it is a point.
    pub(super) recording: Option<u32>,
    begun: u64,
}

/// A record that has begun.
#[derive(Debug)]
pub(super) struct Record {
    /// Of the event: a later one may have the same handle.
    number: u32,
    begun: u64,
    /// Whether no other was in progress.
    alone: bool,
}

impl Event {
    pub(super) fn new(number: u32) -> Self {
        Self {
            number,
            state: State::Never,
            begun: 0,
            open: 0,
        }
    }

    /// The event as a call begins. `None` where nobody knows which record the call will see.
    pub(super) fn asked(&self) -> Option<Asked> {
        let (recorded, recording) = match &self.state {
            _ if self.open > 0 => return None,
            State::Never => (None, None),
            State::Point(recording) => (None, Some(*recording)),
            State::On(recorded) => (Some(recorded.clone()), None),
            State::Unknown => return None,
        };
        Some(Asked {
            number: self.number,
            recorded,
            recording,
            begun: self.begun,
        })
    }

    /// Whether no record has begun since.
    pub(super) fn is_as(&self, asked: &Asked) -> bool {
        (self.number, self.begun) == (asked.number, asked.begun)
    }

    pub(super) fn record_begins(&mut self) -> Record {
        let alone = self.open == 0;
        self.begun += 1;
        self.open += 1;
        Record {
            number: self.number,
            begun: self.begun,
            alone,
        }
    }

    /// Of records that cross, only the driver knows which was the last.
    pub(super) fn record_ends(&mut self, record: &Record, state: Option<State>) {
        if record.number != self.number {
            return;
        }
        self.open -= 1;
        if let Some(state) = state {
            let sure = record.alone && record.begun == self.begun;
            self.state = if sure { state } else { State::Unknown };
        }
    }
}
