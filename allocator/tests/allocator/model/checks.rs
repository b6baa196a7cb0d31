//! The rules that an allocator keeps between any two steps, whatever the steps.

use std::collections::BTreeMap;

use outrigger_allocator::{
    BlockInfo, BlockState, Event, EventKind, FreeError, PoolStats, SegmentInfo, Snapshot, Stat,
};

use super::Model;
use crate::sim::{PAGE, Piece, State};

/// The addresses of the parts of memory that may come and go by themselves: pages, or one segment.
fn parts(device: &State, address: u64, size: u64) -> impl Iterator<Item = u64> + use<> {
    let step = if device.virtual_memory { PAGE } else { size };
    (address..address + size).step_by(step as usize)
}

/// Segments that have memory of their own.
fn homes(snapshot: &Snapshot) -> impl Iterator<Item = &SegmentInfo> {
    snapshot.segments.iter().filter(|segment| !segment.view)
}

impl Model {
    /// All blocks, their state, and whether they share their segment.
    pub(super) fn blocks(&self) -> Vec<(BlockInfo, BlockState, bool)> {
        let snapshot = self.allocator.snapshot();
        let blocks = snapshot.segments.iter().flat_map(|segment| {
            segment.blocks.iter().map(|block| {
                let info = BlockInfo {
                    base: block.address,
                    size: block.size,
                    requested: block.requested,
                    stream: segment.stream,
                    pool: segment.pool,
                    free: block.state != BlockState::Allocated,
                    asleep: false,
                };
                (info, block.state, segment.blocks.len() > 1)
            })
        });
        blocks.collect()
    }

    /// Follows who got segments, and who may lose them.
    fn check_owners(&mut self, snapshot: &Snapshot) {
        let device = self.sim.0.lock();
        for event in &device.events[self.events..] {
            match event.kind {
                EventKind::OutOfMemory => {}
                EventKind::SegmentAlloc => {
                    for part in parts(&device, event.address, event.size) {
                        // A replay may leave memory of its pool to others, and take some in its stead.
                        let now = self.allocator.lookup(part).and_then(|it| it.pool);
                        let pool = self
                            .asking
                            .or(now.filter(|it| self.replayed.contains_key(it)));
                        let owner = (pool, event.stream);
                        assert_eq!(self.owners.insert(part, owner), None);
                    }
                }
                EventKind::SegmentFree => {
                    for part in parts(&device, event.address, event.size) {
                        let (pool, stream) = self.owners.remove(&part).unwrap();
                        assert_eq!(stream, event.stream);
                        let live = pool.is_some_and(|pool| self.references(pool) > 0);
                        let lends = pool.is_some_and(|pool| self.replayed.contains_key(&pool));
                        assert!(!live || lends, "{pool:?} lost memory");
                    }
                }
            }
        }
        self.events = device.events.len();
        let told: BTreeMap<_, _> = homes(snapshot)
            .flat_map(|s| parts(&device, s.address, s.size).map(|part| (part, (s.pool, s.stream))))
            .collect();
        assert_eq!(told, self.owners);
    }

    fn check_pools(&mut self, segments: &BTreeMap<u64, u64>) {
        for pool in &mut self.pools {
            let owned = |address: &u64| self.owners[address].0 == Some(pool.id);
            let sizes = segments.iter().filter(|(address, _)| owned(address));
            let (count, reserved) = sizes.fold((0, 0), |(n, sum), (_, size)| (n + 1, sum + size));
            let blocks = self.live.iter().filter(|b| b.pool == Some(pool.id));
            let allocated = blocks.map(|block| block.size).sum::<u64>();
            pool.peak = pool.peak.max(allocated);
            let expected = PoolStats {
                reserved,
                allocated,
                allocated_peak: pool.peak,
                segments: count,
                references: pool.references,
            };
            let gone = pool.references == 0 && count == 0;
            let expected = (!gone).then_some(expected);
            assert_eq!(self.allocator.pool_stats(pool.id), expected);
        }
    }

