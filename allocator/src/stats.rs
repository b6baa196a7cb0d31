//! Figures with PyTorch's names and meanings, and the ledger that makes them from the counts of the
//! arenas.

use crate::config::Class;
use crate::tally::{Count, QUANTITIES, Quantity, Tally};

/// A quantity over time. `current` = all that was ever added, less all that was ever taken away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    /// The value now.
    pub current: u64,
    /// The largest `current` since the start or [`reset_peak`](crate::Allocator::reset_peak).
    pub peak: u64,
    /// The amount that was added since the start or
    /// [`reset_accumulated`](crate::Allocator::reset_accumulated).
    pub allocated: u64,
    /// The amount that was taken away since then.
    pub freed: u64,
}

/// The figures of all blocks, or of those of one size class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Bytes of blocks in use, after rounding.
    pub allocated_bytes: Stat,
    /// Bytes held from the device.
    pub reserved_bytes: Stat,
    /// Bytes of blocks in use, as asked for.
    pub requested_bytes: Stat,
    /// Bytes of blocks in use, or freed but not yet reusable: held, or a recorded stream may
    /// touch them.
    pub active_bytes: Stat,
    /// Bytes that are cached: free, and held from the device.
    pub inactive_split_bytes: Stat,
    /// Blocks in use.
    pub allocations: Stat,
    /// Pieces of memory held from the device: segments, or chunks of physical memory.
    pub segments: Stat,
    /// Blocks in use or not yet reusable.
    pub active: Stat,
    /// Free blocks.
    pub inactive_split: Stat,
}

/// The allocator's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Figures of all blocks.
    pub all: ClassStats,
    /// Figures of blocks up to 1 MiB.
    pub small: ClassStats,
    /// Figures of blocks above 1 MiB.
    pub large: ClassStats,
    /// Pieces of memory that the device was asked for and gave.
    pub device_allocs: u64,
    /// Pieces of memory given back to the device.
    pub device_frees: u64,
    /// Times that memory was mapped.
    pub maps: u64,
    /// Times that memory was unmapped.
    pub unmaps: u64,
    /// Large requests that were met by idle memory that lies apart, mapped once more.
    pub views: u64,
    /// Large requests that were met by a view that was mapped already.
    pub view_reuses: u64,
    /// Times that a stream was made to wait on the device for another, so that memory could be reused
    /// before the other had finished with it.
    pub stream_waits: u64,
    /// Times that the calling thread had to wait for a stream.
    pub host_waits: u64,
    /// Allocations that had to give back cached memory and ask the device again.
    pub alloc_retries: u64,
    /// Allocations that failed because memory was short.
    pub ooms: u64,
    /// Times that all pending frees were waited for.
    pub sync_all_streams: u64,
}

/// A [`Stat`] as the ledger keeps it, for what changes rarely.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gauge {
    current: u64,
    peak: u64,
    added: u64, // ever; what was taken away is this less `current`
    added_before: u64,
    freed_before: u64, // both before the last reset
}

impl Gauge {
    pub(crate) fn add(&mut self, amount: u64) {
        self.set(self.current + amount, self.added + amount);
    }

    pub(crate) fn sub(&mut self, amount: u64) {
        self.current -= amount;
    }

    /// Takes over what others have counted.
    fn set(&mut self, current: u64, added: u64) {
        self.current = current;
        self.added = added;
        self.peak = self.peak.max(current);
    }

    /// The amount by which the value may rise without a new peak.
    fn slack(&self) -> u64 {
        self.peak - self.current
    }

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

    fn reset_peak(&mut self) {
        self.peak = self.current;
    }

    fn reset_accumulated(&mut self) {
        self.added_before = self.added;
        self.freed_before = self.added - self.current;
    }
}

/// The sums that [`ClassStats`] is made from.
#[derive(Clone, Copy, Debug, Default)]
struct Gauges {
    allocated_bytes: Gauge,
    requested_bytes: Gauge,
    active_bytes: Gauge,
    idle_bytes: Gauge,
    allocated: Gauge,
    active: Gauge,
    idle: Gauge,
    reserved_bytes: Gauge,
    reserved: Gauge,
}

impl Gauges {
    fn take_over(&mut self, sum: &Sum) {
        let [bytes, requested, blocks] = sum.current;
        let [bytes_added, requested_added, blocks_added] = sum.added;
        self.active_bytes.set(bytes, bytes_added);
        self.active.set(blocks, blocks_added);
        self.allocated_bytes
            .set(bytes - sum.pending_bytes, bytes_added);
        self.allocated
            .set(blocks - sum.pending_blocks, blocks_added);
        self.requested_bytes.set(requested, requested_added);
        self.idle_bytes
            .set(sum.idle_bytes.current, sum.idle_bytes.added);
        self.idle
            .set(sum.idle_blocks.current, sum.idle_blocks.added);
    }

    /// The amount by which each quantity may rise without a new peak of anything.
    fn slack(&self) -> [u64; QUANTITIES] {
        [
            self.active_bytes.slack().min(self.allocated_bytes.slack()),
            self.requested_bytes.slack(),
            self.active.slack().min(self.allocated.slack()),
        ]
    }

    fn each(&mut self) -> [&mut Gauge; 9] {
        [
            &mut self.allocated_bytes,
            &mut self.requested_bytes,
            &mut self.active_bytes,
            &mut self.idle_bytes,
            &mut self.allocated,
            &mut self.active,
            &mut self.idle,
            &mut self.reserved_bytes,
            &mut self.reserved,
        ]
    }

