//! The simulated device's physical memory: objects, and the addresses at which they can be reached.
//!
//! The memory follows the contract of virtual memory: objects are mapped whole, at as many addresses as
//! one likes, and one that was given up while it is mapped goes with its last mapping. What breaks the
//! contract is written down. It must never know of time or streams.

use std::collections::BTreeMap;
use std::ops::Range;

/// Reserved addresses and pages of virtual memory are multiples of this.
pub(crate) const PAGE: u64 = 2 << 20;

/// The first reserved address, far from segments.
const RESERVED: u64 = 1 << 40;

#[derive(Clone, Copy, Debug)]
struct Object {
    size: u64,
    mappings: u32,
    destroyed: bool,
}

/// Bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Piece {
    pub(crate) object: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Piece {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        self.object == other.object && self.start < other.end && other.start < self.end
    }
}

#[derive(Default)]
pub(crate) struct Memory {
    objects: BTreeMap<u64, Object>,
    last: u64,
    /// The object that is mapped at an address.
    mappings: BTreeMap<u64, u64>,
    reservations: BTreeMap<u64, u64>,
    pub(crate) complaints: Vec<String>,
}

impl Memory {
    /// Bytes of all objects, also of those that were given up and are still mapped somewhere.
    pub(crate) fn used(&self) -> u64 {
        self.objects.values().map(|object| object.size).sum()
    }

    /// Bytes and number of the objects that were not given up.
    pub(crate) fn held(&self) -> (u64, u64) {
        let held = self.objects.values().filter(|object| !object.destroyed);
        held.fold((0, 0), |(sum, n), object| (sum + object.size, n + 1))
    }

    /// Nothing is mapped, reserved or in existence.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.mappings.is_empty() && self.reservations.is_empty()
    }

    pub(crate) fn create(&mut self, size: u64) -> u64 {
        self.last += 1;
        let object = Object {
            size,
            mappings: 0,
            destroyed: false,
        };
        self.objects.insert(self.last, object);
        self.last
    }

    pub(crate) fn destroy(&mut self, number: u64) {
        match self.objects.get_mut(&number) {
            Some(object) if !object.destroyed => {
                object.destroyed = true;
                self.drop_unused(number);
            }
            _ => self
                .complaints
                .push(format!("object {number} was given up, but is none")),
        }
    }

    fn drop_unused(&mut self, number: u64) {
        let gone = |object: &Object| object.destroyed && object.mappings == 0;
        if self.objects.get(&number).is_some_and(gone) {
            self.objects.remove(&number);
        }
    }

    /// The lowest addresses that are free, so that ranges are neighbours.
    pub(crate) fn reserve(&mut self, size: u64, alignment: u64) -> u64 {
        let mut address = RESERVED.next_multiple_of(alignment);
        for (&base, &length) in &self.reservations {
            if base >= address + size {
                break;
            }
            address = (base + length).next_multiple_of(alignment);
        }
        self.reservations.insert(address, size);
        address
    }

    /// The reserved addresses around one.
    pub(crate) fn reserved_around(&self, address: u64) -> Option<Range<u64>> {
        let (&base, &size) = self.reservations.range(..=address).next_back()?;
        (address - base < size).then_some(base..base + size)
    }

    pub(crate) fn release(&mut self, address: u64, size: u64) {
        let range = self.reservations.remove(&address);
        let mapped = self.pieces(&(address..address + size));
        if range != Some(size) || !mapped.is_empty() {
            self.complaints.push(format!(
                "{size} bytes of addresses at {address:#x} were released, but {range:?} were reserved, \
                 and {mapped:?} is mapped"
            ));
        }
    }

    /// Maps objects one behind the other into reserved addresses.
    pub(crate) fn map(&mut self, address: u64, objects: &[u64]) {
        let mut end = address;
        for &number in objects {
            let object = self.objects.get(&number).copied();
            let Some(Object { size, .. }) = object.filter(|object| !object.destroyed) else {
                let text = format!("object {number} was mapped at {end:#x}, but is none");
                self.complaints.push(text);
                continue;
            };
            let range = self.reservations.range(..=end).next_back();
            let reserved = range.is_some_and(|(base, length)| base + length >= end + size);
            if !reserved || !self.pieces(&(end..end + size)).is_empty() {
                let text = format!("{size} bytes at {end:#x} cannot be mapped");
                self.complaints.push(text);
            }
            self.attach(end, number);
            end += size;
        }
    }

    /// Makes an object reachable at an address.
    pub(crate) fn attach(&mut self, address: u64, number: u64) {
        if let Some(object) = self.objects.get_mut(&number) {
            object.mappings += 1;
            self.mappings.insert(address, number);
        }
    }

    /// Unmaps all objects of a range, which begins and ends where objects do.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) {
        let mut bytes = 0;
        let inside = self.mappings.range(address..address + size);
        for (at, number) in inside
            .map(|(&at, &number)| (at, number))
            .collect::<Vec<_>>()
        {
            self.mappings.remove(&at);
            if let Some(object) = self.objects.get_mut(&number) {
                object.mappings -= 1;
                bytes += object.size;
            }
            self.drop_unused(number);
        }
        if bytes != size {
            self.complaints.push(format!(
                "{size} bytes at {address:#x} were unmapped, but whole objects have {bytes}"
            ));
        }
    }

    /// The object that is mapped at this very address.
    pub(crate) fn object_at(&self, address: u64) -> Option<u64> {
        self.mappings.get(&address).copied()
    }

    /// The pieces that are mapped at these addresses, in their order.
    pub(crate) fn pieces(&self, bytes: &Range<u64>) -> Vec<Piece> {
        let before = self.mappings.range(..=bytes.start).next_back();
        let first = before.map_or(bytes.start, |(&address, _)| address);
        let mappings = self.mappings.range(first..bytes.end.max(first));
        let pieces = mappings.map(|(&address, &object)| Piece {
            object,
            start: bytes.start.saturating_sub(address),
            end: self.objects[&object].size.min(bytes.end - address),
        });
        pieces.filter(|piece| piece.start < piece.end).collect()
    }
}
