//! Random programs of streams, events, memory, kernels, host functions, conditionals and child graphs.
//! They must compute what a plain sequential model computes: eagerly, captured and replayed, and built
//! node by node; with every flag, with other buffers and numbers bound, after updates, and on three
//! drivers in one runtime. A program that fails is shrunk, and its seed is printed.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals, or touches buffers of the sizes that this file allocates"
)]

mod commands;
mod model;
mod program;
mod streams;

use std::ffi::CString;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use outrigger::ffi::*;
use outrigger::runtime::{Code, DType};
use outrigger_tests::abi::{
    DEVICES, alloc, download, exec_info, fails, held, instantiate, made, ok, outcome, replay,
    scalar, upload,
};
use outrigger_tests::within_limit;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestError, TestRng, TestRunner};
use serial_test::serial;

use commands::{JOBS, add_slow_mix, dtype, width};
use model::{Data, State};
use program::{Block, COUNT, DEPTH, Draft, FLOATS, GLOBALS, LANES, Resolver, Work};
use streams::{Env, How, places};

/// A program, and what is done with its graphs.
#[derive(Clone, Debug)]
struct Case {
    drafts: Vec<Draft>,
    late: bool,
    pool: bool,
    replays: Vec<Replay>,
}

/// One replay; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
struct Replay {
    exec: usize,
    lane: usize,
    bind: Vec<(usize, usize)>,
    alpha: Option<i64>,
    check: bool,
    compare: bool,
}

fn case() -> impl Strategy<Value = Case> {
    let replay = (
        any::<usize>(),
        0..LANES,
        vec((0..GLOBALS, 0..2usize), 0..3),
        proptest::option::of(proptest::sample::select(vec![1i64, -1, 2])),
        proptest::bool::weighted(0.1),
        proptest::bool::weighted(0.2),
    )
        .prop_map(|(exec, lane, bind, alpha, check, compare)| Replay {
            exec,
            lane,
            bind,
            alpha,
            check,
            compare,
        });
    let drafts = program::drafts(DEPTH, 24);
    (drafts, any::<bool>(), any::<bool>(), vec(replay, 0..12)).prop_map(
        |(drafts, late, pool, replays)| Case {
            drafts,
            late,
            pool,
            replays,
        },
    )
}

/// An executable graph, and what it runs on now.
struct Exec {
    id: u64,
    captured: bool,
    map: [usize; GLOBALS],
    alpha: Option<i64>,
}

/// Devices whose driver has graphs of its own: `host` with that option, unified and discrete.
static NATIVE: LazyLock<[u32; 2]> = LazyLock::new(|| {
    for face in ["unified", "discrete"] {
        let spec = format!("host?graphs=native&devices=1&memory=256M&face={face}");
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
    }
    let count: u32 = made(|out| unsafe { otr_device_count(out) });
    [count - 2, count - 1]
});

/// Levels that ran in parallel, of all programs.
static PARALLEL: AtomicU32 = AtomicU32::new(0);

fn size(buffer: usize) -> u64 {
    COUNT as u64 * width(dtype(buffer))
}

/// Checks that the devices hold what the model says.
#[track_caller]
fn compare(env: &Env, sets: &[[u64; GLOBALS]; 2], state: &State, when: &str) {
    env.synchronize();
    let lane = env.lanes[0][0];
    for (set, (addresses, expected)) in sets.iter().zip(&state.sets).enumerate() {
        for (buffer, (&address, expected)) in addresses.iter().zip(expected).enumerate() {
            let found = match dtype(buffer) == DType::F32 {
                true => Data::Floats(download(lane, address, COUNT)),
                false => Data::Integers(download(lane, address, COUNT)),
            };
            assert_eq!(&found, expected, "{when}: buffer {buffer} of set {set}");
        }
    }
    let received: Vec<i64> = env
        .received
        .iter()
        .map(|one| one.load(Ordering::Relaxed))
        .collect();
    assert_eq!(received, state.received, "{when}: what the host received");
}

/// Names all buffers that can be bound, and the number of the named addition.
fn name(graph: u64, node: Option<u32>, addresses: &[u64; GLOBALS], bindable: &[usize]) {
    for &buffer in bindable {
        let name = CString::new(format!("b{buffer}")).expect("no NUL");
        let (address, size) = (addresses[buffer], size(buffer));
        ok(unsafe { otr_graph_name_buffer(graph, name.as_ptr(), address, size) });
    }
    if let Some(node) = node {
        ok(unsafe { otr_graph_name_scalar(graph, c"alpha".as_ptr(), node, 0) });
    }
}

/// The type of the named addition's numbers.
fn named_type(block: &Block) -> Option<DType> {
    block
        .acts
        .iter()
        .find_map(|act| match act {
            program::Act::Work(
                _,
                Work::Add {
                    out, named: true, ..
                },
            ) => Some(*out),
            _ => None,
        })
        .map(|out| match out {
            out if out < GLOBALS => dtype(out),
            // The allocation says which of the two types a buffer of a block has.
            out => block
                .acts
                .iter()
                .find_map(|act| match act {
                    program::Act::Alloc(_, buffer, dtype) if *buffer == out => Some(*dtype),
                    _ => None,
                })
                .expect("allocated before"),
        })
}

