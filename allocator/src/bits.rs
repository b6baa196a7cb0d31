//! A set of small numbers that answers "the largest member up to n" in a few steps.
//!
//! Each segment has one, of the places where its blocks start. Level 0 has a bit per number, each
//! further level a bit per word of the level below that is not zero. A large segment's levels are
//! zeroed lazily by the system: memory is used only where blocks start.

/// The set.
pub(crate) struct BitTree {
    levels: Vec<Vec<u64>>, // the last one is a single word
}

impl BitTree {
    /// A set for numbers below `limit`.
    pub(crate) fn new(limit: u64) -> Self {
        let mut levels = Vec::new();
        let mut words = limit;
        loop {
            words = words.div_ceil(64).max(1);
            levels.push(vec![0; words as usize]);
            if words == 1 {
                return Self { levels };
            }
        }
    }

    #[inline]
    pub(crate) fn insert(&mut self, mut number: u64) {
        for level in &mut self.levels {
            let word = &mut level[(number >> 6) as usize];
            let was = *word;
            *word |= 1 << (number & 63);
            if was != 0 {
                return;
            }
            number >>= 6;
        }
    }

    #[inline]
    pub(crate) fn remove(&mut self, mut number: u64) {
        for level in &mut self.levels {
            let word = &mut level[(number >> 6) as usize];
            *word &= !(1 << (number & 63));
            if *word != 0 {
                return;
            }
            number >>= 6;
        }
    }

    /// The largest member that is at most `number`, which is below the limit.
    pub(crate) fn at_or_before(&self, number: u64) -> Option<u64> {
        // Up, until a word has a member that is small enough: above level 0 that is one to the left
        // of the word come from, which has been searched already.
        let mut level = 0;
        let mut place = number;
        let mut mask = u64::MAX >> (63 - (place & 63));
        let mut word = self.levels[0][(place >> 6) as usize] & mask;
        while word == 0 {
            place >>= 6;
            level += 1;
            mask = (1 << (place & 63)) - 1;
            word = self.levels.get(level)?[(place >> 6) as usize] & mask;
        }
        // Down along the largest members.
        let mut found = (place & !63) | u64::from(word.ilog2());
        for level in self.levels[..level].iter().rev() {
            found = (found << 6) | u64::from(level[found as usize].ilog2());
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_as_a_sorted_set(
            limit in 1_u64..300_000,
            steps in prop::collection::vec((any::<bool>(), any::<u64>(), any::<u64>()), 1..100),
        ) {
            let (mut set, mut model) = (BitTree::new(limit), BTreeSet::new());
            for (insert, number, query) in steps {
                let (number, query) = (number % limit, query % limit);
                if insert {
                    set.insert(number);
                    model.insert(number);
                } else if let Some(&member) = model.range(number..).next() {
                    set.remove(member);
                    model.remove(&member);
                }
                for query in [query, number, limit - 1] {
                    prop_assert_eq!(
                        set.at_or_before(query),
                        model.range(..=query).next_back().copied()
                    );
                }
            }
        }
    }
}
