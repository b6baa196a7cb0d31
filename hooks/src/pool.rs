//! Handles of pools. A pool is memory apart from the memory that all share, for graphs and for allocations that a host
//! directs there. A pool lives as long as a handle, a capture, a graph or a thread that allocates from it refers to it.
//! Then its free memory goes back to the device at once, and the rest as soon as it is freed.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use outrigger_allocator::{PoolId, PoolStats};
use outrigger_graph::PoolRef;
use outrigger_locks::{Mutex, Rank};

use crate::{Device, Result};
use outrigger_handles::{Kind, Ref, Table};

static TABLE: Table<Pool> = Table::new(Kind::Pool);

/// The handles of pools, by device and number.
static HANDLES: LazyLock<Mutex<HashMap<(u32, PoolId), u64>>> =
    LazyLock::new(|| Mutex::new(Rank::PoolHandles, HashMap::new()));

/// A pool of a device's memory, by its handle.
#[derive(Debug)]
pub struct Pool {
    device: &'static Device,
    memory: Arc<PoolRef>,
}

impl Pool {
    /// The device of the pool's memory.
    pub fn device(&self) -> &'static Device {
        self.device
    }

    pub(crate) fn memory(&self) -> &Arc<PoolRef> {
        &self.memory
    }

    /// The pool's number within the device, as snapshots name it.
    pub fn number(&self) -> u64 {
        self.memory.pool().get()
    }

    /// The figures of the pool's memory now.
    pub fn stats(&self) -> PoolStats {
        self.memory.stats()
    }

    /// The most bytes that may be in use; `u64::MAX` is no limit.
    pub fn limit(&self) -> u64 {
        self.memory.limit()
    }

    /// Limits the bytes that may be in use, rounded up; `u64::MAX` lifts the limit. Memory that is in use stays in use.
    /// Allocations in progress count as used.
    pub fn set_limit(&self, bytes: u64) {
        self.memory.set_limit(bytes);
    }

    /// The number of captures, graphs, executable graphs and threads in a pool use that refer to the pool.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.memory) - 1
    }
}

impl Device {
    /// Makes a pool.
    ///
    /// # Errors
    /// `OUT_OF_HOST_MEMORY` if too many are alive.
    pub fn create_pool(&'static self) -> Result<Ref<Pool>> {
        let memory = PoolRef::new(self);
        let number = memory.pool();
        let pool = TABLE.insert(|_| Pool {
            device: self,
            memory,
        })?;
        HANDLES.lock().insert((self.index(), number), pool.id());
        Ok(pool)
    }
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
    Ok(TABLE.get(id)?)
}

/// Destroys the handle. The memory goes back to the device after the last graph and the last allocation that use it.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live pool.
pub fn destroy_pool(id: u64) -> Result<()> {
    let pool = TABLE.remove(id)?;
    let key = (pool.device.index(), pool.memory.pool());
    HANDLES.lock().remove(&key);
    Ok(())
}
