//! Records of memory over time: the ring of the latest events, and traces that can be replayed. Both are off
//! until a host turns them on.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use outrigger_allocator::{ContextSource, Frame, History, HistoryOptions, Holder};
use outrigger_device::Code;
use outrigger_locks::calls_host;

use crate::pinned::HostMemory;
use crate::{Device, Error, Result, observer};

/// A host's source of contexts. It is asked with no lock held, because it may call the library or take its own locks.
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
        // An allocation that the source makes would capture a context again, without an end.
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
    /// Starts to keep the latest events of the device's memory for [`snapshot_json`](crate::snapshot_json), or changes
    /// the options. Blocks that are live already have no label and no context.
    pub fn start_memory_history(&self, options: HistoryOptions) {
        start(self.history(), options);
    }

    /// Stops to keep events, and drops those that were kept. Afterwards all contexts have been given back, except those
    /// that other threads are capturing at that moment.
    pub fn stop_memory_history(&self) {
        self.history().record(None);
    }

    /// Drops the events that were kept so far.
    pub fn clear_memory_history(&self) {
        self.history().clear();
    }

    /// Starts a trace: writes what is allocated and freed from now on to a file, in the text format that `outrigger
    /// replay` and `outrigger memory` read. A trace that is being written is ended.
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

    /// Ends the trace that is being written, if there is one.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if part of it could not be written. The file ends before that part.
    pub fn stop_memory_trace(&self) -> Result<()> {
        let outcome = self.history().stop_trace();
        outcome.map_err(|error| not_written("the trace", &error))
    }

    /// Marks the begin of a step in the trace. Waits for the device first, because a mark says that the device is idle.
    ///
    /// # Errors
    /// Those of [`synchronize`](Self::synchronize).
    pub fn mark_memory_trace(&self, label: &str) -> Result<()> {
        self.synchronize()?;
        self.history().mark(label);
        Ok(())
    }

    /// The labels that hold most of the memory in use, the largest first, at most `count`. Only allocations since
    /// labels, history or a trace were turned on count.
    pub fn top_holders(&self, count: usize) -> Vec<Holder> {
        self.history().top_holders(count)
    }
}

impl HostMemory {
    /// [`Device::start_memory_history`] for pinned memory.
    pub fn start_memory_history(&self, options: HistoryOptions) {
        start(self.history(), options);
    }

    /// [`Device::stop_memory_history`] for pinned memory.
    pub fn stop_memory_history(&self) {
        self.history().record(None);
    }

    /// [`Device::clear_memory_history`] for pinned memory.
    pub fn clear_memory_history(&self) {
        self.history().clear();
    }

    /// [`Device::top_holders`] for pinned memory.
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
