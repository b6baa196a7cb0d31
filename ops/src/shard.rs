//! Numbers of threads, for tables of which each thread uses its own.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many tables there are. More threads than this share some.
pub const SHARDS: usize = 16;

/// The table of the calling thread.
#[inline]
pub fn shard() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(THREADS.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}
