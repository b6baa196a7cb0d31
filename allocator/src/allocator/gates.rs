//! Lends the free memory of graphs' pools between replays, and brings it back before the next replay.
//!
//! A chunk of a pool is lent as chunks of other arenas are: a view shows it. Before a replay begins, or
//! a graph is recorded into the pool, idle chunks return home. The streams wait for each other on the
//! device; nothing is mapped or unmapped. A chunk that is still in use stays with its user and becomes
//! part of the user's arena. Another chunk takes its place in the pool: this takes calls of the driver,
//! and a wait for the earlier replays.

use std::collections::HashMap;

use outrigger_locks::MutexGuard;

use super::Allocator;
use super::supply::{Memory, Supplied};
use super::views::{Offer, offers};
use crate::arena::{Growth, Owner};
use crate::arenas::ArenaId;
use crate::config::{Class, Request};
use crate::segment::{Chunk, Piece};
use crate::{AllocError, Backend, Event, EventKind, PoolError, PoolGate, PoolId, StreamId};

/// The most users of a pool that are remembered after they have finished.
const USERS_KEPT: usize = 8;

impl<B: Backend> Allocator<B> {
    /// The gate of a pool.
    ///
    /// # Errors
    /// The pool was released or never made.
    pub fn pool_gate(&self, pool: PoolId) -> Result<PoolGate, PoolError> {
        self.pools.lock().gate(pool)
    }

    /// Enters a pool: until [`PoolGate::leave`] the pool lends nothing. With a `stream`, the caller is
    /// about to submit work to it that uses memory of the pool, free or not. Without one, it is about
    /// to record a graph. On success all memory of the pool is there.
    ///
    /// # Errors
    /// Out of memory, or what the device answers: the caller has then not entered.
    pub fn pool_enter(
        &self,
        gate: &PoolGate,
        stream: Option<StreamId>,
    ) -> Result<(), AllocError<B::Error>> {
        if !gate.enter(stream) {
            return Ok(());
        }
        let result = self.enter_slow(gate, stream);
        if result.is_err() {
            gate.leave();
        }
        result
    }

    /// As [`pool_enter`](Self::pool_enter), if this needs no preparation: it calls neither the device
    /// nor observers. Returns false if it does; the caller has then not entered.
    pub fn pool_try_enter(&self, gate: &PoolGate, stream: StreamId) -> bool {
        if gate.enter(Some(stream)) {
            gate.leave();
            return false;
        }
        true
    }

    #[cold]
    fn enter_slow(
        &self,
        gate: &PoolGate,
        stream: Option<StreamId>,
    ) -> Result<(), AllocError<B::Error>> {
        self.bring_home(gate)?;
        if stream.is_none() || gate.is_shared() {
            // A recording of a graph has no stream to order: its memory may be used on any, later.
            for borrower in gate.borrowers() {
                self.wait_submitted(borrower)?;
            }
            gate.no_borrowers();
        }
        stream.map_or(Ok(()), |stream| self.note_user(gate, stream))
    }

    /// Makes a stream that works on a pool's memory wait for the streams that had borrowed it.
    pub(super) fn note_user(
        &self,
        gate: &PoolGate,
        stream: StreamId,
    ) -> Result<(), AllocError<B::Error>> {
        if !gate.note(stream) {
            return Ok(());
        }
        for borrower in gate.borrowers() {
            if borrower != stream && !self.order(stream, borrower) {
                self.wait_submitted(borrower)?;
            }
        }
        gate.ordered(stream);
        Ok(())
    }

    /// Waits for all work that a stream was given so far.
    fn wait_submitted(&self, stream: StreamId) -> Result<(), AllocError<B::Error>> {
        let fence = self.backend.submitted(stream);
        let fence = fence.map_err(AllocError::Backend)?;
        if !self.backend.fence_done(&fence) {
            let waited = self.backend.fence_wait(&fence);
            self.ledger.lock().counts.host_waits += 1;
            waited.map_err(AllocError::Backend)?;
        }
        Ok(())
    }

