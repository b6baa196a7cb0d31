//! Segments: what the device gave, findable by any address inside.
//!
//! It must never look into blocks beyond knowing where they start.

use crate::bits::BitTree;
use crate::config::{Class, SMALL_MAX};

/// A segment's record.
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) arena: u32,
    pub(crate) class: Class,
    /// The block at the segment's start; it never changes, since the left one of two blocks that are
    /// joined stays.
    pub(crate) first: u32,
    /// Where blocks start.
    pub(crate) starts: Starts,
    /// When all of it became free last.
    pub(crate) idle_since: u64,
}

/// The blocks of a segment by where they start, as offsets from the segment's start.
///
/// Offsets fall into places that are so small that no two blocks start in the same one: the rounding
/// in a segment of small blocks, 1 MiB in one of large blocks, all of which are larger than that. So
/// this takes 4 bytes for 1 MiB of large blocks, and the system zeroes them lazily.
pub(crate) struct Starts {
    shift: u32, // log2 of a place's size
    used: BitTree,
    ids: Vec<u32>, // by place; stale where `used` has no member
}

impl Default for Starts {
    fn default() -> Self {
        Self {
            shift: 0,
            used: BitTree::new(0),
            ids: Vec::new(),
        }
    }
}

impl Starts {
    pub(crate) fn new(size: u64, class: Class, rounding: u64) -> Self {
        let shift = match class {
            Class::Small => rounding.ilog2(),
            Class::Large => SMALL_MAX.ilog2(),
        };
        let places = (size >> shift) + 1;
        Self {
            shift,
            used: BitTree::new(places),
            ids: vec![0; places as usize],
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, offset: u64, id: u32) {
        let place = offset >> self.shift;
        self.used.insert(place);
        self.ids[place as usize] = id;
    }

    #[inline]
    pub(crate) fn remove(&mut self, offset: u64) {
        self.used.remove(offset >> self.shift);
    }

    /// The last block that starts in the place of an offset or before: the block around the offset, or,
    /// if it starts behind it, the one after that.
    pub(crate) fn last_up_to(&self, offset: u64) -> Option<u32> {
        let place = self.used.at_or_before(offset >> self.shift)?;
        Some(self.ids[place as usize])
    }
}

/// All segments.
pub(crate) struct Segments {
    records: Vec<Segment>,
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
            self[id] = segment;
        } else {
            self.records.push(segment);
        }
    }

    /// Forgets the segments with these ids.
    pub(crate) fn remove(&mut self, ids: &[u32]) {
        for &id in ids {
            self[id].starts = Starts::default();
        }
        self.by_address.retain(|(_, id)| !ids.contains(id));
        self.spare.extend(ids);
    }

    /// The segment around an address.
    pub(crate) fn around(&self, address: u64) -> Option<u32> {
        let place = self
            .by_address
            .partition_point(|&(base, _)| base <= address);
        let (base, id) = self.by_address[place.checked_sub(1)?];
        (address - base < self[id].size).then_some(id)
    }

    /// Whether a range, which does not wrap around, touches a segment.
    pub(crate) fn overlap(&self, address: u64, size: u64) -> bool {
        let place = self
            .by_address
            .partition_point(|&(base, _)| base < address + size);
        place.checked_sub(1).is_some_and(|place| {
            let (base, id) = self.by_address[place];
            base + self[id].size > address
        })
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
        &self.records[id as usize]
    }
}

impl std::ops::IndexMut<u32> for Segments {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Segment {
        &mut self.records[id as usize]
    }
}
