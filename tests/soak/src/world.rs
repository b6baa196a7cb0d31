//! The things that the threads share: shelves with all objects that were created and not given back. The lock of a
//! shelf is held only to look and to take, never over a call of the library.
//!
//! Duties that the contract leaves to the host are kept by how things are shelved:
//! - Memory belongs to its home stream, and whoever submits work on it holds it meanwhile, so that it is
//!   not freed under them (H22). Work of another stream is ordered by events, and told (H23).
//! - A stream either has memory, or may capture: memory that is allocated while a stream captures is the
//!   capture's, and a thread could not know. Likewise events: a wait for a point of a capture joins it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use fastrand::Rng;
use outrigger_ffi::OTR_ALL_DEVICES;

use crate::guest::Guest;
use crate::library::{call, made};

/// Things of one kind.
pub(crate) struct Shelf<T>(Mutex<Vec<Arc<T>>>);

impl<T> Shelf<T> {
    const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<T>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn add(&self, thing: T) -> Arc<T> {
        let thing = Arc::new(thing);
        self.put(Arc::clone(&thing));
        thing
    }

    pub(crate) fn put(&self, thing: Arc<T>) {
        self.lock().push(thing);
    }

    /// Any one, which stays.
    pub(crate) fn pick(&self, rng: &mut Rng) -> Option<Arc<T>> {
        rng.choice(self.lock().iter()).cloned()
    }

    /// Any one that fits, which stays.
    pub(crate) fn pick_where(&self, rng: &mut Rng, fits: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let things = self.lock();
        let start = rng.usize(..things.len().max(1));
        let (before, after) = things.split_at(start.min(things.len()));
        after
            .iter()
            .chain(before)
            .find(|thing| fits(thing))
            .cloned()
    }

    /// Any one, which is gone then; others may be about to use it.
    pub(crate) fn take(&self, rng: &mut Rng) -> Option<Arc<T>> {
        let mut things = self.lock();
        let index = rng.usize(..things.len().max(1));
        (index < things.len()).then(|| things.swap_remove(index))
    }

    /// Any one that nobody else holds, which is gone then.
    pub(crate) fn take_unused(&self, rng: &mut Rng) -> Option<T> {
        let mut things = self.lock();
        let index = rng.usize(..things.len().max(1));
        if index >= things.len() || Arc::strong_count(&things[index]) != 1 {
            return None;
        }
        // A thread that wants to hold the thing needs this lock.
        Arc::into_inner(things.swap_remove(index))
    }

    /// Takes one away.
    pub(crate) fn remove(&self, thing: &Arc<T>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, thing));
    }

    pub(crate) fn take_all(&self) -> Vec<Arc<T>> {
        std::mem::take(&mut *self.lock())
    }
}

/// A stream.
pub(crate) struct Stream {
    pub(crate) id: u64,
    pub(crate) device: u32,
    /// Whether it is the host's to destroy.
    pub(crate) owned: bool,
}

/// An event.
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) device: u32,
}

/// A pool of memory.
pub(crate) struct Pool {
    pub(crate) id: u64,
    pub(crate) device: u32,
    /// Whether graphs are recorded into it. Their replays overwrite what others have there.
    pub(crate) of_graphs: bool,
    /// The number of users that keep it from being put to sleep; `u64::MAX` while it may sleep.
    users: AtomicU64,
}

impl Pool {
    pub(crate) fn new(id: u64, device: u32, of_graphs: bool) -> Self {
        let users = AtomicU64::new(0);
        Self {
            id,
            device,
            of_graphs,
            users,
        }
    }

    /// Keeps the pool awake, if nobody puts it to sleep.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<PoolHeld> {
        let count = |users: u64| (users != u64::MAX).then(|| users + 1);
        let held = self
            .users
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
        held.ok().map(|_| PoolHeld(Arc::clone(self)))
    }

    /// Claims the pool for a sleep, if nobody uses its memory.
    pub(crate) fn claim(&self) -> bool {
        let claimed = self
            .users
            .compare_exchange(0, u64::MAX, Ordering::AcqRel, Ordering::Acquire);
        claimed.is_ok()
    }

    /// Lets others use the memory again.
    pub(crate) fn unclaim(&self) {
        self.users.store(0, Ordering::Release);
    }
}

/// A use of a pool that keeps it awake.
pub(crate) struct PoolHeld(Arc<Pool>);

impl Drop for PoolHeld {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Memory in use.
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) home: Arc<Stream>,
    pub(crate) pool: Option<Arc<Pool>>,
    busy: AtomicBool,
    /// Work of another stream may use it, without the library's knowing.
    spoiled: AtomicBool,
}

impl Block {
    pub(crate) fn new(address: u64, size: u64, home: Arc<Stream>, pool: Option<Arc<Pool>>) -> Self {
        let (busy, spoiled) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            address,
            size,
            home,
            pool,
            busy,
            spoiled,
        }
    }

    /// Holds the block for a submission, if nobody else does and its memory is there.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<BlockHeld> {
        if self.spoiled.load(Ordering::Acquire) || self.busy.swap(true, Ordering::AcqRel) {
            return None;
        }
        let pool = match &self.pool {
            None => None,
            Some(pool) => match pool.hold() {
                Some(held) => Some(held),
                None => {
                    self.busy.store(false, Ordering::Release);
                    return None;
                }
            },
        };
        Some(BlockHeld {
            block: Arc::clone(self),
            _pool: pool,
        })
    }

    pub(crate) fn spoil(&self) {
        self.spoiled.store(true, Ordering::Release);
    }

    pub(crate) fn is_spoiled(&self) -> bool {
        self.spoiled.load(Ordering::Acquire)
    }
}

