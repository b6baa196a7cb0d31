//! Operators over the driver under test, by its own library or by host kernels: against references in f64,
//! with limits on the normalized error of each dtype, and sentinels around what is written.

use std::ptr::null;

use outrigger_device::sys::{otr_operator_call_t, otr_scalar_t, otr_tensor_t};
use outrigger_device::{Code, DType};

use super::{alloc, download, made, otr, refused, start, stream, upload};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Need, Test, Verdict};

/// A call without operands.
pub(super) fn empty_call() -> otr_operator_call_t {
    otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: null(),
        outputs: null(),
        scalars: null(),
        input_count: 0,
        output_count: 0,
        scalar_count: 0,
        reserved: 0,
    }
}

/// A call without scalars. The operands have to outlive it.
fn call_of(inputs: &[otr_tensor_t], outputs: &[otr_tensor_t]) -> otr_operator_call_t {
    otr_operator_call_t {
        inputs: inputs.as_ptr(),
        outputs: outputs.as_ptr(),
        input_count: inputs.len() as u32,
        output_count: outputs.len() as u32,
        ..empty_call()
    }
}

fn size_of_dtype(dtype: DType) -> usize {
    match dtype {
        DType::F64 | DType::I64 => 8,
        DType::F32 | DType::I32 => 4,
        DType::F16 | DType::BF16 | DType::I16 => 2,
        _ => 1,
    }
}

/// A value as a dtype has it in memory.
fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::F64 => value.to_ne_bytes().to_vec(),
        DType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DType::F16 => half::f16::from_f64(value).to_ne_bytes().to_vec(),
        DType::BF16 => half::bf16::from_f64(value).to_ne_bytes().to_vec(),
        DType::I64 => (value as i64).to_ne_bytes().to_vec(),
        DType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DType::I16 => (value as i16).to_ne_bytes().to_vec(),
        DType::I8 => (value as i8).to_ne_bytes().to_vec(),
        DType::BOOL => vec![u8::from(value != 0.0)],
        _ => vec![value as u8],
    }
}

fn decode(dtype: DType, bytes: &[u8]) -> f64 {
    fn take<const N: usize>(bytes: &[u8]) -> [u8; N] {
        std::array::from_fn(|at| bytes[at])
    }
    match dtype {
        DType::F64 => f64::from_ne_bytes(take(bytes)),
        DType::F32 => f32::from_ne_bytes(take(bytes)).into(),
        DType::F16 => half::f16::from_ne_bytes(take(bytes)).into(),
        DType::BF16 => half::bf16::from_ne_bytes(take(bytes)).into(),
        DType::I64 => i64::from_ne_bytes(take(bytes)) as f64,
        DType::I32 => i32::from_ne_bytes(take(bytes)).into(),
        DType::I16 => i16::from_ne_bytes(take(bytes)).into(),
        DType::I8 => i8::from_ne_bytes(take(bytes)).into(),
        _ => bytes[0].into(),
    }
}

/// The most normalized mean square error that a result of a dtype may have: some units of its last place,
/// squared. Integers are exact.
fn limit(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-24,
        DType::F32 => 1e-11,
        DType::F16 => 1e-5,
        DType::BF16 => 5e-4,
        _ => 0.0,
    }
}

/// Bytes around each operand in memory.
const GUARD: usize = 256;
const SENTINEL: u8 = 0xa7;

/// A tensor in device memory with sentinels around it.
pub(super) struct Operand {
    address: u64,
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    /// Elements from the first to the last.
    span: usize,
}

impl Operand {
    /// Dense, in row-major order.
    fn dense(stream: u64, dtype: DType, sizes: &[i64], values: &[f64]) -> Verdict<Self> {
        let mut strides = vec![1; sizes.len()];
        for at in (1..sizes.len()).rev() {
            strides[at - 1] = strides[at] * sizes[at].max(1);
        }
        Self::new(stream, dtype, sizes, &strides, values)
    }

    /// With strides, of which none is negative; `values` are in the order of memory.
    fn new(
        stream: u64,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
        values: &[f64],
    ) -> Verdict<Self> {
        let width = size_of_dtype(dtype);
        let mut bytes = vec![SENTINEL; 2 * GUARD + values.len() * width];
        for (at, value) in values.iter().enumerate() {
            bytes[GUARD + at * width..][..width].copy_from_slice(&encode(dtype, *value));
        }
        let base = alloc(bytes.len() as u64, stream)?;
        upload(stream, base, &bytes)?;
        Ok(Self {
            address: base + GUARD as u64,
            dtype,
            sizes: sizes.to_vec(),
            strides: strides.to_vec(),
            span: values.len(),
        })
    }

