//! Execution graphs from outside, through the C ABI, on three drivers at once (`host` unified, `host`
//! discrete, the C template).

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals, or with what the contract says is checked"
)]

use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

use outrigger::ffi::*;
use outrigger::runtime::{Code, DType};
use outrigger_device::sys::otr_scalar_t;
use outrigger_tests::abi::{
    self, DEVICES, Scripted, add, alloc, begin, end, event, fails, held, instantiate, made, ok,
    outcome, replay, stream, text, with_add,
};
use serial_test::serial;

fn upload(stream: u64, to: u64, from: &[f32]) {
    abi::upload(stream, to, from);
}

fn download(stream: u64, from: u64, count: usize) -> Vec<f32> {
    abi::download(stream, from, count)
}

#[test]
#[serial]
fn a_captured_stream_records_and_replays() {
    for device in *DEVICES {
        let s = stream(device);
        let before = held(device);
        for flags in [0, OTR_GRAPH_SERIAL, OTR_GRAPH_SUBMIT] {
            let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
            upload(s, x, &[1.0; 16]);
            upload(s, y, &[0.0; 16]);
            begin(s);
            let t = alloc(device, 64, s);
            add(s, (t, x, x), 16, 2); // t = 3 x
            add(s, (y, y, t), 16, 1); // y += t
            ok(unsafe { otr_memory_free(t) });
            let graph = end(s);
            assert_eq!(download(s, y, 16), [0.0; 16], "nothing has run yet");
            let exec = instantiate(graph, flags);
            for round in 1..=3 {
                replay(exec, s);
                assert_eq!(download(s, y, 16), [3.0 * round as f32; 16]);
            }
            ok(unsafe { otr_graph_check(exec, s) });
            let before_cost = download(s, y, 16);
            let json = |call: &dyn Fn(*mut *mut c_char) -> *mut otr_status_t| {
                let mut json = null_mut();
                ok(call(&mut json));
                let value: serde_json::Value = serde_json::from_str(&text(json)).expect("JSON");
                unsafe { otr_string_free(json) };
                value
            };
            let cost = json(&|out| unsafe { otr_graph_cost(exec, s, out) });
            assert!(
                cost["nodes"] == 2 && cost["node_by_node_ns"].as_u64() > Some(0),
                "{cost}"
            );
            let host = cost["host_ns"].as_u64();
            assert_eq!(host.is_some(), flags != OTR_GRAPH_SUBMIT, "{cost}");
            assert!(cost["native_ns"].is_null(), "{cost}");
            assert_eq!(download(s, y, 16), before_cost, "the cost leaves no trace");
            let profile = json(&|out| unsafe { otr_graph_profile(exec, s, out) });
            assert_eq!(profile["nodes"][1]["label"], "add", "{profile}");
            let event = &profile["traceEvents"][1];
            assert!(
                event["ph"] == "X" && event["dur"].as_f64() > Some(0.0),
                "{profile}"
            );
            ok(unsafe { otr_graph_destroy(graph) });
            ok(unsafe { otr_memory_free(x) });
            ok(unsafe { otr_memory_free(y) });
            replay(exec, s);
            ok(unsafe { otr_graph_exec_destroy(exec) });
        }
        assert_eq!(held(device), before, "all memory is given back");
    }
}

#[test]
#[serial]
fn streams_fork_and_join_through_events() {
    for device in *DEVICES {
        let (s, other) = (stream(device), stream(device));
        let (fork, join) = (event(device), event(device));
        let buffers: Vec<u64> = (0..4).map(|_| alloc(device, 64, s)).collect();
        let [x, a, b, y] = buffers[..] else { panic!() };
        upload(s, x, &[2.0; 16]);
        begin(s);
        ok(unsafe { otr_event_record(fork, s) });
        ok(unsafe { otr_stream_wait_event(other, fork) });
        add(other, (a, x, x), 16, 1); // a = 2 x
        ok(unsafe { otr_event_record(join, other) });
        add(s, (b, x, x), 16, 3); // b = 4 x
        let error = made_error(|out| unsafe { otr_capture_end(other, out) });
        assert!(
            error.contains("ended on the stream that began it"),
            "{error}"
        );
        ok(unsafe { otr_stream_wait_event(s, join) });
        add(s, (y, a, b), 16, 1);
        let graph = end(s);
        let exec = instantiate(graph, 0);
        replay(exec, other);
        assert_eq!(download(other, y, 16), [12.0; 16]);
        // The streams are ordinary again.
        add(other, (a, x, x), 16, 0);
        assert_eq!(download(other, a, 16), [2.0; 16]);

        // Work that is not joined is named.
        begin(s);
        ok(unsafe { otr_event_record(fork, s) });
        ok(unsafe { otr_stream_wait_event(other, fork) });
        add(other, (a, x, x), 16, 1);
        let error = made_error(|out| unsafe { otr_capture_end(s, out) });
        assert!(
            error.contains("not joined") && error.contains("add"),
            "{error}"
        );
        add(other, (a, x, x), 16, 1);
        assert_eq!(download(other, a, 16), [4.0; 16]);
    }
}

