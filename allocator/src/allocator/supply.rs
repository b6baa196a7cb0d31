//! Gets more memory for an arena: by lending idle chunks, or from the device.
//!
//! All of this happens under the growth lock. If the device refuses a call, whichever it is, the arenas stay
//! as they were.

use outrigger_locks::MutexGuard;

use super::Allocator;
use crate::arena::{Growth, Owner};
use crate::arenas::ArenaId;
use crate::config::{Class, Config, Request};
use crate::segment::Chunk;
use crate::{AllocError, Allocation, Backend, Context, Event, EventKind, Physical, VirtualMemory};

/// A device's virtual memory.
pub(super) type Memory<'a, B> = &'a dyn VirtualMemory<Error = <B as Backend>::Error>;

/// A request that an arena could not serve, over a device with virtual memory.
pub(super) struct Need<'a, B: Backend> {
    pub(super) memory: Memory<'a, B>,
    pub(super) request: &'a Request,
    /// The owner of the arena, and the arena's name.
    pub(super) owner: Owner,
    pub(super) id: ArenaId,
    /// The device has refused before: every idle chunk counts.
    pub(super) tight: bool,
}

/// The memory that the device gave, or the reason why it gave none; `None`: it has not enough memory.
pub(super) type Supplied<T, E> = Result<Option<T>, AllocError<E>>;

