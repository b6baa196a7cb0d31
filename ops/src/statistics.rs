//! Normalization by statistics: of batches, of groups of channels, and by the root mean square.
//!
//! All of them are one computation. They differ in the elements that share a statistic, and in the elements that share a
//! weight, and both follow from an element's number in row-major order.

use outrigger_device::{Code, DType};

use crate::call::{Call, Tensor};
use crate::error::{Result, invalid};
use crate::plain::{self, Plain, Run, View, floating, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"native_batch_norm",
        plan: plain::plan::<Batch>,
    },
    Definition {
        name: c"native_batch_norm_backward",
        plan: plain::plan::<BatchBackward>,
    },
    Definition {
        name: c"native_group_norm",
        plan: plain::plan::<Group>,
    },
    Definition {
        name: c"native_group_norm_backward",
        plan: plain::plan::<GroupBackward>,
    },
    Definition {
        name: c"rms_norm",
        plan: plain::plan::<Rms>,
    },
    Definition {
        name: c"rms_norm_backward",
        plan: plain::plan::<RmsBackward>,
    },
    Definition {
        name: c"rms_norm_rotary",
        plan: plain::plan::<Rotary>,
    },
];

/// Elements that share something: those whose number, divided by `inner`, is the same modulo `count`.
#[derive(Clone, Copy)]
struct Share {
    inner: i64,
    count: i64,
}

impl Share {
    fn of(self, number: i64) -> i64 {
        number / self.inner % self.count
    }

    fn zeros(self) -> Vec<f64> {
        vec![0.0; self.count as usize]
    }
}

/// The elements that share a statistic, and those that share a weight.
#[derive(Clone, Copy)]
struct Layout {
    statistic: Share,
    weight: Share,
    /// Whether the mean is subtracted.
    centered: bool,
}

/// Mean and reciprocal deviation of each statistic.
struct Statistics {
    mean: Vec<f64>,
    rstd: Vec<f64>,
}

impl Layout {
    /// Mean and variance of each statistic; without a mean the variance is the mean square.
    fn moments(&self, input: &View<'_>) -> (Vec<f64>, Vec<f64>) {
        let shares = self.statistic;
        let per = input.numel() as f64 / shares.count as f64;
        let (mut mean, mut variance) = (shares.zeros(), shares.zeros());
        if self.centered {
            for number in 0..input.numel() {
                mean[shares.of(number) as usize] += input.get(input.nth(number));
            }
            mean.iter_mut().for_each(|sum| *sum /= per);
        }
        for number in 0..input.numel() {
            let at = shares.of(number) as usize;
            variance[at] += (input.get(input.nth(number)) - mean[at]).powi(2);
        }
        variance.iter_mut().for_each(|sum| *sum /= per);
        (mean, variance)
    }

    /// Writes the normalized elements, times weight, plus bias.
    fn apply(
        &self,
        (input, out): (&View<'_>, &View<'_>),
        found: &Statistics,
        (weight, bias): (Option<View<'_>>, Option<View<'_>>),
    ) {
        for number in 0..input.numel() {
            let at = self.statistic.of(number) as usize;
            let mut value = (input.get(input.nth(number)) - found.mean[at]) * found.rstd[at];
            value *= shared(weight, self.weight.of(number), 1.0);
            value += shared(bias, self.weight.of(number), 0.0);
            out.set(out.nth(number), value);
        }
    }

    /// Writes the gradients that are wanted. Where the statistics do not come from the input, they have no gradient.
    fn backward(
        &self,
        run: &Run<'_>,
        (grad, input): (&View<'_>, &View<'_>),
        weight: Option<View<'_>>,
        found: &Statistics,
        from_input: bool,
    ) {
        let shares = self.statistic;
        let element = |number: i64| {
            let at = shares.of(number) as usize;
            let normal = (input.get(input.nth(number)) - found.mean[at]) * found.rstd[at];
            (at, grad.get(grad.nth(number)), normal)
        };
        let scaled = |number, grad: f64| grad * shared(weight, self.weight.of(number), 1.0);
        let (mut sums, mut products) = (shares.zeros(), shares.zeros());
        let (mut of_weight, mut of_bias) = (self.weight.zeros(), self.weight.zeros());
        for number in 0..input.numel() {
            let (at, grad, normal) = element(number);
            sums[at] += scaled(number, grad);
            products[at] += scaled(number, grad) * normal;
            of_weight[self.weight.of(number) as usize] += grad * normal;
            of_bias[self.weight.of(number) as usize] += grad;
        }
        if let Some(to) = run.wanted(0) {
            let per = input.numel() as f64 / shares.count as f64;
            for number in 0..input.numel() {
                let (at, grad, normal) = element(number);
                let mut value = scaled(number, grad);
                if from_input {
                    value -= normal * products[at] / per;
                }
                if from_input && self.centered {
                    value -= sums[at] / per;
                }
                to.set(to.nth(number), value * found.rstd[at]);
            }
        }
        for (output, sums) in [(1, of_weight), (2, of_bias)] {
            if let Some(to) = run.wanted(output) {
                write(&to, &sums);
            }
        }
    }
}