    /// Whether a block takes holds, and gives back only those that it has.
    fn check_holds(&self, blocks: &[(BlockInfo, BlockState, bool)]) {
        let kept: BTreeMap<u64, u64> = self.kept.iter().map(|b| (b.address, b.size)).collect();
        let mut found = 0;
        for (info, state, _) in blocks.iter().filter(|(info, ..)| info.free) {
            if kept.contains_key(&info.base) {
                let pending = (info.size, *state) == (kept[&info.base], BlockState::Pending);
                assert!(pending, "{info:?} is held");
                found += 1;
                continue;
            }
            let address = info.base + info.size / 2;
            let free = Err(FreeError::AlreadyFreed { address });
            assert_eq!(self.allocator.hold(address), free);
            let address = info.base;
            let not_held = Err(FreeError::NotHeld { address });
            assert_eq!(self.allocator.unhold(address), not_held);
        }
        assert_eq!(found, kept.len());
        for block in self.live.iter().chain(&self.kept) {
            let (address, base) = (block.address + 1, block.address);
            let interior = Err(FreeError::Interior { address, base });
            assert_eq!(self.allocator.unhold(address), interior);
        }
        let unknown = FreeError::Unknown { address: 1 };
        assert_eq!(self.allocator.hold(1), Err(unknown));
        assert_eq!(self.allocator.unhold(1), Err(unknown));
    }

    /// Everything that is true between any two steps.
    pub(super) fn check(&mut self) {
        let device = self.sim.0.lock();
        assert_eq!(device.complaints(), Vec::<String>::new());
        let snapshot = self.allocator.snapshot();
        // The pieces of memory, by the address that they came to.
        let mut segments: BTreeMap<u64, u64> = BTreeMap::new();
        let mut pools = BTreeMap::new();
        for segment in homes(&snapshot) {
            let mut address = segment.address;
            for piece in device.memory.pieces(&(address..address + segment.size)) {
                segments.insert(address, piece.end - piece.start);
                assert_eq!(pools.insert(piece.object, segment.pool), None, "two homes");
                address += piece.end - piece.start;
            }
            assert_eq!(address, segment.address + segment.size, "not mapped");
        }
        if !device.virtual_memory {
            assert_eq!(segments, device.segments);
        }
        let held = (segments.values().sum(), segments.len() as u64);
        assert_eq!(held, device.memory.held());
        assert!(device.capacity >= device.memory.used());
        let told = |kind| {
            let of_kind = move |event: &&Event| event.kind == kind;
            device.events.iter().filter(of_kind)
        };
        let given = told(EventKind::SegmentAlloc)
            .map(|event| event.size)
            .sum::<u64>();
        let taken = told(EventKind::SegmentFree)
            .map(|event| event.size)
            .sum::<u64>();
        assert_eq!(given - taken, device.reserved());
        assert_eq!(told(EventKind::OutOfMemory).count() as u64, self.ooms);

        // Memory that a block has, be it free or not, is in no other block.
        let mut parts: Vec<Piece> = Vec::new();
        for segment in &snapshot.segments {
            let mut end = segment.address;
            for block in &segment.blocks {
                assert_eq!(block.address, end, "a gap or an overlap");
                end += block.size;
                // Of a pool that lends, those who are about to use it are told who has to be waited for.
                let lends = segment
                    .pool
                    .is_some_and(|it| self.replayed.contains_key(&it));
                if block.state == BlockState::Free && !lends {
                    let touch = device.touched(&(block.address..end), Some(segment.stream));
                    assert!(touch.is_none(), "reusable, but {touch:?}");
                }
                let mapped = device.memory.pieces(&(block.address..end));
                let bytes: u64 = mapped.iter().map(|piece| piece.end - piece.start).sum();
                assert_eq!(bytes, block.size, "{block:?} is not mapped");
                for piece in &mapped {
                    let pool = pools[&piece.object];
                    let lent =
                        segment.view && pool.is_some_and(|it| self.replayed.contains_key(&it));
                    assert!(lent || pool == segment.pool, "{piece:?} in {segment:?}");
                }
                if block.state != BlockState::Lent {
                    parts.extend(mapped);
                }
            }
            assert_eq!(end, segment.address + segment.size);
        }
        parts.sort_unstable();
        for pair in parts.windows(2) {
            assert!(!pair[0].overlaps(&pair[1]), "in two blocks: {pair:?}");
        }
        for block in self.live.iter().chain(&self.kept) {
            let now = device
                .memory
                .pieces(&(block.address..block.address + block.size));
            assert_eq!(now, block.pieces, "the memory behind a block has changed");
        }
        drop(device);

        let blocks = self.blocks();
        let mut live: Vec<_> = self
            .live
            .iter()
            .map(|b| (b.address, b.size, b.requested, b.stream, b.pool))
            .collect();
        live.sort_unstable();
        let in_use: Vec<_> = blocks
            .iter()
            .filter(|(info, ..)| !info.free)
            .map(|(info, ..)| (info.base, info.size, info.requested, info.stream, info.pool))
            .collect();
        assert_eq!(in_use, live);
        self.check_owners(&snapshot);
        self.check_pools(&segments);
        self.check_holds(&blocks);
        for (info, ..) in &blocks {
            for inside in [
                info.base,
                info.base + info.size / 2 + 1,
                info.base + info.size - 1,
            ] {
                assert_eq!(self.allocator.lookup(inside), Some(*info));
            }
            if !info.free {
                let error = FreeError::Interior {
                    address: info.base + 1,
                    base: info.base,
                };
                assert_eq!(self.allocator.free(info.base + 1), Err(error));
            }
        }
        assert_eq!(self.allocator.lookup(1), None);
        assert_eq!(
            self.allocator.free(1),
            Err(FreeError::Unknown { address: 1 })
        );

        self.check_figures(&blocks, &segments);
    }

