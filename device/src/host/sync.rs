//! The synchronization primitives of a queue's threads. `tests/model` compiles the same sources with
//! the primitives of a model checker in place of these, so the checked code is the code that runs. This
//! module has only names. Code that no model runs uses the standard primitives.

pub(super) use std::hint::spin_loop;
#[cfg(not(outrigger_tsan))]
pub(super) use std::sync::atomic::fence;
pub(super) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};
pub(super) use std::thread::yield_now;
pub(super) use std::thread_local as per_thread;

pub(super) use parking_lot::{Condvar, Mutex};

/// A lock that nobody waits for.
pub(super) type TryLock<T> = parking_lot::Mutex<T>;

/// Whether a model checker runs this: what is counted or waited for is then as little as can be.
pub(super) const MODEL: bool = false;

/// A fence as the thread sanitizer sees it, which models none: a read-modify-write of one word, so that
/// each fence is ordered behind the one before it.
#[cfg(outrigger_tsan)]
pub(super) fn fence(_order: Ordering) {
    static WORD: AtomicU32 = AtomicU32::new(0);
    WORD.fetch_add(1, Ordering::SeqCst);
}

/// Starts a thread that nobody joins.
pub(super) fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name);
    thread.spawn(body).map(drop)
}

/// Memory that one thread hands to another. A model checker sees by it whether each use is ordered.
#[derive(Debug)]
pub(super) struct Handed;

impl Handed {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self
    }

    /// Something there is read.
    #[inline(always)]
    pub(super) fn read(&self) {}

    /// Something there is written, or the memory is used for something else.
    #[inline(always)]
    pub(super) fn write(&self) {}
}
