//! Attention over heads, and its gradients.
//!
//! Forward and backward go from query to query. The weights of one query are computed in f64 from its scores, so nothing
//! of the size of all weights is held.

use outrigger_device::{Code, DType};

use crate::call::{Call, Tensor};
use crate::error::{Result, invalid, unsupported};
use crate::generate;
use crate::plain::{self, Plain, Run, View, floating, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"attention",
        plan: plain::plan::<Forward>,
    },
    Definition {
        name: c"attention_backward",
        plan: plain::plan::<Backward>,
    },
];

/// The sizes that the operands share.
#[derive(Clone, Copy)]
struct Shape {
    samples: i64,
    heads: i64,
    /// Heads of key and value.
    groups: i64,
    queries: i64,
    keys: i64,
    width: i64,
    value_width: i64,
}

impl Shape {
    fn new(query: &Tensor<'_>, key: &Tensor<'_>, value: &Tensor<'_>) -> Result<Self> {
        for tensor in [query, key, value] {
            floating(tensor)?;
        }
        let (&[samples, heads, queries, width], &[_, groups, keys, _], &[.., value_width]) =
            (query.sizes(), key.sizes(), value.sizes())
        else {
            return invalid(format!(
                "query {:?}, key {:?} and value {:?}: four dimensions are expected",
                query.sizes(),
                key.sizes(),
                value.sizes()
            ));
        };
        same_sizes("the key", key.sizes(), &[samples, groups, keys, width])?;
        let right = [samples, groups, keys, value_width];
        same_sizes("the value", value.sizes(), &right)?;
        if heads != 0 && (groups == 0 || heads % groups != 0) {
            return invalid(format!(
                "{heads} heads of the query are no multiple of {groups} heads of the key"
            ));
        }
        Ok(Self {
            samples,
            heads,
            groups,
            queries,
            keys,
            width,
            value_width,
        })
    }

    fn out(&self) -> [i64; 4] {
        [self.samples, self.heads, self.queries, self.value_width]
    }

    fn rows(&self) -> [i64; 3] {
        [self.samples, self.heads, self.queries]
    }

    /// The head of key and value that serves a head of the query.
    fn group(&self, head: i64) -> i64 {
        head / (self.heads / self.groups)
    }

    /// Calls `with` for the sample, the head and the place of each query.
    fn each(&self, mut with: impl FnMut([i64; 3])) {
        for sample in 0..self.samples {
            for head in 0..self.heads {
                (0..self.queries).for_each(|query| with([sample, head, query]));
            }
        }
    }

    fn steps(&self) -> i64 {
        let weights = self
            .rows()
            .iter()
            .product::<i64>()
            .saturating_mul(self.keys);
        weights.saturating_mul(self.width + self.value_width)
    }
}

/// The arguments behind the tensors: `is_causal`, scale, dropout, seed, offset.
struct Settings {
    causal: bool,
    scale: f64,
    dropout: f64,
    seed: u64,
    offset: u64,
}

impl Settings {
    /// The settings of a call, from an argument on.
    fn new(call: &Call<'_>, first: usize) -> Result<Self> {
        let word = |at| call.scalar(first + at).map_or(0, |one| one.to_i64() as u64);
        let dropout = call.number(first + 2).unwrap_or(0.0);
        if !(0.0..=1.0).contains(&dropout) {
            return invalid(format!("dropout {dropout} is not within 0 and 1"));
        }
        Ok(Self {
            causal: call.truth(first),
            scale: call.number(first + 1).unwrap_or(1.0),
            dropout,
            seed: word(3),
            offset: word(4),
        })
    }

    /// The factor by which dropout changes a weight, by the weight's number in row-major order.
    fn kept(&self, number: i64) -> f64 {
        if self.dropout == 0.0 {
            return 1.0;
        }
        let drawn = generate::uniform(self.seed, self.offset, number as u64);
        if f64::from(drawn) < self.dropout {
            0.0
        } else {
            1.0 / (1.0 - self.dropout)
        }
    }
}

/// Checks that a mask can be broadcast to the weights.
fn check_mask(mask: &Tensor<'_>, shape: &Shape) -> Result<()> {
    if mask.dtype() != DType::BOOL {
        floating(mask)?;
    }
    let right = [shape.samples, shape.heads, shape.queries, shape.keys];
    let sizes = mask.sizes();
    let fits = |(size, right): (&i64, &i64)| *size == 1 || size == right;
    if sizes.len() > right.len() || !sizes.iter().rev().zip(right.iter().rev()).all(fits) {
        return invalid(format!(
            "a mask of sizes {sizes:?} is not broadcast to {right:?}"
        ));
    }
    Ok(())
}

/// The indices of a mask's element for a weight; only the last ones are used.
fn in_mask(mask: &View<'_>, weight: [i64; 4]) -> ([i64; 4], usize) {
    let (rank, mut indices) = (mask.rank(), [0; 4]);
    let last = &weight[4 - rank..];
    for (index, (at, size)) in indices.iter_mut().zip(last.iter().zip(mask.sizes)) {
        *index = if *size == 1 { 0 } else { *at };
    }
    (indices, rank)
}

