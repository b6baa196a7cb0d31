//! Lending within an arena: a view shows idle chunks a second time, one after another, so that memory
//! that lies apart meets one request.
//!
//! A view is a segment like others: blocks are cut from it and joined. While it shows a chunk, the
//! chunk is *lent* at home. A piece of the view that lies whole in a free block can be taken out again.
//! Its place in the view then becomes a hole. The hole keeps its mapping and serves the next request
//! that finds the same chunks idle. A chunk must never be free at two places.

use std::cell::Cell;

use super::Arena;
use crate::Allocation;
use crate::arenas::ArenaId;
use crate::block::{Block, NONE, State};
use crate::config::{Class, Request};
use crate::segment::{Chunk, Piece, SegmentKind, View, ViewSlot, homes};

/// The most holes that are tried for one request. The ones after them are larger than the request
/// needs.
const HOLES_TRIED: usize = 16;

impl Arena {
    /// The chunks of this arena that lie whole in free blocks at home, by block, larger blocks first.
    /// Quick blocks are not included.
    pub(crate) fn idle_chunks(&self) -> Vec<&[Chunk]> {
        let mut runs = Vec::new();
        for class in [Class::Large, Class::Small] {
            // Bins descend, the sizes within a bin, which are about the same, do not.
            for id in self.parts[class as usize].lists.descending(&self.blocks) {
                let block = &self.blocks[id];
                if block.size <= self.least_chunk / 2 {
                    break;
                }
                let Some(span) = self.segments[block.segment].span() else {
                    continue;
                };
                let run = span.within(block.address, block.end());
                if !run.is_empty() {
                    runs.push(run);
                }
            }
        }
        runs
    }

    /// Whether views show chunks of other arenas.
    pub(crate) fn has_guests(&self) -> bool {
        let guests = |&id: &u32| self.segments[id].view().is_some_and(|view| view.guests);
        self.views.iter().any(guests)
    }

    /// The places of views that show chunks of other arenas and lie whole in free blocks. The caller
    /// has called [`settle_all`](Self::settle_all).
    pub(crate) fn idle_guests(&mut self) -> Vec<ViewSlot> {
        let mut guests = Vec::new();
        for segment in std::mem::take(&mut self.lingering) {
            let before = guests.len();
            let slots = self.idle_slots(segment).into_iter();
            guests.extend(slots.filter(|slot| slot.piece.arena != self.id));
            let lingers = guests.len() > before;
            if lingers {
                self.lingering.push(segment);
            }
            if let Some(view) = self.segments[segment].view_mut() {
                view.lingers = lingers;
            }
        }
        guests
    }

    /// Takes idle pieces of the selected other arenas out of its views. At home they are still lent.
    pub(crate) fn take_guests(&mut self, of: impl Fn(ArenaId) -> bool) -> Vec<Piece> {
        self.settle_all();
        let mut guests = self.idle_guests();
        guests
            .retain(|slot| of(slot.piece.arena) && self.empty(slot.address, slot.piece.chunk.size));
        guests.into_iter().map(|slot| slot.piece).collect()
    }

    /// Whether none of its chunks is lent or away.
    pub(crate) fn has_all_chunks(&self) -> bool {
        let spans = self
            .segments
            .ids()
            .filter_map(|id| self.segments[id].span());
        let mut chunks = spans.flat_map(|span| &span.chunks);
        self.away.is_empty() && !chunks.any(|chunk| self.is_lent(chunk.home))
    }

    /// The places of a view that lie whole in free blocks.
    fn idle_slots(&self, segment: u32) -> Vec<ViewSlot> {
        let mut slots = Vec::new();
        let Some(view) = self.segments[segment].view() else {
            return slots;
        };
        let mut id = self.segments[segment].first;
        while id != NONE {
            let block = &self.blocks[id];
            if block.state == State::Free {
                slots.extend_from_slice(view.within(block.address, block.end()));
            }
            id = block.after;
        }
        slots
    }

    /// Lends the idle chunks that follow each other from this home on. `false` if they do not lie in
    /// one free block.
    pub(crate) fn lend(&mut self, home: u64, size: u64) -> bool {
        self.carve(home, size).is_some()
    }

