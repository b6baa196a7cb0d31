//! Inspection of replays: how long each node takes, what a replay costs, and whether a replay writes what its nodes
//! write when they run one after the other.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::time::{Duration, Instant};

use outrigger_device::Code;
use outrigger_trace::Track;
use serde_json::{Value, json};

use crate::capture::Stream;
use crate::dag::{Access, Dag, NodeId};
use crate::data::{Command, GraphData};
use crate::exec::GraphExec;
use crate::program::Program;
use crate::{Error, Result};

impl GraphExec {
    /// Replays once, node by node, waits, and returns as JSON how long each node took: `total_ns`, and `nodes` with
    /// `id`, `label`, `scope` and `ns` in the order in which they ran. `traceEvents` has the same for Perfetto, with a
    /// track for each recorded stream.
    ///
    /// # Errors
    /// Those of a replay; `UNSUPPORTED` if the host cannot reach the device's memory, or a node is an
    /// operator of the driver.
    pub fn profile(&self, stream: &Stream) -> Result<Value> {
        self.check_on_host("a profile")?;
        let (code, timed) = self.look(stream)?.on_host(|program, data, bias| {
            let mut times = Vec::new();
            let start = Instant::now();
            let mut begun = Duration::ZERO;
            // SAFETY: stream order: no other replay runs now, and the graph keeps the memory of its nodes alive.
            let code = unsafe {
                program.run_watched(bias, &mut |node, ended| {
                    let now = start.elapsed();
                    if ended {
                        times.push(Timed {
                            node,
                            begun,
                            took: now.saturating_sub(begun),
                        });
                    } else {
                        begun = now;
                    }
                })
            };
            (code, described(data, &times))
        })?;
        failed(code, "a node failed while it was timed", stream)?;
        Ok(timed)
    }

    /// Compares what a replay costs with submitting its nodes one by one, as eager work does, and waits. Returns the
    /// best of some rounds each, as JSON: `nodes`, `replay_ns`, `node_by_node_ns` (`null` for a graph with conditional
    /// nodes), and `slower`, whether the replay takes more time. Each round calls host functions and draws random
    /// numbers. The memory of the graph is restored afterwards.
    ///
    /// # Errors
    /// Those of a replay; `UNSUPPORTED` if the host cannot reach the device's memory.
    pub fn cost(&self, stream: &Stream) -> Result<Value> {
        const ROUNDS: usize = 5;
        let mut look = self.look(stream)?;
        let saved = look.on_host(|program, data, bias| {
            // SAFETY: stream order: no replay runs now, and the graph keeps its buffers alive.
            unsafe { Memory::new(data, bias, &program.bindings()).save() }
        })?;
        let times: Result<Vec<_>> = (0..ROUNDS)
            .map(|_| {
                let replay = look.replay()?;
                let alone = (!self.has_conditionals()).then(|| look.node_by_node());
                Ok((replay, alone.transpose()?))
            })
            .collect();
        look.on_host(move |program, data, bias| {
            // SAFETY: stream order: no replay runs now, and the graph keeps its buffers alive.
            unsafe { Memory::new(data, bias, &program.bindings()).restore(&saved) }
        })?;
        drop(look);
        let times = times?;
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let replay = times.iter().map(|one| nanoseconds(one.0)).min();
        let replay = replay.unwrap_or(0);
        let alone = times.iter().filter_map(|one| one.1.map(nanoseconds)).min();
        Ok(json!({
            "nodes": self.info().nodes,
            "replay_ns": replay,
            "node_by_node_ns": alone,
            "slower": alone.is_some_and(|alone| replay > alone),
        }))
    }

