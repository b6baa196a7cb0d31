//! Lending: a view shows idle chunks that lie apart one after another, and so meets a request.
//!
//! - Chunks of the stream itself need no wait: the stream's order keeps old and new use apart, at any address.
//! - Chunks that another stream has used need a wait on the device for the work of that stream so far. Small
//!   requests are not worth a wait; they take only chunks of streams without unfinished work.
//! - Pending blocks of the arena need a wait, too, but no view.
//! - Only what is missing then is taken from the device.
//!
//! All of this is for the shared memory. The arenas of a pool never borrow; they lend only between the
//! replays of graphs.

use std::sync::Arc;

use outrigger_locks::MutexGuard;

use super::Allocator;
use super::supply::{Need, Supplied};
use crate::arena::{Arena, Owner};
use crate::arenas::ArenaId;
use crate::config::{Class, Request};
use crate::segment::{Piece, homes};
use crate::{AllocError, Allocation, Backend, Event, Physical, StreamId};

/// An arena keeps unused views mapped while all its views together have at most this many places, because
/// systems limit the mappings of a process.
const SLOTS_MAX: usize = 2048;

/// An idle chunk, with the arena in which it is idle.
#[derive(Clone, Copy)]
pub(super) struct Offer {
    /// The arena that may use it now.
    holder: ArenaId,
    /// The stream of that arena. It may still work on the chunk.
    stream: StreamId,
    piece: Piece,
    /// The address in a view of the holder; `None`: the chunk is idle at home.
    shown: Option<u64>,
}

impl Offer {
    /// Whether `next` follows it directly at the place where both are idle.
    fn precedes(&self, next: &Self) -> bool {
        let follows = match (self.shown, next.shown) {
            (None, None) => self.piece.precedes(&next.piece),
            (Some(address), Some(next)) => address + self.piece.chunk.size == next,
            _ => false,
        };
        follows && self.holder == next.holder
    }
}

impl<B: Backend> Allocator<B> {
    /// Serves a request by idle chunks, if this takes less memory from the device than growing a span of the
    /// arena.
    pub(super) fn lend(
        &self,
        growth: &MutexGuard<'_, ()>,
        need: &Need<'_, B>,
        events: &mut Vec<Event>,
    ) -> Supplied<Allocation, B::Error> {
        let &Need {
            memory,
            request,
            owner,
            id,
            tight,
        } = need;
        let mut arena = self.arenas.lock(id);
        arena.settle_all();
        let settled = arena.alloc(request);
        let reused = match settled {
            Some(_) => None,
            None => arena.reuse_view(request),
        };
        if let Some(found) = settled.or(reused) {
            drop(arena);
            self.ledger.lock().counts.view_reuses += u64::from(reused.is_some());
            return Ok(Some(found));
        }
        let missing = arena.missing(request.class, request.size, memory.granularity());
        // Idle chunks must have as much for lending to pay.
        let saving = self.config.saving(request.size, tight);
        let least = (request.size + saving).saturating_sub(missing);
        let mut offers = if arena.idle_bytes() < least {
            Vec::new()
        } else {
            offers(&mut arena, owner.stream)
        };
        drop(arena);
        if bytes(&offers) < request.size {
            // A stream that waits for another is worth it for memory that matters.
            let may_wait = tight || request.class == Class::Large;
            if may_wait && let Some(found) = self.overtake(id, request, owner) {
                return Ok(Some(found));
            }
            offers.extend(self.offers_of_others(need, may_wait));
            if bytes(&offers) < request.size && self.config.lends_graph_pools() {
                offers.extend(self.offers_of_pools(may_wait));
            }
        }
        if let Some(found) = self.reuse_with_guests(id, request, owner, &offers) {
            return Ok(Some(found));
        }
        let offers = choose(&offers, request);
        let saved = missing.saturating_sub(request.size.saturating_sub(bytes(&offers)));
        if offers.is_empty() || saved < saving {
            return Ok(None);
        }
        let mut pieces = self.take(owner.stream, &offers);
        let have: u64 = pieces.iter().map(|piece| piece.chunk.size).sum();
        if have < request.size {
            let lacking = (request.size - have).next_multiple_of(memory.granularity());
            match self.take_new(need, lacking, events) {
                Ok(Some(new)) => pieces.extend(new),
                failed => {
                    self.send_home(owner.stream, &pieces);
                    return failed.map(|_| None);
                }
            }
        }
        self.show(growth, need, &pieces)
    }

