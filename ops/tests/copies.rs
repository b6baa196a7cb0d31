//! Copies between layouts and dtypes, fills, concatenation, gathering, sequences and random numbers.

mod common;

use common::{Array, Rng, call, call_tensors, is_float, tolerance, try_call};
use outrigger_ops::{Code, DType, PlanError, Scalar, Tensor};
use proptest::prelude::*;

const NUMBERS: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::F16,
    DType::BF16,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::BOOL,
];

fn sizes() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(
        prop_oneof![4 => 1..6i64, 1 => Just(0), 2 => 30..70i64],
        0..4,
    )
}

/// The value in another dtype, for values that C converts without overflow.
fn converted(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::BOOL => f64::from(value != 0.0),
        DType::U8 => f64::from(value as i64 as u8),
        DType::U16 => f64::from(value as i64 as u16),
        DType::U32 => f64::from(value as i64 as u32),
        DType::U64 => value as i64 as u64 as f64,
        _ if is_float(dtype) => value,
        _ => value.trunc(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..Default::default() })]

    #[test]
    fn copies_convert(sizes in sizes(), seed in any::<u64>(), from in 0..NUMBERS.len(), to in 0..NUMBERS.len()) {
        let (from, to) = (NUMBERS[from], NUMBERS[to]);
        let mut rng = Rng(seed);
        let mut a = Array::scattered(from, &sizes, &mut rng);
        for k in 0..a.numel() {
            let unsigned = matches!(from, DType::U16 | DType::U32 | DType::U64);
            let value = rng.value(from, 100.0);
            a.set(k, if unsigned { value.abs() } else { value });
        }
        let mut out = Array::scattered(to, &sizes, &mut rng);
        call("copy", &[&a], &mut [&mut out], &[]);
        for k in 0..out.numel() {
            let want = converted(a.get(k), to);
            prop_assert!((out.get(k) - want).abs() <= tolerance(to) * want.abs(), "{from} {to}: {} to {}, not {want}", a.get(k), out.get(k));
        }
    }

    #[test]
    fn transposes_move_every_element(rows in 1..150i64, columns in 1..150i64, planes in 1..4i64, seed in any::<u64>(), dtype in 0..4usize) {
        let dtype = [DType::U8, DType::I16, DType::F32, DType::F64][dtype];
        let mut rng = Rng(seed);
        let mut a = Array::dense(dtype, &[planes, rows, columns]).filled(&mut rng, 99.0);
        a.sizes.swap(1, 2);
        a.strides.swap(1, 2);
        let mut out = Array::dense(dtype, &[planes, columns, rows]);
        call("copy", &[&a], &mut [&mut out], &[]);
        prop_assert_eq!(out.values(), a.values());
    }
}

#[test]
fn a_copy_onto_itself_changes_nothing() {
    let mut rng = Rng(5);
    let a = Array::dense(DType::F32, &[40, 30]).filled(&mut rng, 9.0);
    let before = a.values();
    let code = call_tensors("copy", &[a.tensor()], &[a.tensor()], &[]);
    assert_eq!(code.expect("an output may be its input"), Code::OK.0);
    assert_eq!(a.values(), before);
}

#[test]
fn complex_elements_are_moved_as_they_are() {
    // Pairs, seen as elements of twice the size.
    let mut rng = Rng(4);
    let parts = Array::dense(DType::F64, &[6, 2]).filled(&mut rng, 1.0);
    let mut moved = Array::dense(DType::F64, &[6, 2]);
    let (sizes, strides, back) = ([2, 3], [3, 1], [1, 2]);
    let from = Tensor::new(parts.tensor().address(), DType::C128, &sizes, &strides);
    let to = Tensor::new(moved.tensor().address(), DType::C128, &sizes, &back);
    assert_eq!(
        common::call_tensors("copy", &[from], &[to], &[]),
        Ok(Code::OK.0)
    );
    for (k, place) in [0, 2, 4, 1, 3, 5].into_iter().enumerate() {
        assert_eq!(moved.at(&[place, 0]), parts.at(&[k as i64, 0]));
        assert_eq!(moved.at(&[place, 1]), parts.at(&[k as i64, 1]));
    }
    let refused = try_call("copy", &[&parts], &mut [&mut moved], &[Scalar::I64(0)]);
    assert!(matches!(refused, Err(PlanError::Invalid(_))));
}