fn run(device: u32, case: &Case) {
    let block = Resolver::program(&case.drafts);
    let before = (held(device), JOBS.load(Ordering::Relaxed));
    let env = Env::new(device);
    let control = env.lanes[0][0];
    let mut state = State::new();
    let sets: [[u64; GLOBALS]; 2] = std::array::from_fn(|set| {
        std::array::from_fn(|buffer| {
            let address = alloc(device, size(buffer), control);
            match &state.sets[set][buffer] {
                Data::Floats(numbers) => upload(control, address, numbers),
                Data::Integers(numbers) => upload(control, address, numbers),
            }
            address
        })
    });
    let home = [0; GLOBALS];
    let first = places(&sets, &home);

    streams::run(&env, &block, &first, case.late);
    state.run(&block, &home, None);
    compare(&env, &sets, &state, "eagerly");

    let pool = match case.pool {
        true => made(|out| unsafe { otr_pool_create(device, out) }),
        false => 0,
    };
    let how = How {
        capture: true,
        late: case.late,
        pool,
    };
    let fixed = block.uses().fixed;
    let bindable: Vec<usize> = (0..GLOBALS)
        .filter(|buffer| !fixed.contains(buffer))
        .collect();
    let mut execs = Vec::new();
    for captured in [true, false] {
        let (graph, node) = match captured {
            true => streams::capture(&env, &block, &first, how),
            false => streams::build(&env, &block, &first),
        };
        name(graph, node, &sets[0], &bindable);
        for flags in [0, OTR_GRAPH_SERIAL, OTR_GRAPH_SUBMIT, OTR_GRAPH_NATIVE] {
            if flags == OTR_GRAPH_NATIVE && !NATIVE.contains(&device) {
                let status = unsafe { otr_graph_instantiate(graph, flags, &mut 0) };
                fails(status, Code::UNSUPPORTED, &[]);
                continue;
            }
            if flags == OTR_GRAPH_NATIVE && block.chooses() {
                let status = unsafe { otr_graph_instantiate(graph, flags, &mut 0) };
                fails(status, Code::UNSUPPORTED, &["conditional"]);
                continue;
            }
            let id = instantiate(graph, flags);
            let info = exec_info(id);
            assert!(flags == 0 || info.parallel_levels == 0, "{flags}: {info:?}");
            PARALLEL.fetch_add(info.parallel_levels, Ordering::Relaxed);
            execs.push(Exec {
                id,
                captured,
                map: home,
                alpha: None,
            });
        }
        ok(unsafe { otr_graph_destroy(graph) });
    }
    // Memory that only graphs know stays theirs.
    ok(unsafe { otr_memory_empty_cache(device) });
    compare(&env, &sets, &state, "before any replay");

    let named = named_type(&block);
    let mut last: Option<(u64, usize)> = None;
    for (round, step) in case.replays.iter().enumerate() {
        let count = execs.len();
        let exec = &mut execs[step.exec % count];
        for &(buffer, set) in step
            .bind
            .iter()
            .filter(|(buffer, _)| bindable.contains(buffer))
        {
            let name = CString::new(format!("b{buffer}")).expect("no NUL");
            let slot = made(|out| unsafe { otr_graph_slot(exec.id, name.as_ptr(), out) });
            ok(unsafe { otr_graph_bind(exec.id, slot, sets[set][buffer]) });
            exec.map[buffer] = set;
        }
        if let (Some(alpha), Some(dtype)) = (step.alpha, named) {
            let slot = made(|out| unsafe { otr_graph_slot(exec.id, c"alpha".as_ptr(), out) });
            match outcome(unsafe { otr_graph_bind_scalar(exec.id, slot, &scalar(dtype, alpha)) }) {
                Ok(()) => exec.alpha = Some(alpha),
                // Another kernel runs with this number: the graph says so, and keeps the old one.
                Err((code, message)) => assert_eq!(code, Code::UNSUPPORTED, "{message}"),
            }
        }
        // Replays of one graph are ordered by themselves, others by the host.
        let lane = env.lanes[0][step.lane];
        if let Some((other, on)) = last
            && other != exec.id
            && on != step.lane
        {
            ok(unsafe { otr_event_record(env.events[0], env.lanes[0][on]) });
            ok(unsafe { otr_stream_wait_event(lane, env.events[0]) });
        }
        last = Some((exec.id, step.lane));
        match step.check {
            true => ok(unsafe { otr_graph_check(exec.id, lane) }),
            false => replay(exec.id, lane),
        }
        state.run(&block, &exec.map, exec.alpha);
        if step.compare {
            compare(&env, &sets, &state, &format!("after replay {round}"));
        }
    }
    compare(&env, &sets, &state, "after all replays");

    // The same program once more, on the other buffers.
    let other = [1; GLOBALS];
    let (graph, node) = streams::capture(&env, &block, &places(&sets, &other), how);
    name(graph, node, &sets[1], &bindable);
    for exec in execs.iter_mut().filter(|exec| exec.captured) {
        ok(unsafe { otr_graph_update(exec.id, graph) });
        (exec.map, exec.alpha) = (other, None);
        replay(exec.id, control);
        state.run(&block, &other, None);
    }
    ok(unsafe { otr_graph_destroy(graph) });
    compare(&env, &sets, &state, "after an update");
    for exec in &execs {
        ok(unsafe { otr_graph_check(exec.id, control) });
        state.run(&block, &exec.map, exec.alpha);
    }
    compare(&env, &sets, &state, "after checks");

    for exec in execs {
        ok(unsafe { otr_graph_exec_destroy(exec.id) });
    }
    if pool != 0 {
        ok(unsafe { otr_pool_destroy(pool) });
    }
    for address in sets.into_iter().flatten() {
        ok(unsafe { otr_memory_free(device, address) });
    }
    env.destroy();
    let after = (held(device), JOBS.load(Ordering::Relaxed));
    assert_eq!(after, before, "memory and user data are given back");
}

