//! Losses and divergences that are sums over elements, and their gradients.

use outrigger_device::Code;

use crate::call::Call;
use crate::error::{Result, invalid};
use crate::plain::{self, Plain, Run, View, floating, same_sizes};
use crate::registry::Definition;

pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"binary_cross_entropy",
        plan: plain::plan::<Loss<CrossEntropy>>,
    },
    Definition {
        name: c"binary_cross_entropy_backward",
        plan: plain::plan::<Gradient<CrossEntropy>>,
    },
    Definition {
        name: c"binary_cross_entropy_with_logits",
        plan: plain::plan::<Loss<Logits>>,
    },
    Definition {
        name: c"smooth_l1_loss",
        plan: plain::plan::<Loss<SmoothL1>>,
    },
    Definition {
        name: c"smooth_l1_loss_backward",
        plan: plain::plan::<Gradient<SmoothL1>>,
    },
    Definition {
        name: c"huber_loss",
        plan: plain::plan::<Loss<Huber>>,
    },
    Definition {
        name: c"huber_loss_backward",
        plan: plain::plan::<Gradient<Huber>>,
    },
    Definition {
        name: c"kl_div",
        plan: plain::plan::<Loss<KullbackLeibler>>,
    },
    Definition {
        name: c"js_div",
        plan: plain::plan::<Loss<JensenShannon>>,
    },
];

/// The ways to reduce the losses of the elements.
const NONE: i64 = 0;
const MEAN: i64 = 1;
const SUM: i64 = 2;

/// The most tensors that a loss reads.
const MOST: usize = 4;

/// A loss: arguments are tensors, the reduction, and for some a parameter.
trait Term {
    /// The number of tensors: input, target, then those that count as ones if they are left out.
    const TENSORS: usize;

    /// The loss of one element.
    fn value(elements: [f64; MOST], parameter: f64) -> f64;
}

/// A loss that has a gradient operator.
trait Slope: Term {
    /// The derivative of one element's loss by the input.
    fn slope(elements: [f64; MOST], parameter: f64) -> f64;
}

/// The parameter behind the reduction; 0 if there is none.
fn parameter(call: &Call<'_>, at: usize) -> f64 {
    let truth = f64::from(u8::from(call.truth(at)));
    call.number(at).unwrap_or(truth)
}

/// The sizes that tensors are broadcast to.
fn common(call: &Call<'_>, first: usize, count: usize) -> Result<Vec<i64>> {
    call.needed(first)?;
    call.needed(first + 1)?;
    let mut all: Vec<i64> = Vec::new();
    for tensor in (first..first + count).filter_map(|at| call.tensor(at)) {
        floating(tensor)?;
        if tensor.rank() > all.len() {
            all.splice(0..0, vec![1; tensor.rank() - all.len()]);
        }
        for (size, one) in all.iter_mut().rev().zip(tensor.sizes().iter().rev()) {
            match (*size, *one) {
                (1, one) => *size = one,
                (_, 1) => {}
                (size, one) if size == one => {}
                (size, one) => {
                    return invalid(format!("sizes {size} and {one} do not go together"));
                }
            }
        }
    }
    let numel = all.iter().try_fold(1i64, |all, one| all.checked_mul(*one));
    match numel {
        Some(_) => Ok(all),
        None => invalid(format!("{all:?} are more elements than there can be")),
    }
}

/// The element of a tensor for the element with a number of what it is broadcast to.
fn element(view: &View<'_>, sizes: &[i64], mut number: i64) -> f64 {
    let (mut place, skipped) = (0, sizes.len() - view.rank());
    for (dim, size) in sizes.iter().enumerate().rev() {
        if dim >= skipped && view.sizes[dim - skipped] != 1 {
            place += number % size * view.strides[dim - skipped];
        }
        number /= size;
    }
    view.get(place)
}

/// The tensors of a loss, ones for those that were left out.
struct Operands<'a>([Option<View<'a>>; MOST]);

impl<'a> Operands<'a> {
    fn new(run: &Run<'a>, first: usize, count: usize) -> Self {
        let one = |at| {
            if at < count {
                run.tensor(first + at)
            } else {
                None
            }
        };
        Self(std::array::from_fn(one))
    }

    fn at(&self, sizes: &[i64], number: i64) -> [f64; MOST] {
        let one = |view: &Option<View<'_>>| view.map_or(1.0, |view| element(&view, sizes, number));
        self.0.each_ref().map(one)
    }
}

fn reduction(call: &Call<'_>, at: usize) -> Result<i64> {
    match call.int(at) {
        Some(way @ (NONE | MEAN | SUM)) => Ok(way),
        other => invalid(format!(
            "reduction {other:?}: 0 (none), 1 (mean) or 2 (sum) is expected"
        )),
    }
}

struct Loss<T>(std::marker::PhantomData<T>);

impl<T: Term> Plain for Loss<T> {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (sizes, out) = (common(call, 0, T::TENSORS)?, call.result(0)?);
        floating(out)?;
        let reduced = reduction(call, T::TENSORS)? != NONE;
        let right = if reduced { &[][..] } else { &sizes };
        same_sizes("the output", out.sizes(), right)?;
        Ok(sizes.iter().product())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let call = run.call;
        let sizes = common(call, 0, T::TENSORS).map_err(|_| Code::INTERNAL)?;
        let way = reduction(call, T::TENSORS).map_err(|_| Code::INTERNAL)?;
        let parameter = parameter(call, T::TENSORS + 1);
        let (operands, out) = (Operands::new(run, 0, T::TENSORS), run.output(0));
        let numel: i64 = sizes.iter().product();
        let mut sum = 0.0;
        for number in 0..numel {
            let value = T::value(operands.at(&sizes, number), parameter);
            if way == NONE {
                out.set(out.nth(number), value);
            }
            sum += value;
        }
        match way {
            NONE => {}
            MEAN => out.set(0, sum / numel as f64),
            _ => out.set(0, sum),
        }
        Ok(())
    }
}