/// The element with this number of an operand; `other` if the operand was left out.
fn shared(operand: Option<View<'_>>, number: i64, other: f64) -> f64 {
    operand.map_or(other, |view| view.get(view.nth(number)))
}

fn read(from: &View<'_>) -> Vec<f64> {
    let all = 0..from.numel();
    all.map(|number| from.get(from.nth(number))).collect()
}

fn write(to: &View<'_>, values: &[f64]) {
    for (number, value) in (0..).zip(values) {
        to.set(to.nth(number), *value);
    }
}

fn rstd(variance: Vec<f64>, epsilon: f64) -> Vec<f64> {
    let all = variance.into_iter();
    all.map(|one| 1.0 / (one + epsilon).sqrt()).collect()
}

/// Checks an operand that has to be floating-point and to have these sizes.
fn float_of(what: &str, tensor: &Tensor<'_>, sizes: &[i64]) -> Result<()> {
    floating(tensor)?;
    same_sizes(what, tensor.sizes(), sizes)
}

/// Checks the operands that may be left out, each of these sizes.
fn optional(call: &Call<'_>, arguments: &[usize], sizes: &[i64]) -> Result<()> {
    let there = arguments.iter().filter_map(|one| call.tensor(*one));
    there
        .into_iter()
        .try_for_each(|tensor| float_of("an operand", tensor, sizes))
}

/// Checks the gradients that are wanted.
fn gradients(call: &Call<'_>, sizes: &[&[i64]]) -> Result<()> {
    if call.outputs.len() != sizes.len() {
        return invalid(format!(
            "{} outputs, {} gradients are expected",
            call.outputs.len(),
            sizes.len()
        ));
    }
    for (output, sizes) in call.outputs.iter().zip(sizes) {
        if output.dtype() != DType::INVALID {
            float_of("a gradient", output, sizes)?;
        }
    }
    Ok(())
}

/// The layout of a batch normalization: a statistic and a weight for each channel.
fn channels(input: &[i64]) -> Result<Layout> {
    let [_, count, inner @ ..] = input else {
        return invalid(format!(
            "an input of sizes {input:?}: samples and channels are expected"
        ));
    };
    let inner = inner.iter().product();
    let share = Share {
        inner,
        count: *count,
    };
    Ok(Layout {
        statistic: share,
        weight: share,
        centered: true,
    })
}

struct Batch;

impl Batch {
    const INPUT: usize = 0;
    const WEIGHT: usize = 1;
    const BIAS: usize = 2;
    const MEAN: usize = 3;
    const VARIANCE: usize = 4;
    const TRAINING: usize = 5;
    const MOMENTUM: usize = 6;
    const EPSILON: usize = 7;

    /// The place of the first result: behind the running statistics that are there.
    fn results(call: &Call<'_>) -> usize {
        let running = [Self::MEAN, Self::VARIANCE];
        running
            .into_iter()
            .filter(|one| call.tensor(*one).is_some())
            .count()
    }
}

