//! Allocates parts of a range of numbers, such as addresses or offsets in a file. It uses the first
//! fit, and joins free neighbours. It does not know what the numbers mean.

use std::collections::BTreeMap;

/// What is free and what is taken of a range.
#[derive(Debug)]
pub(super) struct Ranges {
    /// Start to size of each hole. Holes never touch.
    free: BTreeMap<u64, u64>,
    /// Start to size of each part that was given out.
    taken: BTreeMap<u64, u64>,
}

impl Ranges {
    /// All of a range is free.
    pub(super) fn new(start: u64, size: u64) -> Self {
        Self {
            free: BTreeMap::from([(start, size)]),
            taken: BTreeMap::new(),
        }
    }

    /// Takes a part whose start is a multiple of `alignment`; `None` if no hole has room.
    pub(super) fn take(&mut self, size: u64, alignment: u64) -> Option<u64> {
        let (hole, length, start) = self.free.iter().find_map(|(&hole, &length)| {
            let start = hole.checked_next_multiple_of(alignment)?;
            let end = start.checked_add(size)?;
            (end <= hole + length).then_some((hole, length, start))
        })?;
        self.free.remove(&hole);
        if start > hole {
            self.free.insert(hole, start - hole);
        }
        if start + size < hole + length {
            self.free.insert(start + size, hole + length - start - size);
        }
        self.taken.insert(start, size);
        Some(start)
    }

    /// The size of the part that starts here.
    pub(super) fn size(&self, start: u64) -> Option<u64> {
        self.taken.get(&start).copied()
    }

    /// Whether a range lies in one part.
    pub(super) fn within(&self, start: u64, size: u64) -> bool {
        self.taken
            .range(..=start)
            .next_back()
            .is_some_and(|(&part, &length)| {
                // The part's end does not overflow: it lies in the range of `new`.
                size <= length && start - part <= length - size
            })
    }

    /// Forgets that a part is taken, without making it a hole: [`free`](Self::free) does that.
    pub(super) fn remove(&mut self, start: u64) -> Option<u64> {
        self.taken.remove(&start)
    }

    /// Makes a removed part a hole, joined with the holes beside it.
    pub(super) fn free(&mut self, start: u64, size: u64) {
        let (mut first, mut end) = (start, start + size);
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length == start
        {
            self.free.remove(&before);
            first = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(first, end - first);
    }

    /// The number of parts that are taken.
    pub(super) fn count(&self) -> usize {
        self.taken.len()
    }

    /// The size of the largest hole.
    pub(super) fn largest(&self) -> u64 {
        self.free.values().max().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Ranges;

    #[test]
    fn holes_join_so_that_the_whole_comes_back() {
        let mut ranges = Ranges::new(1000, 4096);
        let parts: Vec<u64> = (0..32)
            .map(|i| ranges.take(16 * (1 + i % 3), 16).unwrap())
            .collect();
        assert!(parts.iter().all(|start| start % 16 == 0));
        for part in parts
            .iter()
            .step_by(2)
            .chain(parts.iter().skip(1).step_by(2))
        {
            let size = ranges.remove(*part).unwrap();
            ranges.free(*part, size);
        }
        assert_eq!((ranges.count(), ranges.largest()), (0, 4096));
        assert_eq!(ranges.free, BTreeMap::from([(1000, 4096)]));
    }

    #[test]
    fn what_has_no_room_is_refused_at_any_size_and_alignment() {
        let mut ranges = Ranges::new(64, 128);
        assert_eq!(ranges.take(64, 128), Some(128));
        for (size, alignment) in [(65, 1), (64, 128), (u64::MAX, 1), (1, 1 << 63)] {
            assert_eq!(ranges.take(size, alignment), None);
        }
        assert_eq!((ranges.size(128), ranges.size(64)), (Some(64), None));
        assert_eq!(ranges.largest(), 64);
        assert!(ranges.within(128, 64) && ranges.within(190, 2) && ranges.within(192, 0));
        for (start, size) in [(127, 2), (190, 3), (64, 1), (128, u64::MAX), (193, 0)] {
            assert!(!ranges.within(start, size), "{start} {size}");
        }
    }
}
