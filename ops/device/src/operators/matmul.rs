//! Products of matrices and vectors, and linear layers.

use std::ffi::CStr;

use outrigger_ops::{Call, Scalar, Tensor};

use super::product::{DType2, Operands, Product};
use crate::call::{Asked, Result, invalid, unsupported};
use crate::device::Device;
use crate::work::Prepared;

const NAMES: [&CStr; 8] = [
    c"mm", c"addmm", c"bmm", c"baddbmm", c"mv", c"addmv", c"dot", c"linear",
];

/// The names of this file.
pub(crate) fn names() -> impl Iterator<Item = &'static CStr> {
    NAMES.into_iter()
}

/// Three dimensions of an operand: batch, rows, columns; and their strides.
#[derive(Clone, Copy)]
struct Matrices {
    sizes: [i64; 3],
    strides: [i64; 3],
}

impl Matrices {
    /// An operand of the rank that its operator has. A vector is a column, or a row if `is_row`.
    fn of(tensor: &Tensor<'_>, is_row: bool) -> Self {
        let (sizes, strides) = (tensor.sizes(), tensor.strides());
        match (sizes, strides) {
            (&[b, m, n], &[sb, sm, sn]) => Self {
                sizes: [b, m, n],
                strides: [sb, sm, sn],
            },
            (&[m, n], &[sm, sn]) => Self {
                sizes: [1, m, n],
                strides: [0, sm, sn],
            },
            (&[n], &[s]) if is_row => Self {
                sizes: [1, 1, n],
                strides: [0, 0, s],
            },
            (&[m], &[s]) => Self {
                sizes: [1, m, 1],
                strides: [0, s, 0],
            },
            _ => Self {
                sizes: [1; 3],
                strides: [0; 3],
            },
        }
    }
}

/// The strides of a bias that is broadcast to a result: batch, row, column.
fn broadcast(bias: &Tensor<'_>, out: &Tensor<'_>) -> Result<[i64; 3]> {
    let (rank, sizes) = (out.rank(), out.sizes());
    let Some(lead) = rank.checked_sub(bias.rank()) else {
        return invalid("the bias has more dimensions than the result");
    };
    let mut strides = vec![0; rank];
    for (at, (&size, &stride)) in bias.sizes().iter().zip(bias.strides()).enumerate() {
        if size != 1 && size != sizes[lead + at] {
            return invalid(format!(
                "a bias of sizes {:?} is not broadcast to {sizes:?}",
                bias.sizes()
            ));
        }
        strides[lead + at] = if size == 1 { 0 } else { stride };
    }
    Ok(match strides[..] {
        [batch, row, column] => [batch, row, column],
        [row, column] => [0, row, column],
        [row] => [0, row, 0],
        _ => [0; 3],
    })
}

/// Makes a product.
pub(crate) fn make(device: &Device, name: &CStr, call: &Call<'_>) -> Result<Prepared> {
    if name == c"linear" {
        return make_linear(device, call);
    }
    let has_bias = matches!(name.to_bytes(), b"addmm" | b"baddbmm" | b"addmv");
    let first = usize::from(has_bias);
    if call.inputs.len() != first + 2 || call.outputs.len() != 1 {
        return invalid(format!(
            "{} inputs and {} outputs",
            call.inputs.len(),
            call.outputs.len()
        ));
    }
    let (left, right, out) = (call.input(first)?, call.input(first + 1)?, call.output(0)?);
    let ranks = match name.to_bytes() {
        b"bmm" | b"baddbmm" => [3, 3, 3],
        b"mv" | b"addmv" => [2, 1, 1],
        b"dot" => [1, 1, 0],
        _ => [2, 2, 2],
    };
    if [left.rank(), right.rank(), out.rank()] != ranks {
        return invalid("operands of another rank than the operator has");
    }
    let dtype = out.dtype();
    let bias = if has_bias { Some(call.input(0)?) } else { None };
    if [Some(left), Some(right), bias]
        .into_iter()
        .flatten()
        .any(|one| one.dtype() != dtype)
    {
        return unsupported("operands of several element types");
    }
    if dtype == outrigger_device::DType::BOOL {
        return unsupported("products of truths");
    }
    let (a, b) = (
        Matrices::of(left, name == c"dot"),
        Matrices::of(right, false),
    );
    let c = Matrices::of(out, false);
    if a.sizes[0] != b.sizes[0]
        || a.sizes[0] != c.sizes[0]
        || a.sizes[2] != b.sizes[1]
        || [a.sizes[1], b.sizes[2]] != [c.sizes[1], c.sizes[2]]
    {
        return invalid(format!(
            "sizes {:?}, {:?} and {:?}",
            left.sizes(),
            right.sizes(),
            out.sizes()
        ));
    }
    let bias = match bias {
        Some(bias) => {
            let [batch, row, column] = broadcast(bias, out)?;
            Some(([row, column], [batch, 0]))
        }
        None => None,
    };
    let product = Product {
        dtype: DType2(dtype, dtype),
        sizes: [a.sizes[1], b.sizes[2], a.sizes[2]],
        batches: [a.sizes[0], 1],
        a: [a.strides[1], a.strides[2]],
        b: [b.strides[1], b.strides[2]],
        c: [c.strides[1], c.strides[2]],
        a_batch: [a.strides[0], 0],
        b_batch: [b.strides[0], 0],
        c_batch: [c.strides[0], 0],
        bias,
        ..Product::default()
    };
    let multiply = product.plan(device)?;
    Ok(Prepared::new(move |launch| {
        let one = Scalar::I64(1);
        let (alpha, beta) = match has_bias {
            true => (launch.scalar(1, 1.0), launch.scalar(0, 1.0)),
            false => (one, one),
        };
        let operands = Operands {
            a: launch.inputs[first],
            b: launch.inputs[first + 1],
            bias: if has_bias { launch.inputs[0] } else { 0 },
            residual: 0,
            out: launch.outputs[0],
        };
        multiply.run(launch, operands, alpha, beta)
    }))
}