    /// Takes the offered chunks that are still idle, and makes the stream wait for the streams that used them.
    fn take(&self, stream: StreamId, offers: &[Offer]) -> Vec<Piece> {
        // Chunks are taken out of use first: what their streams are given from here on does not touch
        // them.
        let mut idle: Vec<&[Offer]> = Vec::new();
        for run in offers.chunk_by(Offer::precedes) {
            let mut holder = self.arenas.lock(run[0].holder);
            if take_out(&mut holder, run) {
                idle.push(run);
            } else if run.len() > 1 {
                // Some chunks of the run may be in use by now.
                idle.extend(run.chunks(1).filter(|one| take_out(&mut holder, one)));
            }
        }
        let mut known: Vec<(ArenaId, bool)> = Vec::new();
        let mut taken = Vec::new();
        for run in idle {
            let Offer {
                holder,
                stream: other,
                shown,
                ..
            } = run[0];
            let before = known.iter().find(|(known, _)| *known == holder);
            let ordered = match before {
                Some(&(_, ordered)) => ordered,
                None => {
                    let ordered = (other == stream || self.order(stream, other))
                        && self.order_behind_users(stream, holder);
                    known.push((holder, ordered));
                    ordered
                }
            };
            let pieces = run.iter().map(|offer| offer.piece);
            match shown {
                _ if ordered => taken.extend(pieces),
                Some(_) => self.send_home(other, &pieces.collect::<Vec<_>>()),
                None => self.come_home(&pieces.collect::<Vec<_>>()),
            }
        }
        taken
    }

    /// Returns lent chunks to their arenas at once. Only the streams of these arenas have used them.
    pub(super) fn come_home(&self, pieces: &[Piece]) {
        for (id, home, size) in homes(pieces) {
            let mut arena = self.arenas.lock(id);
            arena.come_home(home, size);
            if arena.closed {
                self.pending.lock().leave(id);
            }
        }
    }

    /// Takes new chunks from the device, for a view: they are lent from the start.
    fn take_new(
        &self,
        need: &Need<'_, B>,
        bytes: u64,
        events: &mut Vec<Event>,
    ) -> Supplied<Vec<Piece>, B::Error> {
        let class = need.request.class;
        let Some(plan) = self.plan(need.memory, need.id, class, bytes, false)? else {
            return Ok(None);
        };
        let Some(chunks) = self.map_new(need, &plan, bytes, events)? else {
            return Ok(None);
        };
        let id = need.id;
        self.arenas.lock(id).grown_lent(&plan, &chunks);
        let pieces = chunks.into_iter().map(|chunk| Piece { arena: id, chunk });
        Ok(Some(pieces.collect()))
    }

    /// Maps lent pieces one after another as a new view, and serves the request there.
    fn show(
        &self,
        growth: &MutexGuard<'_, ()>,
        need: &Need<'_, B>,
        pieces: &[Piece],
    ) -> Supplied<Allocation, B::Error> {
        let &Need {
            memory,
            request,
            owner,
            id,
            ..
        } = need;
        let refused = |error| {
            self.send_home(owner.stream, pieces);
            if self.backend.is_out_of_memory(&error) {
                return Ok(None);
            }
            Err(AllocError::Backend(error))
        };
        let size = pieces.iter().map(|piece| piece.chunk.size).sum();
        let address = match memory.reserve(size, memory.granularity()) {
            Ok(address) => address,
            Err(error) => return refused(error),
        };
        let physical: Vec<Physical> = pieces.iter().map(|piece| piece.chunk.physical).collect();
        if let Err(error) = memory.map(address, &physical) {
            memory.release(address, size);
            return refused(error);
        }
        if let Err(error) = self.add_route(address, size, id) {
            self.send_home(owner.stream, pieces);
            return Err(error);
        }
        let found = self.arenas.lock(id).add_view(address, pieces, request);
        {
            let mut ledger = self.ledger.lock();
            ledger.counts.maps += 1;
            ledger.counts.views += 1;
        }
        self.send_views(growth, id, SLOTS_MAX);
        Ok(Some(found))
    }