    fn tensor(&self) -> otr_tensor_t {
        otr_tensor_t {
            address: self.address,
            dtype: self.dtype.0,
            rank: self.sizes.len() as u32,
            sizes: self.sizes.as_ptr(),
            strides: self.strides.as_ptr(),
        }
    }

    /// All elements in the order of memory; the sentinels must be there.
    fn values(&self, stream: u64, what: &str) -> Verdict<Vec<f64>> {
        let width = size_of_dtype(self.dtype);
        let bytes: Vec<u8> = download(
            stream,
            self.address - GUARD as u64,
            2 * GUARD + self.span * width,
        )?;
        let (before, rest) = bytes.split_at(GUARD);
        let (inside, behind) = rest.split_at(self.span * width);
        let kept = |bytes: &[u8]| bytes.iter().all(|byte| *byte == SENTINEL);
        check!(
            kept(before),
            "{what}: nothing in front of an operand is written"
        );
        check!(kept(behind), "{what}: nothing behind an operand is written");
        Ok(inside
            .chunks_exact(width)
            .map(|bytes| decode(self.dtype, bytes))
            .collect())
    }
}

/// Calls an operator in order of a stream, and waits.
fn call(
    stream: u64,
    name: &str,
    inputs: &[&Operand],
    outputs: &[&Operand],
    scalars: &[f64],
) -> Verdict {
    let name = std::ffi::CString::new(name)?;
    let id = made(|out| otr!(otr_operator_find, name.as_ptr(), out))?;
    let inputs: Vec<_> = inputs.iter().map(|operand| operand.tensor()).collect();
    let outputs: Vec<_> = outputs.iter().map(|operand| operand.tensor()).collect();
    let scalars: Vec<otr_scalar_t> = scalars
        .iter()
        .map(|value| {
            // SAFETY: zero is valid for all fields.
            let mut scalar: otr_scalar_t = unsafe { std::mem::zeroed() };
            scalar.dtype = DType::F64.0;
            scalar.value.f64_ = *value;
            scalar
        })
        .collect();
    let call = otr_operator_call_t {
        inputs: inputs.as_ptr(),
        outputs: outputs.as_ptr(),
        scalars: scalars.as_ptr(),
        input_count: inputs.len() as u32,
        output_count: outputs.len() as u32,
        scalar_count: scalars.len() as u32,
        ..empty_call()
    };
    otr!(otr_operator_call, stream, id, &call)?;
    Ok(otr!(otr_stream_synchronize, stream)?)
}

/// Compares with a reference: the normalized mean square error is within the dtype's limit.
fn close(dtype: DType, found: &[f64], expected: &[f64], what: &str) -> Verdict {
    equal!(found.len(), expected.len(), "elements of {what}");
    let (mut error, mut power) = (0.0, 0.0);
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = (found.is_nan() && expected.is_nan()) || found == expected;
        check!(
            same || (found.is_finite() && expected.is_finite()),
            "{what}: element {at} is {found}, and {expected} is right"
        );
        if !same {
            error += (found - expected).powi(2);
        }
        if expected.is_finite() {
            power += expected.powi(2);
        }
    }
    let limit = limit(dtype);
    // A result that is not a number has an error that is none either, and is refused above.
    let right = error <= limit * power + 1e-30;
    check!(
        right,
        "{what}: a normalized error of {:e}, at most {limit:e}",
        error / power
    );
    Ok(())
}

/// A value that the dtype has, so that the reference starts from the same one.
fn rounded(dtype: DType, value: f64) -> f64 {
    decode(dtype, &encode(dtype, value))
}

fn values(dtype: DType, count: usize, (low, high): (f64, f64), seed: u64) -> Vec<f64> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|_| rounded(dtype, low + rng.f64() * (high - low)))
        .collect()
}

fn count(sizes: &[i64]) -> usize {
    sizes.iter().product::<i64>() as usize
}

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

