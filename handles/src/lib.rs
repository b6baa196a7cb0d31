//! Generational handles: a table from 64-bit ids to shared objects.
//!
//! An id has a kind, an index and the generation of its slot. So a stale id, an id of another kind of object, 0 and
//! garbage are told apart, and each is an error. A look-up takes no lock: it costs three loads, and one step that
//! compares and counts. Its result keeps the object alive, whoever destroys the handle meanwhile.
//!
//! [`LastingTable`] is the same table for objects that are never freed. Its look-ups count nothing.

mod chunks;
mod lasting;
mod slot;
mod sync;

use std::fmt;
use std::ops::Deref;

use std::ptr::NonNull;

use outrigger_device::{Code, Error, Result};
use outrigger_locks::{Mutex, Rank};

pub use lasting::{Lasting, LastingTable, Life, Resting};

use chunks::{Chunks, MOST};
use slot::Slot;

/// The kind of object that an id names. Its number is part of the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A stream.
    Stream = 1,
    /// An event.
    Event = 2,
    /// A generator.
    Generator = 3,
    /// An observer.
    Observer = 4,
    /// A pool.
    Pool = 5,
    /// A graph.
    Graph = 6,
    /// An executable graph.
    GraphExec = 7,
    /// A registered operator.
    Registration = 8,
    /// A module.
    Module = 9,
    /// A kernel of a module.
    Kernel = 10,
    /// A communicator.
    Communicator = 11,
}

impl Kind {
    fn name(number: u64) -> Option<&'static str> {
        Some(match number {
            1 => "a stream",
            2 => "an event",
            3 => "a generator",
            4 => "an observer",
            5 => "a pool",
            6 => "a graph",
            7 => "an executable graph",
            8 => "a registration",
            9 => "a module",
            10 => "a kernel",
            11 => "a communicator",
            _ => return None,
        })
    }
}

// An id has the kind in bits 56 to 62, the generation in 24 to 55, and the index in 0 to 23. The top bit is 0, because
// frameworks keep ids in signed numbers.
const INDEX_BITS: u32 = 24;
const GENERATION_BITS: u32 = 32;

/// The objects of one kind by their ids. A table lives as long as the process.
pub struct Table<T: 'static> {
    kind: Kind,
    slots: Chunks<Slot<T>>,
    free: Mutex<Free>,
}

struct Free {
    indices: Vec<u32>,
    used: u32, // slots that were used at least once
}

impl<T: Send + Sync> Table<T> {
    /// An empty table.
    pub const fn new(kind: Kind) -> Self {
        let free = Free {
            indices: Vec::new(),
            used: 0,
        };
        Self {
            kind,
            slots: Chunks::new(),
            free: Mutex::new(Rank::FreeSlots, free),
        }
    }

    /// Adds an object. `make` is given its id.
    ///
    /// # Errors
    /// `OUT_OF_HOST_MEMORY` if too many objects are alive.
    pub fn insert(&'static self, make: impl FnOnce(u64) -> T) -> Result<Ref<T>> {
        let (index, slot, generation) = self.take_slot()?;
        let id = self.id(index, generation);
        slot.fill(generation, NonNull::from(Box::leak(Box::new(make(id)))));
        Ok(Ref {
            table: self,
            slot,
            id,
        })
    }

    fn id(&self, index: u32, generation: u32) -> u64 {
        (self.kind as u64) << (INDEX_BITS + GENERATION_BITS)
            | u64::from(generation) << INDEX_BITS
            | u64::from(index)
    }

    /// Makes a slot that has become empty free for another object.
    fn give_back(&self, index: u32) {
        self.free.lock().indices.push(index);
    }

    /// An empty slot, with its index and the generation of its next object.
    fn take_slot(&self) -> Result<(u32, &'static Slot<T>, u32)> {
        let mut free = self.free.lock();
        loop {
            let index = match free.indices.pop() {
                Some(index) => index,
                None if free.used < MOST => {
                    free.used += 1;
                    free.used - 1
                }
                None => return Err(too_many()),
            };
            let slot = self.slots.get_or_make(index as usize, Slot::new);
            // A slot that has no generation left is not used again, so that no id comes back.
            if let Some(generation) = slot.next_generation() {
                return Ok((index, slot, generation));
            }
        }
    }

    /// The object with this id. It lives as long as the result.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if the id is not of a live object.
    #[inline]
    pub fn get(&'static self, id: u64) -> Result<Ref<T>> {
        match self.slot(id) {
            Some((slot, generation)) if slot.enter(generation) => Ok(Ref {
                table: self,
                slot,
                id,
            }),
            _ => Err(unknown(self.kind, id)),
        }
    }

    /// Makes an id invalid for good. Its object lives as long as somebody uses it.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if the id is not of a live object.
    pub fn remove(&'static self, id: u64) -> Result<Ref<T>> {
        match self.slot(id) {
            // The caller gets the reference that the table had.
            Some((slot, generation)) if slot.close(generation) => Ok(Ref {
                table: self,
                slot,
                id,
            }),
            _ => Err(unknown(self.kind, id)),
        }
    }

