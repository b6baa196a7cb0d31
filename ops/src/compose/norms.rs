//! Norms of statistics and elementwise operators.

use outrigger_device::DType;

use super::rules::{ADD, LAYER_NORM, MEAN, MUL, RSQRT, SQUARE, SUB, float, scalar};
use super::{Made, Maker, Operand, Stop};
use crate::call::{Call, Scalar, Tensor};

/// The place of statistics: an output that is there, or memory between the parts.
pub(super) fn statistics(
    maker: &mut Maker<'_>,
    given: Option<&Tensor<'_>>,
    like: &Operand,
    sizes: &[i64],
) -> Result<Operand, Stop> {
    let count: i64 = sizes.iter().product();
    match Operand::maybe(given)?.filter(|given| given.numel() == count) {
        Some(given) if given.dtype == like.dtype => given.viewed(sizes),
        Some(_) => Err(Stop::No),
        None => maker.scratch(like.dtype, sizes),
    }
}

/// y = y weight + bias, in the dtype of y, with weight and bias as they are seen from `sizes`.
fn affine(
    maker: &mut Maker<'_>,
    y: &Operand,
    weight: Option<Operand>,
    bias: Option<Operand>,
    sizes: &[i64],
) -> Made {
    for (part, operator) in [(weight, MUL), (bias, ADD)] {
        if let Some(part) = part {
            let part = maker.contiguous(&part)?;
            let part = maker.widened(&part)?.viewed(sizes)?;
            maker.call(operator, &[y, &part], &[y], &[])?;
        }
    }
    Ok(())
}

/// The variance of `centred` in place of `rstd`, and then 1 / sqrt(variance + eps).
fn reciprocal_deviation(
    maker: &mut Maker<'_>,
    centred: &Operand,
    t: &Operand,
    rstd: &Operand,
    eps: f64,
) -> Made {
    maker.call(SQUARE, &[centred], &[t], &[])?;
    maker.call(MEAN, &[t], &[rstd], &[])?;
    maker.call(ADD, &[rstd], &[rstd], &[float(eps)])?;
    maker.call(RSQRT, &[rstd], &[rstd], &[])
}

pub(super) fn layer_norm(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let ([input, weight, bias], [out, mean, rstd]) = (call.inputs, call.outputs) else {
        return Err(Stop::No);
    };
    let (x, out) = (Operand::of(input)?, Operand::of(out)?);
    let dims = call.scalars.first().ok_or(Stop::No)?.to_i64();
    let dims = usize::try_from(dims).map_err(|_| Stop::No)?;
    let first = x.sizes.len().checked_sub(dims).ok_or(Stop::No)?;
    let length: i64 = x.sizes[first..].iter().product();
    if x.numel() == 0 {
        return Err(Stop::No);
    }
    let rows = x.numel() / length;
    let x = maker.contiguous(&x)?.viewed(&[rows, length])?;
    let x = maker.widened(&x)?;
    let y = maker.target(&out)?.viewed(&[rows, length])?;
    let mean = statistics(maker, Some(mean), &x, &[rows, 1])?;
    let rstd = statistics(maker, Some(rstd), &x, &[rows, 1])?;
    let t = maker.scratch(x.dtype, &x.sizes)?;
    maker.call(MEAN, &[&x], &[&mean], &[])?;
    maker.call(SUB, &[&x, &mean], &[&y], &[])?;
    reciprocal_deviation(maker, &y, &t, &rstd, scalar(call, 1, 1e-5))?;
    maker.call(MUL, &[&y, &rstd], &[&y], &[])?;
    let (weight, bias) = (Operand::maybe(Some(weight))?, Operand::maybe(Some(bias))?);
    affine(maker, &y, weight, bias, &[1, length])?;
    maker.finish(&y, &out)
}

pub(super) fn rms_norm(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let x = Operand::maybe(call.tensor(0))?.ok_or(Stop::No)?;
    let weight = Operand::maybe(call.tensor(2))?;
    let out = Operand::maybe(call.outputs.first())?.ok_or(Stop::No)?;
    let length: i64 = call.ints(1).iter().product();
    if x.numel() == 0 || length <= 0 || x.numel() % length != 0 {
        return Err(Stop::No);
    }
    let eps = call.number(3).unwrap_or(match x.dtype {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    });
    let rows = x.numel() / length;
    let x = maker.contiguous(&x)?.viewed(&[rows, length])?;
    let x = maker.widened(&x)?;
    let y = maker.target(&out)?.viewed(&[rows, length])?;
    let rstd = statistics(maker, call.outputs.get(1), &x, &[rows, 1])?;
    reciprocal_deviation(maker, &x, &y, &rstd, eps)?;
    maker.call(MUL, &[&x, &rstd], &[&y], &[])?;
    affine(maker, &y, weight, None, &[1, length])?;
    maker.finish(&y, &out)
}

