//! Gives every piece of memory a place in the picture: a tape without gaps, on which a piece keeps its
//! place while it exists.
//!
//! Addresses cannot serve as places: they are terabytes apart, and a segment that was given back never
//! gets the same address again. Two pieces that exist at the same time must never overlap on the tape.

use std::collections::BTreeMap;

/// The tape: what is free of it.
#[derive(Default)]
pub(super) struct Tape {
    gaps: BTreeMap<u64, u64>, // place -> bytes; never adjacent, all below `end`
    end: u64,
    longest: u64,
}

impl Tape {
    /// Takes `size` bytes: at `wish` if they are free there, else the first gap that is large enough.
    pub(super) fn take(&mut self, size: u64, wish: Option<u64>) -> u64 {
        let wished = wish.filter(|&place| self.is_free(place, size));
        let place = wished.unwrap_or_else(|| {
            let found = self.gaps.iter().find(|&(_, &bytes)| bytes >= size);
            found.map_or(self.end, |(&place, _)| place)
        });
        if place >= self.end {
            self.end = place + size;
            self.longest = self.longest.max(self.end);
            return place;
        }
        if let Some((&gap, &bytes)) = self.gaps.range(..=place).next_back() {
            self.gaps.remove(&gap);
            if gap < place {
                self.gaps.insert(gap, place - gap);
            }
            if place + size < gap + bytes {
                self.gaps.insert(place + size, gap + bytes - place - size);
            }
        }
        place
    }

    /// Gives back what [`take`](Self::take) gave.
    pub(super) fn give_back(&mut self, place: u64, size: u64) {
        let (mut start, mut stop) = (place, place + size);
        if let Some((&gap, &bytes)) = self.gaps.range(..place).next_back()
            && gap + bytes == start
        {
            self.gaps.remove(&gap);
            start = gap;
        }
        if let Some(bytes) = self.gaps.remove(&stop) {
            stop += bytes;
        }
        if stop == self.end {
            self.end = start;
        } else {
            self.gaps.insert(start, stop - start);
        }
    }

    /// The most bytes that the tape ever had.
    pub(super) fn longest(&self) -> u64 {
        self.longest
    }

    fn is_free(&self, place: u64, size: u64) -> bool {
        if place == self.end {
            return true;
        }
        let gap = self.gaps.range(..=place).next_back();
        gap.is_some_and(|(&gap, &bytes)| place + size <= gap + bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_reused_and_never_shared() {
        let mut tape = Tape::default();
        let a = tape.take(10, None);
        let b = tape.take(20, Some(a + 10));
        let c = tape.take(5, Some(3)); // is taken
        assert_eq!((a, b, c, tape.longest()), (0, 10, 30, 35));
        tape.give_back(b, 20);
        assert_eq!(tape.take(8, None), 10);
        assert_eq!(tape.take(4, Some(20)), 20);
        assert_eq!(tape.take(6, Some(24)), 24);
        assert_eq!(tape.take(3, None), 35); // 18 and 19 are free, which is too little
        assert_eq!(tape.take(2, None), 18);
        for (place, size) in [
            (0, 10),
            (35, 3),
            (10, 8),
            (30, 5),
            (20, 4),
            (18, 2),
            (24, 6),
        ] {
            tape.give_back(place, size);
        }
        assert_eq!((tape.end, tape.gaps.len(), tape.longest()), (0, 0, 38));
    }
}
