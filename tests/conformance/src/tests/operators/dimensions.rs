//! Operators that go over whole dimensions: reductions, normalizations and products of matrices.

use outrigger_device::DType;

use super::numbers::{count, limit, rounded, values};
use super::operand::{Operand, Runner, gives};
use crate::Verdict;

/// Reductions over each dimension of three.
pub(super) fn reduce(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    reference: fn(&[f64]) -> f64,
) -> Verdict {
    let range = if limit(dtype) > 0.0 {
        (-2.0, 2.0)
    } else {
        (0.0, 50.0)
    };
    for (seed, sizes) in [[1, 1, 1], [3, 5, 7], [17, 1, 64], [2, 300, 9], [5, 33, 129]]
        .into_iter()
        .enumerate()
    {
        let inputs = values(dtype, count(&sizes), range, seed as u64);
        for dim in 0..3 {
            let mut kept = sizes;
            kept[dim] = 1;
            let (a, out) = (
                Operand::dense(on, dtype, &sizes, &inputs)?,
                Operand::dense(on, dtype, &kept, &vec![99.0; count(&kept)])?,
            );
            let expected: Vec<f64> = rows(&inputs, &sizes, dim)
                .iter()
                .map(|row| rounded(dtype, reference(row)))
                .collect();
            let what = format!("{name} of {sizes:?} over dimension {dim}");
            gives(on, name, &[&a], &[&out], &[], &expected, &what)?;
        }
    }
    // From columns in memory to every second element, over one dimension and several.
    let sizes = [4usize, 5, 6];
    let inputs = values(dtype, 120, range, 9);
    let a = Operand::new(on, dtype, &[4, 5, 6], &[1, 4, 20], &inputs)?;
    for reduced in [&[0][..], &[1], &[0, 2], &[1, 2], &[0, 1, 2]] {
        let kept = [0, 1, 2].map(|dim| {
            if reduced.contains(&dim) {
                1
            } else {
                sizes[dim]
            }
        });
        let mut groups = vec![Vec::new(); kept.iter().product()];
        for (at, value) in inputs.iter().enumerate() {
            let place = [at % 4, at / 4 % 5, at / 20];
            let group = (0..3).fold(0, |group, dim| group * kept[dim] + place[dim] % kept[dim]);
            groups[group].push(*value);
        }
        let expected: Vec<f64> = groups
            .iter()
            .flat_map(|group| [reference(group), 77.0].map(|value| rounded(dtype, value)))
            .collect();
        let kept = kept.map(|size| size as i64);
        let strides = [2 * kept[1] * kept[2], 2 * kept[2], 2];
        let out = Operand::new(on, dtype, &kept, &strides, &vec![77.0; expected.len()])?;
        let what = format!("{name} of columns over dimensions {reduced:?}");
        gives(on, name, &[&a], &[&out], &[], &expected, &what)?;
    }
    Ok(())
}

/// The values along a dimension, for each place of the others in row-major order.
fn rows(values: &[f64], sizes: &[i64; 3], dim: usize) -> Vec<Vec<f64>> {
    let sizes = sizes.map(|size| size as usize);
    let strides = [sizes[1] * sizes[2], sizes[2], 1];
    let others: Vec<usize> = (0..3).filter(|at| *at != dim).collect();
    let mut rows = Vec::new();
    for i in 0..sizes[others[0]] {
        for j in 0..sizes[others[1]] {
            let start = i * strides[others[0]] + j * strides[others[1]];
            rows.push(
                (0..sizes[dim])
                    .map(|at| values[start + at * strides[dim]])
                    .collect(),
            );
        }
    }
    rows
}

pub(super) fn softmax(on: &dyn Runner, name: &str, dtype: DType, log: bool) -> Verdict {
    for (seed, sizes) in [[1usize, 1, 1], [3, 5, 7], [2, 300, 9]]
        .into_iter()
        .enumerate()
    {
        let count = sizes.iter().product();
        let inputs = values(dtype, count, (-4.0, 4.0), seed as u64);
        let extents = sizes.map(|size| size as i64);
        let (a, out) = (
            Operand::dense(on, dtype, &extents, &inputs)?,
            Operand::dense(on, dtype, &extents, &vec![99.0; count])?,
        );
        let expected: Vec<f64> = inputs
            .iter()
            .enumerate()
            .map(|(at, x)| {
                // The elements that differ from this one in the dimension only.
                let first = at / (sizes[1] * sizes[2]) * sizes[1] * sizes[2] + at % sizes[2];
                let row = (0..sizes[1]).map(|i| inputs[first + i * sizes[2]].exp());
                let total: f64 = row.sum();
                if log { x - total.ln() } else { x.exp() / total }
            })
            .collect();
        let what = format!("{name} of {sizes:?}");
        gives(on, name, &[&a], &[&out], &[1.0], &expected, &what)?;
    }
    Ok(())
}

