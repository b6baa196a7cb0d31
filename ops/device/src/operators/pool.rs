//! Pooling over two or three spatial dimensions, and its gradients.

use std::ffi::CStr;

use outrigger_device::DType;
use outrigger_ops::{Argument, Call, Tensor};

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Device, element};
use crate::kernel::Parameters;
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::work::Prepared;

const NAMES: [&CStr; 12] = [
    c"max_pool2d",
    c"max_pool2d_backward",
    c"max_pool3d",
    c"max_pool3d_backward",
    c"avg_pool2d",
    c"avg_pool2d_backward",
    c"avg_pool3d",
    c"avg_pool3d_backward",
    c"adaptive_avg_pool2d",
    c"adaptive_avg_pool2d_backward",
    c"adaptive_max_pool2d",
    c"adaptive_max_pool2d_backward",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

/// Sample, channel and three places: sizes and strides of an operand.
pub(crate) fn five(tensor: &Tensor<'_>, spatial: usize) -> Result<([i64; 5], [i64; 5])> {
    let rank = tensor.rank();
    if rank != spatial + 1 && rank != spatial + 2 {
        return invalid(format!(
            "{spatial} spatial dimensions, channels, and a batch or none, are expected"
        ));
    }
    let (mut sizes, mut strides) = ([1; 5], [0; 5]);
    for (at, (&size, &stride)) in tensor.sizes().iter().zip(tensor.strides()).enumerate() {
        let from_end = rank - at;
        let place = match from_end <= spatial {
            true => 5 - from_end,
            false => spatial + 2 - from_end,
        };
        (sizes[place], strides[place]) = (size, stride);
    }
    Ok((sizes, strides))
}

/// The numbers of an argument for three dimensions; `default` stands for an empty list.
fn list(
    call: &Call<'_>,
    at: usize,
    spatial: usize,
    least: i64,
    other: i64,
    default: Option<[i64; 3]>,
) -> Result<[i64; 3]> {
    let given = call.integers(at)?;
    let mut three = [other; 3];
    match (given.len(), default) {
        (0, Some(default)) => return Ok(default),
        (1, _) => three[3 - spatial..].fill(given[0]),
        (count, _) if count == spatial => three[3 - spatial..].copy_from_slice(given),
        _ => return invalid(format!("{given:?}: 1 or {spatial} numbers are expected")),
    }
    if three.iter().any(|one| !(least..1 << 20).contains(one)) {
        return invalid(format!(
            "{given:?}: numbers from {least} to 2^20 are expected"
        ));
    }
    Ok(three)
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let text = name.to_string_lossy();
    let (is_max, adaptive) = (text.contains("max"), text.starts_with("adaptive"));
    let is_backward = text.ends_with("backward");
    let spatial = if text.contains("3d") { 3 } else { 2 };
    // In a backward the gradient stands in front of the input.
    let first = usize::from(is_backward);
    let (Some(at_read), Some(at_input)) = (call.place(0), call.place(first)) else {
        return invalid("the input is missing");
    };
    let (read, input, written) = (call.input(at_read)?, call.input(at_input)?, call.output(0)?);
    let at_index = match (is_max, is_backward) {
        (true, true) => match call.place(call.args.len() - 1) {
            Some(at) => Some(at),
            None => return invalid("the indices are missing"),
        },
        _ => None,
    };
    let index = match (is_max, at_index) {
        (true, Some(at)) => Some(call.input(at)?),
        (true, None) => Some(call.output(1)?),
        _ => None,
    };
    let class = device.class(read.dtype())?;
    if !class.is_float()
        || [input, written]
            .iter()
            .any(|one| one.dtype() != read.dtype())
    {
        return unsupported("operands that are not floating-point, or of several element types");
    }
    if index.is_some_and(|index| index.dtype() != DType::I64) {
        return unsupported("indices that are not i64");
    }
    let windows = if is_backward { read } else { written };
    let ((in_sizes, _), (out_sizes, _)) = (five(input, spatial)?, five(windows, spatial)?);
    if in_sizes[..2] != out_sizes[..2]
        || is_backward && written.sizes() != input.sizes()
        || index.is_some_and(|index| index.sizes() != windows.sizes())
    {
        return invalid("the sizes of the operands do not go together");
    }
    let one = [1; 3];
    let (mut kernel, mut stride, mut padding, mut dilation) = (one, one, [0; 3], one);
    let (mut divisor, mut kind_of_divisor) = (1, 0);
    if !adaptive {
        kernel = list(call, first + 1, spatial, 1, 1, None)?;
        stride = list(call, first + 2, spatial, 1, 1, Some(kernel))?;
        padding = list(call, first + 3, spatial, 0, 0, None)?;
        if is_max {
            dilation = list(call, first + 4, spatial, 1, 1, None)?;
        } else {
            kind_of_divisor = i32::from(call.truth(first + 5)?);
            if let Argument::Int(given) = call.argument(first + 6) {
                (divisor, kind_of_divisor) = (given, 2);
            }
        }
        for d in 0..3 {
            if padding[d] > kernel[d] / 2 {
                return invalid("the padding is more than half of the kernel");
            }
            // The last window begins in the input, or in the padding in front of it.
            if (out_sizes[2 + d] - 1) * stride[d] >= in_sizes[2 + d] + padding[d] {
                return invalid("the output has more windows than there are");
            }
        }
        if divisor == 0 {
            return invalid("the divisor is 0");
        }
    }
    if written.numel() == 0 {
        return Ok(Prepared::nothing());
    }
    let chunk: i64 = if device.is_serial() {
        512
    } else {
        i64::from(device.group())
    };
    let mut definitions = Definitions::default();
    definitions.set("KIND", i32::from(!is_max) + 2 * i32::from(is_backward));
    definitions
        .set("ADAPTIVE", i32::from(adaptive))
        .set("DIVISOR", kind_of_divisor);
    definitions
        .set("A", element(read.dtype()))
        .set("T", class.name())
        .set("CHUNK", chunk);
    let mut words: Vec<i64> = vec![written.numel(), in_sizes[1]];
    words.extend(&in_sizes[2..]);
    words.extend(&out_sizes[2..]);
    for three in [kernel, stride, padding, dilation] {
        words.extend(three);
    }
    words.push(divisor);
    words.extend(five(read, spatial)?.1);
    words.extend(five(written, spatial)?.1);
    words.extend(match index {
        Some(index) => five(index, spatial)?.1,
        None => [0; 5],
    });
    let takes = Parameters {
        addresses: 3,
        words: words.len(),
    };
    let kernel = device.kernel(Text::Pool, definitions, takes)?;
    let launched = groups(written.numel(), chunk)?;
    let words: Vec<u64> = words.into_iter().map(|word| word as u64).collect();
    let writes_index = is_max && !is_backward;
    Ok(Prepared::new(move |launch| {
        let out = launch.outputs[0];
        let index = match (writes_index, at_index) {
            (true, _) => launch.outputs[1],
            (false, Some(at)) => launch.inputs[at],
            (false, None) => out,
        };
        launch.run(
            &kernel,
            launched,
            &[launch.inputs[at_read], out, index],
            &words,
        )
    }))
}
