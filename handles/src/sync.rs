//! The primitives of the table of handles. `tests/model` compiles the table's slot with the primitives of a model
//! checker instead.

pub(crate) use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Marks uses of memory that threads hand to each other. The model checker tests whether the uses are ordered.
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
