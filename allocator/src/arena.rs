//! The arithmetic of the allocator for one owner: it finds, splits and joins blocks, and counts.
//!
//! An arena serves one stream, in the shared memory or in one private pool. It knows no device, no lock and
//! no fence. Every call leaves it consistent, also if it fails. It must never hand out a block that is not
//! free.

mod grow;
mod holds;
mod lend;
mod picture;
mod sleep;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

pub(crate) use self::grow::{Growth, Leaving};
use self::holds::Note;
use crate::arenas::ArenaId;
use crate::block::{Block, Blocks, NONE, State};
use crate::config::{Class, Request};
use crate::index::Index;
use crate::lists::FreeLists;
use crate::quick::Quick;
use crate::segment::{SegmentKind, Segments};
use crate::tally::Tally;
use crate::{Allocation, Config, FreeError, Freed, PoolId, StreamId};

/// The stream and pool that an arena serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    /// `None` is the memory that all share.
    pub(crate) pool: Option<PoolId>,
    pub(crate) stream: StreamId,
}

/// The outcome of a free.
pub(crate) enum Release {
    /// The block can be used again.
    Reusable(Freed),
    /// The block has notes, or its pool was released. The caller passes it to [`Arena::let_go`] before it unlocks
    /// the arena. A hold that another thread gives back later finds the block pending.
    Pending(Freed, u32),
}

/// The part of a free that the arena leaves to its caller, because it knows no fence.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The caller has nothing to do.
    Done,
    /// Call [`Arena::pass`] for this block once for each stream, when the present work of the stream
    /// has finished. `owner` is the stream that gets the block then.
    Wait {
        block: u32,
        streams: Vec<StreamId>,
        owner: Option<StreamId>,
    },
    /// Let idle memory of the arena leave: its pool was released.
    Leave,
}

/// The free blocks of one class.
pub(crate) struct Part {
    pub(crate) lists: FreeLists,
    pub(crate) quick: Quick,
    pub(crate) tally: Tally,
}

/// Segments, blocks and figures of one owner.
pub(crate) struct Arena {
    /// The id by which pieces of views name the arena.
    id: ArenaId,
    /// `None`: nobody's; the arena has no segments then.
    pub(crate) owner: Option<Owner>,
    /// Whether the pool was released: what becomes idle leaves.
    pub(crate) closed: bool,
    asleep: bool,
    away: BTreeSet<u64>, // homes of chunks without memory
    config: Arc<Config>,
    blocks: Blocks,
    segments: Segments,
    index: Index,                     // blocks in any state
    parts: [Part; 2],                 // by class
    views: Vec<u32>,                  // segments
    touched: Vec<u32>,                // views that may have idle pieces
    lingering: Vec<u32>,              // views in which pieces of others were idle
    holes: [BTreeSet<(u64, u32)>; 2], // of views, by class: sizes and blocks, whose pieces are not lent for them
    clock: u64,                       // requests that views have served
    least_chunk: u64,                 // bytes of the smallest chunk that it has had
    notes: HashMap<u32, Note>,        // by block
    reserved: u64,                    // bytes from the device
}

impl Arena {
    pub(crate) fn new(id: ArenaId, config: Arc<Config>) -> Self {
        let part = || Part {
            lists: FreeLists::new(config.rounding()),
            quick: Quick::new(),
            tally: Tally::default(),
        };
        Self {
            id,
            owner: None,
            closed: false,
            asleep: false,
            away: BTreeSet::new(),
            blocks: Blocks::new(),
            segments: Segments::new(),
            index: Index::new(),
            parts: [part(), part()],
            views: Vec::new(),
            touched: Vec::new(),
            lingering: Vec::new(),
            holes: Default::default(),
            clock: 0,
            least_chunk: u64::MAX,
            notes: HashMap::new(),
            reserved: 0,
            config,
        }
    }

    /// The id of the arena.
    pub(crate) fn id(&self) -> ArenaId {
        self.id
    }

    /// Gives the empty arena to an owner, under this name.
    pub(crate) fn serve(&mut self, id: ArenaId, owner: Owner) {
        self.id = id;
        self.owner = Some(owner);
        self.closed = false;
        self.asleep = false;
    }

    /// Whether nothing is left in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Bytes that it holds from the device.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    #[inline]
    pub(crate) fn tally(&mut self, class: Class) -> &mut Tally {
        &mut self.parts[class as usize].tally
    }

