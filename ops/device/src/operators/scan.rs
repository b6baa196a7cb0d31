//! Running results along a dimension.

use std::ffi::CStr;

use outrigger_device::{Code, DType};
use outrigger_ops::Call;

use super::index::dimension;
use crate::call::{Asked, Result, agrees, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::Parameters;
use crate::layout::{RANK, along, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

const NAMES: [&CStr; 5] = [c"cumsum", c"cumprod", c"logcumsumexp", c"cummax", c"cummin"];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

const WORDS: usize = 5 + 4 * RANK;

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let Some(kind) = NAMES.iter().position(|one| *one == name) else {
        return unsupported("it is no running result");
    };
    // The dimension of `cumsum` is a scalar, which is known at a launch alone.
    let by_scalar = name == c"cumsum";
    if !by_scalar {
        agrees(name, call)?;
    }
    let (input, out, has_indices) = (call.input(0)?, call.output(0)?, kind > 2);
    let indices = if has_indices { call.output(1)? } else { out };
    if input.sizes() != out.sizes() || has_indices && indices.dtype() != DType::I64 {
        return invalid("input and output have the same sizes, and indices are i64");
    }
    let (read, written) = (device.class(input.dtype())?, device.class(out.dtype())?);
    if read.is_float() && !written.is_float() {
        return unsupported("floating-point numbers with results that are integers");
    }
    if by_scalar && !written.is_float() && written != Class::I64 {
        return unsupported(format!("sums of {}: i64 is served", out.dtype()));
    }
    let class = match kind {
        0 | 1 if !written.is_float() && read == Class::I64 => Class::I64,
        0..=2 if written.is_float() => device.sums(),
        _ => written,
    };
    if out.numel() == 0 {
        return Ok(Prepared::nothing());
    }
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", kind)
        .set("A", element(input.dtype()))
        .set("OUT", element(out.dtype()));
    definitions
        .set("T", class.name())
        .set("ACC", class.name())
        .set("PART", if device.is_serial() { 64 } else { 8 });
    let takes = Parameters {
        addresses: 3,
        words: WORDS,
    };
    let kernel = device.kernel(Text::Scan, definitions, takes)?;
    let rank = input.rank();
    let of_dimension = |dim: usize| -> Result<([u64; WORDS], u32)> {
        let lines = along(&[input, out, indices], dim as i64)?;
        let mut words = [0; WORDS];
        let front = [lines.others.rank() as i64, lines.size];
        for (word, number) in words.iter_mut().zip(front.iter().chain(&lines.steps)) {
            *word = *number as u64;
        }
        lines.write(&mut words[5..]);
        Ok((words, groups(lines.others.numel(), 1)?))
    };
    let all = match by_scalar {
        true => (0..rank.max(1))
            .map(of_dimension)
            .collect::<Result<Vec<_>>>()?,
        false => match dimension(call.integer(1)?, rank) {
            Some(dim) => vec![of_dimension(dim)?],
            None => return invalid("there is no such dimension"),
        },
    };
    Ok(Prepared::new(move |launch| {
        let at = match by_scalar {
            true => dimension(launch.scalar(0, 0.0).to_i64(), rank),
            false => Some(0),
        };
        let Some((words, launched)) = at.and_then(|at| all.get(at)) else {
            return Err(Code::INVALID_ARGUMENT.0);
        };
        let (input, out) = (launch.inputs[0], launch.outputs[0]);
        let indices = if has_indices { launch.outputs[1] } else { out };
        launch.run(&kernel, *launched, &[input, out, indices], words)
    }))
}
