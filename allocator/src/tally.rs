//! The counts that an arena keeps at every allocation. They keep the peaks of a whole device exact,
//! although no arena knows the others.
//!
//! Each quantity of an arena has *credit*: how much the quantity may still rise before the sum over all
//! arenas could exceed the known peak. Rising uses credit up, falling restores it, and both touch only
//! the arena. When a credit falls below zero, all arenas are added up. The peak is raised if the sum is
//! higher, and the room below it is handed out as new credit, half of it to the arenas that ran short.
//! So a peak is exact for operations that follow each other, and below the peak no arena waits for
//! another.
//!
//! Free bytes have no credit. They are added up when a peak is raised, or when the statistics are read.

/// A quantity that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Bytes of blocks in use or pending, after rounding.
    Bytes = 0,
    /// Bytes of blocks in use, as asked for.
    Requested = 1,
    /// Blocks in use or pending.
    Blocks = 2,
}

/// The number of quantities.
pub(crate) const QUANTITIES: usize = 3;

/// A count without credit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Count {
    pub(crate) current: u64,
    pub(crate) added: u64,
}

impl Count {
    #[inline]
    fn add(&mut self, amount: u64) {
        self.current += amount;
        self.added += amount;
    }
}

impl std::ops::AddAssign for Count {
    fn add_assign(&mut self, other: Self) {
        self.current += other.current;
        self.added += other.added;
    }
}

/// The quantities of one arena and class.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    credit: [i64; QUANTITIES],
    /// The value that `credit` would have if the quantity were 0.
    given: [i64; QUANTITIES],
    /// The amount of each quantity that was ever added.
    added: [u64; QUANTITIES],
    /// The part of the bytes, requested bytes and blocks in use that is pending: freed, not reusable.
    pending_bytes: u64,
    pending_blocks: u64,
    idle_bytes: Count,
    idle_blocks: Count,
    /// The fewest bytes that were free at a time since [`spare`](Self::spare) was asked.
    low: u64,
}

impl Tally {
    #[inline]
    fn add(&mut self, quantity: Quantity, amount: u64) {
        self.credit[quantity as usize] -= amount as i64;
        self.added[quantity as usize] += amount;
    }

    #[inline]
    fn sub(&mut self, quantity: Quantity, amount: u64) {
        self.credit[quantity as usize] += amount as i64;
    }

    /// Counts bytes that became free: they are new, or were not available before.
    #[inline]
    pub(crate) fn gained(&mut self, bytes: u64) {
        self.idle_bytes.add(bytes);
    }

    /// Counts free bytes that are no longer available.
    #[inline]
    pub(crate) fn lost(&mut self, bytes: u64) {
        self.idle_bytes.current -= bytes;
        self.low = self.low.min(self.idle_bytes.current);
    }

    /// Counts one more free block.
    #[inline]
    pub(crate) fn listed(&mut self) {
        self.idle_blocks.add(1);
    }

    /// Counts one less free block.
    #[inline]
    pub(crate) fn unlisted(&mut self) {
        self.idle_blocks.current -= 1;
    }

    /// Free bytes and blocks.
    #[inline]
    pub(crate) fn idle(&self) -> (Count, Count) {
        (self.idle_bytes, self.idle_blocks)
    }

    /// Counts a free block that is now in use.
    #[inline]
    pub(crate) fn used(&mut self, size: u64, requested: u64) {
        self.lost(size);
        self.obtained(size, requested);
    }

    /// The bytes that have been free ever since this was asked last.
    pub(crate) fn spare(&mut self) -> u64 {
        let idle = self.idle_bytes.current;
        std::mem::replace(&mut self.low, idle).min(idle)
    }

    /// Counts a block in use that is now free.
    #[inline]
    pub(crate) fn freed(&mut self, size: u64, requested: u64) {
        self.sub(Quantity::Bytes, size);
        self.sub(Quantity::Requested, requested);
        self.sub(Quantity::Blocks, 1);
        self.gained(size);
    }

    /// Counts a block in use whose memory counts for another arena.
    #[inline]
    pub(crate) fn obtained(&mut self, size: u64, requested: u64) {
        self.add(Quantity::Bytes, size);
        self.add(Quantity::Requested, requested);
        self.add(Quantity::Blocks, 1);
    }

    /// Counts a block in use that was freed, but is not reusable yet.
    pub(crate) fn retained(&mut self, size: u64, requested: u64) {
        self.sub(Quantity::Requested, requested);
        self.pending_bytes += size;
        self.pending_blocks += 1;
    }

    /// Counts a block that is no longer pending. [`freed`](Self::freed) comes next, with nothing
    /// requested.
    pub(crate) fn passed(&mut self, size: u64) {
        self.pending_bytes -= size;
        self.pending_blocks -= 1;
    }

    /// Whether a credit is used up.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.credit.iter().fold(0, |all, credit| all | credit) < 0
    }

    /// The quantities whose credit is used up.
    pub(crate) fn short(&self) -> [bool; QUANTITIES] {
        self.credit.map(|credit| credit < 0)
    }

    #[inline]
    pub(crate) fn current(&self, quantity: Quantity) -> u64 {
        let at = quantity as usize;
        (self.given[at] - self.credit[at]) as u64
    }

    pub(crate) fn added(&self, quantity: Quantity) -> u64 {
        self.added[quantity as usize]
    }

    /// Bytes and blocks that are pending.
    pub(crate) fn pending(&self) -> (u64, u64) {
        (self.pending_bytes, self.pending_blocks)
    }

    /// Takes the credit of these quantities back.
    pub(crate) fn recall(&mut self, which: &[bool; QUANTITIES]) {
        for at in (0..QUANTITIES).filter(|&at| which[at]) {
            self.given[at] -= self.credit[at];
            self.credit[at] = 0;
        }
    }

    /// Hands out credit of these quantities.
    pub(crate) fn grant(&mut self, which: &[bool; QUANTITIES], amounts: &[u64; QUANTITIES]) {
        for at in (0..QUANTITIES).filter(|&at| which[at]) {
            self.given[at] += amounts[at] as i64;
            self.credit[at] += amounts[at] as i64;
        }
    }
}
