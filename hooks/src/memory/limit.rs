//! How much memory may be held: a limit for the process over all devices, kept here, and limits of each
//! device, which its allocator keeps.
//!
//! It must never hold anything up: what does not fit is refused at once, and the allocator that asked
//! decides what to give back.

use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::Code;

use crate::{Device, Error, Result};

static HELD: AtomicU64 = AtomicU64::new(0);
static LIMIT: AtomicU64 = AtomicU64::new(u64::MAX);

/// The most bytes that the caches of all devices together may hold; `u64::MAX` is no limit.
pub fn process_memory_limit() -> u64 {
    LIMIT.load(Ordering::Relaxed)
}

/// Limits the bytes that the caches of all devices together may hold; `u64::MAX` lifts the limit. What
/// is held already stays: below it, memory is given back as it becomes idle and more is needed.
pub fn set_process_memory_limit(bytes: u64) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Bytes that the caches of all devices hold.
pub fn process_memory_held() -> u64 {
    HELD.load(Ordering::Relaxed)
}

/// Counts bytes that a device is about to give.
pub(super) fn take(size: u64) -> Result<()> {
    let limit = process_memory_limit();
    let taken = HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
        held.checked_add(size).filter(|held| *held <= limit)
    });
    taken.map(drop).map_err(|held| {
        Error::new(
            Code::OUT_OF_MEMORY,
            format!(
                "{size} bytes more than the {held} held would pass the process' limit of {limit}"
            ),
        )
    })
}

/// Counts bytes that were given back.
pub(super) fn give(size: u64) {
    HELD.fetch_sub(size, Ordering::Relaxed);
}

/// True if the limit of the process stands in the way of `size` bytes.
pub(super) fn in_the_way(size: u64) -> bool {
    process_memory_held().saturating_add(size) > process_memory_limit()
}

impl Device {
    /// The most bytes that the cache may take from the device; `u64::MAX` is no limit.
    pub fn memory_limit(&self) -> u64 {
        self.allocator().backend().limit.load(Ordering::Relaxed)
    }

    /// Limits the bytes that the cache may take from the device; `u64::MAX` lifts the limit. What is held
    /// already stays: below it, memory is given back as it becomes idle and more is needed.
    pub fn set_memory_limit(&self, bytes: u64) {
        let limit = &self.allocator().backend().limit;
        limit.store(bytes, Ordering::Relaxed);
        self.allocator().set_limit(bytes);
    }

    /// The limit as a fraction of the device's memory: 1 where there is none.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn memory_fraction(&self) -> Result<f64> {
        let (_, total) = self.memory_info()?;
        let fraction = self.memory_limit() as f64 / total.max(1) as f64;
        Ok(fraction.min(1.0))
    }

    /// Limits the bytes that the cache may take to this fraction of the device's memory, 0 to 1.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for another fraction; what the driver reports.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("{fraction} is not a fraction of the device's memory: give 0 to 1"),
            ));
        }
        let (_, total) = self.memory_info()?;
        self.set_memory_limit((total as f64 * fraction) as u64);
        Ok(())
    }
}
