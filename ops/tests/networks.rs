//! Matrix products and the operators of neural networks against f64 references.

mod common;

use common::{Array, Rng, absent, assert_close, call, tolerance, try_call};
use outrigger_ops::{Code, DType, PlanError, Scalar};
use proptest::prelude::*;

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]

    #[test]
    fn products_match(b in 1..3i64, m in 0..40i64, n in 0..40i64, k in 0..40i64, seed in any::<u64>(), dtype in 0..6usize) {
        let dtype = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64, DType::I32][dtype];
        let mut rng = Rng(seed);
        let left = Array::scattered(dtype, &[b, m, k], &mut rng).filled(&mut rng, 2.0);
        let right = Array::scattered(dtype, &[b, k, n], &mut rng).filled(&mut rng, 2.0);
        let bias = Array::scattered(dtype, &[n], &mut rng).filled(&mut rng, 2.0);
        let mut out = Array::scattered(dtype, &[b, m, n], &mut rng);
        let mut scaled = Array::scattered(dtype, &[b, m, n], &mut rng);
        call("bmm", &[&left, &right], &mut [&mut out], &[]);
        call("baddbmm", &[&bias, &left, &right], &mut [&mut scaled], &[Scalar::I64(3), Scalar::I64(2)]);
        let close = tolerance(dtype) * (k.max(1) as f64);
        for index in 0..out.numel() {
            let [batch, row, column] = out.indices(index)[..] else { unreachable!() };
            let want: f64 = (0..k).map(|i| left.at(&[batch, row, i]) * right.at(&[batch, i, column])).sum();
            assert_close(out.get(index), want, close, (dtype, m, n, k));
            assert_close(scaled.get(index), 3.0 * bias.at(&[column]) + 2.0 * want, close, ("bias", dtype, m, n, k));
        }
    }
}

#[test]
fn products_of_vectors_and_in_place_bias() {
    let mut rng = Rng(1);
    let (a, x) = (
        Array::dense(DType::F32, &[70, 300]).filled(&mut rng, 1.0),
        Array::dense(DType::F32, &[300]).filled(&mut rng, 1.0),
    );
    let (mut y, mut dot) = (
        Array::dense(DType::F32, &[70]),
        Array::dense(DType::F32, &[]),
    );
    call("mv", &[&a, &x], &mut [&mut y], &[]);
    for row in 0..70 {
        let want: f64 = (0..300).map(|k| a.at(&[row, k]) * x.get(k)).sum();
        assert_close(y.get(row), want, 1e-5, row);
    }
    call("dot", &[&x, &x], &mut [&mut dot], &[]);
    assert_close(
        dot.get(0),
        x.values().iter().map(|x| x * x).sum(),
        1e-5,
        "dot",
    );
    let before = y.values();
    let tensor = y.tensor();
    common::call_tensors(
        "addmv",
        &[tensor, a.tensor(), x.tensor()],
        &[tensor],
        &[Scalar::F64(0.5), Scalar::F64(2.0)],
    )
    .expect("right");
    for (row, before) in before.iter().enumerate() {
        assert_close(y.get(row as i64), 2.5 * before, 1e-5, row);
    }
    // A factor of 0 hides even NaN.
    let nan = Array::of(DType::F32, &[1], &[f64::NAN]);
    call(
        "addmv",
        &[&nan, &a, &x],
        &mut [&mut y],
        &[Scalar::I64(0), Scalar::I64(1)],
    );
    assert_close(y.get(3), before[3], 1e-5, "beta 0");
    let refused = try_call("mv", &[&x, &a], &mut [&mut y], &[]);
    assert!(matches!(refused, Err(PlanError::Invalid(_))), "{refused:?}");
}

