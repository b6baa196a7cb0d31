//! Operators that write where indices say: scatter and its reductions, and the index operators.

use outrigger_device::{Code, DType};

use crate::call::{Argument, Call, Tensor};
use crate::error::{Result, invalid, unsupported};
use crate::plain::{self, Plain, Run, View, broadcasts, dimension, real, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"scatter",
        plan: plain::plan::<Scatter>,
    },
    Definition {
        name: c"scatter_value",
        plan: plain::plan::<ScatterValue>,
    },
    Definition {
        name: c"scatter_add",
        plan: plain::plan::<ScatterAdd>,
    },
    Definition {
        name: c"scatter_reduce",
        plan: plain::plan::<ScatterReduce>,
    },
    Definition {
        name: c"index_add",
        plan: plain::plan::<IndexAdd>,
    },
    Definition {
        name: c"index_copy",
        plan: plain::plan::<IndexCopy>,
    },
    Definition {
        name: c"index_fill",
        plan: plain::plan::<IndexFill>,
    },
    Definition {
        name: c"masked_scatter",
        plan: plain::plan::<MaskedScatter>,
    },
];

fn is_index(tensor: &Tensor<'_>) -> Result<()> {
    match tensor.dtype() {
        DType::I64 | DType::I32 => Ok(()),
        other => invalid(format!("indices of {other}: i64 or i32 is expected")),
    }
}

/// Input and output of the same sizes and type, and an index along a dimension.
fn along<'a>(call: &Call<'a>) -> Result<(&'a Tensor<'a>, &'a Tensor<'a>, usize)> {
    let (input, index, out) = (call.needed(0)?, call.needed(2)?, call.result(0)?);
    same_sizes("the output", out.sizes(), input.sizes())?;
    if out.dtype() != input.dtype() || input.dtype().size().is_none() {
        return unsupported(format!(
            "an input of {} and an output of {}",
            input.dtype(),
            out.dtype()
        ));
    }
    is_index(index)?;
    let dim = dimension(call.int(1).unwrap_or(0), input.rank())?;
    Ok((input, index, dim))
}

/// The same of an index that has a size for each dimension, none larger than the input's but in the dimension.
fn scattered<'a>(call: &Call<'a>, source: Option<&Tensor<'_>>) -> Result<&'a Tensor<'a>> {
    let (input, index, dim) = along(call)?;
    if index.numel() == 0 {
        return Ok(index);
    }
    // A tensor of rank 0 counts as a vector of one element.
    let sizes = |tensor: &Tensor<'_>| match tensor.sizes() {
        [] => vec![1],
        sizes => sizes.to_vec(),
    };
    let (all, picked) = (sizes(input), sizes(index));
    let fits = |sizes: &[i64], but: Option<usize>| {
        sizes.len() == picked.len()
            && (0..sizes.len()).all(|at| Some(at) == but || picked[at] <= sizes[at])
    };
    if !fits(&all, Some(dim)) || source.is_some_and(|source| !fits(&sizes(source), None)) {
        return invalid(format!(
            "an index of {picked:?} does not go with an input of {all:?} along dimension {dim}"
        ));
    }
    Ok(index)
}

/// Calls `with` for each element of the index: the place of the output that it names, and the indices.
fn each_target(
    run: &Run<'_>,
    index: &View<'_>,
    out: &View<'_>,
    mut with: impl FnMut(i64, &[i64]),
) -> Result<(), Code> {
    let dim = dimension(run.call.int(1).unwrap_or(0), out.rank()).unwrap_or(0);
    let mut indices = vec![0; index.rank()];
    for number in 0..index.numel() {
        index.indices(number, &mut indices);
        let target = index.get_int(index.nth(number));
        if target < 0 || target >= out.size(dim) {
            return Err(run.out_of_bounds(target, dim, out.size(dim)));
        }
        let place = match out.rank() {
            0 => 0,
            _ => {
                let stay = indices.iter().zip(out.strides).enumerate();
                let stay = stay.filter(|(at, _)| *at != dim);
                stay.map(|(_, (index, stride))| index * stride).sum::<i64>()
                    + target * out.strides[dim]
            }
        };
        with(place, &indices);
    }
    Ok(())
}

