//! How much memory the caches of all devices together may hold. Limits of each device are its allocator's.
//!
//! It must never hold anything up: what does not fit is refused at once, and the allocator that asked
//! decides what to give back.

use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::Code;
use outrigger_locks::{Rank, RwLock};

use crate::{Error, Result};

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

/// A cache that counts for the process and can give memory back.
pub(crate) trait Cache: Sync {
    /// The number of its device.
    fn index(&self) -> u32;

    /// Gives back what is not in use. Gives how many bytes.
    fn give_back(&self) -> u64;
}

static CACHES: RwLock<Vec<&'static dyn Cache>> = RwLock::new(Rank::Caches, Vec::new());

/// A new cache counts from now on.
pub(crate) fn join(cache: &'static dyn Cache) {
    CACHES.write().push(cache);
}

/// Has the caches of other devices give back what is not in use, if the limit of the process stands in the way of
/// `needed` bytes. Gives how many bytes.
pub(super) fn relieve(device: u32, needed: u64) -> u64 {
    if !in_the_way(needed) {
        return 0;
    }
    let caches = CACHES.read().clone();
    let others = caches.iter().filter(|one| one.index() != device);
    others.map(|one| one.give_back()).sum()
}
