//! Graphs that are replayed as graphs of the driver, through the C ABI, on both faces of `host` with
//! `graphs=native`.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals, or with what the contract says is checked"
)]

use std::ffi::{CStr, CString, c_void};
use std::ptr::null;
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, mpsc};

use outrigger::ffi::*;
use outrigger::runtime::{Code, CopyKind, DType};
use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};
use outrigger_tests::abi::{
    Scripted, add, alloc, begin, download, end, exec_info, fails, held, instantiate, made, ok,
    replay, scalar, stream, synchronize, upload,
};
use serial_test::serial;

/// A device without graphs of its own, then one of each face with them.
static DEVICES: LazyLock<[u32; 3]> = LazyLock::new(|| {
    for face in ["unified", "discrete"] {
        let spec = format!("host?graphs=native&devices=1&memory=256M&face={face}");
        let spec = CString::new(spec).expect("no NUL");
        ok(unsafe { otr_driver_load(spec.as_ptr()) });
    }
    let count: u32 = made(|out| unsafe { otr_device_count(out) });
    [0, count - 2, count - 1]
});

fn native() -> [u32; 2] {
    [DEVICES[1], DEVICES[2]]
}

#[test]
#[serial]
fn a_replay_does_what_other_ways_do() {
    for device in native() {
        let s = stream(device);
        let before = held(device);
        let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
        upload(s, x, &[1.0f32; 16]);
        begin(s);
        let t = alloc(device, 64, s);
        ok(unsafe { otr_fill(s, y, 64, [0u8; 4].as_ptr().cast(), 4) });
        add(s, (t, x, x), 16, 2); // t = 3 x
        add(s, (x, x, t), 16, 1); // x = 4 x
        let kind = CopyKind::DeviceToDevice.raw();
        ok(unsafe { otr_copy(s, y, x, 32, kind) });
        ok(unsafe { otr_memory_free(t) });
        let graph = end(s);
        for (flags, mode) in [
            (OTR_GRAPH_NATIVE, OTR_GRAPH_MODE_NATIVE),
            (OTR_GRAPH_NATIVE | OTR_GRAPH_SERIAL, OTR_GRAPH_MODE_NATIVE),
            (OTR_GRAPH_SUBMIT, OTR_GRAPH_MODE_SUBMIT),
            // Nothing beats one launch of a host kernel.
            (0, OTR_GRAPH_MODE_LAUNCH),
        ] {
            upload(s, x, &[1.0f32; 16]);
            let exec = instantiate(graph, flags);
            assert_eq!(exec_info(exec).mode, mode);
            let other = stream(device);
            for round in 1..=3 {
                // Replays are in order whatever their streams.
                let on = if round == 2 { other } else { s };
                replay(exec, on);
                let expected = 4.0f32.powi(round);
                let found: Vec<f32> = download(on, y, 16);
                assert_eq!(found[..8], [expected; 8]);
                assert_eq!(found[8..], [0.0; 8]);
            }
            ok(unsafe { otr_graph_check(exec, s) });
            // What was submitted still runs.
            upload(s, x, &[1.0f32; 16]);
            replay(exec, s);
            ok(unsafe { otr_graph_exec_destroy(exec) });
            assert_eq!(download::<f32>(s, x, 16), [4.0; 16]);
            ok(unsafe { otr_stream_destroy(other) });
        }
        ok(unsafe { otr_graph_destroy(graph) });
        ok(unsafe { otr_memory_free(x) });
        ok(unsafe { otr_memory_free(y) });
        assert_eq!(held(device), before, "all memory is given back");
    }
}

#[test]
#[serial]
fn what_a_driver_cannot_do_is_unsupported() {
    for (device, code, needle) in [
        (DEVICES[0], Code::UNSUPPORTED, "host has no graphs"),
        (DEVICES[1], Code::INVALID_ARGUMENT, "not both"),
    ] {
        let s = stream(device);
        let x = alloc(device, 64, s);
        begin(s);
        add(s, (x, x, x), 16, 1);
        let graph = end(s);
        let flags = match code {
            Code::UNSUPPORTED => OTR_GRAPH_NATIVE,
            _ => OTR_GRAPH_NATIVE | OTR_GRAPH_SUBMIT,
        };
        let refused = unsafe { otr_graph_instantiate(graph, flags, &mut 0) };
        fails(refused, code, &[needle]);
        fails(
            unsafe { otr_graph_instantiate(graph, 8, &mut 0) },
            Code::INVALID_ARGUMENT,
            &["OTR_GRAPH_NATIVE"],
        );
        ok(unsafe { otr_graph_destroy(graph) });
        ok(unsafe { otr_memory_free(x) });
    }
}

