//! All arenas of an allocator: found by whom they serve, and by any address inside.
//!
//! Each has a lock of its own, which is all that an allocation or a free takes. A thread remembers the
//! arenas of some streams, and which it used last; who locks an arena by that memory must look whether it
//! still serves whom they mean.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use outrigger_locks::{Mutex, MutexGuard, Rank, RwLock};

use crate::arena::{Arena, Owner};
use crate::{Config, StreamId};

/// Arenas that every allocator has. Of the others, shelf n has as many as there are before it, from
/// `FIRST << n` on.
const FIRST: usize = 8;
const SHELVES: usize = 28;

type Place = CachePadded<Mutex<Arena>>;

fn place(arena: u32, config: &Arc<Config>) -> Place {
    let arena = Arena::new(arena, Arc::clone(config));
    CachePadded::new(Mutex::new(Rank::Arena, arena))
}

/// The arena of a stream, as a thread remembers it.
#[derive(Clone, Copy)]
struct Hint {
    allocator: u64,
    stream: StreamId,
    arena: u32,
}

const NO_HINT: Hint = Hint {
    allocator: 0,
    stream: StreamId(0),
    arena: 0,
};

thread_local! {
    // By allocator and stream: those of a few keep out of each other's way.
    static HINTS: [Cell<Hint>; 8] = const { [const { Cell::new(NO_HINT) }; 8] };
    // By allocator: what it used last, the allocator's number and the arena's.
    static LATEST: [Cell<(u64, u32)>; 4] = const { [const { Cell::new((0, 0)) }; 4] };
}

/// Addresses that belong to an arena.
#[derive(Clone, Copy)]
struct Route {
    address: u64,
    size: u64,
    arena: u32,
}

#[derive(Default)]
struct Names {
    by_owner: HashMap<Owner, u32>,
    spare: Vec<u32>,
}

/// The arenas.
pub(crate) struct Arenas {
    allocator: u64,
    config: Arc<Config>,
    first: [Place; FIRST],
    shelves: [OnceLock<Box<[Place]>>; SHELVES],
    made: AtomicUsize,
    names: Mutex<Names>,
    routes: RwLock<Vec<Route>>,
}

impl Arenas {
    pub(crate) fn new(config: Arc<Config>) -> Self {
        static ALLOCATORS: AtomicU64 = AtomicU64::new(1);
        Self {
            allocator: ALLOCATORS.fetch_add(1, Ordering::Relaxed),
            first: std::array::from_fn(|id| place(id as u32, &config)),
            config,
            shelves: [const { OnceLock::new() }; SHELVES],
            made: AtomicUsize::new(0),
            names: Mutex::new(Rank::ArenaNames, Names::default()),
            routes: RwLock::new(Rank::Routes, Vec::new()),
        }
    }

    #[inline]
    fn place(&self, arena: u32) -> &Place {
        match self.first.get(arena as usize) {
            Some(place) => place,
            None => self.later_place(arena),
        }
    }

    #[cold]
    fn later_place(&self, arena: u32) -> &Place {
        let shelf = arena.ilog2() - (FIRST as u32).ilog2();
        let first = (FIRST as u32) << shelf;
        let places = self.shelves[shelf as usize].get_or_init(|| {
            (first..2 * first)
                .map(|id| place(id, &self.config))
                .collect()
        });
        &places[(arena - first) as usize]
    }

    /// Locks an arena by its number.
    #[inline]
    pub(crate) fn lock(&self, arena: u32) -> MutexGuard<'_, Arena> {
        self.place(arena).lock()
    }

    /// Numbers that arenas may have.
    pub(crate) fn numbers(&self) -> std::ops::Range<u32> {
        0..self.made.load(Ordering::Acquire) as u32
    }

    /// Locks the arena of a stream's shared memory; makes it if there is none.
    #[inline]
    pub(crate) fn shared(&self, stream: StreamId) -> MutexGuard<'_, Arena> {
        let owner = Owner { pool: None, stream };
        let slot = ((self.allocator ^ stream.0) & 7) as usize;
        let hint = HINTS.with(|hints| hints[slot].get());
        if hint.allocator == self.allocator && hint.stream == stream {
            let arena = self.lock(hint.arena);
            if arena.owner == Some(owner) {
                self.used(hint.arena);
                return arena;
            }
        }
        let arena = self.of(owner);
        let hint = Hint {
            allocator: self.allocator,
            stream,
            arena: arena.number(),
        };
        HINTS.with(|hints| hints[slot].set(hint));
        self.used(hint.arena);
        arena
    }

    #[inline]
    fn used(&self, arena: u32) {
        LATEST.with(|latest| latest[(self.allocator & 3) as usize].set((self.allocator, arena)));
    }

    /// Locks the arena that this thread has allocated from last.
    #[inline]
    pub(crate) fn latest(&self) -> Option<MutexGuard<'_, Arena>> {
        let (allocator, arena) = LATEST.with(|latest| latest[(self.allocator & 3) as usize].get());
        (allocator == self.allocator).then(|| self.lock(arena))
    }

    /// Locks the arena of an owner; makes it if there is none.
    #[cold]
    pub(crate) fn of(&self, owner: Owner) -> MutexGuard<'_, Arena> {
        let mut names = self.names.lock();
        if let Some(&number) = names.by_owner.get(&owner) {
            // Under the lock of the names, so that it cannot become another's meanwhile.
            return self.lock(number);
        }
        let number = names.spare.pop().unwrap_or_else(|| {
            u32::try_from(self.made.load(Ordering::Relaxed)).expect("arenas have 32-bit numbers")
        });
        names.by_owner.insert(owner, number);
        let mut arena = self.lock(number);
        arena.owner = Some(owner);
        arena.closed = false;
        arena.set_asleep(false);
        self.made.fetch_max(number as usize + 1, Ordering::Release);
        arena
    }

    /// Forgets an arena that has nothing; gives whom it served. Nobody may be about to grow it.
    pub(crate) fn forget_if_empty(&self, number: u32) -> Option<Owner> {
        let mut names = self.names.lock();
        let mut arena = self.lock(number);
        if !arena.is_empty() {
            return None;
        }
        let owner = arena.owner.take()?;
        names.by_owner.remove(&owner);
        names.spare.push(number);
        Some(owner)
    }

    /// The arena that an address belongs to.
    pub(crate) fn around(&self, address: u64) -> Option<u32> {
        let routes = self.routes.read();
        let place = routes.partition_point(|route| route.address <= address);
        let route = routes[place.checked_sub(1)?];
        (address - route.address < route.size).then_some(route.arena)
    }

    /// Gives addresses to an arena. `false` if they wrap around or touch others.
    pub(crate) fn add_route(&self, address: u64, size: u64, arena: u32) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let mut routes = self.routes.write();
        let place = routes.partition_point(|route| route.address < end);
        let before = place.checked_sub(1).map(|place| routes[place]);
        if before.is_some_and(|before| before.address + before.size > address) {
            return false;
        }
        let route = Route {
            address,
            size,
            arena,
        };
        routes.insert(place, route);
        true
    }

    /// Takes addresses back that were given to an arena.
    pub(crate) fn remove_route(&self, address: u64) {
        let mut routes = self.routes.write();
        routes.retain(|route| route.address != address);
    }
}
