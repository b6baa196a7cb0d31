//! Products of matrices whose elements are of fewer bits than they are computed in, with scales.

use std::ffi::CStr;

use outrigger_device::DType;
use outrigger_ops::{Call, Scalar, Tensor};

use super::elementwise::{Pass, Recipe};
use super::matmul;
use crate::call::{Asked, Result, agrees, invalid};
use crate::device::{Class, Device, element};
use crate::kernel::Parameters;
use crate::layout::{dense, groups};
use crate::source::{Definitions, Text};
use crate::work::Prepared;

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"quantized_mm", c"scaled_mm"].into_iter()
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    agrees(name, call)?;
    if call.output(0)?.numel() == 0 {
        return Ok(Prepared::nothing());
    }
    if name == c"quantized_mm" {
        quantized(device, call)
    } else {
        scaled(device, call)
    }
}

/// Rows of the input that the weight is read for at a time. For more of them it pays to write it out as numbers once.
const ROWS: i64 = 8;

fn quantized(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let [Some(at_input), Some(at_weight), Some(at_scales)] = [0, 1, 2].map(|at| call.place(at))
    else {
        return invalid("input, weight or scales are missing");
    };
    let at_zeros = call.place(3);
    let (input, weight) = (call.input(at_input)?, call.input(at_weight)?);
    let (scales, out) = (call.input(at_scales)?, call.output(0)?);
    let zeros = at_zeros.and_then(|at| call.maybe_input(at));
    let (rows, depth, columns) = (input.sizes()[0], input.sizes()[1], out.sizes()[1]);
    for one in zeros.into_iter().chain([scales, out]) {
        device.class(one.dtype())?;
    }
    let class = device.class(input.dtype())?;
    let is_small = rows <= ROWS || out.dtype() != input.dtype();
    let chunk: i64 = match device.is_serial() {
        true => 2048,
        false => 4 * i64::from(device.group()),
    };
    let mut definitions = Definitions::default();
    definitions
        .set("KIND", i32::from(!is_small))
        .set("BITS", call.integer(5)?)
        .set("ROWS", ROWS)
        .set("CHUNK", chunk);
    let name_of = |one: Option<&Tensor<'_>>| one.map_or("f32", |one| element(one.dtype()));
    definitions
        .set("ZEROS", i32::from(zeros.is_some()))
        .set("A", element(input.dtype()))
        .set("S", element(scales.dtype()))
        .set("Z", name_of(zeros));
    definitions
        .set("OUT", element(if is_small { out } else { input }.dtype()))
        .set("T", class.name())
        .set("SUM", device.sums().name());
    let mut words = [0; 14];
    let mut numbers = vec![rows, columns, depth, call.integer(4)?];
    for one in [input, weight, scales, zeros.unwrap_or(scales), out] {
        numbers.extend(one.strides());
    }
    for (word, number) in words.iter_mut().zip(numbers) {
        *word = number as u64;
    }
    let takes = Parameters {
        addresses: 5,
        words: 14,
    };
    let kernel = device.kernel(Text::Quantized, definitions, takes)?;
    let launched = match is_small {
        true => groups(columns.saturating_mul(i64::from(groups(rows, ROWS)?)), 1)?,
        false => groups(columns.saturating_mul(depth), chunk)?,
    };
    let product = match is_small {
        true => None,
        false => {
            let (sizes, strides) = ([depth, columns], [1, depth]);
            let written = Tensor::new(64, input.dtype(), &sizes, &strides);
            let operands = [*input, written];
            let call = Call {
                inputs: &operands,
                outputs: std::slice::from_ref(out),
                ..Call::default()
            };
            Some(matmul::make(device, c"mm", &call)?)
        }
    };
    let bytes = match &product {
        Some(_) => (columns * depth) as u64 * input.dtype().size().unwrap_or(0) as u64,
        None => 0,
    };
    let bytes = bytes.next_multiple_of(256);
    let of_product = product.as_ref().map_or(0, |one| one.workspace_bytes);
    Ok(Prepared::with_workspace(
        bytes + of_product,
        move |launch| {
            let [input, weight, scales] =
                [at_input, at_weight, at_scales].map(|at| launch.inputs[at]);
            let zeros = at_zeros.map_or(scales, |at| launch.inputs[at]);
            let (out, workspace) = (launch.outputs[0], launch.workspace);
            let to = if product.is_some() { workspace } else { out };
            launch.run(
                &kernel,
                launched,
                &[input, weight, scales, zeros, to],
                &words,
            )?;
            match &product {
                Some(product) => {
                    launch.part(product, &[input, workspace], &[out], workspace + bytes)
                }
                None => Ok(()),
            }
        },
    ))
}

