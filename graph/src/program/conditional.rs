//! Conditional nodes: a kernel that reads a predicate and runs bodies, which are programs themselves.

use std::ffi::c_void;

use outrigger_device::{Code, DType};

use super::Program;
use crate::data::ConditionalKind;
use crate::steps::words;

/// Where the predicate's address stands in a conditional's block.
pub(crate) const PREDICATE: u32 = 0;
/// Where the pointer to the first body stands; the program puts it there.
pub(crate) const BODIES: u32 = 2;

/// How often a body may run before the loop counts as endless.
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
/// `args` is a block of `conditional_block` with its bodies filled in; the predicate, moved by `bias`,
/// lies in live memory, and the bodies may run.
pub(crate) unsafe extern "C" fn conditional(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: the caller's promise.
    let [predicate, kind, bodies, count] = unsafe { words::<4>(args) };
    let (dtype, kind) = (DType(kind as u32), kind >> 32);
    // SAFETY: the program keeps its bodies in one slice of this length.
    let bodies = unsafe { std::slice::from_raw_parts(bodies as *const Program, count as usize) };
    let pointer = predicate.wrapping_add(bias as u64);
    let read = || {
        // SAFETY: a live number of this type; the check of the dtype was made when it was recorded.
        unsafe {
            match dtype {
                DType::I64 => (pointer as *const i64).read_unaligned(),
                DType::I32 => i64::from((pointer as *const i32).read_unaligned()),
                _ => i64::from((pointer as *const u8).read()),
            }
        }
    };
    // SAFETY: the bodies may run, by the caller's promise.
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
