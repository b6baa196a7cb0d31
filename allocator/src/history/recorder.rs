//! Writes what happens as a trace: one line per operation, in the format that `outrigger replay` and
//! the benchmarks read.
//!
//! It is called with locks held: it formats into memory and hands whole chunks to the sink, whose first
//! failure ends the recording and is kept for whoever stops it.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use crate::StreamId;

/// Bytes that are gathered before the sink gets them.
const CHUNK: usize = 64 * 1024;

/// A recording that is on.
pub(super) struct Recorder {
    sink: Box<dyn Write + Send>,
    text: String,
    streams: HashMap<StreamId, u32>,
    next_id: u64,
    failure: Option<io::Error>,
}

impl Recorder {
    pub(super) fn new(sink: Box<dyn Write + Send>) -> Self {
        Self {
            sink,
            text: "# alloctrace v1; ops: a <id> <bytes> <stream> | f <id> | r <id> <stream> | m <label>\n"
                .to_owned(),
            streams: HashMap::new(),
            next_id: 0,
            failure: None,
        }
    }

    /// Traces number their streams from 0, in the order in which they come.
    fn stream(&mut self, stream: StreamId) -> u32 {
        let next = self.streams.len() as u32;
        *self.streams.entry(stream).or_insert(next)
    }

    /// An allocation; returns its number in the trace.
    pub(super) fn alloc(&mut self, bytes: u64, stream: StreamId) -> u64 {
        let (id, stream) = (self.next_id, self.stream(stream));
        self.next_id += 1;
        self.line(format_args!("a {id} {bytes} {stream}\n"));
        id
    }

    pub(super) fn free(&mut self, id: u64) {
        self.line(format_args!("f {id}\n"));
    }

    pub(super) fn record_stream(&mut self, id: u64, stream: StreamId) {
        let stream = self.stream(stream);
        self.line(format_args!("r {id} {stream}\n"));
    }

    pub(super) fn mark(&mut self, label: &str) {
        let label = label.replace(['\n', '\r'], " ");
        self.line(format_args!("m {label}\n"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        if self.failure.is_some() {
            return;
        }
        // Writing into a String cannot fail.
        let _ = self.text.write_fmt(line);
        if self.text.len() >= CHUNK {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        if let Err(error) = self.sink.write_all(self.text.as_bytes()) {
            self.failure = Some(error);
        }
        self.text.clear();
    }

    /// Ends the recording. The first failure of the sink, if there was one.
    pub(super) fn finish(mut self) -> io::Result<()> {
        if self.failure.is_none() {
            self.hand_over();
        }
        match self.failure.take() {
            Some(error) => Err(error),
            None => self.sink.flush(),
        }
    }
}
