//! Normalization by the statistics of channels, and its gradients.

use std::ffi::CStr;

use outrigger_ops::{Call, Tensor};

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::Parameters;
use crate::layout::{Layout, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"native_batch_norm", c"native_batch_norm_backward"].into_iter()
}

/// Words of a launch.
const WORDS: usize = 2 + 9 + 2;

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    match name == c"native_batch_norm" {
        true => forward(device, call),
        false => backward(device, call),
    }
}

/// Samples, channels and places of operands of the same sizes, and the strides of each in these.
struct Shape {
    samples: i64,
    channels: i64,
    places: i64,
    strides: Vec<[i64; 3]>,
}

impl Shape {
    fn new(operands: &[&Tensor<'_>]) -> Result<Self> {
        let sizes = operands[0].sizes();
        if operands.iter().any(|one| one.sizes() != sizes) || sizes.len() < 2 {
            return invalid("samples and channels, and the same sizes, are expected");
        }
        let places = Layout::broadcast(sizes, operands)?
            .of_dimensions(|at| at >= 2)
            .simple(false);
        if places.rank() > 1 {
            return unsupported("places that are not evenly spaced");
        }
        let place = |at: usize| places.strides[at].first().copied().unwrap_or(0);
        let strides = operands.iter().enumerate();
        Ok(Self {
            samples: sizes[0],
            channels: sizes[1],
            places: places.numel(),
            strides: strides
                .map(|(at, one)| [one.strides()[0], one.strides()[1], place(at)])
                .collect(),
        })
    }

    fn words(&self, order: [usize; 3]) -> Vec<u64> {
        let strides = order.into_iter().flat_map(|at| self.strides[at]);
        let numbers = [self.samples, self.places].into_iter().chain(strides);
        numbers.map(|number| number as u64).collect()
    }
}

/// Checks an operand with a dense element for each channel.
fn per_channel(device: &Device, tensor: Option<&Tensor<'_>>, channels: i64) -> Result<()> {
    let Some(tensor) = tensor else {
        return Ok(());
    };
    if tensor.sizes() != [channels] {
        return invalid("an operand has not one element for each channel");
    }
    if !device.class(tensor.dtype())?.is_float() || !tensor.is_contiguous() {
        return unsupported("an operand for channels that is not dense");
    }
    Ok(())
}

fn dtype_of(tensor: Option<&Tensor<'_>>) -> &'static str {
    tensor.map_or("f32", |tensor| element(tensor.dtype()))
}

fn floats(device: &Device, tensors: &[&Tensor<'_>]) -> Result<Class> {
    let mut class = Class::F32;
    for one in tensors {
        match device.class(one.dtype())? {
            Class::F64 => class = Class::F64,
            Class::F32 => {}
            _ => return unsupported("a normalization of integers"),
        }
    }
    Ok(class)
}

fn forward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let Some(at_input) = call.place(0) else {
        return invalid("the input is missing");
    };
    let (at_weight, at_bias, training) = (call.place(1), call.place(2), call.truth(5)?);
    let has_running =
        [3, 4].map(|at| matches!(call.argument(at), outrigger_ops::Argument::Output(_)));
    let first = has_running.iter().filter(|one| **one).count();
    let (input, out) = (call.input(at_input)?, call.output(first)?);
    let class = floats(device, &[input, out])?;
    let shape = Shape::new(&[input, out])?;
    let channels = shape.channels;
    let of = |at: Option<usize>| at.map(|at| call.input(at)).transpose();
    let (weight, bias) = (of(at_weight)?, of(at_bias)?);
    let running: Vec<_> = (0..first)
        .map(|at| call.output(at))
        .collect::<Result<_>>()?;
    let statistics = [call.output(first + 1)?, call.output(first + 2)?];
    let written = statistics.map(|one| one.sizes() != [0]);
    for one in [weight, bias]
        .into_iter()
        .chain(running.iter().map(|one| Some(*one)))
    {
        per_channel(device, one, channels)?;
    }
    for (one, written) in statistics.iter().zip(written) {
        if written {
            per_channel(device, Some(one), channels)?;
        }
    }
    if !training && first != 2 || training && written != [true; 2] {
        return invalid("statistics are missing");
    }
    let same =
        |tensors: &[&Tensor<'_>]| tensors.iter().all(|one| one.dtype() == tensors[0].dtype());
    if !same(&statistics) || !running.is_empty() && !same(&running) {
        return unsupported("statistics of several element types");
    }
    if training && shape.samples * shape.places == 0 || channels == 0 {
        return unsupported("a normalization of nothing");
    }
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", 0)
        .set("TRAINING", i32::from(training));
    definitions
        .set("T", class.name())
        .set("SUM", device.sums().name());
    definitions
        .set("A", element(input.dtype()))
        .set("OUT", element(out.dtype()));
    definitions
        .set("W", dtype_of(weight))
        .set("B", dtype_of(bias));
    definitions.set("STAT", element(statistics[0].dtype()));
    definitions.set("RUN", dtype_of(running.first().copied()));
    definitions
        .set("WEIGHT", i32::from(weight.is_some()))
        .set("BIAS", i32::from(bias.is_some()));
    definitions
        .set("MEANS", i32::from(written[0]))
        .set("RSTDS", i32::from(written[1]));
    definitions
        .set("RUN_MEAN", i32::from(has_running[0]))
        .set("RUN_VAR", i32::from(has_running[1]));
    let takes = Parameters {
        addresses: 8,
        words: WORDS,
    };
    let kernel = device.kernel(Text::BatchNorm, definitions, takes)?;
    let launched = groups(channels, 1)?;
    let (front, sums) = (shape.words([0, 0, 1]), device.sums());
    let (momentum, epsilon) = (call.number(6), call.number(7));
    Ok(Prepared::new(move |launch| {
        let number = |at: Option<usize>| launch.scalar(at.unwrap_or(usize::MAX), 0.0);
        let mut words = [0; WORDS];
        words[..11].copy_from_slice(&front);
        words[11] = sums.word(number(momentum));
        words[12] = sums.word(number(epsilon));
        let input = launch.inputs[at_input];
        let of = |at: Option<usize>| at.map_or(input, |at| launch.inputs[at]);
        let out = launch.outputs[first];
        // The running statistics that are there come first.
        let running = match has_running {
            [true, true] => [launch.outputs[0], launch.outputs[1]],
            [true, false] => [launch.outputs[0], out],
            [false, true] => [out, launch.outputs[0]],
            [false, false] => [out, out],
        };
        let or = |at: usize| {
            if launch.outputs[at] == 0 {
                out
            } else {
                launch.outputs[at]
            }
        };
        let addresses = [
            input,
            of(at_weight),
            of(at_bias),
            running[0],
            running[1],
            out,
            or(first + 1),
            or(first + 2),
        ];
        launch.run(&kernel, launched, &addresses, &words)
    }))
}

fn backward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let training = call.truth(7)?;
    let used = if training { [5, 6] } else { [3, 4] };
    let places = [
        call.place(0),
        call.place(1),
        call.place(used[0]),
        call.place(used[1]),
    ];
    let [
        Some(at_grad),
        Some(at_input),
        Some(at_mean),
        Some(at_spread),
    ] = places
    else {
        return invalid("gradient, input or statistics are missing");
    };
    let at_weight = call.place(2);
    let (grad, input) = (call.input(at_grad)?, call.input(at_input)?);
    let (mean, spread) = (call.input(at_mean)?, call.input(at_spread)?);
    let weight = at_weight.map(|at| call.input(at)).transpose()?;
    let outputs = [
        call.maybe_output(0),
        call.maybe_output(1),
        call.maybe_output(2),
    ];
    let mut operands = vec![input, grad];
    operands.extend(outputs[0]);
    let class = floats(device, &operands)?;
    let shape = Shape::new(&operands)?;
    let channels = shape.channels;
    for one in [weight, Some(mean), Some(spread), outputs[1], outputs[2]] {
        per_channel(device, one, channels)?;
    }
    if mean.dtype() != spread.dtype() || input.numel() == 0 {
        return unsupported("statistics of several element types, or of nothing");
    }
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", 1)
        .set("TRAINING", i32::from(training));
    definitions
        .set("T", class.name())
        .set("SUM", device.sums().name());
    definitions
        .set("A", element(input.dtype()))
        .set("G", element(grad.dtype()));
    definitions
        .set("OUT", dtype_of(outputs[0]))
        .set("W", dtype_of(weight));
    definitions
        .set("GW", dtype_of(outputs[1]))
        .set("GB", dtype_of(outputs[2]));
    definitions.set("STAT", element(mean.dtype()));
    definitions.set("WEIGHT", i32::from(weight.is_some()));
    definitions.set("OUT_THERE", i32::from(outputs[0].is_some()));
    definitions.set("WEIGHT_OUT", i32::from(outputs[1].is_some()));
    definitions.set("BIAS_OUT", i32::from(outputs[2].is_some()));
    let takes = Parameters {
        addresses: 8,
        words: WORDS,
    };
    let kernel = device.kernel(Text::BatchNorm, definitions, takes)?;
    let launched = groups(channels, 1)?;
    let front = shape.words([0, 1, if outputs[0].is_some() { 2 } else { 0 }]);
    let (epsilon, sums) = (call.number(8), device.sums());
    Ok(Prepared::new(move |launch| {
        let mut words = [0; WORDS];
        words[..11].copy_from_slice(&front);
        words[12] = sums.word(launch.scalar(epsilon.unwrap_or(usize::MAX), 0.0));
        let input = launch.inputs[at_input];
        let or = |address: u64| if address == 0 { input } else { address };
        let addresses = [
            launch.inputs[at_grad],
            input,
            at_weight.map_or(input, |at| launch.inputs[at]),
            launch.inputs[at_mean],
            launch.inputs[at_spread],
            or(launch.outputs[0]),
            or(launch.outputs[1]),
            or(launch.outputs[2]),
        ];
        launch.run(&kernel, launched, &addresses, &words)
    }))
}
