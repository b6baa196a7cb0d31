//! The interpreter: each byte chooses a call, and the bytes behind it are its arguments. It must never
//! make a call that the contract calls the host's fault.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or statics, or with what the \
              contract says is checked"
)]

mod input;
mod world;

use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};
use outrigger_ffi::*;

use input::Input;
use world::{Block, HOST_BYTES, World, host_buffer};

/// The value of an output before a call.
const SENTINEL: u64 = 0x5e57_1e5e_57e1_5e57;

/// Checks how a call ended, and that a failed one wrote nothing. `Some` is what it handed out.
pub(crate) fn outcome(status: *mut otr_status_t, out: Option<u64>) -> Option<u64> {
    if status.is_null() {
        return Some(out.unwrap_or(0));
    }
    let code = unsafe { otr_status_code(status) };
    let text = unsafe { CStr::from_ptr(otr_status_message(status)) };
    let text = text.to_str().expect("texts are UTF-8").to_owned();
    unsafe { otr_status_free(status) };
    assert!(!text.is_empty(), "a failure without a text");
    assert!(
        code > 1 && code != outrigger_device::Code::INTERNAL.0,
        "{code}: {text}"
    );
    assert!(
        out.is_none_or(|out| out == SENTINEL),
        "an output was written though the call failed: {text}"
    );
    None
}

/// A call that hands out one number.
pub(crate) fn made(call: impl FnOnce(*mut u64) -> *mut otr_status_t) -> Option<u64> {
    let mut out = SENTINEL;
    let status = call(&mut out);
    outcome(status, Some(out))
}

/// A call that hands out a string.
fn told(call: impl FnOnce(*mut *mut c_char) -> *mut otr_status_t) {
    let mut text = SENTINEL as *mut c_char;
    let status = call(&mut text);
    if outcome(status, Some(text as u64)).is_some() {
        assert!(!text.is_null());
        unsafe { otr_string_free(text) };
    }
}

/// A call without outputs; whether it succeeded.
fn done(status: *mut otr_status_t) -> bool {
    outcome(status, None).is_some()
}

/// A call whose success depends on what came before.
fn ignore(status: *mut otr_status_t) {
    done(status);
}

/// Plays the whole input, gives everything back, and checks that nothing is left.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new();
    // Long sequences find no more than short ones, and take longer to understand.
    for _ in 0..256 {
        let Some(call) = input.next() else { break };
        match call % 12 {
            0 => create(&mut input, &mut world),
            1 => destroy(&mut input, &mut world),
            2 | 3 => memory(&mut input, &mut world),
            4 | 5 => commands(&mut input, &mut world),
            6 => order(&mut input, &mut world),
            7 => capture(&mut input, &mut world),
            8 => build(&mut input, &mut world),
            9 => replay(&mut input, &mut world),
            10 => ask(&mut input, &mut world),
            _ => operator(&mut input, &mut world),
        }
    }
    world.give_back();
}

fn create(input: &mut Input<'_>, world: &mut World) {
    let (device, flags) = (input.device(), u32::from(input.byte()));
    let pool = input.handle(world);
    let made = match input.byte() % 6 {
        0 => made(|out| unsafe { otr_stream_create(device, flags as i32 - 8, out) }),
        1 => made(|out| unsafe { otr_event_create(device, flags & 3, out) }),
        2 => made(|out| unsafe { otr_generator_create(device, out) }),
        3 => made(|out| unsafe { otr_pool_create(device, out) }),
        4 => made(|out| unsafe { otr_graph_create(device, pool, out) }),
        _ => made(|out| unsafe { otr_graph_instantiate(pool, flags & 15, out) }),
    };
    world.handles.extend(made);
}

fn destroy(input: &mut Input<'_>, world: &mut World) {
    let handle = input.handle(world);
    // All kinds of handles go to all destroy calls: at most one takes it.
    let taken = [
        unsafe { otr_event_destroy(handle) },
        unsafe { otr_generator_destroy(handle) },
        unsafe { otr_pool_destroy(handle) },
        unsafe { otr_graph_destroy(handle) },
        unsafe { otr_graph_exec_destroy(handle) },
        unsafe { otr_observer_remove(handle) },
        unsafe { otr_stream_destroy(handle) },
    ];
    let taken = taken.into_iter().filter(|&status| done(status)).count();
    assert!(taken <= 1, "one handle, {taken} objects");
}

