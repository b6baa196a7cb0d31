//! Generational handles: a table from 64-bit ids to shared objects.
//!
//! An id holds a kind, an index and the generation of its slot, so that a stale id, an id of another
//! kind of object, 0, and garbage are told apart and answered with an error. Looking an id up takes
//! one uncontended lock of its slot and never allocates. It must never hold a slot's lock over a call
//! that waits: [`Table::with`] is for short calls, [`Table::get`] for the others.

use std::sync::{Arc, OnceLock};

use outrigger_device::Code;
use parking_lot::{Mutex, RwLock};

use crate::{Error, Result};

/// What an id refers to. The number is part of every id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Stream = 1,
    Event = 2,
    Generator = 3,
    Observer = 4,
    Pool = 5,
    Graph = 6,
    GraphExec = 7,
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
            _ => return None,
        })
    }
}

// An id: kind in bits 56 to 62, generation in 24 to 55, index in 0 to 23. The top bit stays 0, since
// frameworks keep ids in signed numbers.
pub(crate) const INDEX_BITS: u32 = 24;
pub(crate) const GENERATION_BITS: u32 = 32;
pub(crate) const CHUNK: usize = 256;
pub(crate) const CHUNKS: usize = 4096; // 2^20 objects of a kind alive at once

struct Slot<T> {
    generation: u32, // of the object that lives here, or lived here last
    object: Option<Arc<T>>,
}

type Chunk<T> = Box<[RwLock<Slot<T>>]>;

/// Objects of one kind by id.
pub(crate) struct Table<T> {
    kind: Kind,
    chunks: [OnceLock<Chunk<T>>; CHUNKS],
    free: Mutex<Free>,
}

struct Free {
    indices: Vec<u32>,
    used: u32, // slots handed out at least once
}

impl<T> Table<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            chunks: [const { OnceLock::new() }; CHUNKS],
            free: Mutex::new(Free {
                indices: Vec::new(),
                used: 0,
            }),
        }
    }

    /// Puts an object in; `make` is given its id.
    pub(crate) fn insert(&self, make: impl FnOnce(u64) -> T) -> Result<Arc<T>> {
        let index = {
            let mut free = self.free.lock();
            match free.indices.pop() {
                Some(index) => index,
                None if (free.used as usize) < CHUNK * CHUNKS => {
                    free.used += 1;
                    free.used - 1
                }
                None => {
                    return Err(Error::new(
                        Code::OUT_OF_HOST_MEMORY,
                        format!(
                            "{} objects of one kind are alive: destroy some",
                            CHUNK * CHUNKS
                        ),
                    ));
                }
            }
        };
        let chunk = self.chunks[index as usize / CHUNK].get_or_init(|| {
            (0..CHUNK)
                .map(|_| {
                    RwLock::new(Slot {
                        generation: 0,
                        object: None,
                    })
                })
                .collect()
        });
        let mut slot = chunk[index as usize % CHUNK].write();
        slot.generation += 1;
        let object = Arc::new(make(self.id(slot.generation, index)));
        slot.object = Some(Arc::clone(&object));
        Ok(object)
    }

    /// Runs a short call on an object, which cannot go away meanwhile. The call must not look the
    /// same object up again: a waiting `remove` would come between.
    #[inline]
    pub(crate) fn with<R>(&self, id: u64, call: impl FnOnce(&T) -> Result<R>) -> Result<R> {
        let Some((slot, generation)) = self.slot(id) else {
            return Err(unknown(self.kind, id));
        };
        let slot = slot.read();
        match &slot.object {
            Some(object) if slot.generation == generation => call(object),
            _ => Err(unknown(self.kind, id)),
        }
    }

    /// The object, shared.
    pub(crate) fn get(&self, id: u64) -> Result<Arc<T>> {
        let Some((slot, generation)) = self.slot(id) else {
            return Err(unknown(self.kind, id));
        };
        let slot = slot.read();
        match &slot.object {
            Some(object) if slot.generation == generation => Ok(Arc::clone(object)),
            _ => Err(unknown(self.kind, id)),
        }
    }

    /// Takes an object out. Its id is never valid again.
    pub(crate) fn remove(&self, id: u64) -> Result<Arc<T>> {
        let Some((slot, generation)) = self.slot(id) else {
            return Err(unknown(self.kind, id));
        };
        let mut slot = slot.write();
        if slot.generation != generation {
            return Err(unknown(self.kind, id));
        }
        let Some(object) = slot.object.take() else {
            return Err(unknown(self.kind, id));
        };
        // A slot whose generations are used up is retired, so that an id never comes back.
        if slot.generation < u32::MAX {
            self.free
                .lock()
                .indices
                .push((id & ((1 << INDEX_BITS) - 1)) as u32);
        }
        Ok(object)
    }

    #[inline]
    fn id(&self, generation: u32, index: u32) -> u64 {
        (self.kind as u64) << (INDEX_BITS + GENERATION_BITS)
            | u64::from(generation) << INDEX_BITS
            | u64::from(index)
    }

    #[inline]
    fn slot(&self, id: u64) -> Option<(&RwLock<Slot<T>>, u32)> {
        if id >> (INDEX_BITS + GENERATION_BITS) != self.kind as u64 {
            return None;
        }
        let index = (id & ((1 << INDEX_BITS) - 1)) as usize;
        let chunk = self.chunks.get(index / CHUNK)?.get()?;
        Some((&chunk[index % CHUNK], (id >> INDEX_BITS) as u32))
    }
}

/// Why an id is not of a live object of this kind.
#[cold]
pub(crate) fn unknown(kind: Kind, id: u64) -> Error {
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
    use super::*;

    #[test]
    fn ids_are_never_used_again_and_wrong_ones_are_named() {
        let table = Table::<u64>::new(Kind::Stream);
        let first = *table.insert(|id| id).expect("room");
        assert_eq!(*table.get(first).expect("alive"), first);
        table.remove(first).expect("alive");
        let second = *table.insert(|id| id).expect("room");
        assert_ne!(first, second, "the slot is reused under another generation");
        for (id, text) in [
            (first, "destroyed"),
            (0, "NULL"),
            (second ^ (3 << 56), "of an event"),
            (u64::MAX, "not a handle"),
            (second + 1, "destroyed"),
        ] {
            let error = table.get(id).expect_err("must be refused");
            assert_eq!(error.code(), Code::INVALID_HANDLE);
            assert!(error.message().contains(text), "{id:#x}: {error}");
            assert!(table.remove(id).is_err());
            assert!(table.with(id, |_| Ok(())).is_err());
        }
        assert_eq!(*table.get(second).expect("untouched"), second);
    }

    #[test]
    fn threads_see_whole_objects() {
        let table = Table::<u64>::new(Kind::Event);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let id = *table.insert(|id| id).expect("room");
                        table
                            .with(id, |object| {
                                assert_eq!(*object, id);
                                Ok(())
                            })
                            .expect("alive");
                        table.remove(id).expect("alive");
                        assert!(table.get(id).is_err());
                    }
                });
            }
        });
        assert!(table.free.lock().used <= 4);
    }
}
