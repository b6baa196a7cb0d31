//! A slot of a table of handles. It holds one object at a time, and counts the references to it.
//!
//! One atomic word has the whole state: the generation of the object, whether its handle is valid, and the number of
//! references. A look-up compares and counts in one step, so an object is never found without being counted. A handle
//! that was destroyed is refused at once. Its object lives until the last reference is gone. Only then the slot is used
//! again, under the next generation.

use std::ptr::NonNull;

use crate::sync::{AtomicPtr, AtomicU64, Handed, Ordering};

/// The bit that is set while the handle is valid.
const LIVE: u64 = 1 << 31;

/// The bits of the count of references.
const COUNT: u64 = LIVE - 1;

/// A limit that no correct program reaches: more references than this are a defect in the counting.
const MOST: u64 = COUNT / 2;

/// A place for one object.
///
/// The upper half of its word is the generation. Below are the bit [`LIVE`] and the count of references, one of which
/// is the table's while the handle is valid. Each look-up writes to the word, so slots share no cache line (nor a pair of
/// lines, which are fetched together): threads that use objects of their own do not wait for each other.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot<T> {
    word: AtomicU64,
    object: AtomicPtr<T>,
    handed: Handed,
}

// SAFETY: an object is used only by holders of a counted reference, on any thread. The last of them drops it. `T` is
// `Send` and `Sync`.
unsafe impl<T: Send + Sync> Send for Slot<T> {}
// SAFETY: as for `Send`: the word orders the uses of the object, and `T` is `Send` and `Sync`.
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

    /// The generation of the next object; `None` if no generation is left.
    pub(crate) fn next_generation(&self) -> Option<u32> {
        let word = self.word.load(Ordering::Relaxed);
        generation_of(word).checked_add(1)
    }

    /// Puts an object in. Its handle is valid from here on. It has two references: one of the table, and one of the
    /// caller.
    ///
    /// The slot is empty, and only this caller fills it.
    pub(crate) fn fill(&self, generation: u32, object: NonNull<T>) {
        self.handed.write();
        // Release: a thread that reads the pointer without counting sees the object, too.
        self.object.store(object.as_ptr(), Ordering::Release);
        // Release: a thread that finds the handle valid sees the object.
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
            // Acquire: this thread sees the object as it was put in.
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

    /// Counts one more reference. The caller has one already.
    #[inline]
    pub(crate) fn again(&self) {
        let word = self.word.fetch_add(1, Ordering::Relaxed);
        assert!(word & COUNT < MOST, "a handle has too many references");
    }

    /// Makes the handle invalid. If several threads try, one of them succeeds, and gets the reference that the table
    /// had.
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
    /// The caller has counted a reference, and keeps it as long as it uses the result.
    #[inline]
    pub(crate) unsafe fn object(&self) -> NonNull<T> {
        self.handed.read();
        // Relaxed: whoever counted a reference has acquired the word, which was stored after the pointer. The pointer
        // does not change before the last reference is gone.
        let object = self.object.load(Ordering::Relaxed);
        // SAFETY: this function's contract: there is a reference, so the slot has the pointer that `fill` was given.
        unsafe { NonNull::new_unchecked(object) }
    }

    /// The object that was put in last, even if its handle is not valid any more; NULL if there was none.
    #[inline]
    pub(crate) fn latest(&self) -> *mut T {
        self.object.load(Ordering::Acquire)
    }

    /// Ends a reference. Returns the object if that was the last one. The slot is empty then.
    ///
    /// # Safety
    /// The caller has counted this reference, and does not use it any more.
    #[inline]
    pub(crate) unsafe fn leave(&self) -> Option<NonNull<T>> {
        // AcqRel: all uses of the object by other threads come before its drop.
        let word = self.word.fetch_sub(1, Ordering::AcqRel);
        if word & COUNT != 1 {
            return None;
        }
        self.handed.write();
        // The object that `fill` was given. No look-up can count it now: the count is 0, so the table's own reference
        // is gone, and with it `LIVE`.
        NonNull::new(self.object.load(Ordering::Relaxed))
    }
}

fn generation_of(word: u64) -> u32 {
    (word >> 32) as u32
}
