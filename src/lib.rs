//! Outrigger makes one accelerator, described by one small C driver, usable from every framework.
//!
//! This package is the shared library `liboutrigger.so`: the C ABI of `include/outrigger/outrigger.h`
//! and the C++ bridge. For Rust hosts it is the runtime itself, as [`runtime`].

mod bridge;
mod bridge_graph;
mod bridge_memory;

/// The framework-neutral runtime.
pub use outrigger_hooks as runtime;

// The exports of the shared library live in this crate; naming it keeps them linked.
#[doc(hidden)]
pub use outrigger_ffi as ffi;