/// Refuses an index out of bounds before anything is written.
fn check_targets(run: &Run<'_>, index: &View<'_>, out: &View<'_>) -> Result<(), Code> {
    each_target(run, index, out, |_, _| {})
}

fn operands<'a>(run: &Run<'a>) -> Result<(View<'a>, View<'a>, View<'a>), Code> {
    match (run.tensor(0), run.tensor(2)) {
        (Some(input), Some(index)) => Ok((input, index, run.output(0))),
        _ => Err(Code::INTERNAL),
    }
}

struct Scatter;

impl Plain for Scatter {
    fn check(call: &Call<'_>) -> Result<i64> {
        let source = call.needed(3)?;
        let index = scattered(call, Some(source))?;
        if source.dtype() != call.outputs[0].dtype() {
            return invalid("source and output are of different types");
        }
        Ok(index.numel() + call.outputs[0].numel())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, index, out) = operands(run)?;
        let source = run.tensor(3).ok_or(Code::INTERNAL)?;
        check_targets(run, &index, &out)?;
        out.take_all(&input);
        each_target(run, &index, &out, |place, indices| {
            out.take(place, &source, source.at(&indices[..source.rank()]));
        })
    }
}

struct ScatterValue;

impl Plain for ScatterValue {
    fn check(call: &Call<'_>) -> Result<i64> {
        let index = scattered(call, None)?;
        real(call.needed(0)?)?;
        Ok(index.numel() + call.outputs[0].numel())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, index, out) = operands(run)?;
        let value = run.call.scalar(3).ok_or(Code::INTERNAL)?;
        check_targets(run, &index, &out)?;
        out.take_all(&input);
        each_target(run, &index, &out, |place, _| out.set_scalar(place, value))
    }
}

/// The way in which elements that go to one place are put together.
#[derive(Clone, Copy, PartialEq)]
enum Reduction {
    Sum,
    Product,
    Mean,
    Max,
    Min,
}

impl Reduction {
    fn of(call: &Call<'_>) -> Result<Self> {
        let Some(Argument::String(name)) = call.args.get(4).map(|value| value.get()) else {
            return invalid("argument 4 is the name of the reduction");
        };
        match name.to_bytes() {
            b"sum" => Ok(Self::Sum),
            b"prod" => Ok(Self::Product),
            b"mean" => Ok(Self::Mean),
            b"amax" => Ok(Self::Max),
            b"amin" => Ok(Self::Min),
            _ => invalid(format!(
                "reduction {name:?}: it is sum, prod, mean, amax or amin"
            )),
        }
    }

    /// The value that changes nothing.
    fn neutral(self) -> f64 {
        match self {
            Self::Sum | Self::Mean => 0.0,
            Self::Product => 1.0,
            Self::Max => f64::NEG_INFINITY,
            Self::Min => f64::INFINITY,
        }
    }

    fn join(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Sum | Self::Mean => a + b,
            Self::Product => a * b,
            // NaN stays.
            _ if a.is_nan() || b.is_nan() => f64::NAN,
            Self::Max => a.max(b),
            Self::Min => a.min(b),
        }
    }

    fn join_ints(self, a: i64, b: i64) -> i64 {
        match self {
            Self::Sum | Self::Mean => a.wrapping_add(b),
            Self::Product => a.wrapping_mul(b),
            Self::Max => a.max(b),
            Self::Min => a.min(b),
        }
    }
}

