//! Gives memory back to the device that was idle for a long time.
//!
//! The caller looks [`LOOKS`] times in the period for which memory may be idle. Memory that was in use at none
//! of these looks counts as idle. So the paths that allocate count nothing for this. Memory that is used only
//! between two looks may be given back; it is allocated again when it is needed.

use super::Allocator;
use crate::Backend;
use crate::config::Class;
use crate::tally::Quantity;

/// The number of looks in the period for which memory may be idle.
const LOOKS: usize = 4;

/// The figures in use at the latest looks, for [`Allocator::trim_idle`].
#[derive(Clone, Copy, Debug, Default)]
pub struct IdleWatch {
    /// Bytes in use at the last looks.
    seen: [u64; LOOKS],
    /// The number of looks so far.
    looks: usize,
}

impl IdleWatch {
    /// The number of looks in the period for which memory may be idle.
    pub const LOOKS: u32 = LOOKS as u32;

    /// Notes what is in use now. Returns the most that was in use at the latest looks, once there were enough.
    fn look(&mut self, in_use: u64) -> Option<u64> {
        self.seen[self.looks % LOOKS] = in_use;
        self.looks += 1;
        let most = self.seen.iter().copied().max();
        most.filter(|_| self.looks >= LOOKS)
    }
}

impl<B: Backend> Allocator<B> {
    /// Notes what is in use now, and gives back what was idle at all looks of the watch: whole idle pieces of
    /// the shared arenas. Waits for the streams of this memory. Returns how many bytes it gave back.
    pub fn trim_idle(&self, watch: &mut IdleWatch) -> u64 {
        let (held, in_use) = self.shared_bytes();
        match watch.look(in_use) {
            Some(most) if held > most => self.give_back(held - most),
            _ => 0,
        }
    }

    /// The bytes that the shared arenas hold, and how many of them are in use.
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
