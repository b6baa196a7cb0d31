//! A device that remembers which stream touches which bytes, and refuses to be misused.
//!
//! Time is work: each piece of work on a stream has a number, and the test says how far each stream has
//! come. Waiting for another stream is work, too. Freed addresses are handed out again as soon as possible,
//! so that segments are neighbours. What is touched are bytes of physical memory, at whichever address.

mod memory;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use outrigger_allocator::{
    Backend, Event, EventKind, MemoryInfo, Physical, StreamId, VirtualMemory,
};
use outrigger_locks::{calls_driver, calls_host};
use parking_lot::{Mutex, MutexGuard};

pub(crate) use memory::{Memory, PAGE, Piece};

/// The reason why the simulated device refuses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    OutOfMemory,
    Broken,
}

/// Work on some bytes.
#[derive(Clone, Debug)]
pub(crate) struct Touch {
    pub(crate) bytes: Range<u64>,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) stream: StreamId,
    pub(crate) number: u64,
}

/// The number of commands of each stream, up to some point.
type Progress = BTreeMap<StreamId, u64>;

/// Work of a stream that waits for another one.
struct Wait {
    stream: StreamId,
    number: u64,
    behind: Progress,
}

/// A point in a stream.
pub(crate) struct Fence {
    stream: StreamId,
    number: u64,
    /// The work of other streams that comes before the fence.
    behind: Progress,
    capture: Option<u64>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) capacity: u64,
    pub(crate) virtual_memory: bool,
    pub(crate) memory: Memory,
    pub(crate) segments: BTreeMap<u64, u64>,
    pub(crate) submitted: Progress,
    pub(crate) finished: Progress,
    /// The work of other streams that comes before a stream's further work.
    behind: BTreeMap<StreamId, Progress>,
    waits: Vec<Wait>,
    /// The number of times that a stream was made to wait for another.
    pub(crate) orders: u64,
    /// Streams whose work is captured, and the number of the capture.
    pub(crate) captures: BTreeMap<StreamId, u64>,
    pub(crate) touches: Vec<Touch>,
    pub(crate) events: Vec<Event>,
    /// Calls that may fail so far, and which of them do.
    pub(crate) calls: u32,
    pub(crate) faults: BTreeSet<u32>,
    /// Waits of the host are refused.
    pub(crate) refuses_waits: bool,
    /// The mistakes that were made with the device. They are only listed, because the allocator's locks
    /// do not survive a panic in here.
    pub(crate) complaints: Vec<String>,
}

impl State {
    /// Bytes that the device has given and not got back.
    pub(crate) fn reserved(&self) -> u64 {
        self.memory.held().0
    }