    /// Cuts a range out of the free block around it, and takes it out of use.
    pub(super) fn carve(&mut self, address: u64, size: u64) -> Option<u32> {
        let mut id = self.around(address)?;
        let block = &self.blocks[id];
        if block.state != State::Free || address + size > block.end() {
            return None;
        }
        self.keep(id);
        let before = address - self.blocks[id].address;
        if before > 0 {
            let rest = self.split(id, before);
            self.give_apart(id);
            id = rest;
        }
        if self.blocks[id].size > size {
            let rest = self.split(id, size);
            self.give_apart(rest);
        }
        Some(id)
    }

    /// Frees a kept block whose neighbours are not free.
    fn give_apart(&mut self, id: u32) {
        let (class, size) = (self.blocks[id].class, self.blocks[id].size);
        self.tally(class).gained(size);
        self.list(id);
    }

    /// Frees the lent chunks of this arena that follow each other from this home on.
    pub(crate) fn come_home(&mut self, home: u64, size: u64) {
        let mut from = home;
        while from < home + size {
            let Some(id) = self.part_lent(from, home + size - from) else {
                debug_assert!(false, "what is lent is there");
                return;
            };
            from = self.blocks[id].end();
            self.give(id);
        }
    }

    /// The lent block that starts at an address and has at most `most` bytes. It is cut from what was
    /// lent together.
    pub(super) fn part_lent(&mut self, from: u64, most: u64) -> Option<u32> {
        let mut id = self.around(from)?;
        debug_assert!(self.blocks[id].state == State::Lent);
        if self.blocks[id].address < from {
            id = self.split(id, from - self.blocks[id].address);
        }
        if self.blocks[id].size > most {
            self.split(id, most);
        }
        Some(id)
    }

    /// Whether the chunk of this arena with this home is lent.
    pub(crate) fn is_lent(&self, home: u64) -> bool {
        let block = self.around(home).map(|id| &self.blocks[id]);
        block.is_some_and(|block| block.state == State::Lent)
    }

    /// Turns places of a view that follow each other into a hole, so that their pieces can be used
    /// elsewhere. `false` if they do not lie in one free block.
    pub(crate) fn empty(&mut self, address: u64, size: u64) -> bool {
        let Some(mut id) = self.carve(address, size) else {
            return false;
        };
        self.blocks[id].state = State::Unmapped;
        let Block { before, after, .. } = self.blocks[id];
        let is_hole = |id: u32| id != NONE && self.blocks[id].state == State::Unmapped;
        let (join_before, join_after) = (is_hole(before), is_hole(after));
        if join_after {
            self.unlist_hole(after);
            self.join(id, after);
        }
        if join_before {
            self.unlist_hole(before);
            self.join(before, id);
            id = before;
        }
        self.list_hole(id);
        true
    }

    fn list_hole(&mut self, id: u32) {
        let Block { size, class, .. } = self.blocks[id];
        self.holes[class as usize].insert((size, id));
    }

    fn unlist_hole(&mut self, id: u32) {
        let Block { size, class, .. } = self.blocks[id];
        self.holes[class as usize].remove(&(size, id));
    }

    /// Joins all quick blocks with their neighbours, and returns idle chunks of this arena home from
    /// its views.
    pub(crate) fn settle_all(&mut self) {
        for class in [Class::Small, Class::Large] {
            self.settle_quick(class);
        }
        for segment in std::mem::take(&mut self.touched) {
            let mut lingers = false;
            let own = self.id;
            let size = |slot: &ViewSlot| slot.piece.chunk.size;
            let idle = self.idle_slots(segment);
            // Free neighbours are joined: places that follow each other lie in one block.
            let runs = idle.chunk_by(|left, right| {
                left.address + size(left) == right.address
                    && (left.piece.arena == own) == (right.piece.arena == own)
            });
            for run in runs {
                if run[0].piece.arena != own {
                    lingers = true;
                } else if self.empty(run[0].address, run.iter().map(size).sum()) {
                    for run in run.chunk_by(|left, right| left.piece.precedes(&right.piece)) {
                        let home = run[0].piece.chunk.home;
                        self.come_home(home, run.iter().map(size).sum());
                    }
                }
            }
            if let Some(view) = self.segments[segment].view_mut() {
                view.touched = false;
                if lingers && !std::mem::replace(&mut view.lingers, true) {
                    self.lingering.push(segment);
                }
            }
        }
    }

