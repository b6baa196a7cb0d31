//! Segments: the ranges of addresses from which blocks are cut, found by any address inside.
//!
//! A segment is one of three things: a piece of memory that the device gave whole; a span of reserved
//! addresses, into which chunks of memory are mapped; or a view, which shows chunks of spans a second
//! time, one after another. This module must never look into blocks, except for where they start.

use crate::Physical;
use crate::arenas::ArenaId;
use crate::bits::BitTree;
use crate::block::{Blocks, NONE};
use crate::config::Class;

/// A segment's record.
pub(crate) struct Segment {
    pub(crate) address: u64,
    /// The size in bytes of addresses, mapped or not.
    pub(crate) size: u64,
    pub(crate) class: Class,
    /// The block at the segment's start. It never changes, because of two blocks that are joined the
    /// left one stays.
    pub(crate) first: u32,
    /// The starts of the segment's blocks.
    pub(crate) starts: Starts,
    pub(crate) kind: SegmentKind,
}

/// The origin of a segment's memory.
pub(crate) enum SegmentKind {
    /// The device gave it whole.
    Fixed,
    /// Reserved addresses.
    Span(Span),
    /// Chunks of spans.
    View(View),
}

/// The chunks that are mapped into reserved addresses.
#[derive(Default)]
pub(crate) struct Span {
    /// The chunks, by address.
    pub(crate) chunks: Vec<Chunk>,
    /// Blocks without memory.
    pub(crate) holes: Vec<u32>,
}

/// A piece of physical memory, mapped whole at its home in a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) home: u64,
    pub(crate) size: u64,
    pub(crate) physical: Physical,
}

/// A chunk that a view shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The arena that owns the chunk.
    pub(crate) arena: ArenaId,
    pub(crate) chunk: Chunk,
}

impl Piece {
    /// Whether another one follows it at home.
    pub(crate) fn precedes(&self, next: &Self) -> bool {
        self.arena == next.arena && self.chunk.home + self.chunk.size == next.chunk.home
    }
}

/// The homes of pieces, as arena, address and bytes. Pieces that follow each other at home are one
/// entry.
pub(crate) fn homes(pieces: &[Piece]) -> impl Iterator<Item = (ArenaId, u64, u64)> {
    let runs = pieces.chunk_by(Piece::precedes);
    runs.map(|run| {
        let size = run.iter().map(|piece| piece.chunk.size).sum();
        (run[0].arena, run[0].chunk.home, size)
    })
}

/// A place of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ViewSlot {
    pub(crate) address: u64,
    /// The chunk that is mapped there.
    pub(crate) piece: Piece,
}

/// Chunks shown one behind the other.
pub(crate) struct View {
    /// The slots, by address and without gaps.
    pub(crate) slots: Vec<ViewSlot>,
    /// The time of the latest request that the view served, by its arena's clock.
    pub(crate) used: u64,
    /// On its way to be unmapped.
    pub(crate) leaving: bool,
    /// Shows chunks of other arenas.
    pub(crate) guests: bool,
    /// Blocks in it were freed since its idle pieces were looked up last.
    pub(crate) touched: bool,
    /// Pieces of other arenas were idle in it.
    pub(crate) lingers: bool,
}

impl View {
    /// The places that lie wholly between two addresses.
    pub(crate) fn within(&self, from: u64, to: u64) -> &[ViewSlot] {
        let first = self.slots.partition_point(|slot| slot.address < from);
        let rest = &self.slots[first..];
        let count = rest.partition_point(|slot| slot.address + slot.piece.chunk.size <= to);
        &rest[..count]
    }
}

impl Segment {
    pub(crate) fn span(&self) -> Option<&Span> {
        match &self.kind {
            SegmentKind::Span(span) => Some(span),
            _ => None,
        }
    }

    pub(crate) fn span_mut(&mut self) -> Option<&mut Span> {
        match &mut self.kind {
            SegmentKind::Span(span) => Some(span),
            _ => None,
        }
    }

    pub(crate) fn view(&self) -> Option<&View> {
        match &self.kind {
            SegmentKind::View(view) => Some(view),
            _ => None,
        }
    }

    pub(crate) fn view_mut(&mut self) -> Option<&mut View> {
        match &mut self.kind {
            SegmentKind::View(view) => Some(view),
            _ => None,
        }
    }
}

impl Span {
    /// The chunks that lie wholly between two addresses.
    pub(crate) fn within(&self, from: u64, to: u64) -> &[Chunk] {
        let first = self.chunks.partition_point(|chunk| chunk.home < from);
        let rest = &self.chunks[first..];
        let lies_within = |chunk: &Chunk| chunk.home + chunk.size <= to;
        // Most blocks have no chunk that lies whole in them.
        if !rest.first().is_some_and(lies_within) {
            return &[];
        }
        &rest[..rest.partition_point(lies_within)]
    }

    /// Adds chunks that follow each other.
    pub(crate) fn insert(&mut self, chunks: &[Chunk]) {
        let Some(first) = chunks.first() else { return };
        let at = self.chunks.partition_point(|chunk| chunk.home < first.home);
        self.chunks.splice(at..at, chunks.iter().copied());
    }

