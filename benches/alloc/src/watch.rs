//! The check that an allocator hands out memory rightly: bytes of physical memory belong to one live block
//! at a time, and are touched by another stream only behind the work of those that touched them before. It
//! must never know how an allocator works: it sees what was handed out, freed, mapped and waited for.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::memory::Piece;
use crate::trace::STREAMS;

/// Memory in use, and memory that may still be touched by work that was submitted before it was freed.
#[derive(Default)]
pub(crate) struct Watch {
    /// By address.
    live: BTreeMap<u64, Live>,
    /// By object and start: the end, and whose block it is.
    bytes: BTreeMap<(u64, u64), (u64, u64)>,
    /// Oldest first.
    freed: VecDeque<Freed>,
}

struct Live {
    size: u64,
    pieces: Vec<Piece>,
}

struct Freed {
    address: u64,
    size: u64,
    pieces: Vec<Piece>,
    streams: [bool; STREAMS],
    at: u64,
}

impl Freed {
    /// True if work of one of its streams is not over; `over` says that of a stream and an operation.
    fn is_pending(&self, over: &impl Fn(usize, u64) -> bool) -> bool {
        (0..STREAMS).any(|stream| self.streams[stream] && !over(stream, self.at))
    }
}

impl Watch {
    /// A block is handed out for `stream`; what is wrong with that.
    pub(crate) fn begin(
        &mut self,
        address: u64,
        size: u64,
        pieces: Vec<Piece>,
        stream: usize,
        finished: impl Fn(usize, u64) -> bool,
    ) -> Vec<String> {
        let mut complaints = Vec::new();
        for piece in &pieces {
            let before = self.bytes.range(..(piece.object, piece.end)).next_back();
            if let Some((&(object, _), &(end, owner))) = before
                && object == piece.object
                && end > piece.start
            {
                complaints.push(format!(
                    "{size} bytes at {address:#x} share memory with the block at {owner:#x}"
                ));
            }
        }
        let over = |other, at| other == stream || finished(other, at);
        for freed in &self.freed {
            if overlap(&freed.pieces, &pieces) && freed.is_pending(&over) {
                complaints.push(format!(
                    "{size} bytes at {address:#x} are handed out to stream {stream} while other \
                     streams still work on what was freed at {:#x}",
                    freed.address
                ));
            }
        }
        for piece in &pieces {
            self.bytes
                .insert((piece.object, piece.start), (piece.end, address));
        }
        if self.live.insert(address, Live { size, pieces }).is_some() {
            complaints.push(format!("{address:#x} is handed out twice"));
        }
        complaints
    }

    /// A block is freed at operation `now`; `pieces` is what stands behind it at last.
    pub(crate) fn end(
        &mut self,
        address: u64,
        pieces: &[Piece],
        streams: &[bool; STREAMS],
        now: u64,
    ) -> Option<String> {
        let Some(block) = self.live.remove(&address) else {
            return Some(format!("{address:#x} was freed, but was not handed out"));
        };
        for piece in &block.pieces {
            self.bytes.remove(&(piece.object, piece.start));
        }
        let changed = block.pieces != pieces;
        self.freed.push_back(Freed {
            address,
            size: block.size,
            pieces: block.pieces,
            streams: *streams,
            at: now,
        });
        changed.then(|| format!("the memory behind {address:#x} was changed while it was in use"))
    }

    /// Bytes of each object that are in use; objects without any are not there.
    pub(crate) fn used_bytes(&self) -> HashMap<u64, u64> {
        let mut used = HashMap::new();
        for (&(object, start), &(end, _)) in &self.bytes {
            *used.entry(object).or_default() += end - start;
        }
        used
    }

    /// Drops what nobody works on any more.
    pub(crate) fn forget(&mut self, finished: impl Fn(usize, u64) -> bool) {
        while self
            .freed
            .front()
            .is_some_and(|freed| !freed.is_pending(&finished))
        {
            self.freed.pop_front();
        }
    }

    /// Whether addresses are in use or worked on.
    pub(crate) fn is_busy(
        &self,
        address: u64,
        size: u64,
        finished: impl Fn(usize, u64) -> bool,
    ) -> bool {
        let end = address + size;
        let before = self.live.range(..end).next_back();
        let used = before.is_some_and(|(&start, block)| start + block.size > address);
        let pending = |freed: &Freed| {
            freed.address < end
                && address < freed.address + freed.size
                && freed.is_pending(&finished)
        };
        used || self.freed.iter().any(pending)
    }
}

fn overlap(some: &[Piece], others: &[Piece]) -> bool {
    some.iter().any(|a| {
        others
            .iter()
            .any(|b| a.object == b.object && a.start < b.end && b.start < a.end)
    })
}
