//! Capture: a stream records its work instead of running it.
//!
//! A capture belongs to the stream that began it, and to the streams that joined it by waiting for its events. What
//! other threads do on other streams cannot break it. The first call that fails inside a capture makes the capture
//! fail. The end of the capture reports that call, and leaves the streams and the memory as if the capture had never
//! begun.

mod calls;
mod captures;
mod place;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ThreadId};

use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};

pub use calls::{Recording, Steps};
pub use captures::Captures;
use place::CaptureSlot;
pub use place::CapturedMark;

use crate::buffers::{BufferMap, Resolver};
use crate::data::{Command, GraphData, Resources, Store};
use crate::drawn::next_capture;
use crate::graph::Graph;
use crate::memory::{Device, PoolRef};
use crate::record::Recorded;
use crate::recorder::{Lane, Past, Pasts, Recorder};
use crate::timeline::Timeline;
use crate::{Error, Result};

/// The calls that a thread may make while it captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Waiting for the whole device is refused on threads that record. Other threads cannot break a capture, so this is
    /// the same as [`ThreadLocal`](Self::ThreadLocal).
    Global,
    /// Waiting for the whole device is refused on threads that record.
    ThreadLocal,
    /// Waiting for the whole device is allowed. It does not wait for what is recorded.
    Relaxed,
}

impl CaptureMode {
    /// The mode with this number in the C ABI.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for any other number.
    pub fn from_raw(raw: u32) -> Result<Self> {
        match raw {
            0 => Ok(Self::Global),
            1 => Ok(Self::ThreadLocal),
            2 => Ok(Self::Relaxed),
            _ => Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "capture mode {raw} is unknown: it is 0 (global), 1 (thread local) or 2 (relaxed)"
                ),
            )),
        }
    }
}

/// Figures of a capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureInfo {
    /// The number of the capture, from 1.
    pub id: u64,
    /// The calls that a thread may make while it captures.
    pub mode: CaptureMode,
    /// Whether a call in it has failed.
    pub failed: bool,
    /// The number of nodes so far.
    pub nodes: u32,
    /// Streams that record, the first included.
    pub streams: u32,
}

/// Whether a capture has ended.
#[derive(Clone, Debug, Default)]
struct CaptureEnd(Arc<AtomicBool>);

impl CaptureEnd {
    fn passed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Ends the capture. Returns whether it had ended before.
    fn pass(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }
}

/// A use of memory by all that a stream has recorded so far. The note keeps nothing of the capture alive: its holder
/// may be freeing memory, and must not become the last owner of the capture's pool at that moment.
#[derive(Debug)]
pub struct CapturedUse {
    end: CaptureEnd,
    /// The lane that gets the memory next, if it is one of the same capture, and the nodes that come before the end of
    /// the use.
    next: Option<(Pasts, Lane, Past)>,
}

impl CapturedUse {
    /// Whether commands that are recorded from now on may use the memory: the stream that gets it has waited for the
    /// end of the use, or the capture has ended. Replays are ordered by the graph.
    pub fn over(&self) -> bool {
        let next = self.next.as_ref();
        self.end.passed() || next.is_some_and(|(pasts, lane, past)| pasts.reached(*lane, past))
    }
}

/// A recording in progress.
pub struct Capture {
    id: u64,
    mode: CaptureMode,
    inside: Inside,
    end: CaptureEnd,
    pasts: Pasts,
    /// The list of the device's captures, which has this one.
    listed: &'static Captures,
    state: Mutex<CaptureState>,
}

/// The pool of a capture, entered: none of its memory is lent out.
struct Inside(Arc<PoolRef>);

impl Inside {
    fn enter(pool: Arc<PoolRef>) -> Result<Self> {
        let device = pool.device();
        device.enter(pool.gate(), None)?;
        Ok(Self(pool))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.gate().leave();
    }
}

