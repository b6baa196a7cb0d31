//! A place in a timeline that many threads read and move: a reference and a number that belong together.
//! It knows nothing of queues, and takes its atomics from `sync`, so that a model checker can run it.

use super::sync::{AtomicPtr, AtomicU64, Ordering, fence, spin_loop};

/// A reference and a value, read without a lock: a sequence lock of which the version is odd while the
/// two are written. The reference is static, so that it may be followed whenever it was read.
pub(super) struct Point<T: 'static> {
    version: AtomicU64,
    /// NULL: never set.
    at: AtomicPtr<T>,
    value: AtomicU64,
}

/// A read met a write.
#[derive(Debug)]
pub(super) struct Torn;

impl<T> Default for Point<T> {
    fn default() -> Self {
        Self {
            version: AtomicU64::new(0),
            at: AtomicPtr::new(std::ptr::null_mut()),
            value: AtomicU64::new(0),
        }
    }
}

impl<T: Sync> Point<T> {
    /// What was written last; `None` before the first time.
    #[inline]
    pub(super) fn read(&self) -> Option<(&'static T, u64)> {
        loop {
            if let Ok(found) = self.try_read() {
                return found;
            }
            spin_loop();
        }
    }

    /// One attempt to read; an error if a write came in between.
    #[inline]
    pub(super) fn try_read(&self) -> Result<Option<(&'static T, u64)>, Torn> {
        let version = self.version.load(Ordering::Acquire);
        let at = self.at.load(Ordering::Relaxed);
        let value = self.value.load(Ordering::Relaxed);
        // Whoever has read something of a later write sees its odd version below.
        fence(Ordering::Acquire);
        if version & 1 != 0 || self.version.load(Ordering::Relaxed) != version {
            return Err(Torn);
        }
        // SAFETY: NULL, or from the static reference of a `write`.
        Ok(unsafe { at.as_ref() }.map(|at| (at, value)))
    }

    /// Waits for a move that is under way. One that begins later sees what this thread did before, and so does its value.
    pub(super) fn settle(&self) {
        loop {
            let version = self.version.load(Ordering::Relaxed);
            let (settled, missed) = (Ordering::AcqRel, Ordering::Relaxed);
            if version & 1 == 0
                && self
                    .version
                    .compare_exchange(version, version, settled, missed)
                    .is_ok()
            {
                return;
            }
            spin_loop();
        }
    }

    /// Moves the point to where it is during the move. Of several threads the last one counts.
    #[inline]
    pub(super) fn write(&self, at: &'static T, value: impl FnOnce() -> u64) {
        let version = loop {
            let version = self.version.load(Ordering::Relaxed);
            let free = version & 1 == 0;
            let (taken, missed) = (Ordering::Acquire, Ordering::Relaxed);
            if free
                && self
                    .version
                    .compare_exchange(version, version + 1, taken, missed)
                    .is_ok()
            {
                break version;
            }
            spin_loop();
        };
        fence(Ordering::Release);
        self.at
            .store(std::ptr::from_ref(at).cast_mut(), Ordering::Relaxed);
        self.value.store(value(), Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }
}
