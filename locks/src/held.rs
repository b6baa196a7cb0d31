//! The ranks that a thread holds. Each rank is a bit, because no thread holds a rank twice.

#[cfg(debug_assertions)]
use std::cell::Cell;

use crate::Rank;

#[cfg(debug_assertions)]
thread_local! {
    static HELD: Cell<u64> = const { Cell::new(0) };
}

/// The rank of a lock, where it is checked.
#[derive(Debug)]
pub(crate) struct Place {
    #[cfg(debug_assertions)]
    rank: Rank,
}

/// A note that a lock is held, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl Place {
    #[cfg_attr(
        not(debug_assertions),
        expect(unused_variables, reason = "nothing is checked")
    )]
    pub(crate) const fn new(rank: Rank) -> Self {
        Self {
            #[cfg(debug_assertions)]
            rank,
        }
    }

    /// Notes that the lock is about to be taken.
    ///
    /// # Panics
    /// If the thread holds one that comes later, or of the same rank.
    #[inline]
    pub(crate) fn take(&self) -> Held {
        #[cfg(debug_assertions)]
        {
            let (rank, held) = (self.rank, HELD.get());
            if let Some(last) = Rank::last_of(held & !(rank.bit() - 1)) {
                panic!(
                    "the lock {rank:?} is taken while {last:?} is held, which comes after it: the order is \
                     that of `outrigger_locks::Rank`"
                );
            }
            HELD.set(held | rank.bit());
            Held { rank }
        }
        #[cfg(not(debug_assertions))]
        Held {}
    }
}

impl Held {
    /// Says that the thread is about to wait with this lock let go.
    ///
    /// # Panics
    /// If it holds another one that is no turn.
    #[inline]
    pub(crate) fn alone(&self) {
        #[cfg(debug_assertions)]
        if let Some(other) =
            Rank::last_of(HELD.get() & !self.rank.bit()).filter(|other| !other.is_turn())
        {
            panic!("a thread waits at {:?} while it holds {other:?}", self.rank);
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(HELD.get() & !self.rank.bit());
    }
}

/// Says that a function of the host is about to be called, which may call back.
///
/// # Panics
/// With debug assertions, if the thread holds a lock or a turn.
#[inline]
pub fn calls_host(what: &str) {
    #[cfg(debug_assertions)]
    if let Some(held) = Rank::last_of(HELD.get()) {
        panic!("{what} is called while the lock {held:?} is held: it may call the library");
    }
    #[cfg(not(debug_assertions))]
    {
        _ = what;
    }
}

/// Says that a driver was called, which may have waited.
///
/// # Panics
/// With debug assertions, if the thread holds a lock that is no turn.
#[inline]
pub fn calls_driver() {
    #[cfg(debug_assertions)]
    if let Some(held) = Rank::last_of(HELD.get()).filter(|held| !held.is_turn()) {
        panic!("the driver is called while the lock {held:?} is held: it may wait");
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::{Mutex, RwLock};

    fn message(call: impl FnOnce()) -> String {
        let panic = catch_unwind(AssertUnwindSafe(call)).expect_err("it must be noticed");
        let text = panic.downcast_ref::<String>();
        text.expect("a formatted message").clone()
    }

    #[test]
    fn a_wrong_order_names_both_locks() {
        let (outer, inner) = (
            Mutex::new(Rank::ExecTurn, ()),
            RwLock::new(Rank::Capture, ()),
        );
        for _ in 0..2 {
            let right = (outer.lock(), inner.read());
            drop(right);
            let text = message(|| drop((inner.write(), outer.lock())));
            assert!(
                text.contains("ExecTurn") && text.contains("Capture"),
                "{text}"
            );
        }
        let text = message(|| drop((outer.lock(), outer.lock())));
        assert!(text.contains("ExecTurn"), "{text}");
    }

    #[test]
    fn guards_may_be_dropped_in_any_order() {
        let (outer, inner) = (
            Mutex::new(Rank::ExecTurn, ()),
            Mutex::new(Rank::Capture, ()),
        );
        let (first, second) = (outer.lock(), inner.lock());
        drop(first);
        let text = message(|| drop(outer.try_lock()));
        assert!(
            text.contains("Capture"),
            "the inner one is still held: {text}"
        );
        drop(second);
        calls_host("an observer");
        drop(outer.lock());
    }

    #[test]
    fn nothing_is_held_over_a_call_of_the_host_and_only_turns_over_one_of_the_driver() {
        let (turn, lock) = (
            Mutex::new(Rank::ExecTurn, ()),
            Mutex::new(Rank::Capture, ()),
        );
        let held = turn.lock();
        calls_driver();
        let text = message(|| calls_host("an observer"));
        assert!(
            text.contains("an observer") && text.contains("ExecTurn"),
            "{text}"
        );
        drop(held);
        let held = lock.lock();
        assert!(message(calls_driver).contains("Capture"));
        drop(held);
        calls_driver();
        calls_host("an observer");
    }

    #[test]
    fn another_thread_holds_its_own() {
        let outer = Mutex::new(Rank::ExecTurn, ());
        let inner = Mutex::new(Rank::Capture, ());
        let _held = inner.lock();
        std::thread::scope(|scope| {
            scope.spawn(|| drop(outer.lock()));
        });
    }
}
