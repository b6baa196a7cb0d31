//! Normalizations against their definition. Gradients are the derivatives of the reference's forward.

use outrigger_device::DType;

use super::dual::{Dual, fixed, gradient, plain};
use super::numbers::{count, values};
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

const EPSILON: f64 = 1e-3;

/// Sizes of inputs: samples, channels, elements in two dimensions.
const INPUTS: [[i64; 4]; 3] = [[2, 4, 3, 1], [3, 6, 1, 5], [1, 2, 3, 7]];

/// The type of statistics.
fn statistic(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

/// The places of the elements that share a statistic, for each one. `of` says whose element a place of samples,
/// channels and elements is.
fn members(sizes: &[i64; 4], shares: usize, of: impl Fn(usize, usize) -> usize) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new(); shares];
    let inner = (sizes[2] * sizes[3]) as usize;
    for sample in 0..sizes[0] as usize {
        for channel in 0..sizes[1] as usize {
            let first = (sample * sizes[1] as usize + channel) * inner;
            all[of(sample, channel)].extend(first..first + inner);
        }
    }
    all
}

fn mean(x: &[Dual], places: &[usize]) -> Dual {
    places.iter().map(|at| x[*at]).sum::<Dual>() / Dual::from(places.len() as f64)
}

fn variance(x: &[Dual], places: &[usize], mean: Dual) -> Dual {
    let squares = places.iter().map(|at| (x[*at] - mean) * (x[*at] - mean));
    squares.sum::<Dual>() / Dual::from(places.len() as f64)
}

fn rstd(variance: Dual) -> Dual {
    Dual::from(1.0) / (variance + EPSILON.into()).sqrt()
}

/// A normalization: its statistics, and the results, with the weight number `channel` of an element.
fn normalized(
    x: &[Dual],
    members: &[Vec<usize>],
    statistics: &[(Dual, Dual)],
    channel: impl Fn(usize) -> usize,
    (weight, bias): (&[Dual], &[Dual]),
) -> Vec<Dual> {
    let mut out = fixed(&vec![0.0; x.len()]);
    for (places, (mean, rstd)) in members.iter().zip(statistics) {
        for at in places {
            let of = channel(*at);
            out[*at] = (x[*at] - *mean) * *rstd * weight[of] + bias[of];
        }
    }
    out
}

/// The mean and the reciprocal deviation of each statistic.
fn statistics(x: &[Dual], members: &[Vec<usize>]) -> Vec<(Dual, Dual)> {
    let one = |places: &Vec<usize>| {
        let mean = mean(x, places);
        (mean, rstd(variance(x, places, mean)))
    };
    members.iter().map(one).collect()
}

/// An input whose channels lie next to each other, as in the channels-last format.
fn channels_last(on: &dyn Runner, dtype: DType, sizes: &[i64; 4], x: &[f64]) -> Verdict<Operand> {
    let [_, c, h, w] = *sizes;
    let strides = [c * h * w, 1, w * c, c];
    let mut memory = vec![0.0; x.len()];
    for (at, value) in x.iter().enumerate() {
        let (at, inner) = (at as i64, h * w);
        let (sample, channel, element) = (at / inner / c, at / inner % c, at % inner);
        memory[(sample * c * inner + element * c + channel) as usize] = *value;
    }
    Operand::new(on, dtype, sizes, &strides, &memory)
}

/// The inputs that all tests of a dtype and of sizes have.
struct Kit<'a> {
    on: &'a dyn Runner,
    dtype: DType,
    x: Vec<f64>,
    grad: Vec<f64>,
    weight: Vec<f64>,
    bias: Vec<f64>,
}

impl<'a> Kit<'a> {
    fn new(on: &'a dyn Runner, dtype: DType, sizes: [i64; 4], seed: u64, weights: usize) -> Self {
        let numel = count(&sizes);
        Self {
            on,
            dtype,
            x: values(dtype, numel, (-1.0, 3.0), seed),
            grad: values(dtype, numel, (-1.0, 1.0), 10 + seed),
            weight: values(dtype, weights, (0.5, 2.0), 20 + seed),
            bias: values(dtype, weights, (-1.0, 1.0), 30 + seed),
        }
    }

    fn dense(&self, sizes: &[i64], values: &[f64]) -> Verdict<Operand> {
        Operand::dense(self.on, self.dtype, sizes, values)
    }

    fn empty(&self, sizes: &[i64]) -> Verdict<Operand> {
        self.dense(sizes, &vec![77.0; count(sizes)])
    }

