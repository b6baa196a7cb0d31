//! Execution graphs: what was recorded, in which order it may run, and what it looks like.
//!
//! A [`Graph`] holds nodes and the edges between them. It comes from a [`Recorder`], which turns the
//! order of streams and events into edges, or is built node by node. [`Graph::schedule`] flattens it:
//! dead nodes are dropped, chains are kept together, and what is left runs in segments, in parallel
//! only where the estimated work pays for it.
//!
//! The crate is generic over what a node does (`C`): it knows no device, no memory and no function
//! pointer, and forbids `unsafe`. A node may depend only on nodes that were added before it, so that
//! a graph has no cycles and its numbering is an order in which it can run.

#![forbid(unsafe_code)]

mod dump;
mod graph;
mod recorder;
mod schedule;

pub use graph::{Access, Buffer, BufferId, Difference, Graph, Kind, Node, NodeId, NodeSpec};
pub use recorder::{Lane, Mark, Recorder, Unjoined};
pub use schedule::{Chunk, Region, Schedule, Segment};
