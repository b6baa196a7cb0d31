//! Resampling of one, two or three spatial dimensions, and its gradients.

use std::ffi::CStr;

use outrigger_ops::{Call, Scalar};

use super::pool::five;
use crate::call::{Asked, Result, agrees, invalid, unsupported};
use crate::device::{Device, element};
use crate::kernel::Parameters;
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::work::Prepared;

const NAMES: [&CStr; 14] = [
    c"upsample_nearest1d",
    c"upsample_nearest1d_backward",
    c"upsample_nearest2d",
    c"upsample_nearest2d_backward",
    c"upsample_nearest3d",
    c"upsample_nearest3d_backward",
    c"upsample_linear1d",
    c"upsample_linear1d_backward",
    c"upsample_bilinear2d",
    c"upsample_bilinear2d_backward",
    c"upsample_trilinear3d",
    c"upsample_trilinear3d_backward",
    c"upsample_bicubic2d",
    c"upsample_bicubic2d_backward",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

const NEAREST: i32 = 0;
const LINEAR: i32 = 1;
const CUBIC: i32 = 2;

/// Words in front of the steps.
const FRONT: usize = 21;

/// A dimension that is resampled: its place among three, its sizes, and the place of its scale.
#[derive(Clone, Copy)]
struct Dimension {
    place: usize,
    input: i64,
    out: i64,
    scale: Option<usize>,
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    let text = name.to_string_lossy();
    let method = match () {
        () if text.contains("nearest") => NEAREST,
        () if text.contains("linear") => LINEAR,
        () => CUBIC,
    };
    let is_backward = text.ends_with("backward");
    let Some(at_read) = call.place(0) else {
        return invalid("the input is missing");
    };
    let (read, written) = (call.input(at_read)?, call.output(0)?);
    let spatial = call.integers(1)?.len();
    // Behind the sizes: the alignment, where there is a choice, and the scales.
    let next = if is_backward { 3 } else { 2 };
    let align = method != NEAREST && call.truth(next)?;
    let scales = next + usize::from(method != NEAREST);
    if read.rank() != spatial + 2 {
        return unsupported("an input without a batch");
    }
    let class = device.class(read.dtype())?;
    if written.numel() == 0 {
        return Ok(Prepared::nothing());
    }
    let (from, to) = (five(read, spatial)?, five(written, spatial)?);
    let (input, out) = if is_backward {
        (to.0, from.0)
    } else {
        (from.0, to.0)
    };
    let chunk: i64 = if device.is_serial() {
        512
    } else {
        i64::from(device.group())
    };
    let places = device.sums();
    let mut definitions = Definitions::default();
    definitions
        .set("METHOD", method)
        .set("BACKWARD", i32::from(is_backward))
        .set("SPATIAL", spatial)
        .set("ALIGN", i32::from(align));
    definitions
        .set("A", element(read.dtype()))
        .set("T", class.name())
        .set("C", places.name())
        .set("CHUNK", chunk);
    let takes = Parameters {
        addresses: 2,
        words: FRONT + 3,
    };
    let kernel = device.kernel(Text::Resample, definitions, takes)?;
    let launched = groups(written.numel(), chunk)?;
    let mut words = [0; FRONT + 3];
    let mut numbers = vec![written.numel(), to.0[1]];
    numbers.extend(&input[2..]);
    numbers.extend(&out[2..]);
    // Dimensions that are not resampled stay the same.
    numbers.extend([1; 3]);
    numbers.extend(from.1);
    numbers.extend(to.1);
    for (word, number) in words.iter_mut().zip(numbers) {
        *word = number as u64;
    }
    let dimensions: Vec<Dimension> = (0..spatial)
        .map(|at| Dimension {
            place: 3 - spatial + at,
            input: input[5 - spatial + at],
            out: out[5 - spatial + at],
            scale: call.number(scales + at),
        })
        .collect();
    Ok(Prepared::new(move |launch| {
        let mut words = words;
        for dim in &dimensions {
            let scale = dim.scale.map(|at| launch.scalar(at, 0.0).to_f64());
            let step = match scale {
                _ if align => (dim.input - 1) as f64 / (dim.out - 1).max(1) as f64,
                Some(scale) if scale > 0.0 => 1.0 / scale,
                _ => dim.input as f64 / dim.out as f64,
            };
            let same = dim.input == dim.out
                && match method {
                    NEAREST => dim.scale.is_none(),
                    LINEAR => true,
                    _ => false,
                };
            words[8 + dim.place] = u64::from(same);
            words[FRONT + dim.place] = places.word(Scalar::F64(step));
        }
        let addresses = [launch.inputs[at_read], launch.outputs[0]];
        launch.run(&kernel, launched, &addresses, &words)
    }))
}
