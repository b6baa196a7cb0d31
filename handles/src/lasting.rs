//! Objects that are never freed, and that have many lives one after the other. An id names one life.
//!
//! A look-up writes nothing, so it costs a few loads. If another thread destroys the object meanwhile, that is
//! harmless: the object is still there, at worst in its next life.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::{Error, Result};

use crate::{Kind, Table, index_of, unknown};

/// The present life of an object, as a part of the object.
#[derive(Debug, Default)]
pub struct Life {
    /// The id; 0 between two lives.
    id: AtomicU64,
}

impl Life {
    /// The id of this life; 0 if it is over.
    pub fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }
}

/// An object that has many lives.
pub trait Lasting: Send + Sync + 'static {
    /// The life of the object.
    fn life(&self) -> &Life;
}

/// An object between two lives. Its owner decides when the next life begins.
#[derive(Debug)]
pub struct Resting<T: 'static>(&'static T);

impl<T> Resting<T> {
    /// A new object, before its first life.
    pub fn new(object: T) -> Self {
        Self(Box::leak(Box::new(object)))
    }
}

impl<T> Deref for Resting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0
    }
}

/// The objects of one kind by their ids.
pub struct LastingTable<T: Lasting>(Table<T>);

impl<T: Lasting> LastingTable<T> {
    /// An empty table.
    pub const fn new(kind: Kind) -> Self {
        Self(Table::new(kind))
    }

    /// Begins a life of the object that `next` returns.
    ///
    /// # Errors
    /// `OUT_OF_HOST_MEMORY` if too many objects are alive; that of `next`.
    pub fn begin<E: From<Error>>(
        &'static self,
        next: impl FnOnce() -> Result<Resting<T>, E>,
    ) -> Result<&'static T, E> {
        let (index, slot, generation) = self.0.take_slot()?;
        let Resting(object) = next().inspect_err(|_| self.0.give_back(index))?;
        slot.fill(generation, NonNull::from(object));
        // SAFETY: `fill` counted one reference for this caller. An object that is never freed does not need it.
        unsafe { slot.leave() };
        // Release: a thread that finds the id sees the object as `next` prepared it.
        let id = self.0.id(index, generation);
        object.life().id.store(id, Ordering::Release);
        Ok(object)
    }

    /// The object that lives under this id.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if the id is not of a present life.
    #[inline]
    pub fn get(&'static self, id: u64) -> Result<&'static T> {
        if let Some((slot, _)) = self.0.slot(id) {
            // SAFETY: the pointer is NULL, or to an object that `Resting::new` leaked.
            let object = unsafe { slot.latest().as_ref() };
            if let Some(object) = object
                && object.life().id.load(Ordering::Acquire) == id
            {
                return Ok(object);
            }
        }
        Err(unknown(self.0.kind, id))
    }

    /// Ends the life of this id. If several threads try, one of them succeeds.
    ///
    /// # Errors
    /// `INVALID_HANDLE` if the id is not of a present life.
    pub fn end(&'static self, id: u64) -> Result<Resting<T>> {
        let object = self.get(id)?;
        let (done, missed) = (Ordering::AcqRel, Ordering::Relaxed);
        if object
            .life()
            .id
            .compare_exchange(id, 0, done, missed)
            .is_err()
        {
            return Err(unknown(self.0.kind, id));
        }
        if let Some((slot, generation)) = self.0.slot(id)
            && slot.close(generation)
        {
            // SAFETY: `close` has handed over the reference that the table had.
            unsafe { slot.leave() };
            self.0.give_back(index_of(id));
        }
        Ok(Resting(object))
    }
}

#[cfg(test)]
mod tests {
    use outrigger_device::Code;

    use super::*;

    #[derive(Debug, Default)]
    struct Object(Life);

    impl Lasting for Object {
        fn life(&self) -> &Life {
            &self.0
        }
    }

    #[test]
    fn an_id_names_one_life() {
        static TABLE: LastingTable<Object> = LastingTable::new(Kind::Event);
        let begin = |object| TABLE.begin(|| Ok::<_, Error>(object)).expect("room");
        let object = begin(Resting::new(Object::default()));
        let first = object.0.id();
        assert!(std::ptr::eq(TABLE.get(first).expect("alive"), object));
        let resting = TABLE.end(first).expect("alive");
        assert_eq!(resting.life().id(), 0);
        assert!(TABLE.end(first).is_err() && TABLE.get(first).is_err());
        let other = begin(Resting::new(Object::default()));
        assert!(TABLE.get(first).is_err(), "its slot is another's");
        assert!(std::ptr::eq(begin(resting), object));
        let second = object.0.id();
        assert_ne!(first, second);
        assert!(std::ptr::eq(TABLE.get(other.0.id()).expect("alive"), other));
        for (id, text) in [
            (first, "destroyed"),
            (0, "NULL"),
            (second ^ (3 << 56), "not of"),
        ] {
            let error = TABLE.get(id).expect_err("must be refused");
            assert_eq!(error.code(), Code::INVALID_HANDLE);
            assert!(error.message().contains(text), "{id:#x}: {error}");
        }
    }

    #[test]
    fn an_object_that_cannot_be_made_takes_no_slot() {
        static TABLE: LastingTable<Object> = LastingTable::new(Kind::Event);
        let refused = || Err(Error::new(Code::UNSUPPORTED, "no"));
        assert_eq!(
            TABLE.begin(refused).expect_err("refused").code(),
            Code::UNSUPPORTED
        );
        let next = TABLE.begin(|| Ok::<_, Error>(Resting::new(Object::default())));
        assert_eq!(index_of(next.expect("room").0.id()), 0);
    }
}