    /// Runs the graph in recorded order and as a replay runs it, from the same state of its memory, and compares what
    /// each node wrote. Waits. Afterwards the memory is as after one replay. Both runs call host functions.
    ///
    /// # Errors
    /// `EXECUTION` that names the first node whose result differs; `UNSUPPORTED` where [`profile`](Self::profile) has
    /// it; those of a replay.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        self.check_on_host("a check")?;
        let outcome = self.look(stream)?.on_host(|program, data, bias| {
            // SAFETY: stream order: no other replay runs now, and the graph keeps the memory of its nodes alive.
            unsafe { compare(program, data, bias) }
        })?;
        match outcome {
            Outcome::Same => Ok(()),
            Outcome::Failed(code) => failed(code, "a node failed during the check", stream),
            Outcome::Differs(node, label) => Err(Error::new(
                Code::EXECUTION,
                format!(
                    "a replay differs from running the nodes one after the other, first in what node {node} \
                     ({label}) writes: nodes that touch the same memory are not ordered by edges"
                ),
            )
            .in_operator(label)
            .on_stream(stream.id())),
        }
    }
}

fn failed(code: i32, what: &str, stream: &Stream) -> Result<()> {
    if code == Code::OK.0 {
        Ok(())
    } else {
        Err(Error::new(Code(code), what).on_stream(stream.id()))
    }
}

/// The time at which a node ran.
struct Timed {
    node: NodeId,
    /// Since the replay began.
    begun: Duration,
    took: Duration,
}

fn described(data: &GraphData, times: &[Timed]) -> Value {
    let (mut nodes, mut events) = (Vec::new(), Vec::new());
    for one in times {
        let Some(node) = data.graph.node(one.node) else {
            continue;
        };
        let (label, scope) = (&node.spec.label, node.spec.scope.as_deref());
        nodes.push(json!({
            "id": one.node,
            "label": label,
            "scope": scope,
            "ns": one.took.as_nanos() as u64,
        }));
        let track = Track {
            process: 0,
            thread: u64::from(node.lane),
        };
        let begun = one.begun.as_nanos() as u64;
        let times = (begun, begun + one.took.as_nanos() as u64);
        let args = json!({ "node": one.node, "scope": scope });
        events.push(outrigger_trace::slice(
            track,
            node.spec.kind.name(),
            label,
            times,
            &args,
        ));
    }
    let total: Duration = times.iter().map(|one| one.took).sum();
    json!({
        "total_ns": total.as_nanos() as u64,
        "nodes": nodes,
        "traceEvents": events,
    })
}

enum Outcome {
    Same,
    Failed(i32),
    Differs(NodeId, String),
}

/// # Safety
/// The contract of [`Program::run`].
unsafe fn compare(program: &Program, data: &GraphData, bias: i64) -> Outcome {
    // SAFETY: this function's contract: no replay of the program is running.
    let memory = Memory::new(data, bias, &unsafe { program.bindings() });
    let mut recorded = HashMap::new();
    let mut replayed = HashMap::new();
    // SAFETY: this function's contract, for the whole block: the buffers are live, and nothing else uses them now.
    unsafe {
        let before = memory.save();
        let in_order = data.graph.nodes().map(|(id, _)| id);
        let code = program.run_in_order(in_order, bias, &mut |node| {
            recorded.insert(node, memory.written_by(node));
        });
        if code != Code::OK.0 {
            return Outcome::Failed(code);
        }
        let expected = memory.save();
        memory.restore(&before);
        let code = program.run(bias);
        if code != Code::OK.0 {
            return Outcome::Failed(code);
        }
        let actual = memory.save();
        let mut seen = (0..).zip(&memory.ranges).filter(|(_, one)| one.seen);
        let Some((_, differing)) =
            seen.find(|&(index, _): &(usize, _)| actual[index] != expected[index])
        else {
            return Outcome::Same;
        };
        // Something differs, so the steps run once more, one by one, to find the first node that differs.
        memory.restore(&before);
        program.run_watched(bias, &mut |node, ended| {
            if ended {
                replayed.insert(node, memory.written_by(node));
            }
        });
        let mut nodes = data.graph.nodes().map(|(id, _)| id);
        let first = nodes.find(|node| match (recorded.get(node), replayed.get(node)) {
            (Some(a), Some(b)) => a != b,
            _ => false,
        });
        let writer = last_writer(&data.graph, differing.buffer);
        first
            .or(writer)
            .map_or(Outcome::Same, |node| memory.differs(node))
    }
}