    /// Takes out the chunks that lie wholly between two addresses.
    pub(crate) fn remove(&mut self, from: u64, to: u64) -> Vec<Chunk> {
        let first = self.chunks.partition_point(|chunk| chunk.home < from);
        let count = self.within(from, to).len();
        self.chunks.drain(first..first + count).collect()
    }
}

/// The blocks of a segment by where they start, as offsets from the segment's start.
///
/// Offsets fall into places of 64 KiB in a segment of small blocks, and of 16 MiB in one of large
/// blocks. Each place knows the first block that starts in it; the others are found from there. So most
/// blocks come and go without a change here.
pub(crate) struct Starts {
    shift: u32, // log2 of a place's size
    used: BitTree,
    ids: Vec<u32>, // by place; NONE where `used` has no member
}

impl Starts {
    pub(crate) fn new(class: Class) -> Self {
        Self {
            shift: match class {
                Class::Small => 16,
                Class::Large => 24,
            },
            used: BitTree::new(0),
            ids: Vec::new(),
        }
    }

    /// Notes that a block starts at an offset.
    #[inline]
    pub(crate) fn insert(&mut self, blocks: &Blocks, offset: u64, id: u32) {
        let place = (offset >> self.shift) as usize;
        if place >= self.ids.len() {
            self.reach(place);
        }
        let first = self.ids[place];
        if first == NONE {
            self.used.insert(place as u64);
            self.ids[place] = id;
        } else if blocks[first].address > blocks[id].address {
            self.ids[place] = id;
        }
    }

    /// Notes that the block at an offset is gone. `after` is the block that starts `size` bytes later,
    /// or [`NONE`].
    #[inline]
    pub(crate) fn remove(&mut self, offset: u64, id: u32, after: u32, size: u64) {
        let place = offset >> self.shift;
        if self.ids[place as usize] != id {
            return;
        }
        if after != NONE && (offset + size) >> self.shift == place {
            self.ids[place as usize] = after;
        } else {
            self.ids[place as usize] = NONE;
            self.used.remove(place);
        }
    }

    /// The block around an offset.
    pub(crate) fn around(&self, blocks: &Blocks, address: u64, offset: u64) -> Option<u32> {
        let place = (offset >> self.shift).min(self.ids.len().checked_sub(1)? as u64);
        let mut id = self.ids[self.used.at_or_before(place)? as usize];
        if blocks[id].address > address {
            return Some(blocks[id].before).filter(|&id| id != NONE);
        }
        while blocks[id].end() <= address {
            id = blocks[id].after;
            if id == NONE {
                return None;
            }
        }
        Some(id)
    }

    /// Makes room for offsets in this place.
    #[cold]
    fn reach(&mut self, place: usize) {
        let places = (place + 1).next_multiple_of(64).max(self.ids.len() / 4 * 5);
        let old = std::mem::replace(&mut self.used, BitTree::new(places as u64));
        for place in 0..self.ids.len() as u64 {
            if old.contains(place) {
                self.used.insert(place);
            }
        }
        self.ids.reserve_exact(places - self.ids.len());
        self.ids.resize(places, NONE);
    }
}

/// All segments of an arena.
pub(crate) struct Segments {
    records: Vec<Option<Segment>>,
    spare: Vec<u32>,
    by_address: Vec<(u64, u32)>,
}

impl Segments {
    pub(crate) fn new() -> Self {
        Self {
            records: Vec::new(),
            spare: Vec::new(),
            by_address: Vec::new(),
        }
    }

    /// The id that the next [`add`](Self::add) gives.
    pub(crate) fn next_id(&self) -> u32 {
        self.spare.last().copied().unwrap_or_else(|| {
            u32::try_from(self.records.len()).expect("fewer than 2^32 segments fit in memory")
        })
    }

    pub(crate) fn add(&mut self, segment: Segment) {
        let id = self.next_id();
        let place = self
            .by_address
            .partition_point(|&(address, _)| address < segment.address);
        self.by_address.insert(place, (segment.address, id));
        if self.spare.pop().is_some() {
            self.records[id as usize] = Some(segment);
        } else {
            self.records.push(Some(segment));
        }
    }

    /// Takes a segment out.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Segment> {
        let segment = self.records[id as usize].take()?;
        self.by_address.retain(|&(_, other)| other != id);
        self.spare.push(id);
        Some(segment)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_address.is_empty()
    }

    /// The segment around an address.
    pub(crate) fn around(&self, address: u64) -> Option<u32> {
        let place = self
            .by_address
            .partition_point(|&(base, _)| base <= address);
        let (base, id) = self.by_address[place.checked_sub(1)?];
        (address - base < self[id].size).then_some(id)
    }

    /// All ids, in the order of addresses.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> {
        self.by_address.iter().map(|&(_, id)| id)
    }
}

impl std::ops::Index<u32> for Segments {
    type Output = Segment;

    #[inline]
    fn index(&self, id: u32) -> &Segment {
        self.records[id as usize]
            .as_ref()
            .expect("blocks and lists name segments that are there")
    }
}

impl std::ops::IndexMut<u32> for Segments {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Segment {
        self.records[id as usize]
            .as_mut()
            .expect("blocks and lists name segments that are there")
    }
}
