//! Memory of graphs' pools between replays, one promise at a time: it serves others, and is there for the
//! next replay.

use outrigger_allocator::{
    AllocError, Allocator, Backend, BlockState, Config, PoolGate, PoolId, StreamId,
};

use crate::sim::{self, Sim};

const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(7);
const OTHER: StreamId = StreamId(9);
/// Bytes of a chunk of large blocks.
const CHUNK: u64 = 2 * sim::PAGE;

/// A device of some chunks, and a pool on the main stream with so many that a graph uses, all free.
fn recorded(
    capacity: u64,
    chunks: u64,
) -> (Sim, Allocator<Sim>, PoolId, PoolGate, std::ops::Range<u64>) {
    let sim = Sim::with_virtual_memory(capacity * CHUNK);
    let allocator = Allocator::new(sim.clone(), Config::default());
    let pool = allocator.pool_create();
    let block = allocator.alloc_in(pool, chunks * CHUNK, MAIN).unwrap();
    allocator.free(block.address).unwrap();
    let gate = allocator.pool_gate(pool).unwrap();
    gate.open();
    (
        sim,
        allocator,
        pool,
        gate,
        block.address..block.address + block.size,
    )
}

fn lent(allocator: &Allocator<Sim>, pool: PoolId) -> u64 {
    let segments = allocator.snapshot().segments.into_iter();
    let blocks = segments
        .filter(|it| it.pool == Some(pool))
        .flat_map(|it| it.blocks);
    let lent = blocks.filter(|block| block.state == BlockState::Lent);
    lent.map(|block| block.size).sum()
}