/// Layer norm of the groups, and weight and bias of the channels.
pub(super) fn group_norm(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let x = Operand::maybe(call.tensor(0))?.ok_or(Stop::No)?;
    let (weight, bias) = (
        Operand::maybe(call.tensor(1))?,
        Operand::maybe(call.tensor(2))?,
    );
    let number = |at| call.int(at).filter(|&number| number > 0).ok_or(Stop::No);
    let (n, c, elements, groups) = (number(3)?, number(4)?, number(5)?, number(6)?);
    let [out, mean, rstd] = call.outputs else {
        return Err(Stop::No);
    };
    let out = Operand::of(out)?;
    if x.numel() != n * c * elements || c % groups != 0 {
        return Err(Stop::No);
    }
    let (rows, length) = (n * groups, c / groups * elements);
    let x = maker.contiguous(&x)?.viewed(&[rows, length])?;
    let x = maker.widened(&x)?;
    let y = maker.target(&out)?;
    let mean = statistics(maker, Some(mean), &x, &[rows, 1])?;
    let rstd = statistics(maker, Some(rstd), &x, &[rows, 1])?;
    let none = Operand::absent();
    let scalars = [Scalar::I64(1), float(call.number(7).unwrap_or(1e-5))];
    let outputs = [&y.viewed(&[rows, length])?, &mean, &rstd];
    maker.call(LAYER_NORM, &[&x, &none, &none], &outputs, &scalars)?;
    affine(
        maker,
        &y.viewed(&[n, c, elements])?,
        weight,
        bias,
        &[1, c, 1],
    )?;
    maker.finish(&y, &out)
}

pub(super) fn batch_norm(call: &Call<'_>, maker: &mut Maker<'_>) -> Made {
    let part = |at: usize| Operand::maybe(call.tensor(at));
    let x = part(0)?.ok_or(Stop::No)?;
    let (weight, bias, running_mean, running_var) = (part(1)?, part(2)?, part(3)?, part(4)?);
    let (training, momentum, eps) = (
        call.truth(5),
        call.number(6).unwrap_or(0.1),
        call.number(7).unwrap_or(1e-5),
    );
    let [.., out, mean, rstd] = call.outputs else {
        return Err(Stop::No);
    };
    let &[n, c, ..] = &x.sizes[..] else {
        return Err(Stop::No);
    };
    let out = Operand::of(out)?;
    let elements = x.numel() / (n * c).max(1);
    let count = n * elements;
    if x.numel() == 0 || training && count < 2 {
        return Err(Stop::No);
    }
    let x = maker.contiguous(&x)?.viewed(&[n, c, elements])?;
    let x = maker.widened(&x)?;
    let y = &maker.target(&out)?.viewed(&[n, c, elements])?;
    if training {
        let mean = statistics(maker, Some(mean), &x, &[1, c, 1])?;
        let rstd = statistics(maker, Some(rstd), &x, &[1, c, 1])?;
        let t = maker.scratch(x.dtype, &x.sizes)?;
        maker.call(MEAN, &[&x], &[&mean], &[])?;
        maker.call(SUB, &[&x, &mean], &[y], &[])?;
        maker.call(SQUARE, &[y], &[&t], &[])?;
        maker.call(MEAN, &[&t], &[&rstd], &[])?;
        let unbiased = count as f64 / (count - 1) as f64;
        for (running, new, factor) in [(running_mean, &mean, 1.0), (running_var, &rstd, unbiased)] {
            if let Some(running) = running {
                if running.dtype != new.dtype {
                    return Err(Stop::No);
                }
                let new = new.viewed(&running.sizes)?;
                maker.call(MUL, &[&running], &[&running], &[float(1.0 - momentum)])?;
                maker.call(
                    ADD,
                    &[&running, &new],
                    &[&running],
                    &[float(momentum * factor)],
                )?;
            }
        }
        maker.call(ADD, &[&rstd], &[&rstd], &[float(eps)])?;
        maker.call(RSQRT, &[&rstd], &[&rstd], &[])?;
        maker.call(MUL, &[y, &rstd], &[y], &[])?;
    } else {
        let (Some(mean), Some(var)) = (running_mean, running_var) else {
            return Err(Stop::No);
        };
        let mean = maker.contiguous(&mean)?.viewed(&[1, c, 1])?;
        let var = maker.contiguous(&var)?.viewed(&[1, c, 1])?;
        let (mean, var) = (maker.widened(&mean)?, maker.widened(&var)?);
        let rstd = maker.scratch(x.dtype, &[1, c, 1])?;
        maker.call(ADD, &[&var], &[&rstd], &[float(eps)])?;
        maker.call(RSQRT, &[&rstd], &[&rstd], &[])?;
        maker.call(SUB, &[&x, &mean], &[y], &[])?;
        maker.call(MUL, &[y, &rstd], &[y], &[])?;
    }
    affine(maker, y, weight, bias, &[1, c, 1])?;
    maker.finish(y, &out)
}
