//! The graph part of the C ABI, called in the wrong order: what captures, events, graphs and executable
//! graphs refuse. Each call fails as documented, writes nothing, and leaves its object usable.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI, with pointers to locals or with what it must refuse"
)]

use std::ffi::CString;
use std::ptr::{null, null_mut};
use std::sync::atomic::Ordering;

use outrigger::ffi::*;
use outrigger::runtime::{Code, CopyKind, DType};
use outrigger_tests::abi::*;
use serial_test::serial;

type Status = *mut otr_status_t;

fn add_call(stream: u64, operands: (u64, u64, u64)) -> Status {
    with_add(DType::F32, operands, 16, 1, |id, call| unsafe {
        otr_operator_call(stream, id, call)
    })
}

#[test]
#[serial]
fn captures_begin_and_end_once_on_their_stream() {
    for device in *DEVICES {
        let (s, other) = (stream(device), stream(device));
        let (fork, join) = (event(device), event(device));
        let before = held(device);
        let x = alloc(device, 64, s);
        let mut out = 7;
        for status in [
            unsafe { otr_capture_end(s, &mut out) },
            unsafe { otr_capture_partial(s, &mut out) },
            unsafe { otr_capture_abort(s, c"why".as_ptr()) },
        ] {
            fails(status, Code::INVALID_ARGUMENT, &["not capturing"]);
        }
        ok(unsafe { otr_capture_label(s, c"without effect".as_ptr()) });
        assert_eq!(capture_info(s).status, OTR_CAPTURE_NONE);
        let foreign = *DEVICES.iter().find(|&&one| one != device).expect("three");
        let foreign_pool: u64 = made(|out| unsafe { otr_pool_create(foreign, out) });
        let status = unsafe { otr_capture_begin(s, OTR_CAPTURE_GLOBAL, foreign_pool) };
        fails(status, Code::INVALID_ARGUMENT, &["pool of device"]);
        let status = unsafe { otr_graph_create(device, foreign_pool, &mut out) };
        fails(status, Code::INVALID_ARGUMENT, &["pool of device"]);
        ok(unsafe { otr_pool_destroy(foreign_pool) });
        assert_eq!(capture_info(s).status, OTR_CAPTURE_NONE);

        begin(s);
        let again = || unsafe { otr_capture_begin(s, OTR_CAPTURE_RELAXED, 0) };
        fails(again(), Code::CAPTURE, &["capturing already"]);
        ok(unsafe { otr_event_record(fork, s) });
        ok(unsafe { otr_stream_wait_event(other, fork) });
        let status = unsafe { otr_capture_begin(other, OTR_CAPTURE_GLOBAL, 0) };
        fails(status, Code::CAPTURE, &["capturing already"]);
        let status = unsafe { otr_capture_end(other, &mut out) };
        fails(status, Code::INVALID_ARGUMENT, &["stream that began it"]);
        for one in [s, other] {
            fails(
                unsafe { otr_stream_destroy(one) },
                Code::BUSY,
                &["end the capture"],
            );
        }
        assert_eq!(out, 7);
        add(other, (x, x, x), 16, 1);
        ok(unsafe { otr_event_record(join, other) });
        ok(unsafe { otr_stream_wait_event(s, join) });
        let info = capture_info(s);
        assert_eq!((info.status, info.stream_count), (OTR_CAPTURE_ACTIVE, 2));
        let graph = end(s);
        assert_eq!(nodes(graph), 1);
        fails(
            unsafe { otr_capture_end(s, &mut out) },
            Code::INVALID_ARGUMENT,
            &["not capturing"],
        );

        // A capture on each of two streams, one within the other in time.
        begin(s);
        add(s, (x, x, x), 16, 1);
        begin(other);
        add(other, (x, x, x), 16, 1);
        let inner = end(other);
        add(s, (x, x, x), 16, 1);
        let outer = end(s);
        assert_eq!((nodes(inner), nodes(outer)), (1, 2));
        for graph in [graph, inner, outer] {
            ok(unsafe { otr_graph_destroy(graph) });
        }
        ok(unsafe { otr_memory_free(x) });
        assert_eq!(held(device), before);
    }
}

