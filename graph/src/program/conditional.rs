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

/// The number of times that a body runs before the loop counts as endless and fails.
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

/// A conditional's block, read.
#[derive(Clone, Copy)]
pub(crate) struct StoredCondition {
    /// The address of the predicate, and its dtype.
    pub(crate) predicate: u64,
    pub(crate) dtype: DType,
    kind: u64,
}

impl StoredCondition {
    pub(crate) fn of(block: &[u64]) -> Option<Self> {
        let &[predicate, kind, ..] = block else {
            return None;
        };
        let (dtype, kind) = (DType(kind as u32), kind >> 32);
        Some(Self {
            predicate,
            dtype,
            kind,
        })
    }

    /// Runs bodies as the predicate says. `read` reads it, and `run` runs the body with this number.
    pub(crate) fn follow<E: From<Code>>(
        self,
        bodies: usize,
        read: impl Fn() -> Result<i64, E>,
        run: impl Fn(usize) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.kind == ConditionalKind::While as u64 {
            for _ in 0..MOST_ROUNDS {
                if read()? == 0 {
                    return Ok(());
                }
                run(0)?;
            }
            return Err(Code::EXECUTION.into());
        }
        let index = match read()? {
            value if self.kind == ConditionalKind::Switch as u64 => usize::try_from(value).ok(),
            0 => Some(1),
            _ => Some(0),
        };
        match index.filter(|&index| index < bodies) {
            Some(index) => run(index),
            None => Ok(()),
        }
    }
}

/// The value of a predicate.
///
/// # Safety
/// The pointer leads to a live element of this dtype, which is one of those that are checked when a node is recorded.
pub(crate) unsafe fn value(pointer: *const u8, dtype: DType) -> i64 {
    // SAFETY: this function's contract.
    unsafe {
        match dtype {
            DType::I64 => pointer.cast::<i64>().read_unaligned(),
            DType::I32 => i64::from(pointer.cast::<i32>().read_unaligned()),
            _ => i64::from(pointer.read()),
        }
    }
}

/// # Safety
/// - `args` is a block of [`conditional_block`], with the pointer to its bodies filled in.
/// - The predicate lies in live memory after `bias` was added to its address.
/// - The contract of [`Program::run`] holds for each body.
pub(crate) unsafe extern "C" fn conditional(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: a block of `conditional_block` has four words.
    let block = unsafe { words::<4>(args) };
    let Some(condition) = StoredCondition::of(&block) else {
        return Code::INTERNAL.0;
    };
    let [_, _, bodies, count] = block;
    // SAFETY: `Program::new` wrote the pointer to a slice of `count` bodies, which the program keeps.
    let bodies = unsafe { std::slice::from_raw_parts(bodies as *const Program, count as usize) };
    let pointer = condition.predicate.wrapping_add(bias as u64) as *const u8;
    let followed = condition.follow::<Code>(
        bodies.len(),
        // SAFETY: this function's contract: the predicate is live.
        || Ok(unsafe { value(pointer, condition.dtype) }),
        // SAFETY: this function's contract: that of `Program::run` holds for each body.
        |index| match unsafe { bodies[index].run(bias) } {
            0 => Ok(()),
            code => Err(Code(code)),
        },
    );
    followed.err().unwrap_or(Code::OK).0
}
