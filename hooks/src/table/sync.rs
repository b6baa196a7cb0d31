//! The primitives of the table of handles. `tests/model` compiles the same sources with a model checker's
//! primitives in place of these.

pub(super) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Memory that threads use one after the other. A model checker sees by it whether each use is ordered.
#[derive(Debug)]
pub(super) struct Handed;

impl Handed {
    #[inline(always)]
    pub(super) fn new() -> Self {
        Self
    }

    /// The object is read.
    #[inline(always)]
    pub(super) fn read(&self) {}

    /// The object is made, or dropped.
    #[inline(always)]
    pub(super) fn write(&self) {}
}
