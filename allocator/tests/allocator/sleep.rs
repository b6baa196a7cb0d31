//! Pools that sleep: their memory goes back to the device, their blocks and addresses stay, and whatever
//! the device refuses they are either away or there.

use std::thread;

use outrigger_allocator::{
    AllocError, Allocator, Config, PoolAllocError, PoolError, PoolId, StreamId,
};

use crate::sim::Sim;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(7);

fn device(capacity: u64) -> (Sim, Allocator<Sim>) {
    let sim = Sim::with_virtual_memory(capacity);
    (sim.clone(), Allocator::new(sim, Config::default()))
}

/// A pool with blocks of both classes on two streams, some of them free again, and their addresses.
fn filled(allocator: &Allocator<Sim>) -> (PoolId, Vec<u64>) {
    let pool = allocator.pool_create();
    let sizes = [900, 300_000, 3 * MIB, 5 * MIB + 77, 700, 2 * MIB];
    let mut blocks: Vec<u64> = Vec::new();
    for (at, size) in sizes.into_iter().enumerate() {
        let stream = [MAIN, SIDE][at % 2];
        let found = allocator.alloc_in(pool, size, stream);
        blocks.push(found.expect("the device has room").address);
    }
    for freed in [4, 2] {
        allocator.free(blocks.remove(freed)).expect("in use");
    }
    (pool, blocks)
}

