//! Executable graphs: replays, bindings, updates and destruction.
//!
//! Replays of one executable graph run in the order in which they were submitted, also on different streams: a replay
//! waits for the one before it. What replays use is given back only after the last replay has finished.
//! `ExecState::last` names the stream of that replay, and is set before the first command is submitted. So a submission
//! that fails half-way is waited for, too.
//!
//! Replays, bindings and updates take turns. A turn is held over calls of the driver, but never over a call of the
//! host. That is why memory is asked for before a turn, and given back after it.

mod bind;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use outrigger_allocator::{PoolGate, StreamId};
use outrigger_device::{Code, CopyKind};
use outrigger_locks::{Mutex, MutexGuard, Rank};
use outrigger_ops::{FailedOperator, parallel};

use bind::{Bindable, check_slots, slot_ranges, slots_of, unbind};

use crate::capture::Stream;
use crate::dag::NodeId;
use crate::data::{GraphData, Work};
use crate::graph::Graph;
use crate::launch::{Header, LaunchBlock, replay};
use crate::memory::{Device, Replayed};
use crate::native::{self, Native};
use crate::program::{Patch, Program};
use crate::schedule::Schedule;
use crate::submit;
use crate::{Error, Result};

/// The choices that a host has when it instantiates a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExecFlags {
    /// Whether replays use one thread.
    pub serial: bool,
    /// Replays go through the driver's queue node by node.
    pub submit: bool,
    /// Replays are launches of a graph of the driver.
    pub native: bool,
}

/// The way in which replays reach the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecMode {
    /// One launch of a host kernel, which runs all nodes.
    Launch,
    /// A command of the driver's queue for each node.
    Submit,
    /// One launch of a graph of the driver.
    Native,
}

impl ExecMode {
    /// Whether each node is a command of the driver. Then the driver decides what runs at the same time.
    fn by_node(self) -> bool {
        matches!(self, Self::Submit | Self::Native)
    }
}

/// Figures of an executable graph.
#[derive(Clone, Copy, Debug)]
pub struct ExecInfo {
    /// The number of nodes that run.
    pub nodes: u32,
    /// Nodes that were dropped, because nobody sees their results.
    pub dropped: u32,
    /// Segments, which run one after the other.
    pub segments: u32,
    /// Segments that run on several threads.
    pub parallel_segments: u32,
    /// The number of replays so far.
    pub replays: u64,
    /// Bytes that its pool holds.
    pub memory_bytes: u64,
    /// Estimated time of a replay on one thread, in nanoseconds.
    pub estimated_ns: u64,
    /// The way in which replays reach the device.
    pub mode: ExecMode,
}

/// A graph that can be replayed.
#[derive(Debug)]
pub struct GraphExec {
    device: &'static dyn Device,
    mode: ExecMode,
    serial: bool,
    /// The number of replays so far.
    replays: AtomicU64,
    /// The operators that a replay runs, to be counted. An update changes none of them.
    replayed: Box<[Replayed]>,
    turn: Mutex<ExecState>,
    shown: Mutex<Shown>,
}

/// A copy of what callers may ask for while another thread holds a turn.
#[derive(Debug)]
struct Shown {
    data: Arc<GraphData>,
    schedule: Arc<Schedule>,
    names: Vec<String>,
}

impl Shown {
    fn new(data: &Arc<GraphData>, schedule: &Arc<Schedule>, slots: &[Bindable]) -> Self {
        Self {
            data: Arc::clone(data),
            schedule: Arc::clone(schedule),
            names: slots.iter().map(|slot| slot.name.clone()).collect(),
        }
    }
}

/// The part of an executable graph that a turn guards.
#[derive(Debug)]
struct ExecState {
    data: Arc<GraphData>,
    schedule: Arc<Schedule>,
    program: Arc<Program>,
    /// The driver's graph in mode `Native`.
    native: Option<Native>,
    /// The gates of the pools whose memory the nodes use.
    gates: Arc<[PoolGate]>,
    slots: Vec<Bindable>,
    /// Bindings that may not have been written into the blocks yet, each with the number of the first submission that
    /// carries it.
    pending: Vec<(u64, Patch)>,
    /// The stream of the latest submission, also if that failed half-way.
    last: Option<u64>,
    /// The places where failures of replays are noted, by stream.
    reports: Vec<(u64, Arc<FailedOperator>)>,
    /// The number of replays that were submitted, also of those that failed.
    submissions: u64,
}

