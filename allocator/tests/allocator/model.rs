//! The rules that an allocator must keep in random use: no overlap, alignment, stream safety, exact
//! figures, private pools that stay private, held memory that stays, errors only where there is a
//! reason, and everything given back in the end. This is what the steps do and what each promises by
//! itself.

mod checks;
mod random;
mod replays;

use std::collections::{BTreeMap, BTreeSet};

use outrigger_allocator::{
    AllocError, Allocator, BlockState, Config, FreeError, PoolAllocError, PoolError, PoolId,
    StreamId,
};

use crate::sim::{PAGE, Piece, Refusal, Sim};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Alloc {
        size: u64,
        stream: u64,
    },
    /// Frees the n-th block, modulo their number.
    Free(usize),
    /// A stream uses a block: the block's own one or one that is recorded first.
    Use {
        block: usize,
        stream: u64,
    },
    /// A stream gets some of its work done.
    Finish {
        stream: u64,
        work: u64,
    },
    EmptyCache,
    /// Gives cached memory back, but for so many bytes.
    Trim(u64),
    SetLimit(u64),
    PoolCreate,
    /// The following steps name the n-th pool, modulo their number; released ones count.
    PoolRetain(usize),
    PoolRelease(usize),
    AllocIn {
        pool: usize,
        size: u64,
        stream: u64,
    },
    /// Holds the block at an address inside of it. (As in `Use`, freed blocks that are held come after
    /// those in use.)
    Hold {
        block: usize,
        inside: u64,
    },
    Unhold(usize),
    /// Starts to capture a stream, or ends that.
    Capture(u64),
    /// Replays a graph that uses what is free in a pool.
    Replay {
        pool: usize,
        stream: u64,
    },
    /// Begins to record a graph into a pool, or ends that.
    Record(usize),
}

struct Live {
    address: u64,
    size: u64,
    requested: u64,
    /// The memory behind it.
    pieces: Vec<Piece>,
    stream: StreamId,
    pool: Option<PoolId>,
    recorded: BTreeSet<StreamId>,
    holds: u32,
}

/// A private pool.
struct Private {
    id: PoolId,
    references: u64,
    peak: u64,
}

/// An allocator, its device, and what is known of them.
pub(crate) struct Model {
    pub(crate) sim: Sim,
    pub(crate) allocator: Allocator<Sim>,
    rounding: u64,
    limit: u64,
    live: Vec<Live>,
    kept: Vec<Live>, // freed, but held
    pools: Vec<Private>,
    owners: BTreeMap<u64, (Option<PoolId>, StreamId)>, // of segments, or of pages of memory
    asking: Option<PoolId>,                            // the pool of the allocation in this step
    replayed: BTreeMap<PoolId, StreamId>, // pools that graphs use, and where the last replay was
    recording: Option<PoolId>,
    events: usize, // that were looked at
    captures: u64,
    freed_bytes: u64,
    allocated_bytes: u64,
    peak: u64,
    ooms: u64,
}

impl Model {
    pub(crate) fn new(sim: Sim, config: Config) -> Self {
        Self {
            rounding: config.rounding(),
            limit: config.limit(),
            allocator: Allocator::new(sim.clone(), config),
            sim,
            live: Vec::new(),
            kept: Vec::new(),
            pools: Vec::new(),
            owners: BTreeMap::new(),
            asking: None,
            replayed: BTreeMap::new(),
            recording: None,
            events: 0,
            captures: 0,
            freed_bytes: 0,
            allocated_bytes: 0,
            peak: 0,
            ooms: 0,
        }
    }

