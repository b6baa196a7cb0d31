//! Turns segments of device memory into cached, stream-aware allocations.
//!
//! The layers, each of which knows only those above it in this list:
//!
//! - `table`, `bits`: an address table and a set of numbers, for lookups in constant time;
//! - `block`, `lists`: blocks and their free lists, sorted so that best fit takes constant time;
//! - `arena`: the free lists of a stream, of the shared memory or of a private pool;
//! - `config`: the policy's numbers;
//! - `segment`: what the device gave, findable by any address inside;
//! - `heap`: pure arithmetic: splitting, coalescing, accounting, private pools, holds. It knows no
//!   device and no lock;
//! - `history`: what happened, for those who ask: a ring of events, labels, traces;
//! - `pending`: freed blocks that recorded streams may still touch, and segments that leave;
//! - `allocator`: locks, the device, and what to do when memory runs out.
//!
//! It must never touch the memory that it manages, know what a stream is, or depend on another crate
//! of Outrigger.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used))]

mod allocator;
mod arena;
mod backend;
mod bits;
mod block;
mod config;
mod error;
mod heap;
mod history;
mod lists;
mod pending;
mod pool;
mod segment;
mod snapshot;
mod stats;
mod table;
pub mod trace;

pub use allocator::Allocator;
pub use backend::{Backend, Event, EventKind, MemoryInfo, StreamId};
pub use config::{Config, ConfigError};
pub use error::{AllocError, FreeError, OutOfMemory, PoolAllocError, PoolError};
pub use history::{
    BlockNote, Context, ContextSource, Frame, History, HistoryEntry, HistoryKind, HistoryOptions,
    Holder, Label, Recorded,
};
pub use pool::{PoolId, PoolStats};
pub use snapshot::{Allocation, BlockInfo, BlockState, Freed, SegmentBlock, SegmentInfo, Snapshot};
pub use stats::{Stat, Stats};