    fn saved(&self, sizes: &[i64], values: &[f64]) -> Verdict<Operand> {
        Operand::dense(self.on, statistic(self.dtype), sizes, values)
    }
}

type Forward<'a> = dyn Fn(&[Dual], &[Dual], &[Dual]) -> Vec<Dual> + 'a;

/// The gradients of input, weight and bias.
fn gradients(kit: &Kit<'_>, forward: &Forward<'_>) -> [Vec<f64>; 3] {
    let (x, weight, bias) = (fixed(&kit.x), fixed(&kit.weight), fixed(&kit.bias));
    [
        gradient(&kit.x, &kit.grad, |x| forward(x, &weight, &bias)),
        gradient(&kit.weight, &kit.grad, |weight| forward(&x, weight, &bias)),
        gradient(&kit.bias, &kit.grad, |bias| forward(&x, &weight, bias)),
    ]
}

pub(super) fn batch_norm(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, sizes) in (0u64..).zip(INPUTS) {
        let channels = sizes[1];
        let kit = Kit::new(on, dtype, sizes, seed, channels as usize);
        let members = members(&sizes, channels as usize, |_, channel| channel);
        let inner = (sizes[2] * sizes[3]) as usize;
        let channel = |at: usize| at / inner % channels as usize;
        let x = fixed(&kit.x);
        let own = statistics(&x, &members);
        let old_mean = values(statistic(dtype), channels as usize, (-1.0, 1.0), 40);
        let old_var = values(statistic(dtype), channels as usize, (0.5, 2.0), 41);
        let running: Vec<(Dual, Dual)> = old_mean
            .iter()
            .zip(&old_var)
            .map(|(mean, variance)| ((*mean).into(), rstd((*variance).into())))
            .collect();
        let input = channels_last(on, dtype, &sizes, &kit.x)?;
        let (weight, bias) = (
            kit.dense(&[channels], &kit.weight)?,
            kit.dense(&[channels], &kit.bias)?,
        );
        for training in [true, false] {
            let used = if training { &own } else { &running };
            let affine = (&fixed(&kit.weight)[..], &fixed(&kit.bias)[..]);
            let expected = plain(&normalized(&x, &members, used, channel, affine));
            let per = (count(&sizes) / channels as usize) as f64;
            let next = |old: f64, new: f64| {
                if training {
                    0.75 * old + 0.25 * new
                } else {
                    old
                }
            };
            let next_mean: Vec<f64> = (old_mean.iter().zip(&own))
                .map(|(old, (mean, _))| next(*old, mean.value))
                .collect();
            let next_var: Vec<f64> = (old_var.iter().zip(&members).zip(&own))
                .map(|((old, places), (mean, _))| {
                    let biased = variance(&x, places, *mean).value;
                    next(*old, biased * per / (per - 1.0))
                })
                .collect();
            let of = |pick: fn(&(Dual, Dual)) -> f64| used.iter().map(pick).collect::<Vec<_>>();
            let (mean, deviation) = (of(|one| one.0.value), of(|one| one.1.value));
            // Outside of training the statistics of the batch may have no elements.
            let saved: &[i64] = if training { &[channels] } else { &[0] };
            let given = [
                Given::In(&input),
                Given::In(&weight),
                Given::In(&bias),
                Given::InPlace(&kit.saved(&[channels], &old_mean)?),
                Given::InPlace(&kit.saved(&[channels], &old_var)?),
                Given::Truth(training),
                Given::Number(0.25),
                Given::Number(EPSILON),
            ];
            let results = [
                kit.empty(&sizes)?,
                kit.saved(saved, &vec![5.0; count(saved)])?,
                kit.saved(saved, &vec![5.0; count(saved)])?,
            ];
            let (mean, deviation) = (&mean[..count(saved)], &deviation[..count(saved)]);
            schema_gives(
                on,
                name,
                &given,
                &results.each_ref().map(Some),
                &[&next_mean, &next_var, &expected, mean, deviation].map(Some),
                &format!("{name} of {sizes:?}, training {training}"),
            )?;
        }
        // Without anything that may be left out.
        let [ones, zeros] = [1.0, 0.0].map(|value| fixed(&vec![value; channels as usize]));
        let expected = plain(&normalized(&x, &members, &own, channel, (&ones, &zeros)));
        let given = [
            Given::In(&input),
            Given::Nothing,
            Given::Nothing,
            Given::Nothing,
            Given::Nothing,
            Given::Truth(true),
            Given::Number(0.25),
            Given::Number(EPSILON),
        ];
        let results = [
            kit.empty(&sizes)?,
            kit.saved(&[channels], &vec![5.0; channels as usize])?,
            kit.saved(&[channels], &vec![5.0; channels as usize])?,
        ];
        schema_gives(
            on,
            name,
            &given,
            &results.each_ref().map(Some),
            &[Some(expected.as_slice()), None, None],
            &format!("{name} of {sizes:?} alone"),
        )?;
    }
    Ok(())
}

