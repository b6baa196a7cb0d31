//! The rules, from the plain ones to those that are made of others.

use super::norms::{batch_norm, group_norm, layer_norm, rms_norm, statistics};
use super::{Made, Maker, Operand, Rule, Stop, wide};
use crate::call::{Call, Scalar};
use crate::copy::pattern;
use crate::plain::dimension;
use crate::registry::OperatorId;
use outrigger_device::DType;

macro_rules! operators {
    ($($constant:ident $name:literal)*) => {
        $(pub(super) const $constant: OperatorId = OperatorId::named($name);)*
    };
}

operators! {
    ADD c"add" SUB c"sub" MUL c"mul" DIV c"div" SQUARE c"square" RSQRT c"rsqrt" SQRT c"sqrt" EXP c"exp" LOG c"log" ERF c"erf"
    TANH c"tanh" SIGMOID c"sigmoid" SILU c"silu" GELU c"gelu" RELU c"relu" CLAMP_MIN c"clamp_min" GT c"gt"
    LOGICAL_NOT c"logical_not" MASKED_FILL c"masked_fill" ADDCMUL c"addcmul" ADDCDIV c"addcdiv" LERP c"lerp"
    SQUARED_ERROR c"squared_error" COPY c"copy" FILL c"fill" CAT c"cat" ARANGE c"arange" SUM c"sum" MEAN c"mean" NORM c"norm"
    AMAX c"amax" MM c"mm" BMM c"bmm" MV c"mv" ADDMM c"addmm" BADDBMM c"baddbmm" ADDMV c"addmv" LINEAR c"linear"
    SOFTMAX c"softmax" LOG_SOFTMAX c"log_softmax" SOFTMAX_BACKWARD c"softmax_backward"
    LOG_SOFTMAX_BACKWARD c"log_softmax_backward" LAYER_NORM c"layer_norm" RMS_NORM c"rms_norm"
    GROUP_NORM c"native_group_norm" BATCH_NORM c"native_batch_norm" EMBEDDING c"embedding" INDEX_SELECT c"index_select"
    ATTENTION c"attention"
}

const fn rule(
    whole: OperatorId,
    parts: &'static [OperatorId],
    make: fn(&Call<'_>, &mut Maker<'_>) -> Made,
) -> Rule {
    Rule { whole, parts, make }
}

/// All rules, one for an operator.
pub(super) const RULES: &[Rule] = &[
    // The queue's own commands.
    rule(FILL, &[], fill),
    rule(COPY, &[], copy),
    rule(CAT, &[], cat),
    // Elementwise.
    rule(SQUARE, &[MUL], square),
    rule(RELU, &[CLAMP_MIN], relu),
    rule(SILU, &[SIGMOID, MUL], silu),
    rule(GELU, &[MUL, ADD], gelu),
    rule(ADDCMUL, &[MUL, ADD], |call, maker| addc(MUL, call, maker)),
    rule(ADDCDIV, &[DIV, ADD], |call, maker| addc(DIV, call, maker)),
    rule(LERP, &[SUB, ADD], lerp),
    rule(SQUARED_ERROR, &[SUB, SQUARE], squared_error),
    // Reductions.
    rule(MEAN, &[SUM, MUL], mean),
    rule(NORM, &[SQUARE, SUM, SQRT], norm),
    // Products of matrices.
    rule(MM, &[BMM], mm),
    rule(MV, &[MM], mv),
    rule(ADDMM, &[MM, ADD], |call, maker| {
        add_product(MM, call, maker)
    }),
    rule(BADDBMM, &[BMM, ADD], |call, maker| {
        add_product(BMM, call, maker)
    }),
    rule(ADDMV, &[MV, ADD], |call, maker| {
        add_product(MV, call, maker)
    }),
    rule(LINEAR, &[MM], linear),
    // Rows.
    rule(SOFTMAX, &[AMAX, SUB, EXP, SUM, DIV], softmax),
    rule(LOG_SOFTMAX, &[AMAX, SUB, EXP, SUM, LOG], log_softmax),
    rule(SOFTMAX_BACKWARD, &[MUL, SUM, SUB], softmax_backward),
    rule(
        LOG_SOFTMAX_BACKWARD,
        &[SUM, EXP, MUL, SUB],
        log_softmax_backward,
    ),
    // Norms.
    rule(
        LAYER_NORM,
        &[MEAN, SUB, SQUARE, ADD, RSQRT, MUL],
        layer_norm,
    ),
    rule(RMS_NORM, &[SQUARE, MEAN, ADD, RSQRT, MUL], rms_norm),
    rule(GROUP_NORM, &[LAYER_NORM], group_norm),
    rule(BATCH_NORM, &[SUB, ADD, RSQRT, MUL], batch_norm),
    // Others.
    rule(EMBEDDING, &[INDEX_SELECT], embedding),
    rule(
        ATTENTION,
        &[BMM, MUL, AMAX, CLAMP_MIN, SUB, EXP, SUM, LOG, ADD, DIV],
        attention,
    ),
];

