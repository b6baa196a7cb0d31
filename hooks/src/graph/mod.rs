//! Execution graphs: captured from streams or built node by node, replayed as one.
//!
//! `capture` records, `record` turns a call into a stored command, `data` holds the commands and what
//! keeps their memory alive, `program` is a graph made ready to run, and `exec` replays it, by a
//! launch of its own, by `submit` through a queue, or by `native` as a graph of the driver. What nodes and
//! edges mean, and in which order they may run, is decided by the crate below.

mod buffers;
mod call;
mod capture;
mod data;
mod exec;
mod handle;
mod inspect;
mod launch;
mod native;
mod pool;
mod program;
mod record;
mod steps;
mod submit;

pub use capture::{CaptureInfo, CaptureMode};
pub use data::{ConditionalKind, DestroyFn};
pub use exec::{ExecFlags, ExecInfo, ExecMode, GraphExec, destroy_graph_exec, graph_exec};
pub use handle::{DumpFormat, Graph, GraphInfo, create_graph, destroy_graph, graph};
pub use pool::{Pool, create_pool, destroy_pool, pool};
pub use record::{HostNode, KernelCall};
pub use steps::HostNodeFn;

pub(crate) use capture::{CaptureEnd, CaptureSlot, CapturedMark, Captures, reserve};
pub(crate) use pool::{PoolRef, handle_of};
