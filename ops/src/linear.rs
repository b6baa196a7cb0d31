//! Linear layers: a product with a weight, and what follows it; and products with a weight of few bits.

use outrigger_device::{Code, DType};

use crate::call::Call;
use crate::error::{Result, invalid, unsupported};
use crate::plain::{self, Plain, Run, View, floating, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"linear",
        plan: plain::plan::<Linear>,
    },
    Definition {
        name: c"scaled_mm",
        plan: plain::plan::<ScaledMm>,
    },
    Definition {
        name: c"quantized_mm",
        plan: plain::plan::<QuantizedMm>,
    },
];

const INPUT: usize = 0;
const WEIGHT: usize = 1;
const BIAS: usize = 2;
const RESIDUAL: usize = 3;
const ACTIVATION: usize = 4;

/// The activation with a number of the catalog.
fn activation(number: i64) -> Option<fn(f64) -> f64> {
    Some(match number {
        0 => |x| x,
        // Not a number stays.
        1 => |x| if x < 0.0 { 0.0 } else { x },
        2 => |x| 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        3 => |x| {
            let inner = x + 0.044715 * x * x * x;
            let scale = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
            0.5 * x * (1.0 + (scale * inner).tanh())
        },
        4 => |x| x / (1.0 + (-x).exp()),
        _ => return None,
    })
}

struct Linear;

impl Plain for Linear {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, weight, out) = (call.needed(INPUT)?, call.needed(WEIGHT)?, call.result(0)?);
        let there = [BIAS, RESIDUAL]
            .into_iter()
            .filter_map(|at| call.tensor(at));
        for tensor in [input, weight, out].into_iter().chain(there) {
            floating(tensor)?;
        }
        let ([rows @ .., depth], &[columns, width]) = (input.sizes(), weight.sizes()) else {
            return invalid(format!(
                "input {:?} and weight {:?}: rows of k elements and a weight [n, k] are expected",
                input.sizes(),
                weight.sizes()
            ));
        };
        same_sizes("a row of the weight", &[width], &[*depth])?;
        let right = [rows, &[columns]].concat();
        same_sizes("the output", out.sizes(), &right)?;
        if let Some(bias) = call.tensor(BIAS) {
            same_sizes("the bias", bias.sizes(), &[columns])?;
        }
        if let Some(residual) = call.tensor(RESIDUAL) {
            same_sizes("the residual", residual.sizes(), &right)?;
        }
        let number = call.int(ACTIVATION).unwrap_or(-1);
        if activation(number).is_none() {
            return invalid(format!("activation {number}: 0 to 4 is expected"));
        }
        Ok(out.numel().saturating_mul(*depth))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(input), Some(weight), out) =
            (run.tensor(INPUT), run.tensor(WEIGHT), run.output(0))
        else {
            return Err(Code::INTERNAL);
        };
        let (bias, residual) = (run.tensor(BIAS), run.tensor(RESIDUAL));
        let number = run.call.int(ACTIVATION).unwrap_or(-1);
        let activation = activation(number).ok_or(Code::INTERNAL)?;
        let (columns, depth) = (weight.size(0), weight.size(1));
        for number in 0..out.numel() {
            let (row, column) = (number / columns, number % columns);
            let mut sum = 0.0;
            for at in 0..depth {
                let left = input.get(input.nth(row * depth + at));
                sum += left * weight.get(weight.at(&[column, at]));
            }
            if let Some(bias) = &bias {
                sum += bias.get(bias.at(&[column]));
            }
            let mut value = activation(sum);
            if let Some(residual) = &residual {
                value += residual.get(residual.nth(number));
            }
            out.set(out.nth(number), value);
        }
        Ok(())
    }
}

const SCALE_A: usize = 2;
const SCALE_B: usize = 3;
const PRODUCT_BIAS: usize = 4;
const SCALE_RESULT: usize = 5;

/// A product of matrices of 8 bits, whose elements have a scale for the whole or for each row and column.
struct ScaledMm;