fn unary(
    context: &Context,
    name: &str,
    dtype: DType,
    range: (f64, f64),
    reference: fn(f64) -> f64,
) -> Verdict {
    start(context)?;
    let stream = stream()?;
    for (seed, sizes) in SHAPES.iter().enumerate() {
        let inputs = values(dtype, count(sizes), range, context.seed() ^ seed as u64);
        let (a, out) = (
            Operand::dense(stream, dtype, sizes, &inputs)?,
            Operand::dense(stream, dtype, sizes, &vec![99.0; inputs.len()])?,
        );
        call(stream, name, &[&a], &[&out], &[])?;
        let expected: Vec<f64> = inputs
            .iter()
            .map(|x| rounded(dtype, reference(*x)))
            .collect();
        let what = format!("{name} of {sizes:?}");
        close(dtype, &out.values(stream, &what)?, &expected, &what)?;
        equal!(a.values(stream, &what)?, inputs, "the input of {what}");
    }
    // Every third element of memory, written to every second.
    let inputs = values(dtype, 3 * 50, range, 5);
    let (a, out) = (
        Operand::new(stream, dtype, &[50], &[3], &inputs)?,
        Operand::new(stream, dtype, &[50], &[2], &[77.0; 100])?,
    );
    call(stream, name, &[&a], &[&out], &[])?;
    let expected: Vec<f64> = (0..100)
        .map(|at| {
            if at % 2 == 0 {
                rounded(dtype, reference(inputs[at / 2 * 3]))
            } else {
                rounded(dtype, 77.0)
            }
        })
        .collect();
    close(
        dtype,
        &out.values(stream, "strided")?,
        &expected,
        &format!("{name} with strides"),
    )?;
    // In place.
    let inputs = values(dtype, 999, range, 6);
    let a = Operand::dense(stream, dtype, &[999], &inputs)?;
    call(stream, name, &[&a], &[&a], &[])?;
    let expected: Vec<f64> = inputs
        .iter()
        .map(|x| rounded(dtype, reference(*x)))
        .collect();
    close(
        dtype,
        &a.values(stream, "in place")?,
        &expected,
        &format!("{name} in place"),
    )
}

fn binary(
    context: &Context,
    name: &str,
    dtype: DType,
    range: (f64, f64),
    reference: fn(f64, f64) -> f64,
) -> Verdict {
    start(context)?;
    let stream = stream()?;
    for (seed, sizes) in SHAPES.iter().enumerate() {
        let count = count(sizes);
        let (x, y) = (
            values(dtype, count, range, 2 * seed as u64),
            values(dtype, count, range, 2 * seed as u64 + 1),
        );
        let (a, b) = (
            Operand::dense(stream, dtype, sizes, &x)?,
            Operand::dense(stream, dtype, sizes, &y)?,
        );
        let out = Operand::dense(stream, dtype, sizes, &vec![99.0; count])?;
        call(stream, name, &[&a, &b], &[&out], &[])?;
        let expected: Vec<f64> = x
            .iter()
            .zip(&y)
            .map(|(x, y)| rounded(dtype, reference(*x, *y)))
            .collect();
        let what = format!("{name} of {sizes:?}");
        close(dtype, &out.values(stream, &what)?, &expected, &what)?;
    }
    // A row over a column, both broadcast.
    let (x, y) = (values(dtype, 17, range, 50), values(dtype, 23, range, 51));
    let (a, b) = (
        Operand::new(stream, dtype, &[17, 23], &[1, 0], &x)?,
        Operand::new(stream, dtype, &[17, 23], &[0, 1], &y)?,
    );
    let out = Operand::dense(stream, dtype, &[17, 23], &[99.0; 17 * 23])?;
    call(stream, name, &[&a, &b], &[&out], &[])?;
    let expected: Vec<f64> = x
        .iter()
        .flat_map(|x| y.iter().map(|y| rounded(dtype, reference(*x, *y))))
        .collect();
    close(
        dtype,
        &out.values(stream, "broadcast")?,
        &expected,
        &format!("{name}, broadcast"),
    )
}

/// Makes a test of each operator for each dtype.
macro_rules! of_dtypes {
    ($list:ident $dtypes:tt; $($name:literal $family:ident $arguments:tt;)*) => {
        of_dtypes!(@list $list $(($name $family $arguments $dtypes))*);
    };
    (@list $list:ident $(($name:literal $family:ident $arguments:tt [$($dtype:ident $suffix:literal),+]))*) => {
        pub(in crate::tests) const $list: &[Test] = &[$($(Test {
            id: concat!("ops.", $name, ".", $suffix),
            rules: &["H18", "H22"],
            needs: &[$crate::Need::HostCompute],
            absent: &[],
            about: concat!("The operator `", $name, "` of ", $suffix, " gives what a reference in f64 gives, and writes nothing else."),
            limit: 60,
            run: |context| of_dtypes!(@call context $name $family $dtype $arguments),
        },)+)*];
    };
    (@call $context:ident $name:literal $family:ident $dtype:ident ($($argument:expr),*)) => {
        $family($context, $name, DType::$dtype, $($argument),*)
    };
}

