//! Elementwise operators against f64 references, over dtypes, shapes, strides and broadcasting.

mod common;

use common::{Array, Rng, assert_close, call, is_float, tolerance, try_call};
use outrigger_ops::{DType, PlanError, Scalar};
use proptest::prelude::*;

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const ALL: &[DType] = &[
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
];

type Unary = fn(f64) -> f64;
type Binary = fn(f64, f64) -> f64;

fn sizes() -> impl Strategy<Value = Vec<i64>> {
    prop::collection::vec(
        prop_oneof![4 => 1..6i64, 1 => Just(0), 1 => 30..70i64],
        0..4,
    )
}

/// Replaces some of the sizes by 1, and drops some leading ones.
fn broadcastable(sizes: &[i64], rng: &mut Rng) -> Vec<i64> {
    let skip = if rng.below(4) == 0 {
        rng.below(sizes.len() as u64 + 1) as usize
    } else {
        0
    };
    sizes[skip..]
        .iter()
        .map(|&size| if rng.below(4) == 0 { 1 } else { size })
        .collect()
}

fn integer_result(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::BOOL => f64::from(value != 0.0),
        DType::U8 => f64::from(value as i64 as u8),
        DType::I8 => f64::from(value as i64 as i8),
        DType::I16 => f64::from(value as i64 as i16),
        _ => value,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..Default::default() })]

    #[test]
    fn binary_operators_match(sizes in sizes(), seed in any::<u64>(), op in 0..8usize, dtype in 0..ALL.len()) {
        let dtype = ALL[dtype];
        let ops: [(&str, Binary); 8] = [
            ("add", |a, b| a + b), ("sub", |a, b| a - b), ("mul", |a, b| a * b),
            ("maximum", f64::max), ("minimum", f64::min), ("rsub", |a, b| b - a),
            ("div_trunc", |a, b| if b == 0.0 { 0.0 } else { (a / b).trunc() }),
            ("eq", |a, b| f64::from(a == b)),
        ];
        let (name, reference) = ops[op];
        // The quotient of neighbours rounds either way in narrow types.
        prop_assume!(name != "div_trunc" || !is_float(dtype));
        let mut rng = Rng(seed);
        let a = Array::scattered(dtype, &broadcastable(&sizes, &mut rng), &mut rng).filled(&mut rng, 9.0);
        let b = Array::scattered(dtype, &broadcastable(&sizes, &mut rng), &mut rng).filled(&mut rng, 9.0);
        let out_dtype = if name == "eq" { DType::BOOL } else { dtype };
        let mut out = Array::scattered(out_dtype, &sizes, &mut rng);
        call(name, &[&a, &b], &mut [&mut out], &[]);
        for k in 0..out.numel() {
            let at = out.indices(k);
            let (x, y) = (a.at(&at), b.at(&at));
            let want = reference(x, y);
            let want = if is_float(out_dtype) { want } else { integer_result(out_dtype, want) };
            assert_close(out.get(k), want, tolerance(out_dtype), (name, dtype, at, x, y));
        }
    }

    #[test]
    fn a_scalar_is_an_operand_of_rank_0(sizes in sizes(), seed in any::<u64>(), dtype in 0..ALL.len()) {
        let dtype = ALL[dtype];
        let mut rng = Rng(seed);
        let a = Array::scattered(dtype, &sizes, &mut rng).filled(&mut rng, 9.0);
        let value = rng.value(dtype, 5.0);
        let b = Array::of(dtype, &[], &[value]);
        let scalar = if is_float(dtype) { Scalar::F64(b.get(0)) } else { Scalar::I64(b.get(0) as i64) };
        for name in ["add", "mul", "maximum"] {
            let (mut by_tensor, mut by_scalar) = (Array::dense(dtype, &sizes), Array::scattered(dtype, &sizes, &mut rng));
            call(name, &[&a, &b], &mut [&mut by_tensor], &[]);
            call(name, &[&a], &mut [&mut by_scalar], &[scalar]);
            assert_eq!(by_tensor.values(), by_scalar.values(), "{name}");
        }
    }

    #[test]
    fn in_place_is_as_out_of_place(sizes in sizes(), seed in any::<u64>(), dtype in 0..ALL.len()) {
        let dtype = ALL[dtype];
        let mut rng = Rng(seed);
        let a = Array::scattered(dtype, &sizes, &mut rng).filled(&mut rng, 9.0);
        let b = Array::scattered(dtype, &broadcastable(&sizes, &mut rng), &mut rng).filled(&mut rng, 9.0);
        let mut out = Array::dense(dtype, &sizes);
        call("add", &[&a, &b], &mut [&mut out], &[Scalar::I64(3)]);
        let before = a.clone();
        let tensor = a.tensor();
        common::call_tensors("add", &[tensor, b.tensor()], &[tensor], &[Scalar::I64(3)]).expect("right");
        assert_eq!(a.values(), out.values(), "{before:?} {b:?}");
    }

    #[test]
    fn where_chooses(sizes in sizes(), seed in any::<u64>(), dtype in 0..ALL.len()) {
        let dtype = ALL[dtype];
        let mut rng = Rng(seed);
        let condition = Array::scattered(DType::BOOL, &broadcastable(&sizes, &mut rng), &mut rng).filled(&mut rng, 1.0);
        let a = Array::scattered(dtype, &sizes, &mut rng).filled(&mut rng, 9.0);
        let b = Array::scattered(dtype, &broadcastable(&sizes, &mut rng), &mut rng).filled(&mut rng, 9.0);
        let mut out = Array::dense(dtype, &sizes);
        call("where", &[&condition, &a, &b], &mut [&mut out], &[]);
        for k in 0..out.numel() {
            let at = out.indices(k);
            let want = if condition.at(&at) != 0.0 { a.at(&at) } else { b.at(&at) };
            prop_assert_eq!(out.get(k), want);
        }
    }
}