    #[inline]
    fn slot(&self, id: u64) -> Option<(&'static Slot<T>, u32)> {
        if id >> (INDEX_BITS + GENERATION_BITS) != self.kind as u64 {
            return None;
        }
        let slot = self.slots.get(index_of(id) as usize)?;
        Some((slot, (id >> INDEX_BITS) as u32))
    }
}

#[inline]
fn index_of(id: u64) -> u32 {
    (id & ((1 << INDEX_BITS) - 1)) as u32
}

/// A counted reference to the object of a handle. The object lives as long as it, also after the handle was destroyed.
pub struct Ref<T: Send + Sync + 'static> {
    table: &'static Table<T>,
    slot: &'static Slot<T>,
    id: u64,
}

impl<T: Send + Sync> Ref<T> {
    /// The id in the C ABI.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Drops an object whose last reference is gone, and frees its slot.
    #[cold]
    fn end(&self, object: NonNull<T>) {
        // The object goes before its slot is free, because its drop may use its id.
        // SAFETY: `insert` made the pointer from a box, and `leave` returned it for the last reference only.
        drop(unsafe { Box::from_raw(object.as_ptr()) });
        self.table.give_back(index_of(self.id));
    }
}

impl<T: Send + Sync> Deref for Ref<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is a counted reference, so the object lives. Only shared references to it exist.
        unsafe { self.slot.object().as_ref() }
    }
}

impl<T: Send + Sync> Clone for Ref<T> {
    #[inline]
    fn clone(&self) -> Self {
        self.slot.again();
        Self { ..*self }
    }
}

impl<T: Send + Sync> Drop for Ref<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this reference was counted, and is not used any more.
        if let Some(object) = unsafe { self.slot.leave() } {
            self.end(object);
        }
    }
}

impl<T: Send + Sync + fmt::Debug> fmt::Debug for Ref<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// The error for a table that is full.
#[cold]
fn too_many() -> Error {
    Error::new(
        Code::OUT_OF_HOST_MEMORY,
        format!("{MOST} objects of one kind are alive: destroy some"),
    )
}

/// The error for an id that is not of a live object of this kind.
#[cold]
pub fn unknown(kind: Kind, id: u64) -> Error {
    let wanted = Kind::name(kind as u64).unwrap_or("an object");
    let found = id >> (INDEX_BITS + GENERATION_BITS);
    let text = match (id, Kind::name(found)) {
        (0, _) => format!("the handle is NULL where {wanted} is needed"),
        (_, Some(_)) if found == kind as u64 => {
            format!("the handle {id:#x} names {wanted} that was destroyed")
        }
        (_, Some(other)) => format!("the handle {id:#x} is of {other}, not of {wanted}"),
        (_, None) => format!("{id:#x} is not a handle of this runtime; {wanted} is needed"),
    };
    Error::new(Code::INVALID_HANDLE, text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn ids_are_never_used_again_and_wrong_ones_are_named() {
        static TABLE: Table<u64> = Table::new(Kind::Stream);
        let first = *TABLE.insert(|id| id).expect("room");
        assert_eq!(*TABLE.get(first).expect("alive"), first);
        drop(TABLE.remove(first).expect("alive"));
        let second = *TABLE.insert(|id| id).expect("room");
        assert_ne!(first, second, "the slot is reused under another generation");
        for (id, text) in [
            (first, "destroyed"),
            (0, "NULL"),
            (second ^ (3 << 56), "of an event"),
            (u64::MAX, "not a handle"),
            (second + 1, "destroyed"),
        ] {
            let error = TABLE.get(id).expect_err("must be refused");
            assert_eq!(error.code(), Code::INVALID_HANDLE);
            assert!(error.message().contains(text), "{id:#x}: {error}");
            assert!(TABLE.remove(id).is_err());
        }
        assert_eq!(*TABLE.get(second).expect("untouched"), second);
    }

    #[test]
    fn an_object_lives_as_long_as_its_last_reference() {
        static TABLE: Table<Arc<()>> = Table::new(Kind::Pool);
        let seen = Arc::new(());
        let held = TABLE.insert(|_| Arc::clone(&seen)).expect("room");
        let id = held.id;
        let removed = TABLE.remove(id).expect("alive");
        assert!(TABLE.get(id).is_err() && TABLE.remove(id).is_err());
        let other = TABLE.insert(|_| Arc::default()).expect("room");
        assert_ne!(
            other.id & 0xff_ffff,
            id & 0xff_ffff,
            "a slot in use is nobody else's"
        );
        drop(removed);
        assert_eq!(Arc::strong_count(&seen), 2);
        let again = held.clone();
        drop(held);
        assert!(Arc::ptr_eq(&again, &seen));
        drop(again);
        assert_eq!(Arc::strong_count(&seen), 1, "dropped");
        let next = TABLE.insert(|_| Arc::default()).expect("room");
        assert_eq!(next.id & 0xff_ffff, id & 0xff_ffff, "the slot is free");
    }

    #[test]
    fn threads_see_whole_objects() {
        static TABLE: Table<u64> = Table::new(Kind::Event);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let id = *TABLE.insert(|id| id).expect("room");
                        assert_eq!(*TABLE.get(id).expect("alive"), id);
                        TABLE.remove(id).expect("alive");
                        assert!(TABLE.get(id).is_err());
                    }
                });
            }
        });
        assert!(TABLE.free.lock().used <= 4);
    }
}
