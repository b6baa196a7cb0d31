//! All arenas of an allocator: found by their owner, and by any address inside.
//!
//! Each arena has its own lock, the only lock that an allocation or a free takes. A thread remembers
//! the arenas of some streams, and which arena it used last. An arena without memory is forgotten, and
//! another owner gets its place, under another name: who still has the old name finds no arena.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use outrigger_locks::{Mutex, MutexGuard, Rank, RwLock};

use crate::arena::{Arena, Owner};
use crate::{Config, StreamId};

/// The number of arenas that every allocator has. The others lie on shelves: shelf n begins at `FIRST
/// << n`, and has as many arenas as there are before it.
const FIRST: usize = 8;
const SHELVES: usize = 28;

/// The place of an arena, with its lock. It outlives the arena's owner.
type ArenaPlace = CachePadded<Mutex<Arena>>;

fn place(place: u32, config: &Arc<Config>) -> ArenaPlace {
    let nobodys = ArenaId { place, life: 0 };
    let arena = Arena::new(nobodys, Arc::clone(config));
    CachePadded::new(Mutex::new(Rank::Arena, arena))
}

/// The name of an arena, valid as long as it has the same owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ArenaId {
    place: u32,
    /// The number of owners that the place has had.
    life: u32,
}

impl ArenaId {
    /// The name of the first owner's arena at a place.
    #[cfg(test)]
    pub(crate) const fn at(place: u32) -> Self {
        Self { place, life: 1 }
    }
}

/// The arena of a stream, as a thread remembers it.
#[derive(Clone, Copy)]
struct Hint {
    allocator: u64,
    stream: StreamId,
    arena: ArenaId,
}

const NOBODYS: ArenaId = ArenaId { place: 0, life: 0 };

const NO_HINT: Hint = Hint {
    allocator: 0,
    stream: StreamId(0),
    arena: NOBODYS,
};

thread_local! {
    // The last arena of this thread by allocator and stream: those of a few keep out of each other's
    // way.
    static HINTS: [Cell<Hint>; 8] = const { [const { Cell::new(NO_HINT) }; 8] };
    // The arena that this thread used last, by allocator: the allocator's number and the arena.
    static LATEST: [Cell<(u64, ArenaId)>; 4] = const { [const { Cell::new((0, NOBODYS)) }; 4] };
}

/// Addresses that belong to an arena.
#[derive(Clone, Copy)]
struct Route {
    address: u64,
    size: u64,
    arena: ArenaId,
}

/// The arenas by owner, and the places that are free.
#[derive(Default)]
struct ArenaNames {
    by_owner: HashMap<Owner, ArenaId>,
    /// The names that the arenas of the last owners had.
    spare: Vec<ArenaId>,
}