fn last_writer(graph: &Dag<Command>, buffer: u32) -> Option<NodeId> {
    let mut nodes = graph.nodes().rev();
    let writes = |access: &Access| access.writes && access.buffer == buffer;
    nodes
        .find(|(_, node)| graph.accesses(node).iter().any(writes))
        .map(|(id, _)| id)
}

/// The bytes of a graph's buffers, and of the memory that is bound in place of them.
struct Memory<'a> {
    data: &'a GraphData,
    bias: i64,
    ranges: Vec<Range>,
}

/// The bytes of a buffer, or of the memory that is bound in place of it.
struct Range {
    buffer: u32,
    address: u64,
    size: u64,
    /// Whether the contents after a replay are defined. Those of memory that a node frees are not.
    seen: bool,
}

impl<'a> Memory<'a> {
    /// `bindings` are present addresses, each with the recorded address and size.
    fn new(data: &'a GraphData, bias: i64, bindings: &[(u64, (u64, u64))]) -> Self {
        let buffers = || (0..).zip(data.graph.buffers());
        // A buffer that shares memory with a transient one is not compared: where nobody writes, it holds what the
        // transient one left, and in recorded order dead nodes leave something there, too.
        let transient = || data.graph.buffers().iter().filter(|one| one.transient);
        let recorded = buffers().map(|(buffer, one)| Range {
            buffer,
            address: one.address,
            size: one.size,
            seen: !transient().any(|other| {
                other.address < one.address + one.size && one.address < other.address + other.size
            }),
        });
        let mut ranges: Vec<_> = recorded.collect();
        for &(now, (address, size)) in bindings {
            // Each buffer that overlaps the named range.
            let reached = buffers().filter(|(_, one)| {
                address < one.address + one.size && one.address < address + size
            });
            ranges.extend(reached.map(|(buffer, _)| Range {
                buffer,
                address: now,
                size,
                seen: true,
            }));
        }
        Self { data, bias, ranges }
    }

    fn pointer(&self, range: &Range) -> (*mut u8, usize) {
        let address = range.address.wrapping_add(self.bias as u64);
        (address as *mut u8, range.size as usize)
    }

    /// # Safety
    /// The buffers are live and nobody writes to them.
    unsafe fn save(&self) -> Vec<Vec<u8>> {
        self.ranges
            .iter()
            .map(|range| {
                let (pointer, size) = self.pointer(range);
                // SAFETY: this function's contract: the buffers are live, and nobody writes to them.
                unsafe { std::slice::from_raw_parts(pointer, size) }.to_vec()
            })
            .collect()
    }

    /// # Safety
    /// The buffers are live and nobody else uses them.
    unsafe fn restore(&self, saved: &[Vec<u8>]) {
        for (range, bytes) in self.ranges.iter().zip(saved) {
            let (pointer, size) = self.pointer(range);
            // SAFETY: this function's contract: the buffers are live, and nobody else uses them. `bytes` has the
            // size that was saved.
            unsafe { std::slice::from_raw_parts_mut(pointer, size) }.copy_from_slice(bytes);
        }
    }

    /// A hash of all buffers that a node writes.
    ///
    /// # Safety
    /// The buffers are live and nobody writes to them.
    unsafe fn written_by(&self, node: NodeId) -> u64 {
        let graph = &self.data.graph;
        let mut hasher = DefaultHasher::new();
        if let Some(node) = graph.node(node) {
            let accesses = graph.accesses(node).iter();
            let written: Vec<u32> = accesses
                .filter(|access| access.writes)
                .map(|access| access.buffer)
                .collect();
            let touched = |range: &&Range| written.contains(&range.buffer);
            for range in self.ranges.iter().filter(touched) {
                let (pointer, size) = self.pointer(range);
                // SAFETY: this function's contract: the buffers are live, and nobody writes to them.
                hasher.write(unsafe { std::slice::from_raw_parts(pointer, size) });
            }
        }
        hasher.finish()
    }

    fn differs(&self, node: NodeId) -> Outcome {
        let label = self
            .data
            .graph
            .node(node)
            .map(|node| node.spec.label.to_string());
        Outcome::Differs(node, label.unwrap_or_default())
    }
}