    /// Adds a view over pieces that were lent for it, and serves its request.
    pub(crate) fn add_view(
        &mut self,
        address: u64,
        pieces: &[Piece],
        request: &Request,
    ) -> Allocation {
        self.clock += 1;
        let mut end = address;
        let slots = pieces.iter().map(|&piece| {
            let address = end;
            end += piece.chunk.size;
            ViewSlot { address, piece }
        });
        let view = View {
            slots: slots.collect(),
            used: self.clock,
            leaving: false,
            guests: pieces.iter().any(|piece| piece.arena != self.id),
            touched: false,
            lingers: false,
        };
        let kind = SegmentKind::View(view);
        let block = self.add_segment(address, end - address, request.class, State::Lent, kind);
        self.views.push(self.blocks[block].segment);
        self.hand_out_shown(block, request)
    }

    /// Marks the start of a shown range as a block in use.
    fn hand_out_shown(&mut self, id: u32, request: &Request) -> Allocation {
        if self.blocks[id].size > request.size {
            let rest = self.split(id, request.size);
            match request.class {
                Class::Small => self.give_apart(rest),
                Class::Large => self.blocks[rest].state = State::Tail,
            }
        }
        let block = &mut self.blocks[id];
        block.state = State::Allocated;
        block.requested = request.requested;
        let (address, size) = (block.address, block.size);
        self.tally(request.class).obtained(size, request.requested);
        Allocation { address, size }
    }

    /// Finds a hole whose first pieces meet a request and are all `available`, smaller holes first.
    /// Returns the hole and these pieces.
    pub(crate) fn fitting_hole(
        &self,
        request: &Request,
        available: impl Fn(&Piece) -> bool,
    ) -> Option<(u32, Vec<Piece>)> {
        let holes = self.holes[request.class as usize].range((request.size, 0)..);
        holes.take(HOLES_TRIED).find_map(|&(_, hole)| {
            let block = &self.blocks[hole];
            let view = self.segments[block.segment].view()?;
            let slots = view.within(block.address, block.end());
            let (mut size, mut count) = (0, 0);
            while size < request.size {
                let piece = slots.get(count).map(|slot| &slot.piece);
                size += piece.filter(|piece| available(piece))?.chunk.size;
                count += 1;
            }
            let pieces = slots[..count].iter().map(|slot| slot.piece);
            Some((hole, pieces.collect()))
        })
    }

    /// Whether a hole could meet a request if all its pieces of other arenas were available.
    pub(crate) fn may_fit_guests(&self, request: &Request) -> bool {
        let is_idle = self.idle();
        let available = |piece: &Piece| piece.arena != self.id || is_idle(&piece.chunk);
        self.fitting_hole(request, available).is_some()
    }

    /// Serves a request by a hole whose needed pieces are all idle chunks of this arena.
    pub(crate) fn reuse_view(&mut self, request: &Request) -> Option<Allocation> {
        let is_idle = self.idle();
        let own = |piece: &Piece| piece.arena == self.id && is_idle(&piece.chunk);
        let (hole, pieces) = self.fitting_hole(request, own)?;
        drop(is_idle);
        for (_, home, size) in homes(&pieces) {
            self.lend(home, size);
        }
        Some(self.fill_hole(hole, &pieces, request))
    }

    /// Returns a function that tells whether a chunk is idle at home. For chunks that follow each
    /// other, it looks up only the first.
    fn idle(&self) -> impl Fn(&Chunk) -> bool {
        let around = Cell::new((0, 0));
        move |chunk| {
            let end = chunk.home + chunk.size;
            let (from, to) = around.get();
            if from <= chunk.home && end <= to {
                return true;
            }
            let block = self.around(chunk.home).map(|id| &self.blocks[id]);
            let free = block.filter(|block| block.state == State::Free);
            free.is_some_and(|block| {
                around.set((block.address, block.end()));
                end <= block.end()
            })
        }
    }