fn made_error(make: impl FnOnce(*mut u64) -> *mut otr_status_t) -> String {
    let mut value = 77;
    let (_, message) = outcome(make(&raw mut value)).expect_err("the call must fail");
    assert_eq!(value, 77, "nothing is written on failure");
    message
}

#[test]
#[serial]
fn named_buffers_and_numbers_are_bound_anew() {
    for device in *DEVICES {
        let s = stream(device);
        let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
        upload(s, x, &[1.0; 16]);
        begin(s);
        add(s, (y, x, x), 16, 2);
        let graph = end(s);
        ok(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), x, 64) });
        ok(unsafe { otr_graph_name_scalar(graph, c"alpha".as_ptr(), 0, 0) });
        for flags in [0, OTR_GRAPH_SUBMIT] {
            let exec = instantiate(graph, flags);
            let slot =
                |name: &CStr| made(|out| unsafe { otr_graph_slot(exec, name.as_ptr(), out) });
            fails(
                unsafe { otr_graph_slot(exec, c"z".as_ptr(), &mut 0) },
                Code::NOT_FOUND,
                &["'z'", "x, alpha"],
            );
            let other = alloc(device, 64, s);
            upload(s, other, &[10.0; 16]);
            ok(unsafe { otr_graph_bind(exec, slot(c"x"), other) });
            ok(unsafe { otr_memory_free(other) }); // held by the graph
            let unrelated = alloc(device, 64, s);
            upload(s, unrelated, &[-1.0; 16]);
            replay(exec, s);
            assert_eq!(download(s, y, 16), [30.0; 16]);
            let mut value: otr_scalar_t = unsafe { std::mem::zeroed() };
            value.dtype = DType::F64.0;
            value.value.f64_ = 5.0;
            ok(unsafe { otr_graph_bind_scalar(exec, slot(c"alpha"), &value) });
            replay(exec, s);
            assert_eq!(download(s, y, 16), [60.0; 16]);
            ok(unsafe { otr_graph_bind(exec, slot(c"x"), x) });
            value.value.f64_ = 2.0;
            ok(unsafe { otr_graph_bind_scalar(exec, slot(c"alpha"), &value) });
            replay(exec, s);
            assert_eq!(download(s, y, 16), [3.0; 16]);
            fails(
                unsafe { otr_graph_bind(exec, slot(c"x"), x + 480) },
                Code::INVALID_ARGUMENT,
                &["overruns"],
            );
            ok(unsafe { otr_memory_free(unrelated) });
            ok(unsafe { otr_graph_exec_destroy(exec) });
        }
    }
}

#[test]
#[serial]
fn what_cannot_be_captured_is_refused_and_streams_stay_usable() {
    for device in *DEVICES {
        let s = stream(device);
        let before = held(device);
        let x = alloc(device, 64, s);
        upload(s, x, &[1.0; 16]);
        let cases: [(&str, &dyn Fn() -> *mut otr_status_t); 5] = [
            ("a wait", &|| unsafe { otr_stream_synchronize(s) }),
            ("a query", &|| unsafe { otr_stream_query(s, &mut 0) }),
            ("device", &|| unsafe { otr_device_synchronize(device) }),
            ("given up: my reason", &|| unsafe {
                otr_capture_abort(s, c"my reason".as_ptr());
                otr_stream_synchronize(s)
            }),
            ("live memory", &|| {
                with_add(DType::F32, (x, 4096, x), 16, 1, |id, call| unsafe {
                    otr_operator_call(s, id, call)
                })
            }),
        ];
        for (what, call) in cases {
            begin(s);
            let t = alloc(device, 1 << 20, s);
            add(s, (x, x, x), 16, 1);
            assert!(outcome(call()).is_err(), "{what}");
            let info = abi::capture_info(s);
            assert_eq!(
                (info.status, info.node_count),
                (OTR_CAPTURE_FAILED, 1),
                "{what}"
            );
            let partial: u64 = made(|out| unsafe { otr_capture_partial(s, out) });
            fails(
                unsafe { otr_graph_instantiate(partial, 0, &mut 0) },
                Code::CAPTURE,
                &["looked at"],
            );
            let mut dot = null_mut();
            ok(unsafe { otr_graph_dump(partial, OTR_GRAPH_DOT, &mut dot) });
            assert!(text(dot).contains("0 add"), "{}", text(dot));
            unsafe { otr_string_free(dot) };
            let error = made_error(|out| unsafe { otr_capture_end(s, out) });
            assert!(error.contains(what), "{what}: {error}");
            ok(unsafe { otr_graph_destroy(partial) });
            ok(unsafe { otr_memory_free(t) });
            assert_eq!(download(s, x, 16), [1.0; 16], "nothing has run");
        }
        ok(unsafe { otr_memory_free(x) });
        assert_eq!(held(device), before);
    }
}