fn dot(count: i64, term: impl Fn(i64) -> f64) -> f64 {
    (0..count).map(term).sum()
}

/// The operands that the scores are computed from.
struct Scores<'a> {
    shape: Shape,
    settings: Settings,
    query: View<'a>,
    key: View<'a>,
    mask: Option<View<'a>>,
}

impl Scores<'_> {
    /// The scores of all keys for a query; -infinity for those that it does not see.
    fn of(&self, [sample, head, query]: [i64; 3]) -> Vec<f64> {
        let group = self.shape.group(head);
        let from = self.query.at_start(&[sample, head, query]);
        let score = |key: i64| {
            if self.settings.causal && key > query {
                return f64::NEG_INFINITY;
            }
            let to = self.key.at_start(&[sample, group, key]);
            let product = dot(self.shape.width, |at| {
                self.query.get(from + self.query.at_end(3, &[at]))
                    * self.key.get(to + self.key.at_end(3, &[at]))
            });
            let score = product * self.settings.scale;
            let Some(mask) = self.mask else {
                return score;
            };
            let (indices, rank) = in_mask(&mask, [sample, head, query, key]);
            let value = mask.get(mask.at(&indices[..rank]));
            match mask.dtype {
                DType::BOOL if value == 0.0 => f64::NEG_INFINITY,
                DType::BOOL => score,
                _ => score + value,
            }
        };
        (0..self.shape.keys).map(score).collect()
    }

    /// The number of a query's first weight.
    fn first(&self, [sample, head, query]: [i64; 3]) -> i64 {
        ((sample * self.shape.heads + head) * self.shape.queries + query) * self.shape.keys
    }
}

/// The logarithm of the sum of exponentials; -infinity if there is nothing to add.
fn logsumexp(scores: &[f64]) -> f64 {
    // Not a number wins.
    let larger = |a: f64, b: f64| if b > a || b.is_nan() { b } else { a };
    let most = scores.iter().copied().fold(f64::NEG_INFINITY, larger);
    if most == f64::NEG_INFINITY {
        return most;
    }
    most + scores
        .iter()
        .map(|one| (one - most).exp())
        .sum::<f64>()
        .ln()
}

struct Forward;

impl Forward {
    const MASK: usize = 3;
    const SETTINGS: usize = 4;
}

impl Plain for Forward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let shape = Shape::new(call.needed(0)?, call.needed(1)?, call.needed(2)?)?;
        Settings::new(call, Self::SETTINGS)?;
        if let Some(mask) = call.tensor(Self::MASK) {
            check_mask(mask, &shape)?;
        }
        let (out, sums) = (call.result(0)?, call.result(1)?);
        floating(out)?;
        floating(sums)?;
        same_sizes("the output", out.sizes(), &shape.out())?;
        same_sizes("logsumexp", sums.sizes(), &shape.rows())?;
        Ok(shape.steps())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let call = run.call;
        let (Ok(query), Ok(key), Ok(values)) = (call.needed(0), call.needed(1), call.needed(2))
        else {
            return Err(Code::INTERNAL);
        };
        let shape = Shape::new(query, key, values).map_err(|_| Code::INTERNAL)?;
        let scores = Scores {
            shape,
            settings: Settings::new(call, Self::SETTINGS).map_err(|_| Code::INTERNAL)?,
            query: run.view(query),
            key: run.view(key),
            mask: run.tensor(Self::MASK),
        };
        let (value, out, sums) = (run.view(values), run.output(0), run.output(1));
        shape.each(|row| {
            let (found, first) = (scores.of(row), scores.first(row));
            let sum = logsumexp(&found);
            sums.set(sums.at(&row), sum);
            let [sample, head, query] = row;
            let mut result = vec![0.0; shape.value_width as usize];
            for (key, score) in (0..).zip(found) {
                if sum == f64::NEG_INFINITY {
                    break;
                }
                let weight = (score - sum).exp() * scores.settings.kept(first + key);
                let from = value.at_start(&[sample, shape.group(head), key]);
                for (at, total) in (0..).zip(&mut result) {
                    *total += weight * value.get(from + value.at_end(3, &[at]));
                }
            }
            for (at, total) in (0..).zip(result) {
                out.set(out.at(&[sample, head, query, at]), total);
            }
        });
        Ok(())
    }
}

/// Sums in f64 for the elements of an operand, by their numbers in row-major order.
struct Sums<'a> {
    sizes: &'a [i64],
    sums: Vec<f64>,
}

impl<'a> Sums<'a> {
    fn new(sizes: &'a [i64]) -> Self {
        let numel: i64 = sizes.iter().product();
        let sums = vec![0.0; numel as usize];
        Self { sizes, sums }
    }

