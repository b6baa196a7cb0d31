//! Convolutions and their gradients, as products of matrices of which the second is gathered.
//!
//! The *narrow* side is the output, or the input of a transposed convolution, the *wide* side the other one. A place of
//! the wide side is `narrow * stride - padding + kernel * dilation`. Each of narrow side, wide side and weight is a sum
//! of products of the other two, so that three plans serve forward and backward of both kinds.

use std::ffi::CStr;

use outrigger_device::DType;
use outrigger_ops::{Call, Scalar, Tensor};

use super::product::{DType2, Gather, Multiply, Operands, Product};
use super::reduce::{self, Folding};
use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::Device;
use crate::work::Prepared;

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    [c"convolution", c"convolution_backward"].into_iter()
}

/// An operand: its first two dimensions, and three spatial ones, of which those in front have size 1.
#[derive(Clone, Copy)]
struct Side {
    sizes: [i64; 5],
    strides: [i64; 5],
}

impl Side {
    fn new(tensor: &Tensor<'_>) -> Result<Self> {
        let rank = tensor.rank();
        if !(3..=5).contains(&rank) {
            return unsupported(
                "convolutions have a batch, channels, and 1 to 3 spatial dimensions",
            );
        }
        let (mut sizes, mut strides) = ([1; 5], [0; 5]);
        for (at, (&size, &stride)) in tensor.sizes().iter().zip(tensor.strides()).enumerate() {
            let place = if at < 2 { at } else { at + 5 - rank };
            (sizes[place], strides[place]) = (size, stride);
        }
        Ok(Self { sizes, strides })
    }

    fn places(&self) -> [i64; 3] {
        [self.sizes[2], self.sizes[3], self.sizes[4]]
    }

    fn steps(&self) -> [i64; 3] {
        [self.strides[2], self.strides[3], self.strides[4]]
    }
}

struct Geometry {
    stride: [i64; 3],
    padding: [i64; 3],
    dilation: [i64; 3],
    transposed: bool,
    groups: i64,
    dtype: DType2,
}

impl Geometry {
    /// Of the arguments from `first` on, for a weight of a rank.
    fn new(call: &Call<'_>, first: usize, rank: usize, dtype: DType2) -> Result<Self> {
        let spatial = rank - 2;
        let list = |at: usize, least: i64, other: i64| {
            let given = call.integers(first + at)?;
            let mut three = [other; 3];
            match given.len() {
                1 => three[3 - spatial..].fill(given[0]),
                count if count == spatial => three[3 - spatial..].copy_from_slice(given),
                _ => return invalid(format!("{given:?}: 1 or {spatial} numbers are expected")),
            }
            if three.iter().any(|one| !(least..1 << 20).contains(one)) {
                return unsupported(format!(
                    "{given:?}: numbers from {least} to 2^20 are served"
                ));
            }
            Ok(three)
        };
        let geometry = Self {
            stride: list(0, 1, 1)?,
            padding: list(1, 0, 0)?,
            dilation: list(2, 1, 1)?,
            transposed: call.truth(first + 3)?,
            groups: call.integer(first + 5)?,
            dtype,
        };
        if geometry.groups < 1 {
            return invalid(format!("{} groups", geometry.groups));
        }
        Ok(geometry)
    }

    /// Checks that the three sides go together.
    fn check(&self, narrow: &Side, wide: &Side, weight: &Side) -> Result<()> {
        let fits = |at: usize| {
            let reach = (narrow.places()[at] - 1) * self.stride[at] - self.padding[at];
            // Elements outside of the wide side count as 0, so only sizes of the narrow one are bound.
            reach < wide.places()[at] + self.padding[at] + weight.places()[at] * self.dilation[at]
        };
        let channels = weight.sizes[0] == narrow.sizes[1]
            && weight.sizes[1] * self.groups == wide.sizes[1]
            && weight.sizes[0] % self.groups == 0
            && narrow.sizes[0] == wide.sizes[0];
        if !channels || !(0..3).all(fits) {
            return invalid("the sizes of input, weight and output do not go together");
        }
        Ok(())
    }

