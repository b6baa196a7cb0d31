//! The model checker's side of `src/table/sync.rs`: the same names over loom's primitives.

pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Memory whose uses loom orders.
#[derive(Debug)]
pub(super) struct Handed(loom::cell::UnsafeCell<()>);

impl Handed {
    pub(super) fn new() -> Self {
        Self(loom::cell::UnsafeCell::new(()))
    }

    pub(super) fn read(&self) {
        self.0.with(|_| ());
    }

    pub(super) fn write(&self) {
        self.0.with_mut(|_| ());
    }
}
