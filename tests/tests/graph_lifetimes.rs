//! Graphs that are destroyed while they are in use: by replays that are held back, by streams that are
//! gone, and by threads that know nothing of each other. And ten thousand graphs, which leave nothing
//! behind.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals, or reads what the test leaked"
)]

use std::ffi::c_void;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use outrigger::ffi::*;
use outrigger::runtime::{Code, DType};
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;
use serial_test::serial;

const FLAGS: [u32; 3] = [0, OTR_GRAPH_SERIAL, OTR_GRAPH_SUBMIT];

#[test]
#[serial]
fn what_a_replay_uses_outlives_all_handles() {
    within_limit(|| {
        for device in *DEVICES {
            for flags in FLAGS {
                let (s, other) = (stream(device), stream(device));
                let before = held(device);
                let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
                upload(s, x, &[3.0f32; 16]);
                upload(s, y, &[1.0f32; 16]);
                let pool: u64 = made(|out| unsafe { otr_pool_create(device, out) });
                let user = counter();
                ok(unsafe { otr_capture_begin(s, OTR_CAPTURE_GLOBAL, pool) });
                let t = alloc(device, 64, s);
                add(s, (t, x, x), 16, 1);
                ok(unsafe { otr_host_node(s, &host_node(user)) });
                add(s, (y, y, t), 16, 1);
                ok(unsafe { otr_memory_free(t) });
                let graph = end(s);
                let exec = instantiate(graph, flags);
                let door = hold_back(s);
                replay(exec, s);
                ok(unsafe { otr_graph_exec_destroy(exec) });
                ok(unsafe { otr_graph_destroy(graph) });
                ok(unsafe { otr_pool_destroy(pool) });
                ok(unsafe { otr_memory_free(x) });
                fails(
                    unsafe { otr_graph_replay(exec, s) },
                    Code::INVALID_HANDLE,
                    &[],
                );
                ok(unsafe { otr_memory_empty_cache(device) });
                // Nobody else gets the memory.
                let taken: Vec<u64> = (0..32).map(|_| alloc(device, 64, other)).collect();
                for &address in &taken {
                    upload(other, address, &[-9.0f32; 16]);
                }
                assert_eq!(
                    user.load(Ordering::Relaxed),
                    0,
                    "not called yet, nor given back"
                );
                door.store(true, Ordering::Release);
                assert_eq!(download::<f32>(s, y, 16), [7.0; 16], "{flags}");
                for address in taken.into_iter().chain([y]) {
                    ok(unsafe { otr_memory_free(address) });
                }
                assert_eq!(held(device), before);
                assert_eq!(
                    user.load(Ordering::Relaxed),
                    1001,
                    "called and given back once"
                );
                for stream in [s, other] {
                    ok(unsafe { otr_stream_destroy(stream) });
                }
            }
        }
    });
}

#[test]
#[serial]
fn memory_that_a_graph_names_is_nobody_elses() {
    within_limit(|| {
        for device in *DEVICES {
            let s = stream(device);
            let before = held(device);
            let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
            upload(s, x, &[3.0f32; 16]);
            begin(s);
            add(s, (y, x, x), 16, 1);
            let graph = end(s);
            let exec = instantiate(graph, 0);
            ok(unsafe { otr_memory_free(x) });
            // One of these is the memory of x, if nobody holds it.
            let others: Vec<u64> = (0..64).map(|_| alloc(device, 64, s)).collect();
            for &address in &others {
                upload(s, address, &[-9.0f32; 16]);
            }
            replay(exec, s);
            assert_eq!(download::<f32>(s, y, 16), [6.0; 16]);
            fails(unsafe { otr_memory_free(x) }, Code::INVALID_ARGUMENT, &[]);
            ok(unsafe { otr_graph_destroy(graph) });
            ok(unsafe { otr_graph_exec_destroy(exec) });
            assert_eq!(alloc(device, 64, s), x, "it is free with the last graph");
            for address in others.into_iter().chain([x, y]) {
                ok(unsafe { otr_memory_free(address) });
            }
            assert_eq!(held(device), before);
        }
    });
}