    fn negative(&self, list: [i64; 3]) -> [i64; 3] {
        list.map(|one| -one)
    }

    /// The narrow side, with a bias.
    fn narrow(&self, [narrow, wide, weight]: [&Side; 3], bias: Option<i64>) -> Product {
        let (rows, depth) = (weight.sizes[0] / self.groups, weight.sizes[1]);
        let [n, k] =
            [narrow.places(), weight.places()].map(|places| places.iter().product::<i64>());
        Product {
            dtype: self.dtype,
            sizes: [rows, n, k * depth],
            batches: [narrow.sizes[0], self.groups],
            a: [weight.strides[0], 0],
            c: [narrow.strides[1], 0],
            a_batch: [0, rows * weight.strides[0]],
            b_batch: [wide.strides[0], depth * wide.strides[1]],
            c_batch: [narrow.strides[0], rows * narrow.strides[1]],
            bias: bias.map(|step| ([step, 0], [0, rows * step])),
            gather: Some(Gather {
                n_sizes: narrow.places(),
                k_sizes: weight.places(),
                n_factor: self.stride,
                k_factor: self.dilation,
                shift: self.negative(self.padding),
                divisor: [1; 3],
                limit: wide.places(),
                place: wide.steps(),
                k_first: wide.strides[1],
                a_k: [
                    weight.strides[1],
                    weight.strides[2],
                    weight.strides[3],
                    weight.strides[4],
                ],
                c_n: [0, narrow.strides[2], narrow.strides[3], narrow.strides[4]],
                ..Gather::default()
            }),
            ..Product::default()
        }
    }

    /// The wide side, with a bias.
    fn wide(
        &self,
        device: &Device,
        [narrow, wide, weight]: [&Side; 3],
        bias: Option<i64>,
    ) -> Result<Multiply> {
        let (rows, depth) = (weight.sizes[1], weight.sizes[0] / self.groups);
        let [n, k] = [wide.places(), weight.places()].map(|places| places.iter().product::<i64>());
        Product {
            dtype: self.dtype,
            sizes: [rows, n, k * depth],
            batches: [wide.sizes[0], self.groups],
            a: [weight.strides[1], 0],
            c: [wide.strides[1], 0],
            a_batch: [0, depth * weight.strides[0]],
            b_batch: [narrow.strides[0], depth * narrow.strides[1]],
            c_batch: [wide.strides[0], rows * wide.strides[1]],
            bias: bias.map(|step| ([step, 0], [0, rows * step])),
            gather: Some(Gather {
                divides: self.stride != [1; 3],
                n_sizes: wide.places(),
                k_sizes: weight.places(),
                n_factor: [1; 3],
                k_factor: self.negative(self.dilation),
                shift: self.padding,
                divisor: self.stride,
                limit: narrow.places(),
                place: narrow.steps(),
                k_first: narrow.strides[1],
                a_k: [
                    weight.strides[0],
                    weight.strides[2],
                    weight.strides[3],
                    weight.strides[4],
                ],
                c_n: [0, wide.strides[2], wide.strides[3], wide.strides[4]],
                ..Gather::default()
            }),
            ..Product::default()
        }
        .plan(device)
    }

