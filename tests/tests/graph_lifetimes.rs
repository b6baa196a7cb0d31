//! Ten thousand graphs, destroyed while their replays are under way, leave nothing behind: neither handles nor threads nor
//! memory of the process.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals, or reads what the test leaked"
)]

use std::sync::atomic::{AtomicUsize, Ordering};

use outrigger::ffi::*;
use outrigger::runtime::DType;
use outrigger_tests::abi::*;
use outrigger_tests::within_limit;

const FLAGS: [u32; 3] = [0, OTR_GRAPH_SERIAL, OTR_GRAPH_SUBMIT];

/// A number of /proc/self/status.
fn status(key: &str) -> u64 {
    let all = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = all.lines().find(|line| line.starts_with(key));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.expect("a value").parse().expect("a number")
}

#[test]
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
            ok(unsafe { otr_memory_free(device, t) });
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
        ok(unsafe { otr_memory_free(device, x) });
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