    /// Serves a request by a hole, whose first pieces were lent for it.
    pub(crate) fn fill_hole(
        &mut self,
        hole: u32,
        pieces: &[Piece],
        request: &Request,
    ) -> Allocation {
        self.unlist_hole(hole);
        let size = pieces.iter().map(|piece| piece.chunk.size).sum();
        if size < self.blocks[hole].size {
            let rest = self.split(hole, size);
            self.list_hole(rest);
        }
        self.clock += 1;
        let segment = self.blocks[hole].segment;
        if let Some(view) = self.segments[segment].view_mut() {
            view.used = self.clock;
        }
        self.blocks[hole].state = State::Lent;
        self.hand_out_shown(hole, request)
    }

    /// The chunks at all places of views in use, holes included: by arena and home.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (ArenaId, u64)> {
        let in_use = self.views.iter().filter(|&&view| !self.is_unused(view));
        let views = in_use.filter_map(|&view| self.segments[view].view());
        let pieces = views.flat_map(|view| view.slots.iter().map(|slot| slot.piece));
        pieces.map(|piece| (piece.arena, piece.chunk.home))
    }

    /// The chunks of other arenas at the places of views that are not holes: by arena and home.
    pub(crate) fn guests_in_use(&self) -> impl Iterator<Item = (ArenaId, u64)> {
        let views = self.views.iter().map(|&view| &self.segments[view]);
        let guests = views.filter_map(|segment| Some((segment, segment.view()?)));
        let guests = guests.filter(|(_, view)| view.guests);
        guests.flat_map(move |(segment, view)| {
            let used = move |slot: &&ViewSlot| {
                let (at, starts) = (slot.address, &segment.starts);
                let block = starts.around(&self.blocks, at, at - segment.address);
                slot.piece.arena != self.id
                    && block.is_some_and(|id| self.blocks[id].state != State::Unmapped)
            };
            let slots = view.slots.iter().filter(used);
            slots.map(|slot| (slot.piece.arena, slot.piece.chunk.home))
        })
    }

    /// Notes that a piece of views has another home now.
    pub(crate) fn rename_piece(&mut self, from: &Piece, to: &Piece) {
        for &id in &self.views {
            let Some(view) = self.segments[id].view_mut() else {
                continue;
            };
            let mut slots = view.slots.iter_mut();
            let Some(slot) = slots.find(|slot| slot.piece == *from) else {
                continue;
            };
            slot.piece = *to;
            view.guests = view.slots.iter().any(|slot| slot.piece.arena != self.id);
            // The view's idle pieces are looked up anew, because an own piece is idle at another place
            // than a guest.
            if !std::mem::replace(&mut view.touched, true) {
                self.touched.push(id);
            }
        }
    }

    /// Whether all of a view is one hole.
    fn is_unused(&self, view: u32) -> bool {
        let first = &self.blocks[self.segments[view].first];
        first.is_whole() && first.state == State::Unmapped
    }

    /// Takes unused views out, the one used longest ago first, until all views together have at most
    /// `most` places. The caller unmaps them later.
    pub(crate) fn take_unused_views(&mut self, most: usize) -> Vec<u32> {
        let view = |id: u32| self.segments[id].view();
        let slots = |id| view(id).map_or(0, |view| view.slots.len());
        let mut all: usize = self.views.iter().map(|&id| slots(id)).sum();
        if all <= most {
            return Vec::new();
        }
        let mut unused: Vec<u32> = self.views.clone();
        unused.retain(|&id| self.is_unused(id) && view(id).is_some_and(|view| !view.leaving));
        unused.sort_unstable_by_key(|&id| view(id).map(|view| view.used));
        let count = unused.iter().position(|&id| {
            let enough = all <= most;
            all -= slots(id);
            enough
        });
        unused.truncate(count.unwrap_or(unused.len()));
        for &id in &unused {
            self.unlist_hole(self.segments[id].first);
            if let Some(view) = self.segments[id].view_mut() {
                view.leaving = true;
            }
        }
        unused
    }

    /// Forgets a view that left. Returns its address and size, which the caller unmaps and releases.
    pub(crate) fn view_left(&mut self, id: u32) -> Option<(u64, u64)> {
        self.views.retain(|&other| other != id);
        self.touched.retain(|&other| other != id);
        self.lingering.retain(|&other| other != id);
        let segment = self.segments.remove(id)?;
        self.index.remove(&self.blocks, segment.first);
        self.blocks.remove(segment.first);
        Some((segment.address, segment.size))
    }
}