    fn stats(&self) -> ClassStats {
        ClassStats {
            allocated_bytes: self.allocated_bytes.stat(),
            reserved_bytes: self.reserved_bytes.stat(),
            requested_bytes: self.requested_bytes.stat(),
            active_bytes: self.active_bytes.stat(),
            inactive_split_bytes: self.idle_bytes.stat(),
            allocations: self.allocated.stat(),
            segments: self.reserved.stat(),
            active: self.active.stat(),
            inactive_split: self.idle.stat(),
        }
    }
}

/// The figures of all arenas together.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sum {
    current: [u64; QUANTITIES],
    added: [u64; QUANTITIES],
    pending_bytes: u64,
    pending_blocks: u64,
    idle_bytes: Count,
    idle_blocks: Count,
    asleep_bytes: u64,
}

impl Sum {
    /// Adds what an arena counts, and whether it sleeps: both of one moment.
    pub(crate) fn add(&mut self, tally: &Tally, asleep: bool) {
        use Quantity::{Blocks, Bytes, Requested};
        for quantity in [Bytes, Requested, Blocks] {
            self.current[quantity as usize] += tally.current(quantity);
            self.added[quantity as usize] += tally.added(quantity);
        }
        let (bytes, blocks) = tally.pending();
        self.pending_bytes += bytes;
        self.pending_blocks += blocks;
        let (bytes, blocks) = tally.idle();
        self.idle_bytes += bytes;
        self.idle_blocks += blocks;
        if asleep {
            self.asleep_bytes += tally.current(Bytes);
        }
    }

    fn both(sums: &[Self; 2]) -> Self {
        let mut all = sums[0];
        let other = &sums[1];
        for at in 0..QUANTITIES {
            all.current[at] += other.current[at];
            all.added[at] += other.added[at];
        }
        all.pending_bytes += other.pending_bytes;
        all.pending_blocks += other.pending_blocks;
        all.idle_bytes += other.idle_bytes;
        all.idle_blocks += other.idle_blocks;
        all.asleep_bytes += other.asleep_bytes;
        all
    }
}

/// The figures of a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ledger {
    classes: [Gauges; 2],
    all: Gauges,
    /// The active bytes that belong to sleeping pools: they are not held from the device.
    asleep: u64,
    /// The most bytes that may be held.
    pub(crate) limit: u64,
    /// The counters that no other type keeps.
    pub(crate) counts: Stats,
}

impl Ledger {
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            classes: [Gauges::default(); 2],
            all: Gauges::default(),
            asleep: 0,
            limit,
            counts: Stats::default(),
        }
    }

    /// Counts memory that the device gave.
    pub(crate) fn reserve(&mut self, class: Class, bytes: u64, pieces: u64) {
        for gauges in [&mut self.classes[class as usize], &mut self.all] {
            gauges.reserved_bytes.add(bytes);
            gauges.reserved.add(pieces);
        }
        self.counts.device_allocs += pieces;
    }

    /// Counts memory that went back to the device.
    pub(crate) fn release(&mut self, class: Class, bytes: u64) {
        for gauges in [&mut self.classes[class as usize], &mut self.all] {
            gauges.reserved_bytes.sub(bytes);
            gauges.reserved.sub(1);
        }
        self.counts.device_frees += 1;
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.all.reserved_bytes.current()
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.all.allocated_bytes.current()
    }

    /// Bytes that are held, but neither in use nor pending.
    pub(crate) fn cached(&self) -> u64 {
        // Each arena's sleeping bytes are some of its active ones, read with them.
        let there = self.all.active_bytes.current() - self.asleep;
        // Bytes from the device are counted here when they are taken, and arenas may be ahead of that.
        self.reserved().saturating_sub(there)
    }

    /// Whether the limit leaves room.
    pub(crate) fn has_room(&self, bytes: u64) -> bool {
        let all = self.reserved().checked_add(bytes);
        all.is_some_and(|all| all <= self.limit)
    }

    /// Takes over what the arenas have counted, by class, whose credit was recalled.
    pub(crate) fn take_over(&mut self, sums: &[Sum; 2]) {
        self.classes[0].take_over(&sums[0]);
        self.classes[1].take_over(&sums[1]);
        let both = Sum::both(sums);
        self.all.take_over(&both);
        self.asleep = both.asleep_bytes;
    }

    /// The credit of one arena for a class, if there are `arenas` arenas. Of each quantity, one half of
    /// what is available goes to the arenas that are `short` of it, whose `numbers` are given; the
    /// other half goes to all.
    pub(crate) fn credit(
        &self,
        class: Class,
        arenas: u64,
        short: [bool; QUANTITIES],
        numbers: [u64; QUANTITIES],
    ) -> [u64; QUANTITIES] {
        let (own, all) = (self.classes[class as usize].slack(), self.all.slack());
        std::array::from_fn(|at| {
            // Both classes draw on the slack of all.
            let rest = (own[at] / 2).min(all[at] / 4) / arenas;
            if short[at] {
                rest.max(own[at].min(all[at]).div_ceil(2) / numbers[at])
            } else {
                rest
            }
        })
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            all: self.all.stats(),
            small: self.classes[Class::Small as usize].stats(),
            large: self.classes[Class::Large as usize].stats(),
            ..self.counts
        }
    }

    fn each(&mut self, change: impl Fn(&mut Gauge)) {
        let scopes = self.classes.iter_mut().chain([&mut self.all]);
        scopes.flat_map(Gauges::each).for_each(change);
    }

    pub(crate) fn reset_peak(&mut self) {
        self.each(Gauge::reset_peak);
    }

    pub(crate) fn reset_accumulated(&mut self) {
        self.each(Gauge::reset_accumulated);
        self.counts = Stats::default();
    }
}
