//! The record of an allocator's life, if a host asks for it: a ring of the latest events, who holds the
//! live blocks, and a trace that can be replayed.
//!
//! While it is off, it costs one relaxed load per operation. While it is on, it takes a lock that is a
//! leaf; of the host's code only the sink of a trace runs under it. [`context`](History::context) is
//! called outside of all locks, and contexts are given back to the host outside of all locks. The
//! history must never change what the allocator does.

mod context;
mod label;
mod recorder;

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use outrigger_locks::{Mutex, Rank};

pub use context::{Context, ContextSource, Frame};
pub use label::Label;
use recorder::TraceRecorder;

use crate::{PoolId, StreamId};

/// A block or segment that something happened to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The first address. Of an event [`OutOfMemory`](HistoryKind::OutOfMemory): the free bytes of the
    /// device, as far as it tells.
    pub address: u64,
    /// The size in bytes, rounded.
    pub size: u64,
    /// Bytes, as they were asked for; of a segment the same as `size`.
    pub requested: u64,
    /// The stream that it serves.
    pub stream: StreamId,
    /// The private pool that it is of; `None` is the memory that all share.
    pub pool: Option<PoolId>,
}

/// The kind of an event of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistoryKind {
    /// A block was handed out.
    Alloc,
    /// The owner of a block gave it back.
    FreeRequested,
    /// A block that was given back may be used again: no hold and no recorded stream keeps it any more.
    FreeCompleted,
    /// The device gave a segment, or addresses were reserved for one.
    SegmentAlloc,
    /// A segment went back to the device.
    SegmentFree,
    /// Pages of the device were put behind addresses.
    SegmentMap,
    /// Pages were taken from addresses.
    SegmentUnmap,
    /// A request could not be met.
    OutOfMemory,
}

impl HistoryKind {
    /// PyTorch's name for it in memory snapshots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Alloc => "alloc",
            Self::FreeRequested => "free_requested",
            Self::FreeCompleted => "free_completed",
            Self::SegmentAlloc => "segment_alloc",
            Self::SegmentFree => "segment_free",
            Self::SegmentMap => "segment_map",
            Self::SegmentUnmap => "segment_unmap",
            Self::OutOfMemory => "oom",
        }
    }
}

/// An event of the ring.
#[derive(Clone, Debug)]
pub struct HistoryEntry {
    /// The kind of the event.
    pub kind: HistoryKind,
    /// The block or segment that the event is of.
    pub block: Recorded,
    /// The time, in nanoseconds since 1970 began.
    pub time_ns: u64,
    /// The label under which the block was allocated; of other events the label of the thread.
    pub label: Option<Label>,
    /// The place where the block was allocated or given back, if a host captures it.
    pub context: Option<Context>,
}

/// The note of a live block.
#[derive(Clone, Debug, Default)]
pub struct BlockNote {
    /// The label under which it was allocated.
    pub label: Option<Label>,
    /// The context in which the block was allocated.
    pub context: Option<Context>,
}

/// The live memory of one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The label; `None` is memory that was allocated without one.
    pub label: Option<Arc<str>>,
    /// Bytes of its blocks, rounded.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
}

/// The events and contexts that the ring is to keep.
#[derive(Clone, Default)]
pub struct HistoryOptions {
    /// The most events that are kept, the latest ones; 0 keeps notes of live blocks only.
    pub entries: usize,
    /// The source of contexts; `None`: no contexts are captured.
    pub source: Option<Arc<dyn ContextSource>>,
    /// Frees are given a context as well, not only allocations.
    pub context_of_frees: bool,
}

impl std::fmt::Debug for HistoryOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HistoryOptions")
            .field("entries", &self.entries)
            .field("source", &self.source.is_some())
            .field("context_of_frees", &self.context_of_frees)
            .finish()
    }
}

// The reasons to record, as bits of `History::on`.
const RING: u32 = 1;
const LABELS: u32 = 2;
const TRACE: u32 = 4;
const CONTEXT: u32 = 8;
const CONTEXT_OF_FREES: u32 = 16;

