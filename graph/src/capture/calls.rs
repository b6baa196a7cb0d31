//! Calls of a stream that captures. Each call becomes a node, an edge, memory of the graph's pool, or random numbers
//! that a replay draws.

use std::ffi::c_void;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_allocator::StreamId;
use outrigger_device::{Code, CopyKind, DType, HostFn};
use outrigger_ops::{Call, OperatorId};

use super::{Capture, CapturedMark, LaneState, Stream, error};
use crate::buffers::Resolver;
use crate::data::{ConditionalKind, DestroyFn, Drawn, Generator, Store};
use crate::graph::{Graph, whole};
use crate::kernel::DeviceCall;
use crate::memory::{Device, PoolRef};
use crate::record::{self, Condition, DriverNode, HostNode, KernelCall, Recorded};
use crate::recorder::Mark;
use crate::{Error, Result};

impl Stream {
    /// Records a command.
    fn record(
        &self,
        command: impl FnOnce(&'static dyn Device, &mut Store, &mut Resolver<'_>) -> Result<Recorded>,
    ) -> Result<()> {
        let (capture, lane) = self.place()?;
        capture
            .with(|state| state.push(lane, command))
            .map_err(|error| error.on_stream(self.id()))
    }

    /// Records an operator.
    ///
    /// # Errors
    /// `UNSUPPORTED` if there is no kernel for these arguments; the capture goes on then. Any other error makes the
    /// capture fail.
    #[cold]
    pub fn record_call(&self, id: OperatorId, call: &Call<'_>) -> Result<()> {
        let (capture, lane) = self.place()?;
        capture.with(|_| Ok(()))?;
        // Not under the lock: this calls the driver, and may ask observers to release memory.
        let driver = DriverNode::find(id, call, capture.pool());
        capture
            .with(|state| {
                let driver = driver?;
                state.push(lane, |_, store, buffers| {
                    record::operator(store, buffers, id, call, driver)
                })
            })
            .map_err(|error| error.on_stream(self.id()))
    }

    /// Records a copy. The caller has checked that its device ranges lie in live allocations.
    ///
    /// # Errors
    /// Why it cannot be recorded.
    #[cold]
    pub fn record_copy(&self, dst: u64, src: u64, size: u64, kind: CopyKind) -> Result<()> {
        self.record(|_, store, buffers| record::copy(store, buffers, (dst, src, size, kind)))
    }

    /// Records a fill. The caller has checked that its range lies in a live allocation.
    ///
    /// # Errors
    /// Why it cannot be recorded.
    #[cold]
    pub fn record_fill(&self, dst: u64, size: u64, pattern: &[u8]) -> Result<()> {
        self.record(|_, store, buffers| record::fill(store, buffers, dst, size, pattern))
    }

    /// Records a host kernel.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an address that is not in live memory, or an address offset that is wrong.
    #[cold]
    pub fn record_kernel(&self, call: &KernelCall<'_>) -> Result<()> {
        self.record(|_, store, buffers| record::kernel(store, buffers, call))
    }

    /// Records a kernel of a module.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an address that is not in live memory, or an address offset that is wrong.
    #[cold]
    pub fn record_device_kernel(&self, call: &DeviceCall<'_>) -> Result<()> {
        self.record(|_, store, buffers| record::device_kernel(store, buffers, call))
    }

    /// Records an operator over copies of its operands in host memory, which the caller has given to the graph by
    /// [`capture_own`](Self::capture_own).
    ///
    /// # Errors
    /// Those of [`record_call`](Self::record_call).
    #[cold]
    pub fn record_call_on_host(&self, id: OperatorId, call: &Call<'_>) -> Result<()> {
        self.record(|device, store, _| record::operator_on_host(store, device, id, call))
    }

    /// Records a host kernel over copies in host memory, which the caller has given to the graph.
    ///
    /// # Errors
    /// `CAPTURE` if the capture has failed or ended.
    #[cold]
    pub fn record_kernel_on_host(&self, call: &KernelCall<'_>) -> Result<()> {
        self.record(|_, store, _| Ok(record::kernel_on_host(store, call)))
    }

