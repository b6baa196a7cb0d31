//! Operators and kernels of a host, through the C ABI: operands that no memory could hold, and many
//! different kernels. The tests run on devices of each driver under test.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::{CString, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger::ffi::*;
use outrigger::runtime::{Code, DType};
use outrigger_device::sys::{
    otr_operator_call_t, otr_scalar__bindgen_ty_1, otr_scalar_t, otr_tensor_t,
};
use outrigger_tests::abi::*;
use serial_test::serial;

/// Hands `call` an operator on operands of f32, each of its own sizes and strides: inputs, then the output.
fn with_operands<R>(
    name: &str,
    address: u64,
    layouts: &[([i64; 2], [i64; 2])],
    call: impl FnOnce(u32, &otr_operator_call_t) -> R,
) -> R {
    let name = CString::new(name).expect("no NUL");
    let id = made(|out| unsafe { otr_operator_find(name.as_ptr(), out) });
    let tensor = |(sizes, strides): &([i64; 2], [i64; 2])| otr_tensor_t {
        address,
        dtype: DType::F32.0,
        rank: 2,
        sizes: sizes.as_ptr(),
        strides: strides.as_ptr(),
    };
    let tensors: Vec<_> = layouts.iter().map(tensor).collect();
    let (output, inputs) = tensors.split_last().expect("an output");
    let body = otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: inputs.as_ptr(),
        outputs: output,
        scalars: null(),
        input_count: inputs.len() as u32,
        output_count: 1,
        scalar_count: 0,
        flags: 0,
    };
    call(id, &body)
}

/// Fills four elements of a dtype with a number of i64 (for I64) or f64.
fn fill(stream: u64, address: u64, dtype: DType, number: (DType, i64)) -> *mut otr_status_t {
    let id = made(|out| unsafe { otr_operator_find(c"fill".as_ptr(), out) });
    let (sizes, strides) = ([4], [1]);
    let output = otr_tensor_t {
        address,
        dtype: dtype.0,
        rank: 1,
        sizes: sizes.as_ptr(),
        strides: strides.as_ptr(),
    };
    let number = scalar(number.0, number.1);
    let body = otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: null(),
        outputs: &output,
        scalars: &number,
        input_count: 0,
        output_count: 1,
        scalar_count: 1,
        flags: 0,
    };
    unsafe { otr_operator_call(stream, id, &body) }
}

#[test]
#[serial]
fn a_number_that_the_dtype_cannot_hold_is_refused_and_changes_nothing() {
    for &device in &*DEVICES {
        let stream = stream(device);
        let address = alloc(device, 64, stream);
        upload(stream, address, &[7_u8; 16]);
        for (dtype, number) in [
            (DType::U8, (DType::I64, 300)),
            (DType::I8, (DType::F64, -129)),
            (DType::I32, (DType::I64, 1 << 40)),
            (DType::F16, (DType::F64, 70_000)),
        ] {
            fails(
                fill(stream, address, dtype, number),
                Code::INVALID_ARGUMENT,
                &["fill", "without overflow", &number.1.to_string()],
            );
        }
        assert_eq!(download::<u8>(stream, address, 16), [7; 16]);
        // Negative numbers wrap in unsigned types, as in PyTorch.
        ok(fill(stream, address, DType::U8, (DType::I64, -1)));
        assert_eq!(download::<u8>(stream, address, 5), [255, 255, 255, 255, 7]);
        // A capture that lacks the call says so at its end.
        begin(stream);
        fails(
            fill(stream, address, DType::U8, (DType::I64, 300)),
            Code::INVALID_ARGUMENT,
            &["without overflow"],
        );
        let mut graph = 0;
        fails(
            unsafe { otr_capture_end(stream, &mut graph) },
            Code::INVALID_ARGUMENT,
            &["without overflow"],
        );
        ok(unsafe { otr_memory_free(address) });
        ok(unsafe { otr_stream_destroy(stream) });
    }
}

#[test]
fn operands_that_no_memory_could_hold_are_refused() {
    let huge = 1 << 32;
    let fine = ([4, 4], [4, 1]);
    let wrong = [
        ([-1, 4], [4, 1], "-1"),
        ([-4, -4], [-4, 1], "-4"),
        ([0, i64::MIN], [1, 1], "-9223372036854775808"),
        ([huge, huge], [huge, 1], "4294967296"),
        ([huge + 1, huge], [huge, 1], "4294967297"),
        ([1 << 62, 5], [5, 1], "4611686018427387904"),
        ([0, i64::MAX], [1, 1], "9223372036854775807"),
        ([4, 4], [i64::MIN, 1], "-9223372036854775808"),
        ([4, 4], [i64::MAX, -1], "9223372036854775807"),
    ];
    for device in *DEVICES {
        let stream = stream(device);
        let address = alloc(device, 1 << 20, stream);
        let graph = made(|out| unsafe { otr_graph_create(device, 0, out) });
        for (sizes, strides, number) in wrong {
            let wrong = (sizes, strides);
            for (layouts, operand) in [
                ([wrong, wrong, wrong], "input 0"),
                ([fine, wrong, fine], "input 1"),
                ([fine, fine, wrong], "output 0"),
            ] {
                for name in ["mul", "mm"] {
                    let needles = [name, operand, number];
                    with_operands(name, address, &layouts, |id, call| {
                        let called = unsafe { otr_operator_call(stream, id, call) };
                        fails(called, Code::INVALID_ARGUMENT, &needles);
                        let mut node = 7;
                        let added = unsafe {
                            otr_graph_add_operator(graph, null(), 0, id, call, &mut node)
                        };
                        fails(added, Code::INVALID_ARGUMENT, &needles);
                        assert_eq!(node, 7, "outputs are left alone");
                    });
                }
            }
        }
        assert_eq!(nodes(graph), 0);
        synchronize(stream);
        ok(unsafe { otr_graph_destroy(graph) });
        ok(unsafe { otr_memory_free_on(device, address) });
        ok(unsafe { otr_stream_destroy(stream) });
    }
}

