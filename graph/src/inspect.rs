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
use crate::exec::{ExecMode, GraphExec, Look};
use crate::program::Program;
use crate::{Error, Result};

impl GraphExec {
    /// Replays once, node by node, waits, and returns as JSON how long each node took: `total_ns`, and `nodes` with
    /// `id`, `label`, `scope` and `ns` in the order in which they ran. `traceEvents` has the same for Perfetto, with a
    /// track for each recorded stream.
    ///
    /// # Errors
    /// Those of a replay.
    pub fn profile(&self, stream: &Stream) -> Result<Value> {
        if !self.runs_on_host()? {
            return self.profile_on_device(stream);
        }
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

    /// Times each node on the device, with its submission and the wait for it.
    fn profile_on_device(&self, stream: &Stream) -> Result<Value> {
        let mut look = self.look(stream)?;
        let program = look.program()?;
        let mut times = Vec::new();
        let start = Instant::now();
        for &node in &program.schedule.steps {
            let begun = start.elapsed();
            look.node(&program, node)?;
            let took = start.elapsed().saturating_sub(begun);
            times.push(Timed { node, begun, took });
        }
        Ok(described(&program.data, &times))
    }

    /// Compares what a replay costs with other ways to run the nodes, and waits. Returns the best of some rounds each, as
    /// JSON: `nodes`; `replay_ns`; `node_by_node_ns`, one command of the driver for each node, as eager work is submitted;
    /// `native_ns`, one launch of a graph of the driver, or null if it has none for these nodes; `host_ns`, one launch of a
    /// host kernel, or null if a replay is none; and `slower`, whether the replay takes more time than node by node. Each
    /// round calls host functions and draws random numbers. The memory of the graph is restored afterwards.
    ///
    /// # Errors
    /// Those of a replay.
    pub fn cost(&self, stream: &Stream) -> Result<Value> {
        const ROUNDS: usize = 5;
        let mut look = self.look(stream)?;
        let program = look.program()?;
        let native = look.native()?;
        let memory = BufferMemory::of(&program);
        let saved = memory.save(&mut look)?;
        let (mut replay, mut alone) = (Duration::MAX, Duration::MAX);
        let mut launched = native.as_ref().map(|_| Duration::MAX);
        let mut measure = || -> Result<()> {
            for _ in 0..ROUNDS {
                replay = replay.min(look.replay()?);
                alone = alone.min(look.node_by_node()?);
                if let Some((best, native)) = launched.as_mut().zip(native.as_ref()) {
                    *best = look.launch(native)?.min(*best);
                }
            }
            Ok(())
        };
        let measured = measure();
        look.retire(native);
        memory.restore(&mut look, &saved)?;
        drop(look);
        measured?;
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        let host = (self.info().mode == ExecMode::Launch).then_some(replay);
        Ok(json!({
            "nodes": self.info().nodes,
            "replay_ns": nanoseconds(replay),
            "node_by_node_ns": nanoseconds(alone),
            "native_ns": launched.map(nanoseconds),
            "host_ns": host.map(nanoseconds),
            "slower": replay > alone,
        }))
    }

    /// Runs the graph in recorded order and as a replay runs it, from the same state of its memory, and compares what
    /// each node wrote. Waits. Afterwards the memory is as after one replay. Both runs call host functions.
    ///
    /// # Errors
    /// `EXECUTION` that names the first node whose result differs; those of a replay.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        let mut look = self.look(stream)?;
        let program = look.program()?;
        let differs = compare(&mut look, &program)?;
        drop(look);
        let Some(id) = differs else {
            return Ok(());
        };
        let node = program.data.graph.node(id);
        let label = node.map_or(String::new(), |node| node.spec.label.to_string());
        Err(Error::new(
            Code::EXECUTION,
            format!(
                "a replay differs from running the nodes one after the other, first in what node {id} ({label}) writes: \
                 nodes that touch the same memory are not ordered by edges"
            ),
        )
        .in_operator(label)
        .on_stream(stream.id()))
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
    /// The time since the replay began.
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

/// Runs the nodes in recorded order and as a replay does. Returns the first node that writes something else in a replay.
fn compare(look: &mut Look<'_>, program: &Program) -> Result<Option<NodeId>> {
    let memory = BufferMemory::of(program);
    let nodes = || program.data.graph.nodes().map(|(id, _)| id);
    let mut recorded = HashMap::new();
    let mut replayed = HashMap::new();
    let before = memory.save(look)?;
    for node in nodes() {
        look.node(program, node)?;
        recorded.insert(node, memory.written_by(look, node)?);
    }
    let expected = memory.save(look)?;
    memory.restore(look, &before)?;
    look.again()?;
    let actual = memory.save(look)?;
    let mut seen = (0..).zip(&memory.ranges).filter(|(_, one)| one.seen);
    let differs = |&(index, _): &(usize, _)| actual[index] != expected[index];
    let Some((_, differing)) = seen.find(differs) else {
        return Ok(None);
    };
    // Something differs, so the steps run once more, one by one, to find the first node that differs.
    memory.restore(look, &before)?;
    for &node in &program.schedule.steps {
        look.node(program, node)?;
        replayed.insert(node, memory.written_by(look, node)?);
    }
    let first = nodes().find(|node| match (recorded.get(node), replayed.get(node)) {
        (Some(a), Some(b)) => a != b,
        _ => false,
    });
    Ok(first.or_else(|| last_writer(&program.data.graph, differing.buffer)))
}

fn last_writer(graph: &Dag<Command>, buffer: u32) -> Option<NodeId> {
    let mut nodes = graph.nodes().rev();
    let writes = |access: &Access| access.writes && access.buffer == buffer;
    nodes
        .find(|(_, node)| graph.accesses(node).iter().any(writes))
        .map(|(id, _)| id)
}

/// The bytes of a graph's buffers, and of the memory that is bound in place of them.
struct BufferMemory<'a> {
    data: &'a GraphData,
    ranges: Vec<BufferRange>,
}

/// The bytes of a buffer, or of the memory that is bound in place of it.
struct BufferRange {
    buffer: u32,
    address: u64,
    size: u64,
    /// Whether the contents after a replay are defined. Those of memory that a node frees are not.
    seen: bool,
}

impl<'a> BufferMemory<'a> {
    fn of(program: &'a Program) -> Self {
        let data = &*program.data;
        let buffers = || (0..).zip(data.graph.buffers());
        // A buffer that shares memory with a transient one is not compared: where nobody writes, it holds what the
        // transient one left, and in recorded order dead nodes leave something there, too.
        let transient = || data.graph.buffers().iter().filter(|one| one.transient);
        let recorded = buffers().map(|(buffer, one)| BufferRange {
            buffer,
            address: one.address,
            size: one.size,
            seen: !transient().any(|other| {
                other.address < one.address + one.size && one.address < other.address + other.size
            }),
        });
        let mut ranges: Vec<_> = recorded.collect();
        // SAFETY: whoever has a `Look` runs no replay.
        for (now, (address, size)) in unsafe { program.bindings() } {
            // Each buffer that overlaps the named range.
            let reached = buffers().filter(|(_, one)| {
                address < one.address + one.size && one.address < address + size
            });
            ranges.extend(reached.map(|(buffer, _)| BufferRange {
                buffer,
                address: now,
                size,
                seen: true,
            }));
        }
        Self { data, ranges }
    }

