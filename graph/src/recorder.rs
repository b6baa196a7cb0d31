//! Turns the order of streams and events into edges. A lane is a stream that records. Each node of a lane runs after
//! the node before it and after the marks that the lane was made to wait for. The recorder never looks at what a node
//! does.

#![forbid(unsafe_code)]

use crate::dag::{Access, BufferId, Dag, NodeId, NodeSpec};
use crate::{Buffer, Node};

/// A stream that records, by its number in the order in which streams joined.
pub type Lane = u32;

/// A point of a recording, as an event holds it: the nodes that come right before it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark(Vec<NodeId>);

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
}

impl<C> Default for Recorder<C> {
    /// A recording with lane 0 alone, which begins and ends the recording.
    fn default() -> Self {
        Self {
            graph: Dag::default(),
            frontiers: vec![Vec::new()],
        }
    }
}

impl<C> Recorder<C> {
    /// Adds a lane whose first node runs after `mark`.
    pub fn fork(&mut self, mark: &Mark) -> Lane {
        self.frontiers.push(mark.0.clone());
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
        Some(id)
    }

    /// The point after all nodes that a lane has recorded.
    pub fn mark(&self, lane: Lane) -> Mark {
        Mark(
            self.frontiers
                .get(lane as usize)
                .cloned()
                .unwrap_or_default(),
        )
    }

    /// Makes the nodes that a lane records from here on run after `mark`.
    pub fn wait(&mut self, lane: Lane, mark: &Mark) {
        let Some(frontier) = self.frontiers.get_mut(lane as usize) else {
            return;
        };
        for &node in &mark.0 {
            if !frontier.contains(&node) {
                frontier.push(node);
            }
        }
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
        let mut reached = vec![false; self.graph.len()];
        let mut open: Vec<NodeId> = self.frontiers[0].clone();
        while let Some(id) = open.pop() {
            if std::mem::replace(&mut reached[id as usize], true) {
                continue;
            }
            let deps = self
                .graph
                .node(id)
                .map(|node: &Node<C>| self.graph.deps(node));
            open.extend_from_slice(deps.unwrap_or_default());
        }
        for (lane, frontier) in (0..).zip(&self.frontiers) {
            if let Some(&node) = frontier.iter().find(|&&id| !reached[id as usize]) {
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