    /// The weight.
    fn weight(&self, device: &Device, [narrow, wide, weight]: [&Side; 3]) -> Result<Multiply> {
        let (rows, depth) = (weight.sizes[0] / self.groups, weight.sizes[1]);
        let [n, k] =
            [weight.places(), narrow.places()].map(|places| places.iter().product::<i64>());
        Product {
            dtype: self.dtype,
            sizes: [rows, n * depth, k * narrow.sizes[0]],
            batches: [1, self.groups],
            a: [narrow.strides[1], 0],
            c: [weight.strides[0], 0],
            a_batch: [0, rows * narrow.strides[1]],
            b_batch: [0, depth * wide.strides[1]],
            c_batch: [0, rows * weight.strides[0]],
            gather: Some(Gather {
                n_sizes: weight.places(),
                k_sizes: narrow.places(),
                n_factor: self.dilation,
                k_factor: self.stride,
                shift: self.negative(self.padding),
                divisor: [1; 3],
                limit: wide.places(),
                place: wide.steps(),
                n_first: wide.strides[1],
                k_first: wide.strides[0],
                a_k: [
                    narrow.strides[0],
                    narrow.strides[2],
                    narrow.strides[3],
                    narrow.strides[4],
                ],
                c_n: [
                    weight.strides[1],
                    weight.strides[2],
                    weight.strides[3],
                    weight.strides[4],
                ],
                ..Gather::default()
            }),
            ..Product::default()
        }
        .plan(device)
    }
}

/// A convolution over dense operands with a step of one, whose output has the size of its input.
pub(crate) fn same(dtype: DType, input: &[i64], weight: &[i64]) -> Result<Product> {
    let dense = |sizes: &[i64]| {
        let mut strides = vec![1; sizes.len()];
        for at in (1..sizes.len()).rev() {
            strides[at - 1] = strides[at] * sizes[at];
        }
        Side::new(&Tensor::new(0, dtype, sizes, &strides))
    };
    let mut sizes = input.to_vec();
    let (Some(channels), Some(count)) = (sizes.get_mut(1), weight.first()) else {
        return invalid("an input and a weight have channels");
    };
    *channels = *count;
    let (narrow, wide, weight) = (dense(&sizes)?, dense(input)?, dense(weight)?);
    let geometry = Geometry {
        stride: [1; 3],
        padding: weight.places().map(|size| (size - 1) / 2),
        dilation: [1; 3],
        transposed: false,
        groups: 1,
        dtype: DType2(dtype, dtype),
    };
    geometry.check(&narrow, &wide, &weight)?;
    Ok(geometry.narrow([&narrow, &wide, &weight], None))
}

fn place(call: &Call<'_>, at: usize) -> Result<usize> {
    match call.place(at) {
        Some(place) => Ok(place),
        None => invalid(format!("argument {at} is no tensor")),
    }
}

/// The element type that all operands have.
fn common(device: &Device, tensors: &[&Tensor<'_>]) -> Result<DType2> {
    let dtype = tensors[0].dtype();
    if tensors.iter().any(|one| one.dtype() != dtype) {
        return unsupported("operands of several element types");
    }
    if !device.class(dtype)?.is_float() {
        return unsupported("convolutions of integers");
    }
    Ok(DType2(dtype, dtype))
}

/// Makes a convolution or its gradients.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    if name == c"convolution_backward" {
        return make_backward(device, call);
    }
    let (at_input, at_weight, at_bias) = (place(call, 0)?, place(call, 1)?, call.place(2));
    let (input, weight, out) = (
        call.input(at_input)?,
        call.input(at_weight)?,
        call.output(0)?,
    );
    let bias = at_bias.map(|at| call.input(at)).transpose()?;
    let mut all = vec![input, weight, out];
    all.extend(bias);
    let dtype = common(device, &all)?;
    let geometry = Geometry::new(call, 3, weight.rank(), dtype)?;
    let sides = [Side::new(input)?, Side::new(weight)?, Side::new(out)?];
    let [side, kernel, result] = &sides;
    if bias.is_some_and(|bias| bias.sizes() != [result.sizes[1]]) {
        return invalid("the bias has an element for each channel of the output");
    }
    let step = bias.map(|bias| bias.strides()[0]);
    let multiply = if geometry.transposed {
        geometry.check(side, result, kernel)?;
        geometry.wide(device, [side, result, kernel], step)?
    } else {
        geometry.check(result, side, kernel)?;
        geometry.narrow([result, side, kernel], step).plan(device)?
    };
    Ok(Prepared::new(move |launch| {
        let one = Scalar::I64(1);
        let operands = Operands {
            a: launch.inputs[at_weight],
            b: launch.inputs[at_input],
            bias: at_bias.map_or(0, |at| launch.inputs[at]),
            residual: 0,
            out: launch.outputs[0],
        };
        multiply.run(launch, operands, one, one)
    }))
}

