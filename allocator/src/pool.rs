//! Names and figures of private pools, as callers see them.
//!
//! A pool's id and figures are plain data. They must never refer back into the allocator.

use std::fmt;
use std::num::NonZeroU64;

/// The name of a private pool of one allocator. No number is given twice. In an `Option`, `None` is the
/// memory that all share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId(NonZeroU64);

impl PoolId {
    /// The pool of this number, whether or not it exists; `None` for 0.
    pub fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    /// The pool's number.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The figures of a private pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes held from the device.
    pub reserved: u64,
    /// Bytes of blocks in use, after rounding.
    pub allocated: u64,
    /// The largest `allocated` since the pool was made.
    pub allocated_peak: u64,
    /// Segments held from the device.
    pub segments: u64,
    /// References; 0 once released, while blocks still in use keep segments.
    pub references: u64,
}
