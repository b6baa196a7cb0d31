//! Loads under a condition, as the system's compiler makes them of the dialect where it may use all that a processor
//! has: loads under a condition.

use std::io::Write;
use std::process::{Command, Stdio};

use libloading::Library;

const DIALECT: &str = concat!(
    include_str!("../../../include/outrigger/dialect.h"),
    include_str!("../../../include/outrigger/dialect_functions.h")
);

/// Rows of 64 numbers of which the first 32 are valid, if the row is. `kept` sums what it loads, and `stored` copies it. `either`
/// copies it, and notes for all numbers but those of row `first` which of them are valid.
const LOOPS: &str = "
OTR_KERNEL(kept)(OTR_ITEM OTR_GLOBAL f32* to, OTR_GLOBAL const f32* from, const i64 first, const i64 rows) {
  for (i32 row = 0; row < 4; row++) {
    f32 lanes[64];
    for (i32 at = 0; at < 64; at++) lanes[at] = 0;
    for (i32 at = 0; at < 64; at++)
      if ((first + row < rows) & (at < (i64)32)) lanes[at] = from[row * 64 + at];
    f32 sum = 0;
    for (i32 at = 0; at < 64; at++) sum += lanes[at];
    to[row] = sum;
  }
}
OTR_KERNEL(stored)(OTR_ITEM OTR_GLOBAL f32* to, OTR_GLOBAL const f32* from, const i64 first, const i64 rows) {
  for (i32 row = 0; row < 4; row++) {
    OTR_INDEPENDENT
    for (i32 at = 0; at < 64; at++)
      if ((first + row < rows) & (at < (i64)32)) to[(first + row) * 64 + at] = from[row * 64 + at];
  }
}
OTR_KERNEL(either)(OTR_ITEM OTR_GLOBAL i32* to, OTR_GLOBAL const i32* from, const i64 first, const i64 rows) {
  OTR_GLOBAL i32* notes = to + 4 * 64;
  for (i32 row = 0; row < 4; row++) {
    OTR_INDEPENDENT
    for (i32 at = 0; at < 64; at++) {
      if ((first + row < rows) && ((i64)at < (i64)32)) {
        to[row * 64 + at] = from[row * 64 + at];
        if (row != first) notes[row * 64 + at] = 5;
      } else {
        notes[row * 64 + at] = 7;
      }
    }
  }
}
";

const ROWS: usize = 4;
const COLUMNS: usize = 64;
const VALID: usize = 32;

type Loop<T> = unsafe extern "C" fn(*const [i32; 6], *mut T, *const T, i64, i64);

/// Compiles the loops as torch.compile's kernels are compiled, for a processor with AVX2 but without AVX-512.
fn compile(options: &[&str]) -> Library {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("loops.so");
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-std=gnu11", "-O3", "-shared", "-fPIC"])
        .args(["-march=haswell", "-ffp-contract=off", "-w"])
        .args(options)
        .arg("-o")
        .arg(&path)
        .args(["-", "-lm"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let text = [DIALECT, LOOPS].concat();
    let mut input = compiler.stdin.take().unwrap();
    input.write_all(text.as_bytes()).unwrap();
    drop(input);
    assert!(compiler.wait().unwrap().success(), "{options:?}");
    // SAFETY: the library has no initializers but those of the C runtime.
    unsafe { Library::new(path) }.unwrap()
}

#[test]
#[expect(clippy::print_stdout, reason = "what was skipped is said")]
fn loads_under_a_condition_load() {
    #[cfg(target_arch = "x86_64")]
    let has_avx2 = std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    let has_avx2 = false;
    if !has_avx2 {
        println!("skipped: this processor has no AVX2");
        return;
    }
    let from: Vec<f32> = (1..=ROWS * COLUMNS).map(|number| number as f32).collect();
    let row = |row: usize| &from[row * COLUMNS..][..VALID];
    let place = [0; 6];
    for options in [&[][..], &["-fwrapv", "-fno-trapping-math"]] {
        let library = compile(options);
        let run = |name: &str, to: &mut [f32]| {
            // SAFETY: the kernels have this type, and write no more than a row for each row of `from`.
            unsafe {
                let kernel = library.get::<Loop<f32>>(name.as_bytes()).unwrap();
                kernel(&raw const place, to.as_mut_ptr(), from.as_ptr(), 0, 4);
            }
        };
        let mut sums = [0.0; ROWS];
        run("kept", &mut sums);
        let right: [f32; ROWS] = std::array::from_fn(|at| row(at).iter().sum());
        assert_eq!(sums, right, "{options:?}");
        let mut rows = [0.0; ROWS * COLUMNS];
        run("stored", &mut rows);
        for (at, stored) in rows.chunks(COLUMNS).enumerate() {
            assert_eq!(stored[..VALID], *row(at), "row {at}, {options:?}");
            assert_eq!(stored[VALID..], [0.0; VALID], "row {at}, {options:?}");
        }
        let numbers: Vec<i32> = (1..=(ROWS * COLUMNS) as i32).collect();
        let mut both = [0; 2 * ROWS * COLUMNS];
        // SAFETY: the kernel has this type, and writes two rows for each row of `numbers`.
        unsafe {
            let either = library.get::<Loop<i32>>(b"either").unwrap();
            either(&raw const place, both.as_mut_ptr(), numbers.as_ptr(), 0, 4);
        }
        for (at, notes) in both[ROWS * COLUMNS..].chunks(COLUMNS).enumerate() {
            let note = if at == 0 { 0 } else { 5 };
            assert_eq!(notes[..VALID], [note; VALID], "row {at}, {options:?}");
            assert_eq!(notes[VALID..], [7; VALID], "row {at}, {options:?}");
        }
    }
}