/// A turn of an executable graph, inside the pools of its memory: none of that memory is lent out.
struct Turn<'a> {
    state: MutexGuard<'a, ExecState>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.state.gates.iter().for_each(PoolGate::leave);
    }
}

fn threads(serial: bool) -> u32 {
    if serial {
        1
    } else {
        parallel::threads() as u32
    }
}

impl Graph {
    /// Makes the graph executable.
    ///
    /// # Errors
    /// `CAPTURE` for a partial graph; `UNSUPPORTED` if the device cannot run it at all, or not in the way that `flags` ask for, or if a named buffer
    /// cannot be bound; what the driver reports.
    pub fn instantiate(&self, flags: ExecFlags) -> Result<GraphExec> {
        let data = self.data()?;
        let device = data.resources.device;
        device.sweep_retired();
        let mode = mode_of(device, &data, flags)?;
        let threads = threads(flags.serial || mode.by_node());
        let schedule = Arc::new(data.graph.schedule(threads));
        let slots = slots_of(&data);
        check_slots(&data, &slots)?;
        let program = Program::new(&data, &schedule, threads, &slot_ranges(&slots), None)?;
        // A driver's graph is made over memory that is there.
        if mode == ExecMode::Native && device.any_asleep() {
            data.resources.check_awake()?;
        }
        let (mode, native) = match mode {
            // SAFETY: no replay runs, because nobody else has the program yet. The exec keeps data and program, and
            // retires them together with the driver's graph.
            ExecMode::Native => match unsafe { Native::new(device, &program) } {
                // Nobody asked for this way, and the other one takes all nodes.
                Err(error) if error.code() == Code::UNSUPPORTED && !flags.native => {
                    (ExecMode::Submit, None)
                }
                native => (mode, Some(native?)),
            },
            _ => (mode, None),
        };
        let shown = Shown::new(&data, &schedule, &slots);
        let replayed = replayed(&data, &schedule);
        let state = ExecState {
            gates: data.gates().into(),
            data,
            schedule,
            program: Arc::new(program),
            native,
            slots,
            pending: Vec::new(),
            last: None,
            reports: Vec::new(),
            submissions: 0,
        };
        Ok(GraphExec {
            device,
            mode,
            serial: flags.serial,
            replays: AtomicU64::new(0),
            replayed,
            turn: Mutex::new(Rank::ExecTurn, state),
            shown: Mutex::new(Rank::Exec, shown),
        })
    }
}

impl GraphExec {
    /// Figures of the executable graph.
    pub fn info(&self) -> ExecInfo {
        let (data, schedule) = {
            let shown = self.shown.lock();
            (Arc::clone(&shown.data), Arc::clone(&shown.schedule))
        };
        let segments = &schedule.segments;
        ExecInfo {
            nodes: schedule.steps.len() as u32,
            dropped: schedule.dropped.len() as u32,
            segments: segments.len() as u32,
            parallel_segments: segments.iter().filter(|one| one.len() > 1).count() as u32,
            replays: self.replays.load(Ordering::Relaxed),
            memory_bytes: data.resources.pool.stats().reserved,
            estimated_ns: schedule.cost_ns,
            mode: self.mode,
        }
    }

    /// Replays the graph in stream order, and returns without waiting for it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a stream of another device; `CAPTURE` if the stream captures; what the
    /// driver reports.
    pub fn replay(&self, stream: &Stream) -> Result<()> {
        self.check_stream(stream)?;
        let mut turn = self.begin(stream)?;
        self.submit(&mut turn.state, stream)?;
        self.replays.fetch_add(1, Ordering::Relaxed);
        for operator in &self.replayed {
            self.device.count_replayed(operator);
        }
        Ok(())
    }

