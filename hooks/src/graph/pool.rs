//! Pools: memory that graphs share. A pool lives as long as a handle, a capture or a graph refers to
//! it; then its memory goes back to the device.

use std::sync::Arc;

use outrigger_allocator::{PoolId, PoolStats};
use outrigger_device::Code;

use crate::table::{Kind, Table};
use crate::{Device, Error, Result, runtime};

static TABLE: Table<Pool> = Table::new(Kind::Pool);

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
}

impl PoolRef {
    fn new(device: &'static Device) -> Arc<Self> {
        Arc::new(Self {
            device,
            pool: device.allocator().pool_create(),
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

    pub(crate) fn pool(&self) -> PoolId {
        self.pool
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

    /// What it holds now.
    pub fn stats(&self) -> PoolStats {
        self.memory.stats()
    }

    /// How many captures, graphs and executable graphs refer to it.
    pub fn users(&self) -> usize {
        Arc::strong_count(&self.memory) - 1
    }
}

/// Makes a pool.
///
/// # Errors
/// `INVALID_DEVICE`; `OUT_OF_HOST_MEMORY` if too many are alive.
pub fn create_pool(device: u32) -> Result<Arc<Pool>> {
    let memory = PoolRef::new(runtime()?.device(device)?);
    TABLE.insert(|id| Pool { id, memory })
}

/// The pool with this id.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live pool.
pub fn pool(id: u64) -> Result<Arc<Pool>> {
    TABLE.get(id)
}

/// Gives the handle up. The memory goes with the last graph that uses it.
///
/// # Errors
/// `INVALID_HANDLE` if the id is not of a live pool.
pub fn destroy_pool(id: u64) -> Result<()> {
    TABLE.remove(id).map(drop)
}