/// The part of a capture that its lock guards: the graph so far, and who records it.
struct CaptureState {
    recorder: Recorder<Command>,
    store: Store,
    resources: Arc<Resources>,
    map: BufferMap,
    lanes: Vec<LaneState>,
    /// The threads that have recorded, whose failed calls make the capture fail.
    threads: Vec<ThreadId>,
    failed: Option<Error>,
}

/// A stream that records, with the text that its nodes get.
struct LaneState {
    stream: Arc<Stream>,
    scope: Option<Arc<str>>,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A stream, as graphs see it: its timeline, and its place in a capture if it has one.
#[derive(Debug)]
pub struct Stream {
    timeline: Timeline,
    slot: CaptureSlot,
}

impl Stream {
    /// The stream of a new timeline.
    pub fn new(timeline: Timeline) -> Arc<Self> {
        Arc::new(Self {
            timeline,
            slot: CaptureSlot::default(),
        })
    }
}

impl Deref for Stream {
    type Target = Timeline;

    #[inline]
    fn deref(&self) -> &Timeline {
        &self.timeline
    }
}

/// The error `CAPTURE` with a text.
fn error(text: impl Into<String>) -> Error {
    Error::new(Code::CAPTURE, text)
}

impl Capture {
    fn ended(&self) -> bool {
        self.end.passed()
    }

    /// Makes the capture fail, if the calling thread has recorded into it.
    fn fail_here(&self, error: &Error) {
        let mut state = self.state.lock();
        if state.threads.contains(&thread::current().id()) {
            state.failed.get_or_insert_with(|| error.clone());
        }
    }

    /// Makes a call in the capture; `None` if the capture has ended. It does not end during the call.
    fn with<R>(&self, call: impl FnOnce(&mut CaptureState) -> Result<R>) -> Option<Result<R>> {
        let mut state = self.state.lock();
        if self.ended() {
            return None;
        }
        if let Some(first) = &state.failed {
            return Some(Err(error(format!(
                "the capture has failed before, end it first; the first failure: {first}"
            ))));
        }
        let thread = thread::current().id();
        if !state.threads.contains(&thread) {
            state.threads.push(thread);
        }
        let before = state.recorder.graph().len();
        Some(call(&mut state).inspect_err(|error| {
            // After UNSUPPORTED the host runs the operator in another way (H29), so the capture goes on. A graph does
            // not have a part of a call.
            let in_part = state.recorder.graph().len() != before;
            if error.code() != Code::UNSUPPORTED || in_part {
                state.failed.get_or_insert_with(|| error.clone());
            }
        }))
    }

    /// Notes that an allocation of the capture's pool is about to be freed.
    pub fn freed(&self, base: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(buffer) = state.map.freed(base) {
            state.recorder.set_transient(buffer);
        }
    }

    fn pool(&self) -> &Arc<PoolRef> {
        &self.inside.0
    }
}

impl CaptureState {
    /// Records one command on a lane.
    fn push(
        &mut self,
        lane: Lane,
        command: impl FnOnce(&'static dyn Device, &mut Store, &mut Resolver<'_>) -> Result<Recorded>,
    ) -> Result<()> {
        let Self {
            recorder,
            store,
            resources,
            map,
            lanes,
            ..
        } = self;
        let (stored, accesses) = {
            let mut add = |buffer| recorder.add_buffer(buffer);
            let mut resolver = Resolver {
                map,
                resources,
                add: &mut add,
            };
            command(resources.device, store, &mut resolver)?
        };
        let scope = lanes.get(lane as usize).and_then(|one| one.scope.clone());
        match recorder.record(lane, stored.spec(scope), &accesses) {
            Some(_) => Ok(()),
            None => Err(Error::new(
                Code::INTERNAL,
                "a lane or buffer of a capture is missing",
            )),
        }
    }
}

impl Stream {
    /// Whether work of this stream is recorded instead of run.
    #[inline]
    pub fn is_capturing(&self) -> bool {
        self.slot.is_taken()
    }