/// A door that a host function waits behind.
struct Door(mpsc::Receiver<()>);

unsafe extern "C" fn pass(user: *mut c_void, upstream: i32) -> i32 {
    let door = unsafe { Box::from_raw(user.cast::<Door>()) };
    // It opens at the latest when the test ends.
    let _ = door.0.recv();
    upstream
}

fn shut(stream: u64) -> mpsc::Sender<()> {
    let (sender, receiver) = mpsc::channel();
    let door = Box::into_raw(Box::new(Door(receiver)));
    ok(unsafe { otr_host_call(stream, Some(pass), door.cast()) });
    sender
}

#[test]
#[serial]
fn bindings_are_for_later_replays() {
    for device in native() {
        let s = stream(device);
        let buffers = [(); 4].map(|()| alloc(device, 64, s));
        let [x, y, other, more] = buffers;
        upload(s, x, &[1.0f32; 16]);
        upload(s, other, &[10.0f32; 16]);
        upload(s, y, &[0.0f32; 16]);
        begin(s);
        add(s, (y, y, x), 16, 2); // y += 2 x
        let graph = end(s);
        ok(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), x, 64) });
        ok(unsafe { otr_graph_name_buffer(graph, c"y".as_ptr(), y, 64) });
        ok(unsafe { otr_graph_name_scalar(graph, c"alpha".as_ptr(), 0, 0) });
        let exec = instantiate(graph, OTR_GRAPH_NATIVE);
        let slot = |name: &CStr| made(|out| unsafe { otr_graph_slot(exec, name.as_ptr(), out) });
        let door = shut(s);
        replay(exec, s); // y += 2
        ok(unsafe { otr_graph_bind(exec, slot(c"x"), other) });
        replay(exec, s); // y += 20
        let alpha = scalar(DType::F64, 3);
        ok(unsafe { otr_graph_bind_scalar(exec, slot(c"alpha"), &alpha) });
        replay(exec, s); // y += 30
        ok(unsafe { otr_graph_bind(exec, slot(c"x"), x) });
        replay(exec, s); // y += 3
        replay(exec, s);
        // Another buffer for the result, which the next replay alone uses.
        ok(unsafe { otr_fill(s, more, 64, [0u8].as_ptr().cast(), 1) });
        ok(unsafe { otr_graph_bind(exec, slot(c"y"), more) });
        replay(exec, s);
        drop(door);
        assert_eq!(download::<f32>(s, y, 16), [58.0; 16]);
        assert_eq!(download::<f32>(s, more, 16), [3.0; 16]);
        ok(unsafe { otr_graph_exec_destroy(exec) });
        ok(unsafe { otr_graph_destroy(graph) });
        for buffer in buffers {
            ok(unsafe { otr_memory_free(buffer) });
        }
    }
}

#[test]
#[serial]
fn an_update_is_for_later_replays() {
    for device in native() {
        let s = stream(device);
        let (x, y) = (alloc(device, 64, s), alloc(device, 64, s));
        upload(s, x, &[1.0f32; 16]);
        upload(s, y, &[1.0f32; 16]);
        let chain = |to: u64, length: usize| {
            begin(s);
            (0..length).for_each(|_| add(s, (to, to, to), 16, 1));
            end(s)
        };
        let graphs = [chain(x, 3), chain(y, 3), chain(x, 4)];
        let exec = instantiate(graphs[0], OTR_GRAPH_NATIVE);
        let door = shut(s);
        replay(exec, s);
        ok(unsafe { otr_graph_update(exec, graphs[1]) });
        fails(
            unsafe { otr_graph_update(exec, graphs[2]) },
            Code::INVALID_ARGUMENT,
            &["node 3", "same shape"],
        );
        replay(exec, s);
        drop(door);
        assert_eq!(download::<f32>(s, x, 16), [8.0; 16]);
        assert_eq!(download::<f32>(s, y, 16), [8.0; 16]);
        ok(unsafe { otr_graph_exec_destroy(exec) });
        for graph in graphs {
            ok(unsafe { otr_graph_destroy(graph) });
        }
        ok(unsafe { otr_memory_free(x) });
        ok(unsafe { otr_memory_free(y) });
    }
}