#[test]
#[serial]
fn host_nodes_are_called_at_every_replay_and_failures_are_named() {
    for device in *DEVICES {
        let s = stream(device);
        let node = Scripted::new();
        let body = node.node();
        ok(unsafe { otr_host_node(s, &body) });
        ok(unsafe { otr_stream_synchronize(s) });
        let count = || {
            (
                node.calls.load(Ordering::Relaxed),
                node.destroyed.load(Ordering::Relaxed),
            )
        };
        assert_eq!(count(), (1, 1), "eagerly: once");
        let y = alloc(device, 64, s);
        upload(s, y, &[1.0; 16]);
        begin(s);
        ok(unsafe { otr_host_node(s, &body) });
        add(s, (y, y, y), 16, 1);
        ok(unsafe { otr_host_node(s, &body) });
        let graph = end(s);
        let exec = instantiate(graph, 0);
        ok(unsafe { otr_graph_destroy(graph) });
        replay(exec, s);
        replay(exec, s);
        assert_eq!(download(s, y, 16), [4.0; 16]);
        assert_eq!(count(), (5, 1));
        node.outcome.store(Code::OUT_OF_RANGE.0, Ordering::Relaxed);
        replay(exec, s);
        fails(
            unsafe { otr_stream_synchronize(s) },
            Code::OUT_OF_RANGE,
            &["my host node"],
        );
        assert_eq!(count(), (7, 1), "the second one is called with the failure");
        assert_eq!(
            download(s, y, 16),
            [4.0; 16],
            "what follows a failure does not run"
        );
        node.outcome.store(0, Ordering::Relaxed);
        replay(exec, s);
        assert_eq!(
            download(s, y, 16),
            [8.0; 16],
            "the graph is usable after a failure"
        );
        ok(unsafe { otr_graph_exec_destroy(exec) });
        held(device);
        assert_eq!(count(), (9, 3));
    }
}

#[test]
#[serial]
fn conditionals_read_their_predicate_on_the_device() {
    for device in *DEVICES {
        let s = stream(device);
        let (x, flag) = (alloc(device, 64, s), alloc(device, 64, s));
        let body = |number: i64| {
            begin(s);
            add(s, (x, x, x), 16, number);
            end(s)
        };
        let set = |value: i64| {
            let bytes = value.to_ne_bytes();
            ok(unsafe { otr_fill(s, flag, 8, bytes.as_ptr().cast(), 8) });
        };
        let bodies = [body(1), body(2), body(3)];
        for (kind, count, cases) in [
            (OTR_GRAPH_IF, 2, &[(1, 2.0), (0, 3.0), (7, 2.0)][..]),
            (OTR_GRAPH_IF, 1, &[(1, 2.0), (0, 1.0)]),
            (
                OTR_GRAPH_SWITCH,
                3,
                &[(0, 2.0), (2, 4.0), (3, 1.0), (-1, 1.0)],
            ),
        ] {
            begin(s);
            ok(unsafe {
                otr_capture_conditional(s, kind, flag, DType::I64.0, bodies.as_ptr(), count)
            });
            let graph = end(s);
            for flags in [0, OTR_GRAPH_SUBMIT] {
                let exec = instantiate(graph, flags);
                for &(value, want) in cases {
                    upload(s, x, &[1.0; 16]);
                    set(value);
                    replay(exec, s);
                    assert_eq!(download(s, x, 16), [want; 16], "{kind} {value} {flags}");
                }
            }
        }
        // While: the body counts its own predicate down.
        let one = alloc(device, 64, s);
        ok(unsafe { otr_fill(s, one, 8, 1i64.to_ne_bytes().as_ptr().cast(), 8) });
        begin(s);
        add(s, (x, x, x), 16, 1);
        ok(with_add(
            DType::I64,
            (flag, flag, one),
            1,
            -1,
            |id, call| unsafe { otr_operator_call(s, id, call) },
        ));
        let body = end(s);
        begin(s);
        ok(unsafe { otr_capture_conditional(s, OTR_GRAPH_WHILE, flag, DType::I64.0, &body, 1) });
        let graph = end(s);
        for flags in [0, OTR_GRAPH_SUBMIT] {
            let exec = instantiate(graph, flags);
            for rounds in [3, 0, 5] {
                upload(s, x, &[1.0; 16]);
                set(rounds);
                replay(exec, s);
                assert_eq!(
                    download(s, x, 16),
                    [2f32.powi(rounds as i32); 16],
                    "{flags}"
                );
            }
        }
        fails(
            unsafe {
                otr_graph_add_conditional(
                    graph,
                    null(),
                    0,
                    OTR_GRAPH_WHILE,
                    flag,
                    DType::F32.0,
                    bodies.as_ptr(),
                    1,
                    &mut 0,
                )
            },
            Code::INVALID_ARGUMENT,
            &["bool, u8, i32 or i64"],
        );
    }
}