#[test]
fn large_products_are_cut_by_rows_and_columns() {
    let mut rng = Rng(2);
    outrigger_ops::parallel::set_threads(3);
    for (m, n, k) in [
        (700, 90, 300),
        (90, 700, 300),
        (1, 5000, 1000),
        (5000, 1, 1000),
    ] {
        let a = Array::dense(DType::F32, &[m, k]).filled(&mut rng, 1.0);
        let b = Array::dense(DType::F32, &[k, n]).filled(&mut rng, 1.0);
        let mut out = Array::dense(DType::F32, &[m, n]);
        call("mm", &[&a, &b], &mut [&mut out], &[]);
        for _ in 0..200 {
            let (row, column) = (rng.below(m as u64) as i64, rng.below(n as u64) as i64);
            let want: f64 = (0..k).map(|i| a.at(&[row, i]) * b.at(&[i, column])).sum();
            assert_close(out.at(&[row, column]), want, 1e-4, (m, n, k, row, column));
        }
    }
}

#[test]
fn softmax_and_its_gradient_match() {
    let mut rng = Rng(3);
    for &dtype in FLOATS {
        for dim in 0..3usize {
            let sizes = [3, 37, 4];
            let a = Array::scattered(dtype, &sizes, &mut rng).filled(&mut rng, 6.0);
            let grad = Array::scattered(dtype, &sizes, &mut rng).filled(&mut rng, 1.0);
            let names = Scalar::I64(dim as i64);
            let (mut soft, mut log) = (
                Array::scattered(dtype, &sizes, &mut rng),
                Array::dense(dtype, &sizes),
            );
            call("softmax", &[&a], &mut [&mut soft], &[names]);
            call("log_softmax", &[&a], &mut [&mut log], &[names]);
            let (mut soft_grad, mut log_grad) =
                (Array::dense(dtype, &sizes), Array::dense(dtype, &sizes));
            call(
                "softmax_backward",
                &[&grad, &soft],
                &mut [&mut soft_grad],
                &[names],
            );
            call(
                "log_softmax_backward",
                &[&grad, &log],
                &mut [&mut log_grad],
                &[names],
            );
            for k in 0..a.numel() {
                let at = a.indices(k);
                let row = |array: &Array| -> Vec<f64> {
                    (0..sizes[dim])
                        .map(|i| {
                            let mut at = at.clone();
                            at[dim] = i;
                            array.at(&at)
                        })
                        .collect()
                };
                let max = row(&a).into_iter().fold(f64::MIN, f64::max);
                let sum: f64 = row(&a).iter().map(|x| (x - max).exp()).sum();
                let close = tolerance(dtype) * 4.0;
                assert_close(
                    soft.get(k),
                    (a.get(k) - max).exp() / sum,
                    close,
                    ("softmax", dtype, k),
                );
                assert_close(
                    log.get(k),
                    a.get(k) - max - sum.ln(),
                    close,
                    ("log_softmax", dtype, k),
                );
                let dot: f64 = row(&grad).iter().zip(row(&soft)).map(|(g, y)| g * y).sum();
                assert_close(
                    soft_grad.get(k),
                    (grad.get(k) - dot) * soft.get(k),
                    close,
                    ("backward", dtype),
                );
                let total: f64 = row(&grad).iter().sum();
                assert_close(
                    log_grad.get(k),
                    grad.get(k) - log.get(k).exp() * total,
                    close,
                    ("log backward", dtype),
                );
            }
        }
    }
}

#[test]
fn softmax_of_extremes() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let run = |values: &[f64]| {
        let a = Array::of(DType::F32, &[values.len() as i64], values);
        let mut out = Array::dense(DType::F32, &[values.len() as i64]);
        call("softmax", &[&a], &mut [&mut out], &[Scalar::I64(0)]);
        out.values()
    };
    assert_eq!(run(&[-inf, 1000.0, -inf]), [0.0, 1.0, 0.0]);
    assert!(run(&[-inf, -inf]).iter().all(|x| x.is_nan()));
    assert!(run(&[nan, 0.0]).iter().all(|x| x.is_nan()));
    assert_eq!(run(&[-200.0, -200.0]), [0.5, 0.5]);
}

