//! Operators on blocks of one home stream, and the calls that look operators up and set their threads.

use std::ffi::{CStr, c_void};
use std::ptr::null;
use std::sync::Arc;

use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};
use outrigger_ffi::otr_parallel_body_fn;

use super::{Action, action, registrations};
use crate::actor::Actor;
use crate::library::{Outcome, call, made};
use crate::world::Block;

pub(crate) const ACTIONS: &[Action] = &[
    action("operators", 30, call_one),
    action("operators", 3, find),
    action("operators", 2, threads),
    action("shapes", 4, hostile),
];

const F32: u32 = 12;
const F64: u32 = 13;
const I64: u32 = 6;
const BOOL: u32 = 1;

/// Operators of as many inputs, from and to vectors of one type, and their scalars.
const VECTORS: [(&CStr, usize, &[f64]); 16] = [
    (c"add", 2, &[1.0]),
    (c"mul", 2, &[]),
    (c"maximum", 2, &[]),
    (c"add", 1, &[3.0, 1.0]),
    (c"copy", 1, &[]),
    (c"relu", 1, &[]),
    (c"exp", 1, &[]),
    (c"tanh", 1, &[]),
    (c"softmax", 1, &[0.0]),
    (c"cumsum", 1, &[0.0]),
    (c"fill", 0, &[2.5]),
    (c"arange", 0, &[0.0, 1.0]),
    (c"uniform", 0, &[0.0, 1.0, 7.0, 0.0]),
    (c"add", 3, &[]),
    (registrations::NAMES[0], 0, &[2.5]),
    (registrations::NAMES[1], 0, &[2.5]),
];

pub(crate) fn tensor(address: u64, dtype: u32, sizes: &[i64], strides: &[i64]) -> otr_tensor_t {
    otr_tensor_t {
        address,
        dtype,
        rank: sizes.len() as u32,
        sizes: sizes.as_ptr(),
        strides: strides.as_ptr(),
    }
}

pub(crate) fn number(value: f64) -> otr_scalar_t {
    // SAFETY: integers and a union of two numbers: any bytes are a value.
    let mut scalar: otr_scalar_t = unsafe { std::mem::zeroed() };
    scalar.dtype = F64;
    scalar.value.f64_ = value;
    scalar
}

/// The call of an operator. What it refers to has to live as long.
pub(crate) fn operator(
    inputs: &[otr_tensor_t],
    outputs: &[otr_tensor_t],
    scalars: &[otr_scalar_t],
) -> otr_operator_call_t {
    otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: inputs.as_ptr(),
        outputs: outputs.as_ptr(),
        scalars: scalars.as_ptr(),
        input_count: inputs.len() as u32,
        output_count: outputs.len() as u32,
        scalar_count: scalars.len() as u32,
        flags: 0,
    }
}

/// The number of an operator.
pub(crate) fn number_of(name: &CStr) -> Option<u32> {
    made(|out| call!(operator_find(name.as_ptr(), out))).ok()
}

/// Hands an operator over vectors, the last address being the output's, to `take`.
pub(crate) fn vectors<R>(
    actor: &mut Actor,
    addresses: &[u64],
    count: u64,
    take: impl FnOnce(u32, &otr_operator_call_t) -> R,
) -> Option<R> {
    let (output, inputs) = addresses.split_last()?;
    let (name, wanted, scalars) = *actor.rng.choice(&VECTORS)?;
    let id = number_of(name)?;
    let (sizes, strides) = ([count as i64], [1]);
    // Types that do not fit an operator are errors; all elements have room for 8 bytes.
    let dtype = *actor.rng.choice(&[F32, F32, F32, F64, I64, BOOL])?;
    let of = |address: &u64| tensor(*address, dtype, &sizes, &strides);
    let inputs: Vec<_> = inputs
        .iter()
        .cycle()
        .take(wanted.min(inputs.len() * 4))
        .map(of)
        .collect();
    let scalars: Vec<_> = scalars.iter().map(|value| number(*value)).collect();
    Some(take(id, &operator(&inputs, &[of(output)], &scalars)))
}

fn call_one(actor: &mut Actor) {
    let Some(a) = actor.block(8, |_| true) else {
        return;
    };
    let home = Arc::clone(&a.block.home);
    let same = |block: &Block| block.home.id == home.id && block.address != a.block.address;
    let Some(b) = actor.block(8, same) else {
        return;
    };
    if actor.chance(8) {
        return product(actor, home.id, [&a.block, &b.block]);
    }
    let most = a.block.size.min(b.block.size) / 8;
    let count = actor.rng.u64(..most.min(1 << 16) + 1);
    let (a, b) = (a.block.address, b.block.address);
    let operands = if actor.rng.bool() {
        [a, a, b]
    } else {
        [a, b, b]
    };
    let stream = actor.or_garbage(Some(home.id));
    vectors(actor, &operands, count, |id, call| {
        let _ = call!(operator_call(stream, id, call));
    });
}

/// A matrix times itself, which takes several threads where it is large.
fn product(actor: &mut Actor, stream: u64, [a, b]: [&Block; 2]) {
    let Some(id) = number_of(c"mm") else { return };
    let side = ((a.size.min(b.size) / 4) as f64).sqrt() as i64;
    let side = actor.rng.i64(1..side.min(192) + 1);
    let (sizes, strides) = ([side, side], [side, 1]);
    let [from, to] = [a, b].map(|block| tensor(block.address, F32, &sizes, &strides));
    let (inputs, outputs) = ([from, from], [to]);
    let call = operator(&inputs, &outputs, &[]);
    let _ = call!(operator_call(stream, id, &call));
}

fn find(actor: &mut Actor) {
    let names = [c"add", c"softmax", c"no such operator", c"", c"\xff\xfe"];
    let name = *actor.rng.choice(&names).unwrap_or(&c"add");
    let _ = made::<u32>(|out| call!(operator_find(name.as_ptr(), out)));
}

/// Runs a range in two parts on the calling thread.
extern "C" fn in_parts(
    begin: i64,
    end: i64,
    grain: i64,
    body: otr_parallel_body_fn,
    context: *mut c_void,
) {
    let middle = begin + (end - begin) / 2;
    if middle - begin < grain {
        return body(context, begin, end);
    }
    body(context, begin, middle);
    body(context, middle, end);
}

fn threads(actor: &mut Actor) {
    let _: Outcome = match actor.rng.u32(..4) {
        0 => call!(set_parallel_for(Some(in_parts))),
        1 => call!(set_parallel_for(None)),
        _ => call!(set_threads(actor.rng.u32(..5))),
    };
}

/// Shapes that fit nothing: they are refused, and nothing of memory is looked at.
fn hostile(actor: &mut Actor) {
    let Some(held) = actor.block(64, |_| true) else {
        return;
    };
    let Some(id) = number_of(c"add") else { return };
    let (stream, address) = (held.block.home.id, held.block.address);
    let sizes = *actor
        .rng
        .choice(&[[-1, 4], [4, -8], [1 << 40, 1 << 40], [i64::MIN, 1]])
        .unwrap_or(&[-1, 1]);
    let strides = [sizes[1], 1];
    let one = tensor(address, F32, &sizes, &strides);
    let (inputs, outputs) = ([one, one], [one]);
    let call = operator(&inputs, &outputs, &[]);
    if call!(operator_call(stream, id, &call)).is_ok() {
        crate::library::problem(&format!("operator_call: takes sizes {sizes:?}"));
    }
}
