//! The promises that execution graphs rely on, one at a time: memory of private pools, held memory, and
//! fences that nobody may wait for.

use outrigger_allocator::{
    AllocError, Allocator, Config, FreeError, PoolAllocError, PoolError, PoolId, StreamId,
};

use crate::sim::Sim;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(7);

fn device(capacity: u64) -> (Sim, Allocator<Sim>) {
    let sim = Sim::new(capacity);
    (sim.clone(), Allocator::new(sim, Config::default()))
}

#[test]
fn out_of_memory_in_a_pool_takes_the_idle_memory_of_others_but_of_no_pool() {
    let (sim, allocator) = device(60 * MIB);
    let (pool, other) = (allocator.pool_create(), allocator.pool_create());
    let fill = |size| {
        let cached = allocator.alloc_in(other, 15 * MIB, MAIN).unwrap();
        let shared = allocator.alloc(size, MAIN).unwrap();
        allocator.record_stream(shared.address, SIDE).unwrap();
        sim.0
            .lock()
            .submit(SIDE, shared.address..shared.address + 1);
        allocator.free(cached.address).unwrap();
        allocator.free(shared.address).unwrap();
    };
    fill(30 * MIB); // pending: what is there must be waited for, and goes through the device
    let block = allocator.alloc_in(pool, 32 * MIB, MAIN).unwrap();
    let stats = allocator.stats();
    assert_eq!(
        (stats.alloc_retries, stats.sync_all_streams, stats.ooms),
        (1, 1, 0)
    );
    // 15 MiB are idle, but in the other pool: for nobody else, whatever happens.
    for pool in [Some(pool), None] {
        let error = match pool {
            None => allocator.alloc(14 * MIB, MAIN).unwrap_err(),
            Some(pool) => match allocator.alloc_in(pool, 14 * MIB, MAIN) {
                Err(PoolAllocError::Alloc(error)) => error,
                answer => panic!("{answer:?}"),
            },
        };
        let AllocError::OutOfMemory(error) = error else {
            panic!("{error:?}")
        };
        assert_eq!((error.requested, error.allocated), (14 * MIB, 32 * MIB));
        assert_eq!(error.largest_free_block, 16 * MIB);
    }
    assert_eq!(allocator.empty_cache(), 0);
    allocator.alloc_in(other, 14 * MIB, MAIN).unwrap();
    allocator.free(block.address).unwrap();
    let huge = allocator.alloc_in(pool, u64::MAX, MAIN).unwrap_err();
    assert!(matches!(
        huge,
        PoolAllocError::Alloc(AllocError::OutOfMemory(_))
    ));
}

