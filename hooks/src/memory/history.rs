//! What a host wants to know of a device's memory over time: the ring of events, and traces that
//! can be replayed. All of it is off until asked for.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use outrigger_allocator::{ContextSource, Frame, History, HistoryOptions, Holder};
use outrigger_device::Code;
use outrigger_locks::calls_host;

use crate::pinned::HostMemory;
use crate::{Device, Error, Result, observer};

/// A source of the host's, which is asked with no lock held: it may call the library, or take locks of its own.
struct HostSource(Arc<dyn ContextSource>);

impl HostSource {
    fn ask<R>(&self, question: impl FnOnce(&dyn ContextSource) -> R) -> Option<R> {
        calls_host("a source of contexts");
        observer::contained(|| question(&*self.0))
    }
}

impl ContextSource for HostSource {
    fn capture(&self) -> u64 {
        if observer::is_quiet() {
            return 0;
        }
        // What it allocates itself would capture again, and so on.
        let token = observer::quietly(|| self.ask(|source| source.capture()));
        token.unwrap_or_default()
    }

    fn release(&self, token: u64) {
        self.ask(|source| source.release(token));
    }

    fn frames(&self, token: u64, frame: &mut dyn FnMut(Frame<'_>)) {
        self.ask(|source| source.frames(token, frame));
    }
}

impl Device {
    /// Starts to keep the last events of the device's memory, for [`snapshot_json`](crate::snapshot_json),
    /// or goes on with other options. Blocks that are live already have no label and no context.
    pub fn start_memory_history(&self, options: HistoryOptions) {
        start(self.history(), options);
    }

    /// Stops to keep events, and forgets those that were kept. When it returns, contexts are given back,
    /// except to captures that other threads are at.
    pub fn stop_memory_history(&self) {
        self.history().record(None);
    }

    /// Forgets the events that were kept so far.
    pub fn clear_memory_history(&self) {
        self.history().clear();
    }

    /// Writes what is allocated and freed from now on to a file, in the text format that
    /// `outrigger replay` and `outrigger memory` read. A trace that is being written ends.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the file cannot be written.
    pub fn start_memory_trace(&self, path: &Path) -> Result<()> {
        let about = format!(
            "source=device {} ({}), driver {}",
            self.index(),
            self.properties().name,
            self.driver().name()
        );
        File::create(path)
            .and_then(|file| self.history().start_trace(Box::new(file), &about))
            .map_err(|error| not_written(&path.display().to_string(), &error))
    }

    /// Ends the trace, if one is being written.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if some of it could not be written: the file ends before that.
    pub fn stop_memory_trace(&self) -> Result<()> {
        let outcome = self.history().stop_trace();
        outcome.map_err(|error| not_written("the trace", &error))
    }

    /// Notes in the trace that a step begins. Waits for the device, which a mark says is idle.
    ///
    /// # Errors
    /// Those of [`synchronize`](Self::synchronize).
    pub fn mark_memory_trace(&self, label: &str) -> Result<()> {
        self.synchronize()?;
        self.history().mark(label);
        Ok(())
    }

    /// The labels that hold most of what is in use, the largest first, at most `count`. Only what was
    /// allocated since labels, history or trace are on is known.
    pub fn top_holders(&self, count: usize) -> Vec<Holder> {
        self.history().top_holders(count)
    }
}

impl HostMemory {
    /// As [`Device::start_memory_history`], for pinned memory.
    pub fn start_memory_history(&self, options: HistoryOptions) {
        start(self.history(), options);
    }

    /// As [`Device::stop_memory_history`], for pinned memory.
    pub fn stop_memory_history(&self) {
        self.history().record(None);
    }

    /// As [`Device::clear_memory_history`], for pinned memory.
    pub fn clear_memory_history(&self) {
        self.history().clear();
    }

    /// As [`Device::top_holders`], for pinned memory.
    pub fn top_holders(&self, count: usize) -> Vec<Holder> {
        self.history().top_holders(count)
    }
}

fn start(history: &History, options: HistoryOptions) {
    let source = options
        .source
        .map(|source| Arc::new(HostSource(source)) as Arc<dyn ContextSource>);
    history.record(Some(HistoryOptions { source, ..options }));
}

#[cold]
fn not_written(what: &str, error: &io::Error) -> Error {
    Error::new(
        Code::INVALID_ARGUMENT,
        format!("{what} cannot be written: {error}"),
    )
}
