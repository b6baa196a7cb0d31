//! Calls of a stream that captures. Each call becomes a node, an edge, memory of the graph's pool, or random numbers
//! that a replay draws.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::Arc;

use outrigger_allocator::StreamId;
use outrigger_device::{Code, CopyKind, DType, HostFn};
use outrigger_ops::{Call, OperatorId};

use super::place::{CapturedMark, Refusal};
use super::{Capture, CaptureState, LaneState, Stream, error};
use crate::buffers::Resolver;
use crate::data::{ConditionalKind, DestroyFn, Store};
use crate::drawn::{Drawn, Generator, refuse_recorded_state, token};
use crate::graph::{Graph, whole};
use crate::kernel::DeviceCall;
use crate::memory::{Device, PoolRef};
use crate::record::{self, Condition, DriverNode, HostNode, KernelCall, Recorded};
use crate::recorder::{Lane, Mark};
use crate::{Error, Result};

/// A stream's place in a capture, for one call: all that the call records goes there, whatever other threads begin and
/// end meanwhile.
#[derive(Debug)]
pub struct Recording<'a> {
    stream: &'a Stream,
    capture: Arc<Capture>,
    lane: Lane,
}

impl Stream {
    /// The stream's place in a capture; `None` if it does not capture. A call asks once, and goes by the answer until it
    /// returns.
    #[cold]
    pub fn recording(&self) -> Option<Recording<'_>> {
        let (capture, lane) = self.slot.get()?;
        Some(Recording {
            stream: self,
            capture,
            lane,
        })
    }

    /// Records a call of one step; see [`Recording::record`]. `None` also if the stream does not capture.
    #[cold]
    pub fn record<R>(&self, step: impl FnOnce(&mut Steps<'_>) -> Result<R>) -> Option<Result<R>> {
        self.recording()?.record(step)
    }
}

impl Recording<'_> {
    /// Records the steps of a call. The graph has all of them, or it has none. `None` if the capture has ended before:
    /// the call is made then as on a stream that does not capture.
    #[cold]
    pub fn record<R>(&self, steps: impl FnOnce(&mut Steps<'_>) -> Result<R>) -> Option<Result<R>> {
        let recorded = self.capture.with(|state| {
            steps(&mut Steps {
                state,
                capture: &self.capture,
                lane: self.lane,
            })
        });
        recorded.map(|outcome| outcome.map_err(|error| error.on_stream(self.stream.id())))
    }

    /// The driver's own operator for a call, with its workspace, or a note that the call becomes a host kernel. The
    /// search calls the driver and observers, so it comes before [`record`](Self::record), and its result is dropped
    /// after that. `None` if the capture has ended.
    ///
    /// # Errors
    /// `UNSUPPORTED` if neither has anything for the call; what the driver reports; `CAPTURE` if the capture has failed.
    pub fn find(&self, id: OperatorId, call: &Call<'_>) -> Option<Result<Option<DriverNode>>> {
        let usable = self.record(|_| Ok(()))?;
        let found = usable.and_then(|()| DriverNode::find(id, call, self.capture.pool()));
        // A failure is one of the call, and so of the capture.
        self.record(|_| found)
    }

    /// Allocates from the pool of the capture. `None` if the capture has ended.
    ///
    /// # Errors
    /// Those of `alloc`; `CAPTURE` if the capture has failed.
    #[cold]
    pub fn alloc<T>(
        &self,
        alloc: impl FnOnce(&PoolRef, StreamId) -> Result<(u64, T)>,
    ) -> Option<Result<T>> {
        if let Err(error) = self.record(|_| Ok(()))? {
            return Some(Err(error));
        }
        // The capture is not locked here: observers may be asked to release memory, and may use the capture for that.
        let outcome = alloc(self.capture.pool(), StreamId(self.stream.id()));
        let made = outcome.as_ref().ok().map(|(base, _)| *base);
        let noted = self.record(|steps| {
            let (base, allocation) = outcome?;
            steps.state.map.allocated(base);
            Ok(allocation)
        });
        if !matches!(noted, Some(Ok(_)))
            && let Some(base) = made
        {
            self.stream.on().free_block(base);
        }
        noted
    }
}

/// A capture during one call, which records its steps.
pub struct Steps<'a> {
    state: &'a mut CaptureState,
    capture: &'a Arc<Capture>,
    lane: Lane,
}

impl std::fmt::Debug for Steps<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