of_dtypes! { FLOATS [F32 "f32", F64 "f64", F16 "f16", BF16 "bf16"];
    "neg" unary((-9.0, 9.0), |x| -x);
    "abs" unary((-9.0, 9.0), f64::abs);
    "square" unary((-9.0, 9.0), |x| x * x);
    "exp" unary((-3.0, 3.0), f64::exp);
    "log" unary((0.1, 50.0), f64::ln);
    "sqrt" unary((0.0, 50.0), f64::sqrt);
    "rsqrt" unary((0.1, 50.0), |x| 1.0 / x.sqrt());
    "reciprocal" unary((0.2, 9.0), f64::recip);
    "tanh" unary((-4.0, 4.0), f64::tanh);
    "sigmoid" unary((-6.0, 6.0), |x| 1.0 / (1.0 + (-x).exp()));
    "sin" unary((-6.0, 6.0), f64::sin);
    "cos" unary((-6.0, 6.0), f64::cos);
    "floor" unary((-9.0, 9.0), f64::floor);
    "relu" unary((-9.0, 9.0), |x| x.max(0.0));
    "silu" unary((-6.0, 6.0), |x| x / (1.0 + (-x).exp()));
    "add" binary((-9.0, 9.0), |x, y| x + y);
    "sub" binary((-9.0, 9.0), |x, y| x - y);
    "mul" binary((-9.0, 9.0), |x, y| x * y);
    "div" binary((0.5, 9.0), |x, y| x / y);
    "maximum" binary((-9.0, 9.0), f64::max);
    "minimum" binary((-9.0, 9.0), f64::min);
    "sum" reduce(|row| row.iter().sum());
    "mean" reduce(|row| row.iter().sum::<f64>() / row.len() as f64);
    "amax" reduce(|row| row.iter().copied().fold(f64::MIN, f64::max));
    "softmax" softmax(false);
    "log_softmax" softmax(true);
    "mm" mm();
    "layer_norm" layer_norm();
}

of_dtypes! { INTEGERS [I64 "i64", I32 "i32", I16 "i16", I8 "i8", U8 "u8"];
    "add" binary((0.0, 50.0), |x, y| x + y);
    "mul" binary((0.0, 11.0), |x, y| x * y);
    "maximum" binary((0.0, 100.0), f64::max);
    "amin" reduce(|row| row.iter().copied().fold(f64::MAX, f64::min));
    "copy" cast();
}

of_dtypes! { CASTS [F32 "f32", F64 "f64", F16 "f16", BF16 "bf16", BOOL "bool"];
    "copy" cast();
}

tests! { "ops.call":
    /// A call that does not fit an operator's table is refused, and nothing is done.
    a_wrong_call_is_refused: H2 H6, needs HostCompute;
    /// Dtypes for which there is no kernel are OTR_ERR_UNSUPPORTED, and nothing is done.
    what_is_not_there_is_unsupported: H2 H29;
    /// An operator runs where something can run it, and is OTR_ERR_UNSUPPORTED elsewhere; the stream goes on.
    runs_or_is_unsupported: H2 H29, absent HostCompute;
    /// An index out of bounds fails the stream with OTR_ERR_OUT_OF_RANGE, and names the operator.
    an_index_out_of_bounds_fails_the_stream: H3 H19, needs HostCompute;
    /// Operators of a stream see each other's results, without a wait between them.
    a_chain_of_calls: H18, needs HostCompute;
}

/// Reductions over each dimension of three.
fn reduce(context: &Context, name: &str, dtype: DType, reference: fn(&[f64]) -> f64) -> Verdict {
    start(context)?;
    let stream = stream()?;
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
                Operand::dense(stream, dtype, &sizes, &inputs)?,
                Operand::dense(stream, dtype, &kept, &vec![99.0; count(&kept)])?,
            );
            call(stream, name, &[&a], &[&out], &[])?;
            let expected: Vec<f64> = rows(&inputs, &sizes, dim)
                .iter()
                .map(|row| rounded(dtype, reference(row)))
                .collect();
            let what = format!("{name} of {sizes:?} over dimension {dim}");
            close(dtype, &out.values(stream, &what)?, &expected, &what)?;
        }
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

