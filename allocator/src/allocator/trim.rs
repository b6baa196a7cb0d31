//! Memory that is idle for long goes back to the device.
//!
//! Somebody looks now and then, [`LOOKS`] times in the span that memory may be idle: what was not in use at
//! any of these moments counts as idle. So the paths that allocate count nothing for this; memory that is
//! used for a moment between two looks may be given back, and is had again when it is wanted.

use super::Allocator;
use crate::Backend;
use crate::config::Class;
use crate::tally::Quantity;

/// How often one looks in the span that memory may be idle.
const LOOKS: usize = 4;

/// What was in use when somebody looked, for [`Allocator::trim_idle`].
#[derive(Clone, Copy, Debug, Default)]
pub struct IdleWatch {
    /// Bytes in use at the last looks.
    seen: [u64; LOOKS],
    /// Looks so far.
    looks: usize,
}

impl IdleWatch {
    /// How often to look in the span that memory may be idle.
    pub const LOOKS: u32 = LOOKS as u32;

    /// Takes a look; the most that was in use at the last looks, once there were enough.
    fn look(&mut self, in_use: u64) -> Option<u64> {
        self.seen[self.looks % LOOKS] = in_use;
        self.looks += 1;
        let most = self.seen.iter().copied().max();
        most.filter(|_| self.looks >= LOOKS)
    }
}

impl<B: Backend> Allocator<B> {
    /// Looks what is in use, and gives back what was not for as long as the watch reaches back: idle memory
    /// of the shared arenas, as far as whole pieces are idle. Waits for the streams that it was of. Returns
    /// how many bytes that were.
    pub fn trim_idle(&self, watch: &mut IdleWatch) -> u64 {
        let (held, in_use) = self.shared_bytes();
        match watch.look(in_use) {
            Some(most) if held > most => self.give_back(held - most),
            _ => 0,
        }
    }

    /// Bytes that the shared arenas hold, and those in use of them.
    fn shared_bytes(&self) -> (u64, u64) {
        let (mut held, mut in_use) = (0, 0);
        for mut arena in self.arenas.all() {
            if arena.owner.is_none_or(|owner| owner.pool.is_some()) {
                continue;
            }
            held += arena.reserved();
            for class in [Class::Small, Class::Large] {
                in_use += arena.tally(class).current(Quantity::Bytes);
            }
        }
        (held, in_use)
    }
}

#[cfg(test)]
mod tests {
    use super::IdleWatch;

    #[test]
    fn what_was_in_use_at_any_look_is_not_idle() {
        let mut watch = IdleWatch::default();
        let looked: Vec<_> = [5, 1, 9, 2, 3, 1, 4, 0]
            .map(|bytes| watch.look(bytes))
            .into();
        let most = [9, 9, 9, 4, 4].map(Some);
        assert_eq!(looked[..3], [None; 3]);
        assert_eq!(looked[3..], most);
    }
}
