//! Gives the memory of a private pool back while its addresses and blocks stay.
//!
//! The caller keeps the contents: it saves what is in use between [`pool_suspend`] and [`pool_page_out`],
//! and restores it between [`pool_page_in`] and [`pool_resume`]. If the device refuses a call, whichever it
//! is, the pool is either away or there, never in between: memory that cannot be unmapped stays mapped and
//! still counts as held; a pool that gets no memory stays away.
//!
//! [`pool_suspend`]: Allocator::pool_suspend
//! [`pool_page_out`]: Allocator::pool_page_out
//! [`pool_page_in`]: Allocator::pool_page_in
//! [`pool_resume`]: Allocator::pool_resume

use outrigger_locks::MutexGuard;

use super::Allocator;
use super::supply::{Memory, Supplied};
use crate::arena::Arena;
use crate::arenas::ArenaId;
use crate::config::Class;
use crate::segment::{Chunk, Piece};
use crate::{
    AllocError, Backend, Event, EventKind, Physical, PoolAllocError, PoolError, PoolId, StreamId,
};

/// A chunk with the arena that it is of.
pub(super) type ChunkPlace = (ArenaId, Chunk, Class);

impl<B: Backend> Allocator<B> {
    /// Refuses further allocations from a pool, and returns the addresses in use with their bytes. Frees
    /// still work. The caller sees to it that no work uses the pool.
    ///
    /// # Errors
    /// The pool was released or never made, sleeps, or is being allocated from; or its memory is not
    /// mapped chunk by chunk.
    pub fn pool_suspend(&self, pool: PoolId) -> Result<Vec<(u64, u64)>, PoolError> {
        if self.memory().is_none() {
            return Err(PoolError::NotMapped { pool });
        }
        let gate = self.pool_gate(pool)?;
        let arenas = self.pools.lock().suspend(pool)?;
        let mut theirs = arenas.iter().filter_map(|&id| self.arenas.find(id));
        let fixed = theirs.any(|arena| !arena.can_sleep());
        if fixed {
            self.pools.lock().resume(pool)?;
            return Err(PoolError::NotMapped { pool });
        }
        // Chunks that are lent stay lent; no more are lent.
        gate.enter(None);
        let mut used = Vec::new();
        for mut arena in arenas.into_iter().filter_map(|id| self.arenas.find(id)) {
            arena.set_asleep(true);
            used.extend(arena.in_use());
        }
        Ok(used)
    }

    /// Whether anybody uses memory of a pool, or a hold keeps some.
    pub fn pool_is_used(&self, pool: PoolId) -> bool {
        let arenas = self.pools.lock().arenas(pool);
        let mut arenas = arenas.into_iter().filter_map(|id| self.arenas.find(id));
        arenas.any(|arena| !arena.in_use().is_empty())
    }

    /// Gives the memory of a suspended pool back to the device, or to the arenas that have mapped it. All work
    /// on it has finished. Returns how many bytes the pool gave up.
    ///
    /// # Errors
    /// The pool was released or never made, or is not suspended.
    pub fn pool_page_out(&self, pool: PoolId) -> Result<u64, PoolError> {
        let gate = self.pool_gate(pool)?;
        let arenas = self.pools.lock().suspended(pool)?;
        let memory = self.memory().ok_or(PoolError::NotMapped { pool })?;
        let growth = self.growth.lock();
        let mut events = Vec::new();
        let mut bytes = 0;
        let heirs = self.heirs(&growth, &arenas, true);
        for place in self.places(&arenas, false) {
            let (arena, chunk, class) = place;
            if let Some(&heir) = heirs.get(&(arena, chunk.home)) {
                // Refused, it stays and goes on to count.
                let piece = Piece { arena, chunk };
                let _ = self.bequeath(&growth, memory, &piece, class, heir, &mut events);
            } else {
                events.extend(self.page_out(memory, &place));
            }
            bytes += u64::from(self.arenas.lock(arena).is_away(chunk.home)) * chunk.size;
        }
        if gate.has_lent() {
            self.send_all_views(&growth);
        }
        drop(growth);
        self.tell(&events);
        Ok(bytes)
    }

    /// Puts memory behind the addresses of a suspended pool again, with any contents. If there is none, the
    /// cache gives back what it can and observers are asked, as for any allocation.
    ///
    /// # Errors
    /// The pool was released or never made, or is not suspended. Out of memory, or what the device answers:
    /// the pool has then as much memory as before.
    pub fn pool_page_in(&self, pool: PoolId) -> Result<(), PoolAllocError<B::Error>> {
        let arenas = self.pools.lock().suspended(pool);
        let arenas = arenas.map_err(PoolAllocError::Pool)?;
        let memory = self.memory();
        let memory = memory.ok_or(PoolAllocError::Pool(PoolError::NotMapped { pool }))?;
        let needed = self.places(&arenas, true).iter().map(|it| it.1.size).sum();
        if self
            .page_in_somehow(memory, &arenas, needed)
            .map_err(PoolAllocError::Alloc)?
        {
            return Ok(());
        }
        let error = self.out_of_memory(needed, StreamId(0));
        Err(PoolAllocError::Alloc(error))
    }