impl Steps<'_> {
    /// The nodes so far.
    pub fn nodes(&self) -> u32 {
        self.state.recorder.graph().len() as u32
    }

    fn push(
        &mut self,
        command: impl FnOnce(&'static dyn Device, &mut Store, &mut Resolver<'_>) -> Result<Recorded>,
    ) -> Result<()> {
        self.state.push(self.lane, command)
    }

    /// Records an operator, which runs as `driver` has it, or else as a host kernel. `driver` is what
    /// [`Recording::find`] has found for the call.
    ///
    /// # Errors
    /// `UNSUPPORTED` if there is no kernel for these arguments; the capture goes on then. Any other error makes the
    /// capture fail.
    pub fn operator(
        &mut self,
        id: OperatorId,
        call: &Call<'_>,
        driver: Option<&mut DriverNode>,
    ) -> Result<()> {
        self.push(|_, store, buffers| record::operator(store, buffers, id, call, driver))
    }

    /// Records a copy. The caller has checked that its device ranges lie in live allocations.
    ///
    /// # Errors
    /// Why it cannot be recorded.
    pub fn copy(&mut self, dst: u64, src: u64, size: u64, kind: CopyKind) -> Result<()> {
        self.push(|_, store, buffers| record::copy(store, buffers, (dst, src, size, kind)))
    }

    /// Records a fill. The caller has checked that its range lies in a live allocation.
    ///
    /// # Errors
    /// Why it cannot be recorded.
    pub fn fill(&mut self, dst: u64, size: u64, pattern: &[u8]) -> Result<()> {
        self.push(|_, store, buffers| record::fill(store, buffers, dst, size, pattern))
    }

    /// Records a host kernel.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an address that is not in live memory, or an address offset that is wrong.
    pub fn kernel(&mut self, call: &KernelCall<'_>) -> Result<()> {
        self.push(|_, store, buffers| record::kernel(store, buffers, call))
    }

    /// Records a kernel of a module.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an address that is not in live memory, or an address offset that is wrong.
    pub fn device_kernel(&mut self, call: &DeviceCall<'_>) -> Result<()> {
        self.push(|_, store, buffers| record::device_kernel(store, buffers, call))
    }

    /// Records an operator over copies of its operands in host memory, which the graph [owns](Self::own). The caller has
    /// had the host kernel admitted.
    ///
    /// # Errors
    /// Those of [`operator`](Self::operator).
    pub fn operator_on_host(&mut self, id: OperatorId, call: &Call<'_>) -> Result<()> {
        self.push(|_, store, _| record::operator_on_host(store, id, call))
    }

    /// Records a host kernel over copies in host memory, which the graph [owns](Self::own).
    ///
    /// # Errors
    /// Why it cannot be recorded.
    pub fn kernel_on_host(&mut self, call: &KernelCall<'_>) -> Result<()> {
        self.push(|_, store, _| Ok(record::kernel_on_host(store, call)))
    }

    /// Records a function that is called at every replay.
    ///
    /// # Errors
    /// Why it cannot be recorded.
    pub fn host_call(&mut self, function: HostFn, user: *mut c_void) -> Result<()> {
        self.push(|_, store, _| Ok(record::host_call(store, function, user)))
    }

    /// Records a function that is called at every replay, with the memory that it uses.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an address that is not in live memory.
    pub fn host_node(&mut self, node: &HostNode<'_>) -> Result<()> {
        self.push(|_, store, buffers| record::host_node(store, buffers, node))?;
        self.state.resources.own(node.user, node.destroy);
        Ok(())
    }

    /// Gives the graph user data, which the graph destroys when no replay can use it any more. The call comes last,
    /// because a failure behind it would leave two owners.
    pub fn own(&mut self, user: *mut c_void, destroy: DestroyFn) {
        self.state.resources.own(user, Some(destroy));
    }

    /// Makes an event a point of the capture.
    pub fn mark(&mut self, event: &CapturedMark) {
        let mark = self.state.recorder.mark(self.lane);
        event.set(Arc::downgrade(self.capture), mark);
    }
}

/// The error for a call that only a capture takes.
#[cold]
fn ended() -> Error {
    error("another thread has ended the capture")
}

impl Stream {
    /// Records a conditional node whose bodies are graphs of their own.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the stream is not capturing, or the predicate or a body is wrong; `UNSUPPORTED` for bodies
    /// that draw random numbers.
    pub fn capture_conditional(
        &self,
        kind: ConditionalKind,
        predicate: u64,
        dtype: DType,
        bodies: &[impl Deref<Target = Graph>],
    ) -> Result<()> {
        let bodies = whole(bodies)?;
        let condition = Condition {
            kind,
            predicate,
            dtype,
            bodies: &bodies,
        };
        self.place()?;
        let recorded = self.record(|steps| {
            steps.push(|device, store, buffers| {
                record::conditional(device, store, buffers, &condition)
            })
        });
        recorded.unwrap_or_else(|| Err(ended().on_stream(self.id())))
    }

