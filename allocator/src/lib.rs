//! Turns segments of device memory into cached, stream-aware allocations.
//!
//! The floors; each knows only those above it in this list:
//!
//! - `bits`: a set of numbers, for lookups in constant time;
//! - `config`: the policy's numbers;
//! - `tally`, `stats`: what is counted, and exact peaks over arenas that do not wait for each other;
//! - `block`, `index`, `lists`, `quick`: blocks, by address, by size for best fit, and by their exact size;
//! - `segment`: ranges of addresses and what is mapped into them, found by any address inside;
//! - `arena`: pure arithmetic for one stream, in the shared memory or in a private pool: splitting,
//!   joining, growing, lending, holds. It knows no device and no lock;
//! - `arenas`: all arenas, by owner and by address;
//! - `pending`: freed blocks that recorded streams may still use, and memory that leaves;
//! - `gate`: who uses a pool's memory now;
//! - `allocator`: locks, the device, and what to do when memory runs out.
//!
//! `docs/allocator.md` explains the policy, and has a glossary.
//!
//! The crate must never touch the memory that it manages, know what a stream is, or depend on another
//! crate of Outrigger except the locks.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod allocator;
mod arena;
mod arenas;
mod backend;
mod bits;
mod block;
mod config;
mod error;
mod gate;
mod history;
mod index;
mod lists;
mod pending;
mod pool;
mod quick;
mod segment;
mod snapshot;
mod stats;
mod tally;
pub mod trace;

pub use allocator::{Allocator, IdleWatch};
pub use backend::{Backend, Event, EventKind, MemoryInfo, Physical, StreamId, VirtualMemory};
pub use config::{Config, ConfigError};
pub use error::{AllocError, FreeError, OutOfMemory, PoolAllocError, PoolError};
pub use gate::PoolGate;
pub use history::{
    BlockNote, Context, ContextSource, Frame, History, HistoryEntry, HistoryKind, HistoryOptions,
    Holder, Label, Recorded,
};
pub use pool::{PoolId, PoolStats};
pub use snapshot::{
    Allocation, Backing, BlockInfo, BlockState, Freed, SegmentBlock, SegmentInfo, Snapshot,
};
pub use stats::{ClassStats, Stat, Stats};