impl Plain for ScaledMm {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (a, b, out) = (call.needed(INPUT)?, call.needed(WEIGHT)?, call.result(0)?);
        floating(out)?;
        for factor in [a, b] {
            if ![DType::F8E4M3, DType::F8E5M2].contains(&factor.dtype()) {
                return unsupported(format!(
                    "a factor of {}: f8e4m3 and f8e5m2 are served",
                    factor.dtype()
                ));
            }
        }
        if call.tensor(SCALE_RESULT).is_some() {
            return unsupported(format!(
                "a scale of a result of {}: only results of 8 bits are scaled",
                out.dtype()
            ));
        }
        let (&[rows, depth], &[of_b, columns]) = (a.sizes(), b.sizes()) else {
            return invalid(format!(
                "a {:?} and b {:?}: two dimensions each are expected",
                a.sizes(),
                b.sizes()
            ));
        };
        same_sizes("a column of b", &[of_b], &[depth])?;
        for (what, at, right) in [
            ("scale_a", SCALE_A, [rows, 1]),
            ("scale_b", SCALE_B, [1, columns]),
        ] {
            let scale = call.needed(at)?;
            if scale.dtype() != DType::F32 {
                return unsupported(format!("{what} of {}: f32 is served", scale.dtype()));
            }
            if scale.numel() != 1 {
                same_sizes(what, scale.sizes(), &right)?;
            }
        }
        if let Some(bias) = call.tensor(PRODUCT_BIAS) {
            floating(bias)?;
            same_sizes("the bias", bias.sizes(), &[columns])?;
        }
        same_sizes("the output", out.sizes(), &[rows, columns])?;
        Ok(out.numel().saturating_mul(depth))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(a), Some(b), Some(scale_a), Some(scale_b), out) = (
            run.tensor(INPUT),
            run.tensor(WEIGHT),
            run.tensor(SCALE_A),
            run.tensor(SCALE_B),
            run.output(0),
        ) else {
            return Err(Code::INTERNAL);
        };
        let bias = run.tensor(PRODUCT_BIAS);
        let scale = |scales: &View<'_>, at: i64| {
            scales.get(scales.nth(if scales.numel() == 1 { 0 } else { at }))
        };
        for number in 0..out.numel() {
            let (row, column) = (number / out.size(1), number % out.size(1));
            let mut sum = 0.0;
            for at in 0..a.size(1) {
                sum += a.get(a.at(&[row, at])) * b.get(b.at(&[at, column]));
            }
            sum *= scale(&scale_a, row) * scale(&scale_b, column);
            if let Some(bias) = &bias {
                sum += bias.get(bias.at(&[column]));
            }
            out.set(out.nth(number), sum);
        }
        Ok(())
    }
}

const SCALES: usize = 2;
const ZEROS: usize = 3;
const GROUP: usize = 4;
const BITS: usize = 5;

/// A product with a weight of 8 or 4 bits, whose elements have a scale for each group of a row.
struct QuantizedMm;

impl Plain for QuantizedMm {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, weight, out) = (call.needed(INPUT)?, call.needed(WEIGHT)?, call.result(0)?);
        let scales = call.needed(SCALES)?;
        for tensor in [input, scales, out].into_iter().chain(call.tensor(ZEROS)) {
            floating(tensor)?;
        }
        let (dtype, in_a_byte) = match call.int(BITS) {
            Some(8) => (DType::I8, 1),
            Some(4) => (DType::U8, 2),
            other => return invalid(format!("weights of {other:?} bits: 8 or 4 are expected")),
        };
        if weight.dtype() != dtype {
            return invalid(format!(
                "a weight of {}: with these bits {dtype} is expected",
                weight.dtype()
            ));
        }
        let (&[rows, depth], &[columns, bytes]) = (input.sizes(), weight.sizes()) else {
            return invalid(format!(
                "input {:?} and weight {:?}: two dimensions each are expected",
                input.sizes(),
                weight.sizes()
            ));
        };
        if bytes.checked_mul(in_a_byte) != Some(depth) {
            return invalid(format!(
                "a row of the weight has {bytes} bytes of {in_a_byte} elements, and one of the input {depth} elements"
            ));
        }
        let group = call.int(GROUP).unwrap_or(0);
        if group <= 0 || depth % group != 0 {
            return invalid(format!(
                "groups of {group} elements in rows of {depth}: a number that divides a row is expected"
            ));
        }
        let right = [columns, depth / group];
        same_sizes("the scales", scales.sizes(), &right)?;
        if let Some(zeros) = call.tensor(ZEROS) {
            same_sizes("the zeros", zeros.sizes(), &right)?;
        }
        same_sizes("the output", out.sizes(), &[rows, columns])?;
        Ok(out.numel().saturating_mul(depth))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(input), Some(weight), Some(scales), out) = (
            run.tensor(INPUT),
            run.tensor(WEIGHT),
            run.tensor(SCALES),
            run.output(0),
        ) else {
            return Err(Code::INTERNAL);
        };
        let zeros = run.tensor(ZEROS);
        let group = run.call.int(GROUP).unwrap_or(1);
        let weight_at = |column: i64, at: i64| {
            if weight.dtype == DType::I8 {
                return weight.get_int(weight.at(&[column, at]));
            }
            let byte = weight.get_int(weight.at(&[column, at / 2]));
            let half = byte >> (at % 2 * 4) & 15;
            match zeros {
                None if half > 7 => half - 16,
                _ => half,
            }
        };
        for number in 0..out.numel() {
            let (row, column) = (number / out.size(1), number % out.size(1));
            let mut sum = 0.0;
            for at in 0..input.size(1) {
                let of_group = [column, at / group];
                let zero = zeros.map_or(0.0, |zeros| zeros.get(zeros.at(&of_group)));
                let value = weight_at(column, at) as f64 - zero;
                let scaled = value * scales.get(scales.at(&of_group));
                sum += input.get(input.at(&[row, at])) * scaled;
            }
            out.set(out.nth(number), sum);
        }
        Ok(())
    }
}
