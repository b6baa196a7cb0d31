//! Objects that are never freed and have many lives, one after the other: an id names one life.
//!
//! Looking an id up takes no lock and writes nothing, so that it costs a few loads. That an object is
//! destroyed while another thread uses it is then harmless: it is still there, at most in its next
//! life. Ids are those of `table`: never 0, never used again.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use outrigger_device::Code;

use crate::table::{CHUNK, CHUNKS, GENERATION_BITS, INDEX_BITS, Kind, unknown};
use crate::{Error, Result};

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

type Chunk<T> = [AtomicPtr<T>; CHUNK];

/// Objects of one kind by id.
pub(crate) struct LastingTable<T: Lasting> {
    kind: Kind,
    chunks: [AtomicPtr<Chunk<T>>; CHUNKS],
    used: AtomicU32,
}

impl<T: Lasting> LastingTable<T> {
    pub(crate) const fn new(kind: Kind) -> Self {
        Self {
            kind,
            chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS],
            used: AtomicU32::new(0),
        }
    }

    /// Puts a new object in, for good; `make` is given a life that has not begun.
    pub(crate) fn insert(&self, make: impl FnOnce(Life) -> T) -> Result<&'static T> {
        let most = (CHUNK * CHUNKS) as u32;
        let next = |used: u32| (used < most).then_some(used + 1);
        let (now, before) = (Ordering::Relaxed, Ordering::Relaxed);
        let Ok(index) = self.used.fetch_update(now, before, next) else {
            return Err(Error::new(
                Code::OUT_OF_HOST_MEMORY,
                format!("{most} objects of one kind are alive: destroy some"),
            ));
        };
        let life = Life {
            id: AtomicU64::new(0),
            latest: AtomicU64::new(
                (self.kind as u64) << (INDEX_BITS + GENERATION_BITS) | u64::from(index),
            ),
        };
        let object: &'static mut T = Box::leak(Box::new(make(life)));
        self.chunk(index as usize / CHUNK)[index as usize % CHUNK].store(object, Ordering::Release);
        Ok(object)
    }

    /// A chunk, made at first need.
    fn chunk(&self, index: usize) -> &'static Chunk<T> {
        let place = &self.chunks[index];
        // SAFETY: NULL, or from a box that was leaked below.
        if let Some(chunk) = unsafe { place.load(Ordering::Acquire).as_ref() } {
            return chunk;
        }
        let fresh = Box::into_raw(Box::new(
            [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNK],
        ));
        let (done, missed) = (Ordering::AcqRel, Ordering::Acquire);
        let chunk = match place.compare_exchange(std::ptr::null_mut(), fresh, done, missed) {
            Ok(_) => fresh,
            Err(first) => {
                // SAFETY: made above, and nobody has seen it.
                drop(unsafe { Box::from_raw(fresh) });
                first
            }
        };
        // SAFETY: leaked, by this thread or another one.
        unsafe { &*chunk }
    }

    /// The object that lives under this id.
    #[inline]
    pub(crate) fn get(&self, id: u64) -> Result<&'static T> {
        if id >> (INDEX_BITS + GENERATION_BITS) == self.kind as u64 {
            let index = (id & ((1 << INDEX_BITS) - 1)) as usize;
            let chunk = self.chunks.get(index / CHUNK).map(|one| {
                // SAFETY: NULL, or from a box that was leaked in `chunk`.
                unsafe { one.load(Ordering::Acquire).as_ref() }
            });
            if let Some(Some(chunk)) = chunk {
                let object = chunk[index % CHUNK].load(Ordering::Acquire);
                // SAFETY: NULL, or from a box that was leaked in `insert`.
                if let Some(object) = unsafe { object.as_ref() }
                    && object.life().id.load(Ordering::Acquire) == id
                {
                    return Ok(object);
                }
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
