//! Writes a trace as text.
//!
//! The writer must never write a line that the reader would refuse for its form; that ids are used once
//! and frees follow allocations is the caller's part.

use std::io::{self, Write};

use super::{Op, StreamId, Trace};

/// Writes operations line by line. It does not buffer: give it a `BufWriter` over a file.
///
/// All methods fail as `output` fails.
pub struct Writer<W> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Writes the header. `about` says of what the trace is, as `key=value; key=value`; line ends in it
    /// become spaces.
    pub fn new(mut output: W, about: &str) -> io::Result<Self> {
        writeln!(output, "# alloctrace v1; {}", OneLine(about))?;
        Ok(Self { output })
    }

    /// Allocation `id`, a number that was not used before, of `bytes` for `stream`.
    pub fn alloc(&mut self, id: u64, bytes: u64, stream: StreamId) -> io::Result<()> {
        writeln!(self.output, "a {id} {bytes} {}", stream.0)
    }

    /// Writes that allocation `id` is freed.
    pub fn free(&mut self, id: u64) -> io::Result<()> {
        writeln!(self.output, "f {id}")
    }

    /// `stream` uses allocation `id` too.
    pub fn record_stream(&mut self, id: u64, stream: StreamId) -> io::Result<()> {
        writeln!(self.output, "r {id} {}", stream.0)
    }

    /// A step begins; the device is idle.
    pub fn mark(&mut self, label: &str) -> io::Result<()> {
        writeln!(self.output, "m {}", OneLine(label))
    }

    /// Allocations from here on belong to `label`; to none if it is empty.
    pub fn label(&mut self, label: &str) -> io::Result<()> {
        writeln!(self.output, "# label {}", OneLine(label))
    }

    /// A request of `bytes` for `stream` failed for want of memory.
    pub fn out_of_memory(&mut self, bytes: u64, stream: StreamId) -> io::Result<()> {
        writeln!(self.output, "# oom {bytes} {}", stream.0)
    }

    /// Writes all operations of a trace in memory.
    pub fn trace(&mut self, trace: &Trace) -> io::Result<()> {
        for op in &trace.ops {
            match *op {
                Op::Alloc { id, bytes, stream } => self.alloc(id, bytes, stream)?,
                Op::Free { id } => self.free(id)?,
                Op::Record { id, stream } => self.record_stream(id, stream)?,
                Op::Mark { text } => self.mark(trace.text(text))?,
                Op::Label { text } => self.label(trace.text(text))?,
                Op::OutOfMemory { bytes, stream } => self.out_of_memory(bytes, stream)?,
            }
        }
        Ok(())
    }

    /// Passes on what the output buffers.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    /// Ends writing and gives the output back.
    pub fn into_inner(self) -> W {
        self.output
    }
}

/// Text without line ends.
struct OneLine<'a>(&'a str);

impl std::fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, part) in self.0.trim().split(['\n', '\r']).enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            f.write_str(part)?;
        }
        Ok(())
    }
}