    /// Serves a request by a hole of a view that shows chunks of other arenas, if all these chunks are offered.
    fn reuse_with_guests(
        &self,
        id: ArenaId,
        request: &Request,
        owner: Owner,
        offers: &[Offer],
    ) -> Option<Allocation> {
        // Whether it can be at all, before offers are sorted.
        if !self.arenas.lock(id).may_fit_guests(request) {
            return None;
        }
        let home = |piece: &Piece| (piece.chunk.home, piece.arena);
        // Runs of chunks that follow each other at home are far fewer than chunks.
        let runs = offers.chunk_by(|offer, next| offer.piece.precedes(&next.piece));
        let mut sorted: Vec<&[Offer]> = runs.collect();
        sorted.sort_unstable_by_key(|run| home(&run[0].piece));
        let offer = |piece: &Piece| {
            let after = sorted.partition_point(|run| home(&run[0].piece) <= home(piece));
            let run = sorted[after.checked_sub(1)?];
            let place = run.binary_search_by_key(&home(piece), |offer| home(&offer.piece));
            let offer = &run[place.ok()?];
            (offer.piece == *piece).then_some(offer)
        };
        let available = |piece: &Piece| offer(piece).is_some();
        let fitting = self.arenas.lock(id).fitting_hole(request, available);
        let (hole, pieces) = fitting?;
        let offered = pieces.iter().filter_map(|piece| offer(piece).copied());
        let offered: Vec<Offer> = offered.collect();
        let taken = self.take(owner.stream, &offered);
        if taken.len() < pieces.len() {
            self.send_home(owner.stream, &taken);
            return None;
        }
        self.ledger.lock().counts.view_reuses += 1;
        let mut arena = self.arenas.lock(id);
        Some(arena.fill_hole(hole, &pieces, request))
    }

