//! Counts the bytes that an allocator's bookkeeping takes from the host: a global allocator that adds up what
//! one thread asks for while it is inside of the allocator. It must never count what the harness or the
//! simulated device allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
    static BYTES: Cell<i64> = const { Cell::new(0) };
}

/// The global allocator of this program: the system's, counted.
pub(crate) struct Counter;

// SAFETY: all is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counter {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the contract of `GlobalAlloc` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the contract of `GlobalAlloc` is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the contract of `GlobalAlloc` is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as i64 - layout.size() as i64);
        // SAFETY: the contract of `GlobalAlloc` is passed on.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

fn count(bytes: i64) {
    if COUNTED.get() {
        BYTES.set(BYTES.get() + bytes);
    }
}

/// Runs with counting on or off, and as before afterwards.
pub(crate) fn counted<T>(on: bool, run: impl FnOnce() -> T) -> T {
    let before = COUNTED.replace(on);
    let result = run();
    COUNTED.set(before);
    result
}

/// Bytes that are allocated and were counted, on this thread.
pub(crate) fn bytes() -> i64 {
    BYTES.get()
}