    /// Takes a turn, inside the pools, for work on a stream that uses the memory of the nodes.
    fn begin(&self, stream: &Stream) -> Result<Turn<'_>> {
        let state = self.turn.lock();
        state.order(stream)?;
        let id = StreamId(stream.id());
        for (at, gate) in state.gates.iter().enumerate() {
            if !self.device.try_enter(gate, id) {
                state.gates[..at].iter().for_each(PoolGate::leave);
                drop(state);
                return self.begin_outside(stream);
            }
        }
        Ok(Turn { state })
    }

    /// Does what [`begin`](Self::begin) does where lent memory has to come back into the pools first. The host may be
    /// asked to release memory for that, so no turn is held meanwhile.
    #[cold]
    fn begin_outside(&self, stream: &Stream) -> Result<Turn<'_>> {
        let id = StreamId(stream.id());
        loop {
            let gates = Arc::clone(&self.turn.lock().gates);
            for (at, gate) in gates.iter().enumerate() {
                if let Err(error) = self.device.enter(gate, Some(id)) {
                    gates[..at].iter().for_each(PoolGate::leave);
                    return Err(error);
                }
            }
            let state = self.turn.lock();
            if Arc::ptr_eq(&gates, &state.gates) {
                let turn = Turn { state };
                turn.state.order(stream)?;
                return Ok(turn);
            }
            // Another thread has updated the graph, which uses other pools now.
            drop(state);
            gates.iter().for_each(PoolGate::leave);
        }
    }

    /// Submits a replay to a stream.
    fn submit(&self, state: &mut ExecState, stream: &Stream) -> Result<()> {
        state.last = Some(stream.id());
        state.submissions += 1;
        let number = state.submissions;
        let applied = state.program.applied.load(Ordering::Acquire);
        state.pending.retain(|(first, _)| *first > applied);
        let starts = state.data.store.generators.begin();
        let draws = (0..).zip(&starts).map(|(index, &(first, second))| Patch {
            target: Patch::GENERATOR | index,
            first,
            second,
        });
        let patches = state.pending.iter().map(|(_, patch)| *patch).chain(draws);
        match self.mode {
            ExecMode::Launch => {
                let header = Header {
                    program: Arc::as_ptr(&state.program),
                    report: std::ptr::null(),
                    number,
                    patches: 0,
                };
                let mut block = LaunchBlock::new(header);
                patches.for_each(|patch| block.push(patch));
                let report = state_report(&mut state.reports, stream);
                let cost = u32::try_from(state.schedule.cost_ns).unwrap_or(u32::MAX);
                // SAFETY: the block is what `replay` expects. The exec keeps program and report until the launch has
                // finished, and runs one replay at a time.
                block.finish(report, |args| unsafe {
                    stream.launch_host(replay, args, cost, c"graph")
                })?;
            }
            ExecMode::Submit => {
                let patches: Vec<_> = patches.collect();
                // SAFETY: this turn is the only one that changes blocks or reads them: a node's block is read when the
                // node is submitted. The graph keeps the memory of its nodes alive until the exec is retired.
                unsafe {
                    state.program.patch(&patches);
                    state.program.applied.store(number, Ordering::Release);
                    submit::submit(stream, &state.program)?;
                }
            }
            ExecMode::Native => {
                let patches: Vec<_> = patches.collect();
                // SAFETY: the condition of `Submit`, where a node's block is read when the node is recorded.
                unsafe { state.follow(self.device, &patches, number) }?;
                if let Some(native) = &state.native {
                    // SAFETY: this turn is the only one that changes blocks. The graph keeps the memory of its nodes alive
                    // until the exec is retired.
                    unsafe { native.launch(stream, &state.program) }?;
                }
            }
        }
        Ok(())
    }

    fn check_stream(&self, stream: &Stream) -> Result<()> {
        if !std::ptr::addr_eq(stream.on(), self.device) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "a graph of device {} cannot be replayed on a stream of device {}",
                    self.device.index(),
                    stream.on().index()
                ),
            )
            .on_stream(stream.id()));
        }
        if stream.is_capturing() {
            return Err(stream.refuse_capturing("a replay"));
        }
        Ok(())
    }

    /// Whether the host can run all nodes: none is an operator of the driver.
    pub(super) fn runs_on_host(&self) -> Result<bool> {
        let data = Arc::clone(&self.shown.lock().data);
        Ok(!has_device_work(&data) && self.device.door().runs_host_kernels()?)
    }

    /// Takes a turn in which replays are inspected one after the other. The work that the stream was given before is
    /// waited for before the turn. If another thread begins a capture on the stream meanwhile, the turn goes on: its
    /// work comes before the capture.
    pub(super) fn look<'a>(&'a self, stream: &'a Stream) -> Result<Look<'a>> {
        self.check_stream(stream)?;
        stream.synchronize_now()?;
        let turn = self.begin(stream)?;
        Ok(Look {
            exec: self,
            stream,
            turn,
        })
    }
}