#[test]
fn functions_match() {
    let functions: &[(&str, Unary, f64)] = &[
        ("sqrt", f64::sqrt, 4.0),
        ("rsqrt", |x| 1.0 / x.sqrt(), 4.0),
        ("reciprocal", |x| 1.0 / x, 4.0),
        ("exp", f64::exp, 4.0),
        ("expm1", f64::exp_m1, 4.0),
        ("log", f64::ln, 4.0),
        ("log1p", f64::ln_1p, 4.0),
        ("log2", f64::log2, 4.0),
        ("sin", f64::sin, 400.0),
        ("cos", f64::cos, 400.0),
        ("tanh", f64::tanh, 4.0),
        ("sigmoid", |x| 1.0 / (1.0 + (-x).exp()), 9.0),
        ("erf", libm::erf, 3.0),
        ("floor", f64::floor, 9.0),
        ("ceil", f64::ceil, 9.0),
        ("round", f64::round_ties_even, 9.0),
        ("trunc", f64::trunc, 9.0),
        ("neg", |x| -x, 9.0),
        ("abs", f64::abs, 9.0),
        ("square", |x| x * x, 9.0),
        ("relu", |x| x.max(0.0), 9.0),
        ("silu", |x| x / (1.0 + (-x).exp()), 9.0),
        (
            "gelu",
            |x| 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
            4.0,
        ),
        ("leaky_relu", |x| if x > 0.0 { x } else { 0.01 * x }, 9.0),
        ("elu", |x| if x > 0.0 { x } else { x.exp_m1() }, 9.0),
        (
            "softplus",
            |x| if x > 20.0 { x } else { x.exp().ln_1p() },
            30.0,
        ),
        ("hardsigmoid", |x| ((x + 3.0) / 6.0).clamp(0.0, 1.0), 9.0),
        ("hardswish", |x| x * ((x + 3.0) / 6.0).clamp(0.0, 1.0), 9.0),
    ];
    let mut rng = Rng(7);
    for &(name, reference, limit) in functions {
        for &dtype in FLOATS {
            let a = Array::dense(dtype, &[3, 401]).filled(&mut rng, limit);
            let mut out = Array::dense(dtype, &[3, 401]);
            call(name, &[&a], &mut [&mut out], &[]);
            for k in 0..a.numel() {
                assert_close(
                    out.get(k),
                    reference(a.get(k)),
                    tolerance(dtype),
                    (name, dtype, a.get(k)),
                );
            }
        }
    }
}

