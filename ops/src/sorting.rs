//! Running results along a dimension.

use outrigger_device::Code;

use crate::call::Call;
use crate::error::Result;
use crate::plain::{self, Plain, Run, dimension, real, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[Definition {
    name: c"cumprod",
    plan: plain::plan::<CumulativeProduct>,
}];

/// The products of all elements up to each one, along a dimension.
struct CumulativeProduct;

impl Plain for CumulativeProduct {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, out) = (call.needed(0)?, call.result(0)?);
        dimension(call.int(1).unwrap_or(0), input.rank())?;
        real(input)?;
        real(out)?;
        same_sizes("the output", out.sizes(), input.sizes())?;
        Ok(input.numel())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, out) = (run.tensor(0).ok_or(Code::INTERNAL)?, run.output(0));
        let dim = dimension(run.call.int(1).unwrap_or(0), input.rank()).unwrap_or(0);
        let length = input.size(dim);
        let inner: i64 = input.sizes.iter().skip(dim + 1).product();
        for row in 0..input.numel() / length.max(1) {
            let first = row / inner * inner * length + row % inner;
            let (mut product, mut whole) = (1.0, 1i64);
            for step in 0..length {
                let number = first + step * inner;
                let (from, to) = (input.nth(number), out.nth(number));
                if out.is_int() {
                    whole = whole.wrapping_mul(input.get_int(from));
                    out.set_int(to, whole);
                } else {
                    product *= input.get(from);
                    out.set(to, product);
                }
            }
        }
        Ok(())
    }
}
