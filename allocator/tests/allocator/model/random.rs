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
