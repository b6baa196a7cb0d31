//! Turns the order of streams and events into edges. A lane is a stream that records: each of its
//! nodes runs after the one before it and after what its waits name. The recorder must never look at
//! what a node does.

#![forbid(unsafe_code)]

use crate::dag::{Access, BufferId, Dag, NodeId, NodeSpec};
use crate::{Buffer, Node};

/// A stream that records, by its place in the order in which streams joined.
pub type Lane = u32;

/// A point in a recording: what an event holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mark(Vec<NodeId>);

/// Work of a lane that the lane that ends the recording does not wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unjoined {
    /// The lane.
    pub lane: Lane,
    /// Its last node.
    pub node: NodeId,
}

/// A graph that is being recorded.
#[derive(Debug)]
pub struct Recorder<C> {
    graph: Dag<C>,
    /// What the next node of each lane runs after.
    frontiers: Vec<Vec<NodeId>>,
}

impl<C> Default for Recorder<C> {
    /// A recording with one lane, number 0: the one that begins and ends it.
    fn default() -> Self {
        Self {
            graph: Dag::default(),
            frontiers: vec![Vec::new()],
        }
    }
}

impl<C> Recorder<C> {
    /// Another stream joins: its first node runs after `mark`.
    pub fn fork(&mut self, mark: &Mark) -> Lane {
        self.frontiers.push(mark.0.clone());
        (self.frontiers.len() - 1) as Lane
    }

    /// How many streams have joined, the first included.
    pub fn lanes(&self) -> u32 {
        self.frontiers.len() as u32
    }

    /// Records a node. `None` if there is no such lane or buffer.
    pub fn record(&mut self, lane: Lane, spec: NodeSpec<C>, accesses: &[Access]) -> Option<NodeId> {
        let frontier = self.frontiers.get_mut(lane as usize)?;
        let id = self.graph.add(lane, spec, frontier, accesses)?;
        frontier.clear();
        frontier.push(id);
        Some(id)
    }

    /// The point after all that a lane has recorded.
    pub fn mark(&self, lane: Lane) -> Mark {
        Mark(
            self.frontiers
                .get(lane as usize)
                .cloned()
                .unwrap_or_default(),
        )
    }

    /// What a lane records from here on runs after `mark`.
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

    /// What was recorded so far.
    pub fn graph(&self) -> &Dag<C> {
        &self.graph
    }

    /// Whether lane 0 waits for all that the others have recorded.
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
