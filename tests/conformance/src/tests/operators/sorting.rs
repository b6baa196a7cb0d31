//! Sorting, searching and running results. References say of each element alone what stands there.

use std::cmp::Ordering;

use outrigger_device::DType;

use super::array::{Array, dense, empty, moved, turned};
use super::numbers::{count, limit, rounded, values};
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

const SHAPES: [[i64; 3]; 4] = [[1, 1, 1], [3, 5, 7], [2, 20, 3], [2, 0, 3]];

/// Values with some that are equal, and in floating point infinities and NaN.
fn mixed(dtype: DType, sizes: &[i64], seed: u64) -> Array {
    let mut values = values(dtype, count(sizes), (-4.0, 4.0), seed);
    for (at, value) in values.iter_mut().enumerate() {
        match at % 7 {
            0 => *value = value.trunc(),
            3 if limit(dtype) > 0.0 => *value = value.trunc() * f64::INFINITY,
            _ => {}
        }
    }
    let sizes = sizes.to_vec();
    Array { sizes, values }
}

/// NaN is the largest.
fn order(one: f64, other: f64) -> Ordering {
    let by_nan = one.is_nan().cmp(&other.is_nan());
    by_nan.then(one.partial_cmp(&other).unwrap_or(Ordering::Equal))
}

/// The place of the element of a line that has so many others before it in order. Equal ones stay in order.
fn with_rank(line: &[f64], rank: i64, descending: bool) -> usize {
    let before = |one: usize, other: usize| {
        let order = order(line[one], line[other]);
        let order = if descending { order.reverse() } else { order };
        order == Ordering::Less || order == Ordering::Equal && one < other
    };
    let all = 0..line.len();
    let is = |at: &usize| all.clone().filter(|other| before(*other, *at)).count() as i64 == rank;
    all.clone().find(is).unwrap_or(usize::MAX)
}

/// The first elements in order of each line, and where they stood.
fn in_order(x: &Array, dim: usize, kept: i64, descending: bool) -> [Array; 2] {
    let sizes = moved(&x.sizes, dim, kept);
    let place = |at: &[i64]| with_rank(&x.line(dim, at), at[dim], descending);
    [
        Array::of(&sizes, |at| x.line(dim, at)[place(at)]),
        Array::of(&sizes, |at| place(at) as f64),
    ]
}

/// The results that a sort is asked for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Sort {
    Both,
    Indices,
    Top,
}

pub(super) fn sort(on: &dyn Runner, name: &str, dtype: DType, what: Sort) -> Verdict {
    for (seed, sizes) in SHAPES.into_iter().enumerate() {
        let x = mixed(dtype, &sizes, seed as u64);
        for dim in 0..3 {
            let descending = (seed + dim) % 2 == 0;
            let kept = match what {
                Sort::Top => (sizes[dim] + 1) / 2,
                _ => sizes[dim],
            };
            let [sorted, places] = in_order(&x, dim, kept, descending);
            let input = if dim == 1 {
                turned(on, dtype, &x)?
            } else {
                dense(on, dtype, &x)?
            };
            // The values lie in memory the other way round.
            let (strides, sorted) = sorted.turned();
            let before = vec![99.0; sorted.len()];
            let values = Operand::new(on, dtype, &places.sizes, &strides, &before)?;
            let indices = empty(on, DType::I64, &places.sizes)?;
            let (from_end, order) = (Given::Int(dim as i64 - 3), Given::Truth(descending));
            let input = Given::In(&input);
            let given = match what {
                Sort::Both => vec![input, Given::Nothing, from_end, order],
                Sort::Indices => vec![input, Given::Truth(true), from_end, order],
                Sort::Top => {
                    let all_in_order = Given::Truth(true);
                    vec![input, Given::Int(kept), from_end, order, all_in_order]
                }
            };
            let (mut results, mut expected) = (
                vec![Some(&values), Some(&indices)],
                vec![Some(sorted.as_slice()), Some(places.values.as_slice())],
            );
            if what == Sort::Indices {
                (results, expected) = (results.split_off(1), expected.split_off(1));
            }
            let what = format!("{name} of {sizes:?} over dimension {dim}, down {descending}");
            schema_gives(on, name, &given, &results, &expected, &what)?;
        }
    }
    Ok(())
}

pub(super) fn running_extreme(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    smallest: bool,
) -> Verdict {
    // NaN beats everything.
    let beats = |one: f64, other: f64| match order(one, other) {
        order if one.is_nan() || other.is_nan() => order == Ordering::Greater,
        order if smallest => order == Ordering::Less,
        order => order == Ordering::Greater,
    };
    for (seed, sizes) in SHAPES.into_iter().enumerate() {
        let x = mixed(dtype, &sizes, seed as u64);
        for dim in 0..3 {
            // The last of those up to here that no other one beats.
            let place = |at: &[i64]| {
                let seen = &x.line(dim, at)[..=at[dim] as usize];
                let best = |at: &usize| !seen.iter().any(|other| beats(*other, seen[*at]));
                (0..seen.len()).rfind(best).unwrap_or(usize::MAX)
            };
            let places = Array::of(&sizes, |at| place(at) as f64);
            let values = Array::of(&sizes, |at| x.line(dim, at)[place(at)]);
            let input = turned(on, dtype, &x)?;
            let (out, indices) = (empty(on, dtype, &sizes)?, empty(on, DType::I64, &sizes)?);
            let given = [Given::In(&input), Given::Int(dim as i64 - 3)];
            let what = format!("{name} of {sizes:?} over dimension {dim}");
            let results = [Some(&out), Some(&indices)];
            let expected = [Some(&*values.values), Some(&*places.values)];
            schema_gives(on, name, &given, &results, &expected, &what)?;
        }
    }
    Ok(())
}