/// A turn for several replays, each of which is waited for. Meanwhile no other thread replays, binds or updates, and
/// the pools lend no memory.
pub(super) struct Look<'a> {
    exec: &'a GraphExec,
    stream: &'a Stream,
    turn: Turn<'a>,
}

impl Look<'_> {
    /// Replays, waits, and returns how long that took.
    pub(super) fn replay(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        self.exec.submit(&mut self.turn.state, self.stream)?;
        self.stream.synchronize_now()?;
        self.exec.replays.fetch_add(1, Ordering::Relaxed);
        Ok(begun.elapsed())
    }

    /// The program, with the changes of all bindings so far. Nothing runs.
    pub(super) fn program(&mut self) -> Result<Arc<Program>> {
        self.stream.synchronize_now()?;
        let state = &mut *self.turn.state;
        let patches: Vec<_> = state.pending.iter().map(|(_, patch)| *patch).collect();
        // SAFETY: no replay is running: the stream is behind the latest one, and was waited for.
        unsafe { state.program.patch(&patches) };
        state.last = Some(self.stream.id());
        Ok(Arc::clone(&state.program))
    }

    /// Runs the nodes with the changes of the last replay as a replay does, waits, and returns how long that took.
    pub(super) fn again(&mut self) -> Result<Duration> {
        let program = self.program()?;
        let state = &mut *self.turn.state;
        let begun = Instant::now();
        if self.exec.mode == ExecMode::Launch {
            let header = Header {
                program: Arc::as_ptr(&program),
                report: std::ptr::null(),
                number: state.program.applied.load(Ordering::Acquire),
                patches: 0,
            };
            let report = state_report(&mut state.reports, self.stream);
            // SAFETY: as in `GraphExec::submit`; no replay is running.
            LaunchBlock::new(header).finish(report, |args| unsafe {
                self.stream.launch_host(replay, args, 0, c"graph")
            })?;
        } else {
            // SAFETY: no replay is running, and no other one begins before the turn ends. The graph keeps the memory of
            // its nodes alive.
            unsafe { submit::submit(self.stream, &program) }?;
        }
        self.stream.synchronize_now()?;
        Ok(begun.elapsed())
    }

    /// Submits the nodes one by one with the changes of the last replay, waits, and returns how long that took.
    pub(super) fn node_by_node(&mut self) -> Result<Duration> {
        let program = self.program()?;
        let begun = Instant::now();
        // SAFETY: as in `again`.
        unsafe { submit::submit(self.stream, &program) }?;
        self.stream.synchronize_now()?;
        Ok(begun.elapsed())
    }

    /// The driver's graph of the nodes with the changes of the last replay; `None` if the driver has none for them.
    pub(super) fn native(&mut self) -> Result<Option<Native>> {
        let program = self.program()?;
        // A graph of the driver has no conditional nodes.
        if !program.data.store.bodies.is_empty() {
            return Ok(None);
        }
        // SAFETY: no replay is running, and no other one begins before the turn ends, which is after the last launch.
        match unsafe { Native::new(self.exec.device, &program) } {
            Ok(native) => Ok(Some(native)),
            Err(error) if error.code() == Code::UNSUPPORTED => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Launches a driver's graph of the nodes, waits, and returns how long that took.
    pub(super) fn launch(&mut self, native: &Native) -> Result<Duration> {
        let program = self.program()?;
        let begun = Instant::now();
        // SAFETY: this turn is the only one that changes blocks. The graph keeps the memory of its nodes alive.
        unsafe { native.launch(self.stream, &program) }?;
        self.stream.synchronize_now()?;
        Ok(begun.elapsed())
    }

    /// Runs one node, and waits for it.
    pub(super) fn node(&mut self, program: &Program, id: NodeId) -> Result<()> {
        // SAFETY: as in `again`.
        unsafe { submit::submit_node(self.stream, program, id) }?;
        self.stream.synchronize_now()
    }

    /// Reads memory of the device.
    ///
    /// # Safety
    /// The range is live, and nothing writes to it.
    pub(super) unsafe fn read(&mut self, address: u64, size: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; size as usize];
        let to = bytes.as_mut_ptr() as u64;
        // SAFETY: this function's contract.
        unsafe { self.copy(bytes, (to, address, size), CopyKind::DeviceToHost) }
    }

    /// Writes memory of the device.
    ///
    /// # Safety
    /// The range is live, and nothing else uses it.
    pub(super) unsafe fn write(&mut self, address: u64, bytes: Vec<u8>) -> Result<()> {
        let (from, size) = (bytes.as_ptr() as u64, bytes.len() as u64);
        // SAFETY: this function's contract.
        unsafe { self.copy(bytes, (address, from, size), CopyKind::HostToDevice) }.map(drop)
    }

    /// Copies from or to `host`, and waits. The bytes are leaked if the copy may still run after a failed wait (R26).
    ///
    /// # Safety
    /// One end is the bytes of `host`. The other is live memory of the device, which is the caller's alone.
    unsafe fn copy(
        &mut self,
        host: Vec<u8>,
        (dst, src, size): (u64, u64, u64),
        kind: CopyKind,
    ) -> Result<Vec<u8>> {
        // SAFETY: this function's contract; the bytes are kept until the copy is over.
        unsafe { self.stream.queue().copy(dst, src, size, kind) }
            .map_err(|error| self.stream.failed(error))?;
        let (finished, over) = self.stream.finish();
        match finished {
            Ok(()) => Ok(host),
            Err(error) => {
                if !over {
                    std::mem::forget(host);
                }
                Err(error)
            }
        }
    }

    /// Keeps a driver's graph until its launches are over.
    pub(super) fn retire(&self, native: Option<Native>) {
        let stream = Some(self.stream.id());
        self.exec.device.retire(stream, Box::new(native));
    }

    /// Runs `with` on a thread of the driver, and waits for it. `with` gets the program, its data, and the bias that
    /// turns a device address into a host address.
    pub(super) fn on_host<R: Send + Sync + 'static>(
        &mut self,
        with: impl FnOnce(&Program, &GraphData, i64) -> R + Send + 'static,
    ) -> Result<R> {
        let bias = self.exec.device.door().host_bias()?;
        let place = Arc::new(OnceLock::new());
        let state = &mut *self.turn.state;
        let (program, data) = (Arc::clone(&state.program), Arc::clone(&state.data));
        let patches: Vec<_> = state.pending.iter().map(|(_, patch)| *patch).collect();
        let to = Arc::clone(&place);
        state.last = Some(self.stream.id());
        self.stream.host_call_now(move |upstream| {
            upstream?;
            // SAFETY: stream order: earlier replays have finished, and no later one is submitted before this call was
            // waited for.
            unsafe { program.patch(&patches) };
            // The place is set once, and only the waiting thread reads it.
            let _ = to.set(with(&program, &data, bias));
            Ok(())
        })?;
        self.stream.synchronize_now()?;
        let result = Arc::into_inner(place).and_then(OnceLock::into_inner);
        result.ok_or_else(|| Error::new(Code::CANCELLED, "the stream has failed before"))
    }
}

