//! Random numbers and sequences.

use std::ffi::CStr;

use outrigger_device::DType;
use outrigger_ops::Call;

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::Parameters;
use crate::layout::{Layout, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

const NAMES: [&CStr; 5] = [
    c"uniform",
    c"normal",
    c"bernoulli",
    c"random_int",
    c"arange",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let Some(kind) = NAMES.iter().position(|one| *one == name) else {
        return unsupported("it makes no values");
    };
    let out = call.output(0)?;
    if !call.inputs.is_empty() || call.outputs.len() != 1 {
        return invalid("no input and 1 output are expected");
    }
    let layout = Layout::broadcast(out.sizes(), &[out])?.simple(true);
    if layout.rank() > 1 || layout.strides[0].iter().any(|stride| *stride != 1) {
        return unsupported("an output that is not dense");
    }
    if kind == 4 && out.rank() != 1 {
        return unsupported("a sequence that is no vector");
    }
    let class = device.class(out.dtype())?;
    if kind < 2 && !class.is_float() {
        return unsupported("random reals as integers");
    }
    // A sequence of floats is computed in f64, whatever it is stored in.
    let (numbers, value) = match kind {
        0 | 1 => (class, class),
        2 | 3 => (Class::I64, Class::I64),
        _ if class.is_float() => (device.sums(), device.sums()),
        _ => (Class::I64, Class::I64),
    };
    let is_wide = kind < 2 && class == Class::F64;
    let per = match kind {
        0 | 1 if is_wide => 2,
        3 => 2,
        4 => 1,
        _ => 4,
    };
    let digits = match out.dtype() {
        DType::F16 => 11,
        DType::BF16 => 8,
        _ => 24,
    };
    let chunk: i64 = if device.is_serial() {
        1024
    } else {
        i64::from(device.group())
    };
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", kind)
        .set("OUT", element(out.dtype()))
        .set("C", value.name());
    definitions
        .set("T", numbers.name())
        .set("WIDE", i32::from(is_wide))
        .set("DIGITS", digits);
    definitions.set("PER", per).set("CHUNK", chunk);
    let takes = Parameters {
        addresses: 1,
        words: 7,
    };
    let count = out.numel();
    if count == 0 {
        return Ok(Prepared::nothing());
    }
    let kernel = device.kernel(Text::Generate, definitions, takes)?;
    let launched = groups(count, chunk * per)?;
    Ok(Prepared::new(move |launch| {
        let scalar = |at: usize| launch.scalar(at, 0.0);
        let whole = |at: usize| scalar(at).to_i64();
        let mut words = [count as u64, 0, 0, 0, 0, 0, 0];
        let seed = match kind {
            2 => 1,
            4 => usize::MAX,
            _ => 2,
        };
        if seed != usize::MAX {
            (words[1], words[2]) = (whole(seed) as u64, whole(seed + 1) as u64);
        }
        match kind {
            0 => {
                // In f64 the kernel subtracts; in f32 the width is rounded once.
                let (from, to) = (scalar(0).to_f64(), scalar(1).to_f64());
                let second = if is_wide { to } else { to - from };
                words[5] = numbers.word(outrigger_ops::Scalar::F64(from));
                words[6] = numbers.word(outrigger_ops::Scalar::F64(second));
            }
            1 | 4 => {
                words[5] = numbers.word(scalar(0));
                words[6] = numbers.word(scalar(1));
            }
            2 => words[4] = (scalar(0).to_f64() * 4_294_967_296.0) as u64,
            _ => {
                words[3] = whole(0) as u64;
                words[4] = (whole(1) as u64).wrapping_sub(whole(0) as u64);
            }
        }
        launch.run(&kernel, launched, &[launch.outputs[0]], &words)
    }))
}
