//! Orders and running results along a dimension.

use std::cmp::Reverse;

use outrigger_device::{Code, DType};

use crate::call::{Argument, Call, Tensor};
use crate::error::{Result, invalid, unsupported};
use crate::plain::{self, Plain, Run, View, dimension, real, same_floats, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"sort",
        plan: plain::plan::<Sort>,
    },
    Definition {
        name: c"argsort",
        plan: plain::plan::<ArgSort>,
    },
    Definition {
        name: c"topk",
        plan: plain::plan::<TopK>,
    },
    Definition {
        name: c"cumprod",
        plan: plain::plan::<CumulativeProduct>,
    },
    Definition {
        name: c"cummax",
        plan: plain::plan::<RunningExtreme<false>>,
    },
    Definition {
        name: c"cummin",
        plan: plain::plan::<RunningExtreme<true>>,
    },
    Definition {
        name: c"logcumsumexp",
        plan: plain::plan::<LogCumulativeSumExp>,
    },
    Definition {
        name: c"searchsorted",
        plan: plain::plan::<SearchSorted>,
    },
];

/// The lines of a tensor along a dimension: elements that differ in no other index.
struct Lines {
    dim: usize,
    count: i64,
}

impl Lines {
    /// Along a dimension that is the argument `at` of the call, and was checked.
    fn of(run: &Run<'_>, at: usize, view: &View<'_>) -> Self {
        let dim = dimension(run.call.int(at).unwrap_or(0), view.rank()).unwrap_or(0);
        let others = (0..view.rank()).filter(|other| *other != dim);
        let count = others.map(|other| view.size(other)).product();
        Self { dim, count }
    }

    /// The places of a line's elements, first to last, in a tensor whose other sizes are those of the first one.
    fn places(&self, view: &View<'_>, mut line: i64) -> impl Iterator<Item = i64> + use<> {
        let mut start = 0;
        for at in (0..view.rank()).rev().filter(|at| *at != self.dim) {
            start += line % view.sizes[at] * view.strides[at];
            line /= view.sizes[at];
        }
        let step = view.strides.get(self.dim).copied().unwrap_or(0);
        (0..view.size(self.dim)).map(move |at| start + at * step)
    }
}

/// The key of NaN. No other floating-point number has it.
const NAN: i64 = i64::MAX;

/// An integer for an element, such that integers are in the order of the elements, with NaN as the largest.
fn key(view: &View<'_>, place: i64) -> i64 {
    match view.dtype {
        DType::U64 => view.get_int(place) ^ i64::MIN,
        _ if view.is_int() => view.get_int(place),
        _ => match view.get(place) {
            value if value.is_nan() => NAN,
            value => {
                // The sum makes one zero of both. The larger the bits of a negative number, the smaller it is.
                let bits = (value + 0.0).to_bits() as i64;
                if bits < 0 { bits ^ i64::MAX } else { bits }
            }
        },
    }
}

/// The places of a line's elements in order, by their number in the line. Equal ones stay in order.
fn in_order(keys: &[i64], descending: bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    if descending {
        order.sort_by_key(|&at| Reverse(keys[at]));
    } else {
        order.sort_by_key(|&at| keys[at]);
    }
    order
}

/// Writes the first elements in order of each line, as many as the outputs have.
fn sort(
    run: &Run<'_>,
    dim: usize,
    descending: bool,
    values: Option<View<'_>>,
    indices: &View<'_>,
) -> Result<(), Code> {
    let input = run.tensor(0).ok_or(Code::INTERNAL)?;
    let lines = Lines::of(run, dim, &input);
    for line in 0..lines.count {
        let from: Vec<i64> = lines.places(&input, line).collect();
        let keys: Vec<i64> = from.iter().map(|place| key(&input, *place)).collect();
        let order = in_order(&keys, descending);
        for (to, at) in lines.places(indices, line).zip(&order) {
            indices.set_int(to, *at as i64);
        }
        if let Some(values) = values {
            for (to, at) in lines.places(&values, line).zip(&order) {
                values.take(to, &input, from[*at]);
            }
        }
    }
    Ok(())
}

/// Checks the indices of an output of such sizes.
fn indices_of(indices: &Tensor<'_>, right: &[i64]) -> Result<()> {
    same_sizes("the output of indices", indices.sizes(), right)?;
    match indices.dtype() {
        DType::I64 => Ok(()),
        other => unsupported(format!("indices of {other}: i64 is served")),
    }
}