#[test]
fn what_is_free_in_a_pool_serves_others_and_is_home_for_each_replay_without_a_call_of_the_driver() {
    let (sim, allocator, pool, gate, bytes) = recorded(8, 4);
    let mut calls = 0;
    for step in 0..5 {
        let before = allocator.stats();
        let block = allocator.alloc(3 * CHUNK, MAIN).unwrap();
        assert_eq!(lent(&allocator, pool), 3 * CHUNK);
        sim.0
            .lock()
            .submit(MAIN, block.address..block.address + block.size);
        allocator.free(block.address).unwrap();
        allocator.pool_enter(&gate, Some(MAIN)).unwrap();
        assert_eq!(lent(&allocator, pool), 0);
        let device = sim.0.lock();
        assert!(device.touched(&bytes, Some(MAIN)).is_none());
        assert_eq!(device.reserved(), 4 * CHUNK, "nobody needed more");
        drop(device);
        sim.0.lock().submit(MAIN, bytes.clone());
        gate.leave();
        let after = allocator.stats();
        calls = after.maps + after.unmaps - before.maps - before.unmaps;
        assert_eq!(step == 0, calls > 0, "step {step}");
    }
    assert_eq!(
        (calls, sim.0.lock().orders),
        (0, 0),
        "the stream's order suffices"
    );
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn nothing_is_lent_from_where_somebody_is_inside_or_no_graph_is_or_where_it_is_switched_off() {
    let cases = [
        (false, false, ""),
        (true, true, ""),
        (true, false, "lend_graph_pools:False"),
    ];
    for (open, inside, options) in cases {
        let sim = Sim::with_virtual_memory(8 * CHUNK);
        let allocator = Allocator::new(sim, Config::parse(options).unwrap());
        let pool = allocator.pool_create();
        let block = allocator.alloc_in(pool, 3 * CHUNK, MAIN).unwrap();
        allocator.free(block.address).unwrap();
        let gate = allocator.pool_gate(pool).unwrap();
        if open {
            gate.open();
        }
        if inside {
            allocator.pool_enter(&gate, None).unwrap();
        }
        let block = allocator.alloc(3 * CHUNK, MAIN).unwrap();
        assert_eq!(allocator.stats().all.reserved_bytes.current, 6 * CHUNK);
        allocator.free(block.address).unwrap();
        assert_eq!(lent(&allocator, pool), 0);
    }
}

#[test]
fn streams_wait_for_each_other_in_both_directions() {
    let (sim, allocator, pool, gate, bytes) = recorded(4, 4);
    allocator.pool_enter(&gate, Some(OTHER)).unwrap();
    sim.0.lock().submit(OTHER, bytes.clone());
    gate.leave();
    // Behind the replay, though that was not on the stream that allocated the memory.
    let block = allocator.alloc(3 * CHUNK, SIDE).unwrap();
    let shown = block.address..block.address + block.size;
    {
        let mut device = sim.0.lock();
        assert!(device.touched(&shown, None).is_some(), "the replay goes on");
        assert!(device.touched(&shown, Some(SIDE)).is_none(), "no wait");
        device.submit(SIDE, shown);
    }
    allocator.free(block.address).unwrap();
    // A stream that has replayed, one that has not, and one that allocates from the pool.
    allocator.pool_enter(&gate, Some(OTHER)).unwrap();
    assert!(sim.0.lock().touched(&bytes, Some(OTHER)).is_none());
    gate.leave();
    allocator.pool_enter(&gate, Some(StreamId(11))).unwrap();
    assert!(sim.0.lock().touched(&bytes, Some(StreamId(11))).is_none());
    gate.leave();
    let own = allocator.alloc_in(pool, CHUNK, MAIN).unwrap();
    let own = own.address..own.address + own.size;
    assert!(sim.0.lock().touched(&own, Some(MAIN)).is_none());
    // Any stream may run the recorded work: nothing of others may go on.
    assert!(sim.0.lock().touched(&bytes, None).is_some());
    allocator.pool_enter(&gate, None).unwrap();
    assert!(sim.0.lock().touched(&bytes, None).is_none());
    gate.leave();
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn what_is_in_use_at_a_replay_stays_with_its_user_and_other_memory_takes_its_place() {
    let (sim, allocator, pool, gate, bytes) = recorded(8, 4);
    sim.0.lock().submit(OTHER, bytes.clone());
    allocator.pool_enter(&gate, Some(OTHER)).unwrap();
    gate.leave();
    let block = allocator.alloc(2 * CHUNK, SIDE).unwrap();
    let shown = block.address..block.address + block.size;
    let pieces = sim.0.lock().memory.pieces(&shown);
    // Idle memory of others goes before the device is asked for more.
    let idle = allocator.alloc(4 * CHUNK, MAIN).unwrap();
    allocator.free(idle.address).unwrap();
    let before = sim.0.lock().reserved();
    allocator.pool_enter(&gate, Some(OTHER)).unwrap();
    assert_eq!(sim.0.lock().reserved(), before);
    assert_eq!(sim.0.lock().memory.pieces(&shown), pieces, "its contents");
    let own = sim.0.lock().memory.pieces(&bytes);
    let mapped: u64 = own.iter().map(|piece| piece.end - piece.start).sum();
    assert_eq!(mapped, 4 * CHUNK);
    assert!(
        !own.iter()
            .any(|one| pieces.iter().any(|other| one.overlaps(other)))
    );
    assert_eq!(allocator.pool_stats(pool).unwrap().reserved, 4 * CHUNK);
    gate.leave();
    allocator.free(block.address).unwrap();
    allocator.pool_release(pool).unwrap();
    allocator.empty_cache();
    assert!(sim.0.lock().memory.is_empty());
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn a_replay_without_room_for_what_others_use_is_refused_and_works_once_there_is_some() {
    let (sim, allocator, pool, gate, _) = recorded(4, 4);
    let block = allocator.alloc(3 * CHUNK, SIDE).unwrap();
    let refused = allocator.pool_enter(&gate, Some(MAIN)).unwrap_err();
    assert!(matches!(refused, AllocError::OutOfMemory(_)), "{refused:?}");
    let all = allocator.stats().all;
    assert_eq!(all.allocated_bytes.current, 3 * CHUNK, "nothing is lost");
    allocator.free(block.address).unwrap();
    allocator.pool_enter(&gate, Some(MAIN)).unwrap();
    assert_eq!(lent(&allocator, pool), 0);
    assert_eq!(allocator.pool_stats(pool).unwrap().reserved, 4 * CHUNK);
    gate.leave();
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn a_replay_is_refused_where_the_one_before_cannot_be_waited_for() {
    let (sim, allocator, _, gate, bytes) = recorded(8, 4);
    sim.0.lock().submit(OTHER, bytes.clone());
    allocator.pool_enter(&gate, Some(OTHER)).unwrap();
    gate.leave();
    let block = allocator.alloc(2 * CHUNK, SIDE).unwrap();
    sim.0.lock().refuses_waits = true;
    let refused = allocator.pool_enter(&gate, Some(OTHER)).unwrap_err();
    assert!(matches!(refused, AllocError::Backend(_)), "{refused:?}");
    assert!(sim.0.lock().touched(&bytes, None).is_some(), "it runs yet");
    sim.0.lock().refuses_waits = false;
    allocator.pool_enter(&gate, Some(OTHER)).unwrap();
    gate.leave();
    allocator.free(block.address).unwrap();
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn a_pool_that_has_lent_memory_sleeps_and_is_released_without_what_others_use() {
    for sleeps in [true, false] {
        let (sim, allocator, pool, gate, bytes) = recorded(8, 4);
        let block = allocator.alloc(2 * CHUNK, SIDE).unwrap();
        let shown = block.address..block.address + block.size;
        let pieces = sim.0.lock().memory.pieces(&shown);
        if sleeps {
            allocator.pool_suspend(pool).unwrap();
            allocator.pool_page_out(pool).unwrap();
        } else {
            allocator.pool_release(pool).unwrap();
        }
        assert_eq!(
            sim.0.lock().memory.used(),
            2 * CHUNK,
            "the rest is the device's"
        );
        assert_eq!(sim.0.lock().memory.pieces(&shown), pieces);
        if sleeps {
            allocator.pool_page_in(pool).unwrap();
            allocator.pool_resume(pool).unwrap();
            allocator.pool_enter(&gate, Some(MAIN)).unwrap();
            assert_eq!(lent(&allocator, pool), 0);
            let own = sim.0.lock().memory.pieces(&bytes);
            assert!(
                !own.iter()
                    .any(|one| pieces.iter().any(|other| one.overlaps(other)))
            );
            gate.leave();
            allocator.pool_release(pool).unwrap();
        }
        allocator.free(block.address).unwrap();
        allocator.empty_cache();
        assert!(sim.0.lock().memory.is_empty());
        assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
    }
}

#[test]
fn a_captured_stream_neither_gets_lent_memory_of_a_pool_nor_keeps_a_replay_from_it() {
    let (sim, allocator, pool, gate, _) = recorded(8, 4);
    let block = allocator.alloc(2 * CHUNK, SIDE).unwrap();
    let shown = block.address..block.address + block.size;
    sim.0.lock().submit(SIDE, shown);
    allocator.free(block.address).unwrap();
    sim.0.lock().captures.insert(SIDE, 1);
    allocator.pool_enter(&gate, Some(MAIN)).unwrap();
    assert_eq!(lent(&allocator, pool), 0);
    let fence = sim.submitted(SIDE).unwrap();
    assert!(
        sim.fence_done(&fence),
        "what the stream could not wait for the host did"
    );
    gate.leave();
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}
