//! The runtime that a host talks to, for any framework: devices of all loaded drivers, the current device and stream,
//! memory, events, operators, generators, counts of fallbacks, and observers.
//!
//! The C ABI, the C++ bridge and the framework adapters stand above this crate and add no logic of their own. They
//! reach drivers, allocator and kernels through this crate only. This crate never prints, and it calls no framework but
//! through functions that a host has given it: observers, and functions that run in stream order.
//!
//! Streams, events and generators have ids, which C hosts hold instead of pointers. An id is a 64-bit generational
//! handle, never 0 and never used again. A stale or foreign id is an error.
//!
//! No lock is held over a call of the host or of the driver, nor over one that can wait. `outrigger_locks` has the
//! order of all locks, and checks this in tests.
//!
//! # Words
//!
//! - *Stream end*: all that is known of the end of a stream's work, also after the stream was destroyed.
//! - *Fence*: an event after all work that a stream was given so far.
//! - *To retire* an object: to keep it until the work that uses it has finished.
//! - *Pool use*: for a time, a thread allocates from a pool that the host chose.
//! - *Pressure*: a request to the host to release memory before an allocation fails.

#![forbid(unsafe_op_in_unsafe_fn)]

mod addresses;
mod communicators;
mod current;
mod device;
mod event;
mod generator;
mod graphs;
mod labels;
mod memory;
mod modules;
#[cfg(not(feature = "layers"))]
mod no_layers;
mod observer;
mod operators;
mod peer;
mod pinned;
mod places;
mod pool;
mod registrations;
mod runtime;
mod staging;
mod store;
mod stream;
mod timelines;
mod tuning;

pub use communicators::{Collective, Communicator, communicator, destroy_communicator};
pub use current::{MAX_DEVICES, current_device};
pub use device::Device;
pub use event::{Event, destroy_event, elapsed_ms, event};
pub use generator::{Generator, destroy_generator, generator};
pub use graphs::{destroy_graph, destroy_graph_exec, graph, graph_exec, instantiate};
pub use labels::{pop_label, push_label};
pub use memory::PointerInfo;
pub use memory::limit::{process_memory_held, process_memory_limit, set_process_memory_limit};
pub use memory::route::{begin_pool_use, end_pool_use};
pub use memory::snapshot::snapshot_json;
pub use modules::{
    Kernel, Launch, Loading, Module, add_kernel_node, destroy_kernel, destroy_module, kernel,
    module,
};
pub use observer::{
    Observation, ObservationKinds, Pressure, add_observer, add_pressure_observer, remove_observer,
};
pub use pinned::{HostMemory, host_memory, is_pinned};
pub use places::{
    FallbackMode, FallbackPolicy, NanGuard, Place, PlaceEntry, fallback_begin, fallback_end,
    fallback_mode, fallback_policy, fallback_report, operator_report, operator_reset,
    set_fallback_mode, set_fallback_policy, set_nan_guard, set_operator_timing,
};
pub use pool::{Pool, destroy_pool, pool};
pub use registrations::{
    Registration, RegistrationInfo, operator_registrations, register_operator, replace_operator,
    withdraw_operator,
};
pub use runtime::{
    Found, Runtime, create_event, create_generator, create_graph, create_pool, create_stream,
    current_stream, refuse_fork, runtime, set_current_device, set_current_stream,
    set_default_drivers,
};
pub use store::{keep, kept};
pub use stream::{Stream, destroy_stream, stream};

pub use outrigger_allocator::{
    ClassStats, ContextSource, Frame, HistoryOptions, Holder, Label, PoolStats, SegmentInfo,
    Snapshot, Stat, Stats,
};
pub use outrigger_device::{Arguments, Code, CopyKind, DType, DeviceProperties, Grid, LoadReport};
pub use outrigger_graph::{
    AddressRange, CaptureInfo, CaptureMode, ConditionalKind, DestroyFn, DumpFormat, ExecFlags,
    ExecInfo, ExecMode, Graph, GraphExec, GraphInfo, HostNode, HostNodeFn, KernelCall,
};
pub use outrigger_handles::Ref;
pub use outrigger_modules::Source;
pub use outrigger_ops as ops;
pub use outrigger_ops::{Error, Result};
pub use outrigger_tuner::{Answer, Asked, Question};