/// A live block, with its note.
struct Live {
    block: Recorded,
    note: BlockNote,
    trace_id: Option<u64>,
    freed: bool, // by its owner, but not reusable yet
}

/// The part of a history that its lock guards.
#[derive(Default)]
struct HistoryState {
    options: HistoryOptions,
    ring: VecDeque<HistoryEntry>,
    live: HashMap<u64, Live>,
    recorder: Option<TraceRecorder>,
    // Given back to their host by the next call that holds no lock.
    dead: Vec<Context>,
}

/// The history of one allocator. All is off until asked for.
pub struct History {
    on: AtomicU32,
    state: Mutex<HistoryState>,
}

impl Default for History {
    fn default() -> Self {
        Self {
            on: AtomicU32::new(0),
            state: Mutex::new(Rank::History, HistoryState::default()),
        }
    }
}

impl History {
    /// A history that records nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether anything is recorded. If not, the caller need not call anything else of this type.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed) != 0
    }

    /// Captures the context of an allocation, if a host asked for it. Called without any lock.
    #[cold]
    pub fn context(&self) -> Option<Context> {
        self.capture(CONTEXT)
    }

    /// Captures the context of a free, if a host asked for it. Called without any lock.
    #[cold]
    pub fn context_of_free(&self) -> Option<Context> {
        self.capture(CONTEXT_OF_FREES)
    }

    fn capture(&self, wanted: u32) -> Option<Context> {
        let on = self.on.load(Ordering::Relaxed);
        if on & (CONTEXT | CONTEXT_OF_FREES) == 0 {
            return None;
        }
        let (source, dead) = {
            let mut state = self.state.lock();
            (
                state.options.source.clone(),
                std::mem::take(&mut state.dead),
            )
        };
        drop(dead);
        if on & wanted == 0 {
            return None;
        }
        Context::capture(&source?)
    }

    /// Records that a block was handed out. For one address, calls come in the order of allocations and
    /// frees.
    #[cold]
    pub fn alloc(&self, block: &Recorded, context: Option<Context>) {
        let note = BlockNote {
            label: Label::current(),
            context,
        };
        let mut state = self.state.lock();
        let trace_id = state
            .recorder
            .as_mut()
            .map(|recorder| recorder.alloc(block.requested, block.stream, note.label));
        state.push(self, HistoryKind::Alloc, block, note.clone());
        let live = Live {
            block: *block,
            note,
            trace_id,
            freed: false,
        };
        if let Some(before) = state.live.insert(block.address, live) {
            state.bury(before.note.context);
        }
    }

    /// Records that the owner gave a block back. Its `requested` bytes need not be known. `reusable`:
    /// it may be handed out again at once, so no [`free_completed`](Self::free_completed) follows.
    #[cold]
    pub fn free(&self, block: &Recorded, reusable: bool, context: Option<Context>) {
        let mut state = self.state.lock();
        let HistoryState { live, recorder, .. } = &mut *state;
        let (mut block, mut note) = (*block, BlockNote::default());
        if let Some(live) = live.get_mut(&block.address) {
            live.freed = true;
            (block, note) = (live.block, live.note.clone());
            if let (Some(id), Some(recorder)) = (live.trace_id.take(), recorder) {
                recorder.free(id);
            }
        }
        // Without a context of the free itself, that of the allocation tells whose block it was.
        note.context = context.or(note.context);
        state.push(self, HistoryKind::FreeRequested, &block, note);
        if reusable {
            state.complete(self, &block);
        }
    }

    /// Records that a block that was given back before may be handed out again.
    #[cold]
    pub fn free_completed(&self, block: &Recorded) {
        self.state.lock().complete(self, block);
    }

    /// Records that another stream uses the block at `address`.
    #[cold]
    pub fn record_stream(&self, address: u64, stream: StreamId) {
        let mut state = self.state.lock();
        let HistoryState { live, recorder, .. } = &mut *state;
        if let Some(id) = live.get(&address).and_then(|live| live.trace_id)
            && let Some(recorder) = recorder
        {
            recorder.record_stream(id, stream);
        }
    }

    /// Records an event of a segment.
    #[cold]
    pub fn segment(&self, kind: HistoryKind, segment: &Recorded) {
        let note = BlockNote {
            label: Label::current(),
            context: None,
        };
        self.state.lock().push(self, kind, segment, note);
    }

    /// Records that a request could not be met. `device_free` is what the device says that it has left.
    #[cold]
    pub fn out_of_memory(&self, requested: u64, stream: StreamId, device_free: u64) {
        let block = Recorded {
            address: device_free,
            size: requested,
            requested,
            stream,
            pool: None,
        };
        self.segment(HistoryKind::OutOfMemory, &block);
        if let Some(recorder) = &mut self.state.lock().recorder {
            recorder.out_of_memory(requested, stream);
        }
    }

    /// The labels that hold most memory, the largest first, at most `count` of them.
    pub fn top_holders(&self, count: usize) -> Vec<Holder> {
        let mut sums = HashMap::<Option<Label>, (u64, u64)>::new();
        for live in self.state.lock().live.values().filter(|live| !live.freed) {
            let sum = sums.entry(live.note.label).or_default();
            *sum = (sum.0 + live.block.size, sum.1 + 1);
        }
        let mut holders: Vec<_> = sums
            .into_iter()
            .map(|(label, (bytes, blocks))| Holder {
                label: label.map(Label::name),
                bytes,
                blocks,
            })
            .collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.label.cmp(&b.label)));
        holders.truncate(count);
        holders
    }

    /// The note of the block that starts at `address`, if it was allocated while the history was on.
    pub fn note(&self, address: u64) -> Option<BlockNote> {
        let state = self.state.lock();
        state.live.get(&address).map(|live| live.note.clone())
    }

    /// The notes of all live blocks that were allocated while the history was on, by address.
    pub fn notes(&self) -> HashMap<u64, BlockNote> {
        let state = self.state.lock();
        let notes = state.live.iter();
        notes
            .map(|(&address, live)| (address, live.note.clone()))
            .collect()
    }

    /// The events of the ring, the oldest first.
    pub fn entries(&self) -> Vec<HistoryEntry> {
        self.state.lock().ring.iter().cloned().collect()
    }

    /// Starts an empty ring, or continues the ring with other options; `None` stops it and forgets its
    /// events. Blocks that are live already have no notes.
    pub fn record(&self, options: Option<HistoryOptions>) {
        let mut state = self.state.lock();
        let mut on = self.on.load(Ordering::Relaxed);
        on &= !(RING | CONTEXT | CONTEXT_OF_FREES);
        if let Some(options) = &options {
            on |= RING;
            if options.source.is_some() {
                on |= CONTEXT;
                if options.context_of_frees {
                    on |= CONTEXT_OF_FREES;
                }
            }
        }
        let options = options.unwrap_or_default();
        let surplus = state.ring.len().saturating_sub(options.entries);
        let cut: Vec<_> = state.ring.drain(..surplus).collect();
        if options.source.is_none() {
            state.forget_contexts();
        }
        let before = std::mem::replace(&mut state.options, options);
        let gone = state.set_on(self, on);
        let dead = std::mem::take(&mut state.dead);
        drop(state);
        // The host's functions are called by these, without the lock.
        drop((cut, before, gone, dead));
    }

    /// Forgets the events of the ring so far.
    pub fn clear(&self) {
        let (ring, dead) = {
            let mut state = self.state.lock();
            (
                std::mem::take(&mut state.ring),
                std::mem::take(&mut state.dead),
            )
        };
        drop((ring, dead));
    }

    /// Whether the ring is kept.
    pub fn is_recording(&self) -> bool {
        self.on.load(Ordering::Relaxed) & RING != 0
    }

    /// Keeps the labels of live blocks from now on, for [`top_holders`](Self::top_holders), even if
    /// neither the ring nor a trace is on.
    pub fn keep_labels(&self) {
        self.on.fetch_or(LABELS, Ordering::Relaxed);
    }

    /// Records a trace from now on. `about` goes into its header. Blocks that are live already are not
    /// in it. The sink gets large pieces, under locks of the allocator: it must not allocate from this
    /// allocator, and should not wait.
    ///
    /// # Errors
    /// The sink's error, for what is written at once. Or the error of the sink of an earlier recording,
    /// which ends here.
    pub fn start_trace(&self, sink: Box<dyn Write + Send>, about: &str) -> io::Result<()> {
        self.swap_trace(Some(TraceRecorder::new(sink, about)?))
    }

    /// Ends the recording of a trace, if one is on.
    ///
    /// # Errors
    /// The first failure of the sink: the trace ends before that.
    pub fn stop_trace(&self) -> io::Result<()> {
        self.swap_trace(None)
    }

    fn swap_trace(&self, next: Option<TraceRecorder>) -> io::Result<()> {
        let (before, gone) = {
            let mut state = self.state.lock();
            let mut on = self.on.load(Ordering::Relaxed) & !TRACE;
            on |= if next.is_some() { TRACE } else { 0 };
            let before = std::mem::replace(&mut state.recorder, next);
            // Numbers of the last trace mean nothing in the next one.
            for live in state.live.values_mut() {
                live.trace_id = None;
            }
            (before, state.set_on(self, on))
        };
        drop(gone);
        before.map_or(Ok(()), TraceRecorder::finish)
    }

    /// Notes in the trace that a step begins, with `label` as its name. The device is idle here.
    pub fn mark(&self, label: &str) {
        if let Some(recorder) = &mut self.state.lock().recorder {
            recorder.mark(label);
        }
    }
}

