//! Linear layers: a product with a weight, and what follows it.

use outrigger_device::Code;

use crate::call::Call;
use crate::error::{Result, invalid};
use crate::plain::{self, Plain, Run, floating, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[Definition {
    name: c"linear",
    plan: plain::plan::<Linear>,
}];

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
