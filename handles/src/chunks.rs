//! An array that grows and never moves. It consists of chunks, which are made when they are first needed and are never
//! freed. To find an element costs two loads.

use std::sync::atomic::{AtomicPtr, Ordering};

/// The elements of a chunk.
const CHUNK: usize = 256;

/// The most chunks.
const CHUNKS: usize = 4096;

/// The most elements.
pub(crate) const MOST: u32 = (CHUNK * CHUNKS) as u32;

/// The array.
#[derive(Debug)]
pub(crate) struct Chunks<E: 'static>([AtomicPtr<[E; CHUNK]>; CHUNKS]);

impl<E: Sync> Chunks<E> {
    pub(crate) const fn new() -> Self {
        Self([const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS])
    }

    /// An element; `None` if its chunk was not made yet.
    #[inline]
    pub(crate) fn get(&self, index: usize) -> Option<&'static E> {
        let chunk = self.0.get(index / CHUNK)?.load(Ordering::Acquire);
        // SAFETY: the pointer is NULL, or from a box that `get_or_make` leaked.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[index % CHUNK])
    }

    /// An element. Makes its chunk if there is none. The index must be less than [`MOST`].
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
                // SAFETY: the box was made above, and its pointer was not stored.
                drop(unsafe { Box::from_raw(fresh) });
                first
            }
        };
        // SAFETY: this or another thread leaked the box in this function, and chunks are never freed.
        let chunk: &'static [E; CHUNK] = unsafe { &*chunk };
        &chunk[index % CHUNK]
    }
}
