//! Linear layers against their definition.

use outrigger_device::DType;

use super::numbers::{count, values};
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

/// The integral of the normal density up to x, by Simpson's rule.
fn normal_up_to(x: f64) -> f64 {
    const STEPS: i32 = 2000;
    let density = |t: f64| (-0.5 * t * t).exp() / std::f64::consts::TAU.sqrt();
    let width = x / f64::from(STEPS);
    let weight = |step| match step {
        0 | STEPS => 1.0,
        step if step % 2 == 1 => 4.0,
        _ => 2.0,
    };
    let terms = (0..=STEPS).map(|step| weight(step) * density(width * f64::from(step)));
    0.5 + terms.sum::<f64>() * width / 3.0
}

fn activation(number: i64, x: f64) -> f64 {
    match number {
        1 => x.max(0.0),
        2 => x * normal_up_to(x),
        3 => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        4 => x * (1.0 / (1.0 + (-x).exp())),
        _ => x,
    }
}

pub(super) fn linear(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    // Sizes of the input, columns of the result.
    let cases: [(&[i64], i64); 5] = [
        (&[3, 5], 4),
        (&[2, 3, 7], 5),
        (&[6], 3),
        (&[4, 1], 2),
        (&[0, 4], 3),
    ];
    for (number, (sizes, columns)) in (0i64..).zip(cases) {
        let (seed, depth) = (10 * number as u64, sizes[sizes.len() - 1]);
        let rows = &sizes[..sizes.len() - 1];
        let of_out = [rows, &[columns]].concat();
        let x = values(dtype, count(sizes), (-1.0, 1.0), seed);
        let weight = values(dtype, count(&[columns, depth]), (-1.0, 1.0), seed + 1);
        let bias = values(dtype, columns as usize, (-1.0, 1.0), seed + 2);
        let residual = values(dtype, count(&of_out), (-1.0, 1.0), seed + 3);
        // The weight lies in memory by columns.
        let (n, k) = (columns as usize, depth as usize);
        let turned: Vec<f64> = (0..n * k).map(|at| weight[at % n * k + at / n]).collect();
        let operands = [
            Operand::dense(on, dtype, sizes, &x)?,
            Operand::new(on, dtype, &[columns, depth], &[1, columns], &turned)?,
            Operand::dense(on, dtype, &[columns], &bias)?,
            Operand::dense(on, dtype, &of_out, &residual)?,
        ];
        for (way, (with_bias, with_residual)) in [
            (0, (false, false)),
            (1, (true, false)),
            (2, (true, true)),
            (3, (false, true)),
            (4, (true, true)),
        ] {
            let mut expected = vec![0.0; count(&of_out)];
            for (at, value) in expected.iter_mut().enumerate() {
                let (row, column) = (at / n, at % n);
                let products = (0..k).map(|one| x[row * k + one] * weight[column * k + one]);
                let sum = products.sum::<f64>() + if with_bias { bias[column] } else { 0.0 };
                let added = if with_residual { residual[at] } else { 0.0 };
                *value = activation(way, sum) + added;
            }
            let out = Operand::dense(on, dtype, &of_out, &vec![9.0; expected.len()])?;
            let optional = |with: bool, at: usize| {
                if with {
                    Given::In(&operands[at])
                } else {
                    Given::Nothing
                }
            };
            let given = [
                Given::In(&operands[0]),
                Given::In(&operands[1]),
                optional(with_bias, 2),
                optional(with_residual, 3),
                Given::Int(way),
            ];
            let what = format!("{name} of {sizes:?} to {columns}, activation {way}");
            schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
        }
    }
    Ok(())
}