/// Reduces elements of a source to the places that an index names.
fn reduce(
    run: &Run<'_>,
    (reduction, with_input, factor): (Reduction, bool, f64),
    from: impl Fn(&View<'_>, &[i64]) -> i64,
    targets: impl Fn(&mut dyn FnMut(i64, &[i64])) -> Result<(), Code>,
) -> Result<(), Code> {
    let (input, _, out) = operands(run)?;
    let source = run.tensor(3).ok_or(Code::INTERNAL)?;
    targets(&mut |_, _| {})?;
    let (lowest, span) = (out.lowest(), out.span());
    let mut counts = vec![0u32; span];
    let (mut sums, mut whole) = (vec![0.0; span], vec![0i64; span]);
    let at = |place: i64| (place - lowest) as usize;
    for number in 0..out.numel() {
        let (from, place) = (input.nth(number), at(out.nth(number)));
        (sums[place], whole[place]) = (input.get(from), input.get_int(from));
    }
    targets(&mut |place, indices| {
        let (place, from) = (at(place), from(&source, indices));
        let (value, int) = (
            source.get(from) * factor,
            source.get_int(from).wrapping_mul(factor as i64),
        );
        if counts[place] == 0 && !with_input {
            (sums[place], whole[place]) = (reduction.join(reduction.neutral(), value), int);
        } else {
            sums[place] = reduction.join(sums[place], value);
            whole[place] = reduction.join_ints(whole[place], int);
        }
        counts[place] += 1;
    })?;
    for number in 0..out.numel() {
        let place = out.nth(number);
        let here = at(place);
        let count = i64::from(counts[here]) + i64::from(with_input);
        let mean = reduction == Reduction::Mean && counts[here] > 0;
        if out.is_int() {
            let value = if mean {
                whole[here].div_euclid(count.max(1))
            } else {
                whole[here]
            };
            out.set_int(place, value);
        } else {
            out.set(
                place,
                if mean {
                    sums[here] / count as f64
                } else {
                    sums[here]
                },
            );
        }
    }
    Ok(())
}

struct ScatterAdd;

impl Plain for ScatterAdd {
    fn check(call: &Call<'_>) -> Result<i64> {
        real(call.needed(0)?)?;
        Scatter::check(call)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        scatter_reduce(run, Reduction::Sum, true)
    }
}

fn scatter_reduce(run: &Run<'_>, reduction: Reduction, with_input: bool) -> Result<(), Code> {
    let (_, index, out) = operands(run)?;
    reduce(
        run,
        (reduction, with_input, 1.0),
        |source, indices| source.at(&indices[..source.rank()]),
        |with| each_target(run, &index, &out, with),
    )
}

struct ScatterReduce;

impl Plain for ScatterReduce {
    fn check(call: &Call<'_>) -> Result<i64> {
        Reduction::of(call)?;
        real(call.needed(0)?)?;
        if call.needed(0)?.dtype() == DType::BOOL {
            return unsupported("a reduction of bool");
        }
        Scatter::check(call)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let reduction = Reduction::of(run.call).map_err(|_| Code::INTERNAL)?;
        scatter_reduce(run, reduction, run.call.truth(5))
    }
}

/// Checks an index that is a vector, with a source that has as many slices.
fn sliced(call: &Call<'_>, source: Option<&Tensor<'_>>) -> Result<i64> {
    let (input, index, dim) = along(call)?;
    if index.rank() > 1 {
        return invalid(format!(
            "an index of {:?}: a vector is expected",
            index.sizes()
        ));
    }
    if let Some(source) = source {
        let mut right = input.sizes().to_vec();
        if let Some(size) = right.get_mut(dim) {
            *size = index.numel();
        }
        same_sizes("the source", source.sizes(), &right)?;
        if source.dtype() != input.dtype() {
            return invalid("source and output are of different types");
        }
    }
    Ok(input.numel())
}

/// Calls `with` for each element of the slices that an index names: its place in the output, and its indices in a source
/// of as many slices as the index has elements.
fn each_of_slices(
    run: &Run<'_>,
    index: &View<'_>,
    out: &View<'_>,
    mut with: impl FnMut(i64, &[i64]),
) -> Result<(), Code> {
    let dim = dimension(run.call.int(1).unwrap_or(0), out.rank()).unwrap_or(0);
    let size = out.size(dim);
    // Of the index operators, index_fill alone counts from the end.
    let from_end = run.call.tensor(3).is_none();
    let target_of = |number: i64| {
        let target = index.get_int(index.nth(number));
        if target < 0 && from_end {
            target + size
        } else {
            target
        }
    };
    let mut numbers = 0..index.numel();
    if let Some(wrong) = numbers.find(|&number| !(0..size).contains(&target_of(number))) {
        let wrong = index.get_int(index.nth(wrong));
        return Err(run.out_of_bounds(wrong, dim, size));
    }
    let count = index.numel();
    let slice = out.numel() / out.size(dim).max(1);
    let mut indices = vec![0; out.rank()];
    for number in 0..slice * count {
        // The row-major number among the slices, with the size of the dimension replaced by the count.
        let mut rest = number;
        for at in (0..out.rank()).rev() {
            let size = if at == dim { count } else { out.size(at) };
            indices[at] = rest % size;
            rest /= size;
        }
        let which = indices.get(dim).copied().unwrap_or(0);
        let target = target_of(which);
        let place =
            out.at(&indices) + (target - which) * out.strides.get(dim).copied().unwrap_or(0);
        with(place, &indices);
    }
    Ok(())
}

struct IndexAdd;

impl Plain for IndexAdd {
    fn check(call: &Call<'_>) -> Result<i64> {
        real(call.needed(0)?)?;
        sliced(call, Some(call.needed(3)?))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (_, index, out) = operands(run)?;
        let alpha = run.call.number(4).unwrap_or(1.0);
        reduce(
            run,
            (Reduction::Sum, true, alpha),
            |source, indices| source.at(indices),
            |with| each_of_slices(run, &index, &out, with),
        )
    }
}

struct IndexCopy;

impl Plain for IndexCopy {
    fn check(call: &Call<'_>) -> Result<i64> {
        sliced(call, Some(call.needed(3)?))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, index, out) = operands(run)?;
        let source = run.tensor(3).ok_or(Code::INTERNAL)?;
        each_of_slices(run, &index, &out, |_, _| {})?;
        out.take_all(&input);
        each_of_slices(run, &index, &out, |place, indices| {
            out.take(place, &source, source.at(indices));
        })
    }
}