fn memory(input: &mut Input<'_>, world: &mut World) {
    let (device, stream, size) = (input.device(), input.handle(world), input.size());
    match input.byte() % 9 {
        0..=2 => {
            let address = made(|out| unsafe { otr_memory_alloc(device, size, stream, out) });
            if let Some(address) = address.filter(|address| *address != 0) {
                let twice = world.blocks.iter().any(|block| block.address == address);
                assert!(
                    !twice || world.captures,
                    "memory in use is handed out again"
                );
                world.blocks.push(Block { device, address });
            }
        }
        3 | 4 => world.free(input.byte()),
        5 => {
            let address = input.address(world);
            done(unsafe { otr_memory_record_stream(device, address, stream) });
        }
        6 => {
            done(unsafe { otr_memory_trim(device, size, null_mut()) });
        }
        7 => {
            let (address, mut found) = (input.address(world), 0);
            ignore(unsafe { otr_memory_find(address, &mut found) });
        }
        // The number is no allocation, whatever it is: those are freed by the world, which knows them.
        _ => assert!(!done(unsafe { otr_memory_free(device, input.number() | 1) })),
    }
}

fn commands(input: &mut Input<'_>, world: &mut World) {
    let stream = input.handle(world);
    let (a, b) = (input.address(world), input.address(world));
    let (size, host) = (input.size().min(HOST_BYTES), host_buffer());
    match input.byte() % 6 {
        0 => ignore(unsafe { otr_copy(stream, a, host, size, 1) }),
        1 => ignore(unsafe { otr_copy(stream, host, a, size, 2) }),
        2 => {
            // The host sees to it that the two do not overlap.
            let bytes = input.number();
            if a.abs_diff(b) >= bytes {
                ignore(unsafe { otr_copy(stream, a, b, bytes, 3) });
            }
        }
        3 => ignore(unsafe { otr_copy(stream, host, host, 0, input.kind()) }),
        4 => {
            let pattern = [7u8; 32];
            let bytes = u32::from(input.byte() % 33);
            done(unsafe { otr_fill(stream, a, size, pattern.as_ptr().cast(), bytes) });
        }
        _ => world.host_function(stream, input.byte()),
    }
    // The memory may be another stream's: its host waits before it goes.
    world.settle();
}

fn order(input: &mut Input<'_>, world: &mut World) {
    let (stream, event) = (input.handle(world), input.handle(world));
    let mut finished = 7;
    let mut milliseconds = 0.5;
    match input.byte() % 9 {
        0 | 1 => ignore(unsafe { otr_event_record(event, stream) }),
        2 | 3 => ignore(unsafe { otr_stream_wait_event(stream, event) }),
        4 => {
            let answered = done(unsafe { otr_stream_query(stream, &mut finished) });
            assert_eq!(answered, finished < 2, "{finished}");
        }
        5 => {
            let answered = done(unsafe { otr_event_query(event, &mut finished) });
            assert_eq!(answered, finished < 2, "{finished}");
        }
        6 => ignore(unsafe { otr_stream_synchronize(stream) }),
        7 => ignore(unsafe { otr_event_synchronize(event) }),
        _ => ignore(unsafe { otr_event_elapsed(event, stream, &mut milliseconds) }),
    }
}

fn capture(input: &mut Input<'_>, world: &mut World) {
    let (stream, pool) = (input.handle(world), input.handle(world));
    let mode = u32::from(input.byte() % 5);
    match input.byte() % 5 {
        0 | 1 => world.captures |= done(unsafe { otr_capture_begin(stream, mode, pool) }),
        2 => {
            let graph = made(|out| unsafe { otr_capture_end(stream, out) });
            world.handles.extend(graph);
        }
        3 => {
            let graph = made(|out| unsafe { otr_capture_partial(stream, out) });
            world.handles.extend(graph);
        }
        _ => ignore(unsafe { otr_capture_abort(stream, c"fuzzed".as_ptr()) }),
    }
}

