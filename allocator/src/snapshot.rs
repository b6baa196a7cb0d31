//! Pictures of the allocator's state that callers may keep: of one block, and of everything.
//!
//! A picture is plain data, copied under the lock. It must never refer back into the allocator.

use crate::{Physical, PoolId, StreamId};

/// A block handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The first address.
    pub address: u64,
    /// Bytes that may be used: the size asked for, rounded up.
    pub size: u64,
}

/// A block taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// Bytes, rounded as they were at the allocation.
    pub size: u64,
    /// The stream that it was allocated for.
    pub stream: StreamId,
    /// The private pool that it is of; `None` is the memory that all share.
    pub pool: Option<PoolId>,
}

/// The block around an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// The first address.
    pub base: u64,
    /// The size in bytes, rounded.
    pub size: u64,
    /// Bytes asked for; 0 if free.
    pub requested: u64,
    /// The stream whose allocations it serves.
    pub stream: StreamId,
    /// The private pool that it is of; `None` is the memory that all share.
    pub pool: Option<PoolId>,
    /// Nobody owns it: it is cached, or waits for holds or recorded streams.
    pub free: bool,
    /// Whether the pool of the block sleeps: there is no memory at its addresses then.
    pub asleep: bool,
}

/// The memory behind a block, for sharing it with other processes. It does not change while the block
/// is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A segment of the device, that starts here.
    Segment {
        /// The address of the segment.
        address: u64,
    },
    /// Pieces of physical memory, mapped one after another.
    Pieces {
        /// The address at which the first piece is mapped.
        address: u64,
        /// The pieces with their bytes.
        pieces: Vec<(Physical, u64)>,
    },
}

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockState {
    /// Cached; the next allocation on its stream may take it.
    Free,
    /// A caller has the block.
    Allocated,
    /// Freed, but held, or a recorded stream may still touch it.
    Pending,
    /// Whole chunks that a view uses, or that leave for the device.
    Lent,
}

impl BlockState {
    /// PyTorch's name for it in memory snapshots.
    pub fn name(self) -> &'static str {
        match self {
            Self::Free => "inactive",
            Self::Allocated => "active_allocated",
            Self::Pending => "active_pending_free",
            // PyTorch has no name for it; its tools count it as in use, which it is.
            Self::Lent => "active_allocated",
        }
    }
}

/// A block in a [`SegmentInfo`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentBlock {
    /// The first address.
    pub address: u64,
    /// The size in bytes, rounded.
    pub size: u64,
    /// Bytes asked for; 0 if not in use.
    pub requested: u64,
    /// The state of the block.
    pub state: BlockState,
}

/// A piece of memory, contiguous in addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The first address.
    pub address: u64,
    /// The size in bytes.
    pub size: u64,
    /// The stream whose allocations it serves.
    pub stream: StreamId,
    /// The private pool whose allocations it serves; `None` is the memory that all share.
    pub pool: Option<PoolId>,
    /// Serves blocks above 1 MiB.
    pub large: bool,
    /// Shows memory of other segments, whose blocks are [`Lent`](BlockState::Lent): it counts once.
    pub view: bool,
    /// A mapped part of a reserved range, that can grow.
    pub expandable: bool,
    /// The blocks of the whole segment, in the order of addresses, without gaps.
    pub blocks: Vec<SegmentBlock>,
}

/// All segments, in the order of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The segments.
    pub segments: Vec<SegmentInfo>,
}
