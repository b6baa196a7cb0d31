//! Nodes, edges and buffers. A graph only grows, and never holds an edge to a later node.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

/// A node's number: nodes count from 0 in the order in which they were added.
pub type NodeId = u32;

/// A buffer's number within its graph.
pub type BufferId = u32;

/// The kind of work that a node does. Pictures show it, and a schedule drops only nodes of kinds that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A kernel.
    Kernel,
    /// A copy.
    Copy,
    /// A fill.
    Fill,
    /// A function on the host.
    Host,
    /// No work: the node joins edges.
    Empty,
    /// No work: memory is in use from here on.
    Alloc,
    /// No work: memory is free from here on.
    Free,
    /// Bodies, of which a predicate on the device chooses what runs.
    Conditional,
}

impl Kind {
    /// Whether there is anything to run.
    pub fn runs(self) -> bool {
        !matches!(self, Self::Empty | Self::Alloc | Self::Free)
    }

    /// The kind as a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Copy => "copy",
            Self::Fill => "fill",
            Self::Host => "host",
            Self::Empty => "empty",
            Self::Alloc => "alloc",
            Self::Free => "free",
            Self::Conditional => "conditional",
        }
    }
}

/// A range of device memory that nodes use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The first device address.
    pub address: u64,
    /// The size in bytes.
    pub size: u64,
    /// Whether the graph itself allocates and frees the buffer: nobody sees its contents after a replay.
    pub transient: bool,
}

/// A node's use of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The buffer.
    pub buffer: BufferId,
    /// Whether the node may read it.
    pub reads: bool,
    /// Whether the node may write it.
    pub writes: bool,
}

/// A node without its place in a graph.
#[derive(Clone, Debug)]
pub struct NodeSpec<C> {
    /// The kind of work.
    pub kind: Kind,
    /// The name of the work: mostly that of an operator.
    pub label: Cow<'static, str>,
    /// The text that was set for the stream while the node was recorded, if any.
    pub scope: Option<std::sync::Arc<str>>,
    /// Estimated time in nanoseconds; 0 if unknown.
    pub cost_ns: u32,
    /// Whether the node does more than write to the buffers that it names. Such a node is never dropped.
    pub effects: bool,
    /// The work.
    pub command: C,
}

/// A node of a graph.
#[derive(Clone, Debug)]
pub struct Node<C> {
    /// The node without its place.
    pub spec: NodeSpec<C>,
    /// The lane that recorded the node: mostly a stream.
    pub lane: u32,
    deps: Range<u32>,
    accesses: Range<u32>,
}

/// The nodes and edges of a graph.
#[derive(Clone, Debug)]
pub struct Dag<C> {
    nodes: Vec<Node<C>>,
    deps: Vec<NodeId>,
    accesses: Vec<Access>,
    buffers: Vec<Buffer>,
}

impl<C> Default for Dag<C> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            deps: Vec::new(),
            accesses: Vec::new(),
            buffers: Vec::new(),
        }
    }
}

/// The first place at which two graphs differ in shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the node in both graphs.
    pub node: NodeId,
    /// The difference, in words.
    pub what: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}: {}", self.node, self.what)
    }
}

impl<C> Dag<C> {
    /// Adds a buffer.
    pub fn add_buffer(&mut self, buffer: Buffer) -> BufferId {
        self.buffers.push(buffer);
        (self.buffers.len() - 1) as BufferId
    }

    /// Adds a node that runs after `deps`. Returns `None`, and adds nothing, if one of `deps` or a buffer is unknown.
    pub fn add(
        &mut self,
        lane: u32,
        spec: NodeSpec<C>,
        deps: &[NodeId],
        accesses: &[Access],
    ) -> Option<NodeId> {
        let id = self.nodes.len() as NodeId;
        let known = |access: &Access| (access.buffer as usize) < self.buffers.len();
        if deps.iter().any(|&dep| dep >= id) || !accesses.iter().all(known) {
            return None;
        }
        let (first_dep, first_access) = (self.deps.len() as u32, self.accesses.len() as u32);
        self.deps.extend_from_slice(deps);
        self.accesses.extend_from_slice(accesses);
        self.nodes.push(Node {
            spec,
            lane,
            deps: first_dep..self.deps.len() as u32,
            accesses: first_access..self.accesses.len() as u32,
        });
        Some(id)
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The number of edges.
    pub fn edge_count(&self) -> usize {
        self.deps.len()
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> Option<&Node<C>> {
        self.nodes.get(id as usize)
    }

    /// The command of a node, to be changed.
    pub fn command_mut(&mut self, id: NodeId) -> Option<&mut C> {
        self.nodes
            .get_mut(id as usize)
            .map(|node| &mut node.spec.command)
    }

    /// All nodes, in the order in which they were added.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node<C>)> + ExactSizeIterator {
        let nodes = self.nodes.iter().enumerate();
        nodes.map(|(index, node)| (index as NodeId, node))
    }

    /// The nodes that a node runs after.
    pub fn deps(&self, node: &Node<C>) -> &[NodeId] {
        &self.deps[node.deps.start as usize..node.deps.end as usize]
    }

    /// The buffers that a node uses, and how.
    pub fn accesses(&self, node: &Node<C>) -> &[Access] {
        &self.accesses[node.accesses.start as usize..node.accesses.end as usize]
    }

    /// All buffers.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// Notes that a buffer is allocated and freed within the graph.
    pub fn set_transient(&mut self, buffer: BufferId) {
        if let Some(buffer) = self.buffers.get_mut(buffer as usize) {
            buffer.transient = true;
        }
    }

    /// Whether the nodes of a graph of the same shape use buffers in the same way, so that one schedule serves both.
    pub fn same_use(&self, other: &Self) -> bool {
        let alike = |(a, b): (&Node<C>, &Node<C>)| {
            a.spec.effects == b.spec.effects && self.accesses(a) == other.accesses(b)
        };
        let transient = |graph: &Self| {
            graph
                .buffers
                .iter()
                .map(|one| one.transient)
                .collect::<Vec<_>>()
        };
        self.nodes.len() == other.nodes.len()
            && self.nodes.iter().zip(&other.nodes).all(alike)
            && transient(self) == transient(other)
    }

    /// Checks that `other` has the same nodes with the same edges. `alike` compares two commands and says what differs.
    ///
    /// # Errors
    /// The first difference.
    pub fn same_shape(
        &self,
        other: &Self,
        mut alike: impl FnMut(&C, &C) -> Result<(), String>,
    ) -> Result<(), Difference> {
        let differ = |node: usize, what: String| {
            Err(Difference {
                node: node as NodeId,
                what,
            })
        };
        for (index, (a, b)) in self.nodes.iter().zip(&other.nodes).enumerate() {
            if a.spec.kind != b.spec.kind || a.spec.label != b.spec.label {
                let name =
                    |node: &Node<C>| format!("{} {}", node.spec.kind.name(), node.spec.label);
                return differ(index, format!("{} is not {}", name(b), name(a)));
            }
            if self.deps(a) != other.deps(b) {
                let text = format!("runs after {:?}, not {:?}", other.deps(b), self.deps(a));
                return differ(index, text);
            }
            if let Err(what) = alike(&a.spec.command, &b.spec.command) {
                return differ(index, what);
            }
        }
        let (here, there) = (self.nodes.len(), other.nodes.len());
        if here != there {
            return differ(here.min(there), format!("{there} nodes are not {here}"));
        }
        Ok(())
    }
}