    /// Serves a request from a free block, if one fits.
    #[inline]
    pub(crate) fn alloc(&mut self, request: &Request) -> Option<Allocation> {
        let part = &mut self.parts[request.class as usize];
        if let Some(id) = part.quick.pop(&self.blocks, request.size) {
            let block = &mut self.blocks[id];
            block.state = State::Allocated;
            block.requested = request.requested;
            part.tally.unlisted();
            part.tally.used(request.size, request.requested);
            return Some(Allocation {
                address: block.address,
                size: request.size,
            });
        }
        self.alloc_best(request)
    }

    /// Serves a request from the smallest free block that fits. All blocks are joined before: fragmentation
    /// begins when a block is split although a joined one would have fitted better.
    fn alloc_best(&mut self, request: &Request) -> Option<Allocation> {
        let class = request.class as usize;
        // The last block that is joined is mostly the one that fits: it is not listed only to be taken out.
        let mut last = NONE;
        while let Some(id) = self.parts[class].quick.take(&self.blocks) {
            self.parts[class].tally.unlisted();
            if last != NONE {
                self.list(last);
            }
            last = self.rejoin(id);
        }
        let part = &self.parts[class];
        let listed = part.lists.best_fit(&self.blocks, request.size);
        let size = |id: u32| self.blocks[id].size;
        let fits = |id: u32| size(id) >= request.size && self.config.accepts(request, size(id));
        let listed = listed.filter(|&id| fits(id));
        let joined = last != NONE && fits(last);
        match listed {
            // Of blocks of one size, the one that was joined last.
            Some(listed) if !joined || size(listed) < size(last) => {
                if last != NONE {
                    self.list(last);
                }
                self.unlist(listed);
                Some(self.hand_out(listed, request))
            }
            _ if joined => Some(self.hand_out(last, request)),
            _ => {
                if last != NONE {
                    self.list(last);
                }
                None
            }
        }
    }

    /// Joins the quick blocks of a class with their neighbours.
    pub(crate) fn settle_quick(&mut self, class: Class) {
        while let Some(id) = self.parts[class as usize].quick.take(&self.blocks) {
            self.tally(class).unlisted();
            self.recycle(id);
        }
    }

    /// Marks a block that is in no list as in use, and cuts off what is not needed.
    fn hand_out(&mut self, id: u32, request: &Request) -> Allocation {
        let found = self.blocks[id].size;
        if found > request.size {
            let fixed = matches!(
                self.segments[self.blocks[id].segment].kind,
                SegmentKind::Fixed
            );
            if self.config.splits(request, found - request.size, fixed) {
                let rest = self.split(id, request.size);
                self.list(rest);
            }
        }
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = request.requested;
        let (address, size) = (block.address, block.size);
        self.parts[request.class as usize]
            .tally
            .used(size, request.requested);
        Allocation { address, size }
    }

    /// Bytes that are free.
    pub(crate) fn idle_bytes(&self) -> u64 {
        let idle = |part: &Part| part.tally.idle().0.current;
        self.parts.iter().map(idle).sum()
    }

    /// Whether the credit of a class is used up.
    #[inline]
    pub(crate) fn is_short(&self, class: Class) -> bool {
        self.parts[class as usize].tally.is_short()
    }

    /// Pieces of memory that it holds from the device.
    pub(crate) fn pieces(&self) -> u64 {
        let of = |id| match &self.segments[id].kind {
            SegmentKind::Fixed => 1,
            SegmentKind::Span(span) => span.chunks.len() as u64,
            SegmentKind::View(_) => 0,
        };
        self.segments.ids().map(of).sum::<u64>() - self.count_away()
    }

    /// Takes back a block in use. With [`Release::Pending`], [`let_go`](Self::let_go) comes next.
    pub(crate) fn free(&mut self, address: u64) -> Result<Release, FreeError> {
        let release = self.try_free(address);
        release.ok_or_else(|| self.why_not_in_use(address))
    }

    /// Does what [`free`](Self::free) does, if there is a block in use at this address.
    #[inline]
    pub(crate) fn try_free(&mut self, address: u64) -> Option<Release> {
        let id = self.index.get(&self.blocks, address);
        if id == NONE || self.blocks[id].state != State::Allocated {
            return None;
        }
        let owner = self.owner?;
        let block = &mut self.blocks[id];
        let (size, requested, class) = (block.size, block.requested, block.class);
        block.requested = 0;
        let freed = Freed {
            size,
            stream: owner.stream,
            pool: owner.pool,
        };
        if block.noted || self.closed {
            block.state = State::Pending;
            self.parts[class as usize].tally.retained(size, requested);
            return Some(Release::Pending(freed, id));
        }
        self.parts[class as usize].tally.freed(size, requested);
        self.push_quick(id);
        Some(Release::Reusable(freed))
    }

