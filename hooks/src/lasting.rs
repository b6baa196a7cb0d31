//! Objects that are never freed and have many lives, one after the other: an id names one life.
//!
//! Looking an id up takes no lock and writes nothing, so that it costs a few loads. That an object is
//! destroyed while another thread uses it is then harmless: it is still there, at most in its next
//! life. Ids are those of `table`: never 0, never used again.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::Result;
use crate::table::{Chunks, GENERATION_BITS, INDEX_BITS, Kind, MOST, too_many, unknown};

/// Which life an object is in. Part of the object.
#[derive(Debug)]
pub(crate) struct Life {
    /// The id; 0 between two lives.
    id: AtomicU64,
    /// The id of the latest life.
    latest: AtomicU64,
}

/// What has many lives.
pub(crate) trait Lasting: Sync + 'static {
    fn life(&self) -> &Life;
}

impl Life {
    /// The id of this life; 0 if it is over.
    pub(crate) fn id(&self) -> u64 {
        self.id.load(Ordering::Relaxed)
    }

    /// Begins the next life of an object that was given back. Nobody else does so at the same time.
    /// `false` if there are no more ids for it.
    pub(crate) fn begin(&self) -> bool {
        let latest = self.latest.load(Ordering::Relaxed);
        if latest >> INDEX_BITS & (u64::MAX >> (64 - GENERATION_BITS)) == u64::from(u32::MAX) {
            return false;
        }
        let next = latest + (1 << INDEX_BITS);
        self.latest.store(next, Ordering::Relaxed);
        // Release: who finds the id sees the object as it was made ready.
        self.id.store(next, Ordering::Release);
        true
    }
}

/// Objects of one kind by id.
pub(crate) struct LastingTable<T: Lasting> {
    kind: Kind,
    places: Chunks<AtomicPtr<T>>,
    used: AtomicU32,
}

impl<T: Lasting> LastingTable<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            places: Chunks::new(),
            used: AtomicU32::new(0),
        }
    }

    /// Puts a new object in, for good; `make` is given a life that has not begun.
    pub(crate) fn insert(&self, make: impl FnOnce(Life) -> T) -> Result<&'static T> {
        let next = |used: u32| (used < MOST).then_some(used + 1);
        let (now, before) = (Ordering::Relaxed, Ordering::Relaxed);
        let index = self.used.fetch_update(now, before, next);
        let index = index.map_err(|_| too_many())?;
        let life = Life {
            id: AtomicU64::new(0),
            latest: AtomicU64::new(
                (self.kind as u64) << (INDEX_BITS + GENERATION_BITS) | u64::from(index),
            ),
        };
        let object: &'static mut T = Box::leak(Box::new(make(life)));
        let empty = || AtomicPtr::new(std::ptr::null_mut());
        let place = self.places.get_or_make(index as usize, empty);
        place.store(object, Ordering::Release);
        Ok(object)
    }

    /// The object that lives under this id.
    #[inline]
    pub(crate) fn get(&self, id: u64) -> Result<&'static T> {
        if id >> (INDEX_BITS + GENERATION_BITS) == self.kind as u64
            && let Some(place) = self.places.get((id & ((1 << INDEX_BITS) - 1)) as usize)
        {
            // SAFETY: NULL, or from a box that was leaked in `insert`.
            let object = unsafe { place.load(Ordering::Acquire).as_ref() };
            if let Some(object) = object
                && object.life().id.load(Ordering::Acquire) == id
            {
                return Ok(object);
            }
        }
        Err(unknown(self.kind, id))
    }

    /// Ends the life of this id. Of several threads one succeeds.
    pub(crate) fn end(&self, id: u64) -> Result<&'static T> {
        let object = self.get(id)?;
        let (done, missed) = (Ordering::AcqRel, Ordering::Relaxed);
        match object.life().id.compare_exchange(id, 0, done, missed) {
            Ok(_) => Ok(object),
            Err(_) => Err(unknown(self.kind, id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use outrigger_device::Code;

    use super::*;

    #[derive(Debug)]
    struct Object(Life);

    impl Lasting for Object {
        fn life(&self) -> &Life {
            &self.0
        }
    }

    #[test]
    fn an_id_names_one_life() {
        static TABLE: LastingTable<Object> = LastingTable::new(Kind::Event);
        let object = TABLE.insert(Object).expect("room");
        assert!(
            TABLE.get(object.0.latest.load(Ordering::Relaxed)).is_err(),
            "not begun"
        );
        assert!(object.0.begin());
        let first = object.0.id();
        assert!(std::ptr::eq(TABLE.get(first).expect("alive"), object));
        TABLE.end(first).expect("alive");
        assert!(TABLE.end(first).is_err() && TABLE.get(first).is_err());
        assert!(object.0.begin());
        let second = object.0.id();
        assert_ne!(first, second);
        for (id, text) in [
            (first, "destroyed"),
            (0, "NULL"),
            (second ^ (3 << 56), "not of"),
        ] {
            let error = TABLE.get(id).expect_err("must be refused");
            assert_eq!(error.code(), Code::INVALID_HANDLE);
            assert!(error.message().contains(text), "{id:#x}: {error}");
        }
        object.0.latest.store(
            second | u64::from(u32::MAX) << INDEX_BITS,
            Ordering::Relaxed,
        );
        assert!(!object.0.begin(), "no id comes twice");
    }
}