#[test]
#[serial]
fn replays_keep_their_order_over_streams_that_are_gone() {
    within_limit(|| {
        for device in *DEVICES {
            for flags in FLAGS {
                let (first, second) = (stream(device), stream(device));
                let before = held(device);
                let buffers: Vec<u64> = (0..3).map(|_| alloc(device, 64, first)).collect();
                let [y, one, ten] = buffers[..] else { panic!() };
                for (address, value) in [(y, 0.0f32), (one, 1.0), (ten, 10.0)] {
                    upload(first, address, &[value; 16]);
                }
                begin(first);
                add(first, (y, y, y), 16, 1);
                add(first, (y, y, one), 16, 1);
                let graph = end(first);
                ok(unsafe { otr_graph_name_buffer(graph, c"b".as_ptr(), one, 64) });
                let exec = instantiate(graph, flags);
                let slot = made(|out| unsafe { otr_graph_slot(exec, c"b".as_ptr(), out) });
                let door = hold_back(first);
                replay(exec, first);
                ok(unsafe { otr_stream_destroy(first) });
                ok(unsafe { otr_graph_bind(exec, slot, ten) });
                replay(exec, second);
                let mut finished = 7;
                ok(unsafe { otr_stream_query(second, &mut finished) });
                assert_eq!(finished, 0, "it waits for the one before");
                door.store(true, Ordering::Release);
                assert_eq!(download::<f32>(second, y, 16), [12.0; 16], "{flags}");
                ok(unsafe { otr_graph_bind(exec, slot, 0) });
                replay(exec, second);
                assert_eq!(download::<f32>(second, y, 16), [25.0; 16], "{flags}");
                ok(unsafe { otr_graph_exec_destroy(exec) });
                ok(unsafe { otr_graph_destroy(graph) });
                for address in buffers {
                    ok(unsafe { otr_memory_free(address) });
                }
                assert_eq!(held(device), before);
                ok(unsafe { otr_stream_destroy(second) });
            }
        }
    });
}

unsafe extern "C" fn failing(_user: *mut c_void, _bias: i64, _upstream: i32) -> i32 {
    Code::OUT_OF_RANGE.0
}

#[test]
#[serial]
fn a_graph_that_fails_is_given_back_as_any_other() {
    within_limit(|| {
        for device in *DEVICES {
            for flags in FLAGS {
                let s = stream(device);
                let before = held(device);
                let x = alloc(device, 64, s);
                let user = counter();
                let mut node = host_node(user);
                node.function = Some(failing);
                begin(s);
                ok(unsafe { otr_host_node(s, &node) });
                add(s, (x, x, x), 16, 1);
                let graph = end(s);
                let exec = instantiate(graph, flags);
                replay(exec, s);
                replay(exec, s);
                ok(unsafe { otr_graph_exec_destroy(exec) });
                ok(unsafe { otr_graph_destroy(graph) });
                ok(unsafe { otr_memory_free(x) });
                fails(
                    unsafe { otr_stream_synchronize(s) },
                    Code::OUT_OF_RANGE,
                    &[],
                );
                assert_eq!(held(device), before, "{flags}");
                assert_eq!(user.load(Ordering::Relaxed), 1000, "given back once");
                ok(unsafe { otr_stream_destroy(s) });
            }
        }
    });
}

/// Captures, replays and destroys; numbers are those of eager additions.
fn capture_rounds(device: u32, rounds: usize) {
    let (s, other) = (stream(device), stream(device));
    let (fork, join) = (event(device), event(device));
    let (x, y) = (alloc(device, 4096, s), alloc(device, 4096, s));
    upload(s, x, &[1.0f32; 1024]);
    for round in 0..rounds {
        upload(s, y, &[0.0f32; 1024]);
        begin(s);
        let t = alloc(device, 4096, s);
        add(s, (t, x, x), 1024, 1);
        ok(unsafe { otr_event_record(fork, s) });
        ok(unsafe { otr_stream_wait_event(other, fork) });
        add(other, (y, y, t), 1024, 1);
        ok(unsafe { otr_event_record(join, other) });
        ok(unsafe { otr_stream_wait_event(s, join) });
        ok(unsafe { otr_memory_free(t) });
        let graph = end(s);
        let exec = instantiate(graph, FLAGS[round % FLAGS.len()]);
        replay(exec, s);
        replay(exec, other);
        replay(exec, s);
        ok(unsafe { otr_graph_destroy(graph) });
        ok(unsafe { otr_graph_exec_destroy(exec) });
        assert_eq!(download::<f32>(s, y, 1024), [6.0; 1024], "round {round}");
    }
    for address in [x, y] {
        ok(unsafe { otr_memory_free(address) });
    }
}