/// The gradient of the input; the gradient of the loss stands before the tensors.
struct Gradient<T>(std::marker::PhantomData<T>);

impl<T: Slope> Plain for Gradient<T> {
    fn check(call: &Call<'_>) -> Result<i64> {
        let (sizes, grad, out) = (
            common(call, 1, T::TENSORS)?,
            call.needed(0)?,
            call.result(0)?,
        );
        floating(grad)?;
        floating(out)?;
        let reduced = reduction(call, T::TENSORS + 1)? != NONE;
        let right = if reduced { &[][..] } else { &sizes };
        same_sizes("the gradient", grad.sizes(), right)?;
        same_sizes("the output", out.sizes(), &sizes)?;
        Ok(out.numel())
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let (call, grad, out) = (
            run.call,
            run.tensor(0).ok_or(Code::INTERNAL)?,
            run.output(0),
        );
        let way = reduction(call, T::TENSORS + 1).map_err(|_| Code::INTERNAL)?;
        let parameter = parameter(call, T::TENSORS + 2);
        let operands = Operands::new(run, 1, T::TENSORS);
        let parts = if way == MEAN { out.numel() as f64 } else { 1.0 };
        for number in 0..out.numel() {
            let slope = T::slope(operands.at(out.sizes, number), parameter);
            let outer = element(&grad, out.sizes, number);
            out.set(out.nth(number), outer * slope / parts);
        }
        Ok(())
    }
}

/// -w (t log x + (1 - t) log(1 - x))
struct CrossEntropy;

impl Term for CrossEntropy {
    const TENSORS: usize = 3;

    fn value([x, target, weight, _]: [f64; MOST], _: f64) -> f64 {
        // Not a number stays.
        let bounded = |log: f64| if log < -100.0 { -100.0 } else { log };
        -weight * (target * bounded(x.ln()) + (1.0 - target) * bounded((-x).ln_1p()))
    }
}

impl Slope for CrossEntropy {
    fn slope([x, target, weight, _]: [f64; MOST], _: f64) -> f64 {
        let product = (1.0 - x) * x;
        let divisor = if product < 1e-12 { 1e-12 } else { product };
        weight * (x - target) / divisor
    }
}

/// The cross entropy of sigmoid x, with a factor for what the target is 1 of.
struct Logits;

impl Term for Logits {
    const TENSORS: usize = 4;

    fn value([x, target, weight, positive]: [f64; MOST], _: f64) -> f64 {
        let factor = (positive - 1.0) * target + 1.0;
        let below = if x < 0.0 { -x } else { 0.0 };
        weight * ((1.0 - target) * x + factor * ((-x.abs()).exp().ln_1p() + below))
    }
}

struct SmoothL1;

impl Term for SmoothL1 {
    const TENSORS: usize = 2;

    fn value([x, target, ..]: [f64; MOST], beta: f64) -> f64 {
        let distance = (x - target).abs();
        if distance < beta {
            0.5 * distance * distance / beta
        } else {
            distance - 0.5 * beta
        }
    }
}

impl Slope for SmoothL1 {
    fn slope([x, target, ..]: [f64; MOST], beta: f64) -> f64 {
        match x - target {
            distance if distance <= -beta => -1.0,
            distance if distance >= beta => 1.0,
            distance => distance / beta,
        }
    }
}

struct Huber;

impl Term for Huber {
    const TENSORS: usize = 2;

    fn value([x, target, ..]: [f64; MOST], delta: f64) -> f64 {
        let distance = (x - target).abs();
        if distance <= delta {
            0.5 * distance * distance
        } else {
            delta * (distance - 0.5 * delta)
        }
    }
}

impl Slope for Huber {
    fn slope([x, target, ..]: [f64; MOST], delta: f64) -> f64 {
        match x - target {
            distance if distance <= -delta => -delta,
            distance if distance >= delta => delta,
            distance => distance,
        }
    }
}

/// x log(x / y), which is 0 where x is 0.
fn relative(x: f64, y: f64) -> f64 {
    if x == 0.0 && !y.is_nan() {
        0.0
    } else {
        x * (x / y).ln()
    }
}

/// The input is a logarithm; the parameter says whether the target is one too.
struct KullbackLeibler;

impl Term for KullbackLeibler {
    const TENSORS: usize = 2;

    fn value([x, target, ..]: [f64; MOST], log_target: f64) -> f64 {
        if log_target != 0.0 {
            target.exp() * (target - x)
        } else if target == 0.0 && !x.is_nan() {
            0.0
        } else {
            target * (target.ln() - x)
        }
    }
}

struct JensenShannon;

impl Term for JensenShannon {
    const TENSORS: usize = 2;

    fn value([p, q, ..]: [f64; MOST], _: f64) -> f64 {
        let mean = 0.5 * (p + q);
        0.5 * (relative(p, mean) + relative(q, mean))
    }
}
