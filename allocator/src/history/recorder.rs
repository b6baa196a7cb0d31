//! Records what happens as a trace (see [`crate::trace`]), to be replayed or looked at.
//!
//! A recorder is called under locks: it gathers lines and passes large pieces to the sink. The first
//! failure of the sink ends the recording; the call that stops the recording returns it.

use std::collections::HashMap;
use std::io::{self, BufWriter, Write};

use super::Label;
use crate::StreamId;
use crate::trace::Writer;

/// Bytes that are gathered before the sink gets them.
const PIECE: usize = 64 * 1024;

type Sink = BufWriter<Box<dyn Write + Send>>;

/// A recording that is on.
pub(super) struct TraceRecorder {
    writer: Writer<Sink>,
    streams: HashMap<StreamId, StreamId>,
    label: Option<Label>,
    next_id: u64,
    failure: Option<io::Error>,
}

impl TraceRecorder {
    /// Writes the header at once, so that a sink that fails is noticed early.
    pub(super) fn new(sink: Box<dyn Write + Send>, about: &str) -> io::Result<Self> {
        Ok(Self {
            writer: Writer::new(BufWriter::with_capacity(PIECE, sink), about)?,
            streams: HashMap::new(),
            label: None,
            next_id: 0,
            failure: None,
        })
    }

    /// Traces number their streams from 0, in the order in which they come.
    fn stream(&mut self, stream: StreamId) -> StreamId {
        let next = StreamId(self.streams.len() as u64);
        *self.streams.entry(stream).or_insert(next)
    }

    /// An allocation; returns its number in the trace.
    pub(super) fn alloc(&mut self, bytes: u64, stream: StreamId, label: Option<Label>) -> u64 {
        let (id, stream) = (self.next_id, self.stream(stream));
        self.next_id += 1;
        let changed = std::mem::replace(&mut self.label, label) != label;
        self.write(|writer| {
            if changed {
                writer.label(label.map(Label::name).as_deref().unwrap_or(""))?;
            }
            writer.alloc(id, bytes, stream)
        });
        id
    }

    pub(super) fn free(&mut self, id: u64) {
        self.write(|writer| writer.free(id));
    }

    pub(super) fn record_stream(&mut self, id: u64, stream: StreamId) {
        let stream = self.stream(stream);
        self.write(|writer| writer.record_stream(id, stream));
    }

    pub(super) fn out_of_memory(&mut self, bytes: u64, stream: StreamId) {
        let stream = self.stream(stream);
        self.write(|writer| writer.out_of_memory(bytes, stream));
    }

    pub(super) fn mark(&mut self, label: &str) {
        self.write(|writer| writer.mark(label));
    }

    fn write(&mut self, line: impl FnOnce(&mut Writer<Sink>) -> io::Result<()>) {
        if self.failure.is_none()
            && let Err(error) = line(&mut self.writer)
        {
            self.failure = Some(error);
        }
    }

    /// Ends the recording. The first failure of the sink, if there was one.
    pub(super) fn finish(mut self) -> io::Result<()> {
        match self.failure.take() {
            Some(error) => {
                // Lines that are left would only be tried once more.
                drop(self.writer.into_inner().into_parts());
                Err(error)
            }
            None => self.writer.flush(),
        }
    }
}
