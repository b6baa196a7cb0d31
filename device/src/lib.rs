//! The driver contract in Rust: the loading of drivers, and drivers, queues, events,
//! kernels and graphs as owned values. The crate also has the built-in driver `host`.
//!
//! This is the only crate that calls a driver. It reports what a driver answers, and decides nothing:
//! caching, streams, operators and fallbacks are above it.
//!
//! ```
//! use outrigger_device::{CopyKind, Driver};
//!
//! # fn main() -> outrigger_device::Result<()> {
//! let driver = Driver::open(&"host?devices=1&memory=64M".parse()?)?;
//! let queue = driver.queue_create(0, 0)?;
//! let address = driver.memory_alloc(0, 4096)?;
//! let mut back = [0u8; 4096];
//! // SAFETY: the allocation has 4096 bytes and `back` outlives the copy.
//! unsafe {
//!     queue.fill(address, 4096, &[7])?;
//!     queue.copy(back.as_mut_ptr() as u64, address, 4096, CopyKind::DeviceToHost)?;
//!     queue.synchronize()?;
//!     driver.memory_free(address)?;
//! }
//! assert_eq!(back, [7; 4096]);
//! # Ok(())
//! # }
//! ```

mod code;
mod collectives;
mod driver;
mod dtype;
mod elf;
mod error;
mod event;
mod foreign;
mod fork;
mod graph;
mod held;
mod host;
mod ipc;
mod kernel;
mod loader;
mod native_queue;
mod order;
mod outcome;
pub mod profile;
mod properties;
mod queue;
mod raw;
mod report;
mod spec;
mod table;
mod tail;
mod virtual_memory;

pub use code::Code;
pub use collectives::{Collectives, Comm, CommParams, Elements, Reduction};
pub use driver::{Driver, Peer, Pinned};
pub use dtype::DType;
pub use error::{Error, Result};
pub use event::Event;
pub use foreign::{EndOfUnwinding, Foreign};
pub use fork::forked;
pub use graph::{NativeGraph, NativeGraphs};
pub use ipc::{Imported, Ipc, IpcHandle};
pub use kernel::{HostKernelFn, Kernel, Module, Needs, Operator, Operators, WeakModule};
pub use loader::{default_search_path, load, own_directory};
pub use outcome::NO_OUTCOME;
pub use outrigger_contract as sys;
pub use outrigger_contract::params;
pub use properties::{CodeLimits, DeviceProperties, FailureScope, PciPlace};
pub use queue::{Arguments, CopyKind, Grid, HostFn, Queue, Rows};
pub use raw::RawDriver;
pub use report::{Candidate, CandidateKind, LoadReport, Outcome};
pub use spec::DriverSpec;
pub use tail::Tail;
pub use virtual_memory::{Physical, VirtualMemory};
