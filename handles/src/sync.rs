//! The primitives of the table of handles. `tests/model` compiles the same sources with a model checker's
//! primitives in place of these.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Memory that threads use one after the other. A model checker sees by it whether each use is ordered.
#[derive(Debug)]
pub(crate) struct Handed;

impl Handed {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self
    }

    /// The object is read.
    #[inline(always)]
    pub(crate) fn read(&self) {}

    /// The object is made, or dropped.
    #[inline(always)]
    pub(crate) fn write(&self) {}
}
