//! Capture: a stream records its work instead of running it.
//!
//! A capture belongs to the stream that began it and to the streams that joined it by waiting for its
//! events. Its state is its own: what other threads do on other streams cannot break it. The first
//! call that fails inside a capture makes it fail; its end then reports that call, and leaves the
//! streams and the memory as if it had never begun.

mod captures;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, ThreadId};

use outrigger_allocator::StreamId;
use outrigger_device::{Code, CopyKind, HostFn};
use outrigger_graph::{Lane, Mark, Recorder};
use outrigger_locks::{Mutex, Rank};
use outrigger_ops::{Call, OperatorId};

pub(crate) use captures::Captures;

use super::buffers::{BufferMap, Resolver};
use super::data::{Command, Drawn, GraphData, Resources, Store};
use super::handle::Graph;
use super::pool::PoolRef;
use super::record::{self, Buffers, Condition, HostNode, KernelCall, Recorded};
use crate::generator::Generator;
use crate::{Device, Error, Event, Ref, Result, Stream, current_stream};

/// What a capturing thread may do beside recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaptureMode {
    /// Waiting for the whole device is refused. As nothing that other threads do can break a capture,
    /// there is no difference to [`ThreadLocal`](Self::ThreadLocal).
    Global,
    /// Waiting for the whole device is refused on threads that record.
    ThreadLocal,
    /// Waiting for the whole device is allowed: it leaves the capturing streams out.
    Relaxed,
}

impl CaptureMode {
    /// From its number in the C ABI.
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

/// What is known of a stream's capture.
#[derive(Clone, Copy, Debug)]
pub struct CaptureInfo {
    /// The number of the capture, from 1.
    pub id: u64,
    /// What a thread may do meanwhile.
    pub mode: CaptureMode,
    /// Whether a call in it has failed.
    pub failed: bool,
    /// Nodes so far.
    pub nodes: u32,
    /// Streams that record, the first included.
    pub streams: u32,
}

/// Whether a capture has ended. It holds nothing of the capture: whoever keeps one may be in the middle
/// of freeing memory, and must not become the last owner of the capture's pool there.
#[derive(Clone, Debug, Default)]
pub(crate) struct CaptureEnd(Arc<AtomicBool>);

impl CaptureEnd {
    pub(crate) fn passed(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Ends the capture; whether it had ended before.
    fn pass(&self) -> bool {
        self.0.swap(true, Ordering::AcqRel)
    }
}

/// A recording in progress.
pub(crate) struct Capture {
    id: u64,
    mode: CaptureMode,
    inside: Inside,
    end: CaptureEnd,
    state: Mutex<State>,
}

/// The pool of a capture, none of whose memory serves others meanwhile.
struct Inside(Arc<PoolRef>);

impl Inside {
    fn enter(pool: Arc<PoolRef>) -> Result<Self> {
        let device = pool.device();
        let entered = device.allocator().pool_enter(pool.gate(), None);
        entered.map_err(|error| device.alloc_failed(error))?;
        Ok(Self(pool))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.gate().leave();
    }
}

struct State {
    recorder: Recorder<Command>,
    store: Store,
    resources: Arc<Resources>,
    map: BufferMap,
    lanes: Vec<LaneState>,
    /// Threads that have recorded.
    threads: Vec<ThreadId>,
    failed: Option<Error>,
}

struct LaneState {
    stream: Ref<Stream>,
    scope: Option<Arc<str>>,
}

impl std::fmt::Debug for Capture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// A stream's place in a capture. Asking whether there is one costs a load.
#[derive(Debug)]
pub(crate) struct CaptureSlot {
    active: AtomicBool,
    place: Mutex<Option<(Arc<Capture>, Lane)>>,
}

impl Default for CaptureSlot {
    fn default() -> Self {
        Self {
            active: AtomicBool::new(false),
            place: Mutex::new(Rank::CapturePlace, None),
        }
    }
}

impl CaptureSlot {
    #[inline]
    pub(crate) fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    fn get(&self) -> Option<(Arc<Capture>, Lane)> {
        self.place.lock().clone()
    }