#[test]
fn rows_of_one_element_are_normalised_to_zero() {
    // x - mean is exactly 0, so 1 / sqrt(eps) has no rounding error to enlarge.
    let values = [0.1, -3.7, 1e4, 12345.678];
    let x = Array::of(DType::F32, &[4, 1], &values);
    let bias = Array::of(DType::F32, &[1], &[2.5]);
    let mut out = Array::dense(DType::F32, &[4, 1]);
    let (mut mean, mut rstd) = (out.clone(), out.clone());
    call(
        "layer_norm",
        &[&x, &absent(), &bias],
        &mut [&mut out, &mut mean, &mut rstd],
        &[Scalar::I64(1), Scalar::F64(1e-12)],
    );
    assert_eq!(out.values(), [2.5; 4]);
}

#[test]
fn layer_norm_and_its_gradient_match() {
    let mut rng = Rng(4);
    for &dtype in FLOATS {
        for (affine, rows) in [(true, 50), (false, 3)] {
            let (sizes, n) = ([rows, 5, 7], 35);
            let a = Array::dense(dtype, &sizes).filled(&mut rng, 3.0);
            let grad = Array::dense(dtype, &sizes).filled(&mut rng, 1.0);
            let optional = |rng: &mut Rng| {
                if affine {
                    Array::dense(dtype, &[5, 7]).filled(rng, 2.0)
                } else {
                    absent()
                }
            };
            let (weight, bias) = (optional(&mut rng), optional(&mut rng));
            let (mut out, mut grad_a) = (Array::dense(dtype, &sizes), Array::dense(dtype, &sizes));
            let (mut mean, mut rstd) = (
                Array::dense(DType::F32, &[rows, 1, 1]),
                Array::dense(DType::F32, &[rows, 1, 1]),
            );
            call(
                "layer_norm",
                &[&a, &weight, &bias],
                &mut [&mut out, &mut mean, &mut rstd],
                &[Scalar::I64(2), Scalar::F64(1e-5)],
            );
            let (mut grad_weight, mut grad_bias) = (weight.clone(), bias.clone());
            call(
                "layer_norm_backward",
                &[&grad, &a, &mean, &rstd, &weight],
                &mut [&mut grad_a, &mut grad_weight, &mut grad_bias],
                &[Scalar::I64(2)],
            );
            let factor = |k: i64| if affine { weight.get(k) } else { 1.0 };
            let close = tolerance(dtype).max(1e-6) * 8.0;
            let (mut weight_sums, mut bias_sums) = (vec![0.0; n], vec![0.0; n]);
            for row in 0..rows {
                let x: Vec<f64> = (0..n as i64).map(|k| a.get(row * n as i64 + k)).collect();
                let g: Vec<f64> = (0..n as i64)
                    .map(|k| grad.get(row * n as i64 + k))
                    .collect();
                let m = x.iter().sum::<f64>() / n as f64;
                let r =
                    1.0 / (x.iter().map(|x| (x - m).powi(2)).sum::<f64>() / n as f64 + 1e-5).sqrt();
                assert_close(mean.get(row), m, 1e-6, "mean");
                assert_close(rstd.get(row), r, 1e-5, "rstd");
                let normal: Vec<f64> = x.iter().map(|x| (x - m) * r).collect();
                let weighted: Vec<f64> = (0..n).map(|k| g[k] * factor(k as i64)).collect();
                let sum = weighted.iter().sum::<f64>() / n as f64;
                let dot = weighted
                    .iter()
                    .zip(&normal)
                    .map(|(w, z)| w * z)
                    .sum::<f64>()
                    / n as f64;
                for k in 0..n {
                    let at = row * n as i64 + k as i64;
                    let shift = if affine { bias.get(k as i64) } else { 0.0 };
                    assert_close(
                        out.get(at),
                        normal[k] * factor(k as i64) + shift,
                        close,
                        ("out", dtype),
                    );
                    assert_close(
                        grad_a.get(at),
                        r * (weighted[k] - sum - normal[k] * dot),
                        close,
                        ("grad", dtype),
                    );
                    weight_sums[k] += g[k] * normal[k];
                    bias_sums[k] += g[k];
                }
            }
            for k in (0..n).filter(|_| affine) {
                assert_close(
                    grad_weight.get(k as i64),
                    weight_sums[k],
                    close,
                    ("grad_weight", dtype),
                );
                assert_close(
                    grad_bias.get(k as i64),
                    bias_sums[k],
                    close,
                    ("grad_bias", dtype),
                );
            }
        }
    }
}