/// Whether a node of a graph, or of a body in it, is an operator of the driver or a kernel of a module.
fn has_device_work(data: &GraphData) -> bool {
    let mut nodes = data.graph.nodes().map(|(_, node)| &node.spec.command.work);
    let mut bodies = data.store.bodies.iter().flat_map(|one| &one.graphs);
    nodes.any(|work| matches!(work, Work::Operator(..) | Work::Device(_)))
        || bodies.any(|body| has_device_work(body))
}

fn mode_of(device: &dyn Device, data: &GraphData, flags: ExecFlags) -> Result<ExecMode> {
    let conditionals = !data.store.bodies.is_empty();
    let refused = |code, text| Err(Error::new(code, text));
    match flags {
        ExecFlags {
            native: true,
            submit: true,
            ..
        } => refused(
            Code::INVALID_ARGUMENT,
            "replays go node by node or through a graph of the driver, not both",
        ),
        ExecFlags { native: true, .. } if conditionals => refused(
            Code::UNSUPPORTED,
            "a graph of the driver has no conditional nodes",
        ),
        ExecFlags { native: true, .. } => Ok(ExecMode::Native),
        ExecFlags { submit: true, .. } => Ok(ExecMode::Submit),
        _ if !has_device_work(data) && device.door().runs_host_kernels()? => Ok(ExecMode::Launch),
        _ if conditionals => Ok(ExecMode::Submit),
        _ => Ok(measured_mode(device)),
    }
}