    fn set(&self, place: Option<(Arc<Capture>, Lane)>) {
        let mut slot = self.place.lock();
        self.active.store(place.is_some(), Ordering::Relaxed);
        *slot = place;
    }
}

/// An event's point in a capture.
#[derive(Debug)]
pub(crate) struct CapturedMark {
    active: AtomicBool,
    mark: Mutex<Option<(Weak<Capture>, Mark)>>,
}

impl Default for CapturedMark {
    fn default() -> Self {
        Self {
            active: AtomicBool::new(false),
            mark: Mutex::new(Rank::CapturedMark, None),
        }
    }
}

impl CapturedMark {
    #[inline]
    pub(crate) fn active(&self) -> bool {
        self.active.load(Ordering::Relaxed)
    }

    /// The event was recorded outside of captures.
    pub(crate) fn clear(&self) {
        let mut mark = self.mark.lock();
        self.active.store(false, Ordering::Relaxed);
        *mark = None;
    }

    fn get(&self) -> Option<(Option<Arc<Capture>>, Mark)> {
        let mark = self.mark.lock();
        mark.as_ref()
            .map(|(capture, mark)| (capture.upgrade(), mark.clone()))
    }

    /// Why the event cannot be asked or waited for by the host.
    pub(crate) fn refusal(&self, what: &str) -> Error {
        let error = error(format!(
            "{what} of an event that was recorded in a capture: it has no point in time; record it again \
             outside of the capture"
        ));
        if let Some((Some(capture), _)) = self.get() {
            capture.fail_here(&error);
        }
        error
    }
}

/// An error of captures.
fn error(text: impl Into<String>) -> Error {
    Error::new(Code::CAPTURE, text)
}

impl Capture {
    pub(crate) fn ended(&self) -> bool {
        self.end.passed()
    }

    /// Makes the capture fail if this thread has recorded into it.
    fn fail_here(&self, error: &Error) {
        let mut state = self.state.lock();
        if state.threads.contains(&thread::current().id()) {
            state.failed.get_or_insert_with(|| error.clone());
        }
    }

    fn with<R>(self: &Arc<Self>, call: impl FnOnce(&mut State) -> Result<R>) -> Result<R> {
        let mut state = self.state.lock();
        if self.ended() {
            return Err(error("the capture has ended meanwhile"));
        }
        if let Some(first) = &state.failed {
            return Err(error(format!(
                "the capture has failed before, end it first; what failed: {first}"
            )));
        }
        let thread = thread::current().id();
        if !state.threads.contains(&thread) {
            state.threads.push(thread);
        }
        call(&mut state).inspect_err(|error| {
            // What is unsupported the host does in another way.
            if error.code() != Code::UNSUPPORTED {
                state.failed.get_or_insert_with(|| error.clone());
            }
        })
    }

    /// An allocation of the capture's pool is about to be freed.
    pub(crate) fn freed(&self, base: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let Some(buffer) = state.map.freed(base) {
            state.recorder.set_transient(buffer);
        }
    }

