//! Random use, step by step compared with what must be true: no overlap, alignment, stream safety, exact
//! figures, errors only where there is a reason, and everything given back in the end.

use std::collections::{BTreeMap, BTreeSet};

use outrigger_allocator::{
    AllocError, Allocator, BlockInfo, BlockState, Config, EventKind, FreeError, Stat, StreamId,
};
use proptest::prelude::*;

use crate::sim::{Refusal, Sim};

const MIB: u64 = 1 << 20;

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
    SetLimit(u64),
}

struct Live {
    address: u64,
    size: u64,
    requested: u64,
    stream: StreamId,
    recorded: BTreeSet<StreamId>,
}

/// An allocator, its device, and what is known of them.
pub(crate) struct Model {
    pub(crate) sim: Sim,
    pub(crate) allocator: Allocator<Sim>,
    rounding: u64,
    limit: u64,
    live: Vec<Live>,
    freed_bytes: u64,
    allocated_bytes: u64,
    peak: u64,
    ooms: u64,
}

impl Model {
    pub(crate) fn new(capacity: u64, config: Config) -> Self {
        let sim = Sim::new(capacity);
        Self {
            rounding: config.rounding(),
            limit: config.limit(),
            allocator: Allocator::new(sim.clone(), config),
            sim,
            live: Vec::new(),
            freed_bytes: 0,
            allocated_bytes: 0,
            peak: 0,
            ooms: 0,
        }
    }

    pub(crate) fn step(&mut self, step: &Step) {
        match *step {
            Step::Alloc { size, stream } => self.alloc(size, StreamId(stream)),
            Step::Free(at) if !self.live.is_empty() => self.free(at % self.live.len()),
            Step::Use { block, stream } if !self.live.is_empty() => {
                self.touch(block % self.live.len(), StreamId(stream));
            }
            Step::Free(_) | Step::Use { .. } => {}
            Step::Finish { stream, work } => {
                let stream = StreamId(stream);
                let mut device = self.sim.0.lock();
                let finished = device.finished.get(&stream).copied().unwrap_or(0);
                let submitted = device.submitted.get(&stream).copied().unwrap_or(0);
                device.finish(stream, submitted.min(finished + work));
            }
            Step::EmptyCache => {
                let before = self.sim.0.lock().reserved();
                let given_back = self.allocator.empty_cache();
                assert_eq!(before - self.sim.0.lock().reserved(), given_back);
            }
            Step::SetLimit(bytes) => {
                self.limit = bytes;
                self.allocator.set_limit(bytes);
            }
        }
        self.check();
    }