pub(super) fn batch_norm_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, sizes) in (0u64..).zip(INPUTS) {
        let channels = sizes[1];
        let kit = Kit::new(on, dtype, sizes, seed, channels as usize);
        let members = members(&sizes, channels as usize, |_, channel| channel);
        let inner = (sizes[2] * sizes[3]) as usize;
        let channel = |at: usize| at / inner % channels as usize;
        let old_mean = values(statistic(dtype), channels as usize, (-1.0, 1.0), 40);
        let old_var = values(statistic(dtype), channels as usize, (0.5, 2.0), 41);
        let own = statistics(&fixed(&kit.x), &members);
        let of = |pick: fn(&(Dual, Dual)) -> f64| own.iter().map(pick).collect::<Vec<_>>();
        let (mean, deviation) = (of(|one| one.0.value), of(|one| one.1.value));
        for training in [true, false] {
            let forward = |x: &[Dual], weight: &[Dual], bias: &[Dual]| {
                let used: Vec<(Dual, Dual)> = if training {
                    statistics(x, &members)
                } else {
                    (old_mean.iter().zip(&old_var))
                        .map(|(mean, variance)| ((*mean).into(), rstd((*variance).into())))
                        .collect()
                };
                normalized(x, &members, &used, channel, (weight, bias))
            };
            let expected = gradients(&kit, &forward);
            let given = [
                Given::In(&channels_last(on, dtype, &sizes, &kit.grad)?),
                Given::In(&kit.dense(&sizes, &kit.x)?),
                Given::In(&kit.dense(&[channels], &kit.weight)?),
                Given::In(&kit.saved(&[channels], &old_mean)?),
                Given::In(&kit.saved(&[channels], &old_var)?),
                Given::In(&kit.saved(&[channels], &mean)?),
                Given::In(&kit.saved(&[channels], &deviation)?),
                Given::Truth(training),
                Given::Number(EPSILON),
            ];
            let what = format!("{name} of {sizes:?}, training {training}");
            of_gradients(&kit, name, &given, &sizes, &[channels], &expected, &what)?;
        }
    }
    Ok(())
}

/// Runs a backward with all three gradients, and with that of the weight alone.
fn of_gradients(
    kit: &Kit<'_>,
    name: &str,
    given: &[Given<'_>],
    sizes: &[i64],
    weight: &[i64],
    expected: &[Vec<f64>],
    what: &str,
) -> Verdict {
    for only_weight in [false, true] {
        let mask: Vec<i64> = (0..expected.len())
            .map(|at| i64::from(!only_weight || at == 1))
            .collect();
        let outputs: Vec<Operand> = (0..expected.len())
            .map(|at| kit.empty(if at == 0 { sizes } else { weight }))
            .collect::<Verdict<_>>()?;
        let results: Vec<_> = (outputs.iter().zip(&mask))
            .map(|(one, wanted)| (*wanted == 1).then_some(one))
            .collect();
        let expected: Vec<_> = expected.iter().map(|one| Some(one.as_slice())).collect();
        let given = [given, &[Given::Truths(&mask)]].concat();
        schema_gives(kit.on, name, &given, &results, &expected, what)?;
    }
    Ok(())
}

/// Groups of two channels.
fn groups(sizes: &[i64; 4]) -> (i64, Vec<Vec<usize>>) {
    let groups = sizes[1] / 2;
    let all = (sizes[0] * groups) as usize;
    let of = |sample, channel| sample * groups as usize + channel / 2;
    (groups, members(sizes, all, of))
}

fn group_numbers(sizes: &[i64; 4], groups: i64) -> [Given<'static>; 4] {
    [
        Given::Int(sizes[0]),
        Given::Int(sizes[1]),
        Given::Int(sizes[2] * sizes[3]),
        Given::Int(groups),
    ]
}

pub(super) fn group_norm(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, sizes) in (0u64..).zip(INPUTS) {
        let channels = sizes[1] as usize;
        let kit = Kit::new(on, dtype, sizes, seed, channels);
        let (groups, members) = groups(&sizes);
        let inner = (sizes[2] * sizes[3]) as usize;
        let x = fixed(&kit.x);
        let own = statistics(&x, &members);
        for affine in [true, false] {
            let (weight, bias) = if affine {
                (fixed(&kit.weight), fixed(&kit.bias))
            } else {
                (fixed(&vec![1.0; channels]), fixed(&vec![0.0; channels]))
            };
            let channel = |at: usize| at / inner % channels;
            let expected = normalized(&x, &members, &own, channel, (&weight, &bias));
            let expected = plain(&expected);
            let mean: Vec<f64> = own.iter().map(|one| one.0.value).collect();
            let deviation: Vec<f64> = own.iter().map(|one| one.1.value).collect();
            let (weight, bias) = (
                kit.dense(&sizes[1..2], &kit.weight)?,
                kit.dense(&sizes[1..2], &kit.bias)?,
            );
            let input = channels_last(on, dtype, &sizes, &kit.x)?;
            let mut given = vec![Given::In(&input)];
            given.extend(if affine {
                [Given::In(&weight), Given::In(&bias)]
            } else {
                [Given::Nothing; 2]
            });
            given.extend(group_numbers(&sizes, groups));
            given.push(Given::Number(EPSILON));
            let results = [
                kit.empty(&sizes)?,
                kit.saved(&[sizes[0], groups], &vec![5.0; own.len()])?,
                kit.saved(&[sizes[0], groups], &vec![5.0; own.len()])?,
            ];
            schema_gives(
                on,
                name,
                &given,
                &results.each_ref().map(Some),
                &[&expected, &mean, &deviation].map(|one| Some(one.as_slice())),
                &format!("{name} of {sizes:?} in {groups} groups, affine {affine}"),
            )?;
        }
    }
    Ok(())
}