    /// The idle chunks of graphs' pools, for a request of another arena. Pools whose users have
    /// unfinished work are included only with `may_wait`.
    pub(super) fn offers_of_pools(&self, may_wait: bool) -> Vec<Offer> {
        let mut all = Vec::new();
        let gates = self.pools.lock().of_graphs();
        for (gate, arenas) in gates {
            if !gate.lend() {
                continue;
            }
            let users = gate.users();
            let finished: Vec<StreamId> = (users.iter().copied().chain(gate.borrowers()))
                .filter(|&stream| self.has_finished(stream))
                .collect();
            let all_finished = users.iter().all(|user| finished.contains(user));
            if users.len() > USERS_KEPT {
                gate.finished(&finished);
            }
            for id in arenas {
                let owner = self.arenas.lock(id).owner;
                let Some(Owner { stream, .. }) = owner else {
                    continue;
                };
                let ready = may_wait || all_finished && self.has_finished(stream);
                if !ready {
                    continue;
                }
                let mut arena = self.arenas.lock(id);
                if arena.owner == owner && !arena.closed && !arena.is_asleep() {
                    arena.settle_all();
                    all.extend(offers(&mut arena, stream));
                }
            }
        }
        all
    }

    /// If an arena is of a pool, makes a stream wait for all streams that work on this pool.
    pub(super) fn order_behind_users(&self, stream: StreamId, id: ArenaId) -> bool {
        let owner = self.arenas.lock(id).owner;
        let Some(pool) = owner.and_then(|owner| owner.pool) else {
            return true;
        };
        let gate = self.pools.lock().gate(pool);
        let Ok(gate) = gate else { return false };
        let users = gate.users().into_iter();
        let mut others = users.filter(|&user| user != stream);
        others.all(|user| self.order(stream, user))
    }

    /// Brings all lent chunks of a pool home, or puts other memory in their place.
    pub(super) fn bring_home(&self, gate: &PoolGate) -> Result<(), AllocError<B::Error>> {
        if self.collect_guests(gate, false) {
            return Ok(());
        }
        let Some(memory) = self.memory() else {
            return Ok(());
        };
        let parted = self.evict(memory, gate, false)?.is_some();
        let arenas = self.pools.lock().arenas(gate.pool());
        let away = self.places(&arenas, true).into_iter();
        let needed = away.map(|(_, chunk, _)| chunk.size).sum();
        if parted
            && self.page_in_somehow(memory, &arenas, needed)?
            && self.collect_guests(gate, false)
        {
            return Ok(());
        }
        Err(self.out_of_memory(needed, StreamId(0)))
    }

    /// Brings the lent chunks of a pool home that are idle. With `at_once`, only from streams without
    /// unfinished work, so that nobody has to wait. Returns whether all chunks are home.
    fn collect_guests(&self, gate: &PoolGate, at_once: bool) -> bool {
        let growth = self.growth.lock();
        if !gate.is_lent() {
            return true;
        }
        let arenas = self.pools.lock().arenas(gate.pool());
        let users = gate.users();
        for id in self.arenas.ids() {
            let owner = {
                let holder = self.arenas.lock(id);
                holder.owner.filter(|_| holder.has_guests())
            };
            let Some(owner) = owner.filter(|it| !at_once || self.has_finished(it.stream)) else {
                continue;
            };
            let mut holder = self.arenas.lock(id);
            let guests = holder.take_guests(|of| arenas.contains(&of));
            drop(holder);
            if guests.is_empty() {
                continue;
            }
            let ordered = users.iter().copied();
            let ordered: Vec<StreamId> = ordered
                .filter(|&user| user == owner.stream || self.order(user, owner.stream))
                .collect();
            gate.comes_from(owner.stream, &ordered);
            self.come_home(&guests);
        }
        let mut arenas = arenas.into_iter();
        let all = arenas.all(|id| self.arenas.lock(id).has_all_chunks());
        if all {
            gate.all_home();
        }
        drop(growth);
        all
    }

