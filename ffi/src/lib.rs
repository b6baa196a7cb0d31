//! The C ABI of Outrigger, the headers `outrigger.h`, `framework.h` and `table.h` of `include/outrigger`, generated
//! from this crate.
//!
//! Each function checks its arguments, calls the runtime, and turns the outcome into a status. It must
//! never let a panic out, write an output on failure, or decide anything: decisions are the runtime's.
//! Every export is declared by the macro `api!`, which wraps it in the one panic guard.

#![allow(non_camel_case_types)] // the names are C's

#[macro_use]
mod guard;
mod capture;
mod command;
mod communicator;
mod diagnostics;
mod event;
mod framework;
mod generator;
mod graph;
mod graph_exec;
mod history;
mod memory;
mod module;
mod observer;
mod operator;
mod pinned;
mod places;
mod pool;
mod profile;
mod registration;
mod runtime;
mod status;
mod store;
mod stream;
#[rustfmt::skip] // generated
mod table;

pub use capture::*;
pub use command::*;
pub use communicator::*;
pub use diagnostics::*;
pub use event::*;
pub use framework::*;
pub use generator::*;
pub use graph::*;
pub use graph_exec::*;
pub use history::*;
pub use memory::*;
pub use module::*;
pub use observer::*;
pub use operator::*;
pub use pinned::*;
pub use places::*;
pub use pool::*;
pub use profile::*;
pub use registration::*;
pub use runtime::*;
pub use status::*;
pub use store::*;
pub use stream::*;
pub use table::*;

/// A stream: a generational id, never 0.
pub type otr_stream_t = u64;
/// An event: a generational id, never 0.
pub type otr_event_t = u64;
/// A random number generator: a generational id, never 0.
pub type otr_generator_t = u64;
/// An observer: a generational id, never 0.
pub type otr_observer_t = u64;
/// A registered operator: a generational id, never 0.
pub type otr_registration_t = u64;
/// A pool of memory that graphs share: a generational id, never 0.
pub type otr_pool_t = u64;
/// A graph, nodes and edges: a generational id, never 0.
pub type otr_graph_t = u64;
/// A graph that can be replayed: a generational id, never 0.
pub type otr_graph_exec_t = u64;
/// Code that is loaded on a device: a generational id, never 0.
pub type otr_module_t = u64;
/// A kernel of a module: a generational id, never 0.
pub type otr_kernel_t = u64;
/// One rank of a communicator: a generational id, never 0.
pub type otr_communicator_t = u64;
/// A node, by its number within its graph.
pub type otr_node_t = u32;
/// An operator: a dense number.
pub type otr_operator_id_t = u32;
