//! The device fails at every call in turn, and figures that a text or a policy promises.

use outrigger_allocator::{AllocError, Allocator, Backend, Config, FreeError, StreamId};

use crate::model::{Model, Step};
use crate::sim::Sim;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(7);

/// Uses every path to the device: growth, recorded streams, giving back, waiting; pools that grow and
/// are released with memory in use, and held memory that is freed.
fn busy_steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for round in 0..6 {
        steps.push(Step::PoolCreate);
        for size in [900, 2 * MIB] {
            steps.push(Step::AllocIn {
                pool: round as usize,
                size: size + round * 700_000,
                stream: round % 2,
            });
        }
        steps.push(Step::Hold {
            block: 3 * round as usize,
            inside: 77,
        });
        for size in [700, 300_000, 3 * MIB, 15 * MIB] {
            steps.push(Step::Alloc {
                size: size + round * 600_000,
                stream: round % 2,
            });
            steps.push(Step::Use {
                block: usize::MAX - round as usize,
                stream: (round + 1) % 2,
            });
        }
        steps.push(Step::Free(round as usize));
        steps.push(Step::Free(2 * round as usize + 1));
        steps.push(Step::PoolRelease(round as usize / 2));
        steps.push(Step::Unhold(usize::MAX));
        steps.push(Step::Finish {
            stream: round % 2,
            work: 1,
        });
    }
    steps.push(Step::EmptyCache);
    steps
}

#[test]
fn a_failure_of_any_call_changes_nothing_else() {
    let run = |sim: Sim, fault: u32| {
        let mut model = Model::new(sim, Config::default());
        model.sim.0.lock().faults.insert(fault);
        for step in busy_steps() {
            model.step(&step);
        }
        let calls = model.sim.0.lock().calls;
        model.finish();
        calls
    };
    for device in [Sim::new, Sim::with_virtual_memory] {
        let calls = run(device(60 * MIB), 0);
        assert!(calls > 40, "the steps reach the device only {calls} times");
        for fault in 1..=calls {
            run(device(60 * MIB), fault);
        }
    }
}

#[test]
fn a_recorded_stream_delays_reuse_until_it_has_passed() {
    let sim = Sim::new(u64::MAX);
    let allocator = Allocator::new(sim.clone(), Config::default());
    let block = allocator.alloc(15 * MIB, MAIN).unwrap();
    allocator.record_stream(block.address, SIDE).unwrap();
    allocator.record_stream(block.address, MAIN).unwrap(); // its own: means nothing
    sim.0.lock().submit(SIDE, block.address..block.address + 1);
    allocator.free(block.address).unwrap();
    assert_eq!(
        allocator.record_stream(block.address, MAIN),
        Err(FreeError::AlreadyFreed {
            address: block.address
        })
    );
    assert_ne!(
        allocator.alloc(15 * MIB, MAIN).unwrap().address,
        block.address
    );
    assert_eq!(allocator.stats().all.active.current, 2);
    sim.0.lock().submit(SIDE, 0..1); // after the free: not waited for
    sim.0.lock().finish(SIDE, 1);
    assert_eq!(
        allocator.alloc(15 * MIB, MAIN).unwrap().address,
        block.address
    );
    assert_eq!(allocator.stats().sync_all_streams, 0);
}

#[test]
fn out_of_memory_waits_for_pending_frees_before_it_gives_up() {
    let sim = Sim::new(40 * MIB);
    let allocator = Allocator::new(sim.clone(), Config::default());
    let block = allocator.alloc(30 * MIB, MAIN).unwrap();
    allocator.record_stream(block.address, SIDE).unwrap();
    sim.0.lock().submit(SIDE, block.address..block.address + 1);
    allocator.free(block.address).unwrap();
    // Another stream: the memory must go through the device.
    let other = allocator.alloc(32 * MIB, SIDE).unwrap();
    let stats = allocator.stats();
    assert_eq!(
        (stats.alloc_retries, stats.sync_all_streams, stats.ooms),
        (1, 1, 0)
    );
    assert_eq!(stats.device_frees, 1);
    let error = allocator.alloc(10 * MIB, MAIN).unwrap_err();
    let AllocError::OutOfMemory(error) = error else {
        panic!("{error:?}")
    };
    assert_eq!((error.allocated, error.free), (32 * MIB, 0));
    allocator.free(other.address).unwrap();
    allocator.alloc(10 * MIB, MAIN).unwrap();
}