fn softmax(context: &Context, name: &str, dtype: DType, log: bool) -> Verdict {
    start(context)?;
    let stream = stream()?;
    for (seed, sizes) in [[1, 1, 1], [3, 5, 7], [2, 300, 9]].into_iter().enumerate() {
        let inputs = values(dtype, count(&sizes), (-4.0, 4.0), seed as u64);
        let dim = 1;
        let (a, out) = (
            Operand::dense(stream, dtype, &sizes, &inputs)?,
            Operand::dense(stream, dtype, &sizes, &vec![99.0; inputs.len()])?,
        );
        call(stream, name, &[&a], &[&out], &[dim as f64])?;
        let found = out.values(stream, name)?;
        let (mut all, mut right) = (Vec::new(), Vec::new());
        for (row, found) in rows(&inputs, &sizes, dim)
            .iter()
            .zip(rows(&found, &sizes, dim))
        {
            let total: f64 = row.iter().map(|x| x.exp()).sum();
            right.extend(
                row.iter()
                    .map(|x| if log { x - total.ln() } else { x.exp() / total }),
            );
            all.extend(found);
        }
        close(dtype, &all, &right, &format!("{name} of {sizes:?}"))?;
    }
    Ok(())
}

fn mm(context: &Context, name: &str, dtype: DType) -> Verdict {
    start(context)?;
    let stream = stream()?;
    for (seed, [m, k, n]) in [
        [1, 1, 1],
        [3, 5, 7],
        [16, 16, 16],
        [33, 65, 17],
        [1, 300, 2],
        [96, 128, 80],
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
        let a = Operand::dense(stream, dtype, &[rows, inner], &x)?;
        for (b, strides) in [(&y, [columns, 1]), (&transposed, [1, inner])] {
            let b = Operand::new(stream, dtype, &[inner, columns], &strides, b)?;
            let out = Operand::dense(stream, dtype, &[rows, columns], &vec![99.0; m * n])?;
            call(stream, name, &[&a, &b], &[&out], &[])?;
            let what = format!("{name} of {m} x {k} by {k} x {n}, strides {strides:?}");
            close(dtype, &out.values(stream, &what)?, &expected, &what)?;
        }
    }
    Ok(())
}

fn layer_norm(context: &Context, name: &str, dtype: DType) -> Verdict {
    start(context)?;
    let stream = stream()?;
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
        let dense = |sizes: &[i64], values: &[f64]| Operand::dense(stream, dtype, sizes, values);
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
        let statistic = || Operand::dense(stream, wide, &[rows as i64, 1], &vec![99.0; rows]);
        let (mean, rstd) = (statistic()?, statistic()?);
        call(
            stream,
            name,
            &[&inputs[0], &inputs[1], &inputs[2]],
            &[&out, &mean, &rstd],
            &[1.0, 1e-5],
        )?;
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
        close(dtype, &out.values(stream, &what)?, &expected, &what)?;
        mean.values(stream, &what)?;
        rstd.values(stream, &what)?;
    }
    Ok(())
}

/// Casts from each dtype to one.
fn cast(context: &Context, name: &str, dtype: DType) -> Verdict {
    start(context)?;
    let stream = stream()?;
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
                Operand::dense(stream, from, &[size as i64], &x)?,
                Operand::dense(stream, dtype, &[size as i64], &vec![55.0; size])?,
            );
            call(stream, name, &[&a], &[&out], &[])?;
            let expected: Vec<f64> = x.iter().map(|x| rounded(dtype, *x)).collect();
            let what = format!("{size} elements of {from:?} as {dtype:?}");
            close(dtype, &out.values(stream, &what)?, &expected, &what)?;
        }
    }
    Ok(())
}

fn a_wrong_call_is_refused(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let add = made(|out| otr!(otr_operator_find, c"add".as_ptr(), out))?;
    let a = Operand::dense(stream, DType::F32, &[4], &[1.0; 4])?;
    let other = Operand::dense(stream, DType::F32, &[5], &[1.0; 5])?;
    let out = Operand::dense(stream, DType::F32, &[4], &[9.0; 4])?;
    let (inputs, outputs) = ([a.tensor(), other.tensor()], [out.tensor()]);
    let mut wrong = empty_call();
    (wrong.inputs, wrong.outputs) = (inputs.as_ptr(), outputs.as_ptr());
    for (what, inputs, outputs) in [
        ("no operands", 0, 0),
        ("no output", 2, 0),
        ("shapes that do not fit", 2, 1),
    ] {
        (wrong.input_count, wrong.output_count) = (inputs, outputs);
        refused(
            otr!(otr_operator_call, stream, add, &wrong),
            Code::INVALID_ARGUMENT,
            what,
        )?;
    }
    refused(
        otr!(otr_operator_call, stream, u32::MAX, &wrong),
        Code::NOT_FOUND,
        "an operator that does not exist",
    )
    .or_else(|_| {
        refused(
            otr!(otr_operator_call, stream, u32::MAX, &wrong),
            Code::INVALID_ARGUMENT,
            "an operator that does not exist",
        )
    })?;
    otr!(otr_stream_synchronize, stream)?;
    equal!(
        out.values(stream, "the output")?,
        [9.0; 4],
        "the output of refused calls"
    );
    Ok(())
}

