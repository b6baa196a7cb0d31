//! Scatter and the index operators against loops over lists.

use outrigger_device::DType;

use super::numbers::{count, rounded, values};
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

/// The result of an operator for the element that is there and those that go to its place, in their order.
type Join = fn(f64, &[f64]) -> f64;

const SIZES: [i64; 3] = [4, 5, 3];

/// The number of an element in a tensor of these sizes.
fn number(sizes: &[i64; 3], place: [i64; 3]) -> usize {
    ((place[0] * sizes[1] + place[1]) * sizes[2] + place[2]) as usize
}

fn each(sizes: [i64; 3]) -> impl Iterator<Item = [i64; 3]> {
    let pairs = move |i| (0..sizes[1]).flat_map(move |j| (0..sizes[2]).map(move |k| [i, j, k]));
    (0..sizes[0]).flat_map(pairs)
}

/// The result of `join` for each element, when sources go to targets.
fn joined(input: &[f64], moves: &[(usize, f64)], join: Join) -> Vec<f64> {
    let go = |to: usize| -> Vec<f64> {
        let here = moves.iter().filter(|(target, _)| *target == to);
        here.map(|(_, value)| *value).collect()
    };
    input
        .iter()
        .enumerate()
        .map(|(at, old)| join(*old, &go(at)))
        .collect()
}

fn floats(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
}