#[test]
fn fills_reach_every_element_and_no_other() {
    let mut rng = Rng(2);
    for &dtype in NUMBERS {
        for sizes in [&[][..], &[7], &[3, 5, 4], &[0, 2]] {
            let mut out = Array::scattered(dtype, sizes, &mut rng);
            call("fill", &[], &mut [&mut out], &[Scalar::F64(1.0)]);
            assert!(out.values().iter().all(|x| *x == 1.0), "{dtype} {sizes:?}");
        }
    }
    // Every other element.
    let mut all = Array::dense(DType::F32, &[6]);
    let (sizes, strides) = ([3], [2]);
    let half = Tensor::new(all.tensor().address(), DType::F32, &sizes, &strides);
    common::call_tensors("fill", &[], &[half], &[Scalar::F64(2.5)]).expect("right");
    assert_eq!(all.values(), [2.5, 0.0, 2.5, 0.0, 2.5, 0.0]);
    all.set(0, 0.0);
}

#[test]
fn inputs_are_put_side_by_side() {
    let mut rng = Rng(6);
    for dim in 0..3usize {
        // More inputs than the inline space of an argument block holds.
        let inputs: Vec<_> = (0..40)
            .map(|k| {
                let mut sizes = vec![3, 4, 2];
                sizes[dim] = k % 4;
                Array::scattered(DType::I32, &sizes, &mut rng).filled(&mut rng, 99.0)
            })
            .collect();
        let mut sizes = vec![3, 4, 2];
        sizes[dim] = inputs.iter().map(|input| input.sizes[dim]).sum();
        let mut out = Array::scattered(DType::I32, &sizes, &mut rng);
        let references: Vec<_> = inputs.iter().collect();
        call(
            "cat",
            &references,
            &mut [&mut out],
            &[Scalar::I64(dim as i64)],
        );
        let mut first = 0;
        for input in &inputs {
            for k in 0..input.numel() {
                let mut at = input.indices(k);
                at[dim] += first;
                assert_eq!(out.at(&at), input.get(k));
            }
            first += input.sizes[dim];
        }
        out.sizes[dim] += 1;
        let refused = try_call(
            "cat",
            &references,
            &mut [&mut out],
            &[Scalar::I64(dim as i64)],
        );
        assert!(matches!(refused, Err(PlanError::Invalid(_))), "{refused:?}");
    }
}

#[test]
fn elements_are_picked_by_index() {
    let mut rng = Rng(8);
    for dtype in [DType::F32, DType::U8, DType::F64, DType::BF16] {
        for dim in 0..3usize {
            let a = Array::dense(dtype, &[4, 5, 6]).filled(&mut rng, 99.0);
            let mut picks = Array::dense(DType::I64, &[7]);
            (0..7).for_each(|k| picks.set(k, rng.below(a.sizes[dim] as u64) as f64));
            let mut sizes = a.sizes.clone();
            sizes[dim] = 7;
            let mut out = Array::dense(dtype, &sizes);
            call(
                "index_select",
                &[&a, &picks],
                &mut [&mut out],
                &[Scalar::I64(dim as i64)],
            );
            for k in 0..out.numel() {
                let mut at = out.indices(k);
                at[dim] = picks.get(at[dim]) as i64;
                assert_eq!(out.get(k), a.at(&at));
            }
            let scattered = Array::scattered(dtype, &[4, 5, 6], &mut rng).filled(&mut rng, 99.0);
            let mut indices = Array::scattered(DType::I32, &[3, 5, 2], &mut rng);
            (0..30).for_each(|k| indices.set(k, rng.below(scattered.sizes[dim] as u64) as f64));
            let mut out = Array::scattered(dtype, &[3, 5, 2], &mut rng);
            call(
                "gather",
                &[&scattered, &indices],
                &mut [&mut out],
                &[Scalar::I64(dim as i64)],
            );
            for k in 0..out.numel() {
                let mut at = out.indices(k);
                at[dim] = indices.get(k) as i64;
                assert_eq!(out.get(k), scattered.at(&at));
            }
            indices.set(0, 99.0);
            let code = try_call(
                "gather",
                &[&scattered, &indices],
                &mut [&mut out],
                &[Scalar::I64(dim as i64)],
            );
            assert_eq!(code, Ok(Code::OUT_OF_RANGE.0));
        }
    }
}