fn what_is_not_there_is_unsupported(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let exp = made(|out| otr!(otr_operator_find, c"exp".as_ptr(), out))?;
    let a = Operand::dense(stream, DType::I32, &[4], &[1.0; 4])?;
    let out = Operand::dense(stream, DType::I32, &[4], &[9.0; 4])?;
    let (inputs, outputs) = ([a.tensor()], [out.tensor()]);
    let call = call_of(&inputs, &outputs);
    refused(
        otr!(otr_operator_call, stream, exp, &call),
        Code::UNSUPPORTED,
        "exp to integers",
    )?;
    otr!(otr_stream_synchronize, stream)?;
    equal!(out.values(stream, "the output")?, [9.0; 4], "the output");
    Ok(())
}

fn runs_or_is_unsupported(context: &Context) -> Verdict {
    let driver = context.open()?;
    let runs = Need::HostCompute.declared(&driver, context.spec());
    // A library of the driver's own has it or not.
    let may_run = runs || driver.operators().is_some();
    drop(driver);
    start(context)?;
    let stream = stream()?;
    let add = made(|out| otr!(otr_operator_find, c"add".as_ptr(), out))?;
    let a = Operand::dense(stream, DType::F32, &[4], &[1.0; 4])?;
    let out = Operand::dense(stream, DType::F32, &[4], &[9.0; 4])?;
    let (inputs, outputs) = ([a.tensor(), a.tensor()], [out.tensor()]);
    let call = call_of(&inputs, &outputs);
    let outcome = otr!(otr_operator_call, stream, add, &call);
    let expected = if runs || may_run && outcome.is_ok() {
        outcome?;
        2.0
    } else {
        refused(outcome, Code::UNSUPPORTED, "an operator that nothing runs")?;
        9.0
    };
    otr!(otr_stream_synchronize, stream)?;
    equal!(
        out.values(stream, "the output")?,
        [expected; 4],
        "the output"
    );
    Ok(())
}

fn an_index_out_of_bounds_fails_the_stream(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let weight = Operand::dense(stream, DType::F32, &[3, 2], &[1.0; 6])?;
    let indices = Operand::dense(stream, DType::I64, &[2], &[0.0, 7.0])?;
    let out = Operand::dense(stream, DType::F32, &[2, 2], &[9.0; 4])?;
    let (inputs, outputs) = ([weight.tensor(), indices.tensor()], [out.tensor()]);
    let embedding = made(|out| otr!(otr_operator_find, c"embedding".as_ptr(), out))?;
    let call = call_of(&inputs, &outputs);
    otr!(otr_operator_call, stream, embedding, &call)?;
    let failure = refused(
        otr!(otr_stream_synchronize, stream),
        Code::OUT_OF_RANGE,
        "the stream",
    )?;
    equal!(failure.stream, stream, "H3: the stream of the status");
    check!(
        failure
            .operator
            .is_none_or(|name| name.contains("embedding")),
        "H3: the operator of the status"
    );
    otr!(otr_stream_synchronize, stream)?;
    out.values(stream, "the output, around which nothing is written")?;
    Ok(())
}

fn a_chain_of_calls(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let add = made(|out| otr!(otr_operator_find, c"add".as_ptr(), out))?;
    let (x, one) = (
        Operand::dense(stream, DType::F32, &[5000], &[0.0; 5000])?,
        Operand::dense(stream, DType::F32, &[5000], &[1.0; 5000])?,
    );
    let (inputs, outputs) = ([x.tensor(), one.tensor()], [x.tensor()]);
    let call = call_of(&inputs, &outputs);
    for _ in 0..200 {
        otr!(otr_operator_call, stream, add, &call)?;
    }
    otr!(otr_stream_synchronize, stream)?;
    equal!(
        x.values(stream, "the sum")?,
        vec![200.0; 5000],
        "200 times 1"
    );
    Ok(())
}
