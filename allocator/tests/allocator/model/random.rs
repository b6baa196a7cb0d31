//! Steps at random, a few thousand times.

use outrigger_allocator::Config;
use proptest::prelude::*;

use super::{Model, Step};
use crate::sim::Sim;

const MIB: u64 = 1 << 20;

fn sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0_u64..4096,
        4 => 1_u64..2 * MIB,
        3 => MIB..12 * MIB,
        1 => 12 * MIB..70 * MIB,
        1 => Just(u64::MAX - 700),
    ]
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let stream = || 0_u64..3;
    let step = prop_oneof![
        8 => (sizes(), stream()).prop_map(|(size, stream)| Step::Alloc { size, stream }),
        6 => any::<usize>().prop_map(Step::Free),
        6 => (any::<usize>(), stream()).prop_map(|(block, stream)| Step::Use { block, stream }),
        3 => (stream(), 1_u64..6).prop_map(|(stream, work)| Step::Finish { stream, work }),
        1 => Just(Step::EmptyCache),
        1 => (20 * MIB..200 * MIB).prop_map(Step::SetLimit),
        1 => Just(Step::PoolCreate),
        1 => any::<usize>().prop_map(Step::PoolRetain),
        2 => any::<usize>().prop_map(Step::PoolRelease),
        5 => (any::<usize>(), sizes(), stream())
            .prop_map(|(pool, size, stream)| Step::AllocIn { pool, size, stream }),
        3 => (any::<usize>(), any::<u64>())
            .prop_map(|(block, inside)| Step::Hold { block, inside }),
        3 => any::<usize>().prop_map(Step::Unhold),
        1 => stream().prop_map(Step::Capture),
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

/// Blocks of some pages, most of them used by other streams, too: what a request lacks lies apart, and is
/// shown by views.
fn scattered() -> impl Strategy<Value = Vec<Step>> {
    let stream = || 0_u64..3;
    // Some come again, so that views do, too.
    let size = || prop_oneof![2 => MIB..12 * MIB, 3 => (1_u64..6).prop_map(|n| n * 2 * MIB)];
    let step = prop_oneof![
        12 => (size(), stream()).prop_map(|(size, stream)| Step::Alloc { size, stream }),
        2 => (1_u64..MIB, stream()).prop_map(|(size, stream)| Step::Alloc { size, stream }),
        2 => (12 * MIB..40 * MIB, stream())
            .prop_map(|(size, stream)| Step::Alloc { size, stream }),
        13 => any::<usize>().prop_map(Step::Free),
        8 => (any::<usize>(), stream()).prop_map(|(block, stream)| Step::Use { block, stream }),
        3 => (stream(), 1_u64..6).prop_map(|(stream, work)| Step::Finish { stream, work }),
        1 => Just(Step::EmptyCache),
        2 => (0..50 * MIB).prop_map(Step::Trim),
        1 => Just(Step::PoolCreate),
        1 => any::<usize>().prop_map(Step::PoolRelease),
        3 => (any::<usize>(), size(), stream())
            .prop_map(|(pool, size, stream)| Step::AllocIn { pool, size, stream }),
        1 => (any::<usize>(), any::<u64>())
            .prop_map(|(block, inside)| Step::Hold { block, inside }),
        1 => any::<usize>().prop_map(Step::Unhold),
        1 => stream().prop_map(Step::Capture),
        5 => (any::<usize>(), stream()).prop_map(|(pool, stream)| Step::Replay { pool, stream }),
        1 => any::<usize>().prop_map(Step::Record),
    ];
    prop::collection::vec(step, 1..250)
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None, // a failure is shown with its steps
        max_shrink_iters: 20_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(2000))]

    #[test]
    fn random_use_keeps_every_promise(
        config in configs(),
        steps in steps(120),
        faults in prop::collection::btree_set(1_u32..150, 0..20),
        capacity in prop_oneof![Just(100 * MIB), Just(u64::MAX / 2)],
        virtual_memory in any::<bool>(),
    ) {
        let sim = match virtual_memory {
            true => Sim::with_virtual_memory(capacity),
            false => Sim::new(capacity),
        };
        let mut model = Model::new(sim, config);
        model.sim.0.lock().faults = faults;
        for step in &steps {
            model.step(step);
        }
        model.finish();
    }
}

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn lent_memory_keeps_every_promise(
        config in configs(),
        steps in scattered(),
        faults in prop::collection::btree_set(1_u32..400, 0..10),
        capacity in prop_oneof![2 => Just(100 * MIB), 1 => Just(u64::MAX / 2)],
    ) {
        let mut model = Model::new(Sim::with_virtual_memory(capacity), config);
        model.sim.0.lock().faults = faults;
        for step in &steps {
            model.step(step);
        }
        model.finish();
    }
}