pub(super) fn logcumsumexp(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, sizes) in SHAPES.into_iter().enumerate() {
        let values = values(dtype, count(&sizes), (-4.0, 4.0), seed as u64);
        let mut x = Array::of(&sizes, |_| 0.0);
        x.values = values;
        if seed == 1 {
            // A value that does not count, one that alone counts, and one whose exponential does not fit.
            (x.values[0], x.values[17]) = (f64::NEG_INFINITY, 60.0);
            x.values[70] = rounded(dtype, 800.0);
        }
        for dim in 0..3 {
            let expected = Array::of(&sizes, |at| {
                let seen = &x.line(dim, at)[..=at[dim] as usize];
                let most = seen.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                if most == f64::NEG_INFINITY {
                    return most;
                }
                most + seen.iter().map(|x| (x - most).exp()).sum::<f64>().ln()
            });
            let input = turned(on, dtype, &x)?;
            let out = empty(on, dtype, &sizes)?;
            let given = [Given::In(&input), Given::Int(dim as i64)];
            let what = format!("{name} of {sizes:?} over dimension {dim}");
            let expected = [Some(&*expected.values)];
            schema_gives(on, name, &given, &[Some(&out)], &expected, &what)?;
        }
    }
    Ok(())
}

/// Sizes of lines in order, and of values.
const SEARCHES: [(&[i64], &[i64]); 5] = [
    (&[9], &[2, 3, 4]),
    (&[2, 3, 9], &[2, 3, 4]),
    (&[2, 3, 1], &[2, 3, 2]),
    (&[0], &[3]),
    (&[9], &[]),
];

pub(super) fn searchsorted(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (lines, sizes) in SEARCHES {
        let last = lines.len() - 1;
        let mut given = Array::zeros(lines);
        given.values = values(dtype, count(lines), (-4.0, 4.0), 3);
        let [sorted, sorter] = in_order(&given, last, lines[last], false);
        let mut wanted = Array::zeros(sizes);
        wanted.values = values(dtype, count(sizes), (-5.0, 5.0), 4);
        for (at, value) in wanted.values.iter_mut().enumerate() {
            // Each third one is one of the line's.
            if at % 3 == 0 && !given.values.is_empty() {
                *value = given.values[at % given.values.len()];
            }
        }
        for (right, side, by_sorter) in [
            (false, None, false),
            (true, Some("right"), true),
            (false, Some("left"), true),
            (true, None, false),
        ] {
            let expected = Array::of(sizes, |at| {
                let value = wanted.at(at);
                let mut first = at.get(..last).unwrap_or_default().to_vec();
                first.push(0);
                let line = sorted.line(last, &first);
                let before = |one: &&f64| **one < value || right && **one == value;
                line.iter().filter(before).count() as f64
            });
            let sequence = if by_sorter { &given } else { &sorted };
            let sequence = turned(on, dtype, sequence)?;
            let sorter = turned(on, DType::I64, &sorter)?;
            let values = turned(on, dtype, &wanted)?;
            let index = if right { DType::I32 } else { DType::I64 };
            let out = empty(on, index, sizes)?;
            let arguments = [
                Given::In(&sequence),
                Given::In(&values),
                Given::Truth(right),
                Given::Truth(right && side.is_none()),
                side.map_or(Given::Nothing, Given::Text),
                if by_sorter {
                    Given::In(&sorter)
                } else {
                    Given::Nothing
                },
            ];
            let what = format!("{name} of {sizes:?} in {lines:?}, right {right}, side {side:?}");
            let expected = [Some(&*expected.values)];
            schema_gives(on, name, &arguments, &[Some(&out)], &expected, &what)?;
        }
    }
    Ok(())
}

/// A search never stops at NaN, so NaN stands behind everything, and what is compared with NaN behind that.
pub(super) fn search_with_nan(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    searchsorted(on, name, dtype)?;
    let line = Operand::dense(on, dtype, &[4], &[1.0, 2.0, 3.0, f64::NAN])?;
    let values = Operand::dense(on, dtype, &[4], &[0.0, f64::NAN, 2.0, 9.0])?;
    for (right, expected) in [(false, [0.0, 4.0, 1.0, 4.0]), (true, [0.0, 4.0, 2.0, 4.0])] {
        let out = empty(on, DType::I64, &[4])?;
        let given = [
            Given::In(&line),
            Given::In(&values),
            Given::Truth(false),
            Given::Truth(right),
            Given::Nothing,
            Given::Nothing,
        ];
        let what = format!("{name} with NaN, right {right}");
        schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
    }
    Ok(())
}
