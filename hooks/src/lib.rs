//! The framework-neutral runtime that a host talks to: devices of all loaded drivers, current device
//! and stream, memory, events, operators, generators, fallback accounting and observers.
//!
//! Everything above (the C ABI, the C++ bridge, the framework adapters) is a thin face of this crate;
//! everything below (drivers, allocator, kernels) is reached through it only. It must never print and
//! never call into a framework, except through what a host has registered: observers and host calls.
//!
//! Streams, events and generators have ids: 64-bit generational handles, never 0 and never used
//! again, that C hosts hold instead of pointers. A stale or foreign id is an error.
//!
//! No lock is held over a call of the host or of the driver, nor over one that can wait: `outrigger_locks` has
//! the order of all locks and checks this in tests.

#![forbid(unsafe_op_in_unsafe_fn)]

mod current;
mod device;
mod driver_operators;
mod error;
mod event;
mod fallback;
mod generator;
mod graph;
mod kernels;
mod lasting;
mod memory;
#[cfg(not(feature = "layers"))]
mod no_layers;
mod observer;
mod peer;
mod pinned;
mod runtime;
mod stream;
mod table;

pub use current::{current_device, current_stream, set_current_device, set_current_stream};
pub use device::Device;
pub use error::{Error, Result};
pub use event::{Event, create_event, destroy_event, elapsed_ms, event};
pub use fallback::{
    FallbackEntry, FallbackMode, fallback_begin, fallback_end, fallback_mode, fallback_report,
    fallback_reset, set_fallback_mode,
};
pub use generator::{Generator, create_generator, destroy_generator, generator};
pub use graph::{
    CaptureInfo, CaptureMode, ConditionalKind, DestroyFn, DumpFormat, ExecFlags, ExecInfo,
    ExecMode, Graph, GraphExec, GraphInfo, HostNode, HostNodeFn, KernelCall, Pool, create_graph,
    create_pool, destroy_graph, destroy_graph_exec, destroy_pool, graph, graph_exec, pool,
};
pub use memory::{
    PointerInfo, begin_pool_use, end_pool_use, pop_label, process_memory_held,
    process_memory_limit, push_label, set_process_memory_limit, snapshot_json,
};
pub use observer::{
    Observation, ObservationKinds, Pressure, add_observer, add_pressure_observer, remove_observer,
};
pub use pinned::{HostMemory, host_memory, is_pinned};
pub use runtime::{MAX_DEVICES, Runtime, runtime};
pub use stream::{Stream, create_stream, destroy_stream, stream};
pub use table::Ref;

pub use outrigger_allocator::{
    ClassStats, ContextSource, Frame, HistoryOptions, Holder, Label, PoolStats, SegmentInfo,
    Snapshot, Stat, Stats,
};
pub use outrigger_device::{Code, CopyKind, DType, LoadReport};
pub use outrigger_ops as ops;
