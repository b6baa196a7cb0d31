//! Compares the story of a replay with the allocator's own figures.
//!
//! The tests must never depend on where the allocator places a block.

use outrigger_allocator::trace::{Trace, Writer};
use outrigger_allocator::{StreamId, VirtualMemory};

use super::super::device::PAGE;
use super::super::story::{Block, Extent, Figures, What};
use super::*;

/// A trace with two streams, uses across them, steps, and sizes from bytes to tens of MiB.
fn busy_trace() -> Trace {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
        (state >> 33) % below
    };
    let mut writer = Writer::new(Vec::new(), "name=busy").expect("memory takes it");
    let mut live = Vec::new();
    for id in 0..6000 {
        if id % 500 == 0 {
            writer.mark("step").expect("memory takes it");
        }
        let magnitude = random(18);
        let bytes = random(256 << magnitude);
        writer
            .alloc(id, bytes, StreamId(random(2)))
            .expect("memory takes it");
        live.push(id);
        while live.len() as u64 > 50 + random(40) {
            let freed = live.swap_remove(random(live.len() as u64) as usize);
            if random(5) == 0 {
                let stream = StreamId(random(2));
                writer
                    .record_stream(freed, stream)
                    .expect("memory takes it");
            }
            writer.free(freed).expect("memory takes it");
        }
    }
    Trace::load(&writer.into_inner()[..]).expect("what the writer wrote")
}

/// Pieces of the picture: place and bytes.
type Places = Vec<(u64, u64)>;

fn product<'a>(
    some: &'a Places,
    others: &'a Places,
) -> impl Iterator<Item = ((u64, u64), (u64, u64))> + 'a {
    some.iter()
        .flat_map(|&one| others.iter().map(move |&other| (one, other)))
}

/// Goes through a story: no block outside of extents, none over another, neither at its addresses nor in
/// the memory behind them, and no extent over a place of the picture that another has. Returns the bytes that are held at the end.
fn check(story: &Story) -> u64 {
    let mut extents: Vec<Extent> = Vec::new();
    // Live ones, with the places of their memory.
    let mut blocks: Vec<Option<(Block, Places)>> = Vec::new();
    let mut told = 0;
    for event in &story.events {
        match event.what {
            What::Alloc => {
                let block = story.blocks[blocks.len()];
                let end = block.address + block.size;
                let mut covered: Vec<_> = extents
                    .iter()
                    .filter(|extent| {
                        extent.address < end && block.address < extent.address + extent.size
                    })
                    .collect();
                covered.sort_by_key(|extent| extent.address);
                let mut next = block.address;
                let mut places = Places::new();
                for extent in covered {
                    assert!(
                        extent.address <= next,
                        "{block:x?} is not mapped at {next:x}"
                    );
                    let stop = end.min(extent.address + extent.size);
                    places.push((extent.place + next - extent.address, stop - next));
                    next = stop;
                }
                assert!(next >= end, "{block:x?} is not mapped at {next:x}");
                for (other, others) in blocks.iter().flatten() {
                    let apart = other.address + other.size <= block.address || end <= other.address;
                    assert!(apart, "{block:x?} lies over {other:x?}");
                    for ((place, size), (at, bytes)) in product(&places, others) {
                        let apart = place + size <= at || at + bytes <= place;
                        assert!(apart, "{block:x?} has memory of {other:x?}");
                    }
                }
                blocks.push(Some((block, places)));
            }
            What::Done(block) => blocks[block as usize] = None,
            What::Map => {
                let extent = story.extents[told];
                told += 1;
                for other in extents.iter().filter(|other| !other.view && !extent.view) {
                    let apart = other.place + other.size <= extent.place
                        || extent.place + extent.size <= other.place;
                    assert!(apart, "{extent:x?} has the place of {other:x?}");
                }
                assert!(extent.place + extent.size <= story.tape);
                extents.push(extent);
            }
            What::Unmap(extent) => {
                let gone = story.extents[extent as usize];
                extents.retain(|extent| *extent != gone);
            }
            What::Freed(_) | What::Mark | What::Failure => {}
        }
    }
    let own = extents.iter().filter(|extent| !extent.view);
    own.map(|extent| extent.size).sum()
}

#[test]
fn the_story_agrees_with_the_allocators_books() {
    let trace = busy_trace();
    let peak = trace.peak_requested();
    let capacities = [(UNLIMITED, false), (peak * 2, false), (peak / 2, true)];
    for ((capacity, fails), virtual_memory) in capacities
        .into_iter()
        .flat_map(|one| [(one, false), (one, true)])
    {
        let device = SimulatedDevice::new(capacity, 50, virtual_memory);
        let mut replay = Replay::new(&trace, device, Config::default());
        for (index, op) in trace.ops.iter().enumerate() {
            replay.teller.operation();
            replay.step(&trace, index as u64 + 1, op);
        }
        let stats = replay.allocator.stats();
        let story = replay.teller.end(String::new(), Vec::new());
        let figures = Figures {
            peak_requested: stats.all.requested_bytes.peak,
            peak_reserved: stats.all.reserved_bytes.peak,
        };
        assert_eq!(story.figures(), figures);
        assert!(capacity >= figures.peak_reserved);
        assert_eq!(check(&story), stats.all.reserved_bytes.current);
        assert_eq!(story.failures.len() as u64, stats.ooms);
        assert_eq!(!story.failures.is_empty(), fails, "capacity {capacity}");
    }
}

#[test]
fn memory_at_two_addresses_has_one_place_and_counts_once() {
    let trace = Trace::load(&b"m step\n"[..]).expect("a correct trace");
    let device = SimulatedDevice::new(8 * PAGE, 0, true);
    let mut replay = Replay::new(&trace, device, Config::default());
    replay.teller.operation();
    let device = replay.allocator.backend();
    let home = device
        .reserve(8 * PAGE, PAGE)
        .expect("addresses are plenty");
    let pieces: Vec<_> = (0..4)
        .map(|_| device.create(2 * PAGE).expect("it fits"))
        .collect();
    assert!(device.create(1).is_err(), "beyond its capacity");
    device.map(home, &pieces).expect("reserved");
    // The second and the last one once more, one behind the other.
    let view = device
        .reserve(4 * PAGE, PAGE)
        .expect("addresses are plenty");
    device.map(view, &[pieces[1], pieces[3]]).expect("reserved");
    device.unmap(home, 2 * PAGE);
    device.destroy(pieces[0]);
    replay.tell_changes();
    let story = replay.teller.end(String::new(), Vec::new());
    assert_eq!(story.figures().peak_reserved, 8 * PAGE);
    assert_eq!(check(&story), 6 * PAGE);
    let places: Vec<_> = story
        .extents
        .iter()
        .map(|extent| (extent.place / PAGE, extent.view))
        .collect();
    let homes = [(0, false), (2, false), (4, false), (6, false)];
    assert_eq!(places, [&homes[..], &[(2, true), (6, true)]].concat());
}

#[test]
fn sizes_have_units() {
    assert_eq!(size("80GiB"), Ok(80 << 30));
    assert_eq!(size("512"), Ok(512));
    assert!(size("12 parsecs").is_err() && size("GiB").is_err() && size("9999999TiB").is_err());
}