#[test]
fn sequences_count() {
    let mut floats = Array::dense(DType::F32, &[5]);
    call(
        "arange",
        &[],
        &mut [&mut floats],
        &[Scalar::F64(1.0), Scalar::F64(-0.25)],
    );
    assert_eq!(floats.values(), [1.0, 0.75, 0.5, 0.25, 0.0]);
    let mut integers = Array::dense(DType::I64, &[3000]);
    call(
        "arange",
        &[],
        &mut [&mut integers],
        &[Scalar::I64(-3), Scalar::I64(2)],
    );
    assert_eq!(integers.get(2999), 5995.0);
}

#[test]
fn random_numbers_have_their_distribution_and_repeat() {
    let n = 200_000;
    let run = |name: &str, dtype: DType, scalars: &[Scalar]| {
        let mut out = Array::dense(dtype, &[n]);
        call(name, &[], &mut [&mut out], scalars);
        out.values()
    };
    let moments = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / n as f64;
        (
            mean,
            values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64,
        )
    };
    let key = [Scalar::I64(42), Scalar::I64(100)];
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let uniform = run(
            "uniform",
            dtype,
            &[Scalar::F64(-1.0), Scalar::F64(3.0), key[0], key[1]],
        );
        assert!(uniform.iter().all(|x| (-1.0..3.0).contains(x)
            || (is_float(dtype) && *x <= 3.0 && tolerance(dtype) > 1e-3)));
        let (mean, variance) = moments(&uniform);
        assert!(
            (mean - 1.0).abs() < 0.02 && (variance - 16.0 / 12.0).abs() < 0.02,
            "{dtype} {mean} {variance}"
        );
        let normal = run(
            "normal",
            dtype,
            &[Scalar::F64(0.5), Scalar::F64(2.0), key[0], key[1]],
        );
        let (mean, variance) = moments(&normal);
        assert!(
            (mean - 0.5).abs() < 0.02 && (variance - 4.0).abs() < 0.06,
            "{dtype} {mean} {variance}"
        );
    }
    let coins = run("bernoulli", DType::F32, &[Scalar::F64(0.3), key[0], key[1]]);
    let (mean, _) = moments(&coins);
    assert!(
        (mean - 0.3).abs() < 0.01 && coins.iter().all(|x| *x == 0.0 || *x == 1.0),
        "{mean}"
    );
    assert!(
        run(
            "bernoulli",
            DType::BOOL,
            &[Scalar::F64(1.0), key[0], key[1]]
        )
        .iter()
        .all(|x| *x == 1.0)
    );
    let dice = run(
        "random_int",
        DType::I64,
        &[Scalar::I64(1), Scalar::I64(7), key[0], key[1]],
    );
    let mut counts = [0; 7];
    dice.iter().for_each(|x| counts[*x as usize] += 1);
    assert!(
        counts[0] == 0
            && counts[1..]
                .iter()
                .all(|c| (*c as f64 - n as f64 / 6.0).abs() < 900.0),
        "{counts:?}"
    );
    let scalars = [Scalar::F64(0.0), Scalar::F64(1.0), key[0], key[1]];
    assert_eq!(
        run("uniform", DType::F32, &scalars),
        run("uniform", DType::F32, &scalars)
    );
    let next = [scalars[0], scalars[1], key[0], Scalar::I64(101)];
    // The next counter gives the same numbers, four places earlier.
    assert_eq!(
        run("uniform", DType::F32, &scalars)[4..100],
        run("uniform", DType::F32, &next)[..96]
    );
}