/// Compares a gradient operator with differences of its function.
#[test]
fn gradients_match_differences() {
    let gradients: &[(&str, &str, &[Scalar], bool)] = &[
        ("gelu", "gelu_backward", &[], false),
        ("gelu", "gelu_backward", &[Scalar::I64(1)], false),
        ("silu", "silu_backward", &[], false),
        ("sigmoid", "sigmoid_backward", &[], true),
        ("tanh", "tanh_backward", &[], true),
        (
            "leaky_relu",
            "leaky_relu_backward",
            &[Scalar::F64(0.2)],
            false,
        ),
        ("relu", "threshold_backward", &[Scalar::F64(0.0)], false),
        (
            "softplus",
            "softplus_backward",
            &[Scalar::F64(2.0), Scalar::F64(20.0)],
            false,
        ),
    ];
    let mut rng = Rng(3);
    for &(name, backward, scalars, of_result) in gradients {
        let forward_scalars = if name == "relu" { &[] } else { scalars };
        let n = 200;
        let a = Array::dense(DType::F64, &[n]).filled(&mut rng, 4.0);
        let grad = Array::dense(DType::F64, &[n]).filled(&mut rng, 2.0);
        let shifted = |step: f64| {
            let moved = Array::of(
                DType::F64,
                &[n],
                &a.values().iter().map(|x| x + step).collect::<Vec<_>>(),
            );
            let mut out = Array::dense(DType::F64, &[n]);
            call(name, &[&moved], &mut [&mut out], forward_scalars);
            out
        };
        let step = 1e-5;
        let (low, high, y) = (shifted(-step), shifted(step), shifted(0.0));
        let mut out = Array::dense(DType::F64, &[n]);
        let known = if of_result { &y } else { &a };
        call(backward, &[&grad, known], &mut [&mut out], scalars);
        for k in 0..n {
            let slope = (high.get(k) - low.get(k)) / (2.0 * step);
            assert_close(out.get(k), grad.get(k) * slope, 1e-7, (backward, a.get(k)));
        }
    }
}