    /// Bytes that nobody has.
    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.memory.used()
    }

    pub(crate) fn submit(&mut self, stream: StreamId, bytes: Range<u64>) {
        let number = self.submitted.entry(stream).or_default();
        *number += 1;
        self.touches.push(Touch {
            pieces: self.memory.pieces(&bytes),
            bytes,
            stream,
            number: *number,
        });
    }

    /// Work up to `number` has finished, and so has what it waited for.
    pub(crate) fn finish(&mut self, stream: StreamId, number: u64) {
        let finished = self.finished.entry(stream).or_default();
        *finished = number.max(*finished);
        let over = |wait: &mut Wait| wait.stream == stream && wait.number <= number;
        let waits: Vec<Wait> = self.waits.extract_if(.., over).collect();
        for (other, number) in waits.into_iter().flat_map(|wait| wait.behind) {
            self.finish(other, number);
        }
        let finished = &self.finished;
        self.touches
            .retain(|touch| touch.number > finished.get(&touch.stream).copied().unwrap_or(0));
    }

    /// Work on the memory behind these addresses that is not finished, but for work of one stream, and
    /// what comes before all that this stream may still be given.
    pub(crate) fn touched(&self, bytes: &Range<u64>, but: Option<StreamId>) -> Option<&Touch> {
        self.touches_of(bytes, but).next()
    }

    /// All of [`touched`](Self::touched).
    pub(crate) fn touches_of(
        &self,
        bytes: &Range<u64>,
        but: Option<StreamId>,
    ) -> impl Iterator<Item = &Touch> {
        let pieces = self.memory.pieces(bytes);
        let behind = but.and_then(|stream| self.behind.get(&stream));
        self.touches.iter().filter(move |touch| {
            let before = behind.and_then(|behind| behind.get(&touch.stream));
            Some(touch.stream) != but
                && before.is_none_or(|&before| before < touch.number)
                && (touch.pieces.iter()).any(|one| pieces.iter().any(|other| one.overlaps(other)))
        })
    }

    /// Complains if work is not finished that reaches memory at these addresses, which lose it.
    fn check_unused(&mut self, bytes: Range<u64>) {
        let touches = self.touches.iter();
        let mut used =
            touches.filter(|touch| touch.bytes.start < bytes.end && bytes.start < touch.bytes.end);
        let complaint = used.next().map(|touch| format!("lost: {touch:?}"));
        self.complaints.extend(complaint);
    }

    /// Everything that was done wrong.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let all = self.complaints.iter().chain(&self.memory.complaints);
        all.cloned().collect()
    }

    /// Whether a fence was recorded in a capture that goes on: waiting for it would never end.
    fn is_captured(&self, fence: &Fence) -> bool {
        fence.capture.is_some() && self.captures.get(&fence.stream).copied() == fence.capture
    }

    fn fails(&mut self) -> bool {
        self.calls += 1;
        self.faults.contains(&self.calls)
    }

    /// Does what [`fails`](Self::fails) does, for a call that takes so much memory.
    fn refuses(&mut self, size: u64) -> Result<(), Refusal> {
        if self.fails() {
            return Err(if self.calls.is_multiple_of(2) {
                Refusal::OutOfMemory
            } else {
                Refusal::Broken
            });
        }
        if size > self.free() {
            return Err(Refusal::OutOfMemory);
        }
        Ok(())
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

    /// A device that maps memory into addresses.
    pub(crate) fn with_virtual_memory(capacity: u64) -> Self {
        let sim = Self::new(capacity);
        sim.0.lock().virtual_memory = true;
        sim
    }

    /// The state, for a call of the allocator, which then holds only locks that it may hold.
    fn called(&self) -> MutexGuard<'_, State> {
        calls_driver();
        self.0.lock()
    }
}

impl Backend for Sim {
    type Error = Refusal;
    type Fence = Fence;

    fn segment_alloc(&self, size: u64) -> Result<u64, Refusal> {
        let mut state = self.called();
        state.refuses(size)?;
        // The first gap; 256 bytes is an alignment that the allocator knows nothing of.
        let mut address = 0x7000_0100;
        for (&base, &length) in &state.segments {
            if base - address >= size {
                break;
            }
            address = base + length;
        }
        state.segments.insert(address, size);
        let object = state.memory.create(size);
        state.memory.attach(address, object);
        Ok(address)
    }

