//! The steps that follow when an arena cannot serve a request, from asking the device to the error.

use outrigger_locks::MutexGuard;

use super::Allocator;
use crate::arena::{Arena, Owner};
use crate::arenas::ArenaId;
use crate::config::{Class, Request};
use crate::{AllocError, Allocation, Backend, Context, Event, EventKind, OutOfMemory, StreamId};

/// The number of labels that an out-of-memory error names.
const HOLDERS: usize = 5;

impl<B: Backend> Allocator<B> {
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_slow(
        &self,
        request: &Request,
        owner: Owner,
    ) -> Result<Allocation, AllocError<B::Error>> {
        self.collect(request.size);
        self.before_growth(owner, request);
        let context = self.history.context();
        let found = match self.supply(request, owner, false, &context)? {
            Some(found) => Some(found),
            None => self.under_pressure(request, owner, &context)?,
        };
        // Memory was taken or lent: whatever was counted may be a new peak.
        self.settle();
        found.ok_or_else(|| self.out_of_memory(request.requested, owner.stream))
    }

    /// Gives idle memory back if more than the configured part of a limit would be held.
    fn collect(&self, needed: u64) {
        let (limit, reserved) = {
            let ledger = self.ledger.lock();
            (ledger.limit, ledger.reserved())
        };
        if let Some(threshold) = self.config.collects_above(limit) {
            let surplus = (reserved + needed).saturating_sub(threshold);
            if surplus > 0 {
                self.give_back(surplus);
            }
        }
    }

    fn under_pressure(
        &self,
        request: &Request,
        owner: Owner,
        context: &Option<Context>,
    ) -> Result<Option<Allocation>, AllocError<B::Error>> {
        self.ledger.lock().counts.alloc_retries += 1;
        if let Some(found) = self.supply(request, owner, true, context)? {
            return Ok(Some(found));
        }
        // The first try is for as much as is wanted, the second one for all there is.
        for bytes in [request.size, u64::MAX] {
            if self.give_back(bytes) > 0
                && let Some(found) = self.supply(request, owner, true, context)?
            {
                return Ok(Some(found));
            }
        }
        self.reclaim();
        if let Some(found) = self.supply(request, owner, true, context)? {
            return Ok(Some(found));
        }
        if self.backend.pressure(request.size) {
            self.reclaim();
            return self.supply(request, owner, true, context);
        }
        Ok(None)
    }

    /// Waits for all pending blocks and gives all idle memory back. Returns how many bytes it gave
    /// back.
    pub(super) fn reclaim(&self) -> u64 {
        let mut bytes = 0;
        // A fence that passes may be the last that kept a chunk from home, and the way home waits for a
        // fence, too.
        for _ in 0..3 {
            let guests = self.send_guests_home();
            bytes += self.wait_pending().unwrap_or(0);
            bytes += self.give_back(u64::MAX);
            if !guests {
                break;
            }
        }
        bytes
    }

    /// Gives memory of the shared arenas back that is idle now, once the work of its streams has
    /// finished: up to `wanted` bytes. Returns how many bytes it gave back.
    pub(super) fn give_back(&self, wanted: u64) -> u64 {
        self.give_back_of(wanted, |_| true)
    }

    /// Does what [`give_back`](Self::give_back) does, but only of streams without unfinished work, so
    /// that nobody waits.
    pub(super) fn give_back_at_once(&self, wanted: u64) -> u64 {
        self.give_back_of(wanted, |stream| self.has_finished(stream))
    }

    fn give_back_of(&self, wanted: u64, of: impl Fn(StreamId) -> bool) -> u64 {
        let growth = self.growth.lock();
        let shown = self.settle_and_show(&growth);
        let mut sent = 0;
        for id in self.arenas.ids() {
            if sent < wanted && self.gives_back(id, &of) {
                sent += self.send_idle(&growth, id, wanted - sent, &shown);
            }
        }
        if sent > 0 {
            self.send_all_views(&growth);
        }
        drop(growth);
        self.wait_leaving()
    }

    /// Sends idle chunks home that views of other arenas show. Returns whether views show any chunks of
    /// other arenas, idle or not.
    fn send_guests_home(&self) -> bool {
        let _growth = self.growth.lock();
        let mut any = false;
        for id in self.arenas.ids() {
            let mut arena = self.arenas.lock(id);
            any |= arena.has_guests();
            let guests = arena.take_guests(|_| true);
            let owner = arena.owner;
            drop(arena);
            if let Some(owner) = owner {
                self.send_home(owner.stream, &guests);
            }
        }
        any
    }

    /// Whether the idle memory of an arena may be given back to the device.
    fn gives_back(&self, id: ArenaId, of: impl Fn(StreamId) -> bool) -> bool {
        let (owner, closed) = {
            let arena = self.arenas.lock(id);
            (arena.owner, arena.closed)
        };
        owner.is_some_and(|owner| (closed || owner.pool.is_none()) && of(owner.stream))
    }

    #[cold]
    pub(super) fn out_of_memory(&self, requested: u64, stream: StreamId) -> AllocError<B::Error> {
        let device = self.backend.memory_info();
        let largest = |mut arena: MutexGuard<'_, Arena>| {
            [Class::Small, Class::Large].map(|class| {
                arena.settle_quick(class);
                arena.largest_free_block(class)
            })
        };
        let largest = self.arenas.all().flat_map(largest).max();
        let mut error = {
            let mut ledger = self.ledger.lock();
            ledger.take_over(&self.sums());
            ledger.counts.ooms += 1;
            OutOfMemory {
                requested,
                reserved: ledger.reserved(),
                allocated: ledger.allocated(),
                free: ledger.cached(),
                largest_free_block: largest.unwrap_or(0),
                limit: ledger.limit,
                device,
                holders: Vec::new(),
            }
        };
        if self.history.is_on() {
            let free = device.map_or(0, |device| device.free);
            self.history.out_of_memory(requested, stream, free);
            error.holders = self.history.top_holders(HOLDERS);
        }
        self.backend.observe(&Event {
            kind: EventKind::OutOfMemory,
            address: 0,
            size: requested,
            stream,
            allocated_bytes: error.allocated,
            reserved_bytes: error.reserved,
        });
        AllocError::OutOfMemory(Box::new(error))
    }
}
