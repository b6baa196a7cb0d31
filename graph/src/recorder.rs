//! Turns the order of streams and events into edges. A lane is a stream that records. Each node of a lane runs after
//! the node before it and after the marks that the lane was made to wait for. The recorder never looks at what a node
//! does.

#![forbid(unsafe_code)]

use std::sync::Arc;

use outrigger_locks::{Mutex, Rank};

use crate::Buffer;
use crate::dag::{Access, BufferId, Dag, NodeId, NodeSpec};

/// A stream that records, by its number in the order in which streams joined.
pub type Lane = u32;

/// A point of a recording, as an event holds it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    /// The nodes that come right before it.
    nodes: Vec<NodeId>,
    past: Past,
}

/// All nodes that come before a point. The nodes of a lane are in order, so for each lane the number behind its last node
/// says which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past(Vec<NodeId>);

impl Past {
    fn end_of(&self, lane: usize) -> NodeId {
        self.0.get(lane).copied().unwrap_or_default()
    }

    fn extend(&mut self, lane: usize, end: NodeId) {
        if self.0.len() <= lane {
            self.0.resize(lane + 1, 0);
        }
        self.0[lane] = self.0[lane].max(end);
    }

    fn join(&mut self, other: &Self) {
        for (lane, &end) in other.0.iter().enumerate() {
            self.extend(lane, end);
        }
    }

    fn contains(&self, other: &Self) -> bool {
        (0..other.0.len()).all(|lane| other.end_of(lane) <= self.end_of(lane))
    }
}

/// The nodes that come before the next node of each lane. They can be asked for without the recording, and keep nothing
/// of it alive.
#[derive(Clone, Debug)]
pub struct Pasts(Arc<Mutex<Vec<Past>>>);

impl Pasts {
    /// The nodes that come before the next node of a lane now.
    pub fn of(&self, lane: Lane) -> Past {
        let pasts = self.0.lock();
        pasts.get(lane as usize).cloned().unwrap_or_default()
    }

    /// Whether all of `past` comes before the next node of a lane.
    pub fn reached(&self, lane: Lane, past: &Past) -> bool {
        let pasts = self.0.lock();
        let own = pasts.get(lane as usize);
        own.is_some_and(|own| own.contains(past))
    }
}

/// Work that the lane which ends the recording does not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unjoined {
    /// The lane of the work.
    pub lane: Lane,
    /// The last node of the lane.
    pub node: NodeId,
}

/// A graph that is being recorded.
#[derive(Debug)]
pub struct Recorder<C> {
    graph: Dag<C>,
    /// For each lane, the nodes that its next node runs after.
    frontiers: Vec<Vec<NodeId>>,
    pasts: Pasts,
}

impl<C> Default for Recorder<C> {
    /// A recording with lane 0 alone, which begins and ends the recording.
    fn default() -> Self {
        Self {
            graph: Dag::default(),
            frontiers: vec![Vec::new()],
            pasts: Pasts(Arc::new(Mutex::new(
                Rank::CapturePasts,
                vec![Past::default()],
            ))),
        }
    }
}

impl<C> Recorder<C> {
    /// Adds a lane whose first node runs after `mark`.
    pub fn fork(&mut self, mark: &Mark) -> Lane {
        self.frontiers.push(mark.nodes.clone());
        self.pasts.0.lock().push(mark.past.clone());
        (self.frontiers.len() - 1) as Lane
    }

    /// The number of lanes, lane 0 included.
    pub fn lanes(&self) -> u32 {
        self.frontiers.len() as u32
    }

    /// Records a node. Returns `None` if there is no such lane or buffer.
    pub fn record(&mut self, lane: Lane, spec: NodeSpec<C>, accesses: &[Access]) -> Option<NodeId> {
        let frontier = self.frontiers.get_mut(lane as usize)?;
        let id = self.graph.add(lane, spec, frontier, accesses)?;
        frontier.clear();
        frontier.push(id);
        self.pasts.0.lock()[lane as usize].extend(lane as usize, id + 1);
        Some(id)
    }

    /// The point after all nodes that a lane has recorded.
    pub fn mark(&self, lane: Lane) -> Mark {
        let frontier = self.frontiers.get(lane as usize);
        Mark {
            nodes: frontier.cloned().unwrap_or_default(),
            past: self.pasts.of(lane),
        }
    }

    /// The nodes that come before the next node of each lane.
    pub fn pasts(&self) -> &Pasts {
        &self.pasts
    }

    /// Makes the nodes that a lane records from here on run after `mark`.
    pub fn wait(&mut self, lane: Lane, mark: &Mark) {
        let Some(frontier) = self.frontiers.get_mut(lane as usize) else {
            return;
        };
        for &node in &mark.nodes {
            if !frontier.contains(&node) {
                frontier.push(node);
            }
        }
        self.pasts.0.lock()[lane as usize].join(&mark.past);
    }

    /// See [`Dag::add_buffer`].
    pub fn add_buffer(&mut self, buffer: Buffer) -> BufferId {
        self.graph.add_buffer(buffer)
    }

    /// See [`Dag::set_transient`].
    pub fn set_transient(&mut self, buffer: BufferId) {
        self.graph.set_transient(buffer);
    }

    /// The graph so far.
    pub fn graph(&self) -> &Dag<C> {
        &self.graph
    }

    /// Checks that lane 0 waits for all nodes of the other lanes.
    ///
    /// # Errors
    /// The first lane whose work would be left behind.
    pub fn check_joined(&self) -> Result<(), Unjoined> {
        let pasts = self.pasts.0.lock();
        let reached = |id: NodeId| {
            let node = self.graph.node(id);
            node.is_some_and(|node| id < pasts[0].end_of(node.lane as usize))
        };
        for (lane, frontier) in (0..).zip(&self.frontiers) {
            if let Some(&node) = frontier.iter().find(|&&id| !reached(id)) {
                return Err(Unjoined { lane, node });
            }
        }
        Ok(())
    }

    /// Ends the recording.
    pub fn into_graph(self) -> Dag<C> {
        self.graph
    }
}
