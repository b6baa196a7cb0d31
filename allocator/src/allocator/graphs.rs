//! Services for execution graphs: private pools, whose addresses a replay uses again;
//! and holds, which keep other memory that a graph uses.
//!
//! The release of a pool must never keep memory from the device because no thread waits: what cannot be
//! given back at once goes with the next free, growth or [`Allocator::empty_cache`].

use std::collections::HashMap;

use outrigger_locks::MutexGuard;

use super::Allocator;
use crate::arena::Owner;
use crate::arenas::ArenaId;
use crate::stats::Gauge;
use crate::{
    AllocError, Allocation, Backend, FreeError, Freed, PoolAllocError, PoolError, PoolGate, PoolId,
    PoolStats, StreamId,
};

/// A pool's record: kept while it has references or memory.
struct PoolRecord {
    gate: PoolGate,
    references: u64,
    /// Allocations that have left the lock to ask the device. They began while the pool had references,
    /// and end as if it still had.
    pins: u64,
    arenas: Vec<ArenaId>,
    allocated: Gauge,
    /// Whether the memory is away, or about to be: nothing can be allocated then.
    suspended: bool,
}

/// The records of all pools.
#[derive(Default)]
pub(super) struct Pools {
    records: HashMap<PoolId, PoolRecord>,
    made: u64,
}

impl Pools {
    fn live(&mut self, pool: PoolId) -> Result<&mut PoolRecord, PoolError> {
        let error = if pool.get() <= self.made {
            PoolError::Released { pool }
        } else {
            PoolError::Unknown { pool }
        };
        let record = self.records.get_mut(&pool);
        record.filter(|record| record.references > 0).ok_or(error)
    }

    /// The pool, if it may be allocated from.
    fn awake(&mut self, pool: PoolId) -> Result<&mut PoolRecord, PoolError> {
        let record = self.live(pool)?;
        if record.suspended {
            return Err(PoolError::Asleep { pool });
        }
        Ok(record)
    }

    /// Forbids further allocations. Returns the pool's arenas.
    pub(super) fn suspend(&mut self, pool: PoolId) -> Result<Vec<ArenaId>, PoolError> {
        let record = self.awake(pool)?;
        if record.pins > 0 {
            return Err(PoolError::Busy { pool });
        }
        record.suspended = true;
        Ok(record.arenas.clone())
    }

    /// The arenas of a pool that is suspended.
    pub(super) fn suspended(&mut self, pool: PoolId) -> Result<Vec<ArenaId>, PoolError> {
        let record = self.live(pool)?;
        if record.suspended {
            return Ok(record.arenas.clone());
        }
        Err(PoolError::Awake { pool })
    }

    /// Allows allocations again.
    pub(super) fn resume(&mut self, pool: PoolId) -> Result<(), PoolError> {
        self.live(pool)?.suspended = false;
        Ok(())
    }

    /// The gate of a pool.
    pub(super) fn gate(&mut self, pool: PoolId) -> Result<PoolGate, PoolError> {
        self.live(pool).map(|record| record.gate.clone())
    }

    /// The gates of the pools that graphs use, with their arenas.
    pub(super) fn of_graphs(&self) -> Vec<(PoolGate, Vec<ArenaId>)> {
        let pools = self.records.values().filter(|it| it.gate.is_of_graphs());
        pools
            .map(|it| (it.gate.clone(), it.arenas.clone()))
            .collect()
    }

    /// The gates of the pools that have one of these arenas.
    pub(super) fn gates_of(&self, arenas: &[ArenaId]) -> Vec<PoolGate> {
        let has = |pool: &&PoolRecord| pool.arenas.iter().any(|arena| arenas.contains(arena));
        let pools = self.records.values().filter(has);
        pools.map(|pool| pool.gate.clone()).collect()
    }

    /// The gate of a pool, also of a released one that has memory.
    pub(super) fn kept_gate(&self, pool: PoolId) -> Option<PoolGate> {
        let record = self.records.get(&pool);
        record.map(|record| record.gate.clone())
    }

    /// The arenas of a pool.
    pub(super) fn arenas(&self, pool: PoolId) -> Vec<ArenaId> {
        let record = self.records.get(&pool);
        record.map_or_else(Vec::new, |record| record.arenas.clone())
    }

