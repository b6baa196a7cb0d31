//! A simulated device: capacity, addresses, fences that pass later, and a count of every call. With checks
//! on, it follows every use of its memory. It must never help an allocator: addresses are not handed out
//! twice, and nothing is rounded but to its granularity.
//!
//! Time is the number of the trace's operation. A fence recorded at operation `t` has passed at `t + lag`, or
//! once the device was idle after `t`, or once somebody has waited for it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use outrigger_allocator::{Backend, MemoryInfo, Physical, StreamId, VirtualMemory};
use parking_lot::Mutex;

use crate::calls::Calls;
use crate::memory::Memory;
use crate::overhead::counted;
use crate::trace::STREAMS;
use crate::watch::Watch;

#[cfg(test)]
mod tests;

/// Bytes of a page of the device's virtual memory.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// The bytes of an unlimited device.
pub(crate) const UNLIMITED: u64 = 1 << 40;

/// The properties of a device.
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

/// The reason why the device refuses: it has not enough memory.
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

/// The use of all objects of one size, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Share {
    /// The number of objects.
    pub(crate) objects: u64,
    /// In use.
    pub(crate) used: u64,
    /// Idle, in objects that hold something.
    pub(crate) idle_beside: u64,
    /// Idle, in objects that hold nothing.
    pub(crate) idle: u64,
}

pub(crate) struct Device {
    kind: Kind,
    now: AtomicU64,
    idle: AtomicU64,
    waited: [AtomicU64; STREAMS],
    fences: AtomicU64,
    state: Mutex<State>,
}

struct State {
    memory: Memory,
    /// For each stream, what of the others comes before its further work.
    behind: [Progress; STREAMS],
    watch: Option<Watch>,
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
                memory: Memory::new(kind.capacity),
                behind: [[0; STREAMS]; STREAMS],
                watch: kind.checked.then(Watch::default),
            }),
        }
    }

    /// The next operation of the trace; operations count from 1.
    pub(crate) fn tick(&self, now: u64) {
        self.now.store(now, Relaxed);
    }

    /// Everything submitted so far has finished.
    pub(crate) fn finish(&self) {
        self.idle.store(self.now.load(Relaxed) + 1, Relaxed);
    }

    /// Most bytes of physical memory in use at a time.
    pub(crate) fn peak(&self) -> u64 {
        self.state.lock().memory.peak()
    }

    /// Bytes of physical memory in use.
    pub(crate) fn used(&self) -> u64 {
        self.state.lock().memory.used()
    }

    /// All calls so far.
    pub(crate) fn calls(&self) -> Calls {
        let mut calls = self.state.lock().memory.calls;
        calls.fences = self.fences.load(Relaxed);
        calls
    }

    /// The things that are still there and should have been given back.
    pub(crate) fn leftovers(&self) -> Option<String> {
        self.state.lock().memory.leftovers()
    }

    /// Everything that was done wrong so far.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.state.lock().memory.complaints.clone()
    }

    /// Whether all work of `stream` up to operation `at` has finished.
    fn finished(&self, stream: usize, at: u64) -> bool {
        self.now.load(Relaxed) >= at + self.kind.lag
            || at < self.idle.load(Relaxed)
            || at <= self.waited[stream].load(Relaxed)
    }

    /// Checks that `size` bytes at `address` may be used on `stream` from now on.
    pub(crate) fn begin_use(&self, address: u64, size: u64, stream: usize) {
        let mut state = self.state.lock();
        let State {
            memory,
            behind,
            watch: Some(watch),
        } = &mut *state
        else {
            return;
        };
        match memory.translate(address, size) {
            Ok(pieces) => {
                let finished =
                    |other: usize, at: u64| self.finished(other, at) || behind[stream][other] >= at;
                let wrong = watch.begin(address, size, pieces, stream, finished);
                memory.complaints.extend(wrong);
            }
            Err(hole) => memory.complaints.push(format!(
                "{size} bytes at {address:#x} are handed out, but nothing is mapped at {hole:#x}"
            )),
        }
    }

    /// Notes that the memory at `address` was freed, while these streams may still work on it.
    pub(crate) fn end_use(&self, address: u64, size: u64, streams: &[bool; STREAMS]) {
        let now = self.now.load(Relaxed);
        let mut state = self.state.lock();
        let State {
            memory,
            watch: Some(watch),
            ..
        } = &mut *state
        else {
            return;
        };
        let pieces = memory.translate(address, size).unwrap_or_default();
        let wrong = watch.end(address, &pieces, streams, now);
        memory.complaints.extend(wrong);
        watch.forget(|stream, at| self.finished(stream, at));
    }

    /// The use of the memory that is held now, if use is checked: by the size of its objects.
    pub(crate) fn shares(&self) -> BTreeMap<u64, Share> {
        let state = self.state.lock();
        let used = state.watch.as_ref().map(Watch::used_bytes);
        let used = used.unwrap_or_default();
        let mut shares: BTreeMap<u64, Share> = BTreeMap::new();
        for (object, size) in state.memory.objects() {
            let share = shares.entry(size).or_default();
            share.objects += 1;
            match used.get(&object) {
                Some(bytes) => {
                    share.used += bytes;
                    share.idle_beside += size - bytes;
                }
                None => share.idle += size,
            }
        }
        shares
    }

    /// Complains if these addresses are in use, or worked on, when they lose their memory.
    fn check_idle(&self, state: &mut State, address: u64, size: u64) {
        if let Some(watch) = &state.watch
            && watch.is_busy(address, size, |stream, at| self.finished(stream, at))
        {
            state.memory.complaints.push(format!(
                "{size} bytes at {address:#x} lose their memory while work on them is pending or they are in use"
            ));
        }
    }

    /// Changes memory; what that takes from the host is not the allocator's.
    fn change<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        counted(false, || run(&mut self.state.lock()))
    }
}

