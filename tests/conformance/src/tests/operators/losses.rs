//! Losses of elements against their definition. Gradients are the derivatives of the reference's forward.

use outrigger_device::DType;

use super::dual::{Dual, fixed, gradient};
use super::numbers::{count, values};
use super::operand::{Given, Operand, Runner, schema_gives};
use crate::Verdict;

/// The loss of one element, from input, target and weights.
pub(super) type Term = fn(&[Dual]) -> Dual;

/// Input and target have these sizes; weights those of the last dimension.
const SIZES: [[i64; 2]; 3] = [[3, 4], [1, 7], [5, 1]];

fn log(x: Dual) -> Dual {
    x.chain(x.value.ln(), 1.0 / x.value)
}

pub(super) fn cross_entropy(all: &[Dual]) -> Dual {
    let [x, target, weight] = all else {
        return f64::NAN.into();
    };
    let one = Dual::from(1.0);
    -*weight * (*target * log(*x) + (one - *target) * log(one - *x))
}

/// The loss as the cross entropy of the sigmoid.
pub(super) fn logits(all: &[Dual]) -> Dual {
    let [x, target, weight, positive] = all else {
        return f64::NAN.into();
    };
    let one = Dual::from(1.0);
    let probability = one / (one + (-*x).exp());
    let (yes, no) = (log(probability), log(one - probability));
    -*weight * (*positive * *target * yes + (one - *target) * no)
}

pub(super) fn smooth_l1(all: &[Dual]) -> Dual {
    let (distance, beta) = (all[0] - all[1], Dual::from(0.75));
    let half = Dual::from(0.5);
    match distance.value {
        far if far >= 0.75 => distance - half * beta,
        far if far <= -0.75 => -distance - half * beta,
        _ => half * distance * distance / beta,
    }
}

pub(super) fn huber(all: &[Dual]) -> Dual {
    smooth_l1(all) * Dual::from(0.75)
}

fn kl(all: &[Dual]) -> Dual {
    all[1] * (log(all[1]) - all[0])
}

fn kl_of_logs(all: &[Dual]) -> Dual {
    all[1].exp() * (all[1] - all[0])
}

pub(super) fn js(all: &[Dual]) -> Dual {
    let (p, q) = (all[0], all[1]);
    let mean = (p + q) / Dual::from(2.0);
    (p * (log(p) - log(mean)) + q * (log(q) - log(mean))) / Dual::from(2.0)
}

/// The values of a loss's operands, and what each element counts among them.
struct Kit {
    sizes: [i64; 2],
    lists: Vec<Vec<f64>>,
}

impl Kit {
    fn new(dtype: DType, sizes: [i64; 2], ranges: &[(f64, f64)], seed: u64) -> Self {
        let list = |(at, range): (usize, &(f64, f64))| {
            let count = if at < 2 {
                count(&sizes)
            } else {
                sizes[1] as usize
            };
            values(dtype, count, *range, 10 * seed + at as u64)
        };
        let lists = ranges.iter().enumerate().map(list).collect();
        Self { sizes, lists }
    }

    /// The losses of all elements.
    fn losses(&self, input: &[Dual], term: Term) -> Vec<Dual> {
        let one = |at: usize| {
            let rest = self.lists[1..].iter();
            let rest = rest.map(|list| Dual::from(list[at % list.len()]));
            term(&std::iter::once(input[at]).chain(rest).collect::<Vec<_>>())
        };
        (0..input.len()).map(one).collect()
    }

    /// The losses as they are reduced: all, their mean or their sum.
    fn reduced(&self, input: &[Dual], term: Term, reduction: i64) -> Vec<Dual> {
        let all = self.losses(input, term);
        let sum: Dual = all.iter().copied().sum();
        match reduction {
            0 => all,
            1 => vec![sum / Dual::from(input.len() as f64)],
            _ => vec![sum],
        }
    }

    /// Input, target and weights. The target lies in memory by columns.
    fn operands(&self, on: &dyn Runner, dtype: DType) -> Verdict<Vec<Operand>> {
        let [rows, columns] = self.sizes;
        let one = |(at, list): (usize, &Vec<f64>)| match at {
            0 => Operand::dense(on, dtype, &self.sizes, list),
            1 => {
                let turned = (0..list.len()).map(|at| {
                    let (column, row) = (at / rows as usize, at % rows as usize);
                    list[row * columns as usize + column]
                });
                let turned: Vec<f64> = turned.collect();
                Operand::new(on, dtype, &self.sizes, &[1, rows], &turned)
            }
            _ => Operand::dense(on, dtype, &self.sizes[1..], list),
        };
        self.lists.iter().enumerate().map(one).collect()
    }

    fn result(&self, reduction: i64) -> &[i64] {
        if reduction == 0 { &self.sizes } else { &[] }
    }
}

pub(super) fn loss(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    ranges: &[(f64, f64)],
    last: &[Given<'_>],
    term: Term,
) -> Verdict {
    for (seed, sizes) in (0u64..).zip(SIZES) {
        let kit = Kit::new(dtype, sizes, ranges, seed);
        let operands = kit.operands(on, dtype)?;
        for reduction in 0..3 {
            let expected: Vec<f64> = kit
                .reduced(&fixed(&kit.lists[0]), term, reduction)
                .iter()
                .map(|one| one.value)
                .collect();
            let out = Operand::dense(on, dtype, kit.result(reduction), &vec![9.0; expected.len()])?;
            let mut given: Vec<_> = operands.iter().map(Given::In).collect();
            given.push(Given::Int(reduction));
            given.extend(last);
            let what = format!("{name} of {sizes:?}, reduction {reduction}");
            schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
        }
    }
    Ok(())
}

/// With targets that are probabilities, and with their logarithms.
pub(super) fn kl_div(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    probabilities: &[(f64, f64)],
    logarithms: &[(f64, f64)],
) -> Verdict {
    loss(on, name, dtype, probabilities, &[Given::Truth(false)], kl)?;
    loss(
        on,
        name,
        dtype,
        logarithms,
        &[Given::Truth(true)],
        kl_of_logs,
    )
}

pub(super) fn loss_backward(
    on: &dyn Runner,
    name: &str,
    dtype: DType,
    ranges: &[(f64, f64)],
    last: &[Given<'_>],
    term: Term,
) -> Verdict {
    for (seed, sizes) in (0u64..).zip(SIZES) {
        let kit = Kit::new(dtype, sizes, ranges, seed);
        let operands = kit.operands(on, dtype)?;
        for reduction in 0..3 {
            let result = kit.result(reduction);
            let grad = values(dtype, count(result), (-1.0, 1.0), 90 + seed);
            let forward = |x: &[Dual]| kit.reduced(x, term, reduction);
            let expected = gradient(&kit.lists[0], &grad, forward);
            let first = Operand::dense(on, dtype, result, &grad)?;
            let out = Operand::dense(on, dtype, &sizes, &vec![9.0; expected.len()])?;
            let mut given = vec![Given::In(&first)];
            given.extend(operands.iter().map(Given::In));
            given.push(Given::Int(reduction));
            given.extend(last);
            let what = format!("{name} of {sizes:?}, reduction {reduction}");
            schema_gives(on, name, &given, &[Some(&out)], &[Some(&expected)], &what)?;
        }
    }
    Ok(())
}