struct IndexFill;

impl Plain for IndexFill {
    fn check(call: &Call<'_>) -> Result<i64> {
        real(call.needed(0)?)?;
        sliced(call, None)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, index, out) = operands(run)?;
        let value = run.call.scalar(3).ok_or(Code::INTERNAL)?;
        each_of_slices(run, &index, &out, |_, _| {})?;
        out.take_all(&input);
        each_of_slices(run, &index, &out, |place, _| out.set_scalar(place, value))
    }
}

/// The elements of the source, in order, where the mask is true.
struct MaskedScatter;

impl Plain for MaskedScatter {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, mask, source) = (call.needed(0)?, call.needed(1)?, call.needed(2)?);
        let out = call.result(0)?;
        if mask.dtype() != DType::BOOL {
            return invalid(format!("a mask of {}, bool is expected", mask.dtype()));
        }
        if out.dtype().size().is_none() {
            return unsupported(format!("elements of {}", out.dtype()));
        }
        for operand in [input, source] {
            if operand.dtype() != out.dtype() {
                return invalid(format!(
                    "an operand of {} for an output of {}",
                    operand.dtype(),
                    out.dtype()
                ));
            }
        }
        broadcasts("the input", input.sizes(), out.sizes())?;
        broadcasts("the mask", mask.sizes(), out.sizes())?;
        Ok(out.numel().saturating_mul(2))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(input), Some(mask), Some(source), out) =
            (run.tensor(0), run.tensor(1), run.tensor(2), run.output(0))
        else {
            return Err(Code::INTERNAL);
        };
        let mut indices = vec![0; out.rank()];
        let mut is_taken = |number: i64| {
            out.indices(number, &mut indices);
            let taken = mask.get_int(mask.at_broadcast(&indices)) != 0;
            (taken, input.at_broadcast(&indices))
        };
        let taken = (0..out.numel()).filter(|number| is_taken(*number).0);
        if taken.count() as i64 > source.numel() {
            return Err(run.out_of_elements(source.numel(), source.numel()));
        }
        let mut next = 0;
        for number in 0..out.numel() {
            match is_taken(number) {
                (true, _) => {
                    out.take(out.nth(number), &source, source.nth(next));
                    next += 1;
                }
                (false, from) => out.take(out.nth(number), &input, from),
            }
        }
        Ok(())
    }
}