/// The arenas.
pub(crate) struct Arenas {
    allocator: u64,
    config: Arc<Config>,
    first: [ArenaPlace; FIRST],
    shelves: [OnceLock<Box<[ArenaPlace]>>; SHELVES],
    made: AtomicUsize,
    names: Mutex<ArenaNames>,
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
            names: Mutex::new(Rank::ArenaNames, ArenaNames::default()),
            routes: RwLock::new(Rank::Routes, Vec::new()),
        }
    }

    #[inline]
    fn place(&self, place: u32) -> &ArenaPlace {
        match self.first.get(place as usize) {
            Some(place) => place,
            None => self.later_place(place),
        }
    }

    #[cold]
    fn later_place(&self, at: u32) -> &ArenaPlace {
        let shelf = at.ilog2() - (FIRST as u32).ilog2();
        let first = (FIRST as u32) << shelf;
        let places = self.shelves[shelf as usize].get_or_init(|| {
            (first..2 * first)
                .map(|at| place(at, &self.config))
                .collect()
        });
        &places[(at - first) as usize]
    }

    /// Locks an arena that cannot have been forgotten: it has memory that is not free, or the caller
    /// holds the growth lock and knows that nobody has forgotten the arena.
    ///
    /// # Panics
    /// If it was forgotten after all: another owner may have its place.
    pub(crate) fn lock(&self, arena: ArenaId) -> MutexGuard<'_, Arena> {
        let locked = self.find(arena);
        locked.unwrap_or_else(|| panic!("{arena:?} was forgotten while it was in use"))
    }

    /// Locks an arena, unless it was forgotten.
    #[inline]
    pub(crate) fn find(&self, arena: ArenaId) -> Option<MutexGuard<'_, Arena>> {
        let found = self.place(arena.place).lock();
        (found.id() == arena && found.owner.is_some()).then_some(found)
    }

    /// All arenas, locked one at a time. Arenas without an owner are included, because their figures
    /// still count.
    pub(crate) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Arena>> {
        let places = 0..self.made.load(Ordering::Acquire) as u32;
        places.map(|place| self.place(place).lock())
    }

    /// The names of the arenas that have an owner.
    pub(crate) fn ids(&self) -> Vec<ArenaId> {
        let owned = self.all().filter(|arena| arena.owner.is_some());
        owned.map(|arena| arena.id()).collect()
    }

    /// Locks the arena of a stream's shared memory; makes it if there is none.
    #[inline]
    pub(crate) fn shared(&self, stream: StreamId) -> MutexGuard<'_, Arena> {
        let slot = ((self.allocator ^ stream.0) & 7) as usize;
        let hint = HINTS.with(|hints| hints[slot].get());
        if hint.allocator == self.allocator
            && hint.stream == stream
            && let Some(arena) = self.find(hint.arena)
        {
            self.used(hint.arena);
            return arena;
        }
        let arena = self.of(Owner { pool: None, stream });
        let hint = Hint {
            allocator: self.allocator,
            stream,
            arena: arena.id(),
        };
        HINTS.with(|hints| hints[slot].set(hint));
        self.used(hint.arena);
        arena
    }

    #[inline]
    fn used(&self, arena: ArenaId) {
        LATEST.with(|latest| latest[(self.allocator & 3) as usize].set((self.allocator, arena)));
    }

    /// Locks the arena that this thread has allocated from last.
    #[inline]
    pub(crate) fn latest(&self) -> Option<MutexGuard<'_, Arena>> {
        let (allocator, arena) = LATEST.with(|latest| latest[(self.allocator & 3) as usize].get());
        if allocator != self.allocator {
            return None;
        }
        self.find(arena)
    }

    /// Locks the arena of an owner; makes it if there is none.
    #[cold]
    pub(crate) fn of(&self, owner: Owner) -> MutexGuard<'_, Arena> {
        let mut names = self.names.lock();
        if let Some(&known) = names.by_owner.get(&owner) {
            // Under the lock of the names, so that it is not forgotten meanwhile.
            return self.lock(known);
        }
        let id = match names.spare.pop() {
            Some(last) => ArenaId {
                life: last.life.wrapping_add(1),
                ..last
            },
            None => ArenaId {
                place: u32::try_from(self.made.load(Ordering::Relaxed))
                    .expect("arenas have 32-bit numbers"),
                life: 1,
            },
        };
        names.by_owner.insert(owner, id);
        let mut arena = self.place(id.place).lock();
        arena.serve(id, owner);
        self.made
            .fetch_max(id.place as usize + 1, Ordering::Release);
        arena
    }

    /// Forgets an arena without memory, and returns its owner. No thread may be about to grow it.
    pub(crate) fn forget_if_empty(&self, id: ArenaId) -> Option<Owner> {
        let mut names = self.names.lock();
        let mut arena = self.find(id)?;
        if !arena.is_empty() {
            return None;
        }
        let owner = arena.owner.take()?;
        names.by_owner.remove(&owner);
        names.spare.push(id);
        Some(owner)
    }

    /// The arena that an address belongs to.
    pub(crate) fn around(&self, address: u64) -> Option<ArenaId> {
        let routes = self.routes.read();
        let place = routes.partition_point(|route| route.address <= address);
        let route = routes[place.checked_sub(1)?];
        (address - route.address < route.size).then_some(route.arena)
    }

    /// Gives addresses to an arena. `false` if they wrap around or touch others.
    pub(crate) fn add_route(&self, address: u64, size: u64, arena: ArenaId) -> bool {
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
