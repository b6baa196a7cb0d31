//! Execution graphs. A graph is captured from streams or built node by node, and replayed as one.
//!
//! # The life of a graph
//!
//! 1. **Capture.** [`Stream::begin_capture`] makes a [`Capture`], lists it in the device's [`Captures`], and gives the
//!    stream a place in it. From then on each call on the stream goes to `capture/calls`. There work becomes a stored command
//!    (`record`, `data`): a host kernel with its argument block, a kernel of a module with its own, an operator of the driver, or a conditional. `buffers` finds the
//!    allocation of each operand, and holds those that are not of the graph's pool. The [`Recorder`] turns the order of
//!    streams and events into edges of a [`Dag`]. [`Stream::end_capture`] makes a [`Graph`] of all that. A [`Graph`] that is
//!    built node by node goes through `record`, too.
//! 2. **Instantiate.** [`Graph::instantiate`] decides how replays reach the device (`mode_of`), has [`Dag::schedule`] drop dead
//!    nodes and lay the rest out in segments, and makes a `program` of it: one flat array of kernels and argument blocks,
//!    with the places that a replay may change. A native replay has the driver record its own graph here.
//! 3. **Replay.** [`GraphExec::replay`] takes a turn, enters the pools of the graph's memory, and gives the stream one
//!    launch that runs the whole program (`launch`), each node (`submit`), or one launch of a graph of the driver's own
//!    (`native`). Bindings (`exec/bind`) and random numbers go with the replay as patches.
//! 4. **Update.** [`GraphExec::update`] takes over another graph of the same shape. Replays that were submitted keep the old
//!    program.
//! 5. **Inspect.** `inspect` profiles a replay, compares its cost with eager work, and checks its results.
//! 6. **Destroy.** Dropping a [`Graph`] or a [`GraphExec`] waits for nothing. An exec lives on without its graph. Its program
//!    goes through [`Device::retire`] and is given back by a sweep after the last replay has finished; bound buffers are let go behind
//!    that replay. Memory and host functions are given back when neither the graph nor an exec needs them.
//!
//! # Words
//!
//! - *Lane*: a stream of a capture, by its number. *Mark*: the point of a capture that an event holds.
//! - *Chunk*, *segment*, *region*, *team*: parts of a schedule, and the threads that run one; see `schedule`. A segment
//!   of a schedule is no memory.
//! - *Step*: a node as a program runs it. *Argument block*, in short *block*: the words that its kernel reads.
//! - *Slot*: the number of a name that can be bound. *Patch*: a change that a replay makes to argument blocks.
//! - *Turn*: the right of one thread to replay, bind or update an executable graph, held over calls of the driver.
//! - *To enter a pool*: to keep its memory from being lent to others, through the pool's *gate*.
//! - *Hold*: keeps an allocation alive, even if the host frees it.
//!
//! # Floors
//!
//! `dag`, `dump`, `recorder` and `schedule` are arithmetic over nodes and edges: generic over what a node does (`C`), they
//! know no device, no memory and no function pointer, and forbid `unsafe`. A node depends only on nodes that were added
//! before it, so that a graph has no cycles and its numbering is an order in which it can run. The other modules see devices
//! through the trait [`Device`], and streams as a [`Timeline`] with a queue and, above it, a [`Stream`] that may capture.

mod buffers;
mod call;
mod capture;
mod dag;
mod data;
mod drawn;
mod dump;
mod exec;
mod graph;
mod inspect;
mod kernel;
mod launch;
mod memory;
mod native;
mod program;
mod record;
mod recorder;
mod schedule;
mod steps;
mod submit;
mod timeline;

pub use capture::{
    Capture, CaptureInfo, CaptureMode, CapturedMark, CapturedUse, Captures, Recording, Steps,
    Stream,
};
pub use dag::{Access, Buffer, BufferId, Dag, Difference, Kind, Node, NodeId, NodeSpec};
pub use data::{ConditionalKind, DestroyFn};
pub use drawn::{Generator, refuse_recorded_state};
pub use exec::{ExecFlags, ExecInfo, ExecMode, GraphExec};
pub use graph::{DumpFormat, Graph, GraphInfo, check_pattern};
pub use kernel::DeviceCall;
pub use memory::{Claim, Device, PoolRef, Replayed};
pub use outrigger_ops::{Error, Result};
pub use record::{AddressRange, DriverNode, HostNode, KernelCall};
pub use recorder::{Lane, Mark, Past, Pasts, Recorder, Unjoined};
pub use schedule::{Chunk, Region, Schedule, Segment};
pub use steps::HostNodeFn;
pub use timeline::Timeline;