pub(super) fn mm(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, [m, k, n]) in [
        [1, 1, 1],
        [3, 5, 7],
        [16, 16, 16],
        [33, 65, 17],
        [1, 300, 2],
        [96, 128, 80],
        [2, 0, 3],
    ]
    .into_iter()
    .enumerate()
    {
        let (x, y) = (
            values(dtype, m * k, (-1.0, 1.0), seed as u64),
            values(dtype, k * n, (-1.0, 1.0), 100 + seed as u64),
        );
        let expected: Vec<f64> = (0..m * n)
            .map(|at| (0..k).map(|i| x[at / n * k + i] * y[i * n + at % n]).sum())
            .collect();
        // The second as it is, and transposed in memory.
        let transposed: Vec<f64> = (0..k * n).map(|at| y[at % k * n + at / k]).collect();
        let (rows, inner, columns) = (m as i64, k as i64, n as i64);
        let a = Operand::dense(on, dtype, &[rows, inner], &x)?;
        for (b, strides) in [(&y, [columns, 1]), (&transposed, [1, inner])] {
            let b = Operand::new(on, dtype, &[inner, columns], &strides, b)?;
            let out = Operand::dense(on, dtype, &[rows, columns], &vec![99.0; m * n])?;
            let what = format!("{name} of {m} x {k} by {k} x {n}, strides {strides:?}");
            gives(on, name, &[&a, &b], &[&out], &[], &expected, &what)?;
        }
        // Every second element of memory, and a result in columns.
        let spread: Vec<f64> = x.iter().flat_map(|x| [*x, 50.0]).collect();
        let (a, b, out) = (
            Operand::new(on, dtype, &[rows, inner], &[2 * inner, 2], &spread)?,
            Operand::dense(on, dtype, &[inner, columns], &y)?,
            Operand::new(on, dtype, &[rows, columns], &[1, rows], &vec![99.0; m * n])?,
        );
        let turned: Vec<f64> = (0..m * n).map(|at| expected[at % m * n + at / m]).collect();
        let what = format!("{name} of {m} x {k} by {k} x {n}, into columns");
        gives(on, name, &[&a, &b], &[&out], &[], &turned, &what)?;
    }
    Ok(())
}

pub(super) fn layer_norm(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, [rows, width]) in [[1usize, 1usize], [3, 7], [17, 64], [5, 300]]
        .into_iter()
        .enumerate()
    {
        let x = values(dtype, rows * width, (-2.0, 3.0), seed as u64);
        let (weight, bias) = (
            values(dtype, width, (0.5, 1.5), 7),
            values(dtype, width, (-1.0, 1.0), 8),
        );
        let sizes = [rows as i64, width as i64];
        let dense = |sizes: &[i64], values: &[f64]| Operand::dense(on, dtype, sizes, values);
        let inputs = [
            dense(&sizes, &x)?,
            dense(&sizes[1..], &weight)?,
            dense(&sizes[1..], &bias)?,
        ];
        let out = dense(&sizes, &vec![99.0; x.len()])?;
        // Statistics of half precision are kept in f32 by some and in half by others: f32 where it is half.
        let wide = if matches!(dtype, DType::F16 | DType::BF16) {
            DType::F32
        } else {
            dtype
        };
        let statistic = || Operand::dense(on, wide, &[rows as i64, 1], &vec![99.0; rows]);
        let (mean, rstd) = (statistic()?, statistic()?);
        let expected: Vec<f64> = x
            .chunks(width)
            .flat_map(|row| {
                let mean = row.iter().sum::<f64>() / width as f64;
                let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
                let scale = 1.0 / (variance + 1e-5).sqrt();
                row.iter()
                    .zip(weight.iter().zip(&bias))
                    .map(move |(x, (w, b))| (x - mean) * scale * w + b)
                    .collect::<Vec<_>>()
            })
            .collect();
        let what = format!("{name} of {rows} rows of {width}");
        let [x, weight, bias] = &inputs;
        let outputs = [&out, &mean, &rstd];
        gives(
            on,
            name,
            &[x, weight, bias],
            &outputs,
            &[1.0, 1e-5],
            &expected,
            &what,
        )?;
    }
    Ok(())
}
