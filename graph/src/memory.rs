//! The trait of a device as graphs need it, and the pools of a graph's memory.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use outrigger_allocator::{Allocation, BlockInfo, PoolGate, PoolId, PoolStats, StreamId};
use outrigger_device::{Code, Tail};
use outrigger_ops::{Call, Door, Error, OperatorId, Prepared, Result};

/// The number of nodes of a graph that call one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The operator.
    pub operator: OperatorId,
    /// Whether the driver's own operator runs, not a host kernel.
    pub driver: bool,
    /// The number of nodes.
    pub nodes: u64,
}

/// The device that a graph runs on, as the graph sees it.
pub trait Device: fmt::Debug + Send + Sync {
    /// The number under which hosts know it.
    fn index(&self) -> u32;

    /// The door through which kernels and operators reach the driver.
    fn door(&self) -> &Door;

    /// Whether launching a driver's graph is cheaper than submitting each node; empty until it was measured.
    fn native_cheaper(&self) -> &OnceLock<bool>;

    // ---- Memory --------------------------------------------------------------------------------

    /// Checks that a range lies in one live allocation; `what` names it in the error.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says why it does not; `BUSY` if the memory is of a pool that sleeps.
    fn check_range(&self, what: &dyn fmt::Display, address: u64, size: u64) -> Result<()>;

    /// The block that contains an address.
    fn lookup(&self, address: u64) -> Option<BlockInfo>;

    /// Whether any pool of the device sleeps. Cheap: asked before addresses are looked up.
    fn any_asleep(&self) -> bool;

    /// Refuses an address whose memory is of a pool that sleeps.
    ///
    /// # Errors
    /// `BUSY` that names the pool.
    fn check_awake(&self, address: u64) -> Result<()>;

    /// Keeps the allocation that contains an address alive, whoever frees it, and returns its base.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is in no live allocation.
    fn hold(&self, address: u64) -> Result<u64>;

    /// Ends a [`hold`](Self::hold).
    fn unhold(&self, base: u64);

    /// Notes that work of a stream uses a held allocation.
    fn record_stream(&self, base: u64, stream: u64);

    /// Allocates from a pool, within its limit.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; `BUSY` if the pool sleeps.
    fn alloc_in(&self, pool: &PoolRef, size: u64, stream: StreamId) -> Result<Allocation>;

    /// Frees a block that a graph allocated.
    fn free_block(&self, address: u64);

    /// Makes a pool.
    fn pool_create(&self) -> (PoolId, PoolGate);

    /// Ends a pool that nobody refers to any more.
    fn pool_release(&self, pool: PoolId);

    /// The figures of a pool's memory now.
    fn pool_stats(&self, pool: PoolId) -> PoolStats;

    /// Whether a pool sleeps, falls asleep or wakes.
    fn is_asleep(&self, pool: PoolId) -> bool;

    /// Enters a pool for work on a stream, if all of its memory is there; see [`PoolGate`].
    fn try_enter(&self, gate: &PoolGate, stream: StreamId) -> bool;

    /// Enters a pool after its lent memory has come back. The caller holds no lock, because the host may be asked to
    /// release memory meanwhile.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`; what the driver reports.
    fn enter(&self, gate: &PoolGate, stream: Option<StreamId>) -> Result<()>;

    // ---- Work ----------------------------------------------------------------------------------

    /// The id of the stream that work goes to unless another one is named.
    fn default_stream(&self) -> u64;

    /// The end of all work that a stream was given; `None` if that work is known to have finished.
    ///
    /// # Errors
    /// What the driver reports.
    fn fence(&self, stream: u64) -> Result<Option<Arc<Tail>>>;

    /// Keeps an object until the work that a stream was given so far has finished. The caller may hold a turn:
    /// this call drops nothing, only [`sweep_retired`](Self::sweep_retired) does.
    fn retire(&self, stream: Option<u64>, kept: Box<dyn Send>);

    /// Drops what was kept for work that has finished. That may call functions of the host.
    fn sweep_retired(&self);

    /// Lets an operator run as a host kernel. This may call observers, so the caller holds no lock.
    ///
    /// # Errors
    /// `UNSUPPORTED` if the host forbids that on a device that is not the CPU.
    fn admit_host_kernel(&self, id: OperatorId) -> Result<()>;

    /// Counts an operator of a replay that was submitted: how many times it runs, as an operator of the driver or as a
    /// host kernel.
    fn count_replayed(&self, operator: &Replayed);

    /// The driver's own operator for a call; `None` if it has none. Also `None` if a host
    /// kernel is better. Operators that the answer has displaced are retired.
    /// This calls the driver, so the caller holds no lock.
    ///
    /// # Errors
    /// Those of [`Door::find`].
    fn find_operator(&self, id: OperatorId, call: &Call<'_>) -> Result<Option<Arc<Arc<Prepared>>>> {
        let door = self.door();
        let found = door.find(id, call)?;
        if door.has_ended() {
            self.sweep_retired();
        }
        Ok(found.filter(|prepared| door.prefers(prepared, id, call)))
    }
}

/// A reference to a pool, which is memory apart from the memory that all share. A pool lives as long as a reference to
/// it. Then its free memory goes back to the device at once, and the rest as soon as it is freed.
#[derive(Debug)]
pub struct PoolRef {
    device: &'static dyn Device,
    pool: PoolId,
    gate: PoolGate,
    limit: AtomicU64,
    // Bytes of allocations in progress; counted only while there is a limit.
    claimed: AtomicU64,
}

/// A part of a pool's limit, reserved for one allocation in progress.
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

    /// The pool that a host named for `user`, or a new one.
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
            format!("a {user} on device {ours} cannot use a pool of device {theirs}"),
        ))
    }

    /// The device of the pool's memory.
    pub fn device(&self) -> &'static dyn Device {
        self.device
    }

    /// The pool's number within the device.
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// The gate that work enters before it uses the pool's memory.
    pub fn gate(&self) -> &PoolGate {
        &self.gate
    }

    /// The most bytes that may be in use; `u64::MAX` is no limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Limits the bytes that may be in use, rounded up; `u64::MAX` lifts the limit. Memory that is in use stays in use.
    /// Allocations in progress count as used.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Reserves bytes of the limit for one allocation; `None` if the limit has no room for it.
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

    /// The figures of the pool's memory now.
    pub fn stats(&self) -> PoolStats {
        self.device.pool_stats(self.pool)
    }
}

impl Drop for PoolRef {
    fn drop(&mut self) {
        self.device.pool_release(self.pool);
    }
}
