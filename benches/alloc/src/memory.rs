//! The memory of the simulated device: objects of physical memory, and where they are mapped. It follows the
//! rules of the driver contract: objects are mapped whole, an object may be mapped at several addresses, and
//! one that was given back while mapped goes with its last mapping. What breaks the rules is written down as
//! a complaint. It knows no time and no streams.

use std::collections::{BTreeMap, HashMap};

use crate::calls::Calls;
use crate::device::GRANULARITY;

/// The memory that the device has given.
#[derive(Default)]
pub(crate) struct Memory {
    capacity: u64,
    used: u64,
    peak: u64,
    next_address: u64,
    /// By number, from 1 on.
    objects: Vec<Option<Object>>,
    /// The object that is mapped at an address.
    mappings: BTreeMap<u64, u64>,
    /// The object behind each segment.
    segments: HashMap<u64, u64>,
    /// Bytes of each range of addresses.
    reservations: BTreeMap<u64, u64>,
    pub(crate) calls: Calls,
    pub(crate) complaints: Vec<String>,
}

#[derive(Clone, Copy)]
struct Object {
    size: u64,
    mappings: u32,
    destroyed: bool,
}

/// Bytes of an object of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) object: u64,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

impl Memory {
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            next_address: 1 << 33,
            ..Self::default()
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    pub(crate) fn free(&self) -> u64 {
        self.capacity - self.used
    }

