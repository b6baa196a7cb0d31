//! Between replays, the free memory of a graph's pool serves others. Replays compute the right results,
//! and so does the work that has used the memory meanwhile, whichever comes first and however the graph
//! is replayed. Within a capture, what other streams have used is used again.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::CString;
use std::sync::LazyLock;

use outrigger::ffi::*;
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;
use serial_test::serial;

const MIB: usize = 1 << 20;
/// Numbers in a buffer of the graph.
const COUNT: usize = 6 * MIB;

/// A device of each face of `host`, and one that has graphs of its own.
static DEVICES: LazyLock<[u32; 3]> = LazyLock::new(|| {
    let options = ["", "&face=discrete", "&graphs=native"];
    options.map(|options| {
        let first = made(|out| unsafe { otr_device_count(out) });
        let spec = format!("host?virtual_memory=on&devices=1&memory=1G{options}");
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
        first
    })
});

/// Records `y = 4 x`, with two buffers between that are free again afterwards.
fn record(device: u32, stream: u64, x: u64, y: u64, flags: u32) -> (u64, u64) {
    let size = 4 * COUNT as u64;
    begin(stream);
    let (first, second) = (alloc(device, size, stream), alloc(device, size, stream));
    add(stream, (first, x, x), COUNT as i64, 1);
    add(stream, (second, first, first), COUNT as i64, 1);
    add(stream, (y, second, x), COUNT as i64, 0);
    for block in [first, second] {
        ok(unsafe { otr_memory_free(device, block) });
    }
    let graph = end(stream);
    (graph, instantiate(graph, flags))
}

#[test]
#[serial]
fn others_use_what_a_graph_has_free_and_both_are_right() {
    within_limit(|| {
        let modes = [(0, 0), (0, OTR_GRAPH_SUBMIT), (1, 0), (2, 0)];
        for (device, flags) in modes.map(|(at, flags)| (DEVICES[at], flags)) {
            let before = held(device);
            let (s, other) = (stream(device), stream(device));
            let size = 4 * COUNT as u64;
            let (x, y) = (alloc(device, size, s), alloc(device, size, s));
            let (graph, exec) = record(device, s, x, y, flags);
            let reserved = stats(device).reserved_bytes.current;
            for round in 0..6 {
                let value = round as f32 + 1.0;
                upload(s, x, &vec![value; COUNT]);
                // On the graph's stream and on another one, in use during the replay or not.
                let (at, keeps) = ([s, other][round % 2], round % 3 == 2);
                let block = alloc(device, size, at);
                upload(at, block, &vec![-value; COUNT]);
                add(at, (block, block, block), COUNT as i64, 1);
                if !keeps {
                    ok(unsafe { otr_memory_free(device, block) });
                }
                replay(exec, s);
                replay(exec, other);
                assert_eq!(
                    download::<f32>(other, y, COUNT),
                    vec![4.0 * value; COUNT],
                    "device {device}, round {round}"
                );
                if keeps {
                    let found = download::<f32>(at, block, COUNT);
                    assert_eq!(found, vec![-2.0 * value; COUNT], "round {round}");
                    ok(unsafe { otr_memory_free(device, block) });
                } else {
                    let now = stats(device).reserved_bytes.current;
                    assert!(
                        now <= reserved + size,
                        "{now} of {reserved} in round {round}"
                    );
                }
            }
            let counts = stats(device);
            assert!(
                counts.views > 0 && counts.view_reuses > 0,
                "nothing was lent"
            );
            ok(unsafe { otr_graph_destroy(graph) });
            ok(unsafe { otr_graph_exec_destroy(exec) });
            for block in [x, y] {
                ok(unsafe { otr_memory_free(device, block) });
            }
            assert_eq!(held(device), before, "to the last byte");
            for stream in [s, other] {
                ok(unsafe { otr_stream_destroy(stream) });
            }
        }
    });
}