const ROWS: usize = 70;
const ROW: usize = 64;

/// How often each kernel has run.
static RUNS: [[AtomicU32; ROW]; ROWS] = [const { [const { AtomicU32::new(0) }; ROW] }; ROWS];

unsafe extern "C" fn kernel_of<const A: usize, const B: usize>(
    _args: *const c_void,
    _size: u32,
    _bias: i64,
) -> i32 {
    RUNS[A][B].fetch_add(1, Ordering::Relaxed);
    0
}

type Kernel = unsafe extern "C" fn(*const c_void, u32, i64) -> i32;

macro_rules! kernels {
    (rows $($a:literal)*) => { vec![$(row::<$a>()),*] };
    (row $first:ident $($b:literal)*) => { [$(kernel_of::<$first, $b>),*] };
}

fn row<const A: usize>() -> [Kernel; ROW] {
    kernels!(row A
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
        32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63)
}

#[test]
#[serial]
fn a_host_may_launch_ever_new_kernels() {
    let all = kernels!(rows
        0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34
        35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66
        67 68 69);
    let all: Vec<Kernel> = all.into_iter().flatten().collect();
    assert!(all.len() > 4096);
    for (round, device) in DEVICES.iter().flat_map(|&one| [one, one]).enumerate() {
        let stream = stream(device);
        for &function in &all {
            let call = otr_kernel_call_t {
                function: Some(function),
                ..kernel()
            };
            ok(unsafe { otr_kernel_launch(stream, &call) });
        }
        synchronize(stream);
        for (at, runs) in RUNS.iter().flatten().enumerate() {
            let runs = runs.load(Ordering::Relaxed) as usize;
            assert_eq!(runs, round + 1, "kernel {at} on device {device}");
        }
        ok(unsafe { otr_stream_destroy(stream) });
    }
}

#[test]
#[serial]
fn an_index_out_of_bounds_is_named_with_its_operator_and_the_size() {
    for device in *DEVICES {
        let s = stream(device);
        let (rows, indices, out) = (
            alloc(device, 64, s),
            alloc(device, 64, s),
            alloc(device, 64, s),
        );
        let tensor = |address: u64,
                      dtype: DType,
                      sizes: &'static [i64],
                      strides: &'static [i64]| otr_tensor_t {
            address,
            dtype: dtype.0,
            rank: sizes.len() as u32,
            sizes: sizes.as_ptr(),
            strides: strides.as_ptr(),
        };
        for (name, wrong, picked) in [
            ("index_select", 9i64, &[1, 2][..]),
            ("embedding", -3, &[1, 2]),
            ("gather", 5, &[1, 1]),
        ] {
            ok(unsafe { otr_fill(s, indices, 8, wrong.to_ne_bytes().as_ptr().cast(), 8) });
            let index = match name {
                "gather" => tensor(indices, DType::I64, &[1, 1], &[1, 1]),
                _ => tensor(indices, DType::I64, &[1], &[1]),
            };
            let inputs = [tensor(rows, DType::F32, &[5, 2], &[2, 1]), index];
            let output = tensor(out, DType::F32, picked, &[2, 1]);
            let dim = otr_scalar_t {
                dtype: DType::I64.0,
                reserved: 0,
                value: otr_scalar__bindgen_ty_1 { i64_: 0 },
            };
            let name = CString::new(name).expect("no NUL");
            let id = made(|out| unsafe { otr_operator_find(name.as_ptr(), out) });
            let call = otr_operator_call_t {
                struct_size: size_of::<otr_operator_call_t>(),
                next: null(),
                name: null(),
                inputs: inputs.as_ptr(),
                outputs: &output,
                scalars: &dim,
                input_count: 2,
                output_count: 1,
                scalar_count: u32::from(name.to_bytes() != b"embedding"),
                flags: 0,
            };
            let parts = [name.to_str().unwrap(), &format!("index {wrong} "), "size 5"];
            let failed = |status| fails(status, Code::OUT_OF_RANGE, &parts);
            ok(unsafe { otr_operator_call(s, id, &call) });
            failed(unsafe { otr_stream_synchronize(s) });
            // The same in a replay.
            begin(s);
            ok(unsafe { otr_operator_call(s, id, &call) });
            let exec = instantiate(end(s), 0);
            ok(unsafe { otr_graph_replay(exec, s) });
            failed(unsafe { otr_stream_synchronize(s) });
            ok(unsafe { otr_graph_exec_destroy(exec) });
        }
    }
}
