//! Operators over rows: softmax and its gradients.

use std::ffi::CStr;

use outrigger_ops::{Call, Tensor};

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::Parameters;
use crate::layout::{RANK, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

const NAMES: [&CStr; 4] = [
    c"softmax",
    c"log_softmax",
    c"softmax_backward",
    c"log_softmax_backward",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

/// The words of a launch.
const WORDS: usize = 5 + 4 * RANK;

/// Makes an operator. Its dimension is a scalar, so it is known at a launch alone.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let Some(kind) = NAMES.iter().position(|one| *one == name) else {
        return unsupported("it is no softmax");
    };
    let right = if kind < 2 { 1 } else { 2 };
    if call.inputs.len() != right || call.outputs.len() != 1 {
        return invalid(format!("{right} inputs and 1 output are expected"));
    }
    let (a, b, out) = (call.input(0)?, call.input(right - 1)?, call.output(0)?);
    let rank = out.rank();
    if [a, b].iter().any(|one| one.sizes() != out.sizes()) {
        return invalid("inputs and output have the same sizes");
    }
    if rank > RANK {
        return unsupported(format!("more than {RANK} dimensions"));
    }
    let mut class = Class::F32;
    for one in [a, b, out] {
        match device.class(one.dtype())? {
            Class::F64 => class = Class::F64,
            Class::F32 => {}
            _ => return unsupported("a softmax of integers"),
        }
    }
    if out.numel() == 0 {
        return Ok(Prepared::nothing());
    }
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", kind)
        .set("T", class.name())
        .set("SUM", device.sums().name());
    definitions
        .set("A", element(a.dtype()))
        .set("B", element(b.dtype()));
    definitions.set("OUT", element(out.dtype()));
    let order = if class == Class::F64 { "i64" } else { "i32" };
    definitions.set("ORDER", order);
    // With more items, a second exponential costs less than memory that is written and read once more.
    let keep = kind == 0 && device.is_serial() && element(out.dtype()) == class.name();
    definitions.set("KEEP", i32::from(keep));
    let takes = Parameters {
        addresses: 3,
        words: WORDS,
    };
    let kernel = device.kernel(Text::Softmax, definitions, takes)?;
    let sizes = out.sizes().to_vec();
    let strides = [a, b, out].map(|one: &Tensor<'_>| one.strides().to_vec());
    groups(out.numel(), 1)?;
    Ok(Prepared::new(move |launch| {
        let dimension = launch.scalar(0, -1.0).to_i64();
        let along = if dimension < 0 {
            dimension + rank as i64
        } else {
            dimension
        };
        let mut words = [0; WORDS];
        let others = (0..rank).filter(|at| *at as i64 != along);
        let mut count = 0;
        for (place, at) in others.enumerate() {
            words[5 + place] = sizes[at] as u64;
            for (which, strides) in strides.iter().enumerate() {
                words[5 + (which + 1) * RANK + place] = strides[at] as u64;
            }
            count += 1;
        }
        let along = along as usize;
        let n = sizes.get(along).copied().unwrap_or(1);
        words[0] = count;
        words[1] = n as u64;
        for (which, strides) in strides.iter().enumerate() {
            words[2 + which] = strides.get(along).copied().unwrap_or(1) as u64;
        }
        let rows = sizes.iter().product::<i64>() / n;
        let addresses = [
            launch.inputs[0],
            launch.inputs[right - 1],
            launch.outputs[0],
        ];
        launch.run(&kernel, rows as u32, &addresses, &words)
    }))
}
