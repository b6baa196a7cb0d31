//! The layer `record`, and the files that it writes: every call of a driver with its data and results.
//! `replay` runs them.
//!
//! Handles and addresses are written as numbers of objects and of memory. Host memory of copies is
//! written as it was when the copy ran. Host functions are written as places in a file. What a host
//! call does is unknown: its outcome is written, and its effects on host memory show in the copies that
//! read this memory.

mod format;
pub(crate) mod function;
mod hooks;
mod names;
mod output;
mod recorder;
mod values;

pub use format::{ReadError, Reader, Record, VERSION, Value, Writer};
pub use recorder::record;