#[test]
fn nan_and_infinity_are_kept_or_found() {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let a = Array::of(DType::F32, &[4], &[nan, 1.0, inf, -inf]);
    let b = Array::of(DType::F32, &[4], &[1.0, nan, 2.0, 2.0]);
    let run = |name: &str, inputs: &[&Array], dtype: DType, scalars: &[Scalar]| {
        let mut out = Array::dense(dtype, &[4]);
        call(name, inputs, &mut [&mut out], scalars);
        out.values()
    };
    let is_nan = |values: &[f64]| values.iter().map(|x| x.is_nan()).collect::<Vec<_>>();
    assert_eq!(
        is_nan(&run("maximum", &[&a, &b], DType::F32, &[])),
        [true, true, false, false]
    );
    assert_eq!(
        is_nan(&run("minimum", &[&a, &b], DType::F32, &[])),
        [true, true, false, false]
    );
    assert!(
        run(
            "clamp",
            &[&a],
            DType::F32,
            &[Scalar::F64(-1.0), Scalar::F64(1.0)]
        )[0]
        .is_nan()
    );
    assert!(run("relu", &[&a], DType::F32, &[])[0].is_nan());
    assert_eq!(run("isnan", &[&a], DType::BOOL, &[]), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(run("isinf", &[&a], DType::BOOL, &[]), [0.0, 0.0, 1.0, 1.0]);
    assert_eq!(
        run("isfinite", &[&a], DType::BOOL, &[]),
        [0.0, 1.0, 0.0, 0.0]
    );
    assert_eq!(run("ne", &[&a, &a], DType::BOOL, &[]), [1.0, 0.0, 0.0, 0.0]);
    assert_eq!(run("sign", &[&a], DType::F32, &[]), [0.0, 1.0, 1.0, -1.0]);
}

#[test]
fn division_follows_python() {
    for dtype in [DType::F32, DType::F64, DType::I64, DType::I32, DType::I16] {
        for (a, b) in [
            (7.0, 2.0),
            (-7.0, 2.0),
            (7.0, -2.0),
            (-7.0, -2.0),
            (6.0, 3.0),
            (-6.0, 3.0),
        ] {
            let (x, y) = (Array::of(dtype, &[1], &[a]), Array::of(dtype, &[1], &[b]));
            for (name, want) in [
                ("div_floor", (a / b).floor()),
                ("div_trunc", (a / b).trunc()),
                ("remainder", a - b * (a / b).floor()),
                ("fmod", a % b),
            ] {
                let mut out = Array::dense(dtype, &[1]);
                call(name, &[&x, &y], &mut [&mut out], &[]);
                assert_eq!(out.get(0), want, "{name} {a} {b} {dtype}");
            }
        }
    }
    let (minimum, one) = (
        Array::of(DType::I64, &[1], &[i64::MIN as f64]),
        Array::of(DType::I64, &[1], &[-1.0]),
    );
    let zero = Array::of(DType::I64, &[1], &[0.0]);
    let mut out = Array::dense(DType::I64, &[1]);
    for name in ["div_floor", "div_trunc", "remainder", "fmod"] {
        call(name, &[&minimum, &one], &mut [&mut out], &[]);
        call(name, &[&minimum, &zero], &mut [&mut out], &[]);
        assert_eq!(out.get(0), 0.0, "{name} by zero");
    }
}

#[test]
fn powers_of_integers_wrap() {
    for (a, b, want) in [
        (3, 4i64, 81i64),
        (2, 62, 1 << 62),
        (2, 64, 0),
        (-1, 3, -1),
        (-1, -3, -1),
        (5, -1, 0),
        (1, -9, 1),
        (7, 0, 1),
        (3, (1 << 32) + 1, 7473929035676909571),
    ] {
        let (x, y) = (
            Array::of(DType::I64, &[1], &[f64::from(a)]),
            Array::of(DType::I64, &[1], &[b as f64]),
        );
        let mut out = Array::dense(DType::I64, &[1]);
        call("pow", &[&x, &y], &mut [&mut out], &[]);
        assert_eq!(out.get(0), want as f64, "{a}^{b}");
        call("rpow", &[&y, &x], &mut [&mut out], &[]);
        assert_eq!(out.get(0), want as f64, "{a}^{b}, turned round");
    }
}

#[test]
fn powers_of_floats_match() {
    let mut rng = Rng(12);
    for &dtype in FLOATS {
        let a = Array::dense(dtype, &[301]).filled(&mut rng, 2.0);
        for exponent in [2.0, 3.0, 0.5, -0.5, -1.0, 0.0, 1.7] {
            let mut out = Array::dense(dtype, &[301]);
            call("pow", &[&a], &mut [&mut out], &[Scalar::F64(exponent)]);
            let by_tensor = Array::of(dtype, &[], &[exponent]);
            for k in 0..301 {
                let want = a.get(k).powf(by_tensor.get(0));
                // The tensor holds the rounded exponent, and the scalar is exact.
                let close = tolerance(dtype) * if exponent == 1.7 { 8.0 } else { 1.0 };
                assert_close(out.get(k), want, close, (dtype, exponent, a.get(k)));
            }
        }
    }
}

#[test]
fn operands_are_converted_as_pytorch_promotes() {
    // From integers to the type that the output is computed in.
    let (a, b) = (
        Array::of(DType::I64, &[2], &[1.0, 3.0]),
        Array::of(DType::F32, &[2], &[0.5, 0.25]),
    );
    let mut out = Array::dense(DType::F32, &[2]);
    call("add", &[&a, &b], &mut [&mut out], &[]);
    assert_eq!(out.values(), [1.5, 3.25]);
    // A scalar does not widen f32: 0.1f32 is not 0.1.
    let tenth = Array::of(DType::F32, &[1], &[0.1]);
    let mut truth = Array::dense(DType::BOOL, &[1]);
    call("eq", &[&tenth], &mut [&mut truth], &[Scalar::F64(0.1)]);
    assert_eq!(truth.get(0), 1.0);
    let tenth = Array::of(DType::BF16, &[1], &[0.1]);
    call("eq", &[&tenth], &mut [&mut truth], &[Scalar::F64(0.1)]);
    assert_eq!(truth.get(0), 1.0);
    // Floating-point values are never cut silently.
    let mut integers = Array::dense(DType::I32, &[2]);
    let refused = try_call("add", &[&b, &b], &mut [&mut integers], &[]);
    assert!(
        matches!(refused, Err(PlanError::Unsupported(_))),
        "{refused:?}"
    );
}

#[test]
fn calls_that_do_not_fit_are_refused_with_the_reason() {
    let (a, b) = (
        Array::dense(DType::F32, &[2, 3]),
        Array::dense(DType::F32, &[4]),
    );
    let mut out = Array::dense(DType::F32, &[2, 3]);
    let reason = |result: Result<i32, PlanError>| match result {
        Err(PlanError::Invalid(reason)) => reason.into_owned(),
        other => panic!("{other:?}"),
    };
    let text = reason(try_call("add", &[&a, &b], &mut [&mut out], &[]));
    assert!(text.contains("[4]") && text.contains("[2, 3]"), "{text}");
    let text = reason(try_call("add", &[&a, &a, &a], &mut [&mut out], &[]));
    assert!(text.contains("3 inputs, 2 are expected"), "{text}");
    let text = reason(try_call("clamp", &[&a], &mut [&mut out], &[Scalar::I64(1)]));
    assert!(text.contains("1 scalars, 2 to 2 are expected"), "{text}");
    let mut tensor = a.tensor();
    tensor = tensor.at(tensor.address() + 1);
    let text = reason(common::call_tensors("neg", &[tensor], &[out.tensor()], &[]));
    assert!(text.contains("not a multiple"), "{text}");
}

#[test]
fn many_dimensions_are_merged_or_refused() {
    let sizes = [2; 14];
    let mut rng = Rng(1);
    let a = Array::dense(DType::F32, &sizes).filled(&mut rng, 1.0);
    let mut out = Array::dense(DType::F32, &sizes);
    call("neg", &[&a], &mut [&mut out], &[]);
    assert!(out.values().iter().zip(a.values()).all(|(x, y)| *x == -y));
    let mut reversed = a.clone();
    reversed.strides.reverse();
    let refused = try_call("neg", &[&reversed], &mut [&mut out], &[]);
    assert!(
        matches!(refused, Err(PlanError::Unsupported(_))),
        "{refused:?}"
    );
}

#[test]
fn results_do_not_depend_on_threads() {
    let mut rng = Rng(11);
    let n = 300_000;
    let a = Array::dense(DType::F32, &[n]).filled(&mut rng, 4.0);
    let run = |threads: usize| {
        outrigger_ops::parallel::set_threads(threads);
        let (mut sum, mut exp) = (
            Array::dense(DType::F32, &[1]),
            Array::dense(DType::F32, &[n]),
        );
        let mut normal = Array::dense(DType::F32, &[n]);
        call("sum", &[&a], &mut [&mut sum], &[]);
        call("exp", &[&a], &mut [&mut exp], &[]);
        let scalars = [
            Scalar::F64(0.0),
            Scalar::F64(1.0),
            Scalar::I64(42),
            Scalar::I64(7),
        ];
        call("normal", &[], &mut [&mut normal], &scalars);
        // Compares the data alone, without reading each element by its indices.
        (sum.get(0), format!("{exp:?}{normal:?}"))
    };
    let (one, two, five) = (run(1), run(2), run(5));
    assert!(one == two && one == five);
}