#[test]
#[serial]
fn events_of_captures_have_no_time_and_no_second_life() {
    for device in *DEVICES {
        let (s, other) = (stream(device), stream(device));
        let e: u64 = made(|out| unsafe { otr_event_create(device, 0, out) });
        let mut word = 7;
        // On the thread that records, each of these makes the capture fail.
        for case in 0..4 {
            begin(s);
            ok(unsafe { otr_event_record(e, s) });
            let call = || match case {
                0 => unsafe { otr_event_query(e, &mut 7) },
                1 => unsafe { otr_event_synchronize(e) },
                2 => unsafe { otr_event_elapsed(e, e, &mut 7.0) },
                _ => unsafe { otr_stream_synchronize(s) },
            };
            // Another thread is only refused.
            if case < 3 {
                let address = e;
                std::thread::spawn(move || {
                    fails(
                        unsafe { otr_event_synchronize(address) },
                        Code::CAPTURE,
                        &["capture"],
                    );
                })
                .join()
                .expect("no panic");
                assert_eq!(capture_info(s).status, OTR_CAPTURE_ACTIVE);
            }
            fails(call(), Code::CAPTURE, &["capture"]);
            assert_eq!(capture_info(s).status, OTR_CAPTURE_FAILED, "{case}");
            let status = add_call(s, (64, 64, 64));
            fails(status, Code::CAPTURE, &["failed before"]);
            fails(unsafe { otr_capture_end(s, &mut 7) }, Code::CAPTURE, &[]);
        }
        // The capture has ended: the event is of no use until it is recorded anew.
        fails(
            unsafe { otr_event_query(e, &mut word) },
            Code::CAPTURE,
            &["record it again"],
        );
        fails(
            unsafe { otr_event_synchronize(e) },
            Code::CAPTURE,
            &["record it again"],
        );
        fails(
            unsafe { otr_stream_wait_event(other, e) },
            Code::CAPTURE,
            &["record it again"],
        );
        assert_eq!(capture_info(other).status, OTR_CAPTURE_NONE);
        begin(other);
        fails(
            unsafe { otr_stream_wait_event(other, e) },
            Code::CAPTURE,
            &["record it again"],
        );
        fails(
            unsafe { otr_capture_end(other, &mut 7) },
            Code::CAPTURE,
            &["has ended"],
        );
        assert_eq!(word, 7);
        ok(unsafe { otr_event_record(e, other) });
        ok(unsafe { otr_event_synchronize(e) });
        ok(unsafe { otr_event_query(e, &mut word) });
        assert_eq!(word, 1);

        // A capture does not wait for another one, nor a stream of another device for a capture.
        begin(s);
        begin(other);
        ok(unsafe { otr_event_record(e, s) });
        fails(
            unsafe { otr_stream_wait_event(other, e) },
            Code::CAPTURE,
            &["another capture"],
        );
        assert_eq!(capture_info(s).status, OTR_CAPTURE_ACTIVE);
        fails(
            unsafe { otr_capture_end(other, &mut 7) },
            Code::CAPTURE,
            &["another capture"],
        );
        ok(unsafe { otr_event_destroy(e) });
        ok(unsafe { otr_graph_destroy(end(s)) });
        let foreign = *DEVICES.iter().find(|&&one| one != device).expect("three");
        let (far, e) = (stream(foreign), event(device));
        begin(s);
        ok(unsafe { otr_event_record(e, s) });
        let (_, message) =
            outcome(unsafe { otr_stream_wait_event(far, e) }).expect_err("it stays on one device");
        assert!(message.contains("device"), "{message}");
        assert_eq!(capture_info(far).status, OTR_CAPTURE_NONE);
        _ = outcome(unsafe { otr_capture_end(s, &mut 7) });
        synchronize(far);
        synchronize(s);
    }
}

