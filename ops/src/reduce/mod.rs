//! Reductions over any set of dimensions.
//!
//! An output has the rank of the input, with size 1 where the input is reduced. The computation is a [`Reducer`]: it
//! takes values into a state, and combines that with the state of the values that follow. Memory is walked in its own
//! order: along the reduced dimensions if they are innermost, else across them, with a state for each column. Work is
//! cut into pieces whose size depends on the shape alone, and their states are combined in order. So results are the
//! same for any number of threads.

mod extreme;
mod reducers;
mod work;

use bytemuck::{Pod, Zeroable};

use crate::call::{Call, Tensor};
use crate::convert::Compute;
use crate::error::{Result, invalid};
use crate::geometry::{self, Dim, Geometry};
use crate::isa::Isa;
use crate::plan::{KernelFn, Plan};

pub(crate) use extreme::OPERATORS as EXTREMES;
pub(crate) use reducers::OPERATORS as SUMS;
use work::kernel;

/// The computation over a sequence of values.
pub(crate) trait Reducer: Copy + Send + Sync + 'static {
    /// The values that are taken in.
    type In: Compute;
    /// The values of the first output.
    type Out: Compute;
    /// The values of the second output.
    type Second: Compute;
    /// The state of a reduction after some values.
    type State: Copy + Send + Sync;
    /// The reducer with its parameter from the argument block.
    fn new(param: f64) -> Self;
    /// The state before the first value.
    fn start(self) -> Self::State;
    /// Takes values into a state. `first` is the index of the first of them.
    fn take<I: Isa>(self, state: Self::State, first: i64, values: &[Self::In]) -> Self::State;
    /// Takes one value into each state. All values have the index `index`.
    fn take_each<I: Isa>(self, states: &mut [Self::State], index: i64, values: &[Self::In]);
    /// The state of two sequences, the second of which follows the first.
    fn combine(self, before: Self::State, after: Self::State) -> Self::State;
    /// The results for a sequence of `count` values.
    fn finish(self, state: Self::State, count: i64) -> (Self::Out, Self::Second);
}

/// The properties of a reduction that a plan needs.
pub(crate) struct Reduction {
    pub(crate) kernel: KernelFn,
    /// Whether reduced dimensions keep their own order, which results that are indices need.
    pub(crate) ordered: bool,
    /// The outputs that a call has: the first, the second or both.
    pub(crate) outputs: Outputs,
    /// Whether there is a result for no values.
    pub(crate) empty: bool,
    pub(crate) param: f64,
}

/// The results of a reducer that a call wants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outputs {
    First,
    Second,
    Both,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    input: u64,
    outputs: [u64; 2],
    /// The number of results, and the number of values of each.
    kept: i64,
    reduced: i64,
    param: f64,
    /// The dtypes of the input and of the outputs; 0 for an output that is not wanted.
    dtypes: [u8; 4],
    kept_rank: u16,
    reduced_rank: u16,
}

/// Picoseconds per value on one core.
const COST: u32 = 150;

impl Reduction {
    /// Checks a call, and fills its plan.
    pub(crate) fn plan(&self, call: &Call<'_>, plan: &mut Plan) -> Result<()> {
        let [input] = call.inputs else {
            return invalid(format!("{} inputs, 1 is expected", call.inputs.len()));
        };
        let (first, second) = match (self.outputs, call.outputs) {
            (Outputs::First, [first]) => (Some(first), None),
            (Outputs::Second, [second]) => (None, Some(second)),
            (Outputs::Both, [first, second]) => (Some(first), Some(second)),
            _ => {
                let right = if self.outputs == Outputs::Both { 2 } else { 1 };
                return invalid(format!(
                    "{} outputs, {right} are expected",
                    call.outputs.len()
                ));
            }
        };
        let shape = call.outputs[0];
        if call
            .outputs
            .iter()
            .any(|output| output.sizes() != shape.sizes())
        {
            return invalid("both outputs must have the same sizes");
        }
        let sides = split(input, &shape, first, second, self.ordered)?;
        if sides.kept.numel == 0 {
            return Ok(());
        }
        if sides.reduced.numel == 0 && !self.empty {
            return invalid(
                "the reduced dimensions are empty, and there is no result for no values",
            );
        }
        let code = |tensor: Option<&Tensor<'_>>| tensor.map_or(0, |tensor| tensor.dtype().0 as u8);
        let address = |tensor: Option<&Tensor<'_>>| tensor.map_or(0, |tensor| tensor.address());
        plan.kernel = self.kernel;
        let values = sides.kept.numel.saturating_mul(sides.reduced.numel);
        plan.cost_ns = crate::plan::cost_ns(values, COST);
        plan.push(&Header {
            input: input.address(),
            outputs: [address(first), address(second)],
            kept: sides.kept.numel,
            reduced: sides.reduced.numel,
            param: self.param,
            dtypes: [input.dtype().0 as u8, code(first), code(second), 0],
            kept_rank: sides.kept.rank as u16,
            reduced_rank: sides.reduced.rank as u16,
        });
        sides.kept.push(3, plan);
        sides.reduced.push(3, plan);
        Ok(())
    }
}

struct Sides {
    kept: Geometry,
    reduced: Geometry,
}

/// Splits dimensions into those that are kept and those that are reduced. The operands are the input and both outputs.
fn split(
    input: &Tensor<'_>,
    shape: &Tensor<'_>,
    first: Option<&Tensor<'_>>,
    second: Option<&Tensor<'_>>,
    ordered: bool,
) -> Result<Sides> {
    if input.rank() != shape.rank() {
        return invalid(format!(
            "the output has rank {}, it must be the input's {}, with size 1 where it is reduced",
            shape.rank(),
            input.rank()
        ));
    }
    let size = geometry::checked_size(input)?;
    let size_of = |tensor: Option<&Tensor<'_>>| tensor.map_or(Ok(0), geometry::checked_size);
    let (first_size, second_size) = (size_of(first)?, size_of(second)?);
    let mut sides = Sides {
        kept: Geometry::empty(),
        reduced: Geometry::empty(),
    };
    for d in (0..input.rank()).rev() {
        let stride = |tensor: Option<&Tensor<'_>>, bytes: i64| {
            tensor.map_or(0, |tensor| tensor.strides()[d] * bytes)
        };
        let mut dim = Dim {
            size: input.sizes()[d],
            strides: [0; geometry::MAX_OPERANDS],
        };
        dim.strides[0] = input.strides()[d] * size;
        if shape.sizes()[d] == dim.size {
            dim.strides[1] = stride(first, first_size);
            dim.strides[2] = stride(second, second_size);
            sides.kept.add(dim, false)?;
        } else if shape.sizes()[d] == 1 {
            sides.reduced.add(dim, ordered)?;
        } else {
            return invalid(format!(
                "size {} of output dimension {d} must be 1 or the input's {}",
                shape.sizes()[d],
                dim.size
            ));
        }
    }
    sides.kept.finish(3);
    sides.reduced.finish(3);
    Ok(sides)
}
