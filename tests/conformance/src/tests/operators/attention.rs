//! Attention against its definition. Gradients are the derivatives of the reference's forward.

use outrigger_device::DType;

use super::dual::{Dual, fixed, gradient, plain};
use super::numbers::{count, values};
use super::operand::{Arguments, Given, Operand, Runner, schema_gives};
use crate::Verdict;

/// One attention: samples, heads, heads of key and value, queries, keys, width, width of values.
struct Case {
    sizes: [i64; 7],
    mask: Mask,
    causal: bool,
    dropout: f64,
}

enum Mask {
    None,
    /// Truth values of these sizes; the first row of them sees no key.
    Truth(&'static [i64]),
    /// Numbers that are added, of these sizes.
    Added(&'static [i64]),
}

const CASES: [Case; 4] = [
    Case {
        sizes: [2, 2, 2, 3, 5, 4, 4],
        mask: Mask::None,
        causal: false,
        dropout: 0.0,
    },
    // Each head of key and value serves two heads of the query.
    Case {
        sizes: [1, 4, 2, 4, 3, 3, 5],
        mask: Mask::Added(&[4, 1, 3]),
        causal: true,
        dropout: 0.0,
    },
    Case {
        sizes: [2, 2, 1, 3, 4, 2, 3],
        mask: Mask::Truth(&[2, 1, 3, 4]),
        causal: false,
        dropout: 0.4,
    },
    Case {
        sizes: [1, 1, 1, 2, 3, 5, 2],
        mask: Mask::Added(&[2, 3]),
        causal: false,
        dropout: 0.0,
    },
];

const SCALE: f64 = 0.7;
/// The seed and the offset of the generator.
const SEED: i64 = 77;
const OFFSET: i64 = 5;

impl Case {
    fn query(&self) -> [i64; 4] {
        let [n, h, _, l, _, d, _] = self.sizes;
        [n, h, l, d]
    }

    fn key(&self) -> [i64; 4] {
        let [n, _, g, _, s, d, _] = self.sizes;
        [n, g, s, d]
    }

    fn value(&self) -> [i64; 4] {
        let [n, _, g, _, s, _, e] = self.sizes;
        [n, g, s, e]
    }

    fn out(&self) -> [i64; 4] {
        let [n, h, _, l, _, _, e] = self.sizes;
        [n, h, l, e]
    }

    fn weights(&self) -> usize {
        let [n, h, _, l, s, _, _] = self.sizes;
        count(&[n, h, l, s])
    }

    fn what(&self, name: &str) -> String {
        let [n, h, g, l, s, d, e] = self.sizes;
        let (causal, dropout) = (self.causal, self.dropout);
        format!(
            "{name} of {l} queries in {n} samples with {h} heads, {s} keys in {g} heads, widths {d} and {e}, causal \
             {causal}, dropout {dropout}"
        )
    }

    fn arguments(&self) -> [Given<'static>; 5] {
        [
            Given::Truth(self.causal),
            Given::Number(SCALE),
            Given::Number(self.dropout),
            Given::Number(SEED as f64),
            Given::Number(OFFSET as f64),
        ]
    }

    /// The sizes of the mask, with ones in front; one element where there is none.
    fn mask_sizes(&self) -> [i64; 4] {
        let (Mask::Truth(sizes) | Mask::Added(sizes)) = self.mask else {
            return [1; 4];
        };
        let mut all = [1; 4];
        all[4 - sizes.len()..].copy_from_slice(sizes);
        all
    }

    fn mask_values(&self, dtype: DType, seed: u64) -> Vec<f64> {
        match self.mask {
            Mask::None => vec![0.0],
            Mask::Added(sizes) => values(dtype, count(sizes), (-1.0, 1.0), seed),
            Mask::Truth(sizes) => {
                let keys = sizes[sizes.len() - 1] as usize;
                (0..count(sizes))
                    .map(|at| f64::from(u8::from(at >= keys && at % 3 != 1)))
                    .collect()
            }
        }
    }

    /// The results, and the logarithm of the sum of exponentials of each query.
    fn forward(&self, all: [&[Dual]; 4], drawn: &[f64]) -> (Vec<Dual>, Vec<f64>) {
        let [query, key, value, mask] = all;
        let [n, h, g, l, s, d, e] = self.sizes.map(|one| one as usize);
        let sizes = self.mask_sizes().map(|one| one as usize);
        let (mut out, mut sums) = (Vec::new(), Vec::new());
        for row in 0..n * h * l {
            let (sample, head, place) = (row / (h * l), row / l % h, row % l);
            let from = sample * g + head * g / h;
            let mut exps = Vec::new();
            for to in 0..s {
                let terms = (0..d).map(|at| query[row * d + at] * key[(from * s + to) * d + at]);
                let mut score = terms.sum::<Dual>() * SCALE.into();
                let of_mask = [sample, head, place, to]
                    .into_iter()
                    .zip(sizes)
                    .fold(0, |number, (at, size)| number * size + at.min(size - 1));
                let mut seen = !self.causal || to <= place;
                match self.mask {
                    Mask::Truth(_) => seen &= mask[of_mask].value != 0.0,
                    _ => score = score + mask[of_mask],
                }
                exps.push(if seen { score.exp() } else { 0.0.into() });
            }
            let sum: Dual = exps.iter().copied().sum();
            sums.push(sum.value.ln());
            for at in 0..e {
                let terms = exps.iter().enumerate().filter(|(_, exp)| exp.value > 0.0);
                let terms = terms.filter(|(to, _)| drawn[row * s + to] >= self.dropout);
                let kept = Dual::from(1.0 / (1.0 - self.dropout));
                out.push(
                    terms
                        .map(|(to, exp)| *exp / sum * kept * value[(from * s + to) * e + at])
                        .sum(),
                );
            }
        }
        (out, sums)
    }
}

/// The numbers of `uniform` that decide about weights; `None` where the runner has no such operator.
fn drawn(on: &dyn Runner, case: &Case) -> Verdict<Option<Vec<f64>>> {
    let numel = case.weights();
    if case.dropout == 0.0 {
        return Ok(Some(vec![1.0; numel]));
    }
    let to = Operand::dense(on, DType::F32, &[numel as i64], &vec![2.0; numel])?;
    let scalars = [0.0, 1.0, SEED as f64, OFFSET as f64];
    let ran = on.run(&Arguments::new("uniform", &[], &[&to], &scalars)?.call())?;
    Ok(if ran {
        Some(to.values(on, "uniform")?)
    } else {
        None
    })
}

/// An operand whose heads lie within the rows, as a projection leaves them.
fn by_rows(on: &dyn Runner, dtype: DType, sizes: &[i64; 4], x: &[f64]) -> Verdict<Operand> {
    let [_, h, l, d] = *sizes;
    let mut memory = vec![0.0; x.len()];
    for (at, value) in x.iter().enumerate() {
        let at = at as i64;
        let (sample, head, row, place) = (at / (h * l * d), at / (l * d) % h, at / d % l, at % d);
        memory[(((sample * l + row) * h + head) * d + place) as usize] = *value;
    }
    Operand::new(on, dtype, sizes, &[l * h * d, d, h * d, 1], &memory)
}

/// The operands of a case: query, key, value and mask.
struct Kit {
    lists: [Vec<f64>; 4],
    operands: [Operand; 3],
    mask: Option<Operand>,
}

impl Kit {
    fn new(on: &dyn Runner, dtype: DType, case: &Case, seed: u64) -> Verdict<Self> {
        let sizes = [case.query(), case.key(), case.value()];
        let list = |at: usize| values(dtype, count(&sizes[at]), (-1.0, 1.0), 10 * seed + at as u64);
        let lists = [
            list(0),
            list(1),
            list(2),
            case.mask_values(dtype, 10 * seed + 3),
        ];
        let operands = [
            by_rows(on, dtype, &sizes[0], &lists[0])?,
            Operand::dense(on, dtype, &sizes[1], &lists[1])?,
            by_rows(on, dtype, &sizes[2], &lists[2])?,
        ];
        let mask = match case.mask {
            Mask::None => None,
            Mask::Truth(sizes) => Some(Operand::dense(on, DType::BOOL, sizes, &lists[3])?),
            Mask::Added(sizes) => Some(Operand::dense(on, dtype, sizes, &lists[3])?),
        };
        Ok(Self {
            lists,
            operands,
            mask,
        })
    }

    fn given(&self) -> [Given<'_>; 4] {
        let [query, key, value] = self.operands.each_ref().map(Given::In);
        let mask = self.mask.as_ref().map_or(Given::Nothing, Given::In);
        [query, key, value, mask]
    }
}

/// The type of the sums.
fn sum_type(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

pub(super) fn attention(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, case) in (0u64..).zip(&CASES) {
        let Some(drawn) = drawn(on, case)? else {
            continue;
        };
        let kit = Kit::new(on, dtype, case, seed)?;
        let lists = kit.lists.each_ref().map(|one| fixed(one));
        let (out, sums) = case.forward(lists.each_ref().map(Vec::as_slice), &drawn);
        let results = [
            Operand::dense(on, dtype, &case.out(), &vec![9.0; out.len()])?,
            Operand::dense(
                on,
                sum_type(dtype),
                &case.out()[..3],
                &vec![9.0; sums.len()],
            )?,
        ];
        schema_gives(
            on,
            name,
            &[&kit.given()[..], &case.arguments()].concat(),
            &results.each_ref().map(Some),
            &[Some(&plain(&out)), Some(&sums)],
            &case.what(name),
        )?;
    }
    Ok(())
}

pub(super) fn attention_backward(on: &dyn Runner, name: &str, dtype: DType) -> Verdict {
    for (seed, case) in (0u64..).zip(&CASES) {
        let Some(drawn) = drawn(on, case)? else {
            continue;
        };
        let kit = Kit::new(on, dtype, case, seed)?;
        let lists = kit.lists.each_ref().map(|one| fixed(one));
        let (out, sums) = case.forward(lists.each_ref().map(Vec::as_slice), &drawn);
        let grad = values(dtype, out.len(), (-1.0, 1.0), 100 + seed);
        let expected: Vec<Vec<f64>> = (0..4)
            .map(|varied| {
                gradient(&kit.lists[varied], &grad, |x| {
                    let mut all = lists.each_ref().map(Vec::as_slice);
                    all[varied] = x;
                    case.forward(all, &drawn).0
                })
            })
            .collect();
        let first = Operand::dense(on, dtype, &case.out(), &grad)?;
        let out = Operand::dense(on, dtype, &case.out(), &plain(&out))?;
        let sums = Operand::dense(on, sum_type(dtype), &case.out()[..3], &sums)?;
        let given = [
            &[Given::In(&first)][..],
            &kit.given(),
            &[Given::In(&out), Given::In(&sums)],
            &case.arguments(),
        ]
        .concat();
        let mut results = Vec::new();
        let sizes = [case.query(), case.key(), case.value()];
        for (sizes, list) in sizes.iter().zip(&kit.lists) {
            let empty = Operand::dense(on, dtype, sizes, &vec![9.0; list.len()])?;
            results.push(Some(empty));
        }
        results.push(match case.mask {
            Mask::Added(sizes) => {
                let empty = vec![9.0; kit.lists[3].len()];
                Some(Operand::dense(on, dtype, sizes, &empty)?)
            }
            _ => None,
        });
        let results: Vec<_> = results.iter().map(Option::as_ref).collect();
        let expected: Vec<_> = expected.iter().map(|one| Some(one.as_slice())).collect();
        schema_gives(on, name, &given, &results, &expected, &case.what(name))?;
    }
    Ok(())
}