    /// Gives the graph user data, which it destroys when nothing of it runs any more.
    ///
    /// # Errors
    /// `CAPTURE` if the capture has failed or ended. The user data is the caller's then.
    #[cold]
    pub fn capture_own(&self, user: *mut c_void, destroy: DestroyFn) -> Result<()> {
        let (capture, _) = self.place()?;
        capture
            .with(|state| {
                state.resources.own(user, Some(destroy));
                Ok(())
            })
            .map_err(|error| error.on_stream(self.id()))
    }

    /// Records a function that is called at every replay.
    ///
    /// # Errors
    /// `CAPTURE` if the capture has failed or ended.
    #[cold]
    pub fn record_host_call(&self, function: HostFn, user: *mut c_void) -> Result<()> {
        self.record(|_, store, _| Ok(record::host_call(store, function, user)))
    }

    /// Records a function that is called at every replay, with the memory that it uses.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for an address that is not in live memory.
    #[cold]
    pub fn record_host_node(&self, node: &HostNode<'_>) -> Result<()> {
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

    /// Records an event as a point of the capture.
    ///
    /// # Errors
    /// `CAPTURE` if the capture has failed or ended.
    #[cold]
    pub fn record_event(&self, place: &CapturedMark) -> Result<()> {
        let (capture, lane) = self.place()?;
        capture.with(|state| {
            let mark = state.recorder.mark(lane);
            *place.mark.lock() = Some((Arc::downgrade(&capture), mark));
            place.active.store(true, Ordering::Relaxed);
            Ok(())
        })
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
        let own = self.slot.get();
        let Some((theirs, mark)) = event.get() else {
            let Some((capture, _)) = own else {
                return Ok(false);
            };
            let passed = passed();
            return capture.with(|_| match passed {
                Ok(true) => Ok(true),
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
                Ok(true)
            }),
            Some((capture, _)) => capture.with(|_| {
                Err(error(
                    "a wait for an event of another capture: captures do not depend on each other",
                )
                .on_stream(self.id()))
            }),
            None => self.join(&theirs, &mark).map(|()| true),
        }
    }

    /// Joins a capture. What this stream records runs after `mark`.
    fn join(self: &Arc<Self>, capture: &Arc<Capture>, mark: &Mark) -> Result<()> {
        let stream = Arc::clone(self);
        capture.with(|state| {
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
            let lane = state.recorder.fork(mark);
            state.lanes.push(LaneState { stream, scope: None });
            self.slot.set(Some((Arc::clone(capture), lane)));
            Ok(())
        })
    }

    /// Allocates from the pool of the stream's capture.
    #[cold]
    pub fn alloc_captured<T>(
        &self,
        alloc: impl FnOnce(&PoolRef, StreamId) -> Result<(u64, T)>,
    ) -> Result<T> {
        let (capture, _) = self.place()?;
        capture.with(|_| Ok(()))?;
        // Not under the lock: observers may be asked to release memory, and may use the capture for that.
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
                    self.on().free_block(base);
                }
            })
    }

    /// Reserves random numbers in the stream's capture; `None` if the stream does not capture. Returns a token, which
    /// replays replace by the seed, and an offset from where the numbers of a replay begin.
    #[cold]
    pub fn reserve(
        &self,
        id: u64,
        generator: impl FnOnce() -> Option<Arc<dyn Generator>>,
        count: u64,
    ) -> Option<(u64, u64)> {
        let (capture, _) = self.slot.get()?;
        let mut state = capture.state.lock();
        let drawn = &mut state.store.drawn;
        let place = match drawn.iter().position(|one| one.generator.id() == id) {
            Some(place) => place,
            None => {
                drawn.push(Drawn {
                    generator: generator()?,
                    token: token(capture.id, drawn.len() as u64),
                    count: 0,
                });
                drawn.len() - 1
            }
        };
        let one = &mut drawn[place];
        let relative = one.count;
        one.count += count;
        Some((one.token, relative))
    }
}

/// A number that is very unlikely to be a seed.
fn token(capture: u64, index: u64) -> u64 {
    let mixed = (capture << 8 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1
}