    /// Gives the chunks of a pool that others use to these users, after a wait for the work on the
    /// pool. The homes of the chunks have no memory then. If the pool's memory is `leaving`, it also
    /// gives away the chunks that views in use show.
    pub(super) fn evict(
        &self,
        memory: Memory<'_, B>,
        gate: &PoolGate,
        leaving: bool,
    ) -> Supplied<(), B::Error> {
        if !gate.has_lent() {
            return Ok(Some(()));
        }
        let arenas = self.pools.lock().arenas(gate.pool());
        let owners = arenas.iter().filter_map(|&id| self.arenas.find(id)?.owner);
        let mut streams: Vec<StreamId> = owners.map(|owner| owner.stream).collect();
        // A pool whose memory leaves is not replayed from any more. What others have used and given back may
        // fall to an heir then, who does not wait for them.
        streams.extend(if leaving {
            gate.borrowers()
        } else {
            gate.users()
        });
        for stream in streams {
            self.wait_submitted(stream)?;
        }
        self.poll_and_tell();
        self.collect_guests(gate, false);
        let growth = self.growth.lock();
        // The arenas are listed anew: of a released pool some may have been forgotten meanwhile.
        let arenas = self.pools.lock().arenas(gate.pool());
        for &id in &arenas {
            self.arenas.lock(id).settle_all();
        }
        let heirs = self.heirs(&growth, &arenas, leaving);
        let mut events = Vec::new();
        let mut result = Ok(Some(()));
        for (arena, chunk, class) in self.places(&arenas, false) {
            if let Some(&heir) = heirs.get(&(arena, chunk.home))
                && matches!(result, Ok(Some(())))
            {
                let piece = Piece { arena, chunk };
                gate.lacks();
                result = self.bequeath(&growth, memory, &piece, class, heir, &mut events);
            }
        }
        if leaving {
            self.send_all_views(&growth);
        }
        drop(growth);
        self.tell(&events);
        result
    }

    /// The arenas that have mapped chunks of a pool and use them, by arena and home of the chunk. If
    /// the pool's memory is `leaving`, also the arenas that show other chunks of it in a view that is
    /// in use.
    pub(super) fn heirs(
        &self,
        _: &MutexGuard<'_, ()>,
        arenas: &[ArenaId],
        leaving: bool,
    ) -> HashMap<(ArenaId, u64), ArenaId> {
        let mut heirs = HashMap::new();
        for arena in self.arenas.all() {
            let heir = arena.id();
            if arenas.contains(&heir) {
                continue;
            }
            if leaving {
                // Rather than one that uses it now, to whom it falls otherwise.
                for piece in arena.shown() {
                    heirs.entry(piece).or_insert(heir);
                }
            }
            heirs.extend(arena.guests_in_use().map(|piece| (piece, heir)));
        }
        // A chunk on its way home falls to the stream that it waits for.
        let waiting = self.pending.lock().homes(arenas);
        for ((arena, home, size), stream) in waiting {
            let owner = Owner { pool: None, stream };
            let heir = self.arenas.of(owner).id();
            let chunks = self.places(&[arena], false).into_iter();
            let homes = chunks.map(|(_, chunk, _)| chunk.home);
            let its = homes.filter(|it| (home..home + size).contains(it));
            heirs.extend(its.map(|home| ((arena, home), heir)));
        }
        heirs
    }

