//! The layer `record`, and the files that it writes: every call of a driver with its data and results.
//! `replay` runs them.
//!
//! Handles and addresses are written as numbers of objects and memory, host memory of copies as the
//! bytes that were there when the copy ran, host functions by their place in a file. What a host call does
//! is not known: its outcome is written, and its effects on host memory are seen in the copies that read it.

mod format;
pub(crate) mod function;
mod names;
mod recorder;
mod values;

pub use format::{ReadError, Reader, Record, VERSION, Value, Writer};
pub use recorder::record;
