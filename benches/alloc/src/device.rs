//! A simulated device: capacity, addresses, fences that pass later, and a count of every call. Physical
//! memory is real enough to be checked: the device knows which object stands behind which address. It must
//! never help an allocator: addresses are not handed out twice, and nothing is rounded but to its granularity.
//!
//! Time is the number of the trace's operation. A fence recorded at operation `t` has passed at `t + lag`, or
//! once the device was idle after `t`, or once somebody has waited for it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use outrigger_allocator::{Backend, MemoryInfo, StreamId};
use parking_lot::Mutex;

use crate::calls::Calls;
use crate::trace::STREAMS;
use crate::watch::Watch;

/// Bytes of a page of the device's virtual memory.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// What an unlimited device has.
pub(crate) const UNLIMITED: u64 = 1 << 40;

/// How a device behaves.
#[derive(Clone, Copy)]
pub(crate) struct Kind {
    /// Bytes of memory.
    pub(crate) capacity: u64,
    /// Operations after which a fence has passed.
    pub(crate) lag: u64,
    /// Whether memory can be reserved and mapped.
    pub(crate) virtual_memory: bool,
    /// Whether every use of its memory is checked. It is slow.
    pub(crate) checked: bool,
}

/// Why the device refuses: it has not enough memory.
#[derive(Debug)]
pub(crate) struct OutOfMemory;

/// For each stream, the last operation whose work has finished, or comes before something.
pub(crate) type Progress = [u64; STREAMS];

/// A point in a stream.
pub(crate) struct Fence {
    stream: usize,
    at: u64,
    /// Work of other streams that this stream waits for.
    behind: Progress,
}

/// The device.
pub(crate) struct Device {
    kind: Kind,
    now: AtomicU64,
    idle: AtomicU64,
    waited: [AtomicU64; STREAMS],
    fences: AtomicU64,
    state: Mutex<State>,
}

struct State {
    used: u64,
    peak: u64,
    next_address: u64,
    next_object: u64,
    /// Bytes of each object of physical memory.
    objects: HashMap<u64, u64>,
    /// What is mapped where.
    mappings: BTreeMap<u64, Mapping>,
    /// Segments and the object behind each.
    segments: HashMap<u64, u64>,
    reservations: BTreeMap<u64, u64>,
    calls: Calls,
    /// For each stream, what of the others comes before its further work.
    behind: [Progress; STREAMS],
    watch: Option<Watch>,
    /// What was done wrong to the device.
    complaints: Vec<String>,
}

/// An object, or the segment's, mapped from its start.
#[derive(Clone, Copy)]
struct Mapping {
    size: u64,
    object: u64,
}

/// Bytes of an object of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) object: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Device {
    pub(crate) fn new(kind: Kind) -> Self {
        Self {
            kind,
            now: AtomicU64::new(0),
            idle: AtomicU64::new(0),
            waited: Default::default(),
            fences: AtomicU64::new(0),
            state: Mutex::new(State {
                used: 0,
                peak: 0,
                next_address: 1 << 33,
                next_object: 1,
                objects: HashMap::new(),
                mappings: BTreeMap::new(),
                segments: HashMap::new(),
                reservations: BTreeMap::new(),
                calls: Calls::default(),
                behind: [[0; STREAMS]; STREAMS],
                watch: kind.checked.then(Watch::default),
                complaints: Vec::new(),
            }),
        }
    }

    /// The next operation of the trace; operations count from 1.
    pub(crate) fn tick(&self, now: u64) {
        self.now.store(now, Relaxed);
    }

    /// Everything submitted so far has finished.
    pub(crate) fn finish(&self) {
        self.idle.store(self.now.load(Relaxed), Relaxed);
    }

    /// Most bytes of physical memory in use at a time.
    pub(crate) fn peak(&self) -> u64 {
        self.state.lock().peak
    }

    /// Bytes of physical memory in use.
    pub(crate) fn used(&self) -> u64 {
        self.state.lock().used
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Calls {
        let mut calls = self.state.lock().calls;
        calls.fences = self.fences.load(Relaxed);
        calls
    }

    /// What is still there that should have been given back.
    pub(crate) fn leftovers(&self) -> Option<String> {
        let state = self.state.lock();
        let counts = [
            (state.objects.len(), "objects of physical memory"),
            (state.mappings.len(), "mappings"),
        ];
        let left: Vec<String> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}"))
            .collect();
        (!left.is_empty()).then(|| format!("not given back: {}", left.join(", ")))
    }

    /// Everything that was done wrong so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.state.lock().complaints.clone()
    }

    /// Whether all work of `stream` up to operation `at` has finished.
    pub(crate) fn finished(&self, stream: usize, at: u64) -> bool {
        self.now.load(Relaxed) >= at + self.kind.lag
            || at < self.idle.load(Relaxed)
            || at <= self.waited[stream].load(Relaxed)
    }

    /// Checks that `size` bytes at `address` may be used on `stream` from now on.
    pub(crate) fn begin_use(&self, address: u64, size: u64, stream: usize) {
        let mut state = self.state.lock();
        let State {
            mappings,
            watch: Some(watch),
            behind,
            complaints,
            ..
        } = &mut *state
        else {
            return;
        };
        match translate(mappings, address, size) {
            Ok(pieces) => {
                let finished =
                    |other: usize, at: u64| self.finished(other, at) || behind[stream][other] >= at;
                complaints.extend(watch.begin(address, size, pieces, stream, finished));
            }
            Err(hole) => complaints.push(format!(
                "{size} bytes at {address:#x} are handed out, but nothing is mapped at {hole:#x}"
            )),
        }
    }

    /// Notes that the memory at `address` was freed, while these streams may still work on it.
    pub(crate) fn end_use(&self, address: u64, size: u64, streams: &[bool; STREAMS]) {
        let now = self.now.load(Relaxed);
        let mut state = self.state.lock();
        let State {
            mappings,
            watch: Some(watch),
            complaints,
            ..
        } = &mut *state
        else {
            return;
        };
        let pieces = translate(mappings, address, size).unwrap_or_default();
        complaints.extend(watch.end(address, &pieces, streams, now));
        watch.forget(|stream, at| self.finished(stream, at));
    }

    fn take(&self, state: &mut State, size: u64) -> Result<u64, OutOfMemory> {
        if size > self.kind.capacity - state.used {
            return Err(OutOfMemory);
        }
        state.used += size;
        state.peak = state.peak.max(state.used);
        let object = state.next_object;
        state.next_object += 1;
        state.objects.insert(object, size);
        Ok(object)
    }

    fn give(&self, state: &mut State, object: u64) {
        match state.objects.remove(&object) {
            Some(size) => state.used -= size,
            None => state
                .complaints
                .push(format!("object {object} was given back, but is none")),
        }
        if let Some(watch) = &state.watch
            && watch.is_busy_object(object, |stream, at| self.finished(stream, at))
        {
            state.complaints.push(format!(
                "object {object} was given back while work on it is pending or it is in use"
            ));
        }
    }

    fn remove_mappings(&self, state: &mut State, address: u64, size: u64) {
        let end = address + size;
        let inside: Vec<(u64, u64)> = state
            .mappings
            .range(address..end)
            .map(|(&start, mapping)| (start, mapping.size))
            .collect();
        let bytes: u64 = inside.iter().map(|(_, size)| size).sum();
        if bytes != size {
            state.complaints.push(format!(
                "{size} bytes at {address:#x} were unmapped, of which {bytes} are mapped as whole objects"
            ));
        }
        for (start, _) in inside {
            state.mappings.remove(&start);
        }
        if let Some(watch) = &state.watch
            && watch.is_busy_range(address, size, |stream, at| self.finished(stream, at))
        {
            state.complaints.push(format!(
                "{size} bytes at {address:#x} were unmapped while work on them is pending or they are in use"
            ));
        }
    }
}

