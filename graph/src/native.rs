//! Replays through a driver's graphs. The nodes are recorded once, and a replay is one launch. When a replay changes
//! something, the nodes that it changes are recorded again, and the driver updates its graph. A driver that cannot
//! update a part of a graph gets all nodes again.
//!
//! This file also measures, once for each device, whether that is cheaper than submitting the nodes. Nothing here waits
//! for work of a stream.

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use outrigger_device::{Code, NativeGraph, Queue};
use outrigger_ops::{Door, FailedOperator, KernelFn};

use crate::dag::NodeId;
use crate::memory::Device;
use crate::program::{Patch, Program};
use crate::steps;
use crate::submit::{KernelSubmission, Submission, submission};
use crate::timeline::Timeline;
use crate::{Error, Result};

/// A driver's graph, and the queue that records it.
#[derive(Debug)]
pub(super) struct Native {
    /// Work is only recorded on this queue, and never runs on it.
    queue: Queue,
    recorded: NativeRecording,
    commands: Commands,
    report: Report,
}

/// The place where the stream of the last launch notes failures; NULL before the first one.
type Report = Arc<AtomicPtr<FailedOperator>>;

/// A driver's graph, and the user data of its host calls.
#[derive(Debug)]
struct NativeRecording {
    graph: NativeGraph,
    calls: HostSteps,
}

/// The user data of each command that is a host call, by the number of the command. `Arc`s, not boxes: the driver has
/// the address of each, and a box would claim to be the only pointer to it.
type HostSteps = Vec<Option<Arc<HostStep>>>;

/// The commands of a program, in the order in which they are recorded.
#[derive(Debug)]
struct Commands {
    nodes: Vec<NodeId>,
    /// The first word of each command's block, and the number of the command; in the order of the blocks. Commands
    /// without a block are left out.
    blocks: Vec<(u32, u32)>,
}

/// The most nodes between two changed ones that are recorded again with them: a recording of its own costs as much.
const GAP: u32 = 8;

impl Commands {
    /// # Safety
    /// The contract of [`submission`].
    unsafe fn of(program: &Program) -> Self {
        let steps = program.schedule.steps.iter().copied();
        // SAFETY: this function's contract.
        let nodes = steps.filter(|&id| unsafe { submission(program, id) }.is_some());
        let nodes: Vec<_> = nodes.collect();
        let block = |(number, &id)| {
            let words = &program.data.graph.node(id)?.spec.command.words;
            (!words.is_empty()).then_some((words.start, number))
        };
        let mut blocks: Vec<_> = (0..).zip(&nodes).filter_map(block).collect();
        blocks.sort_unstable();
        Self { nodes, blocks }
    }

    /// The commands whose blocks hold some of these words, as ranges of their numbers.
    fn holding(&self, words: &[u32]) -> Vec<Range<u32>> {
        let holding = words.iter().filter_map(|&word| {
            let behind = self.blocks.partition_point(|&(start, _)| start <= word);
            self.blocks.get(behind.checked_sub(1)?)
        });
        let mut numbers: Vec<_> = holding.map(|&(_, number)| number).collect();
        numbers.sort_unstable();
        let mut runs: Vec<Range<u32>> = Vec::new();
        for number in numbers {
            match runs.last_mut().filter(|run| number <= run.end + GAP) {
                Some(run) => run.end = run.end.max(number + 1),
                None => runs.push(number..number + 1),
            }
        }
        runs
    }
}

/// A node that runs as a host call.
#[derive(Debug)]
struct HostStep {
    function: KernelFn,
    block: Vec<u8>,
    bias: i64,
    label: &'static CStr,
    report: Report,
}

impl HostStep {
    /// Notes the name of a step that failed, and hands its code on.
    ///
    /// # Safety
    /// The place that `report` names is alive.
    unsafe fn ended(&self, code: i32, upstream: i32) -> i32 {
        if code != Code::OK.0 && upstream == Code::OK.0 {
            // SAFETY: this function's contract.
            if let Some(report) = unsafe { self.report.load(Ordering::Acquire).as_ref() } {
                report.set(self.label.into());
            }
        }
        code
    }
}

