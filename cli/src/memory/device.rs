//! A simulated device without memory: traces are replayed over it to see what the allocator does.
//!
//! Work of a stream ends a fixed number of operations after its submission, or at a mark, where the
//! device is idle. The device must never allocate beyond its capacity, and never return an address
//! twice.

use std::collections::HashMap;

use outrigger_allocator::{Backend, Event, MemoryInfo, Physical, StreamId, VirtualMemory};
use parking_lot::Mutex;

/// A change of the device's memory by the allocator.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    /// A segment begins.
    Segment { address: u64, size: u64 },
    /// A segment ends, or memory leaves addresses.
    Gone { address: u64, size: u64 },
    /// Memory comes to addresses, in which it may be for the first time or not.
    Map {
        address: u64,
        size: u64,
        physical: u64,
    },
    /// Memory goes back to the device.
    Destroyed { physical: u64 },
}

/// The only error that there is: no memory is left.
#[derive(Debug)]
pub(super) struct Full;

struct State {
    used: u64,
    next: u64,
    segments: HashMap<u64, u64>,
    physicals: HashMap<u64, u64>,
    next_physical: u64,
    changes: Vec<Change>,
    now: u64,
    idle: u64, // all work submitted up to then is done
    waits: u64,
    orders: u64,
}

pub(super) struct SimulatedDevice {
    capacity: u64,
    lag: u64,
    virtual_memory: bool,
    state: Mutex<State>,
}

/// The first address of the device: not 0, which no allocation has.
const FIRST_ADDRESS: u64 = 1 << 40;
/// Addresses that one stream may reserve at once.
const ADDRESS_SPACE: u64 = 1 << 44;
/// Segments are aligned to this, as large pages are.
pub(super) const PAGE: u64 = 2 << 20;

impl SimulatedDevice {
    /// A device of `capacity` bytes whose work takes `lag` operations.
    pub(super) fn new(capacity: u64, lag: u64, virtual_memory: bool) -> Self {
        Self {
            capacity,
            lag,
            virtual_memory,
            state: Mutex::new(State {
                used: 0,
                next: FIRST_ADDRESS,
                segments: HashMap::new(),
                physicals: HashMap::new(),
                next_physical: 1,
                changes: Vec::new(),
                now: 0,
                idle: 0,
                waits: 0,
                orders: 0,
            }),
        }
    }

    /// Operation `now` begins; all work before it is done if `idle`.
    pub(super) fn advance(&self, now: u64, idle: bool) {
        let mut state = self.state.lock();
        state.now = now;
        let passed = if idle {
            now
        } else {
            now.saturating_sub(self.lag)
        };
        state.idle = state.idle.max(passed);
    }

    /// Moves what has been done since the last call into `changes`.
    pub(super) fn take_changes(&self, changes: &mut Vec<Change>) {
        changes.append(&mut self.state.lock().changes);
    }

    /// Two numbers of waits: of the host for the device, and of one stream for another.
    pub(super) fn waits(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.waits, state.orders)
    }
}

impl Backend for SimulatedDevice {
    type Error = Full;
    type Fence = u64;

    fn segment_alloc(&self, size: u64) -> Result<u64, Full> {
        let mut state = self.state.lock();
        if size > self.capacity - state.used {
            return Err(Full);
        }
        let address = state.next;
        // A gap after each segment, so that an access beyond its end is seen to be one.
        state.next += size.next_multiple_of(PAGE) + PAGE;
        state.used += size;
        state.segments.insert(address, size);
        state.changes.push(Change::Segment { address, size });
        Ok(address)
    }

    fn segment_free(&self, address: u64) {
        let mut state = self.state.lock();
        if let Some(size) = state.segments.remove(&address) {
            state.used -= size;
            state.changes.push(Change::Gone { address, size });
        }
    }

    fn is_out_of_memory(&self, _: &Full) -> bool {
        true
    }

    fn fence(&self, _: StreamId) -> Result<u64, Full> {
        Ok(self.state.lock().now)
    }

    fn fence_done(&self, fence: &u64) -> bool {
        *fence <= self.state.lock().idle
    }

    fn fence_wait(&self, fence: &u64) -> Result<(), Full> {
        let mut state = self.state.lock();
        if *fence > state.idle {
            state.idle = *fence;
            state.waits += 1;
        }
        Ok(())
    }

    fn memory_info(&self) -> Option<MemoryInfo> {
        let used = self.state.lock().used;
        Some(MemoryInfo {
            free: self.capacity - used,
            total: self.capacity,
        })
    }

    fn virtual_memory(&self) -> Option<&dyn VirtualMemory<Error = Full>> {
        self.virtual_memory.then_some(self)
    }

    fn order(&self, _: StreamId, _: &u64) -> bool {
        self.state.lock().orders += 1;
        true
    }

    fn observe(&self, _: &Event) {}
}

impl VirtualMemory for SimulatedDevice {
    type Error = Full;

    fn granularity(&self) -> u64 {
        PAGE
    }

    fn address_space(&self) -> u64 {
        ADDRESS_SPACE
    }

    fn reserve(&self, size: u64, alignment: u64) -> Result<u64, Full> {
        let mut state = self.state.lock();
        let address = state.next.next_multiple_of(alignment.max(1));
        state.next = address + size + PAGE;
        Ok(address)
    }

    fn release(&self, _: u64, _: u64) {}

    fn create(&self, size: u64) -> Result<Physical, Full> {
        let mut state = self.state.lock();
        if size > self.capacity - state.used {
            return Err(Full);
        }
        let physical = state.next_physical;
        state.next_physical += 1;
        state.used += size;
        state.physicals.insert(physical, size);
        Ok(Physical(physical))
    }

    fn destroy(&self, physical: Physical) {
        let mut state = self.state.lock();
        if let Some(size) = state.physicals.remove(&physical.0) {
            state.used -= size;
            let physical = physical.0;
            state.changes.push(Change::Destroyed { physical });
        }
    }

    fn map(&self, address: u64, pieces: &[Physical]) -> Result<(), Full> {
        let mut state = self.state.lock();
        let mut address = address;
        for &Physical(physical) in pieces {
            // The allocator maps only what it has created.
            let size = state.physicals.get(&physical).copied().unwrap_or(0);
            state.changes.push(Change::Map {
                address,
                size,
                physical,
            });
            address += size;
        }
        Ok(())
    }

    fn unmap(&self, address: u64, size: u64) {
        self.state
            .lock()
            .changes
            .push(Change::Gone { address, size });
    }
}
