//! Looking at a replay: how long each node takes, and whether a replay does what the nodes do when they
//! run one after the other.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::time::Instant;

use outrigger_device::Code;
use outrigger_graph::{Graph, NodeId};
use serde_json::{Value, json};

use super::GraphExec;
use super::data::{Command, GraphData};
use super::program::Program;
use crate::{Error, Result, Stream};

impl GraphExec {
    /// Replays once, node by node, and tells how long each took, as JSON: `total_ns` and `nodes` with
    /// `id`, `label`, `scope`, `ns`, in the order in which they ran. Waits.
    ///
    /// # Errors
    /// Those of a replay; `UNSUPPORTED` if the host cannot reach the device's memory.
    pub fn profile(&self, stream: &Stream) -> Result<Value> {
        let (code, nodes) = self.on_host(stream, |program, data, bias| {
            let mut times = Vec::new();
            let mut begun = Instant::now();
            // SAFETY: in order with replays, and the graph keeps its memory alive.
            let code = unsafe {
                program.run_watched(bias, &mut |node, ended| {
                    if ended {
                        times.push((node, begun.elapsed().as_nanos() as u64));
                    } else {
                        begun = Instant::now();
                    }
                })
            };
            (
                code,
                (
                    described(data, &times),
                    times.iter().map(|one| one.1).sum::<u64>(),
                ),
            )
        })?;
        failed(code, "a node failed while it was timed", stream)?;
        let (nodes, total) = nodes;
        Ok(json!({ "total_ns": total, "nodes": nodes }))
    }

    /// Runs the graph in the order in which it was recorded and as a replay runs it, from the same
    /// state of its memory, and compares what each node wrote. The state afterwards is that of one
    /// replay. Host functions are called in both runs. Waits.
    ///
    /// # Errors
    /// `EXECUTION` that names the first node whose result differs; those of a replay.
    pub fn check(&self, stream: &Stream) -> Result<()> {
        let outcome = self.on_host(stream, |program, data, bias| {
            // SAFETY: in order with replays, and the graph keeps its memory alive.
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

fn described(data: &GraphData, times: &[(NodeId, u64)]) -> Vec<Value> {
    let one = |&(id, ns): &(NodeId, u64)| {
        let spec = data.graph.node(id).map(|node| &node.spec);
        json!({
            "id": id,
            "label": spec.map(|spec| &spec.label),
            "scope": spec.and_then(|spec| spec.scope.as_deref()),
            "ns": ns,
        })
    };
    times.iter().map(one).collect()
}

enum Outcome {
    Same,
    Failed(i32),
    Differs(NodeId, String),
}

/// # Safety
/// As for [`Program::run`].
unsafe fn compare(program: &Program, data: &GraphData, bias: i64) -> Outcome {
    let memory = Memory { data, bias };
    let mut recorded = HashMap::new();
    let mut replayed = HashMap::new();
    // SAFETY: the caller's promise, for all of this: the graph keeps its buffers alive, and nothing else
    // uses them now.
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
        let mut seen = (0..)
            .zip(data.graph.buffers())
            .filter(|(_, one)| !one.transient);
        let Some((differing, _)) =
            seen.find(|&(index, _): &(usize, _)| actual[index] != expected[index])
        else {
            return Outcome::Same;
        };
        // Something differs: once more, step by step, to see where it begins.
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
        let writer = last_writer(&data.graph, differing as u32);
        first
            .or(writer)
            .map_or(Outcome::Same, |node| memory.differs(node))
    }
}

fn last_writer(graph: &Graph<Command>, buffer: u32) -> Option<NodeId> {
    let mut nodes = graph.nodes().rev();
    let writes = |access: &outrigger_graph::Access| access.writes && access.buffer == buffer;
    nodes
        .find(|(_, node)| graph.accesses(node).iter().any(writes))
        .map(|(id, _)| id)
}

/// The bytes of a graph's buffers.
struct Memory<'a> {
    data: &'a GraphData,
    bias: i64,
}

impl Memory<'_> {
    fn pointer(&self, buffer: usize) -> (*mut u8, usize) {
        let buffer = self.data.graph.buffers()[buffer];
        let address = buffer.address.wrapping_add(self.bias as u64);
        (address as *mut u8, buffer.size as usize)
    }

    /// # Safety
    /// The buffers are live and nobody writes to them.
    unsafe fn save(&self) -> Vec<Vec<u8>> {
        (0..self.data.graph.buffers().len())
            .map(|index| {
                let (pointer, size) = self.pointer(index);
                // SAFETY: the caller's promise.
                unsafe { std::slice::from_raw_parts(pointer, size) }.to_vec()
            })
            .collect()
    }

    /// # Safety
    /// The buffers are live and nobody else uses them.
    unsafe fn restore(&self, saved: &[Vec<u8>]) {
        for (index, bytes) in saved.iter().enumerate() {
            let (pointer, size) = self.pointer(index);
            // SAFETY: the caller's promise; as many bytes as were saved.
            unsafe { std::slice::from_raw_parts_mut(pointer, size) }.copy_from_slice(bytes);
        }
    }

    /// A hash of all buffers that a node writes to.
    ///
    /// # Safety
    /// The buffers are live and nobody writes to them.
    unsafe fn written_by(&self, node: NodeId) -> u64 {
        let graph = &self.data.graph;
        let mut hasher = DefaultHasher::new();
        if let Some(node) = graph.node(node) {
            for access in graph.accesses(node).iter().filter(|access| access.writes) {
                let (pointer, size) = self.pointer(access.buffer as usize);
                // SAFETY: the caller's promise.
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