    /// Waits for all work submitted before.
    ///
    /// # Errors
    /// The first failure of the stream's work. The stream takes work again then. `CAPTURE` if the stream captures.
    pub fn synchronize(&self) -> Result<()> {
        if self.is_capturing() {
            return Err(self.refuse_capturing("a wait"));
        }
        self.synchronize_now()
    }

    fn place(&self) -> Result<(Arc<Capture>, Lane)> {
        self.slot.get().ok_or_else(|| {
            Error::new(
                Code::INVALID_ARGUMENT,
                "the stream is not capturing: begin a capture first",
            )
            .on_stream(self.id())
        })
    }

    /// The error for a call that would wait for the stream or query it. The capture fails too, if the calling thread
    /// has recorded into it.
    #[cold]
    pub fn refuse_capturing(&self, what: &str) -> Error {
        let error = error(format!(
            "{what} while the stream captures: its work is recorded, not run, so there is nothing to wait \
             for; end the capture and replay the graph first, or move the call out of the capture"
        ))
        .on_stream(self.id());
        if let Some((capture, _)) = self.slot.get() {
            capture.fail_here(&error);
        }
        error
    }

    /// Makes the stream's capture fail, if there is one, for a call that failed before it could be recorded.
    #[cold]
    pub fn not_recorded(&self, error: Error) -> Error {
        if let Some((capture, _)) = self.slot.get() {
            let mut state = capture.state.lock();
            state.failed.get_or_insert_with(|| error.clone());
        }
        error
    }

    /// The use of memory by the nodes that this stream has recorded so far; `None` if it does not capture. `next` is
    /// the stream whose work gets the memory after that, if it is known.
    pub fn captured_use(&self, next: Option<&Self>) -> Option<CapturedUse> {
        let place =
            |capture: &Arc<Capture>, lane| (capture.end.clone(), lane, capture.pasts.clone());
        let (end, lane, pasts) = self.slot.with(place)?;
        let past = pasts.of(lane);
        let next = next
            .and_then(|next| next.slot.with(place))
            .filter(|(its, ..)| Arc::ptr_eq(&its.0, &end.0))
            .map(|(_, lane, _)| (pasts, lane, past));
        Some(CapturedUse { end, next })
    }

    /// Refuses captures of this stream from here on, because its handle is being destroyed.
    ///
    /// # Errors
    /// `BUSY` if the stream captures. Nothing has changed then.
    pub fn close_to_captures(&self) -> Result<()> {
        if self.slot.close() {
            return Ok(());
        }
        Err(Error::new(
            Code::BUSY,
            "the stream captures: end the capture before the stream is destroyed",
        )
        .on_stream(self.id()))
    }

    /// Begins a capture on this stream. Memory that is allocated on the capture's streams comes from `pool`, or from a
    /// pool of the capture's own.
    ///
    /// # Errors
    /// `CAPTURE` if the stream is capturing; `INVALID_ARGUMENT` for a pool of another device; `INVALID_HANDLE` if the
    /// stream was destroyed.
    pub fn begin_capture(
        self: &Arc<Self>,
        mode: CaptureMode,
        pool: Option<&Arc<PoolRef>>,
        captures: &'static Captures,
    ) -> Result<()> {
        let pool = PoolRef::given_or_new(pool, self.on(), "capture")?;
        let stream = Arc::clone(self);
        let inside = Inside::enter(pool)?;
        let make = || {
            let recorder = Recorder::default();
            let capture = Arc::new(Capture {
                id: next_capture(),
                mode,
                end: CaptureEnd::default(),
                pasts: recorder.pasts().clone(),
                listed: captures,
                state: Mutex::new(
                    Rank::Capture,
                    CaptureState {
                        recorder,
                        store: Store::default(),
                        resources: Arc::new(Resources::new(Arc::clone(&inside.0))),
                        map: BufferMap::default(),
                        lanes: vec![LaneState {
                            stream,
                            scope: None,
                        }],
                        threads: vec![thread::current().id()],
                        failed: None,
                    },
                ),
                inside,
            });
            captures.add(&capture);
            (capture, 0)
        };
        let taken = self.slot.take(make);
        taken.map_err(|refusal| refusal.error(self.id()))
    }

