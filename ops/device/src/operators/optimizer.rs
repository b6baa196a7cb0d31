//! Steps of optimizers.

use std::ffi::CStr;

use outrigger_ops::{Call, Scalar, Tensor};

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::Parameters;
use crate::layout::{Layout, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"sgd_step", c"adam_step", c"adamw_step"].into_iter()
}

/// Numbers of a kernel.
const NUMBERS: usize = 12;

/// Makes a step.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let is_sgd = name == c"sgd_step";
    let decoupled = name == c"adamw_step";
    let (param, grad) = (call.output(0)?, call.input(0)?);
    let fits = match is_sgd {
        true => call.inputs.len() == 1 && matches!(call.outputs.len(), 1 | 2),
        false => matches!(call.inputs.len(), 1 | 2) && matches!(call.outputs.len(), 3 | 4),
    };
    if !fits {
        let (inputs, outputs) = (call.inputs.len(), call.outputs.len());
        return invalid(format!("{inputs} inputs and {outputs} outputs"));
    }
    let state: Vec<_> = (1..call.outputs.len())
        .map(|at| call.output(at))
        .collect::<Result<_>>()?;
    let mut alike = vec![param, grad];
    alike.extend(&state);
    let mut class = Class::F32;
    for one in &alike {
        match device.class(one.dtype())? {
            Class::F64 => class = Class::F64,
            Class::F32 => {}
            _ => return unsupported("parameters that are not floating-point"),
        }
        if one.sizes() != param.sizes() {
            return invalid("all operands but the step have the sizes of the parameter");
        }
    }
    let layout = Layout::broadcast(param.sizes(), &alike)?.simple(true);
    if layout.rank() > 1 || layout.strides.iter().flatten().any(|stride| *stride != 1) {
        return unsupported("operands that are not dense, or not laid out alike");
    }
    let count = param.numel();
    let step = call.inputs.get(1).map(|_| call.input(1)).transpose()?;
    if let Some(step) = step {
        if step.numel() != 1 {
            return invalid("the step has one element");
        }
        device.class(step.dtype())?;
    }
    let chunk: i64 = if device.is_serial() {
        4096
    } else {
        4 * i64::from(device.group())
    };
    let mut definitions = Definitions::default();
    let of = |at: usize| {
        state
            .get(at)
            .map_or("f32", |one: &&Tensor<'_>| element(one.dtype()))
    };
    definitions
        .set("KIND", i32::from(!is_sgd))
        .set("T", class.name())
        .set("CHUNK", chunk);
    definitions
        .set("P", element(param.dtype()))
        .set("G", element(grad.dtype()));
    definitions.set("M", of(0)).set("V", of(1)).set("X", of(2));
    definitions.set("S", step.map_or("f32", |step| element(step.dtype())));
    definitions.set("MOMENTUM", i32::from(state.len() == 1 && is_sgd));
    definitions
        .set("MAXIMUM", i32::from(state.len() == 3))
        .set("STEP", i32::from(step.is_some()));
    let takes = Parameters {
        addresses: 6,
        words: 1 + NUMBERS,
    };
    if count == 0 {
        return Ok(Prepared::nothing());
    }
    let kernel = device.kernel(Text::Optimizer, definitions, takes)?;
    let launched = groups(count, chunk)?;
    let (has_buffer, has_step) = (is_sgd && state.len() == 1, step.is_some());
    Ok(Prepared::new(move |launch| {
        let number = |at: usize| launch.scalar(at, 0.0).to_f64();
        let numbers = match is_sgd {
            true => sgd([0, 1, 2, 3, 4, 5, 6].map(number), has_buffer),
            false => adam([0, 1, 2, 3, 4, 5, 6].map(number), decoupled, has_step),
        };
        let mut words = [0; 1 + NUMBERS];
        words[0] = count as u64;
        for (word, number) in words[1..].iter_mut().zip(numbers) {
            *word = class.word(Scalar::F64(number));
        }
        let of = |at: usize| launch.outputs.get(at).copied().unwrap_or(launch.outputs[0]);
        let step = launch.inputs.get(1).copied().unwrap_or(launch.inputs[0]);
        let addresses = [of(0), launch.inputs[0], of(1), of(2), of(3), step];
        launch.run(&kernel, launched, &addresses, &words)
    }))
}

/// The numbers of SGD: rate, momentum, share of the gradient, share of the buffer, decay, Nesterov, and the sign.
fn sgd(given: [f64; 7], has_buffer: bool) -> [f64; NUMBERS] {
    let [rate, momentum, dampening, decay, nesterov, maximize, first] = given;
    let first = first != 0.0;
    let take = if first || !has_buffer {
        1.0
    } else {
        1.0 - dampening
    };
    let keep = if first { 0.0 } else { momentum };
    let sign = if maximize != 0.0 { -1.0 } else { 1.0 };
    [
        rate, momentum, take, keep, decay, nesterov, sign, 0.0, 0.0, 0.0, 0.0, 0.0,
    ]
}

/// The numbers of Adam, with the corrections of a step, or what the kernel computes them from.
fn adam(given: [f64; 7], decoupled: bool, has_step: bool) -> [f64; NUMBERS] {
    let [rate, beta1, beta2, epsilon, decay, maximize, step] = given;
    let corrections = match has_step {
        true => [beta1.ln(), beta2.ln(), rate],
        false => [
            rate / (1.0 - beta1.powf(step)),
            (1.0 - beta2.powf(step)).sqrt(),
            rate,
        ],
    };
    [
        beta1,
        beta2,
        1.0 - beta1,
        1.0 - beta2,
        epsilon,
        if decoupled { 0.0 } else { decay },
        if decoupled { 1.0 - rate * decay } else { 1.0 },
        if maximize != 0.0 { -1.0 } else { 1.0 },
        corrections[0],
        corrections[1],
        corrections[2],
        0.0,
    ]
}