impl Backend for Device {
    type Error = OutOfMemory;
    type Fence = Fence;

    fn segment_alloc(&self, size: u64) -> Result<u64, OutOfMemory> {
        self.change(|state| state.memory.alloc(size).ok_or(OutOfMemory))
    }

    fn segment_free(&self, address: u64) {
        self.change(|state| {
            if let Some(size) = state.memory.free_segment(address) {
                self.check_idle(state, address, size);
            }
        });
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Error = OutOfMemory>> {
        self.kind
            .virtual_memory
            .then_some(self as &dyn VirtualMemory<Error = OutOfMemory>)
    }

    fn order(&self, stream: StreamId, fence: &Fence) -> bool {
        let mut state = self.state.lock();
        state.memory.calls.orders += 1;
        let behind = &mut state.behind[stream.0 as usize];
        for (known, &at) in behind.iter_mut().zip(&fence.behind) {
            *known = (*known).max(at);
        }
        true
    }

    fn is_out_of_memory(&self, _: &OutOfMemory) -> bool {
        true
    }

    fn fence(&self, stream: StreamId) -> Result<Fence, OutOfMemory> {
        self.fences.fetch_add(1, Relaxed);
        let stream = stream.0 as usize;
        let at = self.now.load(Relaxed);
        // The work that comes before a stream's work matters to checks alone.
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

    fn fence_wait(&self, fence: &Fence) -> Result<(), Self::Error> {
        if !self.fence_done(fence) {
            self.state.lock().memory.calls.waits += 1;
        }
        for (waited, &at) in self.waited.iter().zip(&fence.behind) {
            waited.fetch_max(at, Relaxed);
        }
        Ok(())
    }

    fn memory_info(&self) -> Option<MemoryInfo> {
        Some(MemoryInfo {
            free: self.state.lock().memory.free(),
            total: self.kind.capacity,
        })
    }
}

impl VirtualMemory for Device {
    type Error = OutOfMemory;

    fn granularity(&self) -> u64 {
        GRANULARITY
    }

    fn address_space(&self) -> u64 {
        self.kind.capacity + self.kind.capacity / 8
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, OutOfMemory> {
        Ok(self.change(|state| state.memory.reserve(size, alignment)))
    }

    fn release(&self, address: u64, size: u64) {
        self.change(|state| state.memory.release(address, size));
    }

    fn create(&self, size: u64) -> Result<Physical, OutOfMemory> {
        let made = self.change(|state| state.memory.create(size));
        made.map(Physical).ok_or(OutOfMemory)
    }

    fn destroy(&self, physical: Physical) {
        self.change(|state| state.memory.destroy(physical.0));
    }

    fn map(&self, address: u64, pieces: &[Physical]) -> Result<(), OutOfMemory> {
        let pieces = pieces.iter().map(|piece| piece.0);
        self.change(|state| state.memory.map(address, pieces));
        Ok(())
    }

    fn unmap(&self, address: u64, size: u64) {
        self.change(|state| {
            self.check_idle(state, address, size);
            state.memory.unmap(address, size);
        });
    }
}
