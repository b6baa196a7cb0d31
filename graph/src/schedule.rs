//! The order in which a graph runs: one flat list, with parallel parts only where they pay.
//!
//! Dead nodes are dropped first. The rest falls into chains: runs of nodes of which each waits only for the node before
//! it. Chains fall into levels: the chains of a level may run at the same time, after those of the levels before. A
//! level that does not pay for a second thread joins its neighbours in one serial segment, in recorded order.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;

use crate::dag::{Dag, Kind, NodeId};

/// Steps that one thread runs one after the other: a range of [`Schedule::steps`].
pub type Chunk = Range<u32>;

/// Chunks that may run at the same time: a range of [`Schedule::chunks`]. A segment begins after the segment before it
/// has finished.
pub type Segment = Range<u32>;

/// Segments that one thread runs, or one team of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// A range of [`Schedule::segments`].
    pub segments: Range<u32>,
    /// Whether a team of threads runs them, because that pays.
    pub team: bool,
}

/// The nodes that run, and their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Nodes, in an order that respects all edges.
    pub steps: Vec<NodeId>,
    /// Ranges of steps.
    pub chunks: Vec<Chunk>,
    /// Ranges of chunks.
    pub segments: Vec<Segment>,
    /// Ranges of segments.
    pub regions: Vec<Region>,
    /// Nodes that are dropped, because nobody sees their results.
    pub dropped: Vec<NodeId>,
    /// Estimated time on one thread, in nanoseconds.
    pub cost_ns: u64,
}

/// The cost of handing work to a thread that is already looking for some, in nanoseconds.
const HANDOFF_NS: u64 = 300;
/// The gain that a region needs before a second thread is woken for it, in nanoseconds.
const WAKE_NS: u64 = 15_000;
/// A serial part of this estimated time ends a region, in nanoseconds. A team would wait while it runs, and kernels
/// that share their own work among threads do that better without a team.
const SERIAL_NS: u64 = 20_000;
/// The cost of a node without an estimate, in nanoseconds.
const UNKNOWN_NS: u64 = 100;

/// Nodes of which each waits only for the node before it.
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

impl<C> Dag<C> {
    /// Lays the graph out for `threads` threads.
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
        let mut parts: Vec<Part> = Vec::new();
        for level in &levels {
            let gain = gain(&chains, level, threads);
            let cost = level.iter().map(|&chain| chains[chain].cost).sum();
            let nodes = level
                .iter()
                .map(|&chain| std::mem::take(&mut chains[chain].nodes));
            let part = Part {
                chunks: nodes.collect(),
                cost,
                gain,
            };
            match parts.last_mut() {
                Some(last) if last.gain == 0 && gain == 0 => last.absorb(part),
                _ if gain == 0 => {
                    let mut one = Part::default();
                    one.absorb(part);
                    parts.push(one);
                }
                _ => parts.push(part),
            }
        }
        let mut schedule = Schedule {
            dropped: (0..)
                .zip(&dead)
                .filter(|(_, dead)| **dead)
                .map(|(id, _)| id)
                .collect(),
            cost_ns,
            ..Schedule::default()
        };
        let mut parts = VecDeque::from(parts);
        let mut serial = Part::default();
        while let Some(part) = parts.pop_front() {
            if part.gain == 0 {
                serial.absorb(part);
                continue;
            }
            // One team runs the parts that follow, up to a long serial part.
            let mut team = vec![part];
            while parts
                .front()
                .is_some_and(|next| next.gain > 0 || next.cost < SERIAL_NS)
            {
                team.extend(parts.pop_front());
            }
            if team.last().is_some_and(|last| last.gain == 0)
                && let Some(tail) = team.pop()
            {
                parts.push_front(tail);
            }
            if team.iter().map(|part| part.gain).sum::<u64>() < WAKE_NS {
                team.into_iter().for_each(|part| serial.absorb(part));
                continue;
            }
            schedule.push_region(vec![std::mem::take(&mut serial)], false);
            schedule.push_region(team, true);
        }
        schedule.push_region(vec![serial], false);
        schedule
    }

    /// Nodes whose results are overwritten or freed before anybody reads them.
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
    /// Adds a region. Its parts run one after the other.
    fn push_region(&mut self, parts: Vec<Part>, team: bool) {
        let first = self.segments.len() as u32;
        for part in parts {
            self.push_segment(part.chunks);
        }
        let segments = first..self.segments.len() as u32;
        if !segments.is_empty() {
            self.regions.push(Region { segments, team });
        }
    }

    /// Adds a segment. Its chunks may run at the same time.
    fn push_segment(&mut self, chunks: Vec<Vec<NodeId>>) {
        let first = self.chunks.len() as u32;
        for mut nodes in chunks.into_iter().filter(|nodes| !nodes.is_empty()) {
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

/// The chains of a level, or of several levels that run on one thread.
#[derive(Default)]
struct Part {
    chunks: Vec<Vec<NodeId>>,
    cost: u64,
    /// The time that several threads gain, in nanoseconds; 0 if the part runs on one thread, as one chunk.
    gain: u64,
}

impl Part {
    /// Appends another part. Both run on one thread then.
    fn absorb(&mut self, other: Self) {
        let mut chunks = self.chunks.drain(..).chain(other.chunks);
        let mut all = chunks.next().unwrap_or_default();
        chunks.for_each(|mut more| all.append(&mut more));
        self.chunks.push(all);
        self.cost += other.cost;
        self.gain = 0;
    }
}

/// The time that a level gains from `threads` threads, in nanoseconds; 0 if they do not pay.
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