    /// A wait for an event, if the stream captures or the event was recorded in a capture. `passed` queries the event.
    /// Returns false if neither is true any more: the caller waits in the usual way then.
    ///
    /// # Errors
    /// `CAPTURE` that says why there is nothing to wait for.
    #[cold]
    pub fn wait_captured(
        self: &Arc<Self>,
        event: &CapturedMark,
        passed: impl FnOnce() -> Result<bool>,
    ) -> Result<bool> {
        let Some((theirs, mark)) = event.get() else {
            let Some(own) = self.recording() else {
                return Ok(false);
            };
            let passed = passed();
            let outside = own.record(|_| match passed {
                Ok(true) => Ok(true),
                _ => Err(error(
                    "a wait in a capture for an event that was recorded outside of it: record it within \
                     the capture, or wait for it before the capture begins",
                )),
            });
            return outside.unwrap_or(Ok(false));
        };
        loop {
            let own = self.recording();
            let Some(theirs) = theirs.as_ref().filter(|capture| !capture.ended()) else {
                let error = error(
                    "a wait for an event that was recorded in a capture that has ended: record it again",
                )
                .on_stream(self.id());
                if let Some(own) = own {
                    own.capture.fail_here(&error);
                }
                return Err(error);
            };
            let waited = match own {
                Some(own) => own.record(|steps| {
                    if !Arc::ptr_eq(&own.capture, theirs) {
                        return Err(error(
                            "a wait for an event of another capture: captures do not depend on each other",
                        ));
                    }
                    steps.state.recorder.wait(steps.lane, &mark);
                    Ok(())
                }),
                None => self.join(theirs, &mark),
            };
            // The answer is missing if the stream's place has changed since it was asked for.
            if let Some(waited) = waited {
                return waited.map(|()| true);
            }
        }
    }

    /// Joins a capture. What this stream records runs after `mark`. `None` if the capture has ended, or the stream has a
    /// place by now.
    fn join(self: &Arc<Self>, capture: &Arc<Capture>, mark: &Mark) -> Option<Result<()>> {
        let joined = capture.with(|state| {
            if state.resources.device.index() != self.on().index() {
                return Err(Error::new(
                    Code::INVALID_ARGUMENT,
                    format!(
                        "a stream of device {} cannot join a capture on device {}: a graph stays on one \
                         device",
                        self.on().index(),
                        state.resources.device.index()
                    ),
                )
                .on_stream(self.id()));
            }
            Ok(self.slot.take(|| {
                let stream = Arc::clone(self);
                let lane = state.recorder.fork(mark);
                state.lanes.push(LaneState { stream, scope: None });
                (Arc::clone(capture), lane)
            }))
        });
        match joined? {
            Ok(Ok(())) => Some(Ok(())),
            Ok(Err(Refusal::Taken)) => None,
            Ok(Err(closed)) => Some(Err(closed.error(self.id()))),
            Err(error) => Some(Err(error)),
        }
    }

    /// Reserves random numbers in the stream's capture; `None` if the stream does not capture. Returns the state before
    /// them: a token, which replays replace by the seed, and an offset from where the numbers of a replay begin; or the
    /// state that was set in the capture.
    #[cold]
    pub fn reserve(
        &self,
        id: u64,
        generator: impl FnOnce() -> Option<Arc<dyn Generator>>,
        count: u64,
    ) -> Option<(u64, u64)> {
        let (capture, _) = self.slot.get()?;
        let mut state = capture.state.lock();
        if capture.ended() {
            return None;
        }
        let one = capture.generator(&mut state.store, id, generator)?;
        let before = one.at;
        one.at.1 = before.1.wrapping_add(count);
        Some(before)
    }

    /// Sets a generator in the stream's capture, so that each replay sets it; `None` if the stream does not capture.
    ///
    /// # Errors
    /// `CAPTURE` for a state that was read in another capture. The capture fails then.
    #[cold]
    pub fn set_generator(
        &self,
        id: u64,
        generator: impl FnOnce() -> Option<Arc<dyn Generator>>,
        (seed, offset): (u64, u64),
    ) -> Option<Result<()>> {
        let (capture, _) = self.slot.get()?;
        let mut state = capture.state.lock();
        if capture.ended() {
            return None;
        }
        if state.store.generators.find(seed).is_none()
            && let Err(error) = refuse_recorded_state(seed)
        {
            let error = error.on_stream(self.id());
            state.failed.get_or_insert_with(|| error.clone());
            return Some(Err(error));
        }
        capture.generator(&mut state.store, id, generator)?.at = (seed, offset);
        Some(Ok(()))
    }
}

impl Capture {
    /// A generator of the capture.
    fn generator<'a>(
        &self,
        store: &'a mut Store,
        id: u64,
        generator: impl FnOnce() -> Option<Arc<dyn Generator>>,
    ) -> Option<&'a mut Drawn> {
        let make = |index| Some(Drawn::new(generator()?, token(self.id, index)));
        store.generators.get(id, make)
    }
}