#[test]
#[serial]
fn threads_allocate_and_replay_at_the_same_time() {
    within_limit(|| {
        for device in *DEVICES {
            let before = held(device);
            let size = 4 * COUNT as u64;
            std::thread::scope(|scope| {
                for thread in 0..3_u32 {
                    scope.spawn(move || {
                        let s = stream(device);
                        let (x, y) = (alloc(device, size, s), alloc(device, size, s));
                        let (graph, exec) = record(device, s, x, y, 0);
                        for round in 0..8 {
                            let value = (thread * 100 + round) as f32;
                            upload(s, x, &vec![value; COUNT]);
                            let block = alloc(device, size + (round as u64) * 4096, s);
                            upload(s, block, &vec![value; COUNT]);
                            replay(exec, s);
                            add(s, (y, y, block), COUNT as i64, 1);
                            ok(unsafe { otr_memory_free(device, block) });
                            let found = download::<f32>(s, y, COUNT);
                            assert_eq!(found, vec![5.0 * value; COUNT], "{thread}, {round}");
                        }
                        ok(unsafe { otr_graph_destroy(graph) });
                        ok(unsafe { otr_graph_exec_destroy(exec) });
                        for block in [x, y] {
                            ok(unsafe { otr_memory_free(device, block) });
                        }
                        ok(unsafe { otr_stream_destroy(s) });
                    });
                }
            });
            assert_eq!(held(device), before);
        }
    });
}

/// Waits on one stream for all that another one has recorded.
fn follow(stream: u64, event: u64, other: u64) {
    ok(unsafe { otr_event_record(event, other) });
    ok(unsafe { otr_stream_wait_event(stream, event) });
}

#[test]
#[serial]
fn memory_that_another_stream_used_is_used_again_behind_it() {
    const LAYERS: i64 = 40;
    for device in *DEVICES {
        let (s, other, third) = (stream(device), stream(device), stream(device));
        let (fork, join) = (event(device), event(device));
        let before = held(device);
        let [x, y, z] = [(); 3].map(|()| alloc(device, 64, s));
        for waits in [true, false] {
            let (mut own, mut others) = (Vec::new(), Vec::new());
            begin(s);
            add(s, (y, x, x), 16, -1);
            add(s, (z, x, x), 16, -1);
            for stream in [other, third] {
                follow(stream, fork, s);
            }
            // Memory of a stream that does not come back, used by the first one.
            let late = alloc(device, 64, third);
            add(third, (late, x, x), 16, 1);
            follow(s, join, third);
            add(s, (z, z, late), 16, 1);
            ok(unsafe { otr_memory_record_stream(device, late, s) });
            ok(unsafe { otr_memory_free(device, late) });
            for layer in 0..LAYERS {
                // Memory of the first stream, used by the second.
                let t = alloc(device, 64, s);
                own.push(t);
                add(s, (t, x, x), 16, layer);
                follow(other, fork, s);
                add(other, (y, y, t), 16, 1);
                ok(unsafe { otr_memory_record_stream(device, t, other) });
                if waits {
                    follow(s, join, other);
                }
                ok(unsafe { otr_memory_free(device, t) });
                // Memory of the second stream, used by the first.
                let u = alloc(device, 64, other);
                others.push(u);
                add(other, (u, x, x), 16, layer);
                if waits {
                    follow(s, join, other);
                    add(s, (z, z, u), 16, 1);
                    ok(unsafe { otr_memory_record_stream(device, u, s) });
                }
                ok(unsafe { otr_memory_free(device, u) });
            }
            follow(s, join, other);
            let graph = end(s);
            own.sort_unstable();
            own.dedup();
            others.sort_unstable();
            others.dedup();
            if waits {
                assert!(own.len() <= 2 && others.len() <= 2, "{own:x?}, {others:x?}");
            } else {
                assert_eq!(
                    own.len(),
                    LAYERS as usize,
                    "the second stream is not known to have ended"
                );
            }
            let exec = instantiate(graph, 0);
            let sum = (LAYERS * (LAYERS + 1) / 2) as f32;
            for value in [1.0, 3.0] {
                upload(s, x, &[value; 16]);
                replay(exec, s);
                assert_eq!(download::<f32>(s, y, 16), [value * sum; 16]);
                let added = if waits { 2.0 + sum } else { 2.0 };
                assert_eq!(download::<f32>(s, z, 16), [value * added; 16]);
            }
            ok(unsafe { otr_graph_destroy(graph) });
            ok(unsafe { otr_graph_exec_destroy(exec) });
        }
        for block in [x, y, z] {
            ok(unsafe { otr_memory_free(device, block) });
        }
        assert_eq!(held(device), before);
    }
}
