//! The limit of the memory that the caches of all devices hold together. Limits of single devices are their
//! allocators'.
//!
//! Nothing here waits. A request that does not fit is refused at once, and the allocator that made it decides what to
//! give back.

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

/// Limits the bytes that the caches of all devices together may hold; `u64::MAX` lifts the limit. Memory above a new
/// limit stays until it is idle and more is needed.
pub fn set_process_memory_limit(bytes: u64) {
    LIMIT.store(bytes, Ordering::Relaxed);
}

/// Bytes that the caches of all devices hold.
pub fn process_memory_held() -> u64 {
    HELD.load(Ordering::Relaxed)
}

/// Counts bytes that a driver is about to give. Refuses them if they do not fit into the limit.
pub(super) fn take(size: u64) -> Result<()> {
    let limit = process_memory_limit();
    let taken = HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
        held.checked_add(size).filter(|held| *held <= limit)
    });
    taken.map(drop).map_err(|held| {
        Error::new(
            Code::OUT_OF_MEMORY,
            format!(
                "{size} more bytes would pass the process's limit of {limit}: {held} bytes are held"
            ),
        )
    })
}

/// Counts bytes that went back to a driver.
pub(super) fn give(size: u64) {
    HELD.fetch_sub(size, Ordering::Relaxed);
}

/// Whether `size` more bytes would pass the limit of the process.
pub(super) fn in_the_way(size: u64) -> bool {
    process_memory_held().saturating_add(size) > process_memory_limit()
}

/// A cache that counts for the limit of the process, and that can give memory back.
pub(crate) trait Cache: Sync {
    /// The number of its device.
    fn index(&self) -> u32;

    /// Gives back the memory that is not in use. Returns the number of bytes.
    fn give_back(&self) -> u64;
}

static CACHES: RwLock<Vec<&'static dyn Cache>> = RwLock::new(Rank::Caches, Vec::new());

/// Adds a cache.
pub(crate) fn join(cache: &'static dyn Cache) {
    CACHES.write().push(cache);
}

/// If `needed` more bytes would pass the limit of the process, the caches of other devices give back what is not in
/// use. Returns the number of bytes.
pub(super) fn relieve(device: u32, needed: u64) -> u64 {
    if !in_the_way(needed) {
        return 0;
    }
    let caches = CACHES.read().clone();
    let others = caches.iter().filter(|one| one.index() != device);
    others.map(|one| one.give_back()).sum()
}