    /// Makes a chunk part of another arena, unless the chunk is in use at its home. No work of its
    /// arena may use it. Its home has no memory then.
    pub(super) fn bequeath(
        &self,
        _: &MutexGuard<'_, ()>,
        memory: Memory<'_, B>,
        piece: &Piece,
        class: Class,
        heir: ArenaId,
        events: &mut Vec<Event>,
    ) -> Supplied<(), B::Error> {
        let &Piece { arena, chunk } = piece;
        let lent = {
            let mut arena = self.arenas.lock(arena);
            let lent = arena.is_lent(chunk.home);
            // A chunk of a sleeping arena stays as it is.
            if !lent && !arena.is_asleep() && !arena.lend(chunk.home, chunk.size) {
                return Ok(Some(()));
            }
            lent
        };
        let plan = match self.move_chunk(memory, &chunk, class, heir) {
            Ok(Some(plan)) => plan,
            failed => {
                let mut arena = self.arenas.lock(arena);
                if !lent && !arena.is_asleep() {
                    arena.come_home(chunk.home, chunk.size);
                }
                return failed.map(|_| None);
            }
        };
        let moved = Piece {
            arena: heir,
            chunk: Chunk {
                home: plan.address,
                ..chunk
            },
        };
        let freed = {
            let mut arena = self.arenas.lock(arena);
            arena.went_away(&chunk);
            arena.event(EventKind::SegmentFree, chunk.home, chunk.size)
        };
        let taken = {
            let mut heir = self.arenas.lock(heir);
            heir.grown_lent(&plan, &[moved.chunk]);
            heir.event(EventKind::SegmentAlloc, plan.address, chunk.size)
        };
        for mut arena in self.arenas.all() {
            arena.rename_piece(piece, &moved);
        }
        if lent {
            let (from, to) = ((arena, chunk.home), (heir, plan.address));
            self.pending.lock().rename_home(from, to, chunk.size);
        } else {
            self.arenas.lock(heir).come_home(plan.address, chunk.size);
        }
        {
            let mut ledger = self.ledger.lock();
            ledger.counts.maps += 1;
            ledger.counts.unmaps += 1;
        }
        let told = [freed, taken].into_iter().flatten();
        events.extend(told.map(|event| self.with_figures(event)));
        Ok(Some(()))
    }

    /// Maps a chunk where its heir has room, and ends its mapping at home.
    fn move_chunk(
        &self,
        memory: Memory<'_, B>,
        chunk: &Chunk,
        class: Class,
        heir: ArenaId,
    ) -> Supplied<Growth, B::Error> {
        let Some(plan) = self.plan(memory, heir, class, chunk.size, false)? else {
            return Ok(None);
        };
        let mapped = memory.map(plan.address, &[chunk.physical]).and_then(|()| {
            let unmapped = memory.try_unmap(chunk.home, chunk.size);
            unmapped.inspect_err(|_| memory.unmap(plan.address, chunk.size))
        });
        match mapped {
            Ok(()) => Ok(Some(plan)),
            Err(error) if self.backend.is_out_of_memory(&error) => Ok(None),
            Err(error) => Err(AllocError::Backend(error)),
        }
    }

    /// Whether views of others may show memory of a pool's arena.
    pub(super) fn has_lent(&self, arena: ArenaId) -> bool {
        let gates = self.pools.lock().gates_of(&[arena]);
        gates.iter().any(PoolGate::has_lent)
    }

    /// Leaves the memory of a closed pool that others use to these users. What cannot be separated now
    /// goes with the next [`empty_cache`](Self::empty_cache).
    pub(super) fn part_from_guests(&self, pool: PoolId) {
        let Some(memory) = self.memory() else { return };
        let gate = self.pools.lock().kept_gate(pool);
        let Some(gate) = gate else { return };
        let _ = self.evict(memory, &gate, true);
        let _growth = self.growth.lock();
        let arenas = self.pools.lock().arenas(pool);
        for (id, chunk, _) in self.places(&arenas, true) {
            let mut arena = self.arenas.lock(id);
            if arena.is_lent(chunk.home) {
                arena.chunk_left(chunk.home);
            }
        }
    }

    /// Prepares the growth of a graph's pool: its lent chunks that are idle return home, and other
    /// arenas give back as much idle memory as it needs.
    pub(super) fn before_growth(&self, owner: Owner, request: &Request) {
        let (Some(pool), Some(memory)) = (owner.pool, self.memory()) else {
            return;
        };
        let gate = self.pools.lock().gate(pool);
        let Some(gate) = gate.ok().filter(PoolGate::is_of_graphs) else {
            return;
        };
        self.collect_guests(&gate, true);
        let missing = {
            let mut arena = self.arenas.of(owner);
            arena.settle_quick(request.class);
            if arena.largest_free_block(request.class) >= request.size {
                return;
            }
            arena.missing(request.class, request.size, memory.granularity())
        };
        self.give_back_at_once(missing);
    }
}