#[test]
fn a_small_device_is_used_to_the_last_segment() {
    let allocator = Allocator::new(Sim::new(u64::MAX), Config::default().with_limit(MIB));
    let blocks: Vec<_> = (0..2)
        .map(|_| allocator.alloc(MIB / 2, MAIN).unwrap())
        .collect();
    assert!(matches!(
        allocator.alloc(1, MAIN),
        Err(AllocError::OutOfMemory(_))
    ));
    allocator.free(blocks[0].address).unwrap();
    allocator.alloc(MIB / 2, SIDE).unwrap();
}

#[test]
fn blocks_above_the_split_limit_are_kept_whole() {
    let text = "max_split_size_mb:20,max_non_split_rounding_mb:4";
    let allocator = Allocator::new(Sim::new(u64::MAX), Config::parse(text).unwrap());
    let large = allocator.alloc(40 * MIB, MAIN).unwrap();
    allocator.free(large.address).unwrap();
    let reserved = || allocator.stats().all.reserved_bytes.current / MIB;
    let small = allocator.alloc(5 * MIB, MAIN).unwrap(); // would cut it
    assert_eq!((small.size, reserved()), (5 * MIB, 60));
    let far = allocator.alloc(36 * MIB, MAIN).unwrap(); // would waste 4 MiB of it
    assert_eq!((far.size, reserved()), (36 * MIB, 96));
    let near = allocator.alloc(37 * MIB, MAIN).unwrap();
    assert_eq!((near, reserved()), (large, 96));
}

#[test]
fn a_stream_without_memory_leaves_nothing_behind() {
    let sim = Sim::new(2 * MIB);
    let allocator = Allocator::new(sim, Config::default());
    for stream in 0..1000 {
        let block = allocator.alloc(100, StreamId(stream)).unwrap();
        allocator.free(block.address).unwrap();
    }
    assert_eq!(allocator.snapshot().segments.len(), 1);
}

#[test]
fn statistics_are_reset_apart() {
    let allocator = Allocator::new(Sim::new(u64::MAX), Config::default());
    let block = allocator.alloc(MIB, MAIN).unwrap();
    allocator.alloc(512, MAIN).unwrap();
    allocator.free(block.address).unwrap();
    allocator.reset_peak();
    let bytes = allocator.stats().all.allocated_bytes;
    assert_eq!(
        (bytes.current, bytes.peak, bytes.allocated),
        (512, 512, MIB + 512)
    );
    allocator.reset_accumulated();
    let stats = allocator.stats();
    assert_eq!(
        (
            stats.all.allocated_bytes.allocated,
            stats.all.allocated_bytes.freed
        ),
        (0, 0)
    );
    assert_eq!((stats.device_allocs, stats.all.segments.current), (0, 1));
}

/// A driver that hands out the same memory again and again.
struct Repeating;

impl Backend for Repeating {
    type Error = ();
    type Fence = ();

    fn segment_alloc(&self, size: u64) -> Result<u64, ()> {
        Ok(if size > 1 << 40 { u64::MAX - 1 } else { 4096 })
    }

    fn segment_free(&self, _: u64) {}

    fn is_out_of_memory(&self, (): &()) -> bool {
        false
    }

    fn fence(&self, _: StreamId) -> Result<(), ()> {
        Ok(())
    }

    fn fence_done(&self, (): &()) -> bool {
        true
    }

    fn fence_wait(&self, (): &()) -> Result<(), ()> {
        Ok(())
    }
}

#[test]
fn impossible_memory_of_a_broken_driver_is_refused() {
    let allocator = Allocator::new(Repeating, Config::default());
    allocator.alloc(MIB, MAIN).unwrap();
    allocator.alloc(MIB, MAIN).unwrap();
    for size in [1, 3 * MIB, 1 << 45] {
        let stream = if size == 1 { SIDE } else { MAIN };
        assert!(matches!(
            allocator.alloc(size, stream),
            Err(AllocError::BadSegment { .. })
        ));
    }
    assert_eq!(allocator.stats().all.reserved_bytes.current, 2 * MIB);
}