    fn check_figures(
        &mut self,
        blocks: &[(BlockInfo, BlockState, bool)],
        segments: &BTreeMap<u64, u64>,
    ) {
        let stats = self.allocator.stats();
        let figures = |keep: &dyn Fn(BlockState, bool) -> bool| {
            let sizes = blocks
                .iter()
                .filter(|(_, state, split)| keep(*state, *split));
            sizes.fold((0, 0), |(count, bytes), (info, ..)| {
                (count + 1, bytes + info.size)
            })
        };
        let current = |count: Stat, bytes: Stat| (count.current, bytes.current);
        let allocated = figures(&|state, _| state == BlockState::Allocated);
        let active =
            figures(&|state, _| matches!(state, BlockState::Allocated | BlockState::Pending));
        let inactive_split = figures(&|state, _| state == BlockState::Free);
        assert_eq!(
            current(stats.all.allocations, stats.all.allocated_bytes),
            allocated
        );
        assert_eq!(current(stats.all.active, stats.all.active_bytes), active);
        assert_eq!(
            current(stats.all.inactive_split, stats.all.inactive_split_bytes),
            inactive_split
        );
        let reserved = (segments.len() as u64, segments.values().sum());
        assert_eq!(
            current(stats.all.segments, stats.all.reserved_bytes),
            reserved
        );
        let requested = self.live.iter().map(|block| block.requested).sum::<u64>();
        assert_eq!(stats.all.requested_bytes.current, requested);
        self.peak = self.peak.max(allocated.1);
        let expected = Stat {
            current: allocated.1,
            peak: self.peak,
            allocated: self.allocated_bytes,
            freed: self.freed_bytes,
        };
        assert_eq!(stats.all.allocated_bytes, expected);
        assert_eq!(
            stats.device_allocs - stats.device_frees,
            segments.len() as u64
        );
        assert_eq!(stats.ooms, self.ooms);
    }
}
