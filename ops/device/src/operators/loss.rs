//! The negative logarithm of the likelihood of classes.

use std::ffi::CStr;

use outrigger_device::DType;
use outrigger_ops::{Call, Tensor};

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Device, element};
use crate::kernel::Parameters;
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::work::{Checks, Prepared, WRONG};

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"nll_loss_forward", c"nll_loss_backward"].into_iter()
}

/// Items, classes, and the strides of both.
fn scores_of(tensor: &Tensor<'_>) -> Result<[i64; 4]> {
    match (tensor.sizes(), tensor.strides()) {
        (&[items, classes], &[item, class]) => Ok([items, classes, item, class]),
        (&[classes], &[class]) => Ok([1, classes, 0, class]),
        _ => invalid("scores have 1 or 2 dimensions"),
    }
}

/// The stride of an operand that has an element for each item, or one.
fn step_of(tensor: &Tensor<'_>) -> i64 {
    tensor.strides().first().copied().unwrap_or(0)
}

/// Makes a loss or its gradient.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let forward = name == c"nll_loss_forward";
    let right = if forward { (3, 2) } else { (4, 1) };
    if (call.inputs.len(), call.outputs.len()) != right {
        return invalid(format!(
            "{} inputs and {} outputs are expected",
            right.0, right.1
        ));
    }
    let (targets, weights) = (call.input(1)?, call.maybe_input(2));
    let (scores, loss, total) = match forward {
        true => (call.input(0)?, call.output(0)?, call.output(1)?),
        false => (call.output(0)?, call.input(0)?, call.input(3)?),
    };
    if targets.dtype() != DType::I64 {
        return unsupported("targets that are not i64");
    }
    for one in [Some(scores), Some(loss), Some(total), weights]
        .into_iter()
        .flatten()
    {
        if !device.class(one.dtype())?.is_float() {
            return unsupported("a loss that is not floating-point");
        }
    }
    let [items, classes, item, class] = scores_of(scores)?;
    if targets.numel() != items
        || targets.rank() > 1
        || loss.rank() > 1
        || total.numel() != 1
        || weights.is_some_and(|weights| weights.sizes() != [classes])
        || loss.numel() != 1 && loss.numel() != items
    {
        return invalid("operands of other sizes than the scores have");
    }
    let chunk: i64 = if device.is_serial() {
        4096
    } else {
        i64::from(device.group())
    };
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", i32::from(!forward))
        .set("CHUNK", chunk);
    definitions
        .set("T", device.class(scores.dtype())?.name())
        .set("SUM", device.sums().name());
    definitions
        .set("A", element(scores.dtype()))
        .set("L", element(loss.dtype()));
    definitions.set("Z", element(total.dtype()));
    definitions.set(
        "W",
        weights.map_or("f32", |weights| element(weights.dtype())),
    );
    definitions.set("WEIGHT", i32::from(weights.is_some()));
    let takes = Parameters {
        addresses: 6,
        words: 9,
    };
    let kernel = device.kernel(Text::NllLoss, definitions, takes)?;
    let launched = if forward {
        1
    } else {
        groups(items.saturating_mul(classes), chunk)?
    };
    let weight = weights.map_or(0, step_of);
    let strides = [item, class, step_of(targets), weight, step_of(loss)];
    let has_item = loss.rank() == 1;
    let checks = Checks::new(device.host_visible);
    Ok(Prepared::with_workspace(WRONG, move |launch| {
        let (reduction, ignored) = (
            launch.scalar(0, 1.0).to_i64(),
            launch.scalar(1, -100.0).to_i64(),
        );
        let is_single = items == 1 && !has_item;
        if !(0..=2).contains(&reduction) || reduction == 0 && !has_item && !is_single {
            return Err(outrigger_device::Code::INVALID_ARGUMENT.0);
        }
        let [item, class, target, weight, loss] = strides.map(|stride| stride as u64);
        let words = [
            items as u64,
            classes as u64,
            item,
            class,
            target,
            weight,
            loss,
            ignored as u64,
            reduction as u64,
        ];
        let (inputs, outputs) = (launch.inputs, launch.outputs);
        let weights = if inputs[2] == 0 { inputs[1] } else { inputs[2] };
        let [scores, loss, total] = match forward {
            true => [inputs[0], outputs[0], outputs[1]],
            false => [inputs[0], inputs[3], outputs[0]],
        };
        let target = inputs[1];
        launch.checked(&checks, |launch, wrong| {
            let addresses = [scores, target, weights, loss, total, wrong];
            launch.run(&kernel, launched, &addresses, &words)
        })
    }))
}
