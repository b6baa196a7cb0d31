//! Elementwise operators: of one input, of two inputs, and conversions.

use outrigger_device::DType;

use super::numbers::{count, rounded, values};
use super::operand::{Number, Operand, Runner, gives, gives_with};
use crate::Verdict;
use crate::verdict::equal;

/// Empty, one, odd, several dimensions, and large enough for threads.
const SHAPES: &[&[i64]] = &[
    &[0],
    &[1],
    &[7],
    &[33],
    &[3, 5],
    &[2, 1, 9],
    &[4, 0, 3],
    &[257],
    &[64, 65],
    &[70_001],
];

pub(super) fn unary(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    range: (f64, f64),
    reference: fn(f64) -> f64,
) -> Verdict {
    let result = |x: f64| rounded(dtype, reference(x));
    for (seed, sizes) in SHAPES.iter().enumerate() {
        let inputs = values(dtype, count(sizes), range, on.seed() ^ seed as u64);
        let (a, out) = (
            Operand::dense(on, dtype, sizes, &inputs)?,
            Operand::dense(on, dtype, sizes, &vec![99.0; inputs.len()])?,
        );
        let expected: Vec<f64> = inputs.iter().map(|x| result(*x)).collect();
        let what = format!("{name} of {sizes:?}");
        gives(on, name, &[&a], &[&out], &[], &expected, &what)?;
        equal!(a.values(on, &what)?, inputs, "the input of {what}");
    }
    // Every third element of memory, written to every second.
    let inputs = values(dtype, 3 * 50, range, 5);
    let (a, out) = (
        Operand::new(on, dtype, &[50], &[3], &inputs)?,
        Operand::new(on, dtype, &[50], &[2], &[77.0; 100])?,
    );
    let expected: Vec<f64> = (0..100)
        .map(|at| match at % 2 {
            0 => result(inputs[at / 2 * 3]),
            _ => rounded(dtype, 77.0),
        })
        .collect();
    let what = format!("{name} with strides");
    gives(on, name, &[&a], &[&out], &[], &expected, &what)?;
    let inputs = values(dtype, 999, range, 6);
    let a = Operand::dense(on, dtype, &[999], &inputs)?;
    let expected: Vec<f64> = inputs.iter().map(|x| result(*x)).collect();
    let what = format!("{name} in place");
    gives(on, name, &[&a], &[&a], &[], &expected, &what)
}

fn binary(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    range: (f64, f64),
    reference: fn(f64, f64) -> f64,
) -> Verdict {
    let result = |x: f64, y: f64| rounded(dtype, reference(x, y));
    for (seed, sizes) in SHAPES.iter().enumerate() {
        let count = count(sizes);
        let (x, y) = (
            values(dtype, count, range, 2 * seed as u64),
            values(dtype, count, range, 2 * seed as u64 + 1),
        );
        let (a, b) = (
            Operand::dense(on, dtype, sizes, &x)?,
            Operand::dense(on, dtype, sizes, &y)?,
        );
        let out = Operand::dense(on, dtype, sizes, &vec![99.0; count])?;
        let expected: Vec<f64> = x.iter().zip(&y).map(|(x, y)| result(*x, *y)).collect();
        let what = format!("{name} of {sizes:?}");
        gives(on, name, &[&a, &b], &[&out], &[], &expected, &what)?;
    }
    // A row over a column, both broadcast; the row as it is, too.
    let (x, y) = (values(dtype, 17, range, 50), values(dtype, 23, range, 51));
    let a = Operand::new(on, dtype, &[17, 23], &[1, 0], &x)?;
    let expected: Vec<f64> = x
        .iter()
        .flat_map(|x| y.iter().map(|y| result(*x, *y)))
        .collect();
    for row in [
        Operand::new(on, dtype, &[17, 23], &[0, 1], &y)?,
        Operand::dense(on, dtype, &[23], &y)?,
    ] {
        let out = Operand::dense(on, dtype, &[17, 23], &[99.0; 17 * 23])?;
        let what = format!("{name}, broadcast");
        gives(on, name, &[&a, &row], &[&out], &[], &expected, &what)?;
    }
    // One input from its end, every second one of the other, and the output in columns.
    let (x, y) = (values(dtype, 15, range, 60), values(dtype, 29, range, 61));
    let (a, b) = (
        Operand::new(on, dtype, &[5, 3], &[-3, -1], &x)?,
        Operand::new(on, dtype, &[5, 3], &[6, 2], &y)?,
    );
    let out = Operand::new(on, dtype, &[5, 3], &[1, 5], &[99.0; 15])?;
    let expected: Vec<f64> = (0..15)
        .map(|at| at % 5 * 3 + at / 5)
        .map(|at| result(x[14 - at], y[2 * at]))
        .collect();
    let what = format!("{name} with strides");
    gives(on, name, &[&a, &b], &[&out], &[], &expected, &what)
}