#[test]
fn a_pool_that_sleeps_holds_no_memory_and_keeps_its_addresses() {
    let (sim, allocator) = device(60 * MIB);
    let shared = allocator.alloc(3 * MIB, MAIN).unwrap();
    let before = sim.0.lock().reserved();
    let (pool, blocks) = filled(&allocator);
    let held = allocator.pool_stats(pool).unwrap();
    let used = allocator.pool_suspend(pool).unwrap();
    let inside = |address: &u64| {
        used.iter()
            .any(|(from, size)| (*from..from + size).contains(address))
    };
    assert!(blocks.iter().all(inside), "{used:x?} {blocks:x?}");
    let bytes: u64 = used.iter().map(|(_, size)| size).sum();
    assert_eq!(bytes, held.allocated);

    assert_eq!(allocator.pool_page_out(pool).unwrap(), held.reserved);
    assert_eq!(sim.0.lock().reserved(), before, "the device has it all");
    let away = allocator.pool_stats(pool).unwrap();
    assert_eq!(
        (away.reserved, away.segments, away.allocated),
        (0, 0, held.allocated)
    );
    let stats = allocator.stats().all;
    assert_eq!(stats.reserved_bytes.current, before);
    assert!(allocator.lookup(blocks[0]).unwrap().asleep && allocator.backing(blocks[0]).is_none());
    assert!(!allocator.lookup(shared.address).unwrap().asleep);
    assert!(matches!(
        allocator.alloc_in(pool, 1, MAIN),
        Err(PoolAllocError::Pool(PoolError::Asleep { .. }))
    ));
    assert_eq!(
        allocator.pool_suspend(pool),
        Err(PoolError::Asleep { pool })
    );
    // Neither is memory that is not there cached, nor does what others have cached count for less.
    allocator.free(shared.address).unwrap();
    assert_eq!(allocator.trim(0), before);
    allocator.free(blocks[1]).unwrap();
    assert_eq!(allocator.empty_cache(), 0);

    allocator.pool_page_in(pool).unwrap();
    allocator.pool_resume(pool).unwrap();
    let awake = allocator.pool_stats(pool).unwrap();
    assert_eq!(
        (awake.reserved, awake.segments),
        (held.reserved, held.segments)
    );
    assert_eq!(sim.0.lock().reserved(), held.reserved);
    assert_eq!(allocator.lookup(blocks[0]).unwrap().base, blocks[0]);
    assert_eq!(
        allocator.pool_page_out(pool),
        Err(PoolError::Awake { pool })
    );
    let again = allocator.alloc_in(pool, 300_000, SIDE).unwrap();
    assert_eq!(
        again.address, blocks[1],
        "what was freed meanwhile serves again"
    );
    for block in [blocks[0], blocks[2], blocks[3], again.address] {
        allocator.free(block).unwrap();
    }
    allocator.pool_release(pool).unwrap();
    assert_eq!(sim.0.lock().reserved(), 0);
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn a_sleeping_pool_that_is_released_leaves_nothing_behind() {
    let (sim, allocator) = device(60 * MIB);
    let (pool, blocks) = filled(&allocator);
    allocator.pool_suspend(pool).unwrap();
    allocator.pool_page_out(pool).unwrap();
    allocator.pool_release(pool).unwrap();
    for block in blocks {
        allocator.free(block).unwrap();
    }
    allocator.empty_cache();
    assert!(allocator.pool_stats(pool).is_none());
    assert_eq!(allocator.stats().all.reserved_bytes.current, 0);
    assert!(sim.0.lock().memory.is_empty());
    // The arena that served it serves another one now.
    let (other, _) = filled(&allocator);
    assert!(allocator.pool_stats(other).unwrap().reserved > 0);
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn a_pool_over_whole_segments_cannot_sleep() {
    let allocator = Allocator::new(Sim::new(60 * MIB), Config::default());
    let pool = allocator.pool_create();
    allocator.alloc_in(pool, 900, MAIN).unwrap();
    assert_eq!(
        allocator.pool_suspend(pool),
        Err(PoolError::NotMapped { pool })
    );
    allocator.alloc_in(pool, 900, MAIN).unwrap();
}

#[test]
fn whatever_the_device_refuses_a_pool_is_away_or_there() {
    // Faults of all calls from the first that puts it to sleep to the last that wakes it.
    let run = |fault: u32| {
        let (sim, allocator) = device(60 * MIB);
        let (pool, blocks) = filled(&allocator);
        let held = allocator.pool_stats(pool).unwrap().reserved;
        let first = sim.0.lock().calls;
        sim.0.lock().faults.insert(first + fault);
        allocator.pool_suspend(pool).unwrap();
        let bytes = allocator.pool_page_out(pool).unwrap();
        let there = allocator.pool_stats(pool).unwrap().reserved;
        assert_eq!(there + bytes, held);
        assert_eq!(sim.0.lock().reserved(), there);
        // A failure may be one that giving back and trying again makes good.
        let mut tries = 1;
        while allocator.pool_page_in(pool).is_err() {
            assert_eq!(
                allocator.pool_stats(pool).unwrap().reserved,
                there,
                "all or none came back"
            );
            assert_eq!(sim.0.lock().reserved(), there);
            tries += 1;
        }
        allocator.pool_resume(pool).unwrap();
        assert_eq!(allocator.pool_stats(pool).unwrap().reserved, held);
        let calls = sim.0.lock().calls - first;
        for block in blocks {
            allocator.free(block).unwrap();
        }
        allocator.pool_release(pool).unwrap();
        assert!(sim.0.lock().memory.is_empty());
        assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
        (calls, tries)
    };
    let (calls, tries) = run(0);
    assert!(calls > 10 && tries == 1, "{calls} calls");
    let failed = (1..=calls).filter(|&fault| run(fault).1 > 1).count();
    assert!(failed > 3, "only {failed} faults reached the caller");
}

#[test]
fn a_pool_that_finds_no_memory_stays_away_until_there_is_some() {
    let (sim, allocator) = device(24 * MIB);
    let (pool, _) = filled(&allocator);
    allocator.pool_suspend(pool).unwrap();
    let bytes = allocator.pool_page_out(pool).unwrap();
    let other = allocator.alloc(20 * MIB, MAIN).unwrap();
    let error = allocator.pool_page_in(pool).unwrap_err();
    assert!(
        matches!(error, PoolAllocError::Alloc(AllocError::OutOfMemory(_))),
        "{error:?}"
    );
    assert_eq!(allocator.pool_stats(pool).unwrap().reserved, 0);
    // Cached by another stream, it is given back for this.
    allocator.free(other.address).unwrap();
    allocator.pool_page_in(pool).unwrap();
    assert_eq!(allocator.pool_stats(pool).unwrap().reserved, bytes);
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn what_is_cached_beside_pools_that_fall_asleep_is_of_one_moment() {
    const ROUNDS: usize = 2_000;
    let (sim, allocator) = device(60 * MIB);
    let pool = allocator.pool_create();
    // To read so many arenas takes as long as a pool needs to fall asleep.
    for stream in 100..400 {
        let found = allocator.alloc(1, StreamId(stream)).unwrap();
        allocator.free(found.address).unwrap();
    }
    thread::scope(|scope| {
        let count = || {
            for _ in 0..ROUNDS {
                assert_eq!(allocator.trim(u64::MAX), 0);
            }
        };
        let threads = [scope.spawn(count), scope.spawn(count)];
        while threads.iter().any(|thread| !thread.is_finished()) {
            let found = allocator.alloc_in(pool, 8 * MIB, SIDE).unwrap();
            allocator.pool_suspend(pool).unwrap();
            allocator.pool_resume(pool).unwrap();
            allocator.free(found.address).unwrap();
        }
    });
    allocator.pool_release(pool).unwrap();
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}
