//! Pools: memory apart from what all share, for graphs and for what a host allocates there. A pool lives
//! as long as a handle, a capture, a graph or a thread that allocates into it refers to it; then its
//! memory goes back to the device, what is in use as soon as it is freed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use outrigger_allocator::{PoolGate, PoolId, PoolStats};
use outrigger_device::Code;
use outrigger_locks::{Mutex, Rank};

use crate::memory::{Sleep, pool_snapshot_json};
use crate::table::{Kind, Ref, Table};
use crate::{Device, Error, Result, runtime};

static TABLE: Table<Pool> = Table::new(Kind::Pool);

/// The handles of pools, by device and number.
static HANDLES: LazyLock<Mutex<HashMap<(u32, PoolId), u64>>> =
    LazyLock::new(|| Mutex::new(Rank::PoolHandles, HashMap::new()));

/// A pool of a device's memory, by its handle.
#[derive(Debug)]
pub struct Pool {
    id: u64,
    memory: Arc<PoolRef>,
}

/// A reference to a pool of the allocator.
#[derive(Debug)]
pub(crate) struct PoolRef {
    device: &'static Device,
    pool: PoolId,
    gate: PoolGate,
    limit: AtomicU64,
    // Bytes of allocations in progress, while there is a limit.
    claimed: AtomicU64,
    sleep: Mutex<Sleep>,
}

/// Bytes of a pool's limit that an allocation in progress may use.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    pool: &'a PoolRef,
    bytes: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.pool.claimed.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl PoolRef {
    fn new(device: &'static Device) -> Arc<Self> {
        let pool = device.allocator().pool_create();
        let gate = device.allocator().pool_gate(pool);
        let gate = gate.expect("a pool has a gate as long as it has references");
        Arc::new(Self {
            device,
            pool,
            gate,
            limit: AtomicU64::new(u64::MAX),
            claimed: AtomicU64::new(0),
            sleep: Mutex::new(Rank::PoolSleep, Sleep::Awake),
        })
    }

    /// The pool that a host has named for `user`, or a new one.
    pub(crate) fn given_or_new(
        given: Option<&Pool>,
        device: &'static Device,
        user: &str,
    ) -> Result<Arc<Self>> {
        let Some(pool) = given else {
            return Ok(Self::new(device));
        };
        let (theirs, ours) = (pool.device().index(), device.index());
        if theirs == ours {
            return Ok(Arc::clone(&pool.memory));
        }
        Err(Error::new(
            Code::INVALID_ARGUMENT,
            format!("a pool of device {theirs} for a {user} on device {ours}"),
        ))
    }

    pub(crate) fn device(&self) -> &'static Device {
        self.device
    }

    pub(crate) fn sleep_state(&self) -> &Mutex<Sleep> {
        &self.sleep
    }

    pub(crate) fn pool(&self) -> PoolId {
        self.pool
    }

    /// Where those go inside who use its memory.
    pub(crate) fn gate(&self) -> &PoolGate {
        &self.gate
    }

    /// The most bytes that may be in use; `u64::MAX` is no limit.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Claims bytes for an allocation that may begin; `None` if the limit has no room for it.
    pub(crate) fn claim(&self, bytes: u64) -> Option<Claim<'_>> {
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
    pub(crate) fn stats(&self) -> PoolStats {
        self.device
            .allocator()
            .pool_stats(self.pool)
            .unwrap_or_default()
    }
}

impl Drop for PoolRef {
    fn drop(&mut self) {
        self.end_sleep();
        if let Err(error) = self.device.allocator().pool_release(self.pool) {
            tracing::error!(target: "outrigger::graph", %error, "a pool was released twice");
        }
    }
}

impl Pool {
    /// The id, as C hosts hold it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &'static Device {
        self.memory.device
    }

    pub(crate) fn memory(&self) -> &Arc<PoolRef> {
        &self.memory
    }

    /// Its number within the device, as snapshots name it.
    pub fn number(&self) -> u64 {
        self.memory.pool.get()
    }

    /// What it holds now.
    pub fn stats(&self) -> PoolStats {
        self.memory.stats()
    }

    /// The most bytes that may be in use; `u64::MAX` is no limit.
    pub fn limit(&self) -> u64 {
        self.memory.limit()
    }

    /// Limits the bytes that may be in use, rounded up; `u64::MAX` lifts the limit. What is in use
    /// stays. Allocations in progress count as used.
    pub fn set_limit(&self, bytes: u64) {
        self.memory.limit.store(bytes, Ordering::Relaxed);
    }

    /// Its segments and blocks as JSON; see [`snapshot_json`](crate::snapshot_json).
    pub fn snapshot_json(&self) -> String {
        pool_snapshot_json(self.memory.device, self.memory.pool)
    }

    /// How many captures, graphs, executable graphs and threads that allocate into it refer to it.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.memory) - 1
    }
}

/// Makes a pool.
///
/// # Errors
/// `INVALID_DEVICE`; `OUT_OF_HOST_MEMORY` if too many are alive.
pub fn create_pool(device: u32) -> Result<Ref<Pool>> {
    let memory = PoolRef::new(runtime()?.device(device)?);
    let pool = TABLE.insert(|id| Pool { id, memory })?;
    HANDLES.lock().insert((device, pool.memory.pool), pool.id);
    Ok(pool)
}

/// The handle of a pool; 0 if it has none.
pub(crate) fn handle_of(device: &Device, pool: PoolId) -> u64 {
    let handles = HANDLES.lock();
    handles.get(&(device.index(), pool)).copied().unwrap_or(0)
}

/// The pool with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live pool.
pub fn pool(id: u64) -> Result<Ref<Pool>> {
    TABLE.get(id)
}

/// Gives the handle up. The memory goes with the last graph that uses it, and the last allocation.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live pool.
pub fn destroy_pool(id: u64) -> Result<()> {
    let pool = TABLE.remove(id)?;
    let key = (pool.memory.device.index(), pool.memory.pool);
    HANDLES.lock().remove(&key);
    Ok(())
}
