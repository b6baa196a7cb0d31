//! Lending, one promise at a time: what a view shows while pages leave and come, and who waits for whom.

use outrigger_allocator::{Allocator, Config, StreamId};

use crate::sim::{self, Sim};

const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(7);
/// Bytes of a chunk of large blocks.
const PAGE: u64 = 2 * sim::PAGE;

/// Every second page of a stream's memory is in use.
fn scattered(pages: usize) -> (Sim, Allocator<Sim>) {
    let sim = Sim::with_virtual_memory(pages as u64 * PAGE);
    let allocator = Allocator::new(sim.clone(), Config::default());
    let blocks: Vec<u64> = (0..pages)
        .map(|_| allocator.alloc(PAGE, MAIN).unwrap().address)
        .collect();
    for block in blocks.into_iter().step_by(2) {
        allocator.free(block).unwrap();
    }
    (sim, allocator)
}

#[test]
fn a_page_that_a_view_in_use_has_mapped_stays_and_serves() {
    let (sim, allocator) = scattered(8);
    let view = allocator.alloc(4 * PAGE, MAIN).unwrap();
    allocator.free(view.address).unwrap();
    let half = allocator.alloc(2 * PAGE, MAIN).unwrap();
    assert_eq!(allocator.stats().views, 1);
    // Given up, the rest would be nobody's: not free, and not held.
    assert_eq!(allocator.empty_cache(), 0);
    assert_eq!(sim.0.lock().memory.used(), 8 * PAGE);
    let other = allocator.alloc(2 * PAGE, MAIN).unwrap();
    allocator.free(half.address).unwrap();
    allocator.free(other.address).unwrap();
    assert_eq!(allocator.empty_cache(), 4 * PAGE);
    assert_eq!(sim.0.lock().memory.used(), 4 * PAGE);
    assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
}

#[test]
fn a_stream_waits_for_another_whose_pages_it_gets() {
    let (sim, allocator) = scattered(8);
    let block = allocator.alloc(3 * PAGE, MAIN).unwrap().address;
    let bytes = block..block + 3 * PAGE;
    sim.0.lock().submit(MAIN, bytes);
    allocator.free(block).unwrap();
    let view = allocator.alloc(4 * PAGE, SIDE).unwrap();
    let bytes = view.address..view.address + view.size;
    let device = sim.0.lock();
    assert!(device.touched(&bytes, None).is_some(), "work goes on");
    assert!(device.touched(&bytes, Some(SIDE)).is_none(), "no wait");
    assert_eq!((device.orders, device.finished.get(&MAIN)), (1, None));
}

#[test]
fn what_a_stream_has_freed_serves_small_requests_of_others_once_it_has_finished() {
    for finished in [true, false] {
        let sim = Sim::with_virtual_memory(64 * PAGE);
        let allocator = Allocator::new(sim.clone(), Config::default());
        let block = allocator.alloc(2 * PAGE, MAIN).unwrap().address;
        if !finished {
            sim.0.lock().submit(MAIN, block..block + 2 * PAGE);
        }
        allocator.free(block).unwrap();
        allocator.alloc(512, SIDE).unwrap();
        let held = allocator.stats().all.reserved_bytes.current;
        assert_eq!(held == 2 * PAGE, finished, "{held} bytes are held");
        let device = sim.0.lock();
        assert_eq!(device.orders, 0, "nobody waits");
        assert_eq!(device.complaints(), Vec::<String>::new());
    }
}
