//! The model checker's side of `src/host/sync.rs` and `src/order/sync.rs`: the same names over loom's primitives. Time does not
//! pass here: who waits for something or until then waits for it for ever, so that a wake-up that is
//! missing is a deadlock, which loom reports.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

pub(super) use loom::hint::spin_loop;
pub(super) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(super) use loom::thread::yield_now;

/// As `std::thread_local` has it.
macro_rules! per_thread {
    (static $name:ident: $type:ty = const { $value:expr };) => {
        loom::thread_local! {
            static $name: $type = $value;
        }
    };
}
pub(super) use per_thread;

pub(super) const MODEL: bool = true;

pub(super) fn spawn(_name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    drop(loom::thread::spawn(body));
    Ok(())
}

/// Memory whose uses loom orders.
#[derive(Debug)]
pub(super) struct Handed(loom::cell::UnsafeCell<()>);

impl Handed {
    pub(super) fn new() -> Self {
        Self(loom::cell::UnsafeCell::new(()))
    }

    pub(super) fn read(&self) {
        self.0.with(|_| ());
    }

    pub(super) fn write(&self) {
        self.0.with_mut(|_| ());
    }
}

#[derive(Debug, Default)]
pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

pub(super) type Guard<'a, T> = loom::sync::MutexGuard<'a, T>;

impl<T> Mutex<T> {
    pub(super) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().expect("no model panics under a lock")
    }
}

/// The lock of a list.
pub(super) fn mutex<T>(value: T) -> Mutex<T> {
    Mutex::new(value)
}

#[derive(Debug)]
pub(super) struct Condvar(loom::sync::Condvar);

impl Default for Condvar {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether a wait ended by its limit: it never does.
pub(super) struct Ended;

impl Ended {
    pub(super) fn timed_out(&self) -> bool {
        false
    }
}

impl Condvar {
    pub(super) fn new() -> Self {
        Self(loom::sync::Condvar::new())
    }

    /// Waits. The guard that the standard interface moves in and out stays where it is.
    pub(super) fn wait<T>(&self, guard: &mut Guard<'_, T>) {
        // SAFETY: the guard is moved out and one for the same lock is put in its place. In between only
        // loom runs, which does not unwind here: a model that fails ends the process of the test.
        unsafe {
            let moved = std::ptr::read(guard);
            let back = self.0.wait(moved).expect("no model panics under a lock");
            std::ptr::write(guard, back);
        }
    }

    pub(super) fn wait_for<T>(&self, guard: &mut Guard<'_, T>, _limit: Duration) -> Ended {
        self.wait(guard);
        Ended
    }

    pub(super) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(super) fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock that nobody waits for, with the orderings that `parking_lot` has: to look at it orders nothing.
#[derive(Debug)]
pub(super) struct TryLock<T> {
    locked: AtomicBool,
    handed: Handed,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through the guard only, of which there is one at a time.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    pub(super) fn new(value: T) -> Self {
        Self {
            locked: AtomicBool::new(false),
            handed: Handed::new(),
            value: UnsafeCell::new(value),
        }
    }

    pub(super) fn is_locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }

    pub(super) fn try_lock(&self) -> Option<Held<'_, T>> {
        let taken = self
            .locked
            .compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        taken.ok()?;
        self.handed.write();
        Some(Held(self))
    }
}

/// The lock, held.
pub(super) struct Held<'a, T>(&'a TryLock<T>);

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this is the one guard.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the one guard.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}