/// The rows of an operand whose leading dimensions are walked as one: how many, and their stride.
fn rows(tensor: &Tensor<'_>) -> Result<(i64, i64)> {
    let Some((_, lead)) = tensor.sizes().split_last() else {
        return invalid("an operand without dimensions");
    };
    let (mut count, mut step) = (1, None);
    for (&size, &stride) in lead.iter().zip(tensor.strides()).rev() {
        match step {
            _ if size == 1 => {}
            None => step = Some(stride),
            Some(first) if stride == first * count => {}
            Some(_) => return unsupported("rows that are not evenly spaced"),
        }
        count *= size;
    }
    Ok((count, step.unwrap_or(0)))
}

/// `input` times the transposed weight, with bias, activation and residual.
fn make_linear(device: &Device, call: &Call<'_>) -> Result<Prepared> {
    let place = |at: usize, what: &str| match call.place(at) {
        Some(place) => Ok(place),
        None => invalid(format!("the {what} is missing")),
    };
    let (at_input, at_weight) = (place(0, "input")?, place(1, "weight")?);
    let (at_bias, at_residual) = (call.place(2), call.place(3));
    let (input, weight) = (call.input(at_input)?, call.input(at_weight)?);
    let (bias, residual) = (
        at_bias.map(|at| call.input(at)).transpose()?,
        at_residual.map(|at| call.input(at)).transpose()?,
    );
    let out = call.output(0)?;
    let dtype = out.dtype();
    let all = [Some(input), Some(weight), bias, residual];
    if all.into_iter().flatten().any(|one| one.dtype() != dtype) {
        return unsupported("operands of several element types");
    }
    if !device.class(dtype)?.is_float() {
        return unsupported("a linear layer of integers");
    }
    let (&[n, depth], Some((k, lead))) = (weight.sizes(), input.sizes().split_last()) else {
        return invalid("an input of rows and a weight [n, k] are expected");
    };
    let right = [lead, &[n]].concat();
    if *k != depth
        || out.sizes() != right
        || bias.is_some_and(|bias| bias.sizes() != [n])
        || residual.is_some_and(|residual| residual.sizes() != right)
    {
        return invalid("sizes do not go together");
    }
    let last = |tensor: &Tensor<'_>| tensor.strides().last().copied().unwrap_or(1);
    let ((m, a_row), (_, c_row)) = (rows(input)?, rows(out)?);
    let product = Product {
        dtype: DType2(dtype, dtype),
        sizes: [m, n, depth],
        batches: [1, 1],
        a: [a_row, last(input)],
        b: [weight.strides()[1], weight.strides()[0]],
        c: [c_row, last(out)],
        bias: bias.map(|bias| ([0, bias.strides()[0]], [0, 0])),
        residual: match residual {
            Some(residual) => Some([rows(residual)?.1, last(residual)]),
            None => None,
        },
        activation: match call.integer(4)? {
            0 => "",
            1 => "((x) < 0 ? (T)0 : (x))",
            2 => "otr_gelu(x, 0)",
            3 => "otr_gelu(x, 1)",
            4 => "((x) * (1 / (1 + F(exp)(-(x)))))",
            other => return invalid(format!("activation {other}: 0 to 4 is expected")),
        },
        ..Product::default()
    };
    let multiply = product.plan(device)?;
    Ok(Prepared::new(move |launch| {
        let one = Scalar::I64(1);
        let of = |at: Option<usize>| at.map_or(0, |at| launch.inputs[at]);
        let operands = Operands {
            a: launch.inputs[at_input],
            b: launch.inputs[at_weight],
            bias: of(at_bias),
            residual: of(at_residual),
            out: launch.outputs[0],
        };
        multiply.run(launch, operands, one, one)
    }))
}