    /// Allows allocations from a suspended pool again.
    ///
    /// # Errors
    /// The pool was released or never made, or is not suspended.
    pub fn pool_resume(&self, pool: PoolId) -> Result<(), PoolError> {
        let arenas = self.pools.lock().suspended(pool)?;
        for mut arena in arenas.into_iter().filter_map(|id| self.arenas.find(id)) {
            arena.set_asleep(false);
        }
        self.pool_gate(pool)?.leave();
        self.pools.lock().resume(pool)
    }

    /// The chunks of arenas that have memory; with `away`, those that have none.
    pub(super) fn places(&self, arenas: &[ArenaId], away: bool) -> Vec<ChunkPlace> {
        let arenas = arenas.iter().filter_map(|&id| self.arenas.find(id));
        let of = |arena: MutexGuard<'_, Arena>| {
            let (id, chunks) = (arena.id(), arena.chunks_away(away));
            chunks
                .into_iter()
                .map(move |(chunk, class)| (id, chunk, class))
        };
        arenas.flat_map(of).collect()
    }

    /// Gives a chunk back. `None`: it could not be unmapped, and stays mapped.
    fn page_out(&self, memory: Memory<'_, B>, &(id, chunk, class): &ChunkPlace) -> Option<Event> {
        if memory.try_unmap(chunk.home, chunk.size).is_err() {
            return None;
        }
        memory.destroy(chunk.physical);
        let mut arena = self.arenas.lock(id);
        arena.went_away(&chunk);
        let event = arena.event(EventKind::SegmentFree, chunk.home, chunk.size);
        drop(arena);
        {
            let mut ledger = self.ledger.lock();
            ledger.release(class, chunk.size);
            ledger.counts.unmaps += 1;
        }
        event.map(|event| self.with_figures(event))
    }

    /// Gives memory to all chunks that are away: idle memory of others first, then as for any allocation.
    /// `false` if there is not enough.
    pub(super) fn page_in_somehow(
        &self,
        memory: Memory<'_, B>,
        arenas: &[ArenaId],
        needed: u64,
    ) -> Result<bool, AllocError<B::Error>> {
        self.give_back_at_once(needed);
        if self.page_in(memory, arenas)?.is_some() {
            return Ok(true);
        }
        self.ledger.lock().counts.alloc_retries += 1;
        if self.give_back(needed) > 0 && self.page_in(memory, arenas)?.is_some() {
            return Ok(true);
        }
        self.reclaim();
        if self.page_in(memory, arenas)?.is_some() {
            return Ok(true);
        }
        if self.backend.pressure(needed) {
            self.reclaim();
            return Ok(self.page_in(memory, arenas)?.is_some());
        }
        Ok(false)
    }

    /// Gives all chunks memory, or none; `None`: there is not enough.
    fn page_in(&self, memory: Memory<'_, B>, arenas: &[ArenaId]) -> Supplied<(), B::Error> {
        let growth = self.growth.lock();
        let places = self.places(arenas, true);
        let bytes = places.iter().map(|(_, chunk, _)| chunk.size).sum();
        if !self.ledger.lock().has_room(bytes) {
            return Ok(None);
        }
        let mut back: Vec<(ChunkPlace, Physical)> = Vec::new();
        let mut failure = None;
        for place in places {
            let (_, chunk, _) = place;
            match memory.create(chunk.size) {
                Ok(physical) => match memory.map(chunk.home, &[physical]) {
                    Ok(()) => back.push((place, physical)),
                    Err(error) => {
                        memory.destroy(physical);
                        failure = Some(error);
                    }
                },
                Err(error) => failure = Some(error),
            }
            if failure.is_some() {
                break;
            }
        }
        let mut events = Vec::new();
        for ((id, chunk, class), physical) in back {
            if failure.is_some() && memory.try_unmap(chunk.home, chunk.size).is_ok() {
                memory.destroy(physical);
                continue;
            }
            let mut arena = self.arenas.lock(id);
            arena.came_back(&chunk, physical);
            let event = arena.event(EventKind::SegmentAlloc, chunk.home, chunk.size);
            drop(arena);
            {
                let mut ledger = self.ledger.lock();
                ledger.counts.maps += 1;
                ledger.reserve(class, chunk.size, 1);
            }
            events.extend(event.map(|event| self.with_figures(event)));
        }
        drop(growth);
        self.tell(&events);
        match failure {
            None => Ok(Some(())),
            Some(error) if self.backend.is_out_of_memory(&error) => Ok(None),
            Some(error) => Err(AllocError::Backend(error)),
        }
    }
}
