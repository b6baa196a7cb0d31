//! Normalization of rows, by layers and by the root mean square, and its gradients.

use std::ffi::CStr;
use std::sync::Arc;

use outrigger_device::DType;
use outrigger_ops::{Call, Scalar, Tensor};

use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::{Class, Device, element};
use crate::kernel::{Kernel, Parameters};
use crate::layout::groups;
use crate::source::{Definitions, Text};
use crate::work::{Launch, Prepared};

const NAMES: [&CStr; 4] = [
    c"layer_norm",
    c"layer_norm_backward",
    c"rms_norm",
    c"rms_norm_backward",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

/// Makes an operator.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    match name.to_bytes() {
        b"layer_norm" => layer_forward(device, call),
        b"layer_norm_backward" => layer_backward(device, call),
        b"rms_norm" => rms_forward(device, call),
        _ => rms_backward(device, call),
    }
}

/// Checks a dense operand of floating-point numbers.
fn dense(device: &Device, tensor: &Tensor<'_>) -> Result<()> {
    if !device.class(tensor.dtype())?.is_float() {
        return unsupported("a normalization of integers");
    }
    if !tensor.is_contiguous() {
        return unsupported("operands that are not contiguous");
    }
    Ok(())
}

fn all_dense(device: &Device, call: &Call<'_>) -> Result<()> {
    let there = call
        .inputs
        .iter()
        .chain(call.outputs)
        .filter(|one| one.dtype() != DType::INVALID);
    there.into_iter().try_for_each(|one| dense(device, one))
}

/// The sizes of rows that are made of the last dimensions: how many, and their length.
fn rows_of(sizes: &[i64], dimensions: usize) -> (i64, i64) {
    let (outer, inner) = sizes.split_at(sizes.len().saturating_sub(dimensions));
    (outer.iter().product(), inner.iter().product())
}

