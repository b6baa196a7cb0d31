//! A slot of a table of handles: one object at a time, counted by those who use it.
//!
//! One word says all: the generation of the object, whether its handle is valid, and how many references
//! there are. A look-up compares and counts in one step, so that there is no moment in which an object was
//! found and is not counted yet. A handle that was destroyed is refused at once; its object lives until the
//! last reference is gone, and only then the slot is used again, under the next generation.

use std::ptr::NonNull;

use crate::sync::{AtomicPtr, AtomicU64, Handed, Ordering};

/// Set while the handle is valid.
const LIVE: u64 = 1 << 31;

/// Of the count of references.
const COUNT: u64 = LIVE - 1;

/// More references than any program has; beyond it something counts wrong.
const MOST: u64 = COUNT / 2;

/// A place for one object.
///
/// Its word has the generation in the upper half, then [`LIVE`], then the count of references, of which the
/// table has one while the handle is valid.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    word: AtomicU64,
    object: AtomicPtr<T>,
    handed: Handed,
}

// SAFETY: an object is shared by those who have counted themselves, and dropped by the last of them, on
// whichever thread.
unsafe impl<T: Send + Sync> Send for Slot<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    /// An empty slot, before its first generation.
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
            object: AtomicPtr::new(std::ptr::null_mut()),
            handed: Handed::new(),
        }
    }

    /// The generation that an object put in now would have; `None` if they are used up.
    pub(crate) fn next_generation(&self) -> Option<u32> {
        let word = self.word.load(Ordering::Relaxed);
        generation_of(word).checked_add(1)
    }

    /// Puts an object in: its handle is valid from here on. It has two references, the table's and one for
    /// the caller.
    ///
    /// The caller alone may put something in: the slot is empty.
    pub(crate) fn fill(&self, generation: u32, object: NonNull<T>) {
        self.handed.write();
        // Release: who reads the pointer without counting sees the object, too.
        self.object.store(object.as_ptr(), Ordering::Release);
        // Release: who finds the handle valid sees the object.
        let word = u64::from(generation) << 32 | LIVE | 2;
        self.word.store(word, Ordering::Release);
    }

    /// Counts a reference to the object of this generation, if its handle is valid.
    #[inline]
    pub(crate) fn enter(&self, generation: u32) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if generation_of(word) != generation || word & LIVE == 0 {
                return false;
            }
            assert!(word & COUNT < MOST, "a handle has too many references");
            // Acquire: the object is seen as it was put in.
            let (done, missed) = (Ordering::Acquire, Ordering::Relaxed);
            match self
                .word
                .compare_exchange_weak(word, word + 1, done, missed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Counts one more reference of somebody who has one.
    #[inline]
    pub(crate) fn again(&self) {
        let word = self.word.fetch_add(1, Ordering::Relaxed);
        assert!(word & COUNT < MOST, "a handle has too many references");
    }

    /// Makes the handle invalid. Of several threads one succeeds, which takes over the table's reference.
    pub(crate) fn close(&self, generation: u32) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            if generation_of(word) != generation || word & LIVE == 0 {
                return false;
            }
            let (done, missed) = (Ordering::Acquire, Ordering::Relaxed);
            match self
                .word
                .compare_exchange_weak(word, word & !LIVE, done, missed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// The object.
    ///
    /// # Safety
    /// The caller has counted a reference, which lasts as long as the result is used.
    #[inline]
    pub(crate) unsafe fn object(&self) -> NonNull<T> {
        self.handed.read();
        // Relaxed: whoever has counted a reference has acquired the word that was stored behind the pointer,
        // and the pointer does not change before the last reference is gone.
        let object = self.object.load(Ordering::Relaxed);
        // SAFETY: the slot is not empty, so that it has what `fill` was given.
        unsafe { NonNull::new_unchecked(object) }
    }

    /// The object that was put in last, also if its handle is invalid by now; NULL if there was none.
    #[inline]
    pub(crate) fn latest(&self) -> *mut T {
        self.object.load(Ordering::Acquire)
    }

    /// Gives a reference back. The object, if that was the last one: the slot is empty then.
    ///
    /// # Safety
    /// The caller has counted this reference, and does not use it any more.
    #[inline]
    pub(crate) unsafe fn leave(&self) -> Option<NonNull<T>> {
        // AcqRel: what others have done with the object lies before its end.
        let word = self.word.fetch_sub(1, Ordering::AcqRel);
        if word & COUNT != 1 {
            return None;
        }
        self.handed.write();
        // What `fill` was given. Nobody else counts it any more: the count is 0, which no look-up counts up, and the
        // table's own reference was among those that are gone.
        NonNull::new(self.object.load(Ordering::Relaxed))
    }
}

fn generation_of(word: u64) -> u32 {
    (word >> 32) as u32
}