/// # Safety
/// `user` is a [`HostStep`] that is alive, and so are all memory that its block names, and the place for its failure.
unsafe extern "C" fn call_step(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: this function's contract: `user` is a live `HostStep`.
    let step = unsafe { &*user.cast::<HostStep>() };
    let args = step.block.as_ptr().cast();
    if steps::is_host(step.function) {
        // SAFETY: `is_host`: the block is one of `host_block`. This function's contract: the memory is live.
        return unsafe {
            let code = steps::call_host(step.function, args, step.bias, upstream);
            step.ended(code, upstream)
        };
    }
    if upstream != Code::OK.0 {
        return upstream;
    }
    // SAFETY: this function's contract: the memory is live. The block was made for this kernel.
    unsafe {
        let code = (step.function)(args, step.block.len() as u32, step.bias);
        step.ended(code, upstream)
    }
}

impl Native {
    /// Records a graph.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the driver has no graphs, or cannot record a node; what else it reports.
    ///
    /// # Safety
    /// - No replay changes the program's blocks meanwhile.
    /// - The caller keeps `program` until the result was dropped and its launches have finished.
    pub(super) unsafe fn new(device: &dyn Device, program: &Program) -> Result<Self> {
        if device.door().driver().native_graphs().is_none() {
            return Err(Error::new(
                Code::UNSUPPORTED,
                format!(
                    "the driver {} has no graphs of its own",
                    device.door().driver().name()
                ),
            ));
        }
        let queue = device
            .door()
            .driver()
            .queue_create(device.door().ordinal(), 0)?;
        let report = Report::default();
        // SAFETY: this function's contract is that of `record`, and includes that of `Commands::of`.
        let (commands, recorded) = unsafe {
            let commands = Commands::of(program);
            let recorded = record(device, (&queue, &report), program, &commands.nodes)?;
            (commands, recorded)
        };
        Ok(Self {
            queue,
            recorded,
            commands,
            report,
        })
    }

    /// Records the nodes again that some patches have changed, for later launches. Earlier launches, the last of which
    /// was on stream `last`, keep what they had.
    ///
    /// # Errors
    /// What the driver reports. Later launches may then have some of the changes; the next call of this or of
    /// [`renew`](Self::renew) brings all.
    ///
    /// # Safety
    /// The contract of [`new`](Self::new), for the same program as before.
    pub(super) unsafe fn follow(
        &mut self,
        device: &dyn Device,
        program: &Program,
        patches: &[Patch],
        last: Option<u64>,
    ) -> Result<()> {
        let graphs = device.door().driver().native_graphs();
        if graphs.is_some_and(|graphs| graphs.can_update_part()) {
            let runs = self.commands.holding(&program.words_of(patches));
            let mut old = HostSteps::new();
            // SAFETY: this function's contract.
            let updated = runs
                .into_iter()
                .try_for_each(|run| unsafe { self.renew_part(device, program, run, &mut old) });
            if old.iter().any(Option::is_some) {
                device.retire(last, Box::new(old));
            }
            if updated.is_ok() {
                return Ok(());
            }
        }
        // SAFETY: this function's contract.
        unsafe { self.renew(device, program, last) }
    }

    /// Records some commands again. `old` gets what earlier launches need.
    ///
    /// # Safety
    /// The contract of [`follow`](Self::follow).
    unsafe fn renew_part(
        &mut self,
        device: &dyn Device,
        program: &Program,
        run: Range<u32>,
        old: &mut HostSteps,
    ) -> Result<()> {
        let numbers = run.start as usize..run.end as usize;
        let nodes = &self.commands.nodes[numbers.clone()];
        // SAFETY: this function's contract is that of `record`.
        let new = unsafe { record(device, (&self.queue, &self.report), program, nodes) }?;
        self.recorded.graph.update_part(run.start, &new.graph)?;
        old.extend(self.recorded.calls.splice(numbers, new.calls));
        Ok(())
    }