/// The bytes of physical memory behind these addresses, or the first address that has none.
fn translate(
    mappings: &BTreeMap<u64, Mapping>,
    address: u64,
    size: u64,
) -> Result<Vec<Piece>, u64> {
    let (mut at, end) = (address, address + size);
    let mut pieces = Vec::new();
    while at < end {
        let Some((&base, mapping)) = mappings.range(..=at).next_back() else {
            return Err(at);
        };
        let stop = end.min(base + mapping.size);
        if stop <= at {
            return Err(at);
        }
        pieces.push(Piece {
            object: mapping.object,
            start: at - base,
            end: stop - base,
        });
        at = stop;
    }
    Ok(pieces)
}

impl State {
    fn addresses(&mut self, size: u64, alignment: u64) -> u64 {
        let address = self.next_address.next_multiple_of(alignment);
        // A gap behind each, so that no two ranges are neighbours by chance.
        self.next_address = (address + size + GRANULARITY).next_multiple_of(GRANULARITY);
        address
    }
}

impl Backend for Device {
    type Error = OutOfMemory;
    type Fence = Fence;

    fn segment_alloc(&self, size: u64) -> Result<u64, OutOfMemory> {
        let mut state = self.state.lock();
        state.calls.allocs += 1;
        let object = self.take(&mut state, size)?;
        let address = state.addresses(size, GRANULARITY);
        state.mappings.insert(address, Mapping { size, object });
        state.segments.insert(address, object);
        Ok(address)
    }

    fn segment_free(&self, address: u64) {
        let mut state = self.state.lock();
        state.calls.frees += 1;
        let Some(object) = state.segments.remove(&address) else {
            state
                .complaints
                .push(format!("{address:#x} was given back, but is no segment"));
            return;
        };
        let size = state.objects[&object];
        self.remove_mappings(&mut state, address, size);
        self.give(&mut state, object);
    }

    fn is_out_of_memory(&self, _: &OutOfMemory) -> bool {
        true
    }

    fn fence(&self, stream: StreamId) -> Result<Fence, OutOfMemory> {
        self.fences.fetch_add(1, Relaxed);
        let stream = stream.0 as usize;
        let at = self.now.load(Relaxed);
        // What a stream is behind of matters to checks alone.
        let mut behind = if self.kind.checked {
            self.state.lock().behind[stream]
        } else {
            [0; STREAMS]
        };
        behind[stream] = at;
        Ok(Fence { stream, at, behind })
    }

    fn fence_done(&self, fence: &Fence) -> bool {
        self.finished(fence.stream, fence.at)
    }

    fn fence_wait(&self, fence: &Fence) {
        if !self.fence_done(fence) {
            self.state.lock().calls.waits += 1;
        }
        for (waited, &at) in self.waited.iter().zip(&fence.behind) {
            waited.fetch_max(at, Relaxed);
        }
    }

    fn memory_info(&self) -> Option<MemoryInfo> {
        Some(MemoryInfo {
            free: self.kind.capacity - self.state.lock().used,
            total: self.kind.capacity,
        })
    }
}
