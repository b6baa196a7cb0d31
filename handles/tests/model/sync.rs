//! The primitives of `src/sync.rs` for the model checker: the same names over loom's primitives.

pub(crate) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Memory whose uses loom tests for order.
#[derive(Debug)]
pub(crate) struct Handed(loom::cell::UnsafeCell<()>);

impl Handed {
    pub(crate) fn new() -> Self {
        Self(loom::cell::UnsafeCell::new(()))
    }

    pub(crate) fn read(&self) {
        self.0.with(|_| ());
    }

    pub(crate) fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
