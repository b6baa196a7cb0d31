//! Reductions against f64 references, over dtypes, shapes, strides and sets of dimensions.

mod common;

use common::{Array, Rng, assert_close, call, is_float, tolerance, try_call};
use outrigger_ops::{DType, PlanError, Scalar};
use proptest::prelude::*;

const TYPES: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::U8,
    DType::BOOL,
];

/// For each result the values that it is made of, in row-major order of the reduced dimensions.
fn groups(a: &Array, out: &Array) -> Vec<Vec<f64>> {
    let mut groups = vec![Vec::new(); out.numel() as usize];
    for k in 0..a.numel() {
        let at = a.indices(k);
        let mut index = 0;
        for (d, size) in out.sizes.iter().enumerate() {
            index = index * size + if *size == 1 { 0 } else { at[d] };
        }
        groups[index as usize].push(a.get(k));
    }
    groups
}

fn reduced(sizes: &[i64], mask: u32) -> Vec<i64> {
    sizes
        .iter()
        .enumerate()
        .map(|(d, &n)| if mask >> d & 1 == 1 { 1 } else { n })
        .collect()
}

fn sizes() -> impl Strategy<Value = Vec<i64>> {
    let size = prop_oneof![6 => 1..6i64, 1 => Just(0), 2 => 14..70i64, 1 => Just(300)];
    prop::collection::vec(size, 0..4)
        .prop_filter("not too large", |s| s.iter().product::<i64>() < 200_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..Default::default() })]

    #[test]
    fn sums_match(sizes in sizes(), mask in 0..16u32, seed in any::<u64>(), dtype in 0..TYPES.len()) {
        let dtype = TYPES[dtype];
        let mut rng = Rng(seed);
        let a = Array::scattered(dtype, &sizes, &mut rng).filled(&mut rng, 1.5);
        let sum_type = if is_float(dtype) { dtype } else { DType::I64 };
        let shape = reduced(&sizes, mask);
        let mut sum = Array::scattered(sum_type, &shape, &mut rng);
        let (mut any, mut all) = (Array::dense(DType::BOOL, &shape), Array::dense(DType::BOOL, &shape));
        call("sum", &[&a], &mut [&mut sum], &[]);
        call("any", &[&a], &mut [&mut any], &[]);
        call("all", &[&a], &mut [&mut all], &[]);
        let groups = groups(&a, &sum);
        for (k, group) in groups.iter().enumerate() {
            let k = k as i64;
            let scale = group.iter().map(|x| x.abs()).sum::<f64>().max(1.0);
            assert_close(sum.get(k) / scale, group.iter().sum::<f64>() / scale, tolerance(sum_type), ("sum", dtype, k));
            prop_assert_eq!(any.get(k) != 0.0, group.iter().any(|x| *x != 0.0));
            prop_assert_eq!(all.get(k) != 0.0, group.iter().all(|x| *x != 0.0));
        }
        if is_float(dtype) {
            let mut out = Array::dense(dtype, &shape);
            let mut mean = Array::dense(dtype, &shape);
            call("var", &[&a], &mut [&mut out, &mut mean], &[Scalar::I64(0)]);
            let mut norm = Array::dense(dtype, &shape);
            call("norm", &[&a], &mut [&mut norm], &[Scalar::I64(2)]);
            for (k, group) in groups.iter().enumerate() {
                let n = group.len() as f64;
                let average = group.iter().sum::<f64>() / n;
                let variance = group.iter().map(|x| (x - average).powi(2)).sum::<f64>() / n;
                assert_close(out.get(k as i64), variance, tolerance(dtype), ("var", dtype, group.len()));
                assert_close(mean.get(k as i64), average, tolerance(dtype), ("mean", dtype));
                let length = group.iter().map(|x| x * x).sum::<f64>().sqrt();
                assert_close(norm.get(k as i64), length, tolerance(dtype), ("norm", dtype));
            }
        }
    }

    #[test]
    fn extremes_match(sizes in sizes(), mask in 0..16u32, seed in any::<u64>(), dtype in 0..TYPES.len(), nan in any::<bool>()) {
        let dtype = TYPES[dtype];
        let mut rng = Rng(seed);
        let mut a = Array::scattered(dtype, &sizes, &mut rng).filled(&mut rng, 9.0);
        let shape = reduced(&sizes, mask);
        if nan && is_float(dtype) && a.numel() > 0 {
            a.set(rng.below(a.numel() as u64) as i64, f64::NAN);
        }
        let (mut most, mut where_most) = (Array::dense(dtype, &shape), Array::scattered(DType::I64, &shape, &mut rng));
        let (mut least, mut where_least) = (Array::dense(dtype, &shape), Array::dense(DType::I64, &shape));
        let planned = try_call("max_dim", &[&a], &mut [&mut most, &mut where_most], &[]);
        let groups = groups(&a, &most);
        if groups.iter().any(Vec::is_empty) {
            prop_assert!(matches!(planned, Err(PlanError::Invalid(_))));
            return Ok(());
        }
        call("amin", &[&a], &mut [&mut least], &[]);
        call("argmin", &[&a], &mut [&mut where_least], &[]);
        for (k, group) in groups.iter().enumerate() {
            let k = k as i64;
            let first_nan = group.iter().position(|x| x.is_nan());
            let first = |want: f64| group.iter().position(|x| *x == want).expect("it is there");
            let highest = first_nan.unwrap_or_else(|| first(group.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
            let lowest = first_nan.unwrap_or_else(|| first(group.iter().copied().fold(f64::INFINITY, f64::min)));
            prop_assert_eq!(where_most.get(k), highest as f64);
            prop_assert_eq!(where_least.get(k), lowest as f64);
            assert_close(most.get(k), group[highest], 0.0, "max");
            assert_close(least.get(k), group[lowest], 0.0, "min");
        }
    }
}

/// The input is so long that rows and columns are cut into pieces.
#[test]
fn long_reductions_are_exact() {
    let mut rng = Rng(5);
    for (sizes, shape) in [
        ([2, 200_001], [2, 1]),
        ([90_001, 3], [1, 3]),
        ([9_001, 40], [1, 40]),
        ([400, 600], [1, 1]),
    ] {
        let a = Array::dense(DType::F32, &sizes).filled(&mut rng, 1.0);
        let (mut sum, mut most) = (
            Array::dense(DType::F64, &shape),
            Array::dense(DType::I64, &shape),
        );
        call("sum", &[&a], &mut [&mut sum], &[]);
        call("argmax", &[&a], &mut [&mut most], &[]);
        for (k, group) in groups(&a, &sum).iter().enumerate() {
            let want: f64 = group.iter().sum();
            assert!((sum.get(k as i64) - want).abs() < 1e-9, "{sizes:?}");
            let highest = (0..group.len())
                .rev()
                .max_by(|x, y| group[*x].total_cmp(&group[*y]));
            assert_eq!(Some(most.get(k as i64) as usize), highest, "{sizes:?}");
        }
    }
}

#[test]
fn nothing_reduced_has_a_result_where_it_makes_sense() {
    let a = Array::dense(DType::F32, &[0, 3]);
    let run = |name: &str| {
        let mut out = Array::dense(DType::F32, &[1, 3]);
        call(name, &[&a], &mut [&mut out], &[]);
        out.get(1)
    };
    assert_eq!(run("sum"), 0.0);
    assert_eq!(run("prod"), 1.0);
    assert!(run("mean").is_nan());
    let mut out = Array::dense(DType::F32, &[1, 3]);
    assert!(matches!(
        try_call("amax", &[&a], &mut [&mut out], &[]),
        Err(PlanError::Invalid(_))
    ));
    let mut narrow = Array::dense(DType::F32, &[3]);
    assert!(matches!(
        try_call("sum", &[&a], &mut [&mut narrow], &[]),
        Err(PlanError::Invalid(_))
    ));
}

#[test]
fn cumulative_sums_match() {
    let mut rng = Rng(9);
    for dtype in [DType::F32, DType::F64, DType::I64] {
        for dim in 0..3 {
            let a = Array::scattered(dtype, &[4, 5, 6], &mut rng).filled(&mut rng, 3.0);
            let mut out = Array::scattered(dtype, &[4, 5, 6], &mut rng);
            call("cumsum", &[&a], &mut [&mut out], &[Scalar::I64(dim)]);
            for k in 0..out.numel() {
                let mut at = out.indices(k);
                let last = at[dim as usize];
                let want: f64 = (0..=last)
                    .map(|i| {
                        at[dim as usize] = i;
                        a.at(&at)
                    })
                    .sum();
                assert_close(out.get(k), want, tolerance(dtype), (dtype, dim, k));
            }
        }
    }
}
