//! Resampling as a matrix in each dimension: the weight that each element of the input has in each one of the result.

use outrigger_device::DType;

use super::array::{Array, array, empty, linear, places, turned};
use super::operand::{Given, Runner, schema_gives};
use crate::Verdict;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Method {
    Nearest,
    Linear,
    Cubic,
}

/// Input, spatial sizes of the result, and scales if they are given.
type Case = (&'static [i64], &'static [i64], &'static [f64]);

const CASES: [Case; 13] = [
    (&[2, 3, 5], &[8], &[]),
    (&[1, 2, 6], &[4], &[0.6]),
    (&[0, 1, 3], &[2], &[]),
    (&[1, 2, 1], &[4], &[]),
    (&[1, 2, 7], &[1], &[]),
    (&[2, 1, 3], &[3], &[]),
    (&[1, 1, 6], &[6], &[1.05]),
    (&[2, 3, 4, 5], &[7, 3], &[]),
    (&[1, 2, 3, 4], &[6, 8], &[2.0, 2.0]),
    (&[1, 1, 2, 3], &[5, 4], &[1.7, 1.4]),
    (&[1, 2, 3, 2, 4], &[4, 5, 3], &[]),
    (&[2, 1, 2, 3, 2], &[4, 7, 3], &[2.0, 2.4, 1.3]),
    (&[1, 1, 2, 2, 2], &[1, 2, 4], &[]),
];

/// The weight of a neighbour at a distance, with the parameter -0.75.
fn cubic(distance: f64) -> f64 {
    const A: f64 = -0.75;
    match distance.abs() {
        x if x <= 1.0 => (A + 2.0) * x.powi(3) - (A + 3.0) * x.powi(2) + 1.0,
        x if x < 2.0 => A * x.powi(3) - 5.0 * A * x.powi(2) + 8.0 * A * x - 4.0 * A,
        _ => 0.0,
    }
}

impl Method {
    /// The weight of an element of the input in one of the output.
    fn weight(
        self,
        (input, out): (i64, i64),
        scale: Option<f64>,
        align: bool,
        (at, from): (i64, i64),
    ) -> f64 {
        let scale = scale.unwrap_or(out as f64 / input as f64);
        let last = (input - 1) as f64;
        let source = if self == Self::Linear && input == out {
            // Linear sampling to the same size does not look at the scale.
            at as f64
        } else if align {
            at as f64 * last / (out - 1).max(1) as f64
        } else {
            (at as f64 + 0.5) / scale - 0.5
        };
        match self {
            Self::Nearest => {
                // A little more than the quotient, which is not rounded down to the integer in front.
                let nearest = (at as f64 / scale + 1e-9).floor().min(last);
                f64::from(nearest == from as f64)
            }
            Self::Linear => (1.0 - (source.clamp(0.0, last) - from as f64).abs()).max(0.0),
            Self::Cubic => {
                // Neighbours outside are the element at the edge.
                let neighbours = (-9..input + 9).filter(|one| (*one).clamp(0, input - 1) == from);
                neighbours.map(|one| cubic(source - one as f64)).sum()
            }
        }
    }

    fn forward(self, input: &Array, (_, sizes, scales): Case, align: bool) -> Array {
        let (lead, plane) = input.sizes.split_at(2);
        Array::of(&[lead, sizes].concat(), |at| {
            let part = |from: Vec<i64>| {
                let weights = (0..plane.len()).map(|dim| {
                    let scale = scales.get(dim).copied();
                    let pair = (at[2 + dim], from[dim]);
                    self.weight((plane[dim], sizes[dim]), scale, align, pair)
                });
                weights.product::<f64>() * input.at(&[&at[..2], &from].concat())
            };
            places(plane).map(part).sum()
        })
    }
}

/// The cases of an operator, with each choice of the alignment that it has. Scales do not matter where it aligns.
fn cases(method: Method, spatial: usize) -> Vec<(Case, bool)> {
    let all = CASES.into_iter().filter(|case| case.1.len() == spatial);
    let aligned = all.clone().map(|case| (case, true));
    let aligned = aligned.filter(|_| method != Method::Nearest);
    all.map(|case| (case, false)).chain(aligned).collect()
}

/// The arguments behind the sizes.
fn arguments(method: Method, (_, sizes, scales): Case, align: bool) -> Vec<Given<'static>> {
    let scale = |dim| {
        scales
            .get(dim)
            .copied()
            .map_or(Given::Nothing, Given::Number)
    };
    let align = (method != Method::Nearest).then_some(Given::Truth(align));
    align
        .into_iter()
        .chain((0..sizes.len()).map(scale))
        .collect()
}

pub(super) fn upsample(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    method: Method,
    spatial: usize,
) -> Verdict {
    for (seed, (case, align)) in (0u64..).zip(cases(method, spatial)) {
        let (sizes, out, scales) = case;
        let input = array(dtype, sizes, seed);
        let expected = method.forward(&input, case, align);
        let input = turned(on, dtype, &input)?;
        let result = empty(on, dtype, &expected.sizes)?;
        let first = [Given::In(&input), Given::Ints(out)];
        let given = [&first[..], &arguments(method, case, align)].concat();
        let what = format!("{name} of {sizes:?} to {out:?}, scales {scales:?}, aligned {align}");
        let expected = [Some(&*expected.values)];
        schema_gives(on, name, &given, &[Some(&result)], &expected, &what)?;
    }
    Ok(())
}

pub(super) fn upsample_backward(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    method: Method,
    spatial: usize,
) -> Verdict {
    for (seed, (case, align)) in (0u64..).zip(cases(method, spatial)) {
        let (sizes, out, scales) = case;
        let grad = array(dtype, &[&sizes[..2], out].concat(), seed);
        let expected = linear(sizes, &grad, &|unit| method.forward(unit, case, align));
        let grad = turned(on, dtype, &grad)?;
        let result = empty(on, dtype, sizes)?;
        let first = [Given::In(&grad), Given::Ints(out), Given::Ints(sizes)];
        let given = [&first[..], &arguments(method, case, align)].concat();
        let what = format!("{name} of {sizes:?} to {out:?}, scales {scales:?}, aligned {align}");
        let expected = [Some(&*expected)];
        schema_gives(on, name, &given, &[Some(&result)], &expected, &what)?;
    }
    Ok(())
}