    /// Records the graph again with the present blocks, for later launches. Earlier launches, the last of which was on
    /// stream `last`, keep the old ones.
    ///
    /// # Errors
    /// What the driver reports. Nothing has changed then.
    ///
    /// # Safety
    /// The contract of [`new`](Self::new).
    pub(super) unsafe fn renew(
        &mut self,
        device: &dyn Device,
        program: &Program,
        last: Option<u64>,
    ) -> Result<()> {
        // SAFETY: this function's contract is that of `record`, and includes that of `Commands::of`.
        let (commands, mut new) = unsafe {
            let commands = Commands::of(program);
            let new = record(
                device,
                (&self.queue, &self.report),
                program,
                &commands.nodes,
            )?;
            (commands, new)
        };
        let graphs = device.door().driver().native_graphs();
        let updates = graphs.is_some_and(|graphs| graphs.can_update());
        if updates && self.recorded.graph.update(&new.graph).is_ok() {
            std::mem::swap(&mut self.recorded.calls, &mut new.calls);
            if new.calls.iter().any(Option::is_some) {
                device.retire(last, Box::new(new.calls));
            }
        } else {
            let old = std::mem::replace(&mut self.recorded, new);
            device.retire(last, Box::new(old));
        }
        self.commands = commands;
        Ok(())
    }

    /// Launches the driver's graph. `report` gets the name of a host call that fails.
    ///
    /// # Safety
    /// All memory that the nodes name is live until the launch has finished, and so is `report`.
    pub(super) unsafe fn launch(
        &self,
        stream: &Timeline,
        report: *const FailedOperator,
    ) -> Result<()> {
        self.report.store(report.cast_mut(), Ordering::Release);
        // SAFETY: this function's contract: the memory is live until the launch has finished.
        unsafe { stream.queue().launch_graph(&self.recorded.graph) }
            .map_err(|error| stream.failed(error))
    }
}

/// Records nodes that are commands.
///
/// # Safety
/// The contract of [`Native::new`].
unsafe fn record(
    device: &dyn Device,
    (queue, report): (&Queue, &Report),
    program: &Program,
    nodes: &[NodeId],
) -> Result<NativeRecording> {
    let missing = || Error::new(Code::INTERNAL, "the driver's graphs have vanished");
    let graphs = device.door().driver().native_graphs().ok_or_else(missing)?;
    let mut calls = HostSteps::new();
    graphs.record_begin(queue)?;
    // SAFETY: this function's contract: no replay changes the blocks meanwhile.
    let mut all = nodes
        .iter()
        .filter_map(|&id| unsafe { submission(program, id) });
    // SAFETY: this function's contract is that of `keep`.
    let kept: Result<()> = all.try_for_each(|one| unsafe {
        calls.push(keep(device, (queue, report), one)?);
        Ok(())
    });
    let graph = graphs.record_end(queue);
    kept?;
    let graph = graph?;
    Ok(NativeRecording { graph, calls })
}

/// Submits a node to a queue that records. Returns the user data of a host call.
///
/// # Safety
/// The contract of [`Native::new`].
unsafe fn keep(
    device: &dyn Device,
    (queue, report): (&Queue, &Report),
    one: Submission<'_>,
) -> Result<Option<Arc<HostStep>>> {
    let mut call = None;
    let kernel = |one: KernelSubmission<'_>| {
        if !one.on_host
            && !steps::is_host(one.function)
            && let Some(kernel) = device.door().host_kernel(one.function)?
        {
            // SAFETY: the block was made for this kernel. the graph keeps its memory alive until the last launch has
            // finished.
            return Ok(unsafe { queue.launch(kernel, one.args, one.cost_ns, one.label) }?);
        }
        // If nobody can reach the device's memory, a host function names none of it.
        let alone = steps::is_host(one.function) && !device.door().runs_host_kernels()?;
        let bias = if one.on_host || alone {
            0
        } else {
            device.door().host_bias()?
        };
        let step = Arc::new(HostStep {
            function: one.function,
            block: one.args.to_vec(),
            bias,
            label: one.label,
            report: Arc::clone(report),
        });
        let user = Arc::as_ptr(&step).cast_mut().cast();
        call = Some(step);
        // SAFETY: R31: the caller keeps the step until the driver's graph is destroyed and its last launch has finished.
        Ok(unsafe { queue.host_call_raw(call_step, user, 0) }?)
    };
    // SAFETY: this function's contract: the graph keeps the device memory alive until the last launch has finished. The
    // contract of `Graph::add_copy` keeps host ranges valid.
    unsafe { one.put(queue, Error::from, kernel) }?;
    Ok(call)
}

