//! Errors, with texts on which a user can act.
//!
//! An error carries its numbers beside the text, so that other code may show it in other words.

use std::fmt;

use thiserror::Error;

use crate::PoolId;

/// The reason why an allocation failed. The allocator is as it was before, except that cached segments
/// were given back.
#[derive(Debug, Error)]
pub enum AllocError<E> {
    /// Neither the cache nor the device nor the limit could serve the request, after cached segments
    /// were given back and pending frees were waited for.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The device failed in another way than by being out of memory.
    #[error("{0}")]
    Backend(E),
    /// The device returned memory that exceeds the address space, or that overlaps memory of an earlier
    /// call: its driver is wrong.
    #[error(
        "the driver returned {size} bytes at {address:#x}, which overlap memory that it returned \
         before or leave the address space"
    )]
    BadSegment {
        /// The address that the driver returned.
        address: u64,
        /// Bytes that it was asked for.
        size: u64,
    },
}

/// The reason why an allocation from a private pool failed.
#[derive(Debug, Error)]
pub enum PoolAllocError<E> {
    /// The pool has ended, or never was. Nothing was changed.
    #[error("{0}")]
    Pool(PoolError),
    /// The pool is there, but the allocation failed.
    #[error("{0}")]
    Alloc(AllocError<E>),
}

/// The reason why a private pool could not be used. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PoolError {
    /// No pool has this number.
    #[error(
        "no memory pool has the number {pool}; use a number that creating a pool of this \
         device returned"
    )]
    Unknown {
        /// The pool that the caller named.
        pool: PoolId,
    },
    /// The pool sleeps, so there is no memory at its addresses.
    #[error(
        "memory pool {pool} sleeps: its memory is not on the device. Wake it before it is used"
    )]
    Asleep {
        /// The pool that the caller named.
        pool: PoolId,
    },
    /// The pool is awake already.
    #[error("memory pool {pool} is awake")]
    Awake {
        /// The pool that the caller named.
        pool: PoolId,
    },
    /// Another thread allocates from the pool.
    #[error("memory pool {pool} is being allocated from, and cannot be put to sleep meanwhile")]
    Busy {
        /// The pool that the caller named.
        pool: PoolId,
    },
    /// The pool has memory that cannot be separated from its addresses.
    #[error(
        "memory pool {pool} cannot sleep: that takes a driver with virtual memory, and \
         expandable_segments in OUTRIGGER_ALLOC not set to False"
    )]
    NotMapped {
        /// The pool that the caller named.
        pool: PoolId,
    },
    /// The last reference was given back.
    #[error(
        "memory pool {pool} was released: its last reference was given back. Keep a reference for \
         as long as it is used, or create another pool"
    )]
    Released {
        /// The pool that the caller named.
        pool: PoolId,
    },
}

/// The figures of an allocation that failed, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The bytes that the caller asked for.
    pub requested: u64,
    /// The bytes that are held from the device.
    pub reserved: u64,
    /// The bytes that callers have.
    pub allocated: u64,
    /// The bytes that are held, but not in use: in blocks that are too small, or that belong to other
    /// streams or pools.
    pub free: u64,
    /// The largest of these blocks.
    pub largest_free_block: u64,
    /// The most that may be held; `u64::MAX` is no limit.
    pub limit: u64,
    /// The figures of the device itself, if it gives any.
    pub device: Option<crate::MemoryInfo>,
    /// The labels that hold most, the largest first; empty if nobody asked for labels.
    pub holders: Vec<crate::Holder>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            // Libraries that try again with less find " out of memory." in the text.
            "out of memory. Tried to allocate {}.",
            Bytes(self.requested)
        )?;
        if let Some(device) = self.device {
            write!(
                f,
                " The device has {} in all, of which {} are free.",
                Bytes(device.total),
                Bytes(device.free)
            )?;
        }
        write!(
            f,
            " This process holds {}: {} in use, {} cached but free, the largest free block {}.",
            Bytes(self.reserved),
            Bytes(self.allocated),
            Bytes(self.free),
            Bytes(self.largest_free_block)
        )?;
        if self.limit != u64::MAX {
            write!(f, " The limit set for it is {}.", Bytes(self.limit))?;
        }
        if !self.holders.is_empty() {
            f.write_str(" Most of it is held by ")?;
            for (at, holder) in self.holders.iter().enumerate() {
                let separator = if at == 0 { "" } else { ", " };
                let label = holder.label.as_deref().unwrap_or("(no label)");
                let (bytes, blocks) = (Bytes(holder.bytes), holder.blocks);
                write!(f, "{separator}{label} ({bytes} in {blocks} blocks)")?;
            }
            f.write_str(".")?;
        }
        if self.free >= self.requested {
            f.write_str(
                " Enough is free, but in pieces, on other streams or in other pools: \
                 max_split_size_mb in OUTRIGGER_ALLOC may reduce fragmentation.",
            )?;
        }
        Ok(())
    }
}

/// The reason why an address could not be freed, recorded on a stream, held or let go. Nothing was
/// changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FreeError {
    /// The address is in no segment of this allocator.
    #[error("{address:#x} was not allocated here")]
    Unknown {
        /// The address that the caller named.
        address: u64,
    },
    /// The address is in memory that is not in use.
    #[error("{address:#x} is already free")]
    AlreadyFreed {
        /// The address that the caller named.
        address: u64,
    },
    /// The address is inside of a block, not at its start.
    #[error("{address:#x} is inside of the allocation at {base:#x}, not its start")]
    Interior {
        /// The address that the caller named.
        address: u64,
        /// The start of the block around it.
        base: u64,
    },
    /// A hold was given back that nobody has.
    #[error("{address:#x} has no hold to give back; each hold is given back once")]
    NotHeld {
        /// The address that the caller named.
        address: u64,
    },
}

/// A number of bytes, shown in the largest unit that leaves at least 1.
struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(f, "{} bytes", self.0);
        }
        let power = self.0.ilog2() / 10;
        let value = self.0 as f64 / (1_u64 << (10 * power)) as f64;
        write!(f, "{value:.2} {}", UNITS[power as usize - 1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_tells_the_whole_story() {
        let error = OutOfMemory {
            requested: 3 << 29,
            reserved: 15 << 30,
            allocated: 13 << 30,
            free: 2 << 30,
            largest_free_block: 1 << 20,
            limit: 15 << 30,
            device: Some(crate::MemoryInfo {
                free: 512,
                total: 16 << 30,
            }),
            holders: vec![crate::Holder {
                label: Some("weights".into()),
                bytes: 12 << 30,
                blocks: 7,
            }],
        };
        assert_eq!(
            error.to_string(),
            "out of memory. Tried to allocate 1.50 GiB. The device has 16.00 GiB in all, of which \
             512 bytes are free. This process holds 15.00 GiB: 13.00 GiB in use, 2.00 GiB cached \
             but free, the largest free block 1.00 MiB. The limit set for it is 15.00 GiB. Most of \
             it is held by weights (12.00 GiB in 7 blocks). Enough is free, but in pieces, on other streams or in other pools: max_split_size_mb in \
             OUTRIGGER_ALLOC may reduce fragmentation."
        );
        assert_eq!(Bytes(u64::MAX).to_string(), "16.00 EiB");
    }
}
