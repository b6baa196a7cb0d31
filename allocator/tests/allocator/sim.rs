//! A device that remembers which stream touches which bytes, and refuses to be misused.
//!
//! Time is work: each piece of work on a stream has a number, and the test says how far each stream has
//! come. Freed addresses are handed out again as soon as possible, so that segments are neighbours.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use outrigger_allocator::{Backend, Event, EventKind, MemoryInfo, StreamId};
use parking_lot::Mutex;

/// Why the simulated device refuses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfMemory,
    Broken,
}

/// Work on some bytes.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    pub(crate) bytes: Range<u64>,
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
}

/// A point in a stream.
pub(crate) struct Fence {
    stream: StreamId,
    number: u64,
    capture: Option<u64>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) capacity: u64,
    pub(crate) segments: BTreeMap<u64, u64>,
    pub(crate) submitted: BTreeMap<StreamId, u64>,
    pub(crate) finished: BTreeMap<StreamId, u64>,
    /// Streams whose work is captured, and the number of the capture.
    pub(crate) captures: BTreeMap<StreamId, u64>,
    pub(crate) touches: Vec<Touch>,
    pub(crate) events: Vec<Event>,
    /// Calls that may fail so far, and which of them do.
    pub(crate) calls: u32,
    pub(crate) faults: BTreeSet<u32>,
    /// What was done wrong to the device: the allocator's locks do not survive a panic in here.
    pub(crate) complaints: Vec<String>,
}

impl State {
    pub(crate) fn reserved(&self) -> u64 {
        self.segments.values().sum()
    }

    pub(crate) fn submit(&mut self, stream: StreamId, bytes: Range<u64>) {
        let number = self.submitted.entry(stream).or_default();
        *number += 1;
        self.touches.push(Touch {
            bytes,
            stream,
            number: *number,
        });
    }

    pub(crate) fn finish(&mut self, stream: StreamId, number: u64) {
        let finished = self.finished.entry(stream).or_default();
        *finished = number.max(*finished);
        let finished = &self.finished;
        self.touches
            .retain(|touch| touch.number > finished.get(&touch.stream).copied().unwrap_or(0));
    }

    /// Work on these bytes that is not finished, of any stream but one.
    pub(crate) fn touched(&self, bytes: &Range<u64>, but: Option<StreamId>) -> Option<&Touch> {
        self.touches.iter().find(|touch| {
            touch.bytes.start < bytes.end
                && bytes.start < touch.bytes.end
                && Some(touch.stream) != but
        })
    }

    /// Whether a fence was recorded in a capture that goes on: waiting for it would never end.
    fn is_captured(&self, fence: &Fence) -> bool {
        fence.capture.is_some() && self.captures.get(&fence.stream).copied() == fence.capture
    }

    fn fails(&mut self) -> bool {
        self.calls += 1;
        self.faults.contains(&self.calls)
    }
}

/// The device; clones are the same device.
#[derive(Clone, Default)]
pub(crate) struct Sim(pub(crate) Arc<Mutex<State>>);

impl Sim {
    pub(crate) fn new(capacity: u64) -> Self {
        Self(Arc::new(Mutex::new(State {
            capacity,
            ..State::default()
        })))
    }
}

impl Backend for Sim {
    type Error = Refusal;
    type Fence = Fence;

    fn segment_alloc(&self, size: u64) -> Result<u64, Refusal> {
        let mut state = self.0.lock();
        if state.fails() {
            return Err(if state.calls.is_multiple_of(2) {
                Refusal::OutOfMemory
            } else {
                Refusal::Broken
            });
        }
        if size > state.capacity - state.reserved() {
            return Err(Refusal::OutOfMemory);
        }
        // The first gap; 256 bytes is an alignment that the allocator knows nothing of.
        let mut address = 0x7000_0100;
        for (&base, &length) in &state.segments {
            if base - address >= size {
                break;
            }
            address = base + length;
        }
        state.segments.insert(address, size);
        Ok(address)
    }

    fn segment_free(&self, address: u64) {
        let mut state = self.0.lock();
        let Some(size) = state.segments.remove(&address) else {
            state
                .complaints
                .push(format!("{address:#x} was given back, but is no segment"));
            return;
        };
        let complaint = state
            .touched(&(address..address + size), None)
            .map(|touch| format!("given back: {touch:?}"));
        state.complaints.extend(complaint);
    }

    fn is_out_of_memory(&self, error: &Refusal) -> bool {
        *error == Refusal::OutOfMemory
    }

    fn fence(&self, stream: StreamId) -> Result<Fence, Refusal> {
        let mut state = self.0.lock();
        if state.fails() {
            return Err(Refusal::Broken);
        }
        Ok(Fence {
            stream,
            number: state.submitted.get(&stream).copied().unwrap_or(0),
            capture: state.captures.get(&stream).copied(),
        })
    }

    fn fence_done(&self, fence: &Fence) -> bool {
        let state = self.0.lock();
        let finished = state.finished.get(&fence.stream).copied().unwrap_or(0);
        finished >= fence.number && !state.is_captured(fence)
    }

    fn fence_may_wait(&self, fence: &Fence) -> bool {
        !self.0.lock().is_captured(fence)
    }

    fn fence_wait(&self, fence: &Fence) {
        let mut state = self.0.lock();
        if state.is_captured(fence) {
            let complaint = format!("a wait for {:?} would hang", fence.stream);
            state.complaints.push(complaint);
        }
        state.finish(fence.stream, fence.number);
    }

    fn memory_info(&self) -> Option<MemoryInfo> {
        let state = self.0.lock();
        Some(MemoryInfo {
            free: state.capacity - state.reserved(),
            total: state.capacity,
        })
    }

    fn observe(&self, event: &Event) {
        let mut state = self.0.lock();
        let held = state.segments.contains_key(&event.address);
        if held != (event.kind == EventKind::SegmentAlloc) && event.address != 0 {
            state
                .complaints
                .push(format!("{event:?} does not tell what happened"));
        }
        state.events.push(*event);
    }
}
