//! Choices that differ between the runs of two commits and not between two runs of the same: which jobs, of those that
//! take turns, and which tests, of those that are drawn.

use std::fmt::{self, Display, Formatter};

use crate::workspace::Workspace;

/// A number from which every choice of a run follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seed(pub(super) u64);

impl Seed {
    /// The first digits of the commit; 0 where git knows none.
    pub(super) fn of_commit(workspace: &Workspace) -> Self {
        let commit = workspace.git(&["rev-parse", "--short=8", "HEAD"]);
        let number = commit
            .ok()
            .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        Self(number.unwrap_or_default())
    }

    /// One of `count`, for a choice by this name.
    pub(super) fn pick(self, name: &str, count: usize) -> usize {
        // FNV-1a: the same on every machine and with every compiler.
        let bytes = self.0.to_le_bytes().into_iter().chain(name.bytes());
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // The low bits of it follow the low bits of what was hashed.
        usize::try_from(hash >> 33).unwrap_or_default() % count
    }
}

impl Display for Seed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_get_their_turn() {
        for count in [2, 4, 6, 10] {
            let mut turns = vec![0; count];
            for seed in 0..400 {
                turns[Seed(seed).pick("conformance", count)] += 1;
            }
            assert!(turns.iter().all(|&n| n > 400 / count / 3), "{turns:?}");
        }
    }

    #[test]
    fn choices_do_not_follow_each_other() {
        let same = (0..400).filter(|&n| Seed(n).pick("one", 4) == Seed(n).pick("other", 4));
        assert!((50..150).contains(&same.count()));
    }
}
