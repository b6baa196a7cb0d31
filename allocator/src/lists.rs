//! Free blocks of one arena and class, ready for best fit.
//!
//! Sizes fall into bins, 64 per octave, so the sizes of a bin differ by less than 1.6 %. Below 128
//! times the rounding, a bin holds only one size. A bin is a list in the order of sizes; of equal sizes
//! the latest comes first, because its memory is warmest. Finding the best fit looks at two words of
//! bits, and walks a list only in the bin of the request itself.

use crate::block::{Blocks, NONE};

/// The bins of one octave of sizes.
struct Octave {
    used: u64, // bins that are not empty
    heads: [u32; 64],
}

/// The free blocks of one arena and class.
pub(crate) struct FreeLists {
    used: u64, // octaves that are not empty
    octaves: Vec<Octave>,
    shift: u32, // log2 of the rounding
}

impl FreeLists {
    /// For sizes that are multiples of `rounding`, a power of two of at least 64.
    pub(crate) fn new(rounding: u64) -> Self {
        Self {
            used: 0,
            octaves: Vec::new(),
            shift: rounding.ilog2(),
        }
    }

    /// Octave 0 holds sizes of 0 to 63 units, octave n > 0 those from 2^(n+5) up to 2^(n+6).
    #[inline]
    fn bin(&self, size: u64) -> (usize, usize) {
        let units = size >> self.shift;
        let octave = 64 - (units >> 6).leading_zeros();
        let bin = (units >> octave.saturating_sub(1)) & 63;
        (octave as usize, bin as usize)
    }

    #[inline]
    pub(crate) fn insert(&mut self, blocks: &mut Blocks, id: u32) {
        let size = blocks[id].size;
        let (octave, bin) = self.bin(size);
        if octave >= self.octaves.len() {
            self.octaves.resize_with(octave + 1, || Octave {
                used: 0,
                heads: [NONE; 64],
            });
        }
        let bins = &mut self.octaves[octave];
        let (mut up, mut down) = (NONE, bins.heads[bin]);
        while down != NONE && blocks[down].size < size {
            (up, down) = (down, blocks[down].down);
        }
        let block = &mut blocks[id];
        (block.up, block.down) = (up, down);
        if down != NONE {
            blocks[down].up = id;
        }
        if up != NONE {
            blocks[up].down = id;
        } else {
            bins.heads[bin] = id;
            bins.used |= 1 << bin;
            self.used |= 1 << octave;
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, blocks: &mut Blocks, id: u32) {
        let (up, down, size) = (blocks[id].up, blocks[id].down, blocks[id].size);
        if down != NONE {
            blocks[down].up = up;
        }
        if up != NONE {
            blocks[up].down = down;
            return;
        }
        let (octave, bin) = self.bin(size);
        let bins = &mut self.octaves[octave];
        bins.heads[bin] = down;
        if down == NONE {
            bins.used &= !(1 << bin);
            if bins.used == 0 {
                self.used &= !(1 << octave);
            }
        }
    }

    /// The smallest block of at least `size` bytes.
    #[inline]
    pub(crate) fn best_fit(&self, blocks: &Blocks, size: u64) -> Option<u32> {
        let (octave, bin) = self.bin(size);
        if let Some(bins) = self.octaves.get(octave) {
            let fitting = bins.used & (u64::MAX << bin);
            if fitting != 0 {
                // Only in the bin of the request itself may a block be too small.
                let mut id = bins.heads[fitting.trailing_zeros() as usize];
                while id != NONE && blocks[id].size < size {
                    id = blocks[id].down;
                }
                if id != NONE {
                    return Some(id);
                }
                let larger = fitting & (fitting - 1);
                if larger != 0 {
                    return Some(bins.heads[larger.trailing_zeros() as usize]);
                }
            }
        }
        let larger = self.used & (u64::MAX << octave << 1);
        if larger == 0 {
            return None;
        }
        let bins = &self.octaves[larger.trailing_zeros() as usize];
        Some(bins.heads[bins.used.trailing_zeros() as usize])
    }

    /// All blocks, those of larger bins first.
    pub(crate) fn descending<'a>(&'a self, blocks: &'a Blocks) -> impl Iterator<Item = u32> + 'a {
        let (mut octaves, mut octave, mut bins, mut id) = (self.used, 0, 0_u64, NONE);
        std::iter::from_fn(move || {
            if id == NONE {
                if bins == 0 {
                    octave = octaves.checked_ilog2()? as usize;
                    octaves &= !(1 << octave);
                    bins = self.octaves[octave].used;
                }
                let bin = bins.ilog2();
                bins &= !(1 << bin);
                id = self.octaves[octave].heads[bin as usize];
            }
            let found = id;
            id = blocks[id].down;
            Some(found)
        })
    }

    /// The size of the largest block; 0 if there is none.
    pub(crate) fn largest(&self, blocks: &Blocks) -> u64 {
        let Some(octave) = self.used.checked_ilog2() else {
            return 0;
        };
        let bins = &self.octaves[octave as usize];
        let mut id = bins.heads[bins.used.ilog2() as usize];
        while blocks[id].down != NONE {
            id = blocks[id].down;
        }
        blocks[id].size
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::{Block, State};
    use crate::config::Class;

    proptest! {
        #[test]
        fn best_fit_is_the_smallest_that_fits(
            steps in prop::collection::vec((0_u8..3, 1_u64..40, 0_u32..28), 1..200),
        ) {
            let mut blocks = Blocks::new();
            let mut lists = FreeLists::new(512);
            let mut model: Vec<u32> = Vec::new();
            for (step, mantissa, exponent) in steps {
                let size = (512 * mantissa) << exponent;
                if step > 0 {
                    let id = blocks.add(Block::new(0, size, 0, Class::Large, State::Free));
                    lists.insert(&mut blocks, id);
                    model.push(id);
                } else if !model.is_empty() {
                    let id = model.swap_remove(size as usize % model.len());
                    lists.remove(&mut blocks, id);
                    blocks.remove(id);
                }
                let best = lists.best_fit(&blocks, size).map(|id| blocks[id].size);
                let sizes = model.iter().map(|&id| blocks[id].size);
                prop_assert_eq!(best, sizes.clone().filter(|&other| other >= size).min());
                prop_assert_eq!(lists.largest(&blocks), sizes.max().unwrap_or(0));
            }
        }
    }
}