    pub(crate) fn step(&mut self, step: &Step) {
        self.asking = None;
        match *step {
            Step::Replay { pool, stream } => self.replay(pool, StreamId(stream)),
            Step::Record(pool) => self.record(pool),
            Step::Alloc { size, stream } => self.alloc(size, StreamId(stream), None),
            Step::AllocIn { pool, size, stream } if !self.pools.is_empty() => {
                let pool = pool % self.pools.len();
                self.alloc(size, StreamId(stream), Some(pool));
            }
            Step::Free(at) if !self.live.is_empty() => self.free(at % self.live.len()),
            Step::Use { block, stream } if self.known() > 0 => {
                self.touch(block % self.known(), StreamId(stream));
            }
            Step::Hold { block, inside } if self.known() > 0 => {
                let at = block % self.known();
                let block = self.block(at);
                block.holds += 1;
                let (address, inside) = (block.address, inside % block.size);
                assert_eq!(self.allocator.hold(address + inside), Ok(address));
            }
            Step::Unhold(block) if self.known() > 0 => self.unhold(block % self.known()),
            Step::PoolCreate => self.pools.push(Private {
                id: self.allocator.pool_create(),
                references: 1,
                peak: 0,
            }),
            Step::PoolRetain(pool) if !self.pools.is_empty() => {
                let pool = pool % self.pools.len();
                let done = self.allocator.pool_retain(self.pools[pool].id);
                self.count_reference(pool, done, 1);
            }
            Step::PoolRelease(pool) if !self.pools.is_empty() => {
                self.pool_release(pool % self.pools.len());
            }
            Step::Free(_)
            | Step::Use { .. }
            | Step::AllocIn { .. }
            | Step::Hold { .. }
            | Step::Unhold(_)
            | Step::PoolRetain(_)
            | Step::PoolRelease(_) => {}
            Step::Capture(stream) => {
                self.captures += 1;
                let captures = &mut self.sim.0.lock().captures;
                if captures.remove(&StreamId(stream)).is_none() {
                    captures.insert(StreamId(stream), self.captures);
                }
            }
            Step::Finish { stream, work } => {
                let stream = StreamId(stream);
                let mut device = self.sim.0.lock();
                let finished = device.finished.get(&stream).copied().unwrap_or(0);
                let submitted = device.submitted.get(&stream).copied().unwrap_or(0);
                device.finish(stream, submitted.min(finished + work));
            }
            Step::EmptyCache => {
                let before = self.sim.0.lock().reserved();
                let faults_before = self.faults_so_far();
                let given_back = self.allocator.empty_cache();
                assert_eq!(before - self.sim.0.lock().reserved(), given_back);
                if self.is_quiet_since(faults_before) {
                    self.check_emptied();
                }
            }
            Step::Trim(keep) => {
                let before = self.sim.0.lock().reserved();
                let given_back = self.allocator.trim(keep);
                assert_eq!(before - self.sim.0.lock().reserved(), given_back);
            }
            Step::SetLimit(bytes) => {
                self.limit = bytes;
                self.allocator.set_limit(bytes);
            }
        }
        self.check();
    }

    /// The number of blocks that `Use` and `Hold` may name.
    fn known(&self) -> usize {
        self.live.len() + self.kept.len()
    }

    fn block(&mut self, at: usize) -> &mut Live {
        let in_use = self.live.len();
        if at < in_use {
            &mut self.live[at]
        } else {
            &mut self.kept[at - in_use]
        }
    }

    /// No call failed since, and no stream is captured, so that everything could be waited for.
    fn is_quiet_since(&self, faults_before: usize) -> bool {
        self.faults_so_far() == faults_before && self.sim.0.lock().captures.is_empty()
    }

    fn references(&self, pool: PoolId) -> u64 {
        let pool = self.pools.iter().find(|known| known.id == pool);
        pool.map_or(0, |known| known.references)
    }

    /// The answer that retaining or releasing a pool should have given, which is counted.
    fn count_reference(&mut self, pool: usize, done: Result<(), PoolError>, by: i64) {
        let Private { id, references, .. } = &mut self.pools[pool];
        if *references == 0 {
            assert_eq!(done, Err(PoolError::Released { pool: *id }));
        } else {
            assert_eq!(done, Ok(()));
            *references = references.strict_add_signed(by);
        }
    }