#[test]
#[serial]
fn calls_that_fail_in_a_capture_make_it_fail() {
    for device in *DEVICES {
        let s = stream(device);
        let x = alloc(device, 64, s);
        let gone = alloc(device, 1 << 22, s);
        let before = held(device);
        ok(unsafe { otr_memory_free(gone) });
        // Of the same driver for `host`, of another one for the C template, which has one device.
        let sibling = if device == DEVICES[2] { 0 } else { device + 1 };
        let far = stream(sibling);
        let there = alloc(sibling, 64, far);
        let exec = empty(device).1;
        let kind = CopyKind::DeviceToDevice.raw();
        let cases: [(&str, &dyn Fn() -> Status); 8] = [
            ("was freed", &|| unsafe { otr_copy(s, x, gone, 64, kind) }),
            ("overruns", &|| unsafe { otr_copy(s, x, x + 32, 512, kind) }),
            ("not memory", &|| unsafe {
                otr_fill(s, 64, 4, c"abc".as_ptr().cast(), 4)
            }),
            ("pattern of 3", &|| unsafe {
                otr_fill(s, x, 63, c"abc".as_ptr().cast(), 3)
            }),
            ("live memory", &|| add_call(s, (x, gone, x))),
            ("replay", &|| unsafe { otr_graph_replay(exec, s) }),
            ("device", &|| unsafe { otr_copy_peer(s, x, there, 64) }),
            ("bodies", &|| unsafe {
                otr_capture_conditional(s, OTR_GRAPH_IF, x, DType::I64.0, null(), 0)
            }),
        ];
        for (what, call) in cases {
            begin(s);
            add(s, (x, x, x), 16, 1);
            let (_, message) = outcome(call()).expect_err(what);
            assert!(message.contains(what), "no {what:?} in {message:?}");
            assert_eq!(capture_info(s).status, OTR_CAPTURE_FAILED, "{what}");
            let (_, message) = outcome(unsafe { otr_capture_end(s, &mut 7) }).expect_err(what);
            assert!(message.contains(what), "{message:?}");
        }
        // Memory: the limit is met within the capture.
        let reserved = held(device).0;
        ok(unsafe { otr_memory_set_limit(device, reserved + (8 << 20)) });
        begin(s);
        let first = alloc(device, 1 << 20, s);
        let mut address = 7;
        let status = unsafe { otr_memory_alloc(device, 64 << 20, s, &mut address) };
        fails(status, Code::OUT_OF_MEMORY, &[]);
        assert_eq!((address, capture_info(s).status), (7, OTR_CAPTURE_FAILED));
        fails(
            unsafe { otr_capture_end(s, &mut 7) },
            Code::OUT_OF_MEMORY,
            &[],
        );
        ok(unsafe { otr_memory_set_limit(device, u64::MAX) });
        ok(unsafe { otr_memory_free(first) });
        ok(unsafe { otr_graph_exec_destroy(exec) });
        ok(unsafe { otr_memory_free(there) });
        assert!(
            held(device) < before,
            "the memory of the captures is given back"
        );
        assert_eq!(download::<f32>(s, x, 16).len(), 16);
    }
}

#[test]
#[serial]
fn random_numbers_reserved_in_a_capture_cost_nothing_until_a_replay() {
    for device in *DEVICES {
        let s = stream(device);
        ok(unsafe { otr_stream_set_current(s) });
        let generator: u64 = made(|out| unsafe { otr_generator_create(device, out) });
        let state = || {
            let (mut seed, mut offset) = (0, 0);
            ok(unsafe { otr_generator_state(generator, &mut seed, &mut offset) });
            (seed, offset)
        };
        let reserve = |count| {
            let (mut seed, mut offset) = (0, 0);
            ok(unsafe { otr_generator_reserve(generator, count, &mut seed, &mut offset) });
            offset
        };
        ok(unsafe { otr_generator_seed(generator, 5) });
        begin(s);
        assert_eq!((reserve(8), reserve(4)), (0, 8));
        ok(unsafe { otr_capture_abort(s, c"not wanted".as_ptr()) });
        fails(
            unsafe { otr_capture_end(s, &mut 7) },
            Code::CAPTURE,
            &["not wanted"],
        );
        assert_eq!(state(), (5, 0));
        begin(s);
        assert_eq!((reserve(8), reserve(4)), (0, 8));
        let graph = end(s);
        let exec = instantiate(graph, 0);
        assert_eq!(state(), (5, 0));
        replay(exec, s);
        assert_eq!(state(), (5, 12));
        // The graph keeps the generator.
        ok(unsafe { otr_generator_destroy(generator) });
        replay(exec, s);
        synchronize(s);
        let default = made(|out| unsafe { otr_stream_default(device, out) });
        ok(unsafe { otr_stream_set_current(default) });
    }
}

