//! A set of small numbers that answers "the largest member up to n" in a few steps.
//!
//! Level 0 has one bit per number. Each higher level has one bit for each word of the level below, set
//! if that word is not zero. The set must never be asked for a number at or above its limit.

/// Enough for any 60-bit number.
const LEVELS: usize = 10;

/// The set of small numbers.
pub(crate) struct BitTree {
    words: Vec<u64>,
    begins: [usize; LEVELS + 1], // of each level in `words`; the last level is a single word
    levels: usize,
}

impl BitTree {
    /// A set for numbers below `limit`, which is below 2^60.
    pub(crate) fn new(limit: u64) -> Self {
        let mut begins = [0; LEVELS + 1];
        let (mut words, mut levels) = (limit, 0);
        while levels == 0 || words > 1 {
            words = words.div_ceil(64).max(1);
            begins[levels + 1] = begins[levels] + words as usize;
            levels += 1;
        }
        Self {
            words: vec![0; begins[levels]],
            begins,
            levels,
        }
    }

    /// Adds a number. Returns whether it is new.
    #[inline]
    pub(crate) fn insert(&mut self, mut number: u64) -> bool {
        let mut new = None;
        for begin in &self.begins[..self.levels] {
            let word = &mut self.words[begin + (number >> 6) as usize];
            let was = *word;
            *word |= 1 << (number & 63);
            let new = *new.get_or_insert(was != *word);
            if was != 0 {
                return new;
            }
            number >>= 6;
        }
        true
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.word(0, number) >> (number & 63) & 1 == 1
    }

    #[inline]
    pub(crate) fn remove(&mut self, mut number: u64) {
        for begin in &self.begins[..self.levels] {
            let word = &mut self.words[begin + (number >> 6) as usize];
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
        let mut word = self.word(0, place) & (u64::MAX >> (63 - (place & 63)));
        while word == 0 {
            place >>= 6;
            level += 1;
            if level == self.levels {
                return None;
            }
            word = self.word(level, place) & ((1 << (place & 63)) - 1);
        }
        // Down along the largest members.
        let mut found = (place & !63) | u64::from(word.ilog2());
        for level in (0..level).rev() {
            found = (found << 6) | u64::from(self.word(level, found << 6).ilog2());
        }
        Some(found)
    }

    /// The word of a level that holds this place.
    fn word(&self, level: usize, place: u64) -> u64 {
        self.words[self.begins[level] + (place >> 6) as usize]
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
