//! Rows of a table that are put together in bags.

use outrigger_device::{Code, DType};

use crate::call::{Call, Tensor};
use crate::error::{Result, invalid};
use crate::plain::{self, Plain, Run, View, same_floats, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[Definition {
    name: c"embedding_bag",
    plan: plain::plan::<EmbeddingBag>,
}];

/// The way in which the rows of a bag are put together.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Sum,
    Mean,
    Max,
}

impl Mode {
    fn of(call: &Call<'_>) -> Result<Self> {
        match call.int(4) {
            Some(0) => Ok(Self::Sum),
            Some(1) => Ok(Self::Mean),
            Some(2) => Ok(Self::Max),
            other => invalid(format!(
                "mode {other:?}: 0 sum, 1 mean or 2 max is expected"
            )),
        }
    }
}

fn is_index(what: &str, tensor: &Tensor<'_>) -> Result<()> {
    match tensor.dtype() {
        DType::I64 | DType::I32 => Ok(()),
        other => invalid(format!("{what} of {other}: i64 or i32 is expected")),
    }
}

/// The number of bags: with the last offset, which is where the last bag ends, one less than offsets.
fn bags(call: &Call<'_>, offsets: &[i64]) -> Result<i64> {
    match (offsets, call.truth(7)) {
        ([bags], false) => Ok(*bags),
        ([more], true) if *more > 0 => Ok(*more - 1),
        _ => invalid(format!(
            "offsets of {offsets:?}: a vector, and with the last offset not an empty one, is expected"
        )),
    }
}

struct EmbeddingBag;

impl Plain for EmbeddingBag {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (weight, indices, offsets) = (call.needed(0)?, call.needed(1)?, call.needed(2)?);
        let (out, mode) = (call.result(0)?, Mode::of(call)?);
        same_floats(&[weight, out])?;
        is_index("indices", indices)?;
        is_index("offsets", offsets)?;
        if weight.rank() != 2 || indices.rank() != 1 {
            return invalid(format!(
                "a table of {:?} and indices of {:?}: a matrix and a vector are expected",
                weight.sizes(),
                indices.sizes()
            ));
        }
        let bags = bags(call, offsets.sizes())?;
        let right = [bags, weight.sizes()[1]];
        same_sizes("the output", out.sizes(), &right)?;
        if let Some(factors) = call.tensor(6) {
            same_floats(&[weight, factors])?;
            same_sizes("the weights of samples", factors.sizes(), indices.sizes())?;
            if mode != Mode::Sum {
                return invalid("weights of samples go with mode 0 alone");
            }
        }
        // If PyTorch has no use for one of the others, it may be without elements.
        let others: [(&str, &[&[i64]]); 3] = [
            ("offset2bag", &[indices.sizes()]),
            ("bag_size", &[&[bags], offsets.sizes()]),
            (
                "max_indices",
                match mode {
                    Mode::Max => &[&right],
                    _ => &[&[bags]],
                },
            ),
        ];
        for (at, (what, allowed)) in (1..).zip(others) {
            let output = call.result(at)?;
            is_index(what, output)?;
            if output.numel() > 0 && !allowed.contains(&output.sizes()) {
                same_sizes(what, output.sizes(), allowed[0])?;
            }
        }
        Ok(indices.numel().saturating_mul(right[1]))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(weight), Some(indices), Some(offsets)) =
            (run.tensor(0), run.tensor(1), run.tensor(2))
        else {
            return Err(Code::INTERNAL);
        };
        let (out, mode) = (
            run.output(0),
            Mode::of(run.call).map_err(|_| Code::INTERNAL)?,
        );
        let bounds = bounds(run, &offsets, out.size(0), indices.numel())?;
        let row = |sample: i64| indices.get_int(indices.at(&[sample]));
        let rows = weight.size(0);
        let mut all = (0..indices.numel()).map(row);
        if let Some(wrong) = all.find(|row| !(0..rows).contains(row)) {
            return Err(run.out_of_bounds(wrong, 0, rows));
        }
        // -1 is no row.
        let padding = run.call.int(8).unwrap_or(-1);
        let factors = run.tensor(6);
        let factor = |sample: i64| factors.map_or(1.0, |one| one.get(one.at(&[sample])));
        let [of_sample, sizes, largest] = [1, 2, 3].map(|at| run.output(at));
        fill(&of_sample, out.size(0));
        fill(&sizes, 0);
        fill(&largest, 0);
        for (bag, bound) in (0..).zip(bounds.windows(2)) {
            if of_sample.numel() > 0 {
                (bound[0]..bound[1]).for_each(|at| of_sample.set_int(of_sample.at(&[at]), bag));
            }
            let samples: Vec<i64> = (bound[0]..bound[1])
                .filter(|sample| row(*sample) != padding)
                .collect();
            if sizes.numel() > 0 {
                sizes.set_int(sizes.at(&[bag]), samples.len() as i64);
            }
            for column in 0..out.size(1) {
                let value = |sample: i64| weight.get(weight.at(&[row(sample), column]));
                let result = if mode == Mode::Max {
                    let best = samples.iter().copied().reduce(|best, sample| {
                        if value(sample) > value(best) {
                            sample
                        } else {
                            best
                        }
                    });
                    if largest.numel() > 0 {
                        let place = largest.at(&[bag, column]);
                        largest.set_int(place, best.map_or(-1, row));
                    }
                    best.map_or(0.0, value)
                } else {
                    let all = samples.iter();
                    let sum: f64 = all.map(|sample| value(*sample) * factor(*sample)).sum();
                    match mode {
                        Mode::Mean => sum / samples.len().max(1) as f64,
                        _ => sum,
                    }
                };
                out.set(out.at(&[bag, column]), result);
            }
        }
        Ok(())
    }
}

fn fill(view: &View<'_>, value: i64) {
    (0..view.numel()).for_each(|number| view.set_int(view.nth(number), value));
}

/// The place at which each bag begins, and that at which the last one ends.
fn bounds(run: &Run<'_>, offsets: &View<'_>, bags: i64, samples: i64) -> Result<Vec<i64>, Code> {
    let given = (0..offsets.numel()).map(|at| offsets.get_int(offsets.at(&[at])));
    let mut bounds: Vec<i64> = given.collect();
    if bounds.len() as i64 == bags {
        bounds.push(samples);
    }
    let ordered = bounds.windows(2).all(|two| two[0] <= two[1]);
    let first = bounds.first().copied().unwrap_or(0);
    let last = bounds.last().copied().unwrap_or(0);
    if last > samples {
        return Err(run.out_of_elements(last, samples));
    }
    // Offsets go up from 0. Where there is no bag, they do not matter.
    if !ordered || (first != 0 && bags > 0) {
        return Err(Code::OUT_OF_RANGE);
    }
    Ok(bounds)
}
