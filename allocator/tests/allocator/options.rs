//! The promises of options about the device: when idle memory goes back by itself.

use outrigger_allocator::{Allocator, Config, IdleWatch, StreamId};

use crate::sim::Sim;

const MIB: u64 = 1 << 20;
const MAIN: StreamId = StreamId(0);
const SIDE: StreamId = StreamId(7);

#[test]
fn idle_memory_is_collected_above_the_threshold_of_a_limit() {
    for (options, held) in [
        ("limit_mb:40", 30),
        ("limit_mb:40,garbage_collection_threshold:0.5", 15),
        ("garbage_collection_threshold:0.5", 30),
    ] {
        let sim = Sim::new(100 * MIB);
        let allocator = Allocator::new(sim.clone(), Config::parse(options).unwrap());
        let first = allocator.alloc(16 * MIB, MAIN).unwrap();
        allocator.free(first.address).unwrap();
        allocator.alloc(14 * MIB, SIDE).unwrap();
        // The idle 16 MiB are another stream's.
        let expected = if held == 15 { 14 } else { held };
        assert_eq!(sim.0.lock().reserved(), expected * MIB, "{options}");
        assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
    }
}

#[test]
fn memory_that_is_idle_for_long_goes_back_and_what_is_used_now_and_then_stays() {
    let looks = IdleWatch::LOOKS;
    for device in [Sim::new, Sim::with_virtual_memory] {
        let sim = device(200 * MIB);
        let allocator = Allocator::new(sim.clone(), Config::default());
        let mut watch = IdleWatch::default();
        let kept = allocator.alloc(12 * MIB, MAIN).unwrap();
        let pool = allocator.pool_create();
        let of_pool = allocator.alloc_in(pool, 32 * MIB, MAIN).unwrap();
        allocator.free(of_pool.address).unwrap();
        let use_once = |size| {
            let block = allocator.alloc(size, MAIN).unwrap();
            let held = sim.0.lock().reserved();
            allocator.free(block.address).unwrap();
            held
        };
        use_once(60 * MIB);
        let held = use_once(20 * MIB);
        for look in 0..3 * looks {
            // In use at every other look.
            let block = (look % 2 == 0).then(|| allocator.alloc(20 * MIB, MAIN).unwrap());
            let bytes = allocator.trim_idle(&mut watch);
            assert_eq!(
                bytes > 0,
                look + 1 == looks,
                "look {look} gave {bytes} bytes"
            );
            if let Some(block) = block {
                allocator.free(block.address).unwrap();
            }
        }
        let left = sim.0.lock().reserved();
        assert!((60 * MIB..held).contains(&left), "{left} of {held}");
        for _ in 0..looks {
            allocator.trim_idle(&mut watch);
        }
        assert!(
            sim.0.lock().reserved() <= 50 * MIB,
            "what is in use, and the pool's"
        );
        assert!(allocator.pool_stats(pool).unwrap().reserved >= 32 * MIB);
        allocator.free(kept.address).unwrap();
        assert_eq!(sim.0.lock().complaints(), Vec::<String>::new());
    }
}