    /// Serves a request by pending blocks of its own arena: the arena's stream waits on the device for the
    /// streams for which these blocks are pending.
    fn overtake(&self, id: ArenaId, request: &Request, owner: Owner) -> Option<Allocation> {
        while self.overtake_oldest(id, owner.stream) {
            let found = self.arenas.lock(id).alloc(request);
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Makes the stream of an arena wait for the fence of the arena's oldest pending block. This block and all
    /// before it can then be used again. `false` if there is none, or the stream cannot wait.
    fn overtake_oldest(&self, id: ArenaId, stream: StreamId) -> bool {
        let oldest = self.pending.lock().oldest_of(id);
        let Some((other, fence)) = oldest else {
            return false;
        };
        if !self.backend.order(stream, &fence) {
            return false;
        }
        self.ledger.lock().counts.stream_waits += 1;
        let blocks = self.pending.lock().take_behind(other, id, &fence);
        let mut arena = self.arenas.lock(id);
        for &(block, _) in &blocks {
            // The arena is of no released pool: those are not allocated from.
            let _ = arena.pass(block);
            self.record_completed(&arena, block);
        }
        true
    }

    /// The idle chunks of the other shared arenas. Streams with unfinished work offer chunks only with
    /// `may_wait`: first the chunks that have been idle since this was asked last. If these are not enough, they
    /// offer all idle chunks, and also their pending blocks, for which the stream of each arena then waits.
    fn offers_of_others(&self, need: &Need<'_, B>, may_wait: bool) -> Vec<Offer> {
        let mut all = Vec::new();
        for again in [false, true] {
            all.clear();
            for other in self.arenas.ids() {
                if other == need.id {
                    continue;
                }
                let owner = self.arenas.lock(other).owner;
                let Some(Owner { pool: None, stream }) = owner else {
                    continue;
                };
                while again && self.overtake_oldest(other, stream) {}
                let all_idle = need.tight || self.has_finished(stream);
                if !all_idle && !may_wait {
                    continue;
                }
                let mut arena = self.arenas.lock(other);
                // Asked for the second time, it is all that was idle the first time.
                let classes = [Class::Small, Class::Large];
                let unused = classes.map(|class| arena.tally(class).spare()).iter().sum();
                let spare = if all_idle { u64::MAX } else { unused };
                if spare == 0 {
                    continue;
                }
                arena.settle_all();
                let mut its = 0;
                all.extend(offers(&mut arena, stream).into_iter().take_while(|offer| {
                    its += offer.piece.chunk.size;
                    its <= spare
                }));
            }
            if !may_wait || bytes(&all) >= need.request.size {
                break;
            }
        }
        all
    }

    /// Whether a stream has finished all its work.
    pub(super) fn has_finished(&self, stream: StreamId) -> bool {
        let fence = self.backend.fence(stream);
        fence.is_ok_and(|fence| self.backend.fence_done(&fence))
    }

    /// Makes a stream wait on the device for all work that another stream has been given so far.
    pub(super) fn order(&self, stream: StreamId, other: StreamId) -> bool {
        let Ok(fence) = self.backend.fence(other).map(Arc::new) else {
            return false;
        };
        if self.backend.fence_done(&fence) {
            return true;
        }
        let ordered = self.backend.order(stream, &fence);
        self.ledger.lock().counts.stream_waits += u64::from(ordered);
        ordered
    }
}

/// Takes a run of offers out of use, if all are still idle.
fn take_out(holder: &mut Arena, run: &[Offer]) -> bool {
    match run[0].shown {
        None => holder.lend(run[0].piece.chunk.home, bytes(run)),
        Some(address) => holder.empty(address, bytes(run)),
    }
}

/// The idle chunks of an arena, and the idle chunks of other arenas in its views.
pub(super) fn offers(arena: &mut Arena, stream: StreamId) -> Vec<Offer> {
    let holder = arena.id();
    let guests = arena.idle_guests();
    let own = arena.idle_chunks();
    let count: usize = own.iter().map(|run| run.len()).sum();
    let mut all = Vec::with_capacity(count + guests.len());
    for run in own {
        all.extend(run.iter().map(|&chunk| Offer {
            holder,
            stream,
            piece: Piece {
                arena: holder,
                chunk,
            },
            shown: None,
        }));
    }
    all.extend(guests.into_iter().map(|slot| Offer {
        holder,
        stream,
        piece: slot.piece,
        shown: Some(slot.address),
    }));
    all
}

fn bytes(offers: &[Offer]) -> u64 {
    offers.iter().map(|offer| offer.piece.chunk.size).sum()
}

/// The offers that meet a request, in their order; the last one is the smallest that is large enough. All
/// offers, if together they are too small.
fn choose(offers: &[Offer], request: &Request) -> Vec<Offer> {
    let size = |offer: &Offer| offer.piece.chunk.size;
    let largest = offers.iter().map(size).max().unwrap_or(0);
    let mut chosen = Vec::new();
    let mut lacking = request.size;
    let mut rest = offers.iter();
    while lacking > 0 {
        let last = if lacking > largest {
            None
        } else {
            let enough = rest.clone().filter(|offer| size(offer) >= lacking);
            enough.min_by_key(|offer| size(offer))
        };
        let Some(offer) = last.or_else(|| rest.next()) else {
            break;
        };
        lacking = lacking.saturating_sub(size(offer));
        chosen.push(*offer);
    }
    chosen
}
