//! An array that grows and never moves: chunks that are made at first need, and never freed. Finding an
//! element costs two loads.

use std::sync::atomic::{AtomicPtr, Ordering};

/// Elements of a chunk.
const CHUNK: usize = 256;

/// Chunks that there may be.
const CHUNKS: usize = 4096;

/// So many elements there may be.
pub(crate) const MOST: u32 = (CHUNK * CHUNKS) as u32;

/// The array.
#[derive(Debug)]
pub(crate) struct Chunks<E: 'static>([AtomicPtr<[E; CHUNK]>; CHUNKS]);

impl<E: Sync> Chunks<E> {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS])
    }

    /// An element, if its chunk was made.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&'static E> {
        let chunk = self.0.get(index / CHUNK)?.load(Ordering::Acquire);
        // SAFETY: NULL, or from a box that was leaked in `get_or_make`.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[index % CHUNK])
    }

    /// An element; makes its chunk if there is none. The index is less than [`MOST`].
    pub(crate) fn get_or_make(&self, index: usize, make: impl Fn() -> E) -> &'static E {
        if let Some(element) = self.get(index) {
            return element;
        }
        let fresh = Box::into_raw(Box::new(std::array::from_fn(|_| make())));
        let (done, missed) = (Ordering::AcqRel, Ordering::Acquire);
        let place = &self.0[index / CHUNK];
        let chunk = match place.compare_exchange(std::ptr::null_mut(), fresh, done, missed) {
            Ok(_) => fresh,
            Err(first) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                first
            }
        };
        // SAFETY: leaked, by this thread or another one.
        let chunk: &'static [E; CHUNK] = unsafe { &*chunk };
        &chunk[index % CHUNK]
    }
}