/// Checks values and indices, of which `right` is the size.
fn values_and_indices(call: &Call<'_>, right: &[i64]) -> Result<i64> {
    let (input, values) = (call.needed(0)?, call.result(0)?);
    real(input)?;
    same_sizes("the output of values", values.sizes(), right)?;
    if values.dtype() != input.dtype() {
        return invalid(format!(
            "values of {} for an input of {}",
            values.dtype(),
            input.dtype()
        ));
    }
    indices_of(call.result(1)?, right)?;
    Ok(input.numel())
}

/// Steps of a sort of so many elements.
fn steps(elements: i64) -> i64 {
    elements.saturating_mul(8)
}

struct Sort;

impl Plain for Sort {
    fn check(call: &Call<'_>) -> Result<i64> {
        let input = call.needed(0)?;
        dimension(call.int(2).unwrap_or(-1), input.rank())?;
        values_and_indices(call, input.sizes()).map(steps)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (values, indices) = (run.output(0), run.output(1));
        sort(run, 2, run.call.truth(3), Some(values), &indices)
    }
}

struct ArgSort;

impl Plain for ArgSort {
    fn check(call: &Call<'_>) -> Result<i64> {
        let input = call.needed(0)?;
        dimension(call.int(2).unwrap_or(-1), input.rank())?;
        real(input)?;
        indices_of(call.result(0)?, input.sizes())?;
        Ok(steps(input.numel()))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        sort(run, 2, run.call.truth(3), None, &run.output(0))
    }
}

/// The largest or smallest elements of each line, always in order.
struct TopK;

impl Plain for TopK {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, k) = (call.needed(0)?, call.int(1).unwrap_or(-1));
        let dim = dimension(call.int(2).unwrap_or(-1), input.rank())?;
        let mut right = input.sizes().to_vec();
        let length = right.get(dim).copied().unwrap_or(1);
        if !(0..=length).contains(&k) {
            return invalid(format!(
                "k is {k}, at least 0 and at most {length} is expected"
            ));
        }
        if let Some(size) = right.get_mut(dim) {
            *size = k;
        }
        values_and_indices(call, &right).map(steps)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (values, indices) = (run.output(0), run.output(1));
        sort(run, 2, run.call.truth(3), Some(values), &indices)
    }
}

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
        let lines = Lines::of(run, 1, &input);
        for line in 0..lines.count {
            let (mut product, mut whole) = (1.0, 1i64);
            for (from, to) in lines.places(&input, line).zip(lines.places(&out, line)) {
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

/// The largest or smallest element up to each one, the last of equals. NaN is both.
struct RunningExtreme<const SMALLEST: bool>;

impl<const SMALLEST: bool> Plain for RunningExtreme<SMALLEST> {
    fn check(call: &Call<'_>) -> Result<i64> {
        let input = call.needed(0)?;
        dimension(call.int(1).unwrap_or(0), input.rank())?;
        values_and_indices(call, input.sizes())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let input = run.tensor(0).ok_or(Code::INTERNAL)?;
        let (values, indices) = (run.output(0), run.output(1));
        let lines = Lines::of(run, 1, &input);
        let rank = |place: i64| match key(&input, place) {
            NAN if !input.is_int() => NAN,
            key if SMALLEST => !key,
            key => key,
        };
        for line in 0..lines.count {
            let (mut best, mut extreme) = (i64::MIN, (0, 0));
            let to = lines
                .places(&values, line)
                .zip(lines.places(&indices, line));
            for (at, (from, to)) in (0..).zip(lines.places(&input, line).zip(to)) {
                if rank(from) >= best {
                    (best, extreme) = (rank(from), (from, at));
                }
                values.take(to.0, &input, extreme.0);
                indices.set_int(to.1, extreme.1);
            }
        }
        Ok(())
    }
}

/// The logarithm of the sum of the exponentials of all elements up to each one.
struct LogCumulativeSumExp;

/// log(e^a + e^b). Two equal infinities are their own sum.
fn log_of_sum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        return f64::NAN;
    }
    let (low, high) = (a.min(b), a.max(b));
    if low == high && low.is_infinite() {
        return low;
    }
    high + (low - high).exp().ln_1p()
}