pub(super) fn float(value: f64) -> Scalar {
    Scalar::F64(value)
}

/// The only operand of a list.
fn one(operands: &[crate::Tensor<'_>]) -> Result<Operand, Stop> {
    match operands {
        [tensor] => Operand::of(tensor),
        _ => Err(Stop::No),
    }
}

/// The operands of a list of this length.
fn all<const N: usize>(operands: &[crate::Tensor<'_>]) -> Result<[Operand; N], Stop> {
    let list: Vec<Operand> = operands.iter().map(Operand::of).collect::<Result<_, _>>()?;
    list.try_into().map_err(|_| Stop::No)
}

pub(super) fn scalar(call: &Call<'_>, at: usize, default: f64) -> f64 {
    call.scalars.get(at).map_or(default, |one| one.to_f64())
}

/// Whether the elements lie side by side, in whatever order of the dimensions.
fn is_dense(tensor: &Operand) -> bool {
    let dims = tensor.sizes.iter().zip(&tensor.strides);
    let mut dims: Vec<_> = dims.filter(|(size, _)| **size != 1).collect();
    dims.sort_by_key(|(_, stride)| **stride);
    let mut expected = 1;
    dims.into_iter().all(|(size, stride)| {
        let fits = *stride == expected;
        expected *= size;
        fits
    })
}

// ---- The queue's own commands ----------------------------------------------------------------------------------------

fn fill(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let (out, [value]) = (one(call.outputs)?, call.scalars) else {
        return Err(Stop::No);
    };
    let Some(size @ (1 | 2 | 4 | 8 | 16)) = out.dtype.size() else {
        return Err(Stop::No);
    };
    if out.numel() == 0 || !is_dense(&out) {
        return Err(Stop::No);
    }
    let Ok(pattern) = pattern(*value, out.dtype) else {
        return Err(Stop::No);
    };
    maker.fill_bytes(out.address, out.bytes(), &pattern[..size])
}

fn copy(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let (from, to) = (one(call.inputs)?, one(call.outputs)?);
    let same = from.dtype == to.dtype && from.sizes == to.sizes;
    let steps = to.sizes.iter().zip(from.strides.iter().zip(&to.strides));
    let mut steps = steps.filter(|(size, _)| **size != 1);
    if !same || to.numel() == 0 || !is_dense(&to) || !steps.all(|(_, (from, to))| from == to) {
        return Err(Stop::No);
    }
    maker.copy_bytes(to.address, from.address, to.bytes())
}

/// Parts that stand one behind the other in the output.
fn cat(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let out = one(call.outputs)?;
    let dim = call.scalars.first().map_or(0, |dim| dim.to_i64());
    let dim = dimension(dim, out.sizes.len()).map_err(|_| Stop::No)?;
    let is_whole =
        out.tensor().is_contiguous() && out.sizes.iter().take(dim).all(|&size| size == 1);
    let mut parts = Vec::with_capacity(call.inputs.len());
    for tensor in call.inputs {
        let part = Operand::of(tensor)?;
        if part.numel() == 0 {
            continue;
        }
        let mut sizes = part.sizes.iter().zip(&out.sizes).enumerate();
        let fits = part.sizes.len() == out.sizes.len()
            && sizes.all(|(at, (one, other))| at == dim || one == other);
        if !fits || part.dtype != out.dtype || !tensor.is_contiguous() {
            return Err(Stop::No);
        }
        parts.push(part);
    }
    let bytes: u64 = parts.iter().map(Operand::bytes).sum();
    if !is_whole || bytes == 0 || bytes != out.bytes() {
        return Err(Stop::No);
    }
    let mut to = out.address;
    for part in &parts {
        maker.copy_bytes(to, part.address, part.bytes())?;
        to += part.bytes();
    }
    Ok(())
}

// ---- Elementwise -----------------------------------------------------------------------------------------------------

fn square(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let (x, out) = (one(call.inputs)?, one(call.outputs)?);
    maker.call(MUL, &[&x, &x], &[&out], &[])
}

fn relu(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let (x, out) = (one(call.inputs)?, one(call.outputs)?);
    maker.call(CLAMP_MIN, &[&x], &[&out], &[Scalar::I64(0)])
}

/// The inputs and the output of an elementwise operator, all in the dtype that it is computed in.
fn elementwise<const N: usize>(
    call: &Call<'_>,
    maker: &mut Maker<'_>,
    make: impl FnOnce(&mut Maker<'_>, &[Operand; N], &Operand) -> Made,
) -> Made {
    let (inputs, out): ([Operand; N], _) = (all(call.inputs)?, one(call.outputs)?);
    if inputs.iter().any(|input| input.dtype != out.dtype) {
        return Err(Stop::No);
    }
    if wide(out.dtype) == out.dtype {
        return make(maker, &inputs, &out);
    }
    let mut widened = inputs;
    for input in &mut widened {
        *input = maker.widened(input)?;
    }
    let target = maker.target(&out)?;
    make(maker, &widened, &target)?;
    maker.finish(&target, &out)
}

fn silu(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    elementwise(call, maker, |maker, [x], out| {
        let gate = maker.scratch(out.dtype, &out.sizes)?;
        maker.call(SIGMOID, &[x], &[&gate], &[])?;
        maker.call(MUL, &[x, &gate], &[out], &[])
    })
}

fn gelu(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let tanh = scalar(call, 0, 0.0) != 0.0;
    elementwise(call, maker, |maker, [x], out| {
        let t = &maker.scratch(out.dtype, &out.sizes)?;
        if tanh {
            // x (1 + 0.044715 x^2), scaled
            maker.call(MUL, &[x, x], &[t], &[])?;
            maker.call(MUL, &[t], &[t], &[float(0.044_715)])?;
            maker.call(ADD, &[t], &[t], &[float(1.0)])?;
            maker.call(MUL, &[t, x], &[t], &[])?;
            let scale = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
            maker.call(MUL, &[t], &[t], &[float(scale)])?;
            maker.call(TANH, &[t], &[t], &[])?;
        } else {
            maker.call(MUL, &[x], &[t], &[float(std::f64::consts::FRAC_1_SQRT_2)])?;
            maker.call(ERF, &[t], &[t], &[])?;
        }
        maker.call(ADD, &[t], &[t], &[float(1.0)])?;
        maker.call(MUL, &[t], &[t], &[float(0.5)])?;
        maker.call(MUL, &[x, t], &[out], &[])
    })
}

/// a + value (b c), or a + value (b / c).
fn addc(join: OperatorId, call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let value = call.scalars.first().copied().unwrap_or(Scalar::I64(1));
    elementwise(call, maker, |maker, [a, b, c], out| {
        let t = maker.scratch(out.dtype, &out.sizes)?;
        maker.call(join, &[b, c], &[&t], &[])?;
        maker.call(ADD, &[a, &t], &[out], &[value])
    })
}

fn lerp(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let weight = *call.scalars.first().ok_or(Stop::No)?;
    elementwise(call, maker, |maker, [a, b], out| {
        let t = maker.scratch(out.dtype, &out.sizes)?;
        maker.call(SUB, &[b, a], &[&t], &[])?;
        maker.call(ADD, &[a, &t], &[out], &[weight])
    })
}

fn squared_error(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    elementwise(call, maker, |maker, [a, b], out| {
        let t = maker.scratch(out.dtype, &out.sizes)?;
        maker.call(SUB, &[a, b], &[&t], &[])?;
        maker.call(SQUARE, &[&t], &[out], &[])
    })
}

// ---- Reductions ------------------------------------------------------------------------------------------------------

fn mean(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    elementwise(call, maker, |maker, [x], out| {
        let count = x.numel() as f64 / out.numel().max(1) as f64;
        if count == 0.0 {
            return Err(Stop::No);
        }
        maker.call(SUM, &[x], &[out], &[])?;
        maker.call(MUL, &[out], &[out], &[float(1.0 / count)])
    })
}

/// The norm of order 2.
fn norm(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    if scalar(call, 0, 0.0) != 2.0 {
        return Err(Stop::No);
    }
    elementwise(call, maker, |maker, [x], out| {
        let t = maker.scratch(x.dtype, &x.sizes)?;
        maker.call(SQUARE, &[x], &[&t], &[])?;
        maker.call(SUM, &[&t], &[out], &[])?;
        maker.call(SQRT, &[out], &[out], &[])
    })
}

// ---- Products of matrices --------------------------------------------------------------------------------------------

/// The tensor with another dimension of size 1.
fn with_dim(tensor: &Operand, at: usize) -> Result<Operand, Stop> {
    let mut more = tensor.clone();
    more.sizes.try_insert(at, 1).map_err(|_| Stop::No)?;
    more.strides.try_insert(at, 1).map_err(|_| Stop::No)?;
    Ok(more)
}

fn mm(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let [a, b]: [Operand; 2] = all(call.inputs)?;
    let (a, b, out) = (
        with_dim(&a, 0)?,
        with_dim(&b, 0)?,
        with_dim(&one(call.outputs)?, 0)?,
    );
    maker.call(BMM, &[&a, &b], &[&out], &[])
}

fn mv(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let [a, x]: [Operand; 2] = all(call.inputs)?;
    let (x, out) = (with_dim(&x, 1)?, with_dim(&one(call.outputs)?, 1)?);
    maker.call(MM, &[&a, &x], &[&out], &[])
}

/// beta bias + alpha a b.
fn add_product(product: OperatorId, call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let (beta, alpha) = (scalar(call, 0, 1.0), scalar(call, 1, 1.0));
    elementwise(call, maker, |maker, [bias, a, b], out| {
        if beta == 0.0 {
            maker.call(product, &[a, b], &[out], &[])?;
            return match alpha {
                1.0 => Ok(()),
                _ => maker.call(MUL, &[out], &[out], &[float(alpha)]),
            };
        }
        let t = maker.scratch(out.dtype, &out.sizes)?;
        maker.call(product, &[a, b], &[&t], &[])?;
        if beta == 1.0 {
            return maker.call(ADD, &[bias, &t], &[out], &[float(alpha)]);
        }
        maker.call(MUL, &[bias], &[out], &[float(beta)])?;
        maker.call(ADD, &[out, &t], &[out], &[float(alpha)])
    })
}

/// The product, the bias, the activation and the residual.
fn linear(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let input = Operand::maybe(call.tensor(0))?.ok_or(Stop::No)?;
    let weight = Operand::maybe(call.tensor(1))?.ok_or(Stop::No)?;
    let (bias, residual) = (
        Operand::maybe(call.tensor(2))?,
        Operand::maybe(call.tensor(3))?,
    );
    let out = one(call.outputs)?;
    let ([n, k], Some(&last)) = (&weight.sizes[..], input.sizes.last()) else {
        return Err(Stop::No);
    };
    let rows = input.numel() / (*k).max(1);
    if last != *k || input.numel() == 0 || out.numel() != rows * n {
        return Err(Stop::No);
    }
    let others = [Some(&weight), bias.as_ref(), residual.as_ref(), Some(&out)];
    if others
        .into_iter()
        .flatten()
        .any(|one| one.dtype != input.dtype)
    {
        return Err(Stop::No);
    }
    let input = maker.contiguous(&input)?.viewed(&[rows, *k])?;
    let input = maker.widened(&input)?;
    let weight = maker.widened(&weight)?.transposed(0, 1);
    let y = maker.target(&out)?.viewed(&[rows, *n])?;
    match bias {
        Some(bias) => {
            let bias = with_dim(&maker.widened(&bias)?, 0)?;
            maker.call(ADDMM, &[&bias, &input, &weight], &[&y], &[])?;
        }
        None => maker.call(MM, &[&input, &weight], &[&y], &[])?,
    }
    match call.int(4).unwrap_or(0) {
        0 => {}
        1 => maker.call(RELU, &[&y], &[&y], &[])?,
        2 => maker.call(GELU, &[&y], &[&y], &[Scalar::I64(0)])?,
        3 => maker.call(GELU, &[&y], &[&y], &[Scalar::I64(1)])?,
        4 => maker.call(SILU, &[&y], &[&y], &[])?,
        _ => return Err(Stop::No),
    }
    if let Some(residual) = residual {
        let residual = maker.contiguous(&residual)?.viewed(&[rows, *n])?;
        let residual = maker.widened(&residual)?;
        maker.call(ADD, &[&y, &residual], &[&y], &[])?;
    }
    maker.finish(&y, &out)
}

// ---- Rows ------------------------------------------------------------------------------------------------------------

/// The dimension of an operator of rows, and the sizes with 1 in its place.
fn rows_of(call: &Call<'_>, x: &Operand) -> Result<Vec<i64>, Stop> {
    let dim = call.scalars.first().ok_or(Stop::No)?.to_i64();
    let dim = dimension(dim, x.sizes.len()).map_err(|_| Stop::No)?;
    let mut sizes = x.sizes.to_vec();
    if let Some(size) = sizes.get_mut(dim) {
        *size = 1;
    }
    Ok(sizes)
}

/// x less the largest of its row, and the sum of the exponentials of that in each row. `exponentials` is where these go.
fn row_sums(
    maker: &mut Maker<'_>,
    x: &Operand,
    rows: &[i64],
    t: &Operand,
    exponentials: &Operand,
) -> Result<Operand, Stop> {
    let row = maker.scratch(x.dtype, rows)?;
    maker.call(AMAX, &[x], &[&row], &[])?;
    maker.call(SUB, &[x, &row], &[t], &[])?;
    maker.call(EXP, &[t], &[exponentials], &[])?;
    maker.call(SUM, &[exponentials], &[&row], &[])?;
    Ok(row)
}

fn softmax(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    elementwise(call, maker, |maker, [x], out| {
        let rows = rows_of(call, x)?;
        let t = &maker.scratch(x.dtype, &x.sizes)?;
        let sums = row_sums(maker, x, &rows, t, t)?;
        maker.call(DIV, &[t, &sums], &[out], &[])
    })
}

fn log_softmax(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    elementwise(call, maker, |maker, [x], out| {
        let rows = rows_of(call, x)?;
        let t = maker.scratch(x.dtype, &x.sizes)?;
        let exponentials = maker.scratch(x.dtype, &x.sizes)?;
        let sums = row_sums(maker, x, &rows, &t, &exponentials)?;
        maker.call(LOG, &[&sums], &[&sums], &[])?;
        maker.call(SUB, &[&t, &sums], &[out], &[])
    })
}

fn softmax_backward(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    elementwise(call, maker, |maker, [grad, y], out| {
        let rows = rows_of(call, y)?;
        let t = &maker.scratch(y.dtype, &y.sizes)?;
        let row = maker.scratch(y.dtype, &rows)?;
        maker.call(MUL, &[grad, y], &[t], &[])?;
        maker.call(SUM, &[t], &[&row], &[])?;
        maker.call(SUB, &[grad, &row], &[t], &[])?;
        maker.call(MUL, &[t, y], &[out], &[])
    })
}

fn log_softmax_backward(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    elementwise(call, maker, |maker, [grad, y], out| {
        let rows = rows_of(call, y)?;
        let t = &maker.scratch(y.dtype, &y.sizes)?;
        let row = maker.scratch(y.dtype, &rows)?;
        maker.call(SUM, &[grad], &[&row], &[])?;
        maker.call(EXP, &[y], &[t], &[])?;
        maker.call(MUL, &[t, &row], &[t], &[])?;
        maker.call(SUB, &[grad, t], &[out], &[])
    })
}

// ---- Others ----------------------------------------------------------------------------------------------------------

fn embedding(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let ([weight, indices], out) = (all(call.inputs)?, one(call.outputs)?);
    let (count, Some(&width)) = (indices.numel(), weight.sizes.get(1)) else {
        return Err(Stop::No);
    };
    let (indices, out) = (indices.viewed(&[count])?, out.viewed(&[count, width])?);
    maker.call(
        INDEX_SELECT,
        &[&weight, &indices],
        &[&out],
        &[Scalar::I64(0)],
    )
}

/// The heads of a key or value, each as often as it serves a head of the query: [n h, s, d].
fn heads(maker: &mut Maker<'_>, tensor: &Operand, h: i64) -> Result<Operand, Stop> {
    let [n, g, s, d] = tensor.sizes[..] else {
        return Err(Stop::No);
    };
    if g <= 0 || h % g != 0 {
        return Err(Stop::No);
    }
    let dense = if h == g {
        maker.contiguous(tensor)?
    } else {
        let made = maker.scratch(tensor.dtype, &[n, g, h / g, s, d])?;
        maker.call(COPY, &[&with_dim(tensor, 2)?], &[&made], &[])?;
        made
    };
    let dense = dense.viewed(&[n * h, s, d])?;
    maker.widened(&dense)
}

fn attention(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let part = |at: usize| Operand::maybe(call.tensor(at));
    let (Some(query), Some(key), Some(value)) = (part(0)?, part(1)?, part(2)?) else {
        return Err(Stop::No);
    };
    let mask = part(3)?;
    let [out, logsumexp] = call.outputs else {
        return Err(Stop::No);
    };
    let out = Operand::of(out)?;
    let (&[n, h, l, _], &[_, _, s, e]) = (&query.sizes[..], &value.sizes[..]) else {
        return Err(Stop::No);
    };
    if query.numel() == 0
        || value.numel() == 0
        || call.number(6).is_some_and(|dropout| dropout != 0.0)
    {
        return Err(Stop::No);
    }
    let query = heads(maker, &query, h)?;
    let key = heads(maker, &key, h)?;
    let value = heads(maker, &value, h)?;
    let dtype = query.dtype;
    let scores = &maker.scratch(dtype, &[n * h, l, s])?;
    maker.call(BMM, &[&query, &key.transposed(1, 2)], &[scores], &[])?;
    maker.call(
        MUL,
        &[scores],
        &[scores],
        &[float(call.number(5).ok_or(Stop::No)?)],
    )?;
    let lowest = [float(f64::NEG_INFINITY)];
    if let Some(mask) = mask {
        let scores = scores.viewed(&[n, h, l, s])?;
        if mask.dtype == DType::BOOL {
            let hidden = maker.scratch(DType::BOOL, &mask.sizes)?;
            maker.call(LOGICAL_NOT, &[&mask], &[&hidden], &[])?;
            maker.call(MASKED_FILL, &[&scores, &hidden], &[&scores], &lowest)?;
        } else {
            let mask = maker.widened(&mask)?;
            maker.call(ADD, &[&scores, &mask], &[&scores], &[])?;
        }
    }
    if call.truth(4) {
        let (rows, columns) = (
            maker.scratch(DType::I64, &[l])?,
            maker.scratch(DType::I64, &[s])?,
        );
        let hidden = maker.scratch(DType::BOOL, &[l, s])?;
        for numbers in [&rows, &columns] {
            maker.call(ARANGE, &[], &[numbers], &[Scalar::I64(0), Scalar::I64(1)])?;
        }
        maker.call(
            GT,
            &[&columns.viewed(&[1, s])?, &rows.viewed(&[l, 1])?],
            &[&hidden],
            &[],
        )?;
        maker.call(
            MASKED_FILL,
            &[scores, &hidden.viewed(&[1, l, s])?],
            &[scores],
            &lowest,
        )?;
    }
    // A row that sees nothing has finite numbers in place of -infinity and 0, so that its weights are 0.
    let largest = &maker.scratch(dtype, &[n * h, l, 1])?;
    let sums = &maker.scratch(dtype, &[n * h, l, 1])?;
    let least = if dtype == DType::F64 {
        f64::MIN
    } else {
        f64::from(f32::MIN)
    };
    maker.call(AMAX, &[scores], &[largest], &[])?;
    maker.call(CLAMP_MIN, &[largest], &[largest], &[float(least)])?;
    maker.call(SUB, &[scores, largest], &[scores], &[])?;
    maker.call(EXP, &[scores], &[scores], &[])?;
    maker.call(SUM, &[scores], &[sums], &[])?;
    if let Some(logsumexp) = Operand::maybe(Some(logsumexp))?.filter(|one| one.numel() > 0) {
        let logsumexp = statistics(maker, Some(&logsumexp.tensor()), scores, &[n * h, l, 1])?;
        maker.call(LOG, &[sums], &[&logsumexp], &[])?;
        maker.call(ADD, &[&logsumexp, largest], &[&logsumexp], &[])?;
    }
    maker.call(CLAMP_MIN, &[sums], &[sums], &[float(1.0)])?;
    maker.call(DIV, &[scores, sums], &[scores], &[])?;
    let y = maker.target(&out)?;
    maker.call(BMM, &[scores, &value], &[&y.viewed(&[n * h, l, e])?], &[])?;
    maker.finish(&y, &out)
}
