//! The device of a graph, as graphs see it, and the pools of its memory.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_allocator::{Allocation, BlockInfo, PoolGate, PoolId, PoolStats, StreamId};
use outrigger_device::{Code, Event};
use outrigger_ops::{Door, Error, Result};

/// What graphs ask of the device that they run on.
pub trait Device: fmt::Debug + Send + Sync {
    /// The number under which hosts know it.
    fn index(&self) -> u32;

    /// What computes on it.
    fn door(&self) -> &Door;

    /// Whether the driver's own graphs were measured to be cheaper than submitting each node, once they were.
    fn native_cheaper(&self) -> &OnceLock<bool>;

    // ---- Memory --------------------------------------------------------------------------------

    /// Checks that a range lies in one live allocation; `what` names it in the error.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says why it does not; `BUSY` if the memory is of a pool that sleeps.
    fn check_range(&self, what: &dyn fmt::Display, address: u64, size: u64) -> Result<()>;

    /// The block around an address.
    fn lookup(&self, address: u64) -> Option<BlockInfo>;

    /// Whether any pool of the device sleeps: asked before addresses are looked up.
    fn any_asleep(&self) -> bool;

    /// Refuses memory of a pool that sleeps.
    ///
    /// # Errors
    /// `BUSY` that names the pool.
    fn check_awake(&self, address: u64) -> Result<()>;

    /// Keeps the allocation around an address alive, whoever frees it; gives its base.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is in no live allocation.
    fn hold(&self, address: u64) -> Result<u64>;

    /// Gives a hold back.
    fn unhold(&self, base: u64);

    /// Says that work of a stream uses a held allocation.
    fn record_stream(&self, base: u64, stream: u64);

    /// Allocates from a pool, within its limit.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `BUSY` if the pool sleeps.
    fn alloc_in(&self, pool: &PoolRef, size: u64, stream: StreamId) -> Result<Allocation>;

    /// Frees a block that a graph has allocated.
    fn free_block(&self, address: u64);

    /// Makes a pool.
    fn pool_create(&self) -> (PoolId, PoolGate);

    /// Ends a pool that nobody refers to any more.
    fn pool_release(&self, pool: PoolId);

    /// What a pool holds now.
    fn pool_stats(&self, pool: PoolId) -> PoolStats;

    /// Whether a pool sleeps, falls asleep or wakes.
    fn is_asleep(&self, pool: PoolId) -> bool;

    /// Goes inside a pool for work on a stream, if all of its memory is there; see [`PoolGate`].
    fn try_enter(&self, gate: &PoolGate, stream: StreamId) -> bool;

    /// Goes inside a pool after its memory has come back. The host may be asked to release memory for that, so that
    /// no lock is held over it.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; what the driver reports.
    fn enter(&self, gate: &PoolGate, stream: Option<StreamId>) -> Result<()>;

    // ---- Work ----------------------------------------------------------------------------------

    /// The id of the stream that work goes to unless another one is named.
    fn default_stream(&self) -> u64;

    /// An event after all work that a stream has been given; `None` if that work is known to be done.
    ///
    /// # Errors
    /// What the driver reports.
    fn fence(&self, stream: u64) -> Result<Option<Arc<Event>>>;

    /// Keeps something until the work of a stream so far has finished. Who calls it may hold a turn: nothing is given
    /// back here, but by [`sweep_retired`](Self::sweep_retired).
    fn retire(&self, stream: Option<u64>, kept: Box<dyn Send>);

    /// Gives back what was kept for work that has finished. Functions of the host may be called for that.
    fn sweep_retired(&self);
}

/// A reference to a pool: memory apart from what all share. A pool lives as long as somebody refers to it; then its
/// memory goes back to the device, what is in use as soon as it is freed.
#[derive(Debug)]
pub struct PoolRef {
    device: &'static dyn Device,
    pool: PoolId,
    gate: PoolGate,
    limit: AtomicU64,
    // Bytes of allocations in progress, while there is a limit.
    claimed: AtomicU64,
}

/// Bytes of a pool's limit that an allocation in progress may use.
#[derive(Debug)]
pub struct Claim<'a> {
    pool: &'a PoolRef,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.pool.claimed.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl PoolRef {
    /// A new pool of a device.
    pub fn new(device: &'static dyn Device) -> Arc<Self> {
        let (pool, gate) = device.pool_create();
        Arc::new(Self {
            device,
            pool,
            gate,
            limit: AtomicU64::new(u64::MAX),
            claimed: AtomicU64::new(0),
        })
    }

    /// The pool that a host has named for `user`, or a new one.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a pool of another device.
    pub fn given_or_new(
        given: Option<&Arc<Self>>,
        device: &'static dyn Device,
        user: &str,
    ) -> Result<Arc<Self>> {
        let Some(pool) = given else {
            return Ok(Self::new(device));
        };
        let (theirs, ours) = (pool.device.index(), device.index());
        if theirs == ours {
            return Ok(Arc::clone(pool));
        }
        Err(Error::new(
            Code::INVALID_ARGUMENT,
            format!("a pool of device {theirs} for a {user} on device {ours}"),
        ))
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &'static dyn Device {
        self.device
    }

    /// Its number within the device.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Where those go inside who use its memory.
    pub fn gate(&self) -> &PoolGate {
        &self.gate
    }

    /// The most bytes that may be in use; `u64::MAX` is no limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Limits the bytes that may be in use, rounded up; `u64::MAX` lifts the limit. What is in use stays.
    /// Allocations in progress count as used.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Claims bytes for an allocation that may begin; `None` if the limit has no room for it.
    pub fn claim(&self, bytes: u64) -> Option<Claim<'_>> {
        let limit = self.limit();
        if limit == u64::MAX {
            return Some(Claim {
                pool: self,
                bytes: 0,
            });
        }
        let before = self.claimed.fetch_add(bytes, Ordering::Relaxed);
        let claim = Claim { pool: self, bytes };
        let all = self.stats().allocated.saturating_add(before);
        (all.saturating_add(bytes) <= limit).then_some(claim)
    }

    /// What the pool holds now.
    pub fn stats(&self) -> PoolStats {
        self.device.pool_stats(self.pool)
    }
}

impl Drop for PoolRef {
    fn drop(&mut self) {
        self.device.pool_release(self.pool);
    }
}
