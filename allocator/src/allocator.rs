//! The allocator itself: locks, the device, and what to do when memory runs out. `docs/allocator.md`
//! has a glossary of the words that are used here.
//!
//! A thread takes the locks in this order:
//!
//! - The *growth* lock: held by the one thread that asks the device for memory, gives memory back,
//!   lends chunks, or asks whether fences have passed.
//! - The *ledger's* lock: guards the figures of the whole device.
//! - An *arena's* lock: guards its blocks. It is held for some ten nanoseconds, and never over a call
//!   of the backend. No thread holds two of them.
//!
//! The locks of the pending queues and of the pools are leaves. No thread waits for a fence while it
//! holds a lock.
//!
//! So a free, and an allocation that an arena can serve, never wait for the device or for another
//! stream. Two threads that both need more memory take turns: what one of them gets or gives back
//! counts for the other.

mod gates;
mod graphs;
mod pressure;
mod settle;
mod sleep;
mod supply;
mod trim;
mod views;

use std::sync::Arc;

use outrigger_locks::{Mutex, MutexGuard, Rank};

use self::graphs::Pools;
pub use self::trim::IdleWatch;
use crate::arena::{Arena, Next, Owner, Release};
use crate::arenas::{ArenaId, Arenas};
use crate::config::Class;
use crate::pending::{Pending, Waiter};
use crate::stats::{Ledger, Sum};
use crate::tally::QUANTITIES;
use crate::{
    AllocError, Allocation, Backend, Backing, BlockInfo, Config, Context, FreeError, Freed,
    History, Recorded, Snapshot, Stats, StreamId,
};

/// A caching allocator over a [`Backend`].
///
/// Memory belongs to the stream for which it was allocated. It may be freed while that stream still
/// works on it. It is then handed out again at once, but only to that stream, whose order keeps old and
/// new use apart. [`record_stream`](Self::record_stream) announces a use on another stream: such memory
/// is reused only after the work that this stream had been given until [`free`](Self::free) has
/// finished.
///
/// Over a device with virtual memory, each stream has ranges of addresses, into which chunks of memory
/// are mapped. If no free block can hold a large request, it is met by idle chunks that lie apart:
/// those of its own stream or, after a wait on the device, those of other streams. A view maps them
/// once more, one after another. Only what is missing then comes from the device. Over other devices,
/// streams have segments.
///
/// If neither the cache nor the device can serve a request, the allocator tries in turn: it gives back
/// idle memory, after a fence behind the work of its stream; it waits for all pending frees and gives
/// back again; it asks observers to release memory. Then the request fails.
///
/// The memory of a private pool is given back only when the pool is released. It serves nobody else,
/// with one exception: between replays of graphs, the free memory of their pool may be lent. Who
/// replays [enters](Self::pool_enter) the pool, and then finds all of its memory there. A hold keeps
/// one block from being reused, also after its owner has freed it: so a graph keeps memory of others
/// that it uses.
///
/// Dropping the allocator releases all private pools and gives idle memory back, as
/// [`empty_cache`](Self::empty_cache) does. Memory that is in use stays with its user.
pub struct Allocator<B: Backend> {
    backend: B,
    config: Arc<Config>,
    growth: Mutex<()>,
    arenas: Arenas,
    pools: Mutex<Pools>,
    pending: Mutex<Pending<B::Fence>>,
    ledger: Mutex<Ledger>,
    history: History,
}

impl<B: Backend> Allocator<B> {
    /// An allocator that holds nothing yet.
    pub fn new(backend: B, config: Config) -> Self {
        let config = Arc::new(config);
        Self {
            growth: Mutex::new(Rank::Growth, ()),
            arenas: Arenas::new(Arc::clone(&config)),
            pools: Mutex::new(Rank::Pools, Pools::default()),
            pending: Mutex::new(Rank::Pending, Pending::new()),
            ledger: Mutex::new(Rank::Ledger, Ledger::new(config.limit())),
            history: History::new(),
            backend,
            config,
        }
    }

    /// The device below.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// The record of the allocator's life, which is off until asked for.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Allocates at least `size` bytes for work on `stream`. A size of 0 gets the smallest block.
    ///
    /// # Errors
    /// Out of memory, or what the device says.
    #[inline]
    pub fn alloc(&self, size: u64, stream: StreamId) -> Result<Allocation, AllocError<B::Error>> {
        let Some(request) = self.config.request(size) else {
            return Err(self.out_of_memory(size, stream));
        };
        if self.history.is_on() {
            return self.alloc_slow(&request, Owner { pool: None, stream });
        }
        let mut arena = self.arenas.shared(stream);
        let found = arena.alloc(&request);
        let short = arena.is_short(request.class);
        drop(arena);
        if short {
            self.settle();
        }
        if let Some(found) = found {
            return Ok(found);
        }
        self.alloc_slow(&request, Owner { pool: None, stream })
    }