/// Allocates, computes and waits in all ways, as if nobody captured.
fn eager_rounds(device: u32, seed: usize, done: &AtomicBool) {
    let s = stream(device);
    let e = event(device);
    let mut round = seed;
    while !done.load(Ordering::Relaxed) {
        round += 1;
        let count = 16 << (round % 5);
        let (a, b) = (alloc(device, count * 4, s), alloc(device, count * 4, s));
        let value = (round % 100) as f32;
        upload(s, a, &vec![value; count as usize]);
        add(s, (b, a, a), count as i64, 1);
        ok(unsafe { otr_event_record(e, s) });
        match round % 4 {
            0 => ok(unsafe { otr_event_synchronize(e) }),
            1 => ok(unsafe { otr_device_synchronize(device) }),
            2 => ok(unsafe { otr_memory_empty_cache(device) }),
            _ => synchronize(s),
        }
        assert_eq!(
            download::<f32>(s, b, count as usize),
            vec![2.0 * value; count as usize]
        );
        ok(unsafe { otr_memory_free(a) });
        ok(unsafe { otr_memory_free(b) });
    }
    synchronize(s);
}

#[test]
#[serial]
fn threads_capture_while_others_work_on_the_same_devices() {
    within_limit(|| {
        let devices = [DEVICES[0], DEVICES[2]];
        let before = devices.map(held);
        let done = AtomicBool::new(false);
        let (start, done) = (&Barrier::new(8), &done);
        std::thread::scope(|scope| {
            let captures = [0, 1].map(|index| {
                scope.spawn(move || {
                    start.wait();
                    let outcome = std::panic::catch_unwind(|| capture_rounds(devices[index], 150));
                    done.store(true, Ordering::Relaxed);
                    outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                })
            });
            for index in 0..6 {
                scope.spawn(move || {
                    start.wait();
                    eager_rounds(devices[index % 2], index, done);
                });
            }
            for capture in captures {
                if let Err(panic) = capture.join() {
                    std::panic::resume_unwind(panic);
                }
            }
        });
        assert_eq!(devices.map(held), before);
    });
}

/// A number of /proc/self/status.
fn status(key: &str) -> u64 {
    let all = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = all.lines().find(|line| line.starts_with(key));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect("a value").parse().expect("a number")
}

#[test]
#[serial]
fn ten_thousand_graphs_leave_nothing_behind() {
    const ROUNDS: usize = 10_000;
    const WARM: usize = 1_000;
    within_limit(|| {
        let user: &'static AtomicUsize = counter();
        let device = DEVICES[1];
        let s = stream(device);
        let before = held(device);
        let x = alloc(device, 64, s);
        upload(s, x, &[0.0f32; 16]);
        let mut highest = 0;
        let mut warm = (0, 0);
        for round in 0..ROUNDS {
            begin(s);
            let t = alloc(device, 64, s);
            with_add(DType::F32, (t, x, x), 16, 1, |id, call| {
                ok(unsafe { otr_operator_call(s, id, call) });
            });
            ok(unsafe { otr_host_node(s, &host_node(user)) });
            add(s, (x, x, t), 16, 1);
            ok(unsafe { otr_memory_free(t) });
            let graph = end(s);
            let exec = instantiate(graph, FLAGS[round % FLAGS.len()]);
            replay(exec, s);
            ok(unsafe { otr_graph_destroy(graph) });
            ok(unsafe { otr_graph_exec_destroy(exec) });
            // The place of a handle in its table.
            let place = (graph & 0xff_ffff).max(exec & 0xff_ffff);
            if round < WARM {
                highest = highest.max(place);
                warm = (status("Threads:"), status("VmRSS:"));
            } else {
                assert!(place <= highest, "handles grow: {place} of {highest}");
            }
            // The ring of a stream is as long as it is: nobody waits for each replay.
            if round % 50 == 0 {
                synchronize(s);
            }
        }
        ok(unsafe { otr_memory_free(x) });
        assert_eq!(held(device), before);
        assert_eq!(
            user.load(Ordering::Relaxed),
            ROUNDS * 1001,
            "called and given back once each"
        );
        let (threads, kilobytes) = (status("Threads:"), status("VmRSS:"));
        assert!(threads <= warm.0, "{threads} threads, {} before", warm.0);
        assert!(
            kilobytes < warm.1 + 4096,
            "{kilobytes} KiB, {} before",
            warm.1
        );
    });
}