    /// Every object of physical memory with its size.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (u64, u64)> {
        let objects = (1..).zip(&self.objects);
        objects.filter_map(|(number, object)| Some((number, object.as_ref()?.size)))
    }

    fn object(&mut self, number: u64) -> Option<&mut Object> {
        self.objects
            .get_mut((number as usize).checked_sub(1)?)?
            .as_mut()
    }

    /// Bytes of an object that is mapped.
    fn size(&self, number: u64) -> u64 {
        self.objects[number as usize - 1].map_or(0, |object| object.size)
    }

    /// The things that are still there and should have been given back.
    pub(crate) fn leftovers(&self) -> Option<String> {
        let (objects, mappings) = (self.objects().count(), self.mappings.len());
        (objects + mappings > 0)
            .then(|| format!("not given back: {objects} objects, {mappings} mappings"))
    }

    /// Addresses that nobody has had.
    pub(crate) fn reserve(&mut self, size: u64, alignment: u64) -> u64 {
        self.calls.reserves += 1;
        let address = self.addresses(size, alignment);
        self.reservations.insert(address, size);
        address
    }

    fn addresses(&mut self, size: u64, alignment: u64) -> u64 {
        let address = self
            .next_address
            .next_multiple_of(alignment.max(GRANULARITY));
        // A gap behind each, so that no two ranges are neighbours by chance.
        self.next_address = (address + size + GRANULARITY).next_multiple_of(GRANULARITY);
        address
    }

    pub(crate) fn release(&mut self, address: u64, size: u64) {
        self.calls.releases += 1;
        let range = self.reservations.remove(&address);
        if range != Some(size)
            || self
                .mappings
                .range(address..address + size)
                .next()
                .is_some()
        {
            self.complaints.push(format!(
                "{size} bytes of addresses at {address:#x} were released, of which {range:?} were reserved, \
                 or something is mapped there"
            ));
        }
    }

    /// Physical memory; `None` if there is not so much.
    pub(crate) fn create(&mut self, size: u64) -> Option<u64> {
        self.calls.creates += 1;
        self.take(size)
    }

    fn take(&mut self, size: u64) -> Option<u64> {
        if size > self.free() {
            return None;
        }
        self.used += size;
        self.peak = self.peak.max(self.used);
        self.objects.push(Some(Object {
            size,
            mappings: 0,
            destroyed: false,
        }));
        Some(self.objects.len() as u64)
    }

    pub(crate) fn destroy(&mut self, number: u64) {
        self.calls.destroys += 1;
        match self.object(number) {
            Some(object) if !object.destroyed => {
                object.destroyed = true;
                self.drop_if_unused(number);
            }
            _ => {
                let text = format!("object {number} was given back, but is none");
                self.complaints.push(text);
            }
        }
    }

    fn drop_if_unused(&mut self, number: u64) {
        let object = &mut self.objects[number as usize - 1];
        if let Some(gone) = object.take_if(|object| object.destroyed && object.mappings == 0) {
            self.used -= gone.size;
        }
    }

    /// Maps objects one behind the other.
    pub(crate) fn map(&mut self, address: u64, objects: impl Iterator<Item = u64>) {
        self.calls.accesses += 1;
        // A mapping behind these addresses, if there is one, must not be reached.
        let after = self.mappings.range(address..).next();
        let after = after.map_or(u64::MAX, |(&start, _)| start);
        let before = self.mappings.range(..address).next_back();
        let is_free = before.is_none_or(|(&start, &number)| start + self.size(number) <= address);
        let mut at = address;
        for number in objects {
            self.calls.maps += 1;
            let Some(object) = self.object(number).filter(|o| !o.destroyed) else {
                let text = format!("object {number} was mapped, but is none");
                self.complaints.push(text);
                continue;
            };
            object.mappings += 1;
            let size = object.size;
            self.mappings.insert(at, number);
            at += size;
        }
        let range = self.reservations.range(..=address).next_back();
        let is_reserved = range.is_some_and(|(&start, &length)| start + length >= at);
        if !is_reserved || !is_free || at > after {
            self.complaints.push(format!(
                "{} bytes were mapped at {address:#x}, which is not reserved or not free",
                at - address
            ));
        }
    }

    /// Unmaps all objects of a range, which must begin and end where objects do.
    pub(crate) fn unmap(&mut self, address: u64, size: u64) {
        self.calls.unmaps += 1;
        let inside = self
            .mappings
            .extract_if(address..address + size, |_, _| true);
        let inside: Vec<u64> = inside.map(|(_, number)| number).collect();
        let mut bytes = 0;
        for number in inside {
            if let Some(object) = self.object(number) {
                object.mappings -= 1;
                bytes += object.size;
                self.drop_if_unused(number);
            }
        }
        if bytes != size {
            self.complaints.push(format!(
                "{size} bytes at {address:#x} were unmapped, where whole objects have {bytes}"
            ));
        }
    }

    /// A segment: an object with an address of its own. `None` if there is not so much memory.
    pub(crate) fn alloc(&mut self, size: u64) -> Option<u64> {
        self.calls.allocs += 1;
        let number = self.take(size)?;
        let address = self.addresses(size, GRANULARITY);
        if let Some(object) = self.object(number) {
            object.mappings = 1;
        }
        self.mappings.insert(address, number);
        self.segments.insert(address, number);
        Some(address)
    }

    /// Takes a segment back and tells its size.
    pub(crate) fn free_segment(&mut self, address: u64) -> Option<u64> {
        self.calls.frees += 1;
        let Some(number) = self.segments.remove(&address) else {
            let text = format!("{address:#x} was given back, but is no segment");
            self.complaints.push(text);
            return None;
        };
        self.mappings.remove(&address);
        let object = self.objects[number as usize - 1].take()?;
        self.used -= object.size;
        Some(object.size)
    }

    /// The bytes of physical memory behind these addresses, or the first address that has none.
    pub(crate) fn translate(&self, address: u64, size: u64) -> Result<Vec<Piece>, u64> {
        let (mut at, end) = (address, address + size);
        let mut pieces = Vec::new();
        while at < end {
            let (&base, &object) = self.mappings.range(..=at).next_back().ok_or(at)?;
            let stop = end.min(base + self.size(object));
            if stop <= at {
                return Err(at);
            }
            pieces.push(Piece {
                object,
                start: at - base,
                end: stop - base,
            });
            at = stop;
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = GRANULARITY;

    #[test]
    fn an_object_is_reached_through_all_its_mappings_and_goes_with_the_last() {
        let mut memory = Memory::new(4 * PAGE);
        let range = memory.reserve(4 * PAGE, PAGE);
        let (a, b) = (
            memory.create(PAGE).unwrap(),
            memory.create(2 * PAGE).unwrap(),
        );
        assert_eq!(memory.create(2 * PAGE), None);
        memory.map(range, [a].into_iter());
        memory.map(range + PAGE, [b, a].into_iter());
        let pieces = memory.translate(range + 3 * PAGE - 8, 16).unwrap();
        assert_eq!(
            pieces.iter().map(|piece| piece.object).collect::<Vec<_>>(),
            [b, a]
        );
        memory.destroy(a);
        memory.unmap(range, PAGE);
        assert_eq!(memory.used(), 3 * PAGE);
        memory.unmap(range + PAGE, 3 * PAGE);
        assert_eq!(memory.used(), 2 * PAGE, "b is not given back");
        memory.destroy(b);
        memory.release(range, 4 * PAGE);
        assert_eq!(memory.complaints, [""; 0]);
        assert_eq!(memory.leftovers(), None);
        assert_eq!(memory.peak(), 3 * PAGE);
    }

    #[test]
    fn broken_rules_are_written_down() {
        let mut memory = Memory::new(8 * PAGE);
        let range = memory.reserve(2 * PAGE, PAGE);
        let object = memory.create(2 * PAGE).unwrap();
        memory.map(range, [object].into_iter());
        memory.map(range + PAGE, [object].into_iter());
        assert_eq!(memory.complaints.len(), 1, "mapped over another mapping");
        memory.destroy(object);
        memory.destroy(object);
        assert_eq!(memory.complaints.len(), 2, "given back twice");
        memory.release(range, 2 * PAGE);
        assert_eq!(memory.complaints.len(), 3, "addresses that are in use");
    }
}