pub(super) fn group_norm_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, sizes) in (0u64..).zip(INPUTS) {
        let channels = sizes[1] as usize;
        let kit = Kit::new(on, dtype, sizes, seed, channels);
        let (groups, members) = groups(&sizes);
        let inner = (sizes[2] * sizes[3]) as usize;
        let own = statistics(&fixed(&kit.x), &members);
        let mean: Vec<f64> = own.iter().map(|one| one.0.value).collect();
        let deviation: Vec<f64> = own.iter().map(|one| one.1.value).collect();
        let forward = |x: &[Dual], weight: &[Dual], bias: &[Dual]| {
            let channel = |at: usize| at / inner % channels;
            normalized(
                x,
                &members,
                &statistics(x, &members),
                channel,
                (weight, bias),
            )
        };
        let expected = gradients(&kit, &forward);
        let (grad, input) = (
            kit.dense(&sizes, &kit.grad)?,
            channels_last(on, dtype, &sizes, &kit.x)?,
        );
        let (mean, deviation) = (
            kit.saved(&[sizes[0], groups], &mean)?,
            kit.saved(&[sizes[0], groups], &deviation)?,
        );
        let weight = kit.dense(&sizes[1..2], &kit.weight)?;
        let first = [&grad, &input, &mean, &deviation, &weight].map(Given::In);
        let given = [&first[..], &group_numbers(&sizes, groups)].concat();
        let what = format!("{name} of {sizes:?} in {groups} groups");
        of_gradients(&kit, name, &given, &sizes, &sizes[1..2], &expected, &what)?;
    }
    Ok(())
}

/// Rows by their root mean square.
fn root_mean_square(x: &[Dual], weight: &[Dual], epsilon: f64) -> (Vec<Dual>, Vec<Dual>) {
    let (mut out, mut rstds) = (Vec::new(), Vec::new());
    for row in x.chunks(weight.len()) {
        let square: Dual = row.iter().map(|one| *one * *one).sum();
        let root = (square / Dual::from(row.len() as f64) + epsilon.into()).sqrt();
        rstds.push(Dual::from(1.0) / root);
        out.extend(
            row.iter()
                .zip(weight)
                .map(|(x, weight)| *x / root * *weight),
        );
    }
    (out, rstds)
}

/// The number of the last dimensions that are normalized together, for each of the inputs. A row of one element would
/// have hardly a gradient: its result is 1 or -1.
const ROWS: [usize; 3] = [2, 1, 3];

/// The last dimensions that are normalized together, and the sizes of the statistic.
fn trailing(sizes: &[i64; 4], dims: usize) -> (&[i64], Vec<i64>) {
    let outer = &sizes[..4 - dims];
    let ones = std::iter::repeat_n(1, dims);
    (
        &sizes[4 - dims..],
        outer.iter().copied().chain(ones).collect(),
    )
}