/// The number of nodes of the graph that is measured, and the bytes that each node fills.
const NODES: u64 = 32;
const FILLED: u64 = 64;
/// The number of tries, of which the fastest counts.
const TRIES: u32 = 5;

/// Whether launching a driver's graph takes less time than submitting its nodes. The first call measures it. The answer
/// is no if the driver has no graphs, or the measurement fails.
pub(super) fn is_cheaper(device: &dyn Device) -> bool {
    *device.native_cheaper().get_or_init(|| {
        if device.door().driver().native_graphs().is_none() {
            return false;
        }
        match measure(device.door()) {
            Ok((launched, submitted)) => {
                tracing::info!(target: "outrigger::graph", device = device.index(), nodes = NODES,
                    ?launched, ?submitted, "the driver's own graphs were measured");
                launched < submitted
            }
            Err(error) => {
                tracing::warn!(target: "outrigger::graph", device = device.index(), %error,
                    "the driver's own graphs could not be measured, and are not used");
                false
            }
        }
    })
}

/// The time of a graph of small fills: launched as a driver's graph, and submitted node by node.
fn measure(door: &Door) -> outrigger_device::Result<(Duration, Duration)> {
    let driver = door.driver();
    let Some(graphs) = driver.native_graphs() else {
        return Ok((Duration::MAX, Duration::ZERO));
    };
    // A queue of its own, because streams of the host may capture or have failed.
    let queue = driver.queue_create(door.ordinal(), 0)?;
    let scratch = driver.memory_alloc(door.ordinal(), NODES * FILLED)?;
    let fills = || {
        (0..NODES).try_for_each(|node| {
            // SAFETY: a part of the scratch memory, which is freed below, after its last use (R12).
            unsafe { queue.fill(scratch + node * FILLED, FILLED, &[node as u8]) }
        })
    };
    let fastest = |run: &dyn Fn() -> outrigger_device::Result<()>| {
        (0..TRIES).try_fold(Duration::MAX, |best, _| {
            let start = Instant::now();
            run()?;
            queue.synchronize()?;
            Ok::<_, outrigger_device::Error>(best.min(start.elapsed()))
        })
    };
    let measured = (|| {
        graphs.record_begin(&queue)?;
        let kept = fills();
        let graph = graphs.record_end(&queue);
        kept?;
        let graph = graph?;
        // SAFETY: the fills are in the scratch memory, which is freed below, after its last use (R12).
        let launched = fastest(&|| unsafe { queue.launch_graph(&graph) })?;
        Ok((launched, fastest(&fills)?))
    })();
    let (idle, over) = queue.finish();
    // If the wait itself fails, nobody knows whether the work has finished. Then the memory is not freed.
    if over {
        // SAFETY: R12: the queue is idle, and nothing else uses the memory.
        unsafe { driver.memory_free(scratch) }?;
    }
    idle.and(measured)
}

#[cfg(test)]
mod tests {
    use outrigger_device::Driver;
    use outrigger_ops::Door;

    use super::measure;

    #[test]
    fn measuring_leaves_nothing_behind() {
        let spec = "host?devices=1&memory=64M&graphs=native".parse().unwrap();
        let driver = Driver::open(&spec).unwrap();
        let free = driver.memory_info(0).unwrap();
        let door = Door::new(&driver, 0, &driver.properties(0).unwrap()).unwrap();
        let (launched, submitted) = measure(&door).unwrap();
        assert!(!launched.is_zero() && !submitted.is_zero());
        assert_eq!(driver.memory_info(0).unwrap(), free);
    }
}