    /// Whether a pool has arenas, but no reference any more. A pool without references and arenas is
    /// forgotten.
    fn is_released(&mut self, pool: PoolId) -> bool {
        let record = self.records.get(&pool);
        let released = record.filter(|record| record.references == 0 && record.pins == 0);
        let has_arenas = released.map(|record| !record.arenas.is_empty());
        if has_arenas == Some(false) {
            self.records.remove(&pool);
        }
        has_arenas == Some(true)
    }
}

impl<B: Backend> Allocator<B> {
    /// Makes a private pool, with one reference. It holds no memory yet.
    pub fn pool_create(&self) -> PoolId {
        let mut pools = self.pools.lock();
        pools.made += 1;
        let pool = PoolId::new(pools.made).expect("counts from 1");
        let record = PoolRecord {
            gate: PoolGate::new(pool),
            references: 1,
            pins: 0,
            arenas: Vec::new(),
            allocated: Gauge::default(),
            suspended: false,
        };
        pools.records.insert(pool, record);
        pool
    }

    /// Adds a reference to a pool.
    ///
    /// # Errors
    /// The pool was released or never made.
    pub fn pool_retain(&self, pool: PoolId) -> Result<(), PoolError> {
        self.pools.lock().live(pool)?.references += 1;
        Ok(())
    }

    /// Gives a reference to a pool back. The last one releases the pool. Its idle memory goes back to
    /// the device after a fence behind the work of its streams, which is waited for. The rest goes when
    /// its blocks are free and its streams have passed. All replays of graphs that use the pool have
    /// finished before.
    ///
    /// # Errors
    /// The pool was released or never made.
    pub fn pool_release(&self, pool: PoolId) -> Result<(), PoolError> {
        let released = {
            let mut pools = self.pools.lock();
            pools.live(pool)?.references -= 1;
            pools.is_released(pool)
        };
        if released {
            self.close(pool);
        }
        Ok(())
    }

    /// Lets the memory of a released pool go.
    fn close(&self, pool: PoolId) {
        let arenas = {
            // While it is held, no arena is forgotten.
            let _growth = self.growth.lock();
            let arenas = self.pools.lock().arenas(pool);
            for mut arena in arenas.iter().map(|&it| self.arenas.lock(it)) {
                arena.closed = true;
            }
            arenas
        };
        self.part_from_guests(pool);
        for &id in &arenas {
            self.pending.lock().leave(id);
        }
        self.wait_leaving();
    }

    /// Takes all references from all pools.
    pub(super) fn release_all_pools(&self) {
        let released: Vec<PoolId> = {
            let mut pools = self.pools.lock();
            let ids: Vec<PoolId> = pools.records.keys().copied().collect();
            for pool in pools.records.values_mut() {
                pool.references = 0;
            }
            ids.into_iter()
                .filter(|id| pools.is_released(*id))
                .collect()
        };
        released.into_iter().for_each(|pool| self.close(pool));
    }

    /// Allocates at least `size` bytes for work on `stream`, only from memory of this pool. A size of 0
    /// gets the smallest block. [`free`](Self::free) returns it to the pool.
    ///
    /// # Errors
    /// The pool was released or never made; or those of [`alloc`](Self::alloc).
    pub fn alloc_in(
        &self,
        pool: PoolId,
        size: u64,
        stream: StreamId,
    ) -> Result<Allocation, PoolAllocError<B::Error>> {
        // Released by another thread meanwhile, the pool still serves this request.
        let gate = self.pools.lock().awake(pool).map(|record| {
            record.pins += 1;
            record.gate.clone()
        });
        let gate = gate.map_err(PoolAllocError::Pool)?;
        let owner = Owner {
            pool: Some(pool),
            stream,
        };
        let result = self.note_user(&gate, stream);
        let result = result.and_then(|()| self.alloc_of(owner, size));
        let released = {
            let mut pools = self.pools.lock();
            if let Some(record) = pools.records.get_mut(&pool) {
                record.pins -= 1;
                if let Ok(found) = &result {
                    record.allocated.add(found.size);
                }
            }
            pools.is_released(pool)
        };
        if released {
            self.close(pool);
        }
        let ordered = result.and_then(|found| {
            // A replay on another thread may have brought it home just now.
            let ordered = self.note_user(&gate, stream);
            ordered.map(|()| found).inspect_err(|_| {
                let _ = self.free(found.address);
            })
        });
        ordered.map_err(PoolAllocError::Alloc)
    }

