//! The largest and smallest values, and their indices.
//!
//! NaN counts as larger and smaller than everything, as in PyTorch. Of equal values the first one counts.

use super::{Outputs, Reducer, Reduction, kernel};
use crate::call::Call;
use crate::convert::{Class, Compute, class_of, is_float};
use crate::error::{Result, invalid, unsupported};
use crate::isa::Isa;
use crate::plan::Plan;
use crate::registry::Definition;

/// The largest (or smallest) value, and its index.
#[derive(Clone, Copy)]
struct Extreme<In, const LARGEST: bool>(std::marker::PhantomData<In>);

/// The best value so far. Its index is negative if there is none.
#[derive(Clone, Copy)]
struct Best<In> {
    value: In,
    index: i64,
}

/// Whether `a` replaces `b`.
#[expect(clippy::eq_op, reason = "NaN is what differs from itself")]
#[inline(always)]
fn beats<In: Compute, const LARGEST: bool>(a: In, b: In) -> bool {
    let better = if LARGEST { a > b } else { a < b };
    better | ((a != a) & (b == b))
}

impl<In: Compute, const LARGEST: bool> Reducer for Extreme<In, LARGEST> {
    type In = In;
    type Out = In;
    type Second = i64;
    type State = Best<In>;
    fn new(_: f64) -> Self {
        Self(std::marker::PhantomData)
    }
    fn start(self) -> Best<In> {
        Best {
            value: In::default(),
            index: -1,
        }
    }
    #[inline(always)]
    fn take<I: Isa>(self, state: Best<In>, first: i64, values: &[In]) -> Best<In> {
        const LANES: usize = 16;
        let Some(&start) = values.first() else {
            return state;
        };
        // First the best value, in a vectorised loop. Its index is searched only if it is better than before.
        let mut best = [start; LANES];
        let (blocks, rest) = values.as_chunks::<LANES>();
        for block in blocks {
            for (best, value) in best.iter_mut().zip(block) {
                *best = if beats::<In, LARGEST>(*value, *best) {
                    *value
                } else {
                    *best
                };
            }
        }
        let mut value = start;
        for candidate in best.into_iter().chain(rest.iter().copied()) {
            value = if beats::<In, LARGEST>(candidate, value) {
                candidate
            } else {
                value
            };
        }
        if state.index >= 0 && !beats::<In, LARGEST>(value, state.value) {
            return state;
        }
        let is_value = |x: &In| !beats::<In, LARGEST>(value, *x);
        let index = values.iter().position(is_value).unwrap_or(0) as i64;
        Best {
            value,
            index: first + index,
        }
    }
    #[inline(always)]
    fn take_each<I: Isa>(self, states: &mut [Best<In>], index: i64, values: &[In]) {
        for (state, &value) in states.iter_mut().zip(values) {
            if state.index < 0 || beats::<In, LARGEST>(value, state.value) {
                *state = Best { value, index };
            }
        }
    }
    fn combine(self, a: Best<In>, b: Best<In>) -> Best<In> {
        if a.index < 0 || (b.index >= 0 && beats::<In, LARGEST>(b.value, a.value)) {
            b
        } else {
            a
        }
    }
    fn finish(self, state: Best<In>, _: i64) -> (In, i64) {
        (state.value, state.index)
    }
}

fn plan_extreme<const LARGEST: bool>(
    outputs: Outputs,
    call: &Call<'_>,
    plan: &mut Plan,
) -> Result<()> {
    if !call.scalars.is_empty() {
        return invalid("no scalars are expected");
    }
    let Some(input) = call.inputs.first() else {
        return invalid("0 inputs, 1 is expected");
    };
    let kernel = match class_of(input.dtype()) {
        Some(Class::F32) => kernel::<Extreme<f32, LARGEST>>,
        Some(Class::F64) => kernel::<Extreme<f64, LARGEST>>,
        Some(Class::I32) => kernel::<Extreme<i32, LARGEST>>,
        Some(Class::I64) => kernel::<Extreme<i64, LARGEST>>,
        None => return unsupported(format!("not defined for {}", input.dtype())),
    };
    if let (Outputs::First | Outputs::Both, Some(values)) = (outputs, call.outputs.first())
        && values.dtype() != input.dtype()
    {
        return invalid(format!(
            "values are {}, they must be {}",
            values.dtype(),
            input.dtype()
        ));
    }
    if let (Outputs::Second | Outputs::Both, Some(indices)) = (outputs, call.outputs.last())
        && (is_float(indices.dtype()) || class_of(indices.dtype()) != Some(Class::I64))
    {
        return invalid(format!("indices are {}, they must be i64", indices.dtype()));
    }
    let ordered = outputs != Outputs::First;
    Reduction {
        kernel,
        ordered,
        outputs,
        empty: false,
        param: 0.0,
    }
    .plan(call, plan)
}

macro_rules! extremes {
    ($name:literal, $largest:literal, $outputs:ident) => {
        Definition {
            name: $name,
            plan: |call, plan| plan_extreme::<$largest>(Outputs::$outputs, call, plan),
        }
    };
}

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    extremes!(c"amax", true, First),
    extremes!(c"amin", false, First),
    extremes!(c"argmax", true, Second),
    extremes!(c"argmin", false, Second),
    extremes!(c"max_dim", true, Both),
    extremes!(c"min_dim", false, Both),
];