    fn pool_release(&mut self, pool: usize) {
        let id = self.pools[pool].id;
        if self.pools[pool].references == 1 {
            self.finish_replays(id);
        }
        let faults_before = self.faults_so_far();
        let idle: Vec<u64> = self
            .allocator
            .snapshot()
            .segments
            .iter()
            .filter(|segment| segment.pool == Some(id))
            .filter(|segment| segment.blocks.iter().all(|b| b.state == BlockState::Free))
            .map(|segment| segment.address)
            .collect();
        let done = self.allocator.pool_release(id);
        self.count_reference(pool, done, -1);
        if done.is_ok() && self.references(id) == 0 && self.is_quiet_since(faults_before) {
            for address in idle {
                assert_eq!(self.allocator.lookup(address), None, "idle, but stays");
            }
        }
    }

    fn unhold(&mut self, at: usize) {
        let block = self.block(at);
        let address = block.address;
        let done = if block.holds == 0 {
            Err(FreeError::NotHeld { address })
        } else {
            block.holds -= 1;
            Ok(())
        };
        assert_eq!(self.allocator.unhold(address), done);
        self.kept.retain(|block| block.holds > 0);
    }

    /// Only memory that somebody needs is left: after a quiet `empty_cache`.
    fn check_emptied(&self) {
        let blocks = self.live.iter().chain(&self.kept);
        let device = self.sim.0.lock();
        let snapshot = self.allocator.snapshot();
        let views = snapshot.segments.iter().filter(|segment| segment.view);
        let views: BTreeSet<u64> = views.map(|view| view.address).collect();
        // A view that is used in part keeps all that it shows.
        let bytes = blocks.map(|block| {
            let range = device.memory.reserved_around(block.address);
            let range = range.filter(|range| views.range(range.clone()).next().is_some());
            range.unwrap_or(block.address..block.address + block.size)
        });
        let needed: BTreeSet<u64> = bytes
            .flat_map(|bytes| device.memory.pieces(&bytes))
            .map(|piece| piece.object)
            .collect();
        assert_eq!(device.memory.used(), device.reserved());
        for segment in snapshot.segments {
            let live = segment.pool.is_some_and(|pool| self.references(pool) > 0);
            let bytes = segment.address..segment.address + segment.size;
            for piece in device.memory.pieces(&bytes) {
                let needed = live || needed.contains(&piece.object);
                assert!(needed, "left behind: {piece:?} in {segment:?}");
            }
        }
    }