    /// Ends the capture that was begun on this stream, and returns its graph.
    ///
    /// # Errors
    /// The first failure of a call in the capture, or `CAPTURE` if work of another stream was not joined. In both cases
    /// the capture has ended, and its memory is given back. `INVALID_ARGUMENT` if the stream has not begun a capture.
    pub fn end_capture(&self) -> Result<Graph> {
        let (capture, lane) = self.place()?;
        if lane != 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                "the stream joined this capture: it is ended on the stream that began it",
            )
            .on_stream(self.id()));
        }
        let state = {
            let mut state = capture.state.lock();
            if capture.end.pass() {
                return Err(error("the capture was ended by another thread").on_stream(self.id()));
            }
            for lane in &state.lanes {
                lane.stream.slot.leave();
            }
            let empty = CaptureState {
                recorder: Recorder::default(),
                store: Store::default(),
                resources: Arc::new(Resources::new(Arc::clone(&capture.inside.0))),
                map: BufferMap::default(),
                lanes: Vec::new(),
                threads: Vec::new(),
                failed: None,
            };
            std::mem::replace(&mut *state, empty)
        };
        capture.listed.remove(&capture);
        if let Some(first) = state.failed {
            return Err(first);
        }
        if let Err(unjoined) = state.recorder.check_joined() {
            let stream = &state.lanes[unjoined.lane as usize].stream;
            let node = state.recorder.graph().node(unjoined.node);
            return Err(error(format!(
                "work of stream {:#x} was not joined (its last node is {} {}): record an event on that \
                 stream and wait for it on the stream that began the capture",
                stream.id(),
                unjoined.node,
                node.map_or("", |node| &node.spec.label),
            ))
            .on_stream(stream.id()));
        }
        Ok(Graph::over(
            GraphData {
                graph: state.recorder.into_graph(),
                store: state.store,
                names: Vec::new(),
                resources: state.resources,
                others: Vec::new(),
            },
            state.map,
            false,
        ))
    }

    /// Makes the capture fail, for a reason that the host gives.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the stream is not capturing.
    pub fn capture_abort(&self, reason: &str) -> Result<()> {
        let (capture, _) = self.place()?;
        let error = error(format!("the capture was given up: {reason}")).on_stream(self.id());
        capture.state.lock().failed.get_or_insert(error);
        Ok(())
    }

    /// The nodes that were recorded so far, as a graph that can be inspected, but not instantiated.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the stream is not capturing.
    pub fn partial_capture(&self) -> Result<Graph> {
        let (capture, _) = self.place()?;
        let state = capture.state.lock();
        let data = GraphData {
            graph: state.recorder.graph().clone(),
            store: state.store.clone(),
            names: Vec::new(),
            resources: Arc::clone(&state.resources),
            others: Vec::new(),
        };
        Ok(Graph::over(data, state.map.clone(), true))
    }

    /// Figures of the stream's capture; `None` if the stream does not capture.
    pub fn capture_info(&self) -> Option<CaptureInfo> {
        let (capture, _) = self.slot.get()?;
        let state = capture.state.lock();
        Some(CaptureInfo {
            id: capture.id,
            mode: capture.mode,
            failed: state.failed.is_some(),
            nodes: state.recorder.graph().len() as u32,
            streams: state.recorder.lanes(),
        })
    }

    /// Sets the text of the nodes that this stream records from here on. An empty text ends it. Does nothing if the
    /// stream does not capture.
    pub fn capture_label(&self, label: &str) {
        if let Some((capture, lane)) = self.slot.get()
            && let Some(lane) = capture.state.lock().lanes.get_mut(lane as usize)
        {
            lane.scope = (!label.is_empty()).then(|| Arc::from(label));
        }
    }
}
