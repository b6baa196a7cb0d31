//! The order in which a graph runs: flat, and in parallel only where that pays.
//!
//! Dead nodes are dropped first. What is left falls into chains (runs of nodes of which each waits
//! for the one before it only), and chains into levels: all chains of a level may run at the same
//! time, once those of the levels before have finished. A level whose estimated work does not pay for
//! a second thread joins its neighbours in one serial segment, in recorded order.

use std::ops::Range;

use crate::graph::{Graph, Kind, NodeId};

/// Steps that one thread runs in one go: a range of [`Schedule::steps`].
pub type Chunk = Range<u32>;

/// Chunks that may run at the same time: a range of [`Schedule::chunks`]. A segment begins when the
/// one before it has finished.
pub type Segment = Range<u32>;

/// What runs, in which order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Nodes, in an order that respects all edges.
    pub steps: Vec<NodeId>,
    /// Ranges of steps.
    pub chunks: Vec<Chunk>,
    /// Ranges of chunks.
    pub segments: Vec<Segment>,
    /// Nodes whose results nobody sees.
    pub dropped: Vec<NodeId>,
    /// Estimated time on one thread, in nanoseconds.
    pub cost_ns: u64,
}

/// What it costs to hand work to another thread that is already looking for some, in nanoseconds.
const HANDOFF_NS: u64 = 300;
/// What a replay has to gain before a second thread is woken for it.
const WAKE_NS: u64 = 15_000;
/// What a node without an estimate is taken to cost.
const UNKNOWN_NS: u64 = 100;

/// Nodes of which each waits for the one before it only.
struct Chain {
    nodes: Vec<NodeId>,
    level: u32,
    cost: u64,
}

impl Schedule {
    /// Whether any segment has more than one chunk.
    pub fn is_parallel(&self) -> bool {
        self.chunks.len() > self.segments.len()
    }
}

impl<C> Graph<C> {
    /// Flattens the graph for so many threads.
    pub fn schedule(&self, threads: u32) -> Schedule {
        let dead = self.dead();
        let mut chains = self.chains(&dead);
        let cost_ns = chains.iter().map(|chain| chain.cost).sum();
        let mut levels: Vec<Vec<usize>> = Vec::new();
        for (index, chain) in chains.iter().enumerate() {
            let level = chain.level as usize;
            if level >= levels.len() {
                levels.resize_with(level + 1, Vec::new);
            }
            levels[level].push(index);
        }
        let gains: Vec<u64> = levels
            .iter()
            .map(|level| gain(&chains, level, threads))
            .collect();
        let worth = gains.iter().sum::<u64>() >= WAKE_NS;
        let mut schedule = Schedule {
            dropped: (0..)
                .zip(&dead)
                .filter(|(_, dead)| **dead)
                .map(|(id, _)| id)
                .collect(),
            cost_ns,
            ..Schedule::default()
        };
        let mut serial: Vec<NodeId> = Vec::new();
        for (level, gain) in levels.iter().zip(gains) {
            if worth && gain > 0 {
                schedule.push_segment([std::mem::take(&mut serial)]);
                let nodes = level
                    .iter()
                    .map(|&chain| std::mem::take(&mut chains[chain].nodes));
                schedule.push_segment(nodes);
            } else {
                for &chain in level {
                    serial.append(&mut chains[chain].nodes);
                }
            }
        }
        schedule.push_segment([serial]);
        schedule
    }

    /// Nodes that do nothing, or whose results are overwritten or freed unread.
    fn dead(&self) -> Vec<bool> {
        let mut needed: Vec<bool> = self
            .buffers()
            .iter()
            .map(|buffer| !buffer.transient)
            .collect();
        let mut dead = vec![false; self.len()];
        for (id, node) in self.nodes().rev() {
            let accesses = self.accesses(node);
            let spec = &node.spec;
            let useful = spec.effects
                || accesses
                    .iter()
                    .any(|access| access.writes && needed[access.buffer as usize]);
            if spec.kind.runs() && !useful {
                dead[id as usize] = true;
                continue;
            }
            for access in accesses.iter().filter(|access| access.reads) {
                needed[access.buffer as usize] = true;
            }
        }
        dead
    }

    fn chains(&self, dead: &[bool]) -> Vec<Chain> {
        let mut dependents = vec![0u32; self.len()];
        for (_, node) in self.nodes() {
            for &dep in self.deps(node) {
                dependents[dep as usize] += 1;
            }
        }
        let mut chains: Vec<Chain> = Vec::new();
        let mut chain_of = vec![0usize; self.len()];
        for (id, node) in self.nodes() {
            let runs = node.spec.kind.runs() && !dead[id as usize];
            let cost = match (runs, node.spec.cost_ns) {
                (false, _) => 0,
                (true, 0) => UNKNOWN_NS,
                (true, known) => u64::from(known),
            };
            let index = match *self.deps(node) {
                [dep] if dependents[dep as usize] == 1 => chain_of[dep as usize],
                ref deps => {
                    let before = deps
                        .iter()
                        .map(|&dep| chains[chain_of[dep as usize]].level + 1);
                    chains.push(Chain {
                        level: before.max().unwrap_or(0),
                        nodes: Vec::new(),
                        cost: 0,
                    });
                    chains.len() - 1
                }
            };
            chain_of[id as usize] = index;
            chains[index].cost += cost;
            if runs {
                chains[index].nodes.push(id);
            }
        }
        chains
    }
}

impl Schedule {
    /// Adds chunks that may run at the same time; a single one joins a serial segment's order.
    fn push_segment(&mut self, chunks: impl IntoIterator<Item = Vec<NodeId>>) {
        let first = self.chunks.len() as u32;
        for mut nodes in chunks {
            if nodes.is_empty() {
                continue;
            }
            nodes.sort_unstable();
            let start = self.steps.len() as u32;
            self.steps.append(&mut nodes);
            self.chunks.push(start..self.steps.len() as u32);
        }
        if self.chunks.len() as u32 > first {
            self.segments.push(first..self.chunks.len() as u32);
        }
    }
}

/// What a level gains from running on so many threads, in nanoseconds; 0 if it does not pay.
fn gain(chains: &[Chain], level: &[usize], threads: u32) -> u64 {
    let costs = || level.iter().map(|&chain| chains[chain].cost);
    let total: u64 = costs().sum();
    let longest = costs().max().unwrap_or(0);
    let parallel = longest.max(total / u64::from(threads.max(1))) + HANDOFF_NS;
    let gain = total.saturating_sub(parallel);
    if gain >= total / 8 { gain } else { 0 }
}

impl Kind {
    /// The colour of a node in pictures.
    pub(crate) fn colour(self) -> &'static str {
        match self {
            Self::Kernel => "#c6dbef",
            Self::Copy => "#c7e9c0",
            Self::Fill => "#e5f5e0",
            Self::Host => "#fdd0a2",
            Self::Empty => "#f0f0f0",
            Self::Alloc | Self::Free => "#dadaeb",
            Self::Conditional => "#fbb4b9",
        }
    }
}
