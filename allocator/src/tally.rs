//! What an arena counts at every allocation, and how the peaks of a whole device stay exact although
//! no arena knows the others.
//!
//! Each quantity of an arena has a *credit*: how much it may still rise before the sum over all arenas
//! might exceed the peak known so far. Rising consumes credit, falling restores it, and both touch
//! nothing but the arena. Only when a credit falls below zero are all arenas asked: the peak is
//! raised if the sum says so, and what is left below it is handed out anew: half of it to who ran short.
//! So a peak is exact for operations that follow each other, and below the peak no arena waits for
//! another. What is free has no credit: it is added up when somebody asks, or a peak is raised.

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quantity {
    /// Bytes of blocks in use or pending, after rounding.
    Bytes = 0,
    /// Bytes of blocks in use, as asked for.
    Requested = 1,
    /// Blocks in use or pending.
    Blocks = 2,
}

/// How many quantities there are.
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
    /// What `credit` would be if the quantity were 0.
    given: [i64; QUANTITIES],
    /// All that was ever added.
    added: [u64; QUANTITIES],
    /// Of the bytes, requested bytes and blocks in use, those that are pending: freed, not reusable.
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

    /// Bytes are free that were not there, or were not to be had.
    #[inline]
    pub(crate) fn gained(&mut self, bytes: u64) {
        self.idle_bytes.add(bytes);
    }

    /// Free bytes are not to be had any more.
    #[inline]
    pub(crate) fn lost(&mut self, bytes: u64) {
        self.idle_bytes.current -= bytes;
        self.low = self.low.min(self.idle_bytes.current);
    }

    /// There is one free block more.
    #[inline]
    pub(crate) fn listed(&mut self) {
        self.idle_blocks.add(1);
    }

    /// There is one free block less.
    #[inline]
    pub(crate) fn unlisted(&mut self) {
        self.idle_blocks.current -= 1;
    }

    /// Free bytes and blocks.
    #[inline]
    pub(crate) fn idle(&self) -> (Count, Count) {
        (self.idle_bytes, self.idle_blocks)
    }

    /// A block that was free is in use.
    #[inline]
    pub(crate) fn used(&mut self, size: u64, requested: u64) {
        self.lost(size);
        self.obtained(size, requested);
    }

    /// Bytes that were free all the time since this was asked last.
    pub(crate) fn spare(&mut self) -> u64 {
        let idle = self.idle_bytes.current;
        std::mem::replace(&mut self.low, idle).min(idle)
    }

    /// A block in use is free.
    #[inline]
    pub(crate) fn freed(&mut self, size: u64, requested: u64) {
        self.sub(Quantity::Bytes, size);
        self.sub(Quantity::Requested, requested);
        self.sub(Quantity::Blocks, 1);
        self.gained(size);
    }

    /// A block is in use whose memory is another's.
    #[inline]
    pub(crate) fn obtained(&mut self, size: u64, requested: u64) {
        self.add(Quantity::Bytes, size);
        self.add(Quantity::Requested, requested);
        self.add(Quantity::Blocks, 1);
    }

    /// A block in use is freed, but not yet reusable.
    pub(crate) fn retained(&mut self, size: u64, requested: u64) {
        self.sub(Quantity::Requested, requested);
        self.pending_bytes += size;
        self.pending_blocks += 1;
    }

    /// A pending block is not pending any more: [`freed`](Self::freed) comes next, with nothing
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

    /// Which credits are used up.
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