#[test]
fn a_released_pool_gives_each_segment_back_as_soon_as_it_is_idle() {
    let (sim, allocator) = device(u64::MAX);
    let pool = allocator.pool_create();
    allocator.pool_retain(pool).unwrap();
    let blocks: Vec<_> = (0..4)
        .map(|_| allocator.alloc_in(pool, 15 * MIB, MAIN).unwrap().address)
        .collect();
    let segments = || sim.0.lock().segments.len();
    allocator.free(blocks[0]).unwrap();
    sim.0.lock().submit(MAIN, blocks[0]..blocks[0] + 1);
    allocator.pool_release(pool).unwrap();
    assert_eq!(segments(), 4, "there is another reference");
    allocator.pool_release(pool).unwrap();
    assert_eq!(segments(), 3, "the idle one goes at once, after a wait");
    allocator.free(blocks[1]).unwrap();
    assert_eq!(segments(), 2, "nothing to wait for");
    sim.0.lock().submit(MAIN, blocks[2]..blocks[2] + 1);
    allocator.free(blocks[2]).unwrap();
    assert_eq!(segments(), 2, "a free never waits");
    assert_eq!(allocator.pool_stats(pool).unwrap().segments, 2);
    sim.0.lock().finish(MAIN, 2);
    allocator.record_stream(blocks[3], SIDE).unwrap();
    sim.0.lock().submit(SIDE, blocks[3]..blocks[3] + 1);
    allocator.free(blocks[3]).unwrap();
    assert_eq!(segments(), 1, "what has passed goes with the next free");
    assert_eq!(allocator.empty_cache(), 16 * MIB);
    assert_eq!((segments(), allocator.pool_stats(pool)), (0, None));
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn a_pool_that_is_not_there_is_named() {
    let (_, allocator) = device(u64::MAX);
    let pool = allocator.pool_create();
    allocator.pool_release(pool).unwrap();
    let released = PoolError::Released { pool };
    assert_eq!(allocator.pool_retain(pool), Err(released));
    assert_eq!(allocator.pool_release(pool), Err(released));
    for size in [1, u64::MAX] {
        let Err(PoolAllocError::Pool(error)) = allocator.alloc_in(pool, size, MAIN) else {
            panic!("{size} bytes of nothing")
        };
        assert_eq!(
            error.to_string(),
            "memory pool 1 was released: its last reference was given back. Keep a reference for \
             as long as it is used, or create another pool"
        );
    }
    let pool = PoolId::new(17).unwrap();
    let unknown = PoolError::Unknown { pool };
    assert_eq!(allocator.pool_retain(pool), Err(unknown));
    assert!(unknown.to_string().contains("17"));
    assert_eq!(PoolId::new(0), None);
}

#[test]
fn held_memory_outlives_its_owner_and_waits_for_what_was_recorded_until_the_end() {
    let (sim, allocator) = device(u64::MAX);
    let block = allocator.alloc(15 * MIB, MAIN).unwrap().address;
    let next = || {
        let next = allocator.alloc(15 * MIB, MAIN).unwrap().address;
        allocator.free(next).unwrap();
        next
    };
    assert_eq!(allocator.hold(block + 5 * MIB), Ok(block));
    allocator.record_stream(block, SIDE).unwrap(); // with nothing to wait for when the owner frees
    allocator.free(block).unwrap();
    let stats = allocator.stats();
    assert_eq!(
        (stats.all.allocations.current, stats.all.active.current),
        (0, 1)
    );
    assert_eq!(allocator.hold(block), Ok(block), "another graph");
    allocator.unhold(block).unwrap();
    assert_ne!(next(), block, "held");
    sim.0.lock().submit(SIDE, block..block + 1);
    allocator.unhold(block).unwrap();
    assert_ne!(next(), block, "the stream works on it");
    let freed = FreeError::AlreadyFreed { address: block };
    assert_eq!(allocator.record_stream(block, SIDE), Err(freed));
    assert_eq!(allocator.hold(block), Err(freed));
    let not_held = FreeError::NotHeld { address: block };
    assert_eq!(allocator.unhold(block), Err(not_held));
    sim.0.lock().finish(SIDE, 1);
    allocator.alloc(35 * MIB, MAIN).unwrap(); // growth looks at fences
    assert_eq!(next(), block);
}

#[test]
fn a_fence_that_outlasts_a_capture_is_asked_but_never_waited_for() {
    let (sim, allocator) = device(40 * MIB);
    let pool = allocator.pool_create();
    let block = allocator.alloc(30 * MIB, MAIN).unwrap().address;
    allocator.record_stream(block, SIDE).unwrap();
    sim.0.lock().captures.insert(SIDE, 1);
    allocator.free(block).unwrap();
    let private = allocator.alloc_in(pool, 15 * MIB, SIDE);
    assert!(private.is_err(), "{private:?}: the device has 10 MiB left");
    let small = allocator.alloc_in(pool, 100, SIDE).unwrap().address;
    allocator.free(small).unwrap();
    allocator.pool_release(pool).unwrap();
    assert!(allocator.alloc(20 * MIB, MAIN).is_err());
    assert_eq!(allocator.empty_cache(), 0);
    assert_eq!(sim.0.lock().segments.len(), 2);
    sim.0.lock().captures.clear();
    allocator.alloc(20 * MIB, MAIN).unwrap();
    assert_eq!(allocator.pool_stats(pool), None);
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn an_allocator_takes_its_pools_with_it() {
    let (sim, allocator) = device(u64::MAX);
    let (pool, released) = (allocator.pool_create(), allocator.pool_create());
    for pool in [pool, released] {
        for stream in [MAIN, SIDE] {
            let block = allocator.alloc_in(pool, 5 * MIB, stream).unwrap().address;
            sim.0.lock().submit(stream, block..block + 1);
            allocator.free(block).unwrap();
        }
    }
    sim.0.lock().captures.insert(SIDE, 1);
    allocator.pool_release(released).unwrap(); // its segment on SIDE waits already
    sim.0.lock().captures.clear();
    assert_eq!(sim.0.lock().segments.len(), 3);
    drop(allocator);
    let device = sim.0.lock();
    assert!(device.segments.is_empty());
    assert_eq!(device.complaints(), Vec::<String>::new());
}