#[test]
#[serial]
fn executable_graphs_take_only_what_fits() {
    for device in *DEVICES {
        let s = stream(device);
        let foreign = *DEVICES.iter().find(|&&one| one != device).expect("three");
        let far = stream(foreign);
        let there = alloc(foreign, 4096, far);
        let before = held(device);
        let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
        upload(s, x, &[1.0f32; 16]);
        begin(s);
        add(s, (y, x, x), 16, 1);
        let graph = end(s);
        ok(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), x, 64) });
        ok(unsafe { otr_graph_name_scalar(graph, c"alpha".as_ptr(), 0, 0) });
        let taken = unsafe { otr_graph_name_scalar(graph, c"x".as_ptr(), 0, 0) };
        fails(taken, Code::INVALID_ARGUMENT, &["taken"]);
        let scalar_of =
            |node, index| unsafe { otr_graph_name_scalar(graph, c"z".as_ptr(), node, index) };
        fails(scalar_of(0, 1), Code::NOT_FOUND, &["1 scalars"]);
        fails(scalar_of(9, 0), Code::NOT_FOUND, &["node 9"]);
        let exec = instantiate(graph, 0);
        let unchanged = |what: &str| {
            replay(exec, s);
            assert_eq!(download::<f32>(s, y, 16), [2.0; 16], "{what}");
        };

        let gone = alloc(device, 4096, s);
        let small = alloc(device, 64, s);
        ok(unsafe { otr_memory_free(gone) });
        for (slot, address, code, needle) in [
            (2, x, Code::NOT_FOUND, "slot 2"),
            (1, x, Code::NOT_FOUND, "slot 1"),
            (u32::MAX, x, Code::NOT_FOUND, "slot"),
            (0, gone, Code::INVALID_ARGUMENT, "was freed"),
            (
                0,
                there,
                Code::INVALID_ARGUMENT,
                "not memory of this device",
            ),
            (0, small + 4, Code::INVALID_ARGUMENT, "aligned"),
            (0, small + 480, Code::INVALID_ARGUMENT, "overruns"),
        ] {
            fails(
                unsafe { otr_graph_bind(exec, slot, address) },
                code,
                &[needle],
            );
        }
        for slot in [0, 2, u32::MAX] {
            let status = unsafe { otr_graph_bind_scalar(exec, slot, &scalar(DType::F32, 3)) };
            fails(status, Code::NOT_FOUND, &["slot"]);
        }
        unchanged("after refused bindings");

        // Streams: of another device, and one that captures.
        fails(
            unsafe { otr_graph_replay(exec, far) },
            Code::INVALID_ARGUMENT,
            &["of device"],
        );
        fails(
            unsafe { otr_graph_check(exec, far) },
            Code::INVALID_ARGUMENT,
            &["of device"],
        );
        fails(
            unsafe { otr_graph_profile(exec, far, &mut null_mut()) },
            Code::INVALID_ARGUMENT,
            &["of device"],
        );
        for case in 0..3 {
            begin(s);
            let status = match case {
                0 => unsafe { otr_graph_replay(exec, s) },
                1 => unsafe { otr_graph_check(exec, s) },
                _ => unsafe { otr_graph_profile(exec, s, &mut null_mut()) },
            };
            fails(status, Code::CAPTURE, &["captures"]);
            fails(
                unsafe { otr_capture_end(s, &mut 7) },
                Code::CAPTURE,
                &["captures"],
            );
        }
        unchanged("after refused replays");

        // Updates: other operators, edges, names, devices, and what is no whole graph.
        let shapes: [(&str, &dyn Fn()); 3] = [
            ("0 nodes", &|| {}),
            ("fill", &|| {
                ok(unsafe { otr_fill(s, y, 64, c"abc".as_ptr().cast(), 4) })
            }),
            ("2 nodes", &|| {
                add(s, (y, x, x), 16, 1);
                add(s, (y, x, x), 16, 1);
            }),
        ];
        for (needle, record) in shapes {
            begin(s);
            record();
            let other = end(s);
            fails(
                unsafe { otr_graph_update(exec, other) },
                Code::INVALID_ARGUMENT,
                &["same shape", needle],
            );
            ok(unsafe { otr_graph_destroy(other) });
        }
        begin(s);
        add(s, (y, x, x), 16, 7);
        let partial: u64 = made(|out| unsafe { otr_capture_partial(s, out) });
        let other = end(s);
        ok(unsafe { otr_graph_name_buffer(other, c"q".as_ptr(), x, 64) });
        fails(
            unsafe { otr_graph_update(exec, other) },
            Code::INVALID_ARGUMENT,
            &["names", "q"],
        );
        for status in [
            unsafe { otr_graph_update(exec, partial) },
            unsafe { otr_graph_instantiate(partial, 0, &mut 7) },
            unsafe { otr_graph_add_empty(partial, null(), 0, &mut 7) },
            unsafe { otr_graph_add_child(graph, null(), 0, partial, &mut 7) },
        ] {
            fails(status, Code::CAPTURE, &["looked at"]);
        }
        let (far_graph, far_exec) = empty(foreign);
        fails(
            unsafe { otr_graph_update(exec, far_graph) },
            Code::INVALID_ARGUMENT,
            &["another device"],
        );
        fails(
            unsafe { otr_graph_add_child(graph, null(), 0, far_graph, &mut 7) },
            Code::INVALID_ARGUMENT,
            &["another device"],
        );
        let status = unsafe {
            otr_graph_add_conditional(
                graph,
                null(),
                0,
                OTR_GRAPH_IF,
                x,
                DType::I64.0,
                &far_graph,
                1,
                &mut 7,
            )
        };
        fails(status, Code::INVALID_ARGUMENT, &["another device"]);
        assert_eq!(nodes(graph), 1, "nothing was added");
        unchanged("after refused updates");
        let status = unsafe { otr_graph_instantiate(graph, OTR_GRAPH_SERIAL | 0x80, &mut 7) };
        fails(status, Code::INVALID_ARGUMENT, &["flags"]);

        for graph in [graph, other, partial, far_graph] {
            ok(unsafe { otr_graph_destroy(graph) });
        }
        for exec in [exec, far_exec] {
            ok(unsafe { otr_graph_exec_destroy(exec) });
            fails(
                unsafe { otr_graph_replay(exec, s) },
                Code::INVALID_HANDLE,
                &[],
            );
        }
        for address in [x, y, small] {
            ok(unsafe { otr_memory_free(address) });
        }
        assert_eq!(held(device), before);
    }
}