fn build(input: &mut Input<'_>, world: &mut World) {
    let (graph, other) = (input.handle(world), input.handle(world));
    let deps = [u32::from(input.byte() % 8), u32::from(input.byte())];
    let count = u32::from(input.byte() % 3);
    let (a, size) = (input.address(world), input.size().min(HOST_BYTES));
    let (mut node, mut address) = (9, SENTINEL);
    let node = &mut node;
    let d = deps.as_ptr();
    match input.byte() % 9 {
        0 => ignore(unsafe { otr_graph_add_empty(graph, d, count, node) }),
        1 => {
            let pattern = [1u8; 16];
            let call = unsafe {
                otr_graph_add_fill(graph, d, count, a, size, pattern.as_ptr().cast(), 4, node)
            };
            done(call);
        }
        2 => {
            let call =
                unsafe { otr_graph_add_copy(graph, d, count, a, host_buffer(), size, 1, node) };
            done(call);
        }
        3 => ignore(unsafe { otr_graph_add_child(graph, d, count, other, node) }),
        4 => {
            // Neither a loop, which may have no end, nor a predicate in memory of other streams.
            let bodies = [other];
            let call = unsafe {
                otr_graph_add_conditional(graph, d, count, 1, a, 6, bodies.as_ptr(), 1, node)
            };
            done(call);
        }
        5 => {
            let call = unsafe { otr_graph_add_alloc(graph, d, count, size, &mut address, node) };
            if done(call) {
                world.graph_memory.push(address);
            }
        }
        6 => {
            let address = input.pick(&world.graph_memory).unwrap_or(a);
            done(unsafe { otr_graph_add_free(graph, d, count, address, node) });
        }
        7 => ignore(unsafe { otr_graph_name_buffer(graph, c"x".as_ptr(), a, size) }),
        _ => ignore(unsafe { otr_graph_name_scalar(graph, c"n".as_ptr(), deps[0], deps[1]) }),
    }
}

fn replay(input: &mut Input<'_>, world: &mut World) {
    let (exec, other) = (input.handle(world), input.handle(world));
    let slot = u32::from(input.byte() % 4);
    match input.byte() % 6 {
        0..=2 => ignore(unsafe { otr_graph_replay(exec, other) }),
        3 => ignore(unsafe { otr_graph_bind(exec, slot, input.address(world)) }),
        4 => ignore(unsafe { otr_graph_update(exec, other) }),
        _ => {
            let mut number: otr_scalar_t = unsafe { std::mem::zeroed() };
            number.dtype = 13;
            done(unsafe { otr_graph_bind_scalar(exec, slot, &number) });
        }
    }
    world.settle();
}

fn ask(input: &mut Input<'_>, world: &mut World) {
    let (handle, address) = (input.handle(world), input.address(world));
    // Any size may be given for a struct: no more is written than that.
    let size = usize::from(input.byte());
    let mut block = [SENTINEL; 64];
    block[0] = size as u64;
    let info = block.as_mut_ptr();
    let call = input.byte() % 11;
    match call {
        0 => ignore(unsafe { otr_capture_info(handle, info.cast()) }),
        1 => ignore(unsafe { otr_graph_info(handle, info.cast()) }),
        2 => ignore(unsafe { otr_graph_exec_info(handle, info.cast()) }),
        3 => ignore(unsafe { otr_pool_info(handle, info.cast()) }),
        4 => ignore(unsafe { otr_memory_pointer_info(input.device(), address, info.cast()) }),
        5 => ignore(unsafe { otr_memory_stats(input.device(), info.cast()) }),
        6 => told(|out| unsafe { otr_graph_dump(handle, u32::from(input.byte() % 5), out) }),
        7 => told(|out| unsafe { otr_pool_snapshot(handle, out) }),
        8 => told(|out| unsafe { otr_memory_snapshot(input.device(), out) }),
        9 => told(|out| unsafe { otr_memory_holders(input.device(), 3, out) }),
        _ => choose(input),
    }
    if call <= 5 {
        let bytes = unsafe { std::slice::from_raw_parts(info.cast::<u8>(), size_of_val(&block)) };
        let fence = &bytes[size.max(8)..];
        let untouched = (size.max(8)..)
            .zip(fence)
            .all(|(at, byte)| *byte == SENTINEL.to_ne_bytes()[at % 8]);
        assert!(untouched, "call {call} wrote beyond {size} bytes");
        assert_eq!(block[0], size as u64, "struct_size was written");
    }
}