/// An operator of two inputs whose second one may be a scalar, and is multiplied by one if it is `scaled`.
pub(super) fn arithmetic(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    range: (f64, f64),
    reference: fn(f64, f64) -> f64,
    scaled: bool,
) -> Verdict {
    binary(on, name, dtype, range, reference)?;
    let result = |x: f64, y: f64| rounded(dtype, reference(x, y));
    let sizes = [500];
    let x = values(dtype, 500, range, 70);
    // Small enough that twice of it fits into every dtype.
    let y = values(
        dtype,
        500,
        (range.0, range.0 + 0.4 * (range.1 - range.0)),
        71,
    );
    let (a, b) = (
        Operand::dense(on, dtype, &sizes, &x)?,
        Operand::dense(on, dtype, &sizes, &y)?,
    );
    let out = || Operand::dense(on, dtype, &sizes, &[99.0; 500]);
    let is_real = matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16);
    let real = |number: i64| Number::Real(number as f64);
    // A real number changes the type of integers.
    let kinds: &[fn(i64) -> Number] = match is_real {
        true => &[real, Number::Whole],
        false => &[Number::Whole],
    };
    for number in kinds {
        for (value, factor) in [(3, 1), (3, 2)] {
            let (scalars, second) = match scaled {
                true => (vec![number(value), number(factor)], value * factor),
                false => (vec![number(value)], value),
            };
            let expected: Vec<f64> = x.iter().map(|x| result(*x, second as f64)).collect();
            let what = format!("{name} with {scalars:?} in place of the second input");
            gives_with(on, name, &[&a], &[&out()?], &scalars, &expected, &what)?;
            if scaled {
                let scalars = [number(factor)];
                let pairs = x.iter().zip(&y);
                let expected: Vec<f64> =
                    pairs.map(|(x, y)| result(*x, factor as f64 * y)).collect();
                let what = format!("{name} with {scalars:?}");
                gives_with(on, name, &[&a, &b], &[&out()?], &scalars, &expected, &what)?;
            }
        }
    }
    // An integer beside a real number is converted.
    if is_real {
        let whole = values(DType::I32, 500, (1.0, 9.0), 72);
        let c = Operand::dense(on, DType::I32, &sizes, &whole)?;
        let pairs = whole.iter().zip(&x);
        let expected: Vec<f64> = pairs.map(|(x, y)| result(*x, *y)).collect();
        let what = format!("{name} of i32 and {dtype}");
        gives(on, name, &[&c, &a], &[&out()?], &[], &expected, &what)?;
    }
    Ok(())
}

/// Casts from each dtype to one.
pub(super) fn cast(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for from in [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U8,
        DType::BOOL,
    ] {
        for size in [0usize, 1, 7, 1000] {
            let x = values(from, size, (0.0, 100.0), size as u64);
            let (a, out) = (
                Operand::dense(on, from, &[size as i64], &x)?,
                Operand::dense(on, dtype, &[size as i64], &vec![55.0; size])?,
            );
            let expected: Vec<f64> = x.iter().map(|x| rounded(dtype, *x)).collect();
            let what = format!("{size} elements of {from:?} as {dtype:?}");
            gives(on, name, &[&a], &[&out], &[], &expected, &what)?;
            let found = out.values(on, &what)?;
            // If a cast is unsupported, all elements are as they were.
            if from == DType::F32 && found.iter().any(|found| *found != rounded(dtype, 55.0)) {
                equal!(found, expected, "{what}, rounded to the nearest");
            }
        }
    }
    Ok(())
}