impl Plain for Batch {
    fn check(call: &Call<'_>) -> Result<i64> {
        let input = call.needed(Self::INPUT)?;
        floating(input)?;
        let layout = channels(input.sizes())?;
        let per_channel = [layout.weight.count];
        let operands = [Self::WEIGHT, Self::BIAS, Self::MEAN, Self::VARIANCE];
        optional(call, &operands, &per_channel)?;
        let first = Self::results(call);
        let (out, training) = (call.result(first)?, call.truth(Self::TRAINING));
        float_of("the output", out, input.sizes())?;
        for at in [first + 1, first + 2] {
            let found = call.result(at)?;
            if training || found.sizes() != [0] {
                float_of("a statistic", found, &per_channel)?;
            }
        }
        if training && input.numel() == 0 && per_channel != [0] {
            return invalid(format!(
                "statistics of no elements: the input has sizes {:?}",
                input.sizes()
            ));
        }
        if !training && first != 2 {
            return invalid("running statistics are needed outside of training");
        }
        Ok(input.numel().saturating_mul(3))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let call = run.call;
        let input = run.tensor(Self::INPUT).ok_or(Code::INTERNAL)?;
        let layout = channels(input.sizes).map_err(|_| Code::INTERNAL)?;
        let (running_mean, running_var) = (run.tensor(Self::MEAN), run.tensor(Self::VARIANCE));
        let epsilon = call.number(Self::EPSILON).unwrap_or(0.0);
        let (mean, variance) = if call.truth(Self::TRAINING) {
            let (mean, variance) = layout.moments(&input);
            let momentum = call.number(Self::MOMENTUM).unwrap_or(0.0);
            let per = input.numel() as f64 / layout.statistic.count as f64;
            let unbiased = per / (per - 1.0);
            for (to, new, factor) in [
                (running_mean, &mean, 1.0),
                (running_var, &variance, unbiased),
            ] {
                if let Some(to) = to {
                    let old = read(&to);
                    let next = old.iter().zip(new);
                    let next =
                        next.map(|(old, new)| (1.0 - momentum) * old + momentum * new * factor);
                    write(&to, &next.collect::<Vec<_>>());
                }
            }
            (mean, variance)
        } else {
            let (Some(mean), Some(variance)) = (running_mean, running_var) else {
                return Err(Code::INTERNAL);
            };
            (read(&mean), read(&variance))
        };
        let rstd = rstd(variance, epsilon);
        let found = Statistics { mean, rstd };
        let first = Self::results(call);
        let affine = (run.tensor(Self::WEIGHT), run.tensor(Self::BIAS));
        layout.apply((&input, &run.output(first)), &found, affine);
        for (at, values) in [(first + 1, &found.mean), (first + 2, &found.rstd)] {
            let to = run.output(at);
            if to.numel() > 0 {
                write(&to, values);
            }
        }
        Ok(())
    }
}

struct BatchBackward;

impl BatchBackward {
    const WEIGHT: usize = 2;
    const RUNNING: [usize; 2] = [3, 4];
    const SAVED: [usize; 2] = [5, 6];
    const TRAINING: usize = 7;
    const EPSILON: usize = 8;

    /// The arguments with the statistics that the forward used.
    fn used(call: &Call<'_>) -> [usize; 2] {
        if call.truth(Self::TRAINING) {
            Self::SAVED
        } else {
            Self::RUNNING
        }
    }
}

impl Plain for BatchBackward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (grad, input) = (call.needed(0)?, call.needed(1)?);
        floating(input)?;
        float_of("the gradient", grad, input.sizes())?;
        let layout = channels(input.sizes())?;
        let per_channel = [layout.weight.count];
        optional(call, &[Self::WEIGHT], &per_channel)?;
        for at in Self::used(call) {
            float_of("a statistic", call.needed(at)?, &per_channel)?;
        }
        gradients(call, &[input.sizes(), &per_channel, &per_channel])?;
        Ok(input.numel().saturating_mul(4))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(grad), Some(input)) = (run.tensor(0), run.tensor(1)) else {
            return Err(Code::INTERNAL);
        };
        let layout = channels(input.sizes).map_err(|_| Code::INTERNAL)?;
        let [Some(mean), Some(second)] = Self::used(run.call).map(|at| run.tensor(at)) else {
            return Err(Code::INTERNAL);
        };
        let training = run.call.truth(Self::TRAINING);
        let (mean, second) = (read(&mean), read(&second));
        let rstd = if training {
            second
        } else {
            rstd(second, run.call.number(Self::EPSILON).unwrap_or(0.0))
        };
        let found = Statistics { mean, rstd };
        let weight = run.tensor(Self::WEIGHT);
        layout.backward(run, (&grad, &input), weight, &found, training);
        Ok(())
    }
}

