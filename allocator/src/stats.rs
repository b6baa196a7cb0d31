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

/// The allocator's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Bytes of blocks in use, after rounding.
    pub allocated_bytes: Stat,
    /// Bytes held from the device.
    pub reserved_bytes: Stat,
    /// Bytes of blocks in use, as asked for.
    pub requested_bytes: Stat,
    /// Bytes of blocks in use, or freed but not yet reusable: held, or a recorded stream may
    /// touch them.
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

/// A [`Stat`] as it is kept: changing it costs few instructions, since it happens at every allocation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauge {
    current: u64,
    peak: u64,
    added: u64, // ever; what was taken away is this less `current`
    added_before: u64,
    freed_before: u64, // both before the last reset
}

impl Gauge {
    #[inline]
    pub(crate) fn add(&mut self, amount: u64) {
        self.current += amount;
        self.added += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(crate) fn sub(&mut self, amount: u64) {
        self.current -= amount;
    }

    /// One change from `before` to `after`, of which only the difference counts.
    #[inline]
    pub(crate) fn replace(&mut self, before: u64, after: u64) {
        self.added += after.saturating_sub(before);
        self.current = self.current - before + after;
        self.peak = self.peak.max(self.current);
    }

    #[inline]
    pub(crate) fn current(&self) -> u64 {
        self.current
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    fn stat(&self) -> Stat {
        Stat {
            current: self.current,
            peak: self.peak,
            allocated: self.added - self.added_before,
            freed: self.added - self.current - self.freed_before,
        }
    }

    fn reset_accumulated(&mut self) {
        self.added_before = self.added;
        self.freed_before = self.added - self.current;
    }
}

/// Number and bytes of some kind of block or segment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measure {
    pub(crate) count: Gauge,
    pub(crate) bytes: Gauge,
}

impl Measure {
    #[inline]
    pub(crate) fn add(&mut self, bytes: u64) {
        self.count.add(1);
        self.bytes.add(bytes);
    }

    #[inline]
    pub(crate) fn sub(&mut self, bytes: u64) {
        self.count.sub(1);
        self.bytes.sub(bytes);
    }
}

/// What [`Stats`] is made from.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) allocated: Measure,
    pub(crate) requested: Gauge,
    pub(crate) active: Measure,
    pub(crate) inactive_split: Measure,
    pub(crate) reserved: Measure,
    pub(crate) device_allocs: u64,
    pub(crate) device_frees: u64,
    pub(crate) alloc_retries: u64,
    pub(crate) ooms: u64,
    pub(crate) sync_all_streams: u64,
}

impl Gauges {
    pub(crate) fn stats(&self) -> Stats {
        Stats {
            allocated_bytes: self.allocated.bytes.stat(),
            reserved_bytes: self.reserved.bytes.stat(),
            requested_bytes: self.requested.stat(),
            active_bytes: self.active.bytes.stat(),
            inactive_split_bytes: self.inactive_split.bytes.stat(),
            allocations: self.allocated.count.stat(),
            segments: self.reserved.count.stat(),
            active: self.active.count.stat(),
            inactive_split: self.inactive_split.count.stat(),
            device_allocs: self.device_allocs,
            device_frees: self.device_frees,
            alloc_retries: self.alloc_retries,
            ooms: self.ooms,
            sync_all_streams: self.sync_all_streams,
        }
    }

    fn each(&mut self) -> impl Iterator<Item = &mut Gauge> {
        let measures = [
            &mut self.allocated,
            &mut self.active,
            &mut self.inactive_split,
            &mut self.reserved,
        ];
        let gauges = measures
            .into_iter()
            .flat_map(|measure| [&mut measure.count, &mut measure.bytes]);
        gauges.chain([&mut self.requested])
    }

    pub(crate) fn reset_peak(&mut self) {
        self.each().for_each(|gauge| gauge.peak = gauge.current);
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.each().for_each(Gauge::reset_accumulated);
        self.device_allocs = 0;
        self.device_frees = 0;
        self.alloc_retries = 0;
        self.ooms = 0;
        self.sync_all_streams = 0;
    }
}