/// A block that nobody else submits work on.
pub(crate) struct BlockHeld {
    pub(crate) block: Arc<Block>,
    _pool: Option<PoolHeld>,
}

impl Drop for BlockHeld {
    fn drop(&mut self) {
        self.block.busy.store(false, Ordering::Release);
    }
}

/// A graph.
pub(crate) struct Graph {
    pub(crate) id: u64,
    pub(crate) device: u32,
    /// The number that it was built from, if it has memory: the same number builds the same shape.
    pub(crate) recipe: Option<u64>,
    /// Whether it was made executable. Two executables of one graph would use its memory at a time.
    pub(crate) used: AtomicBool,
}

/// An executable graph.
pub(crate) struct Exec {
    pub(crate) id: u64,
    pub(crate) device: u32,
    pub(crate) recipe: Option<u64>,
}

/// Pinned memory, by its address.
pub(crate) struct Pinned {
    pub(crate) address: usize,
    pub(crate) size: u64,
}

/// Memory of another process.
pub(crate) struct Import {
    pub(crate) device: u32,
    pub(crate) address: u64,
}

/// Everything that threads share in one round.
pub(crate) struct World {
    /// The number of devices that the threads use; drivers that are loaded meanwhile add others.
    pub(crate) devices: u32,
    /// Streams with memory. They never capture.
    pub(crate) plain: Shelf<Stream>,
    /// Streams that any thread begins and ends captures on. They have no memory.
    pub(crate) chaos: Shelf<Stream>,
    /// Streams on which one thread captures with memory; others look, join and destroy.
    pub(crate) sessions: Shelf<Stream>,
    /// Events of plain streams.
    pub(crate) events: Shelf<Event>,
    /// Events of streams that may capture.
    pub(crate) points: Shelf<Event>,
    pub(crate) generators: Shelf<(u64, bool)>,
    pub(crate) observers: Shelf<u64>,
    pub(crate) registrations: Shelf<u64>,
    pub(crate) pools: Shelf<Pool>,
    /// Taken for writing while a pool is put to sleep: nobody may submit work on its memory then. Afterwards
    /// that is refused.
    pub(crate) falling_asleep: RwLock<()>,
    pub(crate) blocks: Shelf<Block>,
    pub(crate) pinned: Shelf<Pinned>,
    pub(crate) imports: Shelf<Import>,
    pub(crate) graphs: Shelf<Graph>,
    pub(crate) execs: Shelf<Exec>,
    /// Data of functions of the host that were handed to the library.
    pub(crate) guests: Mutex<Vec<&'static Guest>>,
    /// Handles that were given back.
    stale: Mutex<Vec<u64>>,
    /// Waits for a whole device that run, and that have failed, which clears failures of all streams.
    clearing: [AtomicU64; 2],
    /// The text that another process exports, if it does.
    pub(crate) exported: Option<String>,
    /// The folder for files.
    pub(crate) folder: String,
}

impl World {
    pub(crate) fn new(devices: u32, exported: Option<String>, folder: String) -> Self {
        Self {
            devices,
            plain: Shelf::new(),
            chaos: Shelf::new(),
            sessions: Shelf::new(),
            events: Shelf::new(),
            points: Shelf::new(),
            generators: Shelf::new(),
            observers: Shelf::new(),
            registrations: Shelf::new(),
            pools: Shelf::new(),
            falling_asleep: RwLock::new(()),
            blocks: Shelf::new(),
            pinned: Shelf::new(),
            imports: Shelf::new(),
            graphs: Shelf::new(),
            execs: Shelf::new(),
            guests: Mutex::default(),
            stale: Mutex::default(),
            clearing: [AtomicU64::new(0), AtomicU64::new(0)],
            exported,
            folder,
        }
    }

    /// Notes that a handle was given back.
    pub(crate) fn gone(&self, handle: u64) {
        let mut stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        if stale.len() >= 256 {
            stale.swap_remove(0);
        }
        stale.push(handle);
    }

    /// A handle that was given back.
    pub(crate) fn stale(&self, rng: &mut Rng) -> u64 {
        let stale = self.stale.lock().unwrap_or_else(PoisonError::into_inner);
        rng.choice(stale.iter()).copied().unwrap_or(0)
    }

    /// Waits for a device, or for all of them. That reports the first failure of any stream, and clears
    /// those of all.
    pub(crate) fn synchronize(&self, device: u32) -> bool {
        self.clearing(|| {
            let devices = match device {
                OTR_ALL_DEVICES => 0..self.devices,
                one => one..one + 1,
            };
            // All of them, also where one fails.
            devices
                .filter(|device| call!(device_synchronize(*device)).is_err())
                .count()
                == 0
        })
    }

    /// Makes a call that may clear the failures of all streams; whether it succeeded.
    pub(crate) fn clearing(&self, call: impl FnOnce() -> bool) -> bool {
        let [running, failed] = &self.clearing;
        running.fetch_add(1, Ordering::SeqCst);
        let done = call();
        if !done {
            failed.fetch_add(1, Ordering::SeqCst);
        }
        running.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// The number of times that failures of all streams were cleared so far.
    pub(crate) fn cleared(&self) -> u64 {
        self.clearing[1].load(Ordering::SeqCst)
    }

    /// Whether no failure of a stream can have been cleared by another thread since `mark`, so that a wait
    /// that succeeds says that all work has run.
    pub(crate) fn undisturbed(&self, mark: u64) -> bool {
        let running = self.clearing[0].load(Ordering::SeqCst);
        running == 0 && self.cleared() == mark
    }

    /// A new stream of the caller's.
    pub(crate) fn stream(&self, device: u32, priority: i32) -> Option<Stream> {
        let id = made(|out| call!(stream_create(device, priority, out))).ok()?;
        Some(Stream {
            id,
            device,
            owned: true,
        })
    }
}