/// Factors of 8 bits, with a scale for the whole and with scales of rows and columns.
pub(super) fn scaled_mm(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    let kinds = [
        (DType::F8E4M3, DType::F8E4M3),
        (DType::F8E4M3, DType::F8E5M2),
        (DType::F8E5M2, DType::F8E4M3),
    ];
    for (seed, (m, n, k)) in (0..).zip([(3, 5, 16), (1, 2, 7), (17, 16, 32), (2, 3, 0)]) {
        for (of_a, of_b) in kinds {
            let a = values(of_a, m * k, (-8.0, 8.0), seed);
            let b = values(of_b, k * n, (-2.0, 2.0), 10 + seed);
            let bias = values(dtype, n, (-1.0, 1.0), 20 + seed);
            // The second factor lies in memory by columns, as a weight does.
            let turned: Vec<f64> = (0..n * k).map(|at| b[at % k * n + at / k]).collect();
            let factors = [
                Operand::dense(on, of_a, &[m as i64, k as i64], &a)?,
                Operand::new(on, of_b, &[k as i64, n as i64], &[1, k as i64], &turned)?,
            ];
            for (by_row, with_bias) in [(false, false), (false, true), (true, false), (true, true)]
            {
                let (rows, columns) = if by_row { (m, n) } else { (1, 1) };
                let left = values(DType::F32, rows, (0.05, 0.5), 30 + seed);
                let right = values(DType::F32, columns, (0.05, 0.5), 40 + seed);
                let mut expected = vec![0.0; m * n];
                for (at, value) in expected.iter_mut().enumerate() {
                    let (row, column) = (at / n, at % n);
                    for one in 0..k {
                        *value += a[row * k + one] * b[one * n + column];
                    }
                    *value *= left[row % rows] * right[column % columns];
                    if with_bias {
                        *value += bias[column];
                    }
                }
                let out = Operand::dense(on, dtype, &[m as i64, n as i64], &vec![9.0; m * n])?;
                let scales = [
                    Operand::dense(on, DType::F32, &[rows as i64, 1], &left)?,
                    Operand::dense(on, DType::F32, &[1, columns as i64], &right)?,
                ];
                let kept = Operand::dense(on, dtype, &[n as i64], &bias)?;
                let given = [
                    Given::In(&factors[0]),
                    Given::In(&factors[1]),
                    Given::In(&scales[0]),
                    Given::In(&scales[1]),
                    if with_bias {
                        Given::In(&kept)
                    } else {
                        Given::Nothing
                    },
                    Given::Nothing,
                    Given::Dtype(dtype),
                    Given::Truth(false),
                ];
                let what = format!("{name} of {of_a} [{m}, {k}] and {of_b}, by rows: {by_row}");
                schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
            }
        }
    }
    Ok(())
}

/// Weights of so many bits, with zeros or without.
pub(super) fn quantized_mm(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, (m, n, k, group)) in (0..).zip([(3, 5, 8, 4), (1, 2, 6, 6), (4, 3, 12, 2)]) {
        let x = values(dtype, m * k, (-1.0, 1.0), seed);
        let scales = values(dtype, n * (k / group), (0.05, 0.2), 10 + seed);
        let zeros = values(dtype, n * (k / group), (0.0, 9.0), 20 + seed);
        for (bits, with_zeros) in [(8, false), (8, true), (4, false), (4, true)] {
            let range = match (bits, with_zeros) {
                (8, _) => (-128.0, 127.99),
                (_, false) => (-8.0, 7.99),
                (_, true) => (0.0, 15.99),
            };
            let weight = values(DType::F64, n * k, range, 30 + seed);
            let weight: Vec<f64> = weight.iter().map(|value| value.floor()).collect();
            let sizes = |columns: usize| [n as i64, columns as i64];
            let kept = if bits == 8 {
                Operand::dense(on, DType::I8, &sizes(k), &weight)?
            } else {
                let halves =
                    |two: &[f64]| (two[0] as i64 & 15) as f64 + 16.0 * (two[1] as i64 & 15) as f64;
                let bytes: Vec<f64> = weight.chunks(2).map(halves).collect();
                Operand::dense(on, DType::U8, &sizes(k / 2), &bytes)?
            };
            let mut expected = vec![0.0; m * n];
            for (at, value) in expected.iter_mut().enumerate() {
                let (row, column) = (at / n, at % n);
                for one in 0..k {
                    let of_group = column * (k / group) + one / group;
                    let zero = if with_zeros { zeros[of_group] } else { 0.0 };
                    *value +=
                        x[row * k + one] * (weight[column * k + one] - zero) * scales[of_group];
                }
            }
            let out = Operand::dense(on, dtype, &[m as i64, n as i64], &vec![9.0; m * n])?;
            let (x, scales, zeros) = (
                Operand::dense(on, dtype, &[m as i64, k as i64], &x)?,
                Operand::dense(on, dtype, &sizes(k / group), &scales)?,
                Operand::dense(on, dtype, &sizes(k / group), &zeros)?,
            );
            let given = [
                Given::In(&x),
                Given::In(&kept),
                Given::In(&scales),
                if with_zeros {
                    Given::In(&zeros)
                } else {
                    Given::Nothing
                },
                Given::Int(group as i64),
                Given::Int(bits),
            ];
            let what = format!("{name} of {bits} bits in groups of {group}, zeros: {with_zeros}");
            schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
        }
    }
    Ok(())
}
