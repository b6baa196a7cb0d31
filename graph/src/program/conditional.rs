//! Conditional nodes: a kernel that reads a predicate and runs bodies. Each body is a program.

use std::ffi::c_void;

use outrigger_device::{Code, DType};

use super::Program;
use crate::data::ConditionalKind;
use crate::steps::words;

/// The word of a conditional's block that holds the predicate's address.
pub(crate) const PREDICATE: u32 = 0;
/// The word that holds the pointer to the first body. `Program::new` fills it in.
pub(crate) const BODIES: u32 = 2;

/// How often a body runs before the loop counts as endless and fails.
const MOST_ROUNDS: u64 = 1 << 32;

/// The block of a conditional, without the pointer to its bodies.
pub(crate) fn conditional_block(
    predicate: u64,
    dtype: DType,
    kind: ConditionalKind,
    bodies: usize,
) -> [u64; 4] {
    [
        predicate,
        u64::from(dtype.0) | (kind as u64) << 32,
        0,
        bodies as u64,
    ]
}

/// # Safety
/// - `args` is a block of [`conditional_block`], with the pointer to its bodies filled in.
/// - The predicate lies in live memory after `bias` was added to its address.
/// - The contract of [`Program::run`] holds for each body.
pub(crate) unsafe extern "C" fn conditional(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: a block of `conditional_block` has four words.
    let [predicate, kind, bodies, count] = unsafe { words::<4>(args) };
    let (dtype, kind) = (DType(kind as u32), kind >> 32);
    // SAFETY: `Program::new` wrote the pointer to a slice of `count` bodies, which the program keeps.
    let bodies = unsafe { std::slice::from_raw_parts(bodies as *const Program, count as usize) };
    let pointer = predicate.wrapping_add(bias as u64);
    let read = || {
        // SAFETY: this function's contract: the predicate is live. Its dtype and range were checked when it was
        // recorded.
        unsafe {
            match dtype {
                DType::I64 => (pointer as *const i64).read_unaligned(),
                DType::I32 => i64::from((pointer as *const i32).read_unaligned()),
                _ => i64::from((pointer as *const u8).read()),
            }
        }
    };
    // SAFETY: this function's contract: that of `Program::run` holds for each body.
    let run = |body: &Program| unsafe { body.run(bias) };
    if kind == ConditionalKind::While as u64 {
        let Some(body) = bodies.first() else {
            return Code::INTERNAL.0;
        };
        for _ in 0..MOST_ROUNDS {
            if read() == 0 {
                return Code::OK.0;
            }
            let code = run(body);
            if code != Code::OK.0 {
                return code;
            }
        }
        return Code::EXECUTION.0;
    }
    let index = match read() {
        value if kind == ConditionalKind::Switch as u64 => usize::try_from(value).ok(),
        0 => Some(1),
        _ => Some(0),
    };
    match index.and_then(|index| bodies.get(index)) {
        Some(body) => run(body),
        None => Code::OK.0,
    }
}