#[test]
fn embedding_and_its_gradient_match() {
    let mut rng = Rng(5);
    for &dtype in FLOATS {
        let weight = Array::dense(dtype, &[11, 6]).filled(&mut rng, 1.0);
        let mut indices = Array::dense(DType::I64, &[4, 5]);
        (0..20).for_each(|k| indices.set(k, rng.below(11) as f64));
        let mut out = Array::dense(dtype, &[4, 5, 6]);
        call("embedding", &[&weight, &indices], &mut [&mut out], &[]);
        for k in 0..out.numel() {
            assert_eq!(out.get(k), weight.at(&[indices.get(k / 6) as i64, k % 6]));
        }
        let padding = indices.get(0);
        let mut grad = Array::dense(dtype, &[11, 6]).filled(&mut rng, 9.0);
        call(
            "embedding_dense_backward",
            &[&out, &indices],
            &mut [&mut grad],
            &[Scalar::I64(padding as i64)],
        );
        for k in 0..grad.numel() {
            let (row, column) = ((k / 6) as f64, k % 6);
            let uses = (0..20).filter(|i| indices.get(*i) == row && row != padding);
            let want: f64 = uses.map(|i| out.get(i * 6 + column)).sum();
            assert_close(grad.get(k), want, tolerance(dtype) * 4.0, (dtype, k));
        }
        for bad in [-1.0, 11.0] {
            indices.set(7, bad);
            assert_eq!(
                try_call("embedding", &[&weight, &indices], &mut [&mut out], &[]),
                Ok(Code::OUT_OF_RANGE.0)
            );
        }
    }
}

#[test]
fn losses_and_their_gradients_match() {
    let mut rng = Rng(6);
    let (n, c) = (13, 5);
    for dtype in [DType::F32, DType::F64] {
        for weighted in [false, true] {
            for reduction in 0..3 {
                let scores = Array::scattered(dtype, &[n, c], &mut rng).filled(&mut rng, 3.0);
                let weight = if weighted {
                    Array::of(dtype, &[c], &[0.5, 1.0, 2.0, 0.25, 1.5])
                } else {
                    absent()
                };
                let mut target = Array::dense(DType::I64, &[n]);
                (0..n).for_each(|k| target.set(k, rng.below(c as u64) as f64));
                target.set(3, -100.0);
                let shape: &[i64] = if reduction == 0 { &[n] } else { &[] };
                let (mut loss, mut total) = (Array::dense(dtype, shape), Array::dense(dtype, &[]));
                let scalars = [Scalar::I64(reduction), Scalar::I64(-100)];
                call(
                    "nll_loss_forward",
                    &[&scores, &target, &weight],
                    &mut [&mut loss, &mut total],
                    &scalars,
                );
                let of = |k: i64| {
                    if k == 3 {
                        0.0
                    } else if weighted {
                        weight.get(target.get(k) as i64)
                    } else {
                        1.0
                    }
                };
                let item = |k: i64| {
                    if k == 3 {
                        0.0
                    } else {
                        -of(k) * scores.at(&[k, target.get(k) as i64])
                    }
                };
                let weights: f64 = (0..n).map(of).sum();
                let sum: f64 = (0..n).map(item).sum();
                let close = tolerance(dtype) * 10.0;
                match reduction {
                    0 => (0..n).for_each(|k| assert_close(loss.get(k), item(k), close, k)),
                    1 => assert_close(loss.get(0), sum / weights, close, "mean"),
                    _ => assert_close(loss.get(0), sum, close, "sum"),
                }
                let grad = Array::dense(dtype, shape).filled(&mut rng, 1.0);
                let mut out = Array::scattered(dtype, &[n, c], &mut rng).filled(&mut rng, 1.0);
                call(
                    "nll_loss_backward",
                    &[&grad, &target, &weight, &total],
                    &mut [&mut out],
                    &scalars,
                );
                for k in 0..out.numel() {
                    let (row, class) = (k / c, (k % c) as f64);
                    let upstream = grad.get(if reduction == 0 { row } else { 0 });
                    let scale = if reduction == 1 { weights } else { 1.0 };
                    let want = if target.get(row) == class {
                        -of(row) * upstream / scale
                    } else {
                        0.0
                    };
                    assert_close(out.get(k), want, close, ("grad", reduction, k));
                }
                target.set(1, c as f64);
                let code = try_call(
                    "nll_loss_forward",
                    &[&scores, &target, &weight],
                    &mut [&mut loss, &mut total],
                    &scalars,
                );
                assert_eq!(code, Ok(Code::OUT_OF_RANGE.0));
            }
        }
    }
}