/// A question about texts of the input. Nobody can measure it.
fn choose(input: &mut Input<'_>) {
    let (device, flags, count) = (input.device(), input.byte(), input.byte() % 4);
    let mut bytes = [0; 24];
    bytes.fill_with(|| input.byte());
    // Each text ends with a NUL.
    let text = |at: usize| {
        let text = &bytes[at * 3..][..3];
        let length = text.iter().position(|byte| *byte == 0).unwrap_or(3);
        std::ffi::CString::new(&text[..length]).expect("no NUL")
    };
    let texts: Vec<_> = (0..8).map(text).collect();
    let candidates: Vec<_> = texts[5..].iter().map(|text| text.as_ptr()).collect();
    let params = otr_tune_params_t {
        struct_size: size_of::<otr_tune_params_t>(),
        next: null(),
        flags: u32::from(flags % 5),
        reserved: 0,
        operation: texts[0].as_ptr(),
        sizes: texts[1].as_ptr(),
        dtype: texts[2].as_ptr(),
        code: texts[3].as_ptr(),
        candidates: candidates.as_ptr(),
        candidate_count: u32::from(count),
        limit_ms: 1,
        worker: null(),
        task: if flags & 128 == 0 {
            null()
        } else {
            texts[4].as_ptr()
        },
    };
    let mut chosen = SENTINEL as u32;
    let status = unsafe { otr_tune_choose(device, &params, &mut chosen, null_mut()) };
    if done(status) {
        assert_eq!(chosen, 0, "nothing was measured");
    } else {
        assert_eq!(
            chosen, SENTINEL as u32,
            "an output was written though the call failed"
        );
    }
}

fn operator(input: &mut Input<'_>, world: &mut World) {
    let (operator, dtype) = (u32::from(input.byte()), u32::from(input.byte() % 17));
    let Some(block) = world
        .blocks
        .get(usize::from(input.byte()) % world.blocks.len().max(1))
    else {
        return;
    };
    // Memory of a capture goes with it.
    let mut block_info: otr_pointer_info_t = unsafe { std::mem::zeroed() };
    block_info.struct_size = size_of::<otr_pointer_info_t>();
    if !done(unsafe { otr_memory_pointer_info(block.device, block.address, &mut block_info) }) {
        return;
    }
    let (size, stream) = (
        block_info.base + block_info.size - block.address,
        block_info.stream,
    );
    // All operands are the same few elements of one live block, on its own stream.
    let count = i64::from(input.byte() % 4).min(size as i64 / 16);
    let rank = u32::from(input.byte() % 3);
    let (sizes, strides) = ([count.min(1), count], [count, 1]);
    let skip = 2 - rank as usize;
    let tensor = otr_tensor_t {
        address: block.address,
        dtype,
        rank: if size < 16 { 2 } else { rank },
        sizes: sizes[if size < 16 { 0 } else { skip }..].as_ptr(),
        strides: strides[if size < 16 { 0 } else { skip }..].as_ptr(),
    };
    let tensors = [tensor; 4];
    let mut scalar: otr_scalar_t = unsafe { std::mem::zeroed() };
    scalar.dtype = if input.byte().is_multiple_of(8) { 3 } else { 6 };
    let scalars = [scalar; 4];
    let inputs = u32::from(input.byte() % 5);
    let call = otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: tensors.as_ptr(),
        outputs: tensors.as_ptr(),
        scalars: scalars.as_ptr(),
        input_count: inputs,
        output_count: u32::from(input.byte() % 3),
        scalar_count: u32::from(input.byte() % 5),
        flags: 0,
    };
    done(unsafe { otr_operator_call(stream, operator, &call) });
}
