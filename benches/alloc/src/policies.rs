//! Simulated peers: what other allocators would hold, by the rules that their documentation and sources
//! tell. They stand in where the original cannot be had, and search capacities faster than it could. They
//! must never be timed: they count bytes, and are written to be read.

mod bfc;
mod blocks;
mod torch;

pub(crate) use bfc::Bfc;
pub(crate) use torch::Torch;

/// Memory of a device, in bytes, and the trace's time.
struct Device {
    capacity: u64,
    used: u64,
    peak: u64,
    next_address: u64,
    now: u64,
    idle: u64,
    lag: u64,
}

/// Addresses of two regions are never neighbours.
const GAP: u64 = 1 << 21;

impl Device {
    fn new(capacity: u64, lag: u64) -> Self {
        Self {
            capacity,
            used: 0,
            peak: 0,
            next_address: GAP,
            now: 0,
            idle: 0,
            lag,
        }
    }

    /// Whether an event of this operation has passed.
    fn has_passed(&self, at: u64) -> bool {
        self.now >= at + self.lag || at < self.idle
    }

    fn reserve(&mut self, size: u64) -> u64 {
        let address = self.next_address;
        self.next_address += size.next_multiple_of(GAP) + GAP;
        address
    }

    fn take(&mut self, size: u64) -> bool {
        if size > self.capacity - self.used {
            return false;
        }
        self.used += size;
        self.peak = self.peak.max(self.used);
        true
    }

    fn give(&mut self, size: u64) {
        self.used -= size;
    }
}