/// An operator whose index has a size for each dimension. `last` are the arguments behind the source.
pub(super) fn scatter(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    last: &[Given<'_>],
    join: Join,
) -> Verdict {
    let range = if floats(dtype) {
        (-2.0, 2.0)
    } else {
        (0.0, 3.0)
    };
    for (seed, dim) in [(0, 0usize), (1, 1), (2, 2)] {
        // The indices have fewer elements than input and source in each dimension.
        let (picked, of_source) = ([3, 4, 2], [4, 4, 3]);
        let x = values(dtype, count(&SIZES), range, seed);
        let source = values(dtype, count(&of_source), range, 10 + seed);
        let limit = SIZES[dim] as f64 - 0.001;
        let targets: Vec<f64> = values(DType::F64, count(&picked), (0.0, limit), 20 + seed);
        let targets: Vec<f64> = if name == "scatter" {
            // Elements that go to one place would be there in any order: each goes to its own.
            each(picked)
                .map(|place| ((place[dim] + 1) % SIZES[dim]) as f64)
                .collect()
        } else {
            targets.iter().map(|one| one.floor()).collect()
        };
        let moves: Vec<_> = each(picked)
            .zip(&targets)
            .map(|(mut place, target)| {
                let from = source[number(&of_source, place)];
                place[dim] = *target as i64;
                (number(&SIZES, place), from)
            })
            .collect();
        let expected: Vec<f64> = joined(&x, &moves, join)
            .into_iter()
            .map(|one| rounded(dtype, one))
            .collect();
        let input = Operand::dense(on, dtype, &SIZES, &x)?;
        let out = Operand::dense(on, dtype, &SIZES, &vec![9.0; x.len()])?;
        let from = Operand::dense(on, dtype, &of_source, &source)?;
        for index_type in [DType::I64, DType::I32] {
            let index = Operand::dense(on, index_type, &picked, &targets)?;
            let first = [
                Given::In(&input),
                Given::Int(dim as i64 - 3),
                Given::In(&index),
                Given::In(&from),
            ];
            let given = [&first[..], last].concat();
            let what = format!("{name} along dimension {dim}, indices of {index_type}");
            schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
            // The operator works in place.
            let own = Operand::dense(on, dtype, &SIZES, &x)?;
            let first = [
                Given::In(&own),
                Given::Int(dim as i64),
                Given::In(&index),
                Given::In(&from),
            ];
            let given = [&first[..], last].concat();
            schema_gives(on, name, &given, &[Some(&own)], &[Some(&expected)], &what)?;
        }
    }
    Ok(())
}

/// An operator whose index names slices.
pub(super) fn slices(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    last: &[Given<'_>],
    join: Join,
) -> Verdict {
    let range = if floats(dtype) {
        (-2.0, 2.0)
    } else {
        (0.0, 9.0)
    };
    for (seed, dim) in [(0, 0usize), (1, 1), (2, 2)] {
        let picks: Vec<i64> = match name {
            "index_add" => vec![2, 0, 2],
            _ => vec![2, 0],
        };
        let mut of_source = SIZES;
        of_source[dim] = picks.len() as i64;
        let x = values(dtype, count(&SIZES), range, 30 + seed);
        let source = values(dtype, count(&of_source), range, 40 + seed);
        let moves: Vec<_> = each(of_source)
            .map(|mut place| {
                let from = source[number(&of_source, place)];
                place[dim] = picks[place[dim] as usize];
                (number(&SIZES, place), from)
            })
            .collect();
        let expected: Vec<f64> = joined(&x, &moves, join)
            .into_iter()
            .map(|one| rounded(dtype, one))
            .collect();
        let input = Operand::dense(on, dtype, &SIZES, &x)?;
        // Columns of memory, one of two used.
        let strides = [2 * SIZES[1] * SIZES[2], 2 * SIZES[2], 2];
        let mut between = vec![rounded(dtype, 1.0); 2 * x.len() - 1];
        let out = Operand::new(on, dtype, &SIZES, &strides, &between)?;
        for (at, value) in expected.iter().enumerate() {
            between[2 * at] = *value;
        }
        // index_fill counts from the end, too.
        let named = |pick: i64| {
            if name == "index_fill" && pick == 0 {
                -SIZES[dim]
            } else {
                pick
            }
        };
        let list: Vec<f64> = picks.iter().map(|pick| named(*pick) as f64).collect();
        let index = Operand::dense(on, DType::I64, &[picks.len() as i64], &list)?;
        let from = Operand::dense(on, dtype, &of_source, &source)?;
        let first = [Given::In(&input), Given::Int(dim as i64), Given::In(&index)];
        let given = match name {
            "index_fill" => [&first[..], last].concat(),
            _ => [&first[..], &[Given::In(&from)], last].concat(),
        };
        let what = format!("{name} along dimension {dim}");
        schema_gives(on, name, &given, &[Some(&out)], &[Some(&between)], &what)?;
    }
    Ok(())
}

/// A place that several go to keeps the value that was not moved there if nothing was.
pub(super) fn or_old(old: f64, moved: &[f64], join: fn(&[f64]) -> f64) -> f64 {
    if moved.is_empty() { old } else { join(moved) }
}

/// Checks which elements indices pick, and where they are put.
pub(super) fn index_put(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    let range = if floats(dtype) {
        (-2.0, 2.0)
    } else {
        (0.0, 9.0)
    };
    let x = values(dtype, count(&SIZES), range, 50);
    let list = |values: &[f64], sizes: &[i64]| Operand::dense(on, DType::I64, sizes, values);
    // Rows by a column of indices, and the last dimension by a row of them: both are broadcast to [2, 3].
    let (rows, last) = ([3.0, -3.0], [0.0, 2.0, 0.0]);
    let (by_row, by_last) = (list(&rows, &[2, 1])?, list(&last, &[3])?);
    let indices = [Some(&by_row), None, Some(&by_last)];
    let picked = [2, 3, SIZES[1]];
    let source = values(dtype, count(&picked), range, 51);
    let target = |[i, j, k]: [i64; 3]| {
        let row = (rows[i as usize] as i64).rem_euclid(SIZES[0]);
        number(&SIZES, [row, k, last[j as usize] as i64])
    };
    for accumulate in [true, false] {
        let mut expected = x.clone();
        for (place, value) in each(picked).zip(&source) {
            let at = target(place);
            // Two values that go to one place without a sum are the same.
            let value = if accumulate {
                expected[at] + value
            } else {
                source[number(&picked, [place[0], 0, place[2]])]
            };
            expected[at] = value;
        }
        let mut given = source.clone();
        if !accumulate {
            for (at, place) in each(picked).enumerate() {
                given[at] = source[number(&picked, [place[0], 0, place[2]])];
            }
        }
        let expected: Vec<f64> = expected
            .into_iter()
            .map(|one| rounded(dtype, one))
            .collect();
        let out = Operand::dense(on, dtype, &SIZES, &x)?;
        let from = Operand::dense(on, dtype, &picked, &given)?;
        let arguments = [
            Given::InPlace(&out),
            Given::Ins(&indices),
            Given::In(&from),
            Given::Truth(accumulate),
            Given::Truth(false),
        ];
        let what = format!("{name}, sum {accumulate}");
        schema_gives(on, name, &arguments, &[], &[Some(&expected)], &what)?;
        let result = Operand::dense(on, dtype, &picked, &vec![1.0; source.len()])?;
        let got: Vec<f64> = each(picked).map(|place| expected[target(place)]).collect();
        let arguments = [Given::In(&out), Given::Ins(&indices)];
        schema_gives(
            on,
            "index",
            &arguments,
            &[Some(&result)],
            &[Some(&got)],
            "index of the result",
        )?;
    }
    Ok(())
}

/// Elements of the source go in order to where the mask is true.
pub(super) fn masked_scatter(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    let range = if floats(dtype) {
        (-2.0, 2.0)
    } else {
        (0.0, 9.0)
    };
    // The input and the mask are broadcast to 4 by 5 by 3.
    for (of_input, of_mask) in [
        (SIZES, SIZES),
        (SIZES, [1, 5, 1]),
        ([4, 1, 3], SIZES),
        ([1, 5, 3], [4, 1, 3]),
    ] {
        let x = values(dtype, count(&of_input), range, 60);
        let source = values(dtype, 60, range, 61);
        let mask: Vec<f64> = (0..count(&of_mask))
            .map(|at| f64::from(u8::from(at % 3 != 1)))
            .collect();
        let within = |sizes: [i64; 3], place: [i64; 3]| {
            let place = [0, 1, 2].map(|dim| place[dim] % sizes[dim]);
            number(&sizes, place)
        };
        let mut next = source.iter();
        let expected: Vec<f64> = each(SIZES)
            .map(|place| match mask[within(of_mask, place)] {
                1.0 => next.next().copied().unwrap_or(f64::NAN),
                _ => x[within(of_input, place)],
            })
            .collect();
        let input = Operand::dense(on, dtype, &of_input, &x)?;
        let mask = Operand::dense(on, DType::BOOL, &of_mask, &mask)?;
        let from = Operand::dense(on, dtype, &[10, 6], &source)?;
        let out = Operand::dense(on, dtype, &SIZES, &[9.0; 60])?;
        let given = [&input, &mask, &from].map(Given::In);
        let what = format!("{name} of {of_input:?} where {of_mask:?}");
        schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
    }
    Ok(())
}