/// The layout of a group normalization whose numbers (samples, channels, elements, groups) begin at an argument.
fn groups(call: &Call<'_>, first: usize, input: &[i64]) -> Result<(Layout, [i64; 2])> {
    let number = |at: usize| call.int(first + at).unwrap_or(-1);
    let [n, c, elements, groups] = [number(0), number(1), number(2), number(3)];
    if n < 0 || c < 0 || elements < 0 || groups < 1 || c % groups != 0 {
        return invalid(format!(
            "{groups} groups of {c} channels with {elements} elements in {n} samples: equal groups of channels are \
             expected"
        ));
    }
    let [samples, channels, inner @ ..] = input else {
        return invalid(format!(
            "an input of sizes {input:?}: samples and channels are expected"
        ));
    };
    same_sizes(
        "the input, as samples, channels and elements,",
        &[*samples, *channels, inner.iter().product()],
        &[n, c, elements],
    )?;
    let layout = Layout {
        statistic: Share {
            inner: c / groups * elements,
            count: n * groups,
        },
        weight: Share {
            inner: elements,
            count: c,
        },
        centered: true,
    };
    Ok((layout, [n, groups]))
}

struct Group;

impl Group {
    const SIZES: usize = 3;
    const EPSILON: usize = 7;
}

impl Plain for Group {
    fn check(call: &Call<'_>) -> Result<i64> {
        let input = call.needed(0)?;
        floating(input)?;
        let (layout, statistics) = groups(call, Self::SIZES, input.sizes())?;
        optional(call, &[1, 2], &[layout.weight.count])?;
        float_of("the output", call.result(0)?, input.sizes())?;
        float_of("the mean", call.result(1)?, &statistics)?;
        float_of("the deviation", call.result(2)?, &statistics)?;
        Ok(input.numel().saturating_mul(3))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let input = run.tensor(0).ok_or(Code::INTERNAL)?;
        let (layout, _) = groups(run.call, Self::SIZES, input.sizes).map_err(|_| Code::INTERNAL)?;
        let (mean, variance) = layout.moments(&input);
        let rstd = rstd(variance, run.call.number(Self::EPSILON).unwrap_or(0.0));
        let found = Statistics { mean, rstd };
        let affine = (run.tensor(1), run.tensor(2));
        layout.apply((&input, &run.output(0)), &found, affine);
        write(&run.output(1), &found.mean);
        write(&run.output(2), &found.rstd);
        Ok(())
    }
}

struct GroupBackward;

impl GroupBackward {
    const SIZES: usize = 5;
}

impl Plain for GroupBackward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (grad, input) = (call.needed(0)?, call.needed(1)?);
        floating(input)?;
        float_of("the gradient", grad, input.sizes())?;
        let (layout, statistics) = groups(call, Self::SIZES, input.sizes())?;
        float_of("the mean", call.needed(2)?, &statistics)?;
        float_of("the deviation", call.needed(3)?, &statistics)?;
        let per_channel = [layout.weight.count];
        optional(call, &[4], &per_channel)?;
        gradients(call, &[input.sizes(), &per_channel, &per_channel])?;
        Ok(input.numel().saturating_mul(4))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(grad), Some(input), Some(mean), Some(rstd)) =
            (run.tensor(0), run.tensor(1), run.tensor(2), run.tensor(3))
        else {
            return Err(Code::INTERNAL);
        };
        let (layout, _) = groups(run.call, Self::SIZES, input.sizes).map_err(|_| Code::INTERNAL)?;
        let (mean, rstd) = (read(&mean), read(&rstd));
        let found = Statistics { mean, rstd };
        layout.backward(run, (&grad, &input), run.tensor(4), &found, true);
        Ok(())
    }
}

/// The layout of rows that are normalized by their root mean square, and the sizes of the statistic.
fn root_mean_square(input: &[i64], normalized: &[i64]) -> Result<(Layout, Vec<i64>)> {
    if normalized.is_empty() || !input.ends_with(normalized) {
        return invalid(format!(
            "the normalized shape {normalized:?} is not the last sizes of an input of {input:?}"
        ));
    }
    let outer = &input[..input.len() - normalized.len()];
    let (rows, length) = (outer.iter().product(), normalized.iter().product());
    let layout = Layout {
        statistic: Share {
            inner: length,
            count: rows,
        },
        weight: Share {
            inner: 1,
            count: length,
        },
        centered: false,
    };
    let mut sizes = outer.to_vec();
    sizes.resize(input.len(), 1);
    Ok((layout, sizes))
}

struct Rms;

