//! Private pools: memory that serves nobody else, and stays as long as somebody refers to the pool.
//!
//! While a pool has references, its segments must never leave the heap. Once it has none, each segment
//! is *retired* when it is idle: it waits in [`Heap::take_retired`] for who can record a fence, and
//! [`Heap::remove_segment`] ends it. Nothing is allocated from a released pool, so that a retired
//! segment stays idle.

use std::collections::HashMap;

use super::{Heap, Next};
use crate::arena::Arenas;
use crate::stats::Gauge;
use crate::table::NONE;
use crate::{PoolError, PoolId, PoolStats, StreamId};

/// A pool's record: kept while it has references or segments.
#[derive(Default)]
struct Pool {
    references: u64,
    /// Allocations on their way to the device and back: they began while the pool had references, and
    /// end as if it still had.
    pins: u64,
    arenas: Vec<u32>,
    segments: u64,
    reserved: u64,
    allocated: Gauge,
}

impl Pool {
    fn is_released(&self) -> bool {
        self.references == 0 && self.pins == 0
    }
}

/// All pools.
#[derive(Default)]
pub(super) struct Pools {
    records: HashMap<PoolId, Pool>,
    made: u64,
    retired: Vec<u32>,
}

impl Pools {
    /// A pool's arena for a stream, or [`NONE`].
    pub(super) fn arena(&self, pool: PoolId, stream: StreamId, arenas: &Arenas) -> u32 {
        let record = self.records.get(&pool);
        let mut known = record.into_iter().flat_map(|record| &record.arenas);
        known
            .find(|&&id| arenas[id].stream == stream)
            .copied()
            .unwrap_or(NONE)
    }

    /// The record of what a segment or a block belongs to.
    fn of(&mut self, pool: PoolId) -> &mut Pool {
        self.records
            .get_mut(&pool)
            .expect("a pool with segments or pins has a record")
    }

    pub(super) fn add_arena(&mut self, pool: PoolId, arena: u32) {
        self.of(pool).arenas.push(arena);
    }

    pub(super) fn add_segment(&mut self, pool: PoolId, size: u64) {
        let pool = self.of(pool);
        pool.segments += 1;
        pool.reserved += size;
    }

    /// Counts off a segment of a pool that was released, and forgets the pool with the last one. (Its
    /// arenas may be gone before it: nobody allocates from them.)
    pub(super) fn remove_segment(&mut self, pool: PoolId, size: u64) {
        let record = self.of(pool);
        record.segments -= 1;
        record.reserved -= size;
        if record.segments == 0 {
            self.records.remove(&pool);
        }
    }

    pub(super) fn allocated(&mut self, pool: PoolId) -> &mut Gauge {
        &mut self.of(pool).allocated
    }

    fn why_not_live(&self, pool: PoolId) -> PoolError {
        if pool.get() <= self.made {
            PoolError::Released { pool }
        } else {
            PoolError::Unknown { pool }
        }
    }

    fn live(&mut self, pool: PoolId) -> Result<&mut Pool, PoolError> {
        let error = self.why_not_live(pool);
        let record = self.records.get_mut(&pool);
        record.filter(|record| record.references > 0).ok_or(error)
    }
}

impl Heap {
    /// Makes a pool with one reference.
    pub(crate) fn pool_create(&mut self) -> PoolId {
        self.pools.made += 1;
        let pool = PoolId::new(self.pools.made).expect("counts from 1");
        let record = Pool {
            references: 1,
            ..Pool::default()
        };
        self.pools.records.insert(pool, record);
        pool
    }

    /// Fails unless allocations from this pool may begin.
    pub(crate) fn pool_check(&mut self, pool: PoolId) -> Result<(), PoolError> {
        self.pools.live(pool).map(drop)
    }

    pub(crate) fn pool_retain(&mut self, pool: PoolId) -> Result<(), PoolError> {
        self.pools.live(pool)?.references += 1;
        Ok(())
    }

    /// Gives a reference back. Whether segments were retired.
    pub(crate) fn pool_release(&mut self, pool: PoolId) -> Result<Next, PoolError> {
        self.pools.live(pool)?.references -= 1;
        Ok(self.retire_pool(pool))
    }

    /// Keeps a pool, which has references, until [`pool_unpin`](Self::pool_unpin).
    pub(crate) fn pool_pin(&mut self, pool: PoolId) {
        self.pools.of(pool).pins += 1;
    }

    pub(crate) fn pool_unpin(&mut self, pool: PoolId) -> Next {
        self.pools.of(pool).pins -= 1;
        self.retire_pool(pool)
    }

    /// Takes all references from all pools.
    pub(crate) fn release_all_pools(&mut self) {
        let records = self.pools.records.iter_mut();
        let live = records.filter(|(_, record)| !record.is_released());
        let pools: Vec<PoolId> = live
            .map(|(&pool, record)| {
                record.references = 0;
                pool
            })
            .collect();
        for pool in pools {
            // Who calls this asks for what was retired.
            let _ = self.retire_pool(pool);
        }
    }

    /// Retires the idle segments of a pool if it was released.
    fn retire_pool(&mut self, pool: PoolId) -> Next {
        let record = self.pools.of(pool);
        if !record.is_released() {
            return Next::Done;
        }
        if record.segments == 0 {
            self.pools.records.remove(&pool);
            return Next::Done;
        }
        let arenas = &self.arenas;
        let own = |&id: &u32| arenas[self.segments[id].arena].pool == Some(pool);
        let idle = |&id: &u32| own(&id) && self.is_idle(id);
        let before = self.pools.retired.len();
        let retired: Vec<u32> = self.segments.ids().filter(idle).collect();
        self.pools.retired.extend(retired);
        if self.pools.retired.len() == before {
            return Next::Done;
        }
        Next::Retire
    }

    /// Retires a segment that became idle, if its pool was released.
    pub(super) fn retire(&mut self, segment: u32) -> Next {
        let Some(pool) = self.arenas[self.segments[segment].arena].pool else {
            return Next::Done;
        };
        if !self.pools.of(pool).is_released() || !self.is_idle(segment) {
            return Next::Done;
        }
        self.pools.retired.push(segment);
        Next::Retire
    }

    /// The segments retired since the last call, with their streams, by stream. After a fence on it
    /// the device may have them back.
    pub(crate) fn take_retired(&mut self) -> Vec<(StreamId, u32)> {
        let retired = std::mem::take(&mut self.pools.retired).into_iter();
        let stream = |id: u32| self.arenas[self.segments[id].arena].stream;
        let mut retired: Vec<_> = retired.map(|id| (stream(id), id)).collect();
        retired.sort_unstable();
        retired
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.pools.retired.is_empty()
    }

    pub(crate) fn pool_stats(&self, pool: PoolId) -> Option<PoolStats> {
        let pool = self.pools.records.get(&pool)?;
        Some(PoolStats {
            reserved: pool.reserved,
            allocated: pool.allocated.current(),
            allocated_peak: pool.allocated.peak(),
            segments: pool.segments,
            references: pool.references,
        })
    }
}