/// The operators that a replay runs. Bodies of conditionals are left out, since nobody knows how often they run.
fn replayed(data: &GraphData, schedule: &Schedule) -> Box<[Replayed]> {
    let mut all: Vec<Replayed> = Vec::new();
    for node in schedule.steps.iter().filter_map(|&id| data.graph.node(id)) {
        let command = &node.spec.command;
        let (Some(call), Work::Kernel(_) | Work::Operator(..)) = (command.call, &command.work)
        else {
            continue;
        };
        let operator = call.operator(&data.store.calls);
        let driver = matches!(command.work, Work::Operator(..));
        let known = all
            .iter_mut()
            .find(|one| (one.operator, one.driver) == (operator, driver));
        match known {
            Some(known) => known.nodes += 1,
            None => all.push(Replayed {
                operator,
                driver,
                nodes: 1,
            }),
        }
    }
    all.into()
}

/// The cheaper way for nodes that are all commands of the driver.
fn measured_mode(device: &dyn Device) -> ExecMode {
    if native::is_cheaper(device) {
        ExecMode::Native
    } else {
        ExecMode::Submit
    }
}

/// The place where failures on a stream are noted. The exec keeps it until the replays so far have finished.
fn state_report(
    reports: &mut Vec<(u64, Arc<FailedOperator>)>,
    stream: &Stream,
) -> *const FailedOperator {
    /// The number of streams that are remembered: a host that makes ever new streams must not grow without bound.
    const KEPT: usize = 32;
    let id = stream.id();
    if let Some((_, report)) = reports.iter().find(|(known, _)| *known == id) {
        return Arc::as_ptr(report);
    }
    if reports.len() == KEPT {
        // All replays so far come before this point of the stream.
        let old = Box::new(std::mem::take(reports));
        stream.on().retire(Some(id), old);
    }
    reports.push((id, Arc::clone(stream.failed_operator())));
    Arc::as_ptr(stream.failed_operator())
}

impl ExecState {
    /// Makes a stream wait for the latest replay, if that was on another stream. Refuses if memory that a replay would
    /// use sleeps.
    fn order(&self, stream: &Stream) -> Result<()> {
        if stream.on().any_asleep() {
            self.check_awake()?;
        }
        let Some(last) = self.last.filter(|&last| last != stream.id()) else {
            return Ok(());
        };
        let Some(fence) = stream.on().fence(last)? else {
            return Ok(());
        };
        stream
            .queue()
            .wait_event(fence.event())
            .map_err(|error| stream.failed(error))
    }

    #[cold]
    fn check_awake(&self) -> Result<()> {
        let resources = &self.data.resources;
        resources.check_awake()?;
        let mut bound = self.slots.iter().filter_map(|slot| slot.bound);
        bound.try_for_each(|base| resources.device.check_awake(base))
    }

    /// Brings patches into the driver's graph.
    ///
    /// # Safety
    /// The contract of [`Native::follow`].
    unsafe fn follow(&mut self, device: &dyn Device, patches: &[Patch], number: u64) -> Result<()> {
        if let Some(native) = self.native.as_mut().filter(|_| !patches.is_empty()) {
            // SAFETY: this function's contract is that of `Native::follow`, and no replay runs while blocks change.
            unsafe {
                self.program.patch(patches);
                native.follow(device, &self.program, patches, self.last)?;
            }
        }
        self.program.applied.store(number, Ordering::Release);
        Ok(())
    }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        let state = self.turn.get_mut();
        for slot in &state.slots {
            if let Some(base) = slot.bound {
                unbind(self.device, state.last, base);
            }
        }
        let kept = (
            state.native.take(),
            Arc::clone(&state.program),
            Arc::clone(&state.data),
            std::mem::take(&mut state.reports),
        );
        self.device.retire(state.last, Box::new(kept));
        self.device.sweep_retired();
    }
}
