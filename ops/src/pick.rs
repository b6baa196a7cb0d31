//! Elements that tensors of indices pick together: `index` and `index_put`.

use outrigger_device::{Code, DType};

use crate::call::{Argument, Call, Tensor};
use crate::error::{Result, invalid, unsupported};
use crate::plain::{self, Plain, Run, View, real, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"index",
        plan: plain::plan::<Index>,
    },
    Definition {
        name: c"index_put",
        plan: plain::plan::<IndexPut>,
    },
];

/// The form of an indexed tensor: the dimensions that have indices, and where their common dimensions stand in the
/// result.
struct Layout {
    /// For each dimension of the tensor, the place of its indices among the given ones.
    indexed: Vec<Option<usize>>,
    /// The sizes to which all indices are broadcast.
    common: Vec<i64>,
    /// The dimension of the result at which these stand.
    first: usize,
    /// The sizes of the result.
    result: Vec<i64>,
}

/// The indices of a call, in the order of the dimensions; absent ones have no dtype.
fn given<'a>(call: &Call<'a>) -> &'a [Tensor<'a>] {
    match call.args.get(1).map(|value| value.get()) {
        Some(Argument::Inputs(range)) => call.inputs.get(range).unwrap_or_default(),
        _ => &[],
    }
}

impl Layout {
    fn new(sizes: &[i64], given: &[Tensor<'_>]) -> Result<Self> {
        if given.len() > sizes.len() {
            return invalid(format!(
                "{} indices for a tensor of {} dimensions",
                given.len(),
                sizes.len()
            ));
        }
        let there = |at: usize| {
            given
                .get(at)
                .is_some_and(|one| one.dtype() != DType::INVALID)
        };
        let indexed: Vec<_> = (0..sizes.len()).map(|at| there(at).then_some(at)).collect();
        let mut common: Vec<i64> = Vec::new();
        for one in given.iter().filter(|one| one.dtype() != DType::INVALID) {
            match one.dtype() {
                DType::I64 | DType::I32 => {}
                DType::BOOL | DType::U8 => return unsupported("masks in place of indices"),
                other => return invalid(format!("indices of {other}: i64 or i32 is expected")),
            }
            while common.len() < one.rank() {
                common.insert(0, 1);
            }
            let shift = common.len() - one.rank();
            for (all, &size) in common[shift..].iter_mut().zip(one.sizes()) {
                match (*all, size) {
                    (_, 1) => {}
                    (1, size) => *all = size,
                    (known, size) if known == size => {}
                    _ => {
                        return invalid(format!(
                            "indices of {:?} do not go with {common:?}",
                            one.sizes()
                        ));
                    }
                }
            }
        }
        let places: Vec<usize> = indexed.iter().flatten().copied().collect();
        // Indices that stand apart put their common dimensions in front.
        let together = places.windows(2).all(|two| two[1] == two[0] + 1);
        let first = if together {
            places.first().copied().unwrap_or(0)
        } else {
            0
        };
        let mut result: Vec<i64> = (0..sizes.len())
            .filter(|&at| indexed[at].is_none())
            .map(|at| sizes[at])
            .collect();
        result.splice(first..first, common.iter().copied());
        Ok(Self {
            indexed,
            common,
            first,
            result,
        })
    }

    /// Calls `with` for each element of the result: its indices there, and the place of the tensor's element.
    fn each(
        &self,
        run: &Run<'_>,
        view: &View<'_>,
        indices: &[View<'_>],
        mut with: impl FnMut(&[i64], i64),
    ) -> Result<(), Code> {
        let count: i64 = self.result.iter().product();
        let mut at = vec![0; self.result.len()];
        for mut number in 0..count {
            for (index, size) in at.iter_mut().zip(&self.result).rev() {
                *index = number % size;
                number /= size;
            }
            let common = &at[self.first..self.first + self.common.len()];
            let mut others = at[..self.first]
                .iter()
                .chain(&at[self.first + self.common.len()..]);
            let mut place = 0;
            let mut next = indices.iter();
            for (dim, indexed) in self.indexed.iter().enumerate() {
                let index = match indexed {
                    Some(_) => {
                        let Some(index) = next.next() else {
                            return Err(Code::INTERNAL);
                        };
                        let mine = &common[common.len() - index.rank()..];
                        let steps = mine.iter().zip(index.sizes).zip(index.strides);
                        let here = steps
                            .map(|((at, size), stride)| if *size == 1 { 0 } else { at * stride });
                        let picked = index.get_int(here.sum());
                        let size = view.size(dim);
                        if picked < -size || picked >= size {
                            return Err(run.out_of_bounds(picked, dim, size));
                        }
                        if picked < 0 { picked + size } else { picked }
                    }
                    None => others.next().copied().unwrap_or(0),
                };
                place += index * view.strides[dim];
            }
            with(&at, place);
        }
        Ok(())
    }
}

/// The indices that are there.
fn views<'a>(run: &Run<'a>) -> Vec<View<'a>> {
    let there = given(run.call)
        .iter()
        .filter(|one| one.dtype() != DType::INVALID);
    there.map(|one| run.view(one)).collect()
}