    fn save(&self, look: &mut Look<'_>) -> Result<Vec<Vec<u8>>> {
        let ranges = self.ranges.iter();
        ranges.map(|range| range.read(look)).collect()
    }

    fn restore(&self, look: &mut Look<'_>, saved: &[Vec<u8>]) -> Result<()> {
        let mut ranges = self.ranges.iter().zip(saved);
        // SAFETY: as in `Range::read`.
        ranges.try_for_each(|(range, bytes)| unsafe { look.write(range.address, bytes.clone()) })
    }

    /// A hash of all buffers that a node writes.
    fn written_by(&self, look: &mut Look<'_>, node: NodeId) -> Result<u64> {
        let graph = &self.data.graph;
        let mut hasher = DefaultHasher::new();
        if let Some(node) = graph.node(node) {
            let accesses = graph.accesses(node).iter();
            let written: Vec<u32> = accesses
                .filter(|access| access.writes)
                .map(|access| access.buffer)
                .collect();
            let touched = |range: &&BufferRange| written.contains(&range.buffer);
            for range in self.ranges.iter().filter(touched) {
                hasher.write(&range.read(look)?);
            }
        }
        Ok(hasher.finish())
    }
}

impl BufferRange {
    fn read(&self, look: &mut Look<'_>) -> Result<Vec<u8>> {
        // SAFETY: the graph and its bindings keep their memory alive, and nothing runs during a look but what the look
        // itself waits for.
        unsafe { look.read(self.address, self.size) }
    }
}
