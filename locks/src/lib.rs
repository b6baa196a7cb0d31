//! Locks with ranks: every thread takes them in the same order, and holds none over a call that may
//! call back.
//!
//! [`Rank`] lists every lock above the drivers, the outermost first. There are two kinds:
//!
//! - A *turn* lets one thread at a time submit work to a driver, or ask it for memory. It may be held
//!   over calls of the driver, also over calls that wait.
//! - A *lock* guards data. It is never held over a call of the driver, and never over a wait.
//!
//! Over a call of the host (an observer, or a function that gives user data back) a thread holds
//! neither.
//!
//! Builds with debug assertions check all of this, and panic with the names of both sides. Other builds
//! check nothing and pay nothing. This crate must never decide anything: it only reports violations.

#![forbid(unsafe_code)]

mod held;
mod rank;

use std::fmt;
use std::ops::{Deref, DerefMut};

use held::{Held, Place};
pub use held::{calls_driver, calls_host};
pub use rank::Rank;

/// A mutual exclusion with a [`Rank`].
pub struct Mutex<T> {
    place: Place,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Guards `value`.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            place: Place::new(rank),
            inner: parking_lot::Mutex::new(value),
        }
    }

    /// Takes the lock; waits for whoever has it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let held = self.place.take();
        MutexGuard {
            inner: self.inner.lock(),
            _held: held,
        }
    }

    /// Takes the lock if nobody has it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.inner.try_lock()?;
        let _held = self.place.take();
        Some(MutexGuard { inner, _held })
    }

    /// The value of a lock that nobody else can know.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// A [`Mutex`] that is held.
#[must_use]
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    inner: parking_lot::MutexGuard<'a, T>,
    _held: Held, // dropped after the lock
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The place where a thread waits until the value in a [`Mutex`] has changed.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// One that nobody waits at.
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Lets the lock go, waits to be woken, and takes it again. May wake without a reason.
    ///
    /// # Panics
    /// With debug assertions, if the thread holds a lock but this one. A turn may be held, as over a driver that waits.
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard._held.alone();
        self.0.wait(&mut guard.inner);
    }

    /// Wakes all who wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// A lock with a [`Rank`] that many may read, or one may write.
pub struct RwLock<T> {
    place: Place,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Guards `value`.
    pub const fn new(rank: Rank, value: T) -> Self {
        Self {
            place: Place::new(rank),
            inner: parking_lot::RwLock::new(value),
        }
    }

    /// Takes the lock to read.
    #[inline]
    pub fn read(&self) -> ReadGuard<'_, T> {
        let held = self.place.take();
        ReadGuard {
            inner: self.inner.read(),
            _held: held,
        }
    }

    /// Takes the lock to write.
    #[inline]
    pub fn write(&self) -> WriteGuard<'_, T> {
        let held = self.place.take();
        WriteGuard {
            inner: self.inner.write(),
            _held: held,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// An [`RwLock`] that is held to read.
#[must_use]
#[derive(Debug)]
pub struct ReadGuard<'a, T> {
    inner: parking_lot::RwLockReadGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

/// An [`RwLock`] that is held to write.
#[must_use]
#[derive(Debug)]
pub struct WriteGuard<'a, T> {
    inner: parking_lot::RwLockWriteGuard<'a, T>,
    _held: Held,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}
