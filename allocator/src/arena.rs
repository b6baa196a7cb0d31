//! Arenas: the free blocks of one stream, of the shared memory or of one private pool.
//!
//! The shared arenas are found here, by stream, on the way of every allocation; those of a pool are
//! found by the pool. It must never keep an arena that has no segment: streams come and go.

use std::ops::{Index, IndexMut};

use crate::lists::FreeLists;
use crate::table::{NONE, Table};
use crate::{PoolId, StreamId};

/// Free blocks that serve one stream.
pub(crate) struct Arena {
    /// The pool whose allocations it serves; `None` is the shared memory.
    pub(crate) pool: Option<PoolId>,
    pub(crate) stream: StreamId,
    pub(crate) lists: [FreeLists; 2], // by class
    pub(crate) segments: usize,
}

/// All arenas.
pub(crate) struct Arenas {
    records: Vec<Arena>,
    spare: Vec<u32>,
    shared: Table,           // by stream
    latest: (StreamId, u32), // the stream that was looked up last, and its shared arena
}

impl Arenas {
    pub(crate) fn new() -> Self {
        Self {
            records: Vec::new(),
            spare: Vec::new(),
            shared: Table::new(),
            latest: (StreamId(0), NONE),
        }
    }

    /// The shared arena of a stream, or [`NONE`].
    #[inline]
    pub(crate) fn shared(&mut self, stream: StreamId) -> u32 {
        if self.latest.0 != stream || self.latest.1 == NONE {
            self.latest = (stream, self.shared.get(stream.0));
        }
        self.latest.1
    }

    /// Adds an arena that is not there, without segments.
    pub(crate) fn add(&mut self, pool: Option<PoolId>, stream: StreamId, rounding: u64) -> u32 {
        let arena = Arena {
            pool,
            stream,
            lists: [FreeLists::new(rounding), FreeLists::new(rounding)],
            segments: 0,
        };
        let id = if let Some(id) = self.spare.pop() {
            self[id] = arena;
            id
        } else {
            self.records.push(arena);
            u32::try_from(self.records.len() - 1).expect("fewer than 2^32 arenas fit in memory")
        };
        if pool.is_none() {
            self.shared.insert(stream.0, id);
            self.latest = (stream, id);
        }
        id
    }

    /// Forgets an arena, which has no segments.
    pub(crate) fn remove(&mut self, id: u32) {
        let Arena { pool, stream, .. } = self[id];
        if pool.is_none() {
            self.shared.remove(stream.0);
            self.latest = (stream, NONE);
        }
        self.spare.push(id);
    }

    /// All arenas; of those that were removed, the lists are empty.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arena> {
        self.records.iter()
    }
}

impl Index<u32> for Arenas {
    type Output = Arena;

    #[inline]
    fn index(&self, id: u32) -> &Arena {
        &self.records[id as usize]
    }
}

impl IndexMut<u32> for Arenas {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Arena {
        &mut self.records[id as usize]
    }
}