#[test]
#[serial]
fn host_functions_cannot_be_bound_wherever_they_stand() {
    for device in *DEVICES {
        let s = stream(device);
        let before = held(device);
        let x = alloc(device, 64, s);
        let user = counter();
        let mut host = host_node(user);
        (host.writes, host.write_count) = (&raw const x, 1);
        let body: u64 = made(|out| unsafe { otr_graph_create(device, 0, out) });
        let mut node = 0;
        ok(unsafe { otr_graph_add_host(body, null(), 0, &host, &mut node) });
        let graph: u64 = made(|out| unsafe { otr_graph_create(device, 0, out) });
        ok(unsafe {
            otr_graph_add_conditional(
                graph,
                null(),
                0,
                OTR_GRAPH_IF,
                x,
                DType::I64.0,
                &body,
                1,
                &mut node,
            )
        });
        for graph in [body, graph] {
            ok(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), x, 64) });
            let status = unsafe { otr_graph_instantiate(graph, 0, &mut 7) };
            fails(
                status,
                Code::UNSUPPORTED,
                &["'x' cannot be bound", "counted"],
            );
            ok(unsafe { otr_graph_destroy(graph) });
        }
        ok(unsafe { otr_memory_free(x) });
        assert_eq!(held(device), before);
        assert_eq!(
            user.load(Ordering::Relaxed),
            1000,
            "given back once, never called"
        );
    }
}