    fn add(&mut self, indices: &[i64], value: f64) {
        let steps = indices.iter().zip(self.sizes);
        let number = steps.fold(0, |number, (index, size)| number * size + index);
        self.sums[number as usize] += value;
    }

    fn write(&self, to: Option<View<'_>>) {
        if let Some(to) = to {
            for (number, sum) in (0..).zip(&self.sums) {
                to.set(to.nth(number), *sum);
            }
        }
    }
}

struct Backward;

impl Backward {
    const MASK: usize = 4;
    const OUT: usize = 5;
    const SUMS: usize = 6;
    const SETTINGS: usize = 7;
}

impl Plain for Backward {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (query, key, value) = (call.needed(1)?, call.needed(2)?, call.needed(3)?);
        let shape = Shape::new(query, key, value)?;
        Settings::new(call, Self::SETTINGS)?;
        for (at, what) in [(0, "the gradient"), (Self::OUT, "the output")] {
            floating(call.needed(at)?)?;
            same_sizes(what, call.needed(at)?.sizes(), &shape.out())?;
        }
        floating(call.needed(Self::SUMS)?)?;
        same_sizes("logsumexp", call.needed(Self::SUMS)?.sizes(), &shape.rows())?;
        let [queries, keys, values, of_mask] = call.outputs else {
            return invalid(
                "outputs are the gradients of query, key, value and mask, which may be absent",
            );
        };
        let mask = call.tensor(Self::MASK);
        if let Some(mask) = mask {
            check_mask(mask, &shape)?;
        }
        let mut outputs = vec![(queries, query), (keys, key), (values, value)];
        if of_mask.dtype() != DType::INVALID {
            match mask.filter(|mask| mask.dtype() != DType::BOOL) {
                Some(mask) => outputs.push((of_mask, mask)),
                None => return unsupported("the gradient of a mask that is not floating-point"),
            }
        }
        for (output, like) in outputs {
            if output.dtype() != DType::INVALID {
                floating(output)?;
                same_sizes("a gradient", output.sizes(), like.sizes())?;
            }
        }
        Ok(shape.steps().saturating_mul(3))
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let call = run.call;
        let (Ok(query), Ok(key), Ok(value)) = (call.needed(1), call.needed(2), call.needed(3))
        else {
            return Err(Code::INTERNAL);
        };
        let (Some(grad), Some(sums)) = (run.tensor(0), run.tensor(Self::SUMS)) else {
            return Err(Code::INTERNAL);
        };
        let shape = Shape::new(query, key, value).map_err(|_| Code::INTERNAL)?;
        let (query, key, value) = (run.view(query), run.view(key), run.view(value));
        let mask = run.tensor(Self::MASK);
        let scores = Scores {
            shape,
            settings: Settings::new(call, Self::SETTINGS).map_err(|_| Code::INTERNAL)?,
            query,
            key,
            mask,
        };
        let [mut of_query, mut of_key, mut of_value] =
            [&query, &key, &value].map(|view| Sums::new(view.sizes));
        let mut of_mask = Sums::new(mask.map_or(&[0], |mask| mask.sizes));
        shape.each(|row| {
            let ([sample, head, place], sum) = (row, sums.get(sums.at(&row)));
            if sum == f64::NEG_INFINITY {
                return;
            }
            let group = shape.group(head);
            let grads: Vec<f64> = (0..shape.value_width)
                .map(|at| grad.get(grad.at(&[sample, head, place, at])))
                .collect();
            // For each key its weight, and the gradient of the weight.
            let mut found = Vec::new();
            for (key, score) in (0..).zip(scores.of(row)) {
                let weight = (score - sum).exp();
                let kept = scores.settings.kept(scores.first(row) + key);
                let from = value.at_start(&[sample, group, key]);
                let mut of_weight = 0.0;
                for (at, grad) in (0..).zip(&grads) {
                    of_value.add(&[sample, group, key, at], weight * kept * grad);
                    of_weight += grad * value.get(from + value.at_end(3, &[at]));
                }
                found.push((weight, of_weight * kept));
            }
            let mean: f64 = found.iter().map(|(weight, of)| weight * of).sum();
            for (place_of_key, (weight, of_weight)) in (0..).zip(found) {
                let of_score = weight * (of_weight - mean);
                let product = of_score * scores.settings.scale;
                for at in 0..shape.width {
                    let (q, k) = ([sample, head, place, at], [sample, group, place_of_key, at]);
                    of_query.add(&q, product * key.get(key.at(&k)));
                    of_key.add(&k, product * query.get(query.at(&q)));
                }
                if let Some(mask) = &mask {
                    let (indices, rank) = in_mask(mask, [sample, head, place, place_of_key]);
                    of_mask.add(&indices[..rank], of_score);
                }
            }
        });
        for (at, sums) in [of_query, of_key, of_value, of_mask].iter().enumerate() {
            sums.write(run.wanted(at));
        }
        Ok(())
    }
}