fn dtype_of(tensor: Option<&Tensor<'_>>) -> &'static str {
    tensor.map_or("f32", |tensor| element(tensor.dtype()))
}

/// The register types of a normalization: of elements, and of sums.
fn classes(device: &Device, input: &Tensor<'_>) -> Result<[Class; 2]> {
    Ok([device.class(input.dtype())?, device.sums()])
}

/// The definitions that the kernels of a normalization have in common.
fn shared(rms: bool, kind: i32, [class, sums]: [Class; 2]) -> Definitions {
    let mut definitions = Definitions::default();
    definitions.set("KIND", kind).set("RMS", i32::from(rms));
    definitions.set("T", class.name()).set("SUM", sums.name());
    definitions
}

/// The kernel of a forward.
fn forward(
    device: &Device,
    rms: bool,
    input: &Tensor<'_>,
    [weight, bias]: [Option<&Tensor<'_>>; 2],
    [out, statistic]: [&Tensor<'_>; 2],
) -> Result<Arc<Kernel>> {
    let mut definitions = shared(rms, 0, classes(device, input)?);
    definitions
        .set("A", element(input.dtype()))
        .set("OUT", element(out.dtype()));
    definitions
        .set("W", dtype_of(weight))
        .set("B", dtype_of(bias));
    definitions.set("STAT", element(statistic.dtype()));
    definitions
        .set("WEIGHT", i32::from(weight.is_some()))
        .set("BIAS", i32::from(bias.is_some()));
    let takes = Parameters {
        addresses: 6,
        words: 5,
    };
    device.kernel(Text::RowNorm, definitions, takes)
}

fn layer_forward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    if call.inputs.len() != 3 || call.outputs.len() != 3 {
        return invalid("inputs (input, weight, bias) and outputs (out, mean, rstd) are expected");
    }
    all_dense(device, call)?;
    let (input, out) = (call.input(0)?, call.output(0)?);
    let (means, rstds) = (call.output(1)?, call.output(2)?);
    let affine = [call.maybe_input(1), call.maybe_input(2)];
    if out.sizes() != input.sizes() || means.dtype() != rstds.dtype() {
        return unsupported("sizes or element types that differ");
    }
    let kernel = forward(device, false, input, affine, [out, means])?;
    let sums = device.sums();
    let (sizes, rows) = (input.sizes().to_vec(), means.numel());
    let length = if rows > 0 { input.numel() / rows } else { 0 };
    let fits = |one: &Tensor<'_>| one.numel() == length;
    if rows * length != input.numel() || affine.into_iter().flatten().any(|one| !fits(one)) {
        return invalid("operands of other sizes than rows of the input have");
    }
    let launched = groups(rows, 1)?;
    Ok(Prepared::new(move |launch| {
        // Rows are known from the sizes of the statistics; the scalar says the same.
        let (count, n) = rows_of(&sizes, launch.scalar(0, 1.0).to_i64().max(0) as usize);
        if (count, n) != (rows, length) && rows * length > 0 {
            return Err(outrigger_device::Code::INVALID_ARGUMENT.0);
        }
        let epsilon = sums.word(launch.scalar(1, 1e-5));
        let [a, w, b] = [0, 1, 2].map(|at| launch.inputs[at]);
        let [to, means, rstds] = [0, 1, 2].map(|at| launch.outputs[at]);
        let or = |address: u64| if address == 0 { to } else { address };
        let addresses = [a, or(w), or(b), to, means, rstds];
        launch.run(
            &kernel,
            launched,
            &addresses,
            &[rows as u64, length as u64, 1, 0, epsilon],
        )
    }))
}

/// The launches of a backward.
struct Backward {
    of_input: Option<Arc<Kernel>>,
    of_affine: Option<[Arc<Kernel>; 2]>,
    rows: i64,
    length: i64,
    parts: i64,
    columns: i64,
}

/// The addresses of the operands of a backward; 0 for one that is not there.
#[derive(Clone, Copy)]
struct Places {
    grad: u64,
    input: u64,
    means: u64,
    rstds: u64,
    weight: u64,
    outputs: [u64; 3],
}

impl Backward {
    fn new(
        device: &Device,
        rms: bool,
        (rows, length): (i64, i64),
        [grad, input, statistic]: [&Tensor<'_>; 3],
        weight: Option<&Tensor<'_>>,
        [of_input, of_weight, of_bias]: [Option<&Tensor<'_>>; 3],
    ) -> Result<Self> {
        let types = classes(device, input)?;
        let common = |kind: i32| {
            let mut definitions = shared(rms, kind, types);
            definitions
                .set("A", element(input.dtype()))
                .set("G", element(grad.dtype()));
            definitions.set("STAT", element(statistic.dtype()));
            definitions
        };
        let mut backward = Self {
            of_input: None,
            of_affine: None,
            rows,
            length,
            parts: (rows / 64).clamp(1, 64),
            columns: i64::from(device.group()).max(64),
        };
        if let Some(output) = of_input {
            let mut definitions = common(1);
            definitions
                .set("W", dtype_of(weight))
                .set("OUT", element(output.dtype()));
            definitions.set("WEIGHT", i32::from(weight.is_some()));
            let takes = Parameters {
                addresses: 6,
                words: 5,
            };
            backward.of_input = Some(device.kernel(Text::RowNorm, definitions, takes)?);
        }
        if of_weight.is_some() || of_bias.is_some() {
            let mut partial = common(2);
            partial.set("COLUMNS", backward.columns);
            let takes = Parameters {
                addresses: 5,
                words: 5,
            };
            let partial = device.kernel(Text::RowNorm, partial, takes)?;
            let mut joined = common(3);
            joined.set("COLUMNS", backward.columns);
            joined
                .set("W", dtype_of(of_weight))
                .set("B", dtype_of(of_bias));
            joined.set("WEIGHT", i32::from(of_weight.is_some()));
            joined.set("BIAS", i32::from(of_bias.is_some()));
            let takes = Parameters {
                addresses: 3,
                words: 5,
            };
            backward.of_affine = Some([partial, device.kernel(Text::RowNorm, joined, takes)?]);
        }
        let across = i64::from(groups(length, backward.columns)?);
        groups(rows, 1)?;
        groups(across.saturating_mul(backward.parts), 1)?;
        Ok(backward)
    }

    fn workspace_bytes(&self, device: &Device) -> u64 {
        match self.of_affine {
            Some(_) => (2 * self.parts * self.length) as u64 * device.sums().bytes(),
            None => 0,
        }
    }

    fn run(&self, launch: &mut Launch<'_>, places: Places) -> std::result::Result<(), i32> {
        let Places {
            grad,
            input,
            means,
            rstds,
            weight,
            outputs,
        } = places;
        let part = self.rows.max(1).unsigned_abs().div_ceil(self.parts as u64);
        let words = [
            self.rows as u64,
            self.length as u64,
            self.parts as u64,
            part,
            0,
        ];
        let or = |address: u64, other: u64| if address == 0 { other } else { address };
        if let Some(kernel) = &self.of_input {
            let addresses = [
                grad,
                input,
                or(means, rstds),
                rstds,
                or(weight, input),
                outputs[0],
            ];
            launch.run(kernel, self.rows as u32, &addresses, &words)?;
        }
        if let Some([partial, joined]) = &self.of_affine {
            let across = self.length.unsigned_abs().div_ceil(self.columns as u64);
            let workspace = launch.workspace;
            let addresses = [grad, input, or(means, rstds), rstds, workspace];
            launch.run(
                partial,
                (across * self.parts as u64) as u32,
                &addresses,
                &words,
            )?;
            let addresses = [
                workspace,
                or(outputs[1], workspace),
                or(outputs[2], workspace),
            ];
            launch.run(joined, across as u32, &addresses, &words)?;
        }
        Ok(())
    }
}

fn layer_backward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    if call.inputs.len() != 5 || call.outputs.len() != 3 {
        return invalid("inputs (grad, input, mean, rstd, weight) and 3 gradients are expected");
    }
    all_dense(device, call)?;
    let (grad, input) = (call.input(0)?, call.input(1)?);
    let (means, rstds) = (call.input(2)?, call.input(3)?);
    let rows = means.numel();
    let length = if rows > 0 { input.numel() / rows } else { 0 };
    if rows * length != input.numel()
        || grad.numel() != input.numel()
        || means.dtype() != rstds.dtype()
    {
        return unsupported("sizes or element types that differ");
    }
    let outputs = [
        call.maybe_output(0),
        call.maybe_output(1),
        call.maybe_output(2),
    ];
    for (output, right) in outputs.iter().zip([input.numel(), length, length]) {
        if output.is_some_and(|output| output.numel() != right) {
            return invalid("a gradient of other sizes than what it is of");
        }
    }
    if input.numel() == 0 {
        return unsupported("a normalization of nothing");
    }
    let tensors = [grad, input, means];
    let backward = Backward::new(
        device,
        false,
        (rows, length),
        tensors,
        call.maybe_input(4),
        outputs,
    )?;
    Ok(Prepared::with_workspace(
        backward.workspace_bytes(device),
        move |launch| {
            let [grad, input, means, rstds, weight] = [0, 1, 2, 3, 4].map(|at| launch.inputs[at]);
            let outputs = [0, 1, 2].map(|at| launch.outputs[at]);
            let places = Places {
                grad,
                input,
                means,
                rstds,
                weight,
                outputs,
            };
            backward.run(launch, places)
        },
    ))
}

/// The rows of a normalization by the root mean square.
fn rms_rows(call: &Call<'_>, input: &Tensor<'_>, shape: usize) -> Result<(i64, i64)> {
    let shape = call.integers(shape)?;
    if shape.is_empty() || shape.len() > input.rank() || !input.sizes().ends_with(shape) {
        return invalid(format!(
            "a shape of {shape:?} for an input of {:?}",
            input.sizes()
        ));
    }
    Ok(rows_of(input.sizes(), shape.len()))
}

fn rms_forward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    all_dense(device, call)?;
    let (Some(at_input), at_weight, at_epsilon) = (call.place(0), call.place(2), call.number(3))
    else {
        return invalid("the input is missing");
    };
    let (input, out, rstds) = (call.input(at_input)?, call.output(0)?, call.output(1)?);
    let (rows, length) = rms_rows(call, input, 1)?;
    let weight = at_weight.map(|at| call.input(at)).transpose()?;
    if out.sizes() != input.sizes()
        || rstds.numel() != rows
        || weight.is_some_and(|weight| weight.numel() != length)
    {
        return invalid("operands of other sizes than rows of the input have");
    }
    let kernel = forward(device, true, input, [weight, None], [out, rstds])?;
    let (sums, launched) = (device.sums(), groups(rows, 1)?);
    let machine = if input.dtype() == DType::F64 {
        f64::EPSILON
    } else {
        f64::from(f32::EPSILON)
    };
    Ok(Prepared::new(move |launch| {
        let epsilon = match at_epsilon {
            Some(at) => launch.scalar(at, machine),
            None => Scalar::F64(machine),
        };
        let (a, to, rstds) = (
            launch.inputs[at_input],
            launch.outputs[0],
            launch.outputs[1],
        );
        let weight = at_weight.map_or(to, |at| launch.inputs[at]);
        let addresses = [a, weight, to, to, rstds, rstds];
        let words = [rows as u64, length as u64, 1, 0, sums.word(epsilon)];
        launch.run(&kernel, launched, &addresses, &words)
    }))
}

fn rms_backward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    all_dense(device, call)?;
    let places = [call.place(0), call.place(1), call.place(3)];
    let [Some(at_grad), Some(at_input), Some(at_rstd)] = places else {
        return invalid("gradient, input or statistic is missing");
    };
    let at_weight = call.place(4);
    let (grad, input, rstds) = (
        call.input(at_grad)?,
        call.input(at_input)?,
        call.input(at_rstd)?,
    );
    let weight = at_weight.map(|at| call.input(at)).transpose()?;
    let (rows, length) = rms_rows(call, input, 2)?;
    if grad.sizes() != input.sizes() || rstds.numel() != rows || input.numel() == 0 {
        return unsupported("operands of other sizes than rows of the input have");
    }
    let outputs = [call.maybe_output(0), call.maybe_output(1), None];
    for (output, right) in outputs.iter().zip([input.numel(), length]) {
        if output.is_some_and(|output| output.numel() != right) {
            return invalid("a gradient of other sizes than what it is of");
        }
    }
    let backward = Backward::new(
        device,
        true,
        (rows, length),
        [grad, input, rstds],
        weight,
        outputs,
    )?;
    Ok(Prepared::with_workspace(
        backward.workspace_bytes(device),
        move |launch| {
            let places = Places {
                grad: launch.inputs[at_grad],
                input: launch.inputs[at_input],
                means: 0,
                rstds: launch.inputs[at_rstd],
                weight: at_weight.map_or(0, |at| launch.inputs[at]),
                outputs: [launch.outputs[0], launch.outputs[1], 0],
            };
            backward.run(launch, places)
        },
    ))
}