pub(super) fn rms_norm(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (dims, sizes) in ROWS.into_iter().zip(INPUTS) {
        let (normalized, per_row) = trailing(&sizes, dims);
        let kit = Kit::new(on, dtype, sizes, dims as u64, count(normalized));
        let input = channels_last(on, dtype, &sizes, &kit.x)?;
        let weight = kit.dense(normalized, &kit.weight)?;
        let machine = match dtype {
            DType::F64 => f64::EPSILON,
            _ => f32::EPSILON.into(),
        };
        for (weighted, epsilon) in [(true, Some(EPSILON)), (false, None)] {
            let factors = if weighted {
                fixed(&kit.weight)
            } else {
                fixed(&vec![1.0; kit.weight.len()])
            };
            let used = epsilon.unwrap_or(machine);
            let (out, rstd) = root_mean_square(&fixed(&kit.x), &factors, used);
            let given = [
                Given::In(&input),
                Given::Ints(normalized),
                if weighted {
                    Given::In(&weight)
                } else {
                    Given::Nothing
                },
                epsilon.map_or(Given::Nothing, Given::Number),
            ];
            let results = [
                kit.empty(&sizes)?,
                kit.saved(&per_row, &vec![5.0; rstd.len()])?,
            ];
            schema_gives(
                on,
                name,
                &given,
                &results.each_ref().map(Some),
                &[Some(&plain(&out)), Some(&plain(&rstd))],
                &format!("{name} of {sizes:?} over {dims} dimensions"),
            )?;
        }
    }
    Ok(())
}

pub(super) fn rms_norm_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (dims, sizes) in ROWS.into_iter().zip(INPUTS) {
        let (normalized, per_row) = trailing(&sizes, dims);
        let kit = Kit::new(on, dtype, sizes, dims as u64, count(normalized));
        let forward =
            |x: &[Dual], weight: &[Dual], _: &[Dual]| root_mean_square(x, weight, EPSILON).0;
        let expected = gradients(&kit, &forward);
        let (_, rstd) = root_mean_square(&fixed(&kit.x), &fixed(&kit.weight), EPSILON);
        let given = [
            Given::In(&kit.dense(&sizes, &kit.grad)?),
            Given::In(&channels_last(on, dtype, &sizes, &kit.x)?),
            Given::Ints(normalized),
            Given::In(&kit.saved(&per_row, &plain(&rstd))?),
            Given::In(&kit.dense(normalized, &kit.weight)?),
        ];
        let what = format!("{name} of {sizes:?} over {dims} dimensions");
        of_gradients(
            &kit,
            name,
            &given,
            &sizes,
            normalized,
            &expected[..2],
            &what,
        )?;
    }
    Ok(())
}

pub(super) fn rms_norm_rotary(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    // Samples, positions, heads, elements; and which elements are turned.
    for (seed, (sizes, start, length)) in (0u64..).zip([
        ([2, 3, 2, 8], 0, 8),
        ([1, 4, 3, 9], 2, 6),
        ([1, 2, 1, 5], 5, 0),
    ]) {
        let width = sizes[3] as usize;
        let kit = Kit::new(on, dtype, sizes, seed, width);
        let half = length / 2;
        let angles = [sizes[1], half as i64];
        let cos = values(dtype, count(&angles), (-1.0, 1.0), 50 + seed);
        let sin = values(dtype, count(&angles), (-1.0, 1.0), 60 + seed);
        let (rows, _) = root_mean_square(&fixed(&kit.x), &fixed(&kit.weight), EPSILON);
        let rows = plain(&rows);
        let mut expected = rows.clone();
        for sample in 0..sizes[0] as usize {
            for position in 0..sizes[1] as usize {
                for head in 0..sizes[2] as usize {
                    let row = (sample * sizes[1] as usize + position) * sizes[2] as usize + head;
                    for pair in 0..half {
                        let first = row * width + start + pair;
                        let (x, y) = (rows[first], rows[first + half]);
                        let at = position * half + pair;
                        expected[first] = cos[at] * x - sin[at] * y;
                        expected[first + half] = sin[at] * x + cos[at] * y;
                    }
                }
            }
        }
        let given = [
            Given::In(&channels_last(on, dtype, &sizes, &kit.x)?),
            Given::In(&kit.dense(&sizes[3..], &kit.weight)?),
            Given::In(&kit.dense(&angles, &cos)?),
            Given::In(&kit.dense(&angles, &sin)?),
            Given::Int(start as i64),
            Given::Int(length as i64),
            Given::Number(EPSILON),
        ];
        let out = kit.empty(&sizes)?;
        let what = format!("{name} of {sizes:?}, {length} elements from {start} on");
        schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
    }
    Ok(())
}