impl<B: Backend> Allocator<B> {
    /// The virtual memory of the device, if it has some and the configuration wants it.
    pub(super) fn memory(&self) -> Option<Memory<'_, B>> {
        let memory = self.backend.virtual_memory();
        memory.filter(|_| self.config.expandable())
    }

    /// Serves a request that its arena could not serve: by memory that has become free meanwhile, by lending,
    /// or by memory from the device. `tight`: the device has refused before. Every idle chunk counts then, and
    /// segments may be as small as the request.
    pub(super) fn supply(
        &self,
        request: &Request,
        owner: Owner,
        tight: bool,
        context: &Option<Context>,
    ) -> Supplied<Allocation, B::Error> {
        // Before anything else: what is given back may be had again at the same address.
        self.poll_and_tell();
        let growth = self.growth.lock();
        let mut events = Vec::new();
        let result = self.supply_locked(&growth, request, owner, tight, &mut events);
        if self.history.is_on()
            && let Ok(Some(found)) = &result
        {
            self.record_alloc(owner, request.requested, found, context.clone());
        }
        drop(growth);
        self.tell(&events);
        result
    }

    fn supply_locked(
        &self,
        growth: &MutexGuard<'_, ()>,
        request: &Request,
        owner: Owner,
        tight: bool,
        events: &mut Vec<Event>,
    ) -> Supplied<Allocation, B::Error> {
        let mut arena = self.arenas.of(owner);
        let id = arena.id();
        let found = arena.alloc(request);
        drop(arena);
        if let Some(pool) = owner.pool {
            self.pool_has(growth, pool, id);
        }
        if found.is_some() {
            return Ok(found);
        }
        let Some(memory) = self.memory() else {
            return self.segment(id, request, tight, events);
        };
        let need = Need {
            memory,
            request,
            owner,
            id,
            tight,
        };
        // Graphs of a pool replay at fixed addresses, whose memory must never be elsewhere.
        if owner.pool.is_none()
            && let Some(found) = self.lend(growth, &need, events)?
        {
            return Ok(Some(found));
        }
        self.extend(&need, events)
    }

    /// Takes a segment from the device.
    fn segment(
        &self,
        id: ArenaId,
        request: &Request,
        tight: bool,
        events: &mut Vec<Event>,
    ) -> Supplied<Allocation, B::Error> {
        let [roomy, exact] = self.config.segment_sizes(request);
        let sizes = if tight { &[roomy, exact][..] } else { &[roomy] };
        for &size in sizes {
            if !self.ledger.lock().has_room(size) {
                continue;
            }
            let address = match self.backend.segment_alloc(size) {
                Ok(address) => address,
                Err(error) if self.backend.is_out_of_memory(&error) => continue,
                Err(error) => return Err(AllocError::Backend(error)),
            };
            // Memory that cannot be is not given back: it may be another's.
            self.add_route(address, size, id)?;
            let mut arena = self.arenas.lock(id);
            let found = arena.add_fixed(address, size, request);
            let event = arena.event(EventKind::SegmentAlloc, address, size);
            drop(arena);
            self.ledger.lock().reserve(request.class, size, 1);
            events.extend(event.map(|event| self.with_figures(event)));
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Maps new memory behind what a span has.
    fn extend(
        &self,
        need: &Need<'_, B>,
        events: &mut Vec<Event>,
    ) -> Supplied<Allocation, B::Error> {
        let &Need {
            memory,
            request,
            id,
            ..
        } = need;
        let Some(plan) = self.plan(memory, id, request.class, request.size, true)? else {
            return Ok(None);
        };
        let chunks = match self.map_more(need, &plan, events) {
            Ok(None) => self.map_new(need, &plan, plan.missing, events),
            found => found,
        };
        let mut arena = self.arenas.lock(id);
        match chunks {
            Ok(Some(chunks)) => Ok(Some(arena.grown(&plan, &chunks, request))),
            failed => {
                arena.give_up(&plan);
                failed.map(|_| None)
            }
        }
    }

    /// Maps more than is missing, if the surplus is little: it serves the next requests without a call of the
    /// driver.
    fn map_more(
        &self,
        need: &Need<'_, B>,
        plan: &Growth,
        events: &mut Vec<Event>,
    ) -> Supplied<Vec<Chunk>, B::Error> {
        // A pool is as large as its graph wants.
        if need.tight || need.owner.pool.is_some() {
            return Ok(None);
        }
        let reserved = self.ledger.lock().reserved();
        let granularity = need.memory.granularity();
        let bytes = Config::whole_chunks(need.request.class, plan.missing, reserved, granularity);
        if bytes > plan.room || !Config::is_little(bytes - plan.missing, reserved) {
            return Ok(None);
        }
        self.map_new(need, plan, bytes, events)
    }

    /// Finds where the arena can map `bytes` in one piece: in a span that it has, or in a new one.
    pub(super) fn plan(
        &self,
        memory: Memory<'_, B>,
        id: ArenaId,
        class: Class,
        bytes: u64,
        extend: bool,
    ) -> Supplied<Growth, B::Error> {
        let plan = |id| {
            let mut arena = self.arenas.lock(id);
            arena.plan(class, bytes, memory.granularity(), extend)
        };
        if let Some(plan) = plan(id) {
            return Ok(Some(plan));
        }
        // The range is as large as a stream may ever want, or less where addresses are short.
        let least = bytes.next_multiple_of(memory.granularity());
        let mut size = memory
            .address_space()
            .next_multiple_of(memory.granularity())
            .max(least);
        let address = loop {
            match memory.reserve(size, memory.granularity()) {
                Ok(address) => break address,
                Err(_) if size > least => {
                    size = (size / 2).next_multiple_of(memory.granularity()).max(least);
                }
                Err(error) if self.backend.is_out_of_memory(&error) => return Ok(None),
                Err(error) => return Err(AllocError::Backend(error)),
            }
        };
        self.add_route(address, size, id)?;
        self.arenas.lock(id).add_span(address, size, class);
        Ok(plan(id))
    }

    /// Takes chunks from the device, `bytes` together, and maps them at the planned place.
    pub(super) fn map_new(
        &self,
        need: &Need<'_, B>,
        plan: &Growth,
        bytes: u64,
        events: &mut Vec<Event>,
    ) -> Supplied<Vec<Chunk>, B::Error> {
        let &Need { memory, id, .. } = need;
        let class = need.request.class;
        let reserved = {
            let ledger = self.ledger.lock();
            if !ledger.has_room(bytes) {
                return Ok(None);
            }
            ledger.reserved()
        };
        let mut home = plan.address;
        let mut chunks: Vec<Chunk> = Vec::new();
        let mut failure = None;
        for size in Config::chunks(class, bytes, reserved, memory.granularity()) {
            match memory.create(size) {
                Ok(physical) => chunks.push(Chunk {
                    home,
                    size,
                    physical,
                }),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
            home += size;
        }
        if failure.is_none() {
            let pieces: Vec<Physical> = chunks.iter().map(|chunk| chunk.physical).collect();
            failure = memory.map(plan.address, &pieces).err();
        }
        if let Some(error) = failure {
            for chunk in chunks {
                memory.destroy(chunk.physical);
            }
            if self.backend.is_out_of_memory(&error) {
                return Ok(None);
            }
            return Err(AllocError::Backend(error));
        }
        {
            let mut ledger = self.ledger.lock();
            ledger.counts.maps += 1;
            ledger.reserve(class, bytes, chunks.len() as u64);
        }
        let event = self
            .arenas
            .lock(id)
            .event(EventKind::SegmentAlloc, plan.address, bytes);
        events.extend(event.map(|event| self.with_figures(event)));
        Ok(Some(chunks))
    }

    /// Gives addresses to an arena. It is an error if the driver gave them to another arena before.
    pub(super) fn add_route(
        &self,
        address: u64,
        size: u64,
        id: ArenaId,
    ) -> Result<(), AllocError<B::Error>> {
        if self.arenas.add_route(address, size, id) {
            return Ok(());
        }
        Err(AllocError::BadSegment { address, size })
    }
}
