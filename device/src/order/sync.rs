//! The primitives of a list. `tests/order` compiles the list with those of a model checker in place of these.

pub(super) use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use outrigger_locks::{Condvar, Mutex, MutexGuard as Guard};

use outrigger_locks::Rank;

/// The lock of a list.
pub(super) fn mutex<T>(value: T) -> Mutex<T> {
    Mutex::new(Rank::HeldWork, value)
}
