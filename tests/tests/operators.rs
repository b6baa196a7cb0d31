//! More kernels of a host than are kept. The test counts calls of each, on devices of several drivers.

#![expect(
    clippy::undocumented_unsafe_blocks,
    reason = "each block is one call of the C ABI with pointers to locals or from the ABI itself"
)]

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use outrigger::ffi::*;
use outrigger_tests::abi::*;

const ROWS: usize = 70;
const ROW: usize = 64;

/// The number of times that each kernel has run.
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
            let call = otr_host_kernel_call_t {
                function: Some(function),
                ..kernel()
            };
            ok(unsafe { otr_host_kernel_launch(stream, &call) });
        }
        synchronize(stream);
        for (at, runs) in RUNS.iter().flatten().enumerate() {
            let runs = runs.load(Ordering::Relaxed) as usize;
            assert_eq!(runs, round + 1, "kernel {at} on device {device}");
        }
        ok(unsafe { otr_stream_destroy(stream) });
    }
}