fn make_backward(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let places = [place(call, 0)?, place(call, 1)?, place(call, 2)?];
    let [grad, input, weight] = [
        call.input(places[0])?,
        call.input(places[1])?,
        call.input(places[2])?,
    ];
    let mask = call.integers(9)?;
    let wanted = |at: usize| {
        let output = call.maybe_output(at);
        output.filter(|_| mask.get(at).is_some_and(|wanted| *wanted != 0))
    };
    let mut all = vec![grad, input, weight];
    all.extend((0..3).filter_map(wanted));
    let dtype = common(device, &all)?;
    let geometry = Geometry::new(call, 3, weight.rank(), dtype)?;
    let (of_out, of_in, kernel) = (Side::new(grad)?, Side::new(input)?, Side::new(weight)?);
    let (narrow, wide) = match geometry.transposed {
        true => (&of_in, &of_out),
        false => (&of_out, &of_in),
    };
    geometry.check(narrow, wide, &kernel)?;
    let mut by_input = None;
    if let Some(output) = wanted(0) {
        if output.sizes() != input.sizes() {
            return invalid("the gradient of the input has its sizes");
        }
        let result = Side::new(output)?;
        by_input = Some(match geometry.transposed {
            true => geometry
                .narrow([&result, wide, &kernel], None)
                .plan(device)?,
            false => geometry.wide(device, [narrow, &result, &kernel], None)?,
        });
    }
    let mut by_weight = None;
    if let Some(output) = wanted(1) {
        if output.sizes() != weight.sizes() {
            return invalid("the gradient of the weight has its sizes");
        }
        by_weight = Some(geometry.weight(device, [narrow, wide, &Side::new(output)?])?);
    }
    let by_bias: Option<Folding> = match wanted(2) {
        None => None,
        Some(output) => {
            if output.sizes() != [of_out.sizes[1]] {
                return invalid("the gradient of the bias has an element for each channel");
            }
            let mut sizes = vec![1; grad.rank()];
            let mut strides = vec![0; grad.rank()];
            (sizes[1], strides[1]) = (output.sizes()[0], output.strides()[0]);
            let kept = Tensor::new(output.address(), output.dtype(), &sizes, &strides);
            reduce::sum(device, grad, &kept)?
        }
    };
    let bytes = by_bias
        .as_ref()
        .map_or(0, |folding| folding.workspace_bytes);
    let transposed = geometry.transposed;
    Ok(Prepared::with_workspace(bytes, move |launch| {
        let one = Scalar::I64(1);
        let [grad, input, weight] = places.map(|at| launch.inputs[at]);
        let run = |multiply: &Multiply, launch: &mut _, [a, b, out]: [u64; 3]| {
            let operands = Operands {
                a,
                b,
                out,
                ..Operands::default()
            };
            multiply.run(launch, operands, one, one)
        };
        if let Some(multiply) = &by_input {
            let to = launch.outputs[0];
            run(multiply, launch, [weight, grad, to])?;
        }
        if let Some(multiply) = &by_weight {
            let to = launch.outputs[1];
            let (narrow, wide) = if transposed {
                (input, grad)
            } else {
                (grad, input)
            };
            run(multiply, launch, [narrow, wide, to])?;
        }
        if let Some(folding) = &by_bias {
            let (to, workspace) = (launch.outputs[2], launch.workspace);
            folding.run(launch, grad, to, workspace, Scalar::I64(0))?;
        }
        Ok(())
    }))
}