/// A pass over numbers of a class.
fn pass(
    device: &Device,
    class: Class,
    expression: &str,
    out: &Tensor<'_>,
    inputs: &[&Tensor<'_>],
) -> Result<Pass> {
    let recipe = Recipe {
        class,
        result: class,
        expression,
        scalar_input: None,
    };
    recipe.pass(device, out, inputs)
}

/// A scale of one element has any number of dimensions, and stands for all elements.
fn single<'a>(scale: &Tensor<'a>) -> Tensor<'a> {
    match scale.numel() {
        1 => Tensor::new(64, DType::F32, &[], &[]),
        _ => *scale,
    }
}

/// Both factors as f32, or as f64 for such a result, which hold them exactly; their product, and then what it is scaled by.
fn scaled(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let places = [0, 1, 2, 3].map(|at| call.place(at));
    let [Some(at_a), Some(at_b), Some(at_scale_a), Some(at_scale_b)] = places else {
        return invalid("a factor or its scale is missing");
    };
    let at_bias = call.place(4);
    let (a, b, out) = (call.input(at_a)?, call.input(at_b)?, call.output(0)?);
    let wide = match out.dtype() {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let class = device.class(wide)?;
    let strides = [a, b, out].map(|one| dense(one.sizes()));
    let [bytes_a, bytes_b, bytes_out] = [a, b, out].map(|one: &Tensor<'_>| {
        let bytes = one.numel().unsigned_abs() * class.bytes();
        bytes.next_multiple_of(256)
    });
    let wide_a = Tensor::new(64, wide, a.sizes(), &strides[0]);
    let wide_b = Tensor::new(64, wide, b.sizes(), &strides[1]);
    let sums = Tensor::new(64, wide, out.sizes(), &strides[2]);
    let of_a = pass(device, class, "a", &wide_a, &[a])?;
    let of_b = pass(device, class, "a", &wide_b, &[b])?;
    let operands = [wide_a, wide_b];
    let product = Call {
        inputs: &operands,
        outputs: std::slice::from_ref(&sums),
        ..Call::default()
    };
    let product = matmul::make(device, c"mm", &product)?;
    let scale_a = single(call.input(at_scale_a)?);
    let scale_b = single(call.input(at_scale_b)?);
    let bias = at_bias.map(|at| call.input(at)).transpose()?;
    let target = if bias.is_some() { &sums } else { out };
    let times = pass(
        device,
        class,
        "a * b * c",
        target,
        &[&sums, &scale_a, &scale_b],
    )?;
    let plus = match bias {
        Some(bias) => {
            device.class(bias.dtype())?;
            Some(pass(device, class, "a + b", out, &[&sums, bias])?)
        }
        None => None,
    };
    let before = bytes_a + bytes_b + bytes_out;
    let workspace = before + product.workspace_bytes;
    Ok(Prepared::with_workspace(workspace, move |launch| {
        let numbers = [Scalar::I64(0); 4];
        let [a, b, scale_a, scale_b] =
            [at_a, at_b, at_scale_a, at_scale_b].map(|at| launch.inputs[at]);
        let (wide_a, out) = (launch.workspace, launch.outputs[0]);
        let wide_b = wide_a + bytes_a;
        let sums = wide_b + bytes_b;
        of_a.run(launch, &[a, wide_a], numbers)?;
        of_b.run(launch, &[b, wide_b], numbers)?;
        launch.part(&product, &[wide_a, wide_b], &[sums], wide_a + before)?;
        let target = if plus.is_some() { sums } else { out };
        times.run(launch, &[sums, scale_a, scale_b, target], numbers)?;
        match (&plus, at_bias) {
            (Some(plus), Some(at)) => plus.run(launch, &[sums, launch.inputs[at], out], numbers),
            _ => Ok(()),
        }
    }))
}