    fn alloc_of(&self, owner: Owner, size: u64) -> Result<Allocation, AllocError<B::Error>> {
        let Some(request) = self.config.request(size) else {
            return Err(self.out_of_memory(size, owner.stream));
        };
        let mut arena = self.arenas.of(owner);
        let recording = self.history.is_on();
        let found = if recording {
            None
        } else {
            arena.alloc(&request)
        };
        let short = arena.is_short(request.class);
        drop(arena);
        if short {
            self.settle();
        }
        found.map_or_else(|| self.alloc_slow(&request, owner), Ok)
    }

    /// Notes that an arena belongs to a pool. While the growth lock is held, no arena without memory is
    /// forgotten.
    pub(super) fn pool_has(&self, _: &MutexGuard<'_, ()>, pool: PoolId, id: ArenaId) {
        let mut pools = self.pools.lock();
        if let Some(record) = pools.records.get_mut(&pool)
            && !record.arenas.contains(&id)
        {
            record.arenas.push(id);
        }
    }

    /// Counts off a block of a pool.
    #[cold]
    pub(super) fn pool_freed(&self, freed: &Freed) {
        let Some(pool) = freed.pool else { return };
        if let Some(record) = self.pools.lock().records.get_mut(&pool) {
            record.allocated.sub(freed.size);
        }
    }

    /// Forgets an arena that has no memory left, and its pool with the last one.
    pub(super) fn forget_if_empty(&self, id: ArenaId) {
        let Some(owner) = self.arenas.forget_if_empty(id) else {
            return;
        };
        let Some(pool) = owner.pool else { return };
        let mut pools = self.pools.lock();
        if let Some(record) = pools.records.get_mut(&pool) {
            record.arenas.retain(|&arena| arena != id);
            // A pool with references stays, the others have no use any more.
            pools.is_released(pool);
        }
    }

    /// A pool's figures of now; `None` if it was never made, or was released and has no memory left.
    pub fn pool_stats(&self, pool: PoolId) -> Option<PoolStats> {
        let pools = self.pools.lock();
        let record = pools.records.get(&pool)?;
        let mut stats = PoolStats {
            allocated: record.allocated.current(),
            allocated_peak: record.allocated.peak(),
            references: record.references,
            ..PoolStats::default()
        };
        let arenas = record.arenas.clone();
        drop(pools);
        for arena in arenas.into_iter().filter_map(|it| self.arenas.find(it)) {
            stats.reserved += arena.reserved();
            stats.segments += arena.pieces();
        }
        Some(stats)
    }

    /// Keeps the block around any address from being reused, whoever frees it, and returns where it
    /// starts. Holds are counted: each needs its own [`unhold`](Self::unhold). A block that its owner
    /// has freed accepts further holds as long as it has one.
    ///
    /// # Errors
    /// The address is in memory that is free, or not held from the device.
    pub fn hold(&self, any_address: u64) -> Result<u64, FreeError> {
        self.around(any_address)?.hold(any_address)
    }

    /// Gives back a hold of the block that starts at `base`. One of these is true of the work that used
    /// the block through this hold: it has finished; it is on the stream for which the block was
    /// allocated; or [`record_stream`](Self::record_stream) named its stream, which is possible for a
    /// freed block, too. In the last case the block is reused only after the work that this stream had
    /// been given until now has finished.
    ///
    /// # Errors
    /// The block has no hold, or the address is not where a block starts.
    pub fn unhold(&self, base: u64) -> Result<(), FreeError> {
        let mut arena = self.around(base)?;
        let (next, block) = arena.unhold(base)?;
        let id = arena.id();
        self.record_completed(&arena, block);
        drop(arena);
        self.go_on(id, next);
        Ok(())
    }
}
