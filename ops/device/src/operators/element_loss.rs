//! Losses that are sums over elements, and their gradients.

use std::ffi::CStr;
use std::sync::Arc;

use outrigger_ops::{Argument, Call, Scalar, Tensor};

use crate::call::{Asked, Result, agrees, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::{Layout, RANK, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

/// The losses, in the order of their numbers in the text, and how many tensors each reads: input, target, weight, factor.
const LOSSES: [(&str, usize); 6] = [
    ("binary_cross_entropy", 3),
    ("binary_cross_entropy_with_logits", 4),
    ("smooth_l1_loss", 2),
    ("huber_loss", 2),
    ("kl_div", 2),
    ("js_div", 2),
];

const NAMES: [&CStr; 9] = [
    c"binary_cross_entropy",
    c"binary_cross_entropy_backward",
    c"binary_cross_entropy_with_logits",
    c"smooth_l1_loss",
    c"smooth_l1_loss_backward",
    c"huber_loss",
    c"huber_loss_backward",
    c"kl_div",
    c"js_div",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

/// The most groups of a sum.
const PARTS: i64 = 1024;

/// The most tensors that a loss reads.
const MOST: usize = 4;

const WORDS: usize = 4 + 7 * RANK + 2;

/// The ways to reduce the losses of the elements.
const NONE: i64 = 0;
const MEAN: i64 = 1;

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    let text = name.to_string_lossy();
    let of_gradient = text.strip_suffix("_backward");
    let wanted = of_gradient.unwrap_or(&text);
    let found = LOSSES.iter().position(|(name, _)| *name == wanted);
    let Some((loss, tensors)) = found.map(|at| (at, LOSSES[at].1)) else {
        return unsupported("it is no loss");
    };
    // In a backward the gradient stands in front.
    let first = usize::from(of_gradient.is_some());
    let places: [Option<usize>; MOST] =
        std::array::from_fn(|at| (at < tensors).then(|| call.place(first + at)).flatten());
    let of_grad = if first == 1 { call.place(0) } else { None };
    let read = |at: Option<usize>| at.and_then(|at| call.maybe_input(at));
    let operands = places.map(read);
    let (out, grad) = (call.output(0)?, read(of_grad));
    let reduction = call.integer(first + tensors)?;
    let at_parameter = call.number(first + tensors + 1);
    let log_target = call.argument(first + tensors + 1) == Argument::Bool(true);

    let mut class = Class::F32;
    let mut sizes: Vec<i64> = Vec::new();
    for one in operands.into_iter().flatten() {
        if device.class(one.dtype())? == Class::F64 {
            class = Class::F64;
        }
        while sizes.len() < one.rank() {
            sizes.insert(0, 1);
        }
        for (size, own) in sizes.iter_mut().rev().zip(one.sizes().iter().rev()) {
            *size = if *own == 1 { *size } else { *own };
        }
    }
    for one in grad.into_iter().chain([out]) {
        if device.class(one.dtype())? == Class::F64 {
            class = Class::F64;
        }
    }
    let reduces = first == 0 && reduction != NONE;
    // A tensor that is left out or reduced has one element, which is not looked at.
    let none = Tensor::new(64, out.dtype(), &[], &[]);
    let all = operands.map(|one| one.unwrap_or(&none));
    let [x, y, weight, factor] = all;
    let grad = grad.unwrap_or(&none);
    let written = if reduces { &none } else { out };
    let layout = Layout::broadcast(&sizes, &[x, y, weight, factor, grad, written])?.simple(false);
    if layout.rank() > RANK {
        return unsupported(format!("more than {RANK} dimensions"));
    }
    let count = layout.numel();
    if count == 0 && !reduces {
        return Ok(Prepared::nothing());
    }
    let sums = device.sums();
    let mut definitions = Definitions::default();
    definitions
        .set("LOSS", loss)
        .set("T", class.name())
        .set("SUM", sums.name());
    for (name, one) in ["X", "Y", "W", "P"].iter().zip(all) {
        definitions.set(name, element(one.dtype()));
    }
    definitions
        .set("G", element(grad.dtype()))
        .set("OUT", element(out.dtype()))
        .set("WEIGHT", i32::from(operands[2].is_some()))
        .set("FACTOR", i32::from(operands[3].is_some()));
    let kernel = |pass: i32, addresses: usize| -> Result<Arc<Kernel>> {
        let mut definitions = definitions.clone();
        definitions.set("PASS", pass);
        let takes = Parameters {
            addresses,
            words: WORDS,
        };
        device.kernel(Text::Loss, definitions, takes)
    };
    let chunk: i64 = match device.is_serial() {
        true => 2048,
        false => 4 * i64::from(device.group()),
    };
    let part = if reduces {
        chunk.max(count.unsigned_abs().div_ceil(PARTS as u64) as i64)
    } else {
        chunk
    };
    let launched = groups(count, part)?;
    let each = kernel(if reduces { 1 } else { 3 * first as i32 }, 6)?;
    let together = reduces.then(|| kernel(2, 2)).transpose()?;
    let mut words = [0; WORDS];
    let parts = match (first, reduction) {
        (1, MEAN) => count,
        (1, _) => 1,
        _ => i64::from(launched),
    };
    for (word, number) in words
        .iter_mut()
        .zip([count, part, parts, layout.rank() as i64])
    {
        *word = number as u64;
    }
    for (which, list) in [&layout.sizes]
        .into_iter()
        .chain(&layout.strides)
        .enumerate()
    {
        for (word, number) in words[4 + which * RANK..].iter_mut().zip(list) {
            *word = *number as u64;
        }
    }
    let divisor = if reduction == MEAN { count as f64 } else { 1.0 };
    words[WORDS - 1] = sums.word(Scalar::F64(divisor));
    if first == 0 && places[0].is_none() {
        return invalid("the input is missing");
    }
    let workspace = u64::from(launched) * if reduces { sums.bytes() } else { 0 };
    Ok(Prepared::with_workspace(workspace, move |launch| {
        let mut words = words;
        words[WORDS - 2] = class.word(match at_parameter {
            Some(at) => launch.scalar(at, 1.0),
            None => Scalar::I64(i64::from(log_target)),
        });
        let out = launch.outputs[0];
        let to = if reduces { launch.workspace } else { out };
        let of = |at: Option<usize>| at.map_or(out, |at| launch.inputs[at]);
        let [x, y, weight, factor] = places.map(of);
        let addresses = [x, y, weight, factor, of(of_grad), to];
        launch.run(&each, launched, &addresses, &words)?;
        match &together {
            Some(together) => {
                let from = if launched > 0 { to } else { out };
                launch.run(together, 1, &[from, out], &words)
            }
            None => Ok(()),
        }
    }))
}