#[test]
#[serial]
fn graphs_within_graphs_end_when_the_last_handle_does() {
    for device in *DEVICES {
        let before = held(device);
        let user = counter();
        let host = host_node(user);
        let (a, b): (u64, u64) = (
            made(|out| unsafe { otr_graph_create(device, 0, out) }),
            made(|out| unsafe { otr_graph_create(device, 0, out) }),
        );
        let (mut node, mut t) = (0, 0);
        ok(unsafe { otr_graph_add_alloc(a, null(), 0, 64, &mut t, &mut node) });
        ok(unsafe { otr_graph_add_host(a, null(), 0, &host, &mut node) });
        // Itself, and each the other.
        ok(unsafe { otr_graph_add_child(a, &node, 1, a, &mut node) });
        ok(unsafe { otr_graph_add_child(b, null(), 0, a, &mut node) });
        ok(unsafe { otr_graph_add_child(a, null(), 0, b, &mut node) });
        let exec = instantiate(a, 0);
        ok(unsafe { otr_graph_destroy(a) });
        ok(unsafe { otr_graph_destroy(b) });
        let s = stream(device);
        replay(exec, s);
        synchronize(s);
        assert_eq!(
            user.load(Ordering::Relaxed),
            4,
            "two of its own, two of the other's"
        );
        ok(unsafe { otr_graph_exec_destroy(exec) });
        assert_eq!(held(device), before);
        assert_eq!(user.load(Ordering::Relaxed), 1004, "given back once");
    }
}

#[test]
fn labels_and_names_may_be_anything() {
    let device = DEVICES[0];
    let s = stream(device);
    begin(s);
    let label = CString::new("a <b> & \"c\" \u{1} \\").expect("no NUL");
    ok(unsafe { otr_capture_label(s, label.as_ptr()) });
    ok(unsafe { otr_kernel_launch(s, &kernel()) });
    let graph = end(s);
    for format in [OTR_GRAPH_DOT, OTR_GRAPH_JSON, OTR_GRAPH_SVG] {
        let mut dump = null_mut();
        ok(unsafe { otr_graph_dump(graph, format, &mut dump) });
        assert!(text(dump).contains("kernel"));
        unsafe { otr_string_free(dump) };
    }
    ok(unsafe { otr_graph_destroy(graph) });
}

#[test]
#[serial]
fn memory_is_used_again_only_by_what_comes_after() {
    for device in *DEVICES {
        let (s, other) = (stream(device), stream(device));
        let (fork, join) = (event(device), event(device));
        let before = held(device);
        let x = alloc(device, 64, s);
        // In a capture: what another stream uses, until that one is known to have ended.
        begin(s);
        let t = alloc(device, 64, s);
        ok(unsafe { otr_event_record(fork, s) });
        ok(unsafe { otr_stream_wait_event(other, fork) });
        add(other, (t, x, x), 16, 1);
        ok(unsafe { otr_memory_record_stream(t, other) });
        ok(unsafe { otr_memory_free(t) });
        let u = alloc(device, 64, s);
        assert_ne!(u, t, "the other stream still uses it");
        add(s, (u, x, x), 16, 1);
        ok(unsafe { otr_memory_free(u) });
        assert_eq!(alloc(device, 64, s), u, "in order of one stream");
        ok(unsafe { otr_event_record(join, other) });
        ok(unsafe { otr_stream_wait_event(s, join) });
        let captured = end(s);
        ok(unsafe { otr_memory_free(u) });

        // In a graph that is built: the allocation runs after the end of the one before.
        let built: u64 = made(|out| unsafe { otr_graph_create(device, 0, out) });
        let (mut first, mut second, mut node) = (0, 0, 0);
        ok(unsafe { otr_graph_add_alloc(built, null(), 0, 64, &mut first, &mut node) });
        ok(unsafe { otr_graph_add_free(built, &node, 1, first, &mut node) });
        let freed = node;
        ok(unsafe { otr_graph_add_alloc(built, null(), 0, 64, &mut second, &mut node) });
        assert_eq!(first, second);
        let mut dump = null_mut();
        ok(unsafe { otr_graph_dump(built, OTR_GRAPH_JSON, &mut dump) });
        let json: serde_json::Value = serde_json::from_str(&text(dump)).expect("JSON");
        unsafe { otr_string_free(dump) };
        assert_eq!(
            json["nodes"][node as usize]["after"],
            serde_json::json!([freed])
        );
        for graph in [captured, built] {
            ok(unsafe { otr_graph_destroy(graph) });
        }
        ok(unsafe { otr_memory_free(x) });
        assert_eq!(held(device), before);
    }
}