    #[inline]
    fn push_quick(&mut self, id: u32) {
        let block = &mut self.blocks[id];
        block.state = State::Quick;
        let part = &mut self.parts[block.class as usize];
        part.tally.listed();
        part.quick.push(&mut self.blocks, id);
    }

    /// A pending block can be used again.
    fn passed(&mut self, id: u32) -> Next {
        let (size, class) = (self.blocks[id].size, self.blocks[id].class);
        let tally = &mut self.parts[class as usize].tally;
        tally.passed(size);
        tally.freed(size, 0);
        self.push_quick(id);
        if self.closed { Next::Leave } else { Next::Done }
    }

    /// Frees a block that is in no list, and joins it with its free neighbours.
    fn recycle(&mut self, id: u32) {
        let id = self.rejoin(id);
        self.list(id);
    }

    /// Joins a block that is in no list with its free neighbours. Returns the joined block, which the caller
    /// must list or hand out next.
    fn rejoin(&mut self, mut id: u32) -> u32 {
        let before = self.blocks[id].before;
        let mut after = self.blocks[id].after;
        if after != NONE && self.blocks[after].state == State::Tail {
            let Block { size, class, .. } = self.blocks[after];
            self.tally(class).gained(size);
            self.join(id, after);
            after = self.blocks[id].after;
        }
        if after != NONE && self.blocks[after].state == State::Free {
            self.unlist(after);
            self.join(id, after);
        }
        if before != NONE && self.blocks[before].state == State::Free {
            self.unlist(before);
            self.join(before, id);
            id = before;
        }
        let segment = self.blocks[id].segment;
        if let Some(view) = self.segments[segment].view_mut()
            && !std::mem::replace(&mut view.touched, true)
        {
            self.touched.push(segment);
        }
        id
    }

    /// Puts a block into the lists for best fit.
    fn list(&mut self, id: u32) {
        let block = &mut self.blocks[id];
        block.state = State::Free;
        block.requested = 0;
        let part = &mut self.parts[block.class as usize];
        part.tally.listed();
        part.lists.insert(&mut self.blocks, id);
    }

    /// Takes a block out of the lists for best fit.
    fn unlist(&mut self, id: u32) {
        let part = &mut self.parts[self.blocks[id].class as usize];
        part.tally.unlisted();
        part.lists.remove(&mut self.blocks, id);
    }

    /// Cuts a block that is in no list after `size` bytes. Returns the rest, which is in no list either, and in
    /// the same state.
    fn split(&mut self, id: u32, size: u64) -> u32 {
        let block = &mut self.blocks[id];
        let rest = Block {
            before: id,
            after: block.after,
            ..Block::new(
                block.address + size,
                block.size - size,
                block.segment,
                block.class,
                block.state,
            )
        };
        block.size = size;
        let (address, segment, after) = (rest.address, rest.segment, rest.after);
        let rest = self.blocks.add(rest);
        self.blocks[id].after = rest;
        if after != NONE {
            self.blocks[after].before = rest;
        }
        self.index.insert(&self.blocks, rest);
        let segment = &mut self.segments[segment];
        segment
            .starts
            .insert(&self.blocks, address - segment.address, rest);
        rest
    }

    /// Joins two neighbours that are in no list; the left one remains.
    fn join(&mut self, left: u32, right: u32) {
        let Block {
            address,
            size,
            after,
            segment,
            ..
        } = self.blocks[right];
        self.index.remove(&self.blocks, right);
        let segment = &mut self.segments[segment];
        segment
            .starts
            .remove(address - segment.address, right, after, size);
        self.blocks[left].size += size;
        self.blocks[left].after = after;
        if after != NONE {
            self.blocks[after].before = left;
        }
        self.blocks.remove(right);
    }

    #[cold]
    fn why_not_in_use(&self, address: u64) -> FreeError {
        match self.around(address).map(|id| &self.blocks[id]) {
            None => FreeError::Unknown { address },
            Some(block) if block.state == State::Allocated => FreeError::Interior {
                address,
                base: block.address,
            },
            Some(block) if block.state == State::Unmapped => FreeError::Unknown { address },
            Some(_) => FreeError::AlreadyFreed { address },
        }
    }

    /// The block around an address, in any state.
    fn around(&self, address: u64) -> Option<u32> {
        let id = self.index.get(&self.blocks, address);
        if id != NONE {
            return Some(id);
        }
        let segment = &self.segments[self.segments.around(address)?];
        segment
            .starts
            .around(&self.blocks, address, address - segment.address)
    }
}
