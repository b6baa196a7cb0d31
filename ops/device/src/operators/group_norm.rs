//! Normalization of groups of channels, and its gradients.

use std::ffi::CStr;

use outrigger_device::DType;
use outrigger_ops::{Call, Scalar, Tensor};

use crate::call::{Asked, Result, agrees, invalid, unsupported};
use crate::device::{Device, element};
use crate::kernel::Parameters;
use crate::layout::{Layout, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"native_group_norm", c"native_group_norm_backward"].into_iter()
}

const WORDS: usize = 20;

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    if name == c"native_group_norm" {
        forward(device, call)
    } else {
        backward(device, call)
    }
}

/// The strides of samples, channels and elements, which lie evenly.
fn three(tensor: &Tensor<'_>) -> Result<[i64; 3]> {
    let all = Layout::broadcast(tensor.sizes(), &[tensor])?;
    let elements = all.of_dimensions(|at| at > 1).simple(false);
    let step = match elements.strides[0].as_slice() {
        [] => 0,
        [step] => *step,
        _ => return unsupported("elements of a channel that do not lie evenly"),
    };
    Ok([tensor.strides()[0], tensor.strides()[1], step])
}

/// The stride of an operand that has an element for each channel.
fn step(tensor: Option<&Tensor<'_>>) -> i64 {
    tensor.map_or(0, |tensor| tensor.strides()[0])
}

fn name_of(tensor: Option<&Tensor<'_>>) -> &'static str {
    tensor.map_or("f32", |tensor| element(tensor.dtype()))
}

/// The sizes that both directions have in common: samples, groups, channels of a group and elements of a channel.
fn sizes(call: &Call<'_>, first: usize) -> Result<[i64; 4]> {
    let [samples, channels] = [call.integer(first)?, call.integer(first + 1)?];
    let [elements, groups] = [call.integer(first + 2)?, call.integer(first + 3)?];
    Ok([samples, groups, channels / groups, elements])
}

/// A kernel, of tensors (input, gradient, mean, rstd, weight, bias, result).
fn kernel(
    device: &Device,
    kind: i32,
    tensors: [Option<&Tensor<'_>>; 7],
) -> Result<std::sync::Arc<crate::kernel::Kernel>> {
    let [input, grad, mean, rstd, weight, bias, out] = tensors;
    if mean.map(Tensor::dtype) != rstd.map(Tensor::dtype) {
        return unsupported("statistics of two element types");
    }
    for one in tensors.into_iter().flatten() {
        device.class(one.dtype())?;
    }
    let class = device.class(input.map_or(DType::F32, Tensor::dtype))?;
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", kind)
        .set("T", class.name())
        .set("SUM", device.sums().name());
    let named = [
        ("A", input),
        ("G", grad),
        ("STAT", mean),
        ("W", weight),
        ("B", bias),
        ("OUT", out),
    ];
    for (name, tensor) in named {
        definitions.set(name, name_of(tensor));
    }
    definitions
        .set("WEIGHT", i32::from(weight.is_some()))
        .set("BIAS", i32::from(bias.is_some()));
    let takes = Parameters {
        addresses: if kind < 2 { 7 } else { 6 },
        words: WORDS,
    };
    device.kernel(Text::GroupNorm, definitions, takes)
}

/// The words of a kernel of these tensors (input, gradient, mean, rstd, weight, bias, result).
fn words(sizes: [i64; 4], tensors: [Option<&Tensor<'_>>; 7]) -> Result<[u64; WORDS]> {
    let [input, grad, mean, rstd, weight, bias, out] = tensors;
    let mut numbers = sizes.to_vec();
    for one in [input, grad, out] {
        numbers.extend(match one {
            Some(one) => three(one)?,
            None => [0; 3],
        });
    }
    for one in [mean, rstd].into_iter().flatten() {
        numbers.extend(one.strides());
    }
    numbers.extend([step(weight), step(bias)]);
    let mut words = [0; WORDS];
    for (word, number) in words.iter_mut().zip(numbers) {
        *word = number as u64;
    }
    Ok(words)
}

fn forward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let Some(at_input) = call.place(0) else {
        return invalid("the input is missing");
    };
    let at = [call.place(1), call.place(2)];
    let affine = at.map(|at| at.and_then(|at| call.maybe_input(at)));
    let tensors = [
        Some(call.input(at_input)?),
        None,
        Some(call.output(1)?),
        Some(call.output(2)?),
        affine[0],
        affine[1],
        Some(call.output(0)?),
    ];
    let sizes = sizes(call, 3)?;
    let launched = groups(sizes[0].saturating_mul(sizes[1]), 1)?;
    let (kernel, words) = (kernel(device, 0, tensors)?, words(sizes, tensors)?);
    let (epsilon, sums) = (call.number(7), device.sums());
    Ok(Prepared::new(move |launch| {
        let mut words = words;
        words[WORDS - 1] =
            sums.word(epsilon.map_or(Scalar::F64(1e-5), |at| launch.scalar(at, 1e-5)));
        let input = launch.inputs[at_input];
        let [out, mean, rstd] = [0, 1, 2].map(|at| launch.outputs[at]);
        let [weight, bias] = at.map(|at| at.map_or(input, |at| launch.inputs[at]));
        let addresses = [input, input, mean, rstd, weight, bias, out];
        launch.run(&kernel, launched, &addresses, &words)
    }))
}

fn backward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let places = [0, 1, 2, 3].map(|at| call.place(at));
    let [Some(grad), Some(input), Some(mean), Some(rstd)] = places else {
        return invalid("gradient, input or statistics are missing");
    };
    let at_weight = call.place(4);
    let read = |at: usize| call.input(at).map(Some);
    let (of_grad, of_input) = (read(grad)?, read(input)?);
    let (of_mean, of_rstd) = (read(mean)?, read(rstd)?);
    let [out, of_weight, of_bias] = [0, 1, 2].map(|at| call.maybe_output(at));
    let sizes = sizes(call, 5)?;
    let by_group = groups(sizes[0].saturating_mul(sizes[1]), 1)?;
    let by_channel = groups(sizes[1].saturating_mul(sizes[2]), 1)?;
    let weight = at_weight.and_then(|at| call.maybe_input(at));
    let first = match out {
        Some(_) => {
            let tensors = [of_input, of_grad, of_mean, of_rstd, weight, None, out];
            Some((kernel(device, 1, tensors)?, words(sizes, tensors)?))
        }
        None => None,
    };
    let second = match of_weight.or(of_bias) {
        Some(_) => {
            let tensors = [
                of_input, of_grad, of_mean, of_rstd, of_weight, of_bias, None,
            ];
            Some((kernel(device, 2, tensors)?, words(sizes, tensors)?))
        }
        None => None,
    };
    Ok(Prepared::new(move |launch| {
        let [grad, input, mean, rstd] = [grad, input, mean, rstd].map(|at| launch.inputs[at]);
        let weight = at_weight.map_or(input, |at| launch.inputs[at]);
        let outputs = [0, 1, 2].map(|at| launch.outputs[at]);
        if let Some((kernel, words)) = &first {
            let addresses = [input, grad, mean, rstd, weight, weight, outputs[0]];
            launch.run(kernel, by_group, &addresses, words)?;
        }
        if let Some((kernel, words)) = &second {
            let or = |address: u64| if address == 0 { input } else { address };
            let addresses = [input, grad, mean, rstd, or(outputs[1]), or(outputs[2])];
            launch.run(kernel, by_channel, &addresses, words)?;
        }
        Ok(())
    }))
}