#[test]
#[serial]
fn levels_that_run_in_parallel_wait_for_each_other() {
    within_limit(|| {
        for device in *DEVICES {
            let env = Env::new(device);
            let s = env.lanes[0][0];
            let addresses: [u64; 4] = std::array::from_fn(|_| alloc(device, size(FLOATS), s));
            let mut model = [[1i64; COUNT]; 4];
            for address in addresses {
                upload(s, address, &model[0]);
            }
            let graph = made(|out| unsafe { otr_graph_create(device, 0, out) });
            // Pairs that may run side by side; each reads what both of the pair before have written.
            let mut deps: Vec<u32> = Vec::new();
            let pairs = [[(0, 1), (2, 2)], [(1, 0), (3, 2)], [(0, 3), (2, 1)]];
            for (level, pair) in (1..).zip(pairs) {
                // The second one of a pair is quick, so that its thread goes on at once.
                let [(a, from_a), (b, from_b)] = pair;
                let slow = add_slow_mix(graph, &deps, addresses[a], addresses[from_a], level);
                let place = |buffer: usize| (addresses[buffer], DType::I64);
                let quick = Work::Mix {
                    to: b,
                    from: from_b,
                    k: level,
                    cost_ns: 3_000_000,
                };
                let quick = commands::emit(
                    commands::To::Graph(graph, &deps),
                    &quick,
                    place,
                    &env.received,
                );
                deps = vec![slow, quick];
            }
            let exec = instantiate(graph, 0);
            let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
            assert_eq!(
                exec_info(exec).parallel_levels,
                if threads > 1 { 3 } else { 0 }
            );
            for round in 0..5 {
                replay(exec, s);
                for (level, pair) in (1..).zip(pairs) {
                    for (to, from) in pair {
                        let from = model[from];
                        for (to, from) in model[to].iter_mut().zip(from) {
                            *to = model::mix(*to, from, level);
                        }
                    }
                }
                let found = addresses.map(|address| download::<i64>(s, address, COUNT));
                assert_eq!(found, model.map(Vec::from), "replay {round}");
            }
            ok(unsafe { otr_graph_destroy(graph) });
            ok(unsafe { otr_graph_exec_destroy(exec) });
            for address in addresses {
                ok(unsafe { otr_memory_free(device, address) });
            }
            env.destroy();
        }
    });
}

/// A seed from the environment, to run a failure again, or a new one.
fn seed() -> u64 {
    let given = std::env::var("OUTRIGGER_TEST_SEED").ok();
    let given = given.map(|text| text.parse().expect("OUTRIGGER_TEST_SEED is a number"));
    given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.expect("after 1970").as_nanos() as u64
    })
}

#[test]
#[serial]
fn programs_mean_the_same_eagerly_captured_and_built() {
    let seed = seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases: std::env::var("OUTRIGGER_TEST_CASES")
            .map_or(60, |text| text.parse().expect("a number")),
        failure_persistence: None,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let outcome = TestRunner::new_with_rng(config, rng).run(&case(), |case| {
        for device in DEVICES.iter().chain(&*NATIVE).copied() {
            let case = case.clone();
            within_limit(move || run(device, &case));
        }
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, case)) => panic!(
            "{reason}\nOUTRIGGER_TEST_SEED={seed}\nthe program: {:#?}\nthe case: {case:#?}",
            Resolver::program(&case.drafts)
        ),
        Err(error) => panic!("{error}\nOUTRIGGER_TEST_SEED={seed}"),
    }
    if std::thread::available_parallelism().is_ok_and(|count| count.get() > 1) {
        assert!(
            PARALLEL.load(Ordering::Relaxed) > 0,
            "no program ran in parallel"
        );
    }
}
