//! Recorded traces of allocations, as text: what a program asked for, independent of what an allocator
//! did.
//!
//! ```text
//! # alloctrace v1; name=resnet50; anything else about the run
//! m step0                 a step begins: at this point the device is idle
//! # label encoder.layer.3 what follows belongs to this name, until the next such line
//! a 7 4096 0              allocation 7: 4096 bytes for work on stream 0
//! r 7 1                   stream 1 uses it too
//! f 7                     it is freed
//! # oom 68719476736 0     a request that nobody could serve: bytes and stream
//! ```
//!
//! A line is one operation; one space separates its fields. An id is used only once. A line that begins
//! with `#` and is neither of the two above is a comment, so a reader that does not know labels can
//! still read a trace with labels. The first line is the header, and always a comment.
//!
//! The module must never know an allocator: it feeds one, and it records one.

mod error;
mod ids;
mod reader;
mod writer;

use std::io::BufRead;

pub use error::{Problem, TraceError};
pub use reader::Reader;
pub use writer::Writer;

use crate::StreamId;

/// An operation of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `a <id> <bytes> <stream>`: an allocation.
    Alloc {
        /// The id of the allocation: no other allocation of the trace has it.
        id: u64,
        /// Bytes asked for.
        bytes: u64,
        /// The stream that it is for.
        stream: StreamId,
    },
    /// `f <id>`: a free.
    Free {
        /// The allocation that is freed.
        id: u64,
    },
    /// `r <id> <stream>`: another stream uses an allocation.
    Record {
        /// The allocation that is used.
        id: u64,
        /// The stream that uses it.
        stream: StreamId,
    },
    /// `m <label>`: a step begins, and the device is idle.
    Mark {
        /// The label, as a number for [`Reader::text`] or [`Trace::text`].
        text: u32,
    },
    /// `# label <text>`: allocations from here on belong to this name. An empty one ends the last.
    Label {
        /// The name, as a number for [`Reader::text`] or [`Trace::text`].
        text: u32,
    },
    /// `# oom <bytes> <stream>`: a request that failed for want of memory.
    OutOfMemory {
        /// Bytes asked for.
        bytes: u64,
        /// The stream that they were for.
        stream: StreamId,
    },
}

/// A whole trace in memory, ready to be replayed. Its ids are numbered from 0 in the order of the
/// allocations, so that a replay can use an array instead of a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The first line without its `#`; empty if there is none.
    pub header: String,
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// Number of allocations: ids are below it.
    pub allocations: usize,
    texts: Vec<Box<str>>,
}

impl Trace {
    /// Reads all of a trace.
    ///
    /// # Errors
    /// The first line that is wrong, or that the input cannot be read.
    pub fn load(input: impl BufRead) -> Result<Self, TraceError> {
        let mut reader = Reader::new(input);
        let mut numbers = std::collections::HashMap::new();
        let mut ops = Vec::new();
        let mut allocations = 0u64;
        for op in reader.by_ref() {
            let mut op = op?;
            match &mut op {
                Op::Alloc { id, .. } => {
                    numbers.insert(*id, allocations);
                    *id = allocations;
                    allocations += 1;
                }
                // The reader lets no free and no use of an unknown allocation pass.
                Op::Free { id } => *id = numbers.remove(id).unwrap_or(*id),
                Op::Record { id, .. } => *id = numbers.get(id).copied().unwrap_or(*id),
                Op::Mark { .. } | Op::Label { .. } | Op::OutOfMemory { .. } => {}
            }
            ops.push(op);
        }
        let allocations = usize::try_from(allocations).unwrap_or(usize::MAX);
        let (header, texts) = reader.into_parts();
        Ok(Self {
            header,
            ops,
            allocations,
            texts,
        })
    }

    /// The text with this number, which an operation of this trace carries; empty for any other.
    pub fn text(&self, text: u32) -> &str {
        self.texts.get(text as usize).map_or("", |text| text)
    }

    /// The value of `key=value;` in the header.
    pub fn header_field(&self, key: &str) -> Option<&str> {
        self.header.split(';').find_map(|field| {
            let (name, value) = field.split_once('=')?;
            (name.trim() == key).then_some(value.trim())
        })
    }

    /// The most bytes that were asked for and not yet freed at any time.
    pub fn peak_requested(&self) -> u64 {
        let mut sizes = vec![0; self.allocations];
        let (mut live, mut peak) = (0u64, 0);
        for op in &self.ops {
            match *op {
                Op::Alloc { id, bytes, .. } => {
                    sizes[id as usize] = bytes;
                    live = live.saturating_add(bytes);
                    peak = peak.max(live);
                }
                Op::Free { id } => live = live.saturating_sub(sizes[id as usize]),
                _ => {}
            }
        }
        peak
    }
}

#[cfg(test)]
mod tests;