impl Plain for Rms {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, normalized) = (call.needed(0)?, call.ints(1));
        floating(input)?;
        let (_, statistic) = root_mean_square(input.sizes(), normalized)?;
        optional(call, &[2], normalized)?;
        float_of("the output", call.result(0)?, input.sizes())?;
        float_of("the deviation", call.result(1)?, &statistic)?;
        Ok(input.numel().saturating_mul(2))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let input = run.tensor(0).ok_or(Code::INTERNAL)?;
        let (layout, _) =
            root_mean_square(input.sizes, run.call.ints(1)).map_err(|_| Code::INTERNAL)?;
        let epsilon = run.call.number(3).unwrap_or(match input.dtype {
            DType::F64 => f64::EPSILON,
            _ => f32::EPSILON.into(),
        });
        let (mean, squares) = layout.moments(&input);
        let rstd = rstd(squares, epsilon);
        let found = Statistics { mean, rstd };
        layout.apply((&input, &run.output(0)), &found, (run.tensor(2), None));
        write(&run.output(1), &found.rstd);
        Ok(())
    }
}

struct RmsBackward;

impl Plain for RmsBackward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (grad, input, normalized) = (call.needed(0)?, call.needed(1)?, call.ints(2));
        floating(input)?;
        float_of("the gradient", grad, input.sizes())?;
        let (_, statistic) = root_mean_square(input.sizes(), normalized)?;
        float_of("the deviation", call.needed(3)?, &statistic)?;
        optional(call, &[4], normalized)?;
        gradients(call, &[input.sizes(), normalized])?;
        Ok(input.numel().saturating_mul(4))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(grad), Some(input), Some(rstd)) = (run.tensor(0), run.tensor(1), run.tensor(3))
        else {
            return Err(Code::INTERNAL);
        };
        let (layout, _) =
            root_mean_square(input.sizes, run.call.ints(2)).map_err(|_| Code::INTERNAL)?;
        let found = Statistics {
            mean: layout.statistic.zeros(),
            rstd: read(&rstd),
        };
        layout.backward(run, (&grad, &input), run.tensor(4), &found, true);
        Ok(())
    }
}

/// Rows that are normalized by their root mean square, a part of which is then turned by the angles of its position.
struct Rotary;

impl Rotary {
    const START: usize = 4;
    const LENGTH: usize = 5;
    const EPSILON: usize = 6;

    /// First element and number of the elements that are turned.
    fn turned(call: &Call<'_>) -> (i64, i64) {
        let number = |at| call.int(at).unwrap_or(-1);
        (number(Self::START), number(Self::LENGTH))
    }
}

impl Plain for Rotary {
    fn check(call: &Call<'_>) -> Result<i64> {
        let input = call.needed(0)?;
        floating(input)?;
        let &[_, positions, _, width] = input.sizes() else {
            return invalid(format!(
                "an input of sizes {:?}: samples, positions, heads and elements are expected",
                input.sizes()
            ));
        };
        let (start, length) = Self::turned(call);
        if start < 0 || length < 0 || length % 2 != 0 || start > width || length > width - start {
            return invalid(format!(
                "{length} elements from {start} on: pairs within {width} elements are expected"
            ));
        }
        optional(call, &[1], &[width])?;
        let angles = [positions, length / 2];
        float_of("the cosine", call.needed(2)?, &angles)?;
        float_of("the sine", call.needed(3)?, &angles)?;
        float_of("the output", call.result(0)?, input.sizes())?;
        Ok(input.numel().saturating_mul(3))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(input), Some(cos), Some(sin), out) =
            (run.tensor(0), run.tensor(2), run.tensor(3), run.output(0))
        else {
            return Err(Code::INTERNAL);
        };
        let (start, length) = Self::turned(run.call);
        let (width, half) = (input.size(3), length / 2);
        let epsilon = run.call.number(Self::EPSILON).unwrap_or(0.0);
        let mut row = vec![0.0; width as usize];
        for number in 0..input.numel() / width.max(1) {
            let place = |at: i64| number * width + at;
            for (at, value) in (0..).zip(&mut row) {
                *value = input.get(input.nth(place(at)));
            }
            let square = row.iter().map(|one| one * one).sum::<f64>() / width as f64;
            let rstd = 1.0 / (square + epsilon).sqrt();
            for (at, value) in (0..).zip(&mut row) {
                *value *= rstd * shared(run.tensor(1), at, 1.0);
            }
            let position = number / input.size(2) % input.size(1);
            for pair in 0..half {
                let first = (start + pair) as usize;
                let second = first + half as usize;
                let (x, y) = (row[first], row[second]);
                let c = cos.get(cos.at(&[position, pair]));
                let s = sin.get(sin.at(&[position, pair]));
                (row[first], row[second]) = (x * c - y * s, y * c + x * s);
            }
            for (at, value) in (0..).zip(&row) {
                out.set(out.nth(place(at)), *value);
            }
        }
        Ok(())
    }
}