#[test]
fn optimizer_steps_follow_their_formulas() {
    let mut rng = Rng(7);
    let n = 1000;
    for &dtype in FLOATS {
        let fresh = |rng: &mut Rng| Array::dense(dtype, &[n]).filled(rng, 1.0);
        let (start, close) = (fresh(&mut rng), tolerance(dtype) * 4.0);
        for (nesterov, first) in [(0, 1), (1, 0), (0, 0)] {
            let (mut param, mut buffer, grad) = (start.clone(), fresh(&mut rng), fresh(&mut rng));
            if first == 1 {
                buffer.set(0, f64::NAN);
            }
            let old = buffer.values();
            let scalars = [
                0.1,
                0.9,
                0.2,
                0.01,
                f64::from(nesterov),
                0.0,
                f64::from(first),
            ]
            .map(Scalar::F64);
            call(
                "sgd_step",
                &[&grad],
                &mut [&mut param, &mut buffer],
                &scalars,
            );
            for k in 0..n {
                let g = grad.get(k) + 0.01 * start.get(k);
                let b = if first == 1 {
                    g
                } else {
                    0.9 * old[k as usize] + 0.8 * g
                };
                let step = if nesterov == 1 { g + 0.9 * b } else { b };
                assert_close(buffer.get(k), b, close, ("buffer", dtype, first));
                assert_close(
                    param.get(k),
                    start.get(k) - 0.1 * step,
                    close,
                    ("sgd", dtype),
                );
            }
        }
        for (name, decoupled) in [("adam_step", false), ("adamw_step", true)] {
            for amsgrad in [false, true] {
                let (mut param, mut m, grad) = (start.clone(), fresh(&mut rng), fresh(&mut rng));
                let squares = |rng: &mut Rng| {
                    let values: Vec<f64> =
                        fresh(rng).values().iter().map(|x| x * x + 0.01).collect();
                    Array::of(dtype, &[n], &values)
                };
                let (mut v, mut top) = (squares(&mut rng), squares(&mut rng));
                let (m0, v0, top0) = (m.values(), v.values(), top.values());
                let step = Array::of(DType::F32, &[], &[7.0]);
                let scalars = [0.01, 0.9, 0.99, 1e-8, 0.1, 0.0].map(Scalar::F64);
                let mut outputs = vec![&mut param, &mut m, &mut v];
                if amsgrad {
                    outputs.push(&mut top);
                }
                call(name, &[&grad, &step], &mut outputs, &scalars);
                for k in 0..n as usize {
                    let i = k as i64;
                    let p = start.get(i) * if decoupled { 1.0 - 0.001 } else { 1.0 };
                    let g = grad.get(i) + if decoupled { 0.0 } else { 0.1 * p };
                    let (first, second) = (0.9 * m0[k] + 0.1 * g, 0.99 * v0[k] + 0.01 * g * g);
                    assert_close(m.get(i), first, close, (name, "m", dtype));
                    assert_close(v.get(i), second, close, (name, "v", dtype));
                    let bound = if amsgrad { second.max(top0[k]) } else { second };
                    let root = (bound / (1.0 - 0.99f64.powi(7))).sqrt() + 1e-8;
                    let want = p - 0.01 / (1.0 - 0.9f64.powi(7)) * first / root;
                    assert_close(param.get(i), want, close, (name, dtype, amsgrad));
                }
            }
        }
    }
}
