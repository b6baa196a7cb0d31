//! Counters with PyTorch's names and meanings.
//!
//! Plain numbers: they are changed under the allocator's lock and copied out of it.

/// A quantity over time. `current` = all that was ever added, less all that was ever taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// The largest `current` since the start or [`reset_peak`](crate::Allocator::reset_peak).
    pub peak: u64,
    /// Added since the start or [`reset_accumulated`](crate::Allocator::reset_accumulated).
    pub allocated: u64,
    /// Taken away since then.
    pub freed: u64,
}

impl Stat {
    #[inline]
    pub(crate) fn add(&mut self, amount: u64) {
        self.current += amount;
        self.allocated += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(crate) fn sub(&mut self, amount: u64) {
        self.current -= amount;
        self.freed += amount;
    }

    /// One change from `before` to `after`, of which only the difference counts.
    #[inline]
    pub(crate) fn replace(&mut self, before: u64, after: u64) {
        if after >= before {
            self.add(after - before);
        } else {
            self.sub(before - after);
        }
    }
}

/// The allocator's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of blocks in use, after rounding.
    pub allocated_bytes: Stat,
    /// Bytes held from the device.
    pub reserved_bytes: Stat,
    /// Bytes of blocks in use, as asked for.
    pub requested_bytes: Stat,
    /// Bytes of blocks in use, or freed but not yet reusable since a recorded stream may touch them.
    pub active_bytes: Stat,
    /// Bytes of free blocks that share their segment with others.
    pub inactive_split_bytes: Stat,
    /// Blocks in use.
    pub allocations: Stat,
    /// Segments held from the device.
    pub segments: Stat,
    /// Blocks in use or not yet reusable.
    pub active: Stat,
    /// Free blocks that share their segment with others.
    pub inactive_split: Stat,
    /// Segments that the device was asked for and gave.
    pub device_allocs: u64,
    /// Segments given back to the device.
    pub device_frees: u64,
    /// Allocations that had to give back cached segments and ask the device again.
    pub alloc_retries: u64,
    /// Allocations that failed for want of memory.
    pub ooms: u64,
    /// Times that all pending frees were waited for.
    pub sync_all_streams: u64,
}

impl Stats {
    fn each(&mut self) -> [&mut Stat; 9] {
        [
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.requested_bytes,
            &mut self.active_bytes,
            &mut self.inactive_split_bytes,
            &mut self.allocations,
            &mut self.segments,
            &mut self.active,
            &mut self.inactive_split,
        ]
    }

    pub(crate) fn reset_peak(&mut self) {
        for stat in self.each() {
            stat.peak = stat.current;
        }
    }

    pub(crate) fn reset_accumulated(&mut self) {
        for stat in self.each() {
            stat.allocated = 0;
            stat.freed = 0;
        }
        self.device_allocs = 0;
        self.device_frees = 0;
        self.alloc_retries = 0;
        self.ooms = 0;
        self.sync_all_streams = 0;
    }
}