    pub(crate) fn pool(&self) -> &Arc<PoolRef> {
        &self.inside.0
    }
}

impl State {
    /// Records one command on a lane.
    fn push(
        &mut self,
        lane: Lane,
        command: impl FnOnce(&'static Device, &mut Store, &mut dyn Buffers) -> Result<Recorded>,
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
        self.capture().active()
    }

    fn place(&self) -> Result<(Arc<Capture>, Lane)> {
        self.capture().get().ok_or_else(|| {
            Error::new(
                Code::INVALID_ARGUMENT,
                "the stream is not capturing: begin a capture first",
            )
            .on_stream(self.id())
        })
    }

    /// Records a command.
    fn record(
        &self,
        command: impl FnOnce(&'static Device, &mut Store, &mut dyn Buffers) -> Result<Recorded>,
    ) -> Result<()> {
        let (capture, lane) = self.place()?;
        capture
            .with(|state| state.push(lane, command))
            .map_err(|error| error.on_stream(self.id()))
    }

    #[cold]
    pub(crate) fn record_call(&self, id: OperatorId, call: &Call<'_>) -> Result<()> {
        let (capture, lane) = self.place()?;
        capture.with(|_| Ok(()))?;
        // Without the lock: the driver is asked, and observers may be, to release memory.
        let driver = self.device().prepare_operator(id, call, capture.pool());
        capture
            .with(|state| {
                let driver = driver?;
                state.push(lane, |_, store, buffers| {
                    record::operator(store, buffers, id, call, driver)
                })
            })
            .map_err(|error| error.on_stream(self.id()))
    }

    #[cold]
    pub(crate) fn record_copy(&self, dst: u64, src: u64, size: u64, kind: CopyKind) -> Result<()> {
        self.record(|_, store, buffers| record::copy(store, buffers, (dst, src, size, kind)))
    }

    #[cold]
    pub(crate) fn record_fill(&self, dst: u64, size: u64, pattern: &[u8]) -> Result<()> {
        self.record(|_, store, buffers| record::fill(store, buffers, dst, size, pattern))
    }

    #[cold]
    pub(crate) fn record_kernel(&self, call: &KernelCall<'_>) -> Result<()> {
        self.record(|_, store, buffers| record::kernel(store, buffers, call))
    }

    #[cold]
    pub(crate) fn record_host_call(
        &self,
        function: HostFn,
        user: *mut std::ffi::c_void,
    ) -> Result<()> {
        self.record(|_, store, _| Ok(record::host_call(store, function, user)))
    }

    #[cold]
    pub(crate) fn record_host_node(&self, node: &HostNode<'_>) -> Result<()> {
        let (capture, lane) = self.place()?;
        capture
            .with(|state| {
                state.push(lane, |_, store, buffers| {
                    record::host_node(store, buffers, node)
                })?;
                state.resources.own(node.user, node.destroy);
                Ok(())
            })
            .map_err(|error| error.on_stream(self.id()))
    }

    /// Records a conditional node whose bodies are graphs of their own.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the stream is not capturing, or what is wrong with predicate or bodies.
    pub fn capture_conditional(
        &self,
        kind: super::ConditionalKind,
        predicate: u64,
        dtype: outrigger_device::DType,
        bodies: &[Ref<Graph>],
    ) -> Result<()> {
        let bodies = super::handle::whole(bodies)?;
        let (capture, lane) = self.place()?;
        capture
            .with(|state| {
                state.push(lane, |device, store, buffers| {
                    let bodies = &bodies[..];
                    record::conditional(
                        device,
                        store,
                        buffers,
                        &Condition {
                            kind,
                            predicate,
                            dtype,
                            bodies,
                        },
                    )
                })
            })
            .map_err(|error| error.on_stream(self.id()))
    }

    /// Why the stream cannot be waited for or asked: also the capture fails, if this thread is one of
    /// those that record it.
    #[cold]
    pub(crate) fn refuse_capturing(&self, what: &str) -> Error {
        let error = error(format!(
            "{what} while the stream captures: its work is recorded, not run, so that there is nothing to \
             wait for; end the capture and replay the graph first, or move the call out of the capture"
        ))
        .on_stream(self.id());
        if let Some((capture, _)) = self.capture().get() {
            capture.fail_here(&error);
        }
        error
    }

    /// A call that fails before it can be recorded makes the stream's capture fail, if there is one.
    #[cold]
    pub(crate) fn not_recorded(&self, error: Error) -> Error {
        if let Some((capture, _)) = self.capture().get() {
            let mut state = capture.state.lock();
            state.failed.get_or_insert_with(|| error.clone());
        }
        error
    }

    #[cold]
    pub(crate) fn record_event(&self, event: &Event) -> Result<()> {
        let (capture, lane) = self.place()?;
        capture.with(|state| {
            let mark = state.recorder.mark(lane);
            let place = event.captured();
            *place.mark.lock() = Some((Arc::downgrade(&capture), mark));
            place.active.store(true, Ordering::Relaxed);
            Ok(())
        })
    }

    /// A wait where the stream captures, or the event was recorded in a capture.
    #[cold]
    pub(crate) fn wait_captured(&self, event: &Event) -> Result<()> {
        let own = self.capture().get();
        let Some((theirs, mark)) = event.captured().get() else {
            let Some((capture, _)) = own else {
                return self.wait_event(event);
            };
            let passed = event.query();
            return capture.with(|_| match passed {
                Ok(true) => Ok(()),
                _ => Err(error(
                    "a wait in a capture for an event that was recorded outside of it: record it within \
                     the capture, or wait for it before the capture begins",
                )
                .on_stream(self.id())),
            });
        };
        let Some(theirs) = theirs.filter(|capture| !capture.ended()) else {
            let error = error(
                "a wait for an event that was recorded in a capture that has ended: record it again",
            )
            .on_stream(self.id());
            if let Some((capture, _)) = own {
                capture.fail_here(&error);
            }
            return Err(error);
        };
        match own {
            Some((capture, lane)) if Arc::ptr_eq(&capture, &theirs) => capture.with(|state| {
                state.recorder.wait(lane, &mark);
                Ok(())
            }),
            Some((capture, _)) => capture.with(|_| {
                Err(error(
                    "a wait for an event of another capture: captures do not depend on each other",
                )
                .on_stream(self.id()))
            }),
            None => self.join(&theirs, &mark),
        }
    }

    /// Joins a capture, after a point of it.
    fn join(&self, capture: &Arc<Capture>, mark: &Mark) -> Result<()> {
        let stream = crate::stream(self.id())?;
        capture.with(|state| {
            if state.resources.device.index() != self.device().index() {
                return Err(Error::new(
                    Code::INVALID_ARGUMENT,
                    format!(
                        "a stream of device {} cannot join a capture on device {}: a graph stays on one \
                         device",
                        self.device().index(),
                        state.resources.device.index()
                    ),
                )
                .on_stream(self.id()));
            }
            let lane = state.recorder.fork(mark);
            state.lanes.push(LaneState { stream, scope: None });
            self.capture().set(Some((Arc::clone(capture), lane)));
            Ok(())
        })
    }

    /// Allocates from the pool of the capture.
    #[cold]
    pub(crate) fn alloc_captured<T>(
        &self,
        alloc: impl FnOnce(&PoolRef, StreamId) -> Result<(u64, T)>,
    ) -> Result<T> {
        let (capture, _) = self.place()?;
        capture.with(|_| Ok(()))?;
        // Without the lock: observers may be asked to release memory, and may use the capture for that.
        let outcome = alloc(&capture.inside.0, StreamId(self.id()));
        let made = outcome.as_ref().ok().map(|(base, _)| *base);
        capture
            .with(|state| {
                let (base, allocation) = outcome?;
                state.map.allocated(base);
                Ok(allocation)
            })
            .inspect_err(|_| {
                if let Some(base) = made {
                    self.device().free_block(base);
                }
            })
    }

    /// The capture whose end frees wait for, if the stream captures.
    pub(crate) fn captured_by(&self) -> Option<CaptureEnd> {
        let place = self.capture().place.lock();
        place.as_ref().map(|(capture, _)| capture.end.clone())
    }

    /// Begins a capture on this stream. Memory that is allocated on its streams comes from `pool`, or
    /// from a pool of its own.
    ///
    /// # Errors
    /// `CAPTURE` if the stream is capturing; `INVALID_ARGUMENT` for a pool of another device.
    pub fn capture_begin(&self, mode: CaptureMode, pool: Option<&super::Pool>) -> Result<()> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let device = self.device();
        let pool = PoolRef::given_or_new(pool, device, "capture")?;
        let stream = crate::stream(self.id())?;
        let inside = Inside::enter(pool)?;
        let mut slot = self.capture().place.lock();
        if slot.is_some() {
            return Err(
                error("the stream is capturing already: end that capture first")
                    .on_stream(self.id()),
            );
        }
        let capture = Arc::new(Capture {
            id: NUMBERS.fetch_add(1, Ordering::Relaxed),
            mode,
            end: CaptureEnd::default(),
            state: Mutex::new(
                Rank::Capture,
                State {
                    recorder: Recorder::default(),
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
        device.captures().add(&capture);
        *slot = Some((capture, 0));
        self.capture().active.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the capture that was begun on this stream, and gives its graph.
    ///
    /// # Errors
    /// The first failure of a call in the capture, or `CAPTURE` if work of another stream was not
    /// joined: the capture has ended all the same, and its memory is given back. `INVALID_ARGUMENT` if
    /// the stream has not begun one.
    pub fn capture_end(&self) -> Result<Ref<Graph>> {
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
                lane.stream.capture().set(None);
            }
            let empty = State {
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
        self.device().captures().remove(&capture);
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
        Graph::new(
            GraphData {
                graph: state.recorder.into_graph(),
                store: state.store,
                names: Vec::new(),
                resources: state.resources,
                others: Vec::new(),
            },
            state.map,
            false,
        )
    }

    /// Makes the capture fail, for a reason of the host's.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the stream is not capturing.
    pub fn capture_abort(&self, reason: &str) -> Result<()> {
        let (capture, _) = self.place()?;
        let error = error(format!("the capture was given up: {reason}")).on_stream(self.id());
        capture.state.lock().failed.get_or_insert(error);
        Ok(())
    }

    /// What was recorded so far, to look at: it cannot be instantiated.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the stream is not capturing.
    pub fn capture_partial(&self) -> Result<Ref<Graph>> {
        let (capture, _) = self.place()?;
        let state = capture.state.lock();
        let data = GraphData {
            graph: state.recorder.graph().clone(),
            store: state.store.clone(),
            names: Vec::new(),
            resources: Arc::clone(&state.resources),
            others: Vec::new(),
        };
        Graph::new(data, state.map.clone(), true)
    }

    /// The stream's capture; `None` if it has none.
    pub fn capture_info(&self) -> Option<CaptureInfo> {
        let (capture, _) = self.capture().get()?;
        let state = capture.state.lock();
        Some(CaptureInfo {
            id: capture.id,
            mode: capture.mode,
            failed: state.failed.is_some(),
            nodes: state.recorder.graph().len() as u32,
            streams: state.recorder.lanes(),
        })
    }

    /// Nodes that this stream records from here on carry this text, until the next one; an empty text
    /// ends it. Without a capture it does nothing.
    pub fn capture_label(&self, label: &str) {
        if let Some((capture, lane)) = self.capture().get()
            && let Some(lane) = capture.state.lock().lanes.get_mut(lane as usize)
        {
            lane.scope = (!label.is_empty()).then(|| Arc::from(label));
        }
    }
}

/// Reserves random numbers in the capture of this thread's current stream; `None` without one. The
/// seed is then a token that replays put the real one in place of, and the offset counts from where the
/// replay's numbers begin.
#[cold]
pub(crate) fn reserve(generator: &Generator, count: u64) -> Option<(u64, u64)> {
    let stream = current_stream(generator.device()).ok()?;
    let (capture, _) = crate::stream(stream).ok()?.capture().get()?;
    let generator = crate::generator(generator.id()).ok()?;
    let mut state = capture.state.lock();
    let drawn = &mut state.store.drawn;
    let place = drawn
        .iter()
        .position(|one| one.generator.id() == generator.id());
    let place = place.unwrap_or_else(|| {
        drawn.push(Drawn {
            generator,
            token: token(capture.id, drawn.len() as u64),
            count: 0,
        });
        drawn.len() - 1
    });
    let one = &mut drawn[place];
    let relative = one.count;
    one.count += count;
    Some((one.token, relative))
}

/// A number that no seed is likely to be.
fn token(capture: u64, index: u64) -> u64 {
    let mixed = (capture << 8 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1
}