    fn segment_free(&self, address: u64) {
        let mut state = self.called();
        let Some(size) = state.segments.remove(&address) else {
            state
                .complaints
                .push(format!("{address:#x} was given back, but is no segment"));
            return;
        };
        state.check_unused(address..address + size);
        if let Some(object) = state.memory.object_at(address) {
            state.memory.unmap(address, size);
            state.memory.destroy(object);
        }
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Error = Refusal>> {
        let has = self.called().virtual_memory;
        has.then_some(self as &dyn VirtualMemory<Error = Refusal>)
    }

    /// Waiting would draw one stream into the capture of the other.
    fn order(&self, stream: StreamId, fence: &Fence) -> bool {
        let mut state = self.called();
        if state.captures.contains_key(&stream) || state.is_captured(fence) {
            return false;
        }
        state.orders += 1;
        let behind = fence.behind.clone();
        let known = state.behind.entry(stream).or_default();
        for (&other, &number) in &behind {
            let known = known.entry(other).or_default();
            *known = number.max(*known);
        }
        let number = state.submitted.entry(stream).or_default();
        *number += 1;
        let number = *number;
        state.waits.push(Wait {
            stream,
            number,
            behind,
        });
        true
    }

    fn is_out_of_memory(&self, error: &Refusal) -> bool {
        *error == Refusal::OutOfMemory
    }

    fn fence(&self, stream: StreamId) -> Result<Fence, Refusal> {
        let mut state = self.called();
        if state.fails() {
            return Err(Refusal::Broken);
        }
        let number = state.submitted.get(&stream).copied().unwrap_or(0);
        let mut behind = state.behind.get(&stream).cloned().unwrap_or_default();
        behind.insert(stream, number);
        Ok(Fence {
            stream,
            number,
            behind,
            capture: state.captures.get(&stream).copied(),
        })
    }

    fn submitted(&self, stream: StreamId) -> Result<Fence, Refusal> {
        let fence = self.fence(stream)?;
        Ok(Fence {
            capture: None,
            ..fence
        })
    }

    fn fence_done(&self, fence: &Fence) -> bool {
        let state = self.called();
        let finished = state.finished.get(&fence.stream).copied().unwrap_or(0);
        finished >= fence.number && !state.is_captured(fence)
    }

    fn fence_may_wait(&self, fence: &Fence) -> bool {
        !self.called().is_captured(fence)
    }

    fn fence_wait(&self, fence: &Fence) -> Result<(), Self::Error> {
        calls_host("a wait for a stream");
        let mut state = self.called();
        if state.is_captured(fence) {
            let complaint = format!("a wait for {:?} would hang", fence.stream);
            state.complaints.push(complaint);
        }
        if state.refuses_waits {
            return Err(Refusal::Broken);
        }
        state.finish(fence.stream, fence.number);
        Ok(())
    }

    fn memory_info(&self) -> Option<MemoryInfo> {
        let state = self.called();
        Some(MemoryInfo {
            free: state.free(),
            total: state.capacity,
        })
    }

    fn observe(&self, event: &Event) {
        calls_host("an observer");
        let mut state = self.called();
        let held = state.memory.object_at(event.address).is_some();
        if held != (event.kind == EventKind::SegmentAlloc) && event.address != 0 {
            state
                .complaints
                .push(format!("{event:?} does not tell what happened"));
        }
        state.events.push(*event);
    }
}

impl VirtualMemory for Sim {
    type Error = Refusal;

    fn granularity(&self) -> u64 {
        PAGE
    }

    /// Little, so that one range is not enough now and then.
    fn address_space(&self) -> u64 {
        128 << 20
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, Refusal> {
        let mut state = self.called();
        state.refuses(0)?;
        Ok(state.memory.reserve(size, alignment))
    }

    fn release(&self, address: u64, size: u64) {
        self.called().memory.release(address, size);
    }

    fn create(&self, size: u64) -> Result<Physical, Refusal> {
        let mut state = self.called();
        state.refuses(size)?;
        Ok(Physical(state.memory.create(size)))
    }

    fn destroy(&self, physical: Physical) {
        self.called().memory.destroy(physical.0);
    }

    fn map(&self, address: u64, pieces: &[Physical]) -> Result<(), Refusal> {
        let mut state = self.called();
        state.refuses(0)?;
        let objects: Vec<u64> = pieces.iter().map(|piece| piece.0).collect();
        state.memory.map(address, &objects);
        Ok(())
    }

    fn unmap(&self, address: u64, size: u64) {
        let mut state = self.called();
        state.check_unused(address..address + size);
        state.memory.unmap(address, size);
    }

    fn try_unmap(&self, address: u64, size: u64) -> Result<(), Refusal> {
        self.called().refuses(0)?;
        self.unmap(address, size);
        Ok(())
    }
}
