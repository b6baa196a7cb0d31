//! Whether commands may go straight to the hardware, in one word: a submission that may costs two atomic operations
//! and takes no lock. The word also counts submissions, so that "nothing was submitted since" is one comparison.

use std::sync::atomic::{AtomicU64, Ordering};

/// Set while commands are kept in a list.
const CLOSED: u64 = 1 << 63;
/// One thread that has entered. Fifteen bits: no program has 32768 threads within one call.
const ONE_INSIDE: u64 = 1 << 48;
const INSIDE: u64 = CLOSED - ONE_INSIDE;
/// The number of submissions: 48 bits, nine years of one million a second.
const COUNT: u64 = ONE_INSIDE - 1;

#[derive(Debug, Default)]
pub(crate) struct Gate(AtomicU64);

/// A thread that has entered. It leaves when this is dropped.
pub(crate) struct Pass<'a> {
    gate: &'a Gate,
    /// So many submissions had been made when it entered.
    before: u64,
    submitted: u64,
}

impl Gate {
    /// Enters, if the gate is open. Whoever closes it waits for those who have entered.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Pass<'_>> {
        if self.0.load(Ordering::Relaxed) & CLOSED != 0 {
            return None;
        }
        let before = self.0.fetch_add(ONE_INSIDE, Ordering::AcqRel);
        let pass = Pass {
            gate: self,
            before: before & COUNT,
            submitted: 0,
        };
        (before & CLOSED == 0).then_some(pass)
    }

    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) & CLOSED == 0
    }

    /// Closes it. If it was open, the answer is how many submissions there were; as many as can be if some thread is
    /// still inside, whose submission is not among them.
    pub(crate) fn close(&self) -> Option<u64> {
        let before = self.0.fetch_or(CLOSED, Ordering::AcqRel);
        let count = if before & INSIDE == 0 {
            before & COUNT
        } else {
            u64::MAX
        };
        (before & CLOSED == 0).then_some(count)
    }

    pub(crate) fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::AcqRel);
    }

    /// Waits until those have left who entered before the gate was closed. They are within one call of the hardware.
    pub(crate) fn wait_until_empty(&self) {
        let mut rounds = 0;
        while self.0.load(Ordering::Acquire) & INSIDE != 0 {
            rounds += 1;
            if rounds < 64 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Submissions so far: all that have returned, and perhaps some that are about to.
    #[inline]
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire) & COUNT
    }

    /// The same, if the gate is open: all of them are in the hardware queue then. One look tells both, since commands may
    /// be counted that are in a list as soon as the gate is closed.
    #[inline]
    pub(crate) fn count_if_open(&self) -> Option<u64> {
        let word = self.0.load(Ordering::Acquire);
        (word & CLOSED == 0).then_some(word & COUNT)
    }

    /// Counts a submission that went into the list.
    pub(crate) fn count_one(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

impl Pass<'_> {
    /// The number of submissions that had been made when the pass was taken, all of which are in the hardware queue.
    pub(crate) fn before(&self) -> u64 {
        self.before
    }

    /// Leaves, with a submission made.
    #[inline]
    pub(crate) fn submitted(mut self) {
        self.submitted = 1;
    }
}

impl Drop for Pass<'_> {
    #[inline]
    fn drop(&mut self) {
        let leave = ONE_INSIDE.wrapping_sub(self.submitted);
        self.gate.0.fetch_sub(leave, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::Gate;

    #[test]
    fn submissions_are_counted_and_the_closed_gate_lets_nobody_in() {
        let gate = Gate::default();
        gate.enter().unwrap().submitted();
        drop(gate.enter().unwrap());
        assert_eq!((gate.count(), gate.count_if_open()), (1, Some(1)));
        assert_eq!((gate.close(), gate.close()), (Some(1), None));
        assert!(gate.enter().is_none() && !gate.is_open());
        gate.count_one();
        assert_eq!((gate.count(), gate.count_if_open()), (2, None));
        gate.open();
        let pass = gate.enter().unwrap();
        assert_eq!(gate.close(), Some(u64::MAX));
        gate.count_one();
        assert_eq!(pass.before(), 2, "what the list was given is not before it");
        pass.submitted();
        assert_eq!(gate.count(), 4);
        gate.wait_until_empty();
    }

    #[test]
    fn who_closes_sees_what_those_inside_did() {
        let gate = Gate::default();
        for _ in 0..1000 {
            let (inside, done) = (AtomicBool::new(false), AtomicBool::new(false));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    if let Some(pass) = gate.enter() {
                        inside.store(true, Ordering::Relaxed);
                        std::hint::spin_loop();
                        done.store(true, Ordering::Relaxed);
                        pass.submitted();
                    }
                });
                gate.close();
                gate.wait_until_empty();
                let pair = (done.load(Ordering::Relaxed), inside.load(Ordering::Relaxed));
                assert!(pair.0 || !pair.1, "{pair:?}");
            });
            gate.open();
        }
    }
}