#[test]
#[serial]
fn host_nodes_are_called_at_every_replay_also_after_a_failure() {
    for device in native() {
        let s = stream(device);
        let node = Scripted::new();
        let body = node.node();
        let y = alloc(device, 64, s);
        upload(s, y, &[1.0f32; 16]);
        begin(s);
        ok(unsafe { otr_host_node(s, &body) });
        add(s, (y, y, y), 16, 1);
        ok(unsafe { otr_host_node(s, &body) });
        let graph = end(s);
        let exec = instantiate(graph, OTR_GRAPH_NATIVE);
        ok(unsafe { otr_graph_destroy(graph) });
        let calls = || node.calls.load(Ordering::Relaxed);
        replay(exec, s);
        replay(exec, s);
        assert_eq!(download::<f32>(s, y, 16), [4.0; 16]);
        assert_eq!(calls(), 4);
        node.outcome.store(Code::OUT_OF_RANGE.0, Ordering::Relaxed);
        replay(exec, s);
        let failed = unsafe { otr_stream_synchronize(s) };
        fails(failed, Code::OUT_OF_RANGE, &[]);
        assert_eq!(calls(), 6, "the second one is called with the failure");
        node.outcome.store(0, Ordering::Relaxed);
        replay(exec, s);
        assert_eq!(download::<f32>(s, y, 16), [8.0; 16]);
        ok(unsafe { otr_graph_exec_destroy(exec) });
        ok(unsafe { otr_memory_free(y) });
        held(device);
        assert_eq!(node.destroyed.load(Ordering::Relaxed), 2);
    }
}

/// Fills 16 numbers at `x` from a generator.
fn draw(stream: u64, generator: u64, x: u64) {
    let (mut seed, mut offset) = (0, 0);
    ok(unsafe { otr_generator_reserve(generator, 8, &mut seed, &mut offset) });
    let output = otr_tensor_t {
        address: x,
        dtype: DType::F32.0,
        rank: 1,
        sizes: [16].as_ptr(),
        strides: [1].as_ptr(),
    };
    let scalars: [otr_scalar_t; 4] = [
        scalar(DType::F64, 0),
        scalar(DType::F64, 1),
        scalar(DType::I64, seed as i64),
        scalar(DType::I64, offset as i64),
    ];
    let call = otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: null(),
        outputs: &output,
        scalars: scalars.as_ptr(),
        input_count: 0,
        output_count: 1,
        scalar_count: 4,
        flags: 0,
    };
    let id = made(|out| unsafe { otr_operator_find(c"uniform".as_ptr(), out) });
    ok(unsafe { otr_operator_call(stream, id, &call) });
}

#[test]
#[serial]
fn random_numbers_advance_with_every_replay_as_eager_ones() {
    for device in native() {
        let s = stream(device);
        ok(unsafe { otr_stream_set_current(s) });
        let generator: u64 = made(|out| unsafe { otr_generator_create(device, out) });
        let places = [(); 3].map(|()| alloc(device, 64, s));
        ok(unsafe { otr_generator_seed(generator, 42) });
        let eager: Vec<Vec<f32>> = (0..3)
            .map(|_| {
                draw(s, generator, places[0]);
                download(s, places[0], 16)
            })
            .collect();
        assert_ne!(eager[0], eager[1]);
        begin(s);
        draw(s, generator, places[0]);
        let graph = end(s);
        ok(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), places[0], 64) });
        let exec = instantiate(graph, OTR_GRAPH_NATIVE);
        ok(unsafe { otr_generator_seed(generator, 42) });
        let door = shut(s);
        for place in places {
            ok(unsafe { otr_graph_bind(exec, 0, place) });
            replay(exec, s);
        }
        drop(door);
        synchronize(s);
        for (place, expected) in places.iter().zip(&eager) {
            assert_eq!(&download::<f32>(s, *place, 16), expected);
        }
        ok(unsafe { otr_graph_exec_destroy(exec) });
        ok(unsafe { otr_graph_destroy(graph) });
        let default = made(|out| unsafe { otr_stream_default(device, out) });
        ok(unsafe { otr_stream_set_current(default) });
        for place in places {
            ok(unsafe { otr_memory_free(place) });
        }
    }
}