    /// Takes memory back, at any time: also while work that uses it is pending on its own stream or on
    /// recorded ones.
    ///
    /// # Errors
    /// Says why there is nothing to free at this address.
    #[inline]
    pub fn free(&self, address: u64) -> Result<Freed, FreeError> {
        if !self.history.is_on()
            && let Some(mut arena) = self.arenas.latest()
            && let Some(release) = arena.try_free(address)
        {
            return Ok(self.released(arena, release));
        }
        self.free_elsewhere(address)
    }

    /// Frees memory of any arena, and records it.
    #[cold]
    fn free_elsewhere(&self, address: u64) -> Result<Freed, FreeError> {
        let on = self.history.is_on();
        let context = if on {
            self.history.context_of_free()
        } else {
            None
        };
        let mut arena = self.around(address)?;
        let release = arena.free(address)?;
        if on {
            let (freed, reusable) = match &release {
                Release::Reusable(freed) => (freed, true),
                Release::Pending(freed, _) => (freed, false),
            };
            let block = Recorded {
                address,
                size: freed.size,
                requested: 0,
                stream: freed.stream,
                pool: freed.pool,
            };
            self.history.free(&block, reusable, context);
        }
        Ok(self.released(arena, release))
    }

    /// Completes a release. The arena is unlocked as soon as others may see the block.
    #[inline]
    fn released(&self, mut arena: MutexGuard<'_, Arena>, release: Release) -> Freed {
        match release {
            Release::Reusable(freed) => {
                drop(arena);
                if freed.pool.is_some() {
                    self.pool_freed(&freed);
                }
                freed
            }
            Release::Pending(freed, block) => {
                let (id, next) = (arena.id(), arena.let_go(block));
                self.record_completed(&arena, block);
                drop(arena);
                self.pool_freed(&freed);
                self.go_on(id, next);
                freed
            }
        }
    }

    /// Records a block that was handed out. Nothing else happens in its arena meanwhile.
    fn record_alloc(
        &self,
        owner: Owner,
        requested: u64,
        found: &Allocation,
        context: Option<Context>,
    ) {
        let block = Recorded {
            address: found.address,
            size: found.size,
            requested,
            stream: owner.stream,
            pool: owner.pool,
        };
        self.history.alloc(&block, context);
    }

    /// Records that a block may be used again, if it was pending until now.
    fn record_completed(&self, arena: &Arena, block: u32) {
        if self.history.is_on()
            && let Some(block) = arena.if_reusable(block)
        {
            self.history.free_completed(&block);
        }
    }

    /// Announces that `stream`, too, uses the memory around `address`. Once the memory is freed, it is
    /// reused only after the work that `stream` had been given until then has finished. Memory under a
    /// [`hold`](Self::hold) may have been freed already; for it, the end of its last hold counts as the
    /// free.
    ///
    /// # Errors
    /// Says why there is nothing at this address.
    pub fn record_stream(&self, address: u64, stream: StreamId) -> Result<(), FreeError> {
        let mut arena = self.around(address)?;
        let base = arena.record(address, stream)?;
        if self.history.is_on() {
            self.history.record_stream(base, stream);
        }
        Ok(())
    }

    /// The block around any address, in use or not; `None` if the address is not held from the device.
    pub fn lookup(&self, any_address: u64) -> Option<BlockInfo> {
        self.around(any_address).ok()?.lookup(any_address)
    }

    /// The block in use around any address, and the memory behind it.
    pub fn backing(&self, any_address: u64) -> Option<(BlockInfo, Backing)> {
        self.around(any_address).ok()?.backing(any_address)
    }

