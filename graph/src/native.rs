//! Replays through a driver's graphs. The nodes are recorded once, and a replay is one launch. When a replay changes
//! something, the nodes that it changes are recorded again, and the driver updates its graph. A driver that cannot
//! update a part of a graph gets all nodes again.
//!
//! A host call may fail, and then what comes behind it does not run. No driver's graph can tell, so nodes that are host
//! calls stand between graphs, and are submitted at each replay.
//!
//! This file also measures, once for each device, whether that is cheaper than submitting the nodes. Nothing here waits
//! for work of a stream.

use std::ops::Range;
use std::time::{Duration, Instant};

use outrigger_device::{Code, NativeGraph, Queue};
use outrigger_ops::{Door, KernelFn};

use crate::dag::NodeId;
use crate::memory::Device;
use crate::program::{Patch, Program};
use crate::steps;
use crate::submit::{self, KernelSubmission, Submission, submission};
use crate::timeline::Timeline;
use crate::{Error, Result};

/// A program as graphs of the driver and host calls between them, and the queue that records the graphs.
#[derive(Debug)]
pub(super) struct Native {
    /// Work is only recorded on this queue, and never runs on it.
    queue: Queue,
    parts: Vec<Part>,
}

/// A part of a replay.
#[derive(Debug)]
enum Part {
    Graph(NativeGraph, Commands),
    Call(NodeId),
}

/// The commands of a graph, in the order in which they are recorded.
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
    fn of(program: &Program, nodes: Vec<NodeId>) -> Self {
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
        // SAFETY: this function's contract is that of `parts`.
        let parts = unsafe { parts(device, &queue, program) }?;
        Ok(Self { queue, parts })
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
            let words = program.words_of(patches);
            // SAFETY: this function's contract.
            if unsafe { self.renew_parts(device, program, &words) }.is_ok() {
                return Ok(());
            }
        }
        // SAFETY: this function's contract.
        unsafe { self.renew(device, program, last) }
    }

    /// Records the commands again that hold some words.
    ///
    /// # Safety
    /// The contract of [`follow`](Self::follow).
    unsafe fn renew_parts(
        &self,
        device: &dyn Device,
        program: &Program,
        words: &[u32],
    ) -> Result<()> {
        for part in &self.parts {
            let Part::Graph(graph, commands) = part else {
                continue;
            };
            for run in commands.holding(words) {
                let nodes = &commands.nodes[run.start as usize..run.end as usize];
                // SAFETY: this function's contract is that of `record`.
                let new = unsafe { record(device, &self.queue, program, nodes) }?;
                graph.update_part(run.start, &new)?;
            }
        }
        Ok(())
    }

    /// Records the graphs again with the present blocks, for later launches. Earlier launches, the last of which was on
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
        // SAFETY: this function's contract is that of `parts`.
        let new = unsafe { parts(device, &self.queue, program) }?;
        let graphs = device.door().driver().native_graphs();
        let updates = graphs.is_some_and(|graphs| graphs.can_update());
        let mut old = std::mem::take(&mut self.parts).into_iter();
        let mut unused = Vec::new();
        for part in new {
            self.parts.push(match (part, old.next()) {
                (Part::Graph(new, commands), Some(Part::Graph(graph, _)))
                    if updates && graph.update(&new).is_ok() =>
                {
                    Part::Graph(graph, commands)
                }
                (part, before) => {
                    unused.extend(before);
                    part
                }
            });
        }
        unused.extend(old);
        if unused.iter().any(|part| matches!(part, Part::Graph(..))) {
            device.retire(last, Box::new(unused));
        }
        Ok(())
    }

    /// Replays the program.
    ///
    /// # Safety
    /// - No replay changes the program's blocks meanwhile; it is the program that was recorded last.
    /// - All memory that the nodes name is live until the replay has finished.
    pub(super) unsafe fn launch(&self, stream: &Timeline, program: &Program) -> Result<()> {
        self.parts.iter().try_for_each(|part| match part {
            // SAFETY: this function's contract: the memory is live until the launch has finished.
            Part::Graph(graph, _) => {
                unsafe { stream.queue().launch_graph(graph) }.map_err(|error| stream.failed(error))
            }
            // SAFETY: this function's contract is that of `submit_node`.
            Part::Call(id) => unsafe { submit::submit_node(stream, program, *id) },
        })
    }
}

/// Records a program.
///
/// # Safety
/// The contract of [`Native::new`].
unsafe fn parts(device: &dyn Device, queue: &Queue, program: &Program) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    let mut nodes = Vec::new();
    let end = |nodes: &mut Vec<NodeId>, parts: &mut Vec<Part>| {
        if nodes.is_empty() {
            return Ok(());
        }
        let nodes = std::mem::take(nodes);
        // SAFETY: this function's contract is that of `record`.
        let graph = unsafe { record(device, queue, program, &nodes) }?;
        parts.push(Part::Graph(graph, Commands::of(program, nodes)));
        Ok::<_, Error>(())
    };
    for &id in &program.schedule.steps {
        // SAFETY: this function's contract: no replay changes the blocks meanwhile.
        match unsafe { submission(program, id) } {
            Some(Submission::Kernel(one)) if is_call(device, one.function, one.on_host)? => {
                end(&mut nodes, &mut parts)?;
                parts.push(Part::Call(id));
            }
            Some(_) => nodes.push(id),
            None => {}
        }
    }
    end(&mut nodes, &mut parts)?;
    Ok(parts)
}

/// Whether a host kernel becomes a host call.
fn is_call(device: &dyn Device, function: KernelFn, on_host: bool) -> Result<bool> {
    Ok(on_host || steps::is_host(function) || device.door().host_kernel(function)?.is_none())
}

/// Records nodes that are no host calls.
///
/// # Safety
/// The contract of [`Native::new`].
unsafe fn record(
    device: &dyn Device,
    queue: &Queue,
    program: &Program,
    nodes: &[NodeId],
) -> Result<NativeGraph> {
    let missing = |text| Error::new(Code::INTERNAL, text);
    let graphs = device.door().driver().native_graphs();
    let graphs = graphs.ok_or_else(|| missing("the driver's graphs have vanished"))?;
    graphs.record_begin(queue)?;
    let kernel = |one: KernelSubmission<'_>| {
        let kernel = device.door().host_kernel(one.function)?;
        let kernel = kernel.ok_or_else(|| missing("a kernel of a graph has vanished"))?;
        // SAFETY: the block was made for this kernel. The graph keeps its memory alive until the last launch has
        // finished.
        Ok(unsafe { queue.launch(kernel, one.args, one.cost_ns, one.label) }?)
    };
    // SAFETY: this function's contract: no replay changes the blocks meanwhile.
    let mut all = nodes
        .iter()
        .filter_map(|&id| unsafe { submission(program, id) });
    // SAFETY: this function's contract: the graph keeps the device memory alive until the last launch has finished. The
    // contract of `Graph::add_copy` keeps host ranges valid.
    let kept: Result<()> = all.try_for_each(|one| unsafe { one.put(queue, Error::from, kernel) });
    let graph = graphs.record_end(queue);
    kept?;
    Ok(graph?)
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