impl Plain for LogCumulativeSumExp {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, out) = (call.needed(0)?, call.result(0)?);
        dimension(call.int(1).unwrap_or(0), input.rank())?;
        same_floats(&[input, out])?;
        same_sizes("the output", out.sizes(), input.sizes())?;
        Ok(input.numel().saturating_mul(8))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, out) = (run.tensor(0).ok_or(Code::INTERNAL)?, run.output(0));
        let lines = Lines::of(run, 1, &input);
        for line in 0..lines.count {
            let mut sum = f64::NEG_INFINITY;
            for (from, to) in lines.places(&input, line).zip(lines.places(&out, line)) {
                sum = log_of_sum(sum, input.get(from));
                out.set(to, sum);
            }
        }
        Ok(())
    }
}

/// Finds the places at which values would stand in lines that are in order.
struct SearchSorted;

/// Whether a value that is equal to elements stands behind them.
fn is_right(call: &Call<'_>) -> Result<bool> {
    let right = call.truth(3);
    match call.args.get(4).map(|value| value.get()) {
        Some(Argument::String(side)) => match side.to_bytes() {
            b"left" if right => invalid("side is left, and right is true: they are opposites"),
            b"left" => Ok(false),
            b"right" => Ok(true),
            _ => invalid(format!("side {side:?}: it is left or right")),
        },
        _ => Ok(right),
    }
}

impl Plain for SearchSorted {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (sorted, values, out) = (call.needed(0)?, call.needed(1)?, call.result(0)?);
        real(sorted)?;
        is_right(call)?;
        if sorted.dtype() != values.dtype() {
            return invalid(format!(
                "values of {} in lines of {}",
                values.dtype(),
                sorted.dtype()
            ));
        }
        let (lines, these) = (sorted.sizes(), values.sizes());
        let same = lines.len() == these.len()
            && lines.len() > 1
            && lines[..lines.len() - 1] == these[..these.len() - 1];
        if lines.len() != 1 && !same {
            return invalid(format!(
                "lines of {lines:?} for values of {these:?}: one line, or one for each line of values, is expected"
            ));
        }
        same_sizes("the output", out.sizes(), these)?;
        let index = if call.truth(2) {
            DType::I32
        } else {
            DType::I64
        };
        if out.dtype() != index {
            return invalid(format!("an output of {}, {index} is expected", out.dtype()));
        }
        let length = lines.last().copied().unwrap_or(0);
        if index == DType::I32 && length > i64::from(i32::MAX) {
            return invalid(format!("places in lines of {length} do not fit into i32"));
        }
        if let Some(sorter) = call.tensor(5) {
            same_sizes("the sorter", sorter.sizes(), lines)?;
            if sorter.dtype() != DType::I64 {
                return invalid(format!("a sorter of {}, i64 is expected", sorter.dtype()));
            }
        }
        Ok(steps(values.numel()))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(sorted), Some(values), out) = (run.tensor(0), run.tensor(1), run.output(0))
        else {
            return Err(Code::INTERNAL);
        };
        let right = is_right(run.call).map_err(|_| Code::INTERNAL)?;
        let sorter = run.tensor(5);
        let (last, length) = (sorted.rank() - 1, sorted.size(sorted.rank() - 1));
        if let Some(sorter) = &sorter {
            let at = |number| sorter.get_int(sorter.nth(number));
            let mut all = (0..sorter.numel()).map(at);
            if let Some(wrong) = all.find(|at| !(0..length).contains(at)) {
                return Err(run.out_of_bounds(wrong, last, length));
            }
        }
        let mut indices = vec![0; values.rank()];
        for number in 0..values.numel() {
            values.indices(number, &mut indices);
            let value = values.at(&indices);
            // The line of the value, or the only one.
            let line = &indices[..last.min(indices.len())];
            let start = sorted.at_start(line);
            let place = |at: i64| match &sorter {
                Some(sorter) => {
                    let at = sorter.get_int(sorter.at_start(line) + at * sorter.strides[last]);
                    start + at * sorted.strides[last]
                }
                None => start + at * sorted.strides[last],
            };
            let (mut low, mut high) = (0, length);
            while low < high {
                let middle = low + (high - low) / 2;
                if is_behind(&values, value, &sorted, place(middle), right) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            out.set_int(out.at(&indices), low);
        }
        Ok(())
    }
}

/// Whether a value stands behind an element. It does behind NaN, and NaN does behind everything.
fn is_behind(values: &View<'_>, value: i64, sorted: &View<'_>, place: i64, right: bool) -> bool {
    if values.is_int() {
        let (element, value) = (key(sorted, place), key(values, value));
        return element < value || right && element == value;
    }
    let (element, value) = (sorted.get(place), values.get(value));
    let stops = if right {
        element > value
    } else {
        element >= value
    };
    !stops
}