    fn alloc(&mut self, requested: u64, stream: StreamId) {
        let faults_before = self.faults_so_far();
        let rounded = requested.max(1).next_multiple_of(self.rounding);
        match self.allocator.alloc(requested, stream) {
            Ok(found) => {
                assert!(found.size >= rounded && found.size.is_multiple_of(self.rounding));
                let bytes = found.address..found.address + found.size;
                let device = self.sim.0.lock();
                let (base, size) = device.segments.range(..=found.address).next_back().unwrap();
                assert!(bytes.end <= base + size, "{bytes:?} leaves its segment");
                assert_eq!((found.address - base) % self.rounding, 0);
                for other in &self.live {
                    let apart =
                        other.address + other.size <= bytes.start || bytes.end <= other.address;
                    assert!(apart, "{bytes:?} is in use");
                }
                assert!(
                    device.touched(&bytes, Some(stream)).is_none(),
                    "another stream touches it"
                );
                drop(device);
                self.allocated_bytes += found.size;
                self.live.push(Live {
                    address: found.address,
                    size: found.size,
                    requested,
                    stream,
                    recorded: BTreeSet::new(),
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
                    .capacity
                    .min(self.limit)
                    .saturating_sub(device.reserved());
                assert!(room < rounded, "{error}, but {room} bytes were to be had");
                assert_eq!(
                    error.device.unwrap().free,
                    device.capacity - device.reserved()
                );
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
        assert_eq!((freed.size, freed.stream), (block.size, block.stream));
        self.freed_bytes += freed.size;
        let again = self.allocator.free(block.address);
        assert_eq!(
            again,
            Err(FreeError::AlreadyFreed {
                address: block.address
            })
        );
    }

    fn touch(&mut self, at: usize, stream: StreamId) {
        let block = &mut self.live[at];
        if stream != block.stream && block.recorded.insert(stream) {
            self.allocator.record_stream(block.address, stream).unwrap();
        }
        self.sim
            .0
            .lock()
            .submit(stream, block.address..block.address + block.size);
    }

    fn faults_so_far(&self) -> usize {
        let device = self.sim.0.lock();
        device.faults.range(..=device.calls).count()
    }

    /// All blocks, their state, and whether they share their segment.
    fn blocks(&self) -> Vec<(BlockInfo, BlockState, bool)> {
        let snapshot = self.allocator.snapshot();
        let blocks = snapshot.segments.iter().flat_map(|segment| {
            segment.blocks.iter().map(|block| {
                let info = BlockInfo {
                    base: block.address,
                    size: block.size,
                    requested: block.requested,
                    stream: segment.stream,
                    free: block.state != BlockState::Allocated,
                };
                (info, block.state, segment.blocks.len() > 1)
            })
        });
        blocks.collect()
    }

    /// Everything that is true between any two steps.
    fn check(&mut self) {
        let device = self.sim.0.lock();
        assert_eq!(device.complaints, Vec::<String>::new());
        let snapshot = self.allocator.snapshot();
        let segments: BTreeMap<u64, u64> = snapshot
            .segments
            .iter()
            .map(|segment| (segment.address, segment.size))
            .collect();
        assert_eq!(segments, device.segments);
        assert!(device.capacity >= device.reserved());
        let told = |kind| device.events.iter().filter(move |event| event.kind == kind);
        let given = told(EventKind::SegmentAlloc)
            .map(|event| event.size)
            .sum::<u64>();
        let taken = told(EventKind::SegmentFree)
            .map(|event| event.size)
            .sum::<u64>();
        assert_eq!(given - taken, device.reserved());
        assert_eq!(told(EventKind::OutOfMemory).count() as u64, self.ooms);

        for segment in &snapshot.segments {
            let mut end = segment.address;
            let mut was_free = false;
            for block in &segment.blocks {
                assert_eq!(block.address, end, "a gap or an overlap");
                end += block.size;
                let free = block.state == BlockState::Free;
                assert!(!(free && was_free), "free neighbours were not joined");
                was_free = free;
                if free {
                    let touch = device.touched(&(block.address..end), Some(segment.stream));
                    assert!(touch.is_none(), "reusable, but {touch:?}");
                }
            }
            assert_eq!(end, segment.address + segment.size);
        }
        drop(device);

        let blocks = self.blocks();
        let mut live: Vec<_> = self
            .live
            .iter()
            .map(|b| (b.address, b.size, b.requested, b.stream))
            .collect();
        live.sort_unstable();
        let in_use: Vec<_> = blocks
            .iter()
            .filter(|(info, ..)| !info.free)
            .map(|(info, ..)| (info.base, info.size, info.requested, info.stream))
            .collect();
        assert_eq!(in_use, live);
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
        let active = figures(&|state, _| state != BlockState::Free);
        let inactive_split = figures(&|state, split| state == BlockState::Free && split);
        assert_eq!(current(stats.allocations, stats.allocated_bytes), allocated);
        assert_eq!(current(stats.active, stats.active_bytes), active);
        assert_eq!(
            current(stats.inactive_split, stats.inactive_split_bytes),
            inactive_split
        );
        let reserved = (segments.len() as u64, segments.values().sum());
        assert_eq!(current(stats.segments, stats.reserved_bytes), reserved);
        let requested = self.live.iter().map(|block| block.requested).sum::<u64>();
        assert_eq!(stats.requested_bytes.current, requested);
        self.peak = self.peak.max(allocated.1);
        let expected = Stat {
            current: allocated.1,
            peak: self.peak,
            allocated: self.allocated_bytes,
            freed: self.freed_bytes,
        };
        assert_eq!(stats.allocated_bytes, expected);
        assert_eq!(
            stats.device_allocs - stats.device_frees,
            segments.len() as u64
        );
        assert_eq!(stats.ooms, self.ooms);
    }

    /// Frees everything and gives it back.
    pub(crate) fn finish(mut self) {
        while !self.live.is_empty() {
            self.step(&Step::Free(0));
        }
        self.sim.0.lock().faults.clear();
        self.step(&Step::EmptyCache);
        assert_eq!(self.allocator.stats().reserved_bytes.current, 0);
        assert_eq!(self.allocator.stats().active.current, 0);
        assert_eq!(self.sim.0.lock().segments, BTreeMap::new());
    }
}

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..4096,
        4 => 1_u64..2 * MIB,
        3 => MIB..12 * MIB,
        1 => 12 * MIB..70 * MIB,
        1 => Just(u64::MAX - 700),
    ]
}

pub(crate) fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let stream = || 0_u64..3;
    let step = prop_oneof![
        8 => (sizes(), stream()).prop_map(|(size, stream)| Step::Alloc { size, stream }),
        6 => any::<usize>().prop_map(Step::Free),
        6 => (any::<usize>(), stream()).prop_map(|(block, stream)| Step::Use { block, stream }),
        3 => (stream(), 1_u64..6).prop_map(|(stream, work)| Step::Finish { stream, work }),
        1 => Just(Step::EmptyCache),
        1 => (20 * MIB..200 * MIB).prop_map(Step::SetLimit),
    ];
    prop::collection::vec(step, 1..most)
}

fn configs() -> impl Strategy<Value = Config> {
    prop_oneof![
        3 => Just(""),
        1 => Just("max_split_size_mb:20,max_non_split_rounding_mb:4,limit_mb:150"),
        1 => Just("rounding:64,small_segment_size_mb:3,large_segment_size_mb:5"),
    ]
    .prop_map(|text| Config::parse(text).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None, // a failure is shown with its steps
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_use_keeps_every_promise(
        config in configs(),
        steps in steps(120),
        faults in prop::collection::btree_set(1_u32..150, 0..20),
        capacity in prop_oneof![Just(100 * MIB), Just(u64::MAX / 2)],
    ) {
        let mut model = Model::new(capacity, config);
        model.sim.0.lock().faults = faults;
        for step in &steps {
            model.step(step);
        }
        model.finish();
    }
}