impl HistoryState {
    fn push(&mut self, history: &History, kind: HistoryKind, block: &Recorded, note: BlockNote) {
        if history.on.load(Ordering::Relaxed) & RING == 0 || self.options.entries == 0 {
            return self.bury(note.context);
        }
        if self.ring.len() >= self.options.entries
            && let Some(oldest) = self.ring.pop_front()
        {
            self.bury(oldest.context);
        }
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        self.ring.push_back(HistoryEntry {
            kind,
            block: *block,
            time_ns: since_1970.map_or(0, |time| time.as_nanos() as u64),
            label: note.label,
            context: note.context,
        });
    }

    fn complete(&mut self, history: &History, block: &Recorded) {
        let (block, note) = match self.live.remove(&block.address) {
            Some(live) => (live.block, live.note),
            None => (*block, BlockNote::default()),
        };
        self.push(history, HistoryKind::FreeCompleted, &block, note);
    }

    /// Puts a context aside until no lock is held.
    fn bury(&mut self, context: Option<Context>) {
        self.dead.extend(context);
    }

    /// Without a source no later call would give the contexts back.
    fn forget_contexts(&mut self) {
        let notes = self.live.values_mut().map(|live| &mut live.note.context);
        let entries = self.ring.iter_mut().map(|entry| &mut entry.context);
        self.dead
            .extend(notes.chain(entries).filter_map(Option::take));
    }

    /// Sets what is on. Returns the notes that are no longer kept up.
    #[must_use]
    fn set_on(&mut self, history: &History, on: u32) -> HashMap<u64, Live> {
        // Labels may be switched on by another thread, without the lock; they never go off.
        history.on.fetch_and(LABELS, Ordering::Relaxed);
        history.on.fetch_or(on, Ordering::Relaxed);
        if history.on.load(Ordering::Relaxed) == 0 {
            std::mem::take(&mut self.live)
        } else {
            HashMap::new()
        }
    }
}

#[cfg(test)]
mod tests;
