//! Tensors side by side.

use std::ffi::CStr;

use outrigger_device::Code;
use outrigger_ops::{Call, Scalar, Tensor};

use super::elementwise::{Pass, copy_pass};
use crate::call::{Asked, Result, invalid};
use crate::device::Device;
use crate::work::Prepared;

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"cat"].into_iter()
}

/// Whether the inputs stand side by side along a dimension.
fn fits(inputs: &[Tensor<'_>], out: &Tensor<'_>, dim: usize) -> bool {
    let alike = |input: &Tensor<'_>| {
        input.rank() == out.rank()
            && (0..out.rank()).all(|d| d == dim || input.sizes()[d] == out.sizes()[d])
    };
    inputs.iter().all(alike)
        && inputs.iter().map(|input| input.sizes()[dim]).sum::<i64>() == out.sizes()[dim]
}

/// A copy of each input. The dimension is a scalar, but the sizes tell it: where they leave a choice, one input is all of the
/// output, or there is nothing to copy.
pub(crate) fn make(device: &Device, _: &CStr, call: &Call<'_>) -> Result<Prepared> {
    let out = call.output(0)?;
    if call.outputs.len() != 1 || call.inputs.iter().any(|one| one.dtype() != out.dtype()) {
        return invalid("inputs and one output of the same element type are expected");
    }
    let right: Vec<usize> = (0..out.rank())
        .filter(|dim| fits(call.inputs, out, *dim))
        .collect();
    let Some(&dim) = right.first() else {
        return invalid("the inputs do not stand side by side in the output");
    };
    let size = out.dtype().size().unwrap_or(0) as i64;
    let (mut passes, mut first) = (Vec::<(usize, i64, Pass)>::new(), 0);
    for (at, input) in call.inputs.iter().enumerate() {
        let part = Tensor::new(out.address(), out.dtype(), input.sizes(), out.strides());
        let shift = first * out.strides()[dim] * size;
        first += input.sizes()[dim];
        if input.numel() > 0 {
            passes.push((at, shift, copy_pass(device, input, &part)?));
        }
    }
    Ok(Prepared::new(move |launch| {
        let asked = usize::try_from(launch.scalar(0, 0.0).to_i64());
        if !asked.is_ok_and(|asked| right.contains(&asked)) {
            return Err(Code::INVALID_ARGUMENT.0);
        }
        for (at, shift, pass) in &passes {
            let to = launch.outputs[0].wrapping_add_signed(*shift);
            pass.run(launch, &[launch.inputs[*at], to], [Scalar::I64(0); 4])?;
        }
        Ok(())
    }))
}