    /// Locks the arena of an address.
    fn around(&self, address: u64) -> Result<MutexGuard<'_, Arena>, FreeError> {
        let id = self.arenas.around(address);
        let arena = id.and_then(|id| self.arenas.find(id));
        arena.ok_or(FreeError::Unknown { address })
    }

    /// Waits for pending frees, then gives all idle memory back to the device, except that of live
    /// private pools. Returns how many bytes it gave back.
    pub fn empty_cache(&self) -> u64 {
        self.reclaim()
    }

    /// Gives idle memory back until at most `keep` bytes of it stay cached; it gives back only whole
    /// pieces of memory, and none of private pools. Returns how many bytes it gave back.
    pub fn trim(&self, keep: u64) -> u64 {
        let cached = {
            let mut ledger = self.ledger.lock();
            ledger.take_over(&self.sums());
            ledger.cached()
        };
        match cached.saturating_sub(keep) {
            0 => 0,
            surplus => self.give_back(surplus),
        }
    }

    /// The current figures.
    pub fn stats(&self) -> Stats {
        let mut ledger = self.ledger.lock();
        ledger.take_over(&self.sums());
        ledger.stats()
    }

    /// Makes every peak the current value.
    pub fn reset_peak(&self) {
        let mut ledger = self.ledger.lock();
        ledger.take_over(&self.recall(&[true; QUANTITIES]).0);
        ledger.reset_peak();
    }

    /// Makes every accumulated figure and counter 0.
    pub fn reset_accumulated(&self) {
        let mut ledger = self.ledger.lock();
        ledger.take_over(&self.sums());
        ledger.reset_accumulated();
    }

    /// Sets the most bytes that may be held from the device; `u64::MAX` is no limit. Memory that is
    /// already held above the limit stays. As it becomes idle and more is needed, it is given back.
    pub fn set_limit(&self, bytes: u64) {
        self.ledger.lock().limit = bytes;
    }

    /// All segments and blocks, in the order of addresses.
    pub fn snapshot(&self) -> Snapshot {
        let arenas = self.arenas.all();
        let mut segments: Vec<_> = arenas.flat_map(|arena| arena.picture()).collect();
        segments.sort_unstable_by_key(|segment| segment.address);
        Snapshot { segments }
    }

    /// The figures of all arenas together, by class.
    fn sums(&self) -> [Sum; 2] {
        let mut sums = [Sum::default(); 2];
        for mut arena in self.arenas.all() {
            let asleep = arena.is_asleep();
            for class in [Class::Small, Class::Large] {
                sums[class as usize].add(arena.tally(class), asleep);
            }
        }
        sums
    }

    /// As [`sums`](Self::sums), and takes back the credit of these quantities. Also returns the arenas
    /// that have an owner.
    fn recall(&self, which: &[bool; QUANTITIES]) -> ([Sum; 2], Vec<ArenaId>) {
        let (mut sums, mut owned) = ([Sum::default(); 2], Vec::new());
        for mut arena in self.arenas.all() {
            owned.extend(arena.owner.map(|_| arena.id()));
            let asleep = arena.is_asleep();
            for class in [Class::Small, Class::Large] {
                let tally = arena.tally(class);
                tally.recall(which);
                sums[class as usize].add(tally, asleep);
            }
        }
        (sums, owned)
    }

    /// Raises the peaks if the counts of an arena may be above them, and hands out new credit: only of
    /// the quantities that ran short. The credit that is left of the others serves their next turn.
    #[cold]
    #[inline(never)]
    fn settle(&self) {
        let mut ledger = self.ledger.lock();
        let mut short = Vec::new();
        for mut arena in self.arenas.all() {
            for class in [Class::Small, Class::Large] {
                let its = arena.tally(class).short();
                if its.contains(&true) {
                    short.push((arena.id(), class, its));
                }
            }
        }
        if short.is_empty() {
            return;
        }
        // The number of arenas that ran short of each quantity, and of any.
        let numbers: [u64; QUANTITIES] =
            std::array::from_fn(|at| short.iter().filter(|(_, _, its)| its[at]).count() as u64);
        let which = numbers.map(|number| number > 0);
        let (sums, owned) = self.recall(&which);
        ledger.take_over(&sums);
        // Only the arenas that were asked get credit: what an arena that is new by now got beside would
        // be too much.
        let arenas = owned.len().max(1) as u64;
        for mut arena in owned.into_iter().filter_map(|id| self.arenas.find(id)) {
            for class in [Class::Small, Class::Large] {
                let mut its = short
                    .iter()
                    .filter(|its| (its.0, its.1) == (arena.id(), class));
                let its = its.next().map_or([false; QUANTITIES], |its| its.2);
                let credit = ledger.credit(class, arenas, its, numbers);
                arena.tally(class).grant(&which, &credit);
            }
        }
    }

    /// Does what an arena left to its caller.
    #[cold]
    fn go_on(&self, id: ArenaId, next: Next) {
        match next {
            Next::Done => {}
            Next::Wait {
                block,
                streams,
                owner,
            } => self.defer(Waiter::Block { arena: id, block }, &streams, owner),
            Next::Leave => {
                self.pending.lock().leave(id);
                self.poll_if_free();
            }
        }
    }
}

impl<B: Backend> Drop for Allocator<B> {
    fn drop(&mut self) {
        self.release_all_pools();
        self.empty_cache();
    }
}