    fn alloc(&mut self, requested: u64, stream: StreamId, pool: Option<usize>) {
        let faults_before = self.faults_so_far();
        let rounded = requested.max(1).next_multiple_of(self.rounding);
        let pool = pool.map(|pool| self.pools[pool].id);
        self.asking = pool;
        let result = match pool {
            None => self.allocator.alloc(requested, stream),
            Some(pool) => match self.allocator.alloc_in(pool, requested, stream) {
                Err(PoolAllocError::Pool(error)) => {
                    assert_eq!(error, PoolError::Released { pool });
                    assert_eq!(self.references(pool), 0);
                    return;
                }
                Err(PoolAllocError::Alloc(error)) => Err(error),
                Ok(found) => {
                    assert!(self.references(pool) > 0);
                    Ok(found)
                }
            },
        };
        match result {
            Ok(found) => {
                assert!(found.size >= rounded && found.size.is_multiple_of(self.rounding));
                let bytes = found.address..found.address + found.size;
                let device = self.sim.0.lock();
                let pieces = device.memory.pieces(&bytes);
                let mapped: u64 = pieces.iter().map(|piece| piece.end - piece.start).sum();
                assert_eq!(mapped, found.size, "{bytes:?} leaves its memory");
                let base = device.segments.range(..=found.address).next_back();
                let base = base.map_or(0, |(&base, _)| base);
                assert_eq!((found.address - base) % self.rounding, 0);
                for other in self.live.iter().chain(&self.kept) {
                    let apart =
                        other.address + other.size <= bytes.start || bytes.end <= other.address;
                    let shares = |piece: &Piece| other.pieces.iter().any(|it| it.overlaps(piece));
                    assert!(apart && !pieces.iter().any(shares), "{bytes:?} is in use");
                }
                // A thread that replays graphs of a pool orders what it allocates there behind them.
                let own = pool.map_or_else(Vec::new, |pool| self.addresses_of(pool));
                let touch = replays::foreign_touch(&device, &bytes, Some(stream), &own);
                assert_eq!(touch, None, "another stream touches it");
                drop(device);
                self.allocated_bytes += found.size;
                self.live.push(Live {
                    address: found.address,
                    size: found.size,
                    requested,
                    pieces,
                    stream,
                    pool,
                    recorded: BTreeSet::new(),
                    holds: 0,
                });
            }
            Err(AllocError::OutOfMemory(error)) => {
                self.ooms += 1;
                if self.faults_so_far() > faults_before {
                    return; // the device lied
                }
                let device = self.sim.0.lock();
                assert_eq!(error.requested, requested);
                assert_eq!(error.reserved, device.reserved());
                let room = device
                    .free()
                    .min(self.limit.saturating_sub(device.reserved()));
                let need = match device.virtual_memory {
                    true => rounded.saturating_add(PAGE - 1) / PAGE * PAGE,
                    false => rounded,
                };
                assert!(room < need, "{error}, but {room} bytes were to be had");
                assert_eq!(error.device.unwrap().free, device.free());
                drop(device);
                let (_, free) = self
                    .blocks()
                    .into_iter()
                    .fold((0, 0), |(sum, largest), block| {
                        let size = if block.1 == BlockState::Free {
                            block.0.size
                        } else {
                            0
                        };
                        (sum + size, size.max(largest))
                    });
                assert_eq!(error.largest_free_block, free);
            }
            Err(AllocError::Backend(Refusal::Broken)) => {
                assert!(self.faults_so_far() > faults_before);
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    fn free(&mut self, at: usize) {
        let block = self.live.swap_remove(at);
        let freed = self.allocator.free(block.address).unwrap();
        let expected = (block.size, block.stream, block.pool);
        assert_eq!((freed.size, freed.stream, freed.pool), expected);
        self.freed_bytes += freed.size;
        let address = block.address;
        let again = match self.allocator.lookup(address) {
            Some(_) => FreeError::AlreadyFreed { address },
            None => FreeError::Unknown { address }, // gone with its pool
        };
        assert_eq!(self.allocator.free(address), Err(again));
        if block.holds > 0 {
            self.kept.push(block);
        }
    }

    fn touch(&mut self, at: usize, stream: StreamId) {
        let block = self.block(at);
        let bytes = block.address..block.address + block.size;
        if stream != block.stream && block.recorded.insert(stream) {
            // Any address within the block stands for it.
            let address = bytes.start + block.size / 2;
            self.allocator.record_stream(address, stream).unwrap();
        }
        self.sim.0.lock().submit(stream, bytes);
    }

    fn faults_so_far(&self) -> usize {
        let device = self.sim.0.lock();
        device.faults.range(..=device.calls).count()
    }

    /// Frees everything and gives it back.
    pub(crate) fn finish(mut self) {
        while !self.live.is_empty() {
            self.step(&Step::Free(0));
        }
        self.sim.0.lock().captures.clear();
        if self.recording.is_some() {
            self.step(&Step::Record(0));
        }
        while !self.kept.is_empty() {
            self.step(&Step::Unhold(0));
        }
        for pool in 0..self.pools.len() {
            while self.pools[pool].references > 0 {
                self.step(&Step::PoolRelease(pool));
            }
        }
        self.sim.0.lock().faults.clear();
        self.step(&Step::EmptyCache);
        assert_eq!(self.allocator.stats().all.reserved_bytes.current, 0);
        assert_eq!(self.allocator.stats().all.active.current, 0);
        let device = self.sim.0.lock();
        assert_eq!(device.segments, BTreeMap::new());
        assert_eq!(device.memory.used(), 0);
        drop(device);
        drop(self.allocator);
        assert_eq!(self.sim.0.lock().complaints(), Vec::<String>::new());
        assert!(self.sim.0.lock().memory.is_empty());
    }
}