#[test]
#[serial]
fn graphs_are_built_node_by_node() {
    for device in *DEVICES {
        let s = stream(device);
        let before = held(device);
        let x = alloc(device, 64, s);
        upload(s, x, &[1.0; 16]);
        let graph: u64 = made(|out| unsafe { otr_graph_create(device, 0, out) });
        let (mut t, mut first) = (0, 0);
        ok(unsafe { otr_graph_add_alloc(graph, null(), 0, 64, &mut t, &mut first) });
        let (mut a, mut b, mut f) = (0, 0, 0);
        with_add(DType::F32, (t, x, x), 16, 1, |id, call| {
            ok(unsafe { otr_graph_add_operator(graph, &first, 1, id, call, &mut a) });
        });
        with_add(DType::F32, (x, x, t), 16, 1, |id, call| {
            ok(unsafe { otr_graph_add_operator(graph, &a, 1, id, call, &mut b) });
        });
        ok(unsafe { otr_graph_add_free(graph, &b, 1, t, &mut f) });
        // The memory comes again, so that its node runs after the free.
        let (mut u, mut second, mut c) = (0, 0, 0);
        ok(unsafe { otr_graph_add_alloc(graph, null(), 0, 64, &mut u, &mut second) });
        with_add(DType::F32, (u, x, x), 16, 1, |id, call| {
            ok(unsafe { otr_graph_add_operator(graph, &second, 1, id, call, &mut c) });
        });
        fails(
            unsafe { otr_graph_add_free(graph, null(), 0, x, &mut f) },
            Code::INVALID_ARGUMENT,
            &["not an allocation"],
        );
        fails(
            unsafe { otr_graph_add_empty(graph, &99, 1, &mut f) },
            Code::INVALID_ARGUMENT,
            &["node 99"],
        );
        let parent: u64 = made(|out| unsafe { otr_graph_create(device, 0, out) });
        let (mut one, mut two) = (0, 0);
        ok(unsafe { otr_graph_add_child(parent, null(), 0, graph, &mut one) });
        ok(unsafe { otr_graph_add_child(parent, &one, 1, graph, &mut two) });
        let exec = instantiate(parent, 0);
        ok(unsafe { otr_graph_destroy(graph) });
        ok(unsafe { otr_graph_destroy(parent) });
        replay(exec, s);
        assert_eq!(download(s, x, 16), [9.0; 16]);
        assert_eq!(download(s, u, 16), [18.0; 16]);
        ok(unsafe { otr_graph_exec_destroy(exec) });
        ok(unsafe { otr_memory_free(x) });
        assert_eq!(held(device), before);
    }
}

#[test]
#[serial]
fn an_update_takes_other_addresses_of_the_same_shape() {
    for device in *DEVICES {
        let s = stream(device);
        let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
        upload(s, x, &[1.0; 16]);
        upload(s, y, &[1.0; 16]);
        let chain = |to: u64, length: usize| {
            begin(s);
            (0..length).for_each(|_| add(s, (to, to, to), 16, 1));
            end(s)
        };
        let exec = instantiate(chain(x, 3), 0);
        replay(exec, s);
        ok(unsafe { otr_graph_update(exec, chain(y, 3)) });
        replay(exec, s);
        assert_eq!(download(s, x, 16), [8.0; 16]);
        assert_eq!(download(s, y, 16), [8.0; 16]);
        fails(
            unsafe { otr_graph_update(exec, chain(x, 4)) },
            Code::INVALID_ARGUMENT,
            &["node 3", "same shape"],
        );
        replay(exec, s);
        assert_eq!(download(s, y, 16), [64.0; 16], "nothing has changed");

        // A name follows its buffer into the graph that is taken over.
        let (a, b) = (chain(x, 2), chain(y, 2));
        ok(unsafe { otr_graph_name_buffer(a, c"it".as_ptr(), x, 64) });
        let exec = instantiate(a, 0);
        ok(unsafe { otr_graph_update(exec, b) });
        let slot = made(|out| unsafe { otr_graph_slot(exec, c"it".as_ptr(), out) });
        ok(unsafe { otr_graph_bind(exec, slot, x) });
        replay(exec, s);
        assert_eq!(download(s, x, 16), [32.0; 16]);
        assert_eq!(download(s, y, 16), [64.0; 16]);
    }
}