struct Index;

impl Plain for Index {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (input, out) = (call.needed(0)?, call.result(0)?);
        if input.dtype() != out.dtype() || input.dtype().size().is_none() {
            return unsupported(format!(
                "an input of {} and an output of {}",
                input.dtype(),
                out.dtype()
            ));
        }
        let layout = Layout::new(input.sizes(), given(call))?;
        same_sizes("the output", out.sizes(), &layout.result)?;
        Ok(out.numel())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (input, out) = (run.tensor(0).ok_or(Code::INTERNAL)?, run.output(0));
        let layout = Layout::new(input.sizes, given(run.call)).map_err(|_| Code::INTERNAL)?;
        layout.each(run, &input, &views(run), |at, place| {
            out.take(out.at(at), &input, place)
        })
    }
}

struct IndexPut;

impl Plain for IndexPut {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (out, values) = (call.needed(0)?, call.needed(2)?);
        if out.dtype() != values.dtype() {
            return invalid(format!(
                "values of {} for a tensor of {}",
                values.dtype(),
                out.dtype()
            ));
        }
        if call.truth(3) {
            real(out)?;
        } else if out.dtype().size().is_none() {
            return unsupported(format!("elements of {}", out.dtype()));
        }
        let layout = Layout::new(out.sizes(), given(call))?;
        let extra = values.rank().checked_sub(layout.result.len() + 1).is_some();
        let mut pairs = values.sizes().iter().rev().zip(layout.result.iter().rev());
        if extra || !pairs.all(|(size, right)| *size == 1 || size == right) {
            return invalid(format!(
                "values of {:?} cannot be broadcast to {:?}",
                values.sizes(),
                layout.result
            ));
        }
        Ok(layout.result.iter().product())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (Some(out), Some(values)) = (run.tensor(0), run.tensor(2)) else {
            return Err(Code::INTERNAL);
        };
        let layout = Layout::new(out.sizes, given(run.call)).map_err(|_| Code::INTERNAL)?;
        let indices = views(run);
        // Nothing is written if an index is wrong.
        layout.each(run, &out, &indices, |_, _| {})?;
        let from = |at: &[i64]| -> i64 {
            let mine = &at[at.len() - values.rank()..];
            let steps = mine.iter().zip(values.sizes).zip(values.strides);
            steps
                .map(|((at, size), stride)| if *size == 1 { 0 } else { at * stride })
                .sum()
        };
        if !run.call.truth(3) {
            return layout.each(run, &out, &indices, |at, place| {
                out.take(place, &values, from(at))
            });
        }
        if out.is_int() {
            return layout.each(run, &out, &indices, |at, place| {
                out.set_int(
                    place,
                    out.get_int(place).wrapping_add(values.get_int(from(at))),
                );
            });
        }
        // Sums are rounded once.
        let mut sums = vec![0.0; out.span()];
        let lowest = out.lowest();
        layout.each(run, &out, &indices, |at, place| {
            sums[(place - lowest) as usize] += values.get(from(at));
        })?;
        for number in 0..out.numel() {
            let place = out.nth(number);
            let sum = sums[(place - lowest) as usize];
            if sum != 0.0 {
                out.set(place, out.get(place) + sum);
            }
        }
        Ok(())
    }
}
