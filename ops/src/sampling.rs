//! Random numbers whose distribution has a parameter for each element, by rejection: a number of draws that nobody knows
//! before.
//!
//! Each element has draws of its own, which depend on seed, offset and position alone, so results are the same for any
//! number of threads. Its Philox counter is the offset plus its position; the third word of the counter counts the blocks of
//! the element from 1 on. The operators of `generate` leave that word 0, so no number is drawn twice.

use outrigger_device::Code;

use crate::call::Call;
use crate::error::{Result, invalid};
use crate::failure::failed_with;
use crate::generate::philox;
use crate::parallel;
use crate::plain::{self, Plain, Run, floating, same_floats, same_sizes};
use crate::registry::Definition;

/// The last two scalars of each are seed and offset.
pub(crate) const RANDOM: &[Definition] = &[
    Definition {
        name: c"poisson",
        plan: plain::plan::<Sample<Poisson>>,
    },
    Definition {
        name: c"binomial",
        plan: plain::plan::<Sample<Binomial>>,
    },
    Definition {
        name: c"standard_gamma",
        plan: plain::plan::<Sample<StandardGamma>>,
    },
];

/// The draws of one element.
struct Draws {
    key: [u32; 2],
    counter: [u32; 2],
    block: u32,
    words: [u32; 4],
    left: usize,
}

impl Draws {
    fn new(seed: u64, at: u64) -> Self {
        Self {
            key: [seed as u32, (seed >> 32) as u32],
            counter: [at as u32, (at >> 32) as u32],
            block: 0,
            words: [0; 4],
            left: 0,
        }
    }

    fn word(&mut self) -> u64 {
        if self.left == 0 {
            self.block += 1;
            self.words = philox(self.key, [self.counter[0], self.counter[1], self.block, 0]);
            self.left = 4;
        }
        self.left -= 1;
        u64::from(self.words[self.left])
    }

    /// Uniform within (0, 1), never one of the two.
    fn uniform(&mut self) -> f64 {
        let bits = (self.word() << 32 | self.word()) >> 12;
        (bits as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// A distribution with one or two parameters.
trait Distribution {
    const PARAMETERS: usize;

    /// The reason why there is no such distribution, if there is none.
    fn refused(parameters: [f64; 2]) -> Option<&'static str>;

    /// Draws a number.
    fn draw(parameters: [f64; 2], draws: &mut Draws) -> f64;
}

struct Sample<D>(std::marker::PhantomData<D>);

impl<D: Distribution> Plain for Sample<D> {
    fn check(call: &Call<'_>) -> Result<i64> {
        let ([out], true) = (call.outputs, call.inputs.len() == D::PARAMETERS) else {
            return invalid(format!(
                "{} inputs and 1 output are expected",
                D::PARAMETERS
            ));
        };
        if call.scalars.len() != 2 {
            return invalid("scalars (seed, offset) are expected");
        }
        floating(out)?;
        for input in call.inputs {
            same_floats(&[input, out])?;
            same_sizes("an input", input.sizes(), out.sizes())?;
        }
        Ok(out.sizes().iter().product::<i64>() * 8)
    }

    fn run(run: &Run<'_>) -> Result<(), Code> {
        let [seed, offset] = run.call.scalars else {
            return Err(Code::INTERNAL);
        };
        let (seed, offset) = (seed.to_i64() as u64, offset.to_i64() as u64);
        let out = run.output(0);
        let parameters = |number: i64| {
            let mut all = [0.0; 2];
            for (value, input) in all.iter_mut().zip(run.call.inputs) {
                let view = run.view(input);
                *value = view.get(view.nth(number));
            }
            all
        };
        let refused = (0..out.numel()).find_map(|number| D::refused(parameters(number)));
        if let Some(why) = refused {
            return Err(failed_with(
                Code::INVALID_ARGUMENT,
                &[run.name()],
                why.to_owned(),
            ));
        }
        parallel::for_range(0, out.numel(), 1 << 10, &|begin, end| {
            for number in begin..end {
                let mut draws = Draws::new(seed, offset.wrapping_add(number as u64));
                out.set(out.nth(number), D::draw(parameters(number), &mut draws));
            }
        });
        Ok(())
    }
}

/// The logarithm of k!, by the series of Stirling, from 10 on.
fn ln_factorial(k: f64) -> f64 {
    if k < 10.0 {
        return (2..=k as u32).map(|factor| f64::from(factor).ln()).sum();
    }
    let n = k + 1.0;
    let inverse = 1.0 / (n * n);
    let series = (1.0 / 12.0 - (1.0 / 360.0 - inverse / 1260.0) * inverse) / n;
    (n - 0.5) * n.ln() - n + 0.5 * std::f64::consts::TAU.ln() + series
}

/// The number of events at a rate.
struct Poisson;

impl Distribution for Poisson {
    const PARAMETERS: usize = 1;

    fn refused([rate, _]: [f64; 2]) -> Option<&'static str> {
        (rate < 0.0).then_some("invalid Poisson rate, expected rate to be non-negative")
    }

    fn draw([rate, _]: [f64; 2], draws: &mut Draws) -> f64 {
        if rate.is_nan() || rate.is_infinite() {
            return rate;
        }
        if rate < 10.0 {
            // By inversion. What is left of the uniform number after 200 steps is rounding.
            let (mut left, mut chance, mut k) = (draws.uniform(), (-rate).exp(), 0.0);
            while left > chance && k < 200.0 {
                left -= chance;
                k += 1.0;
                chance *= rate / k;
            }
            return k;
        }
        // Transformed rejection with squeeze (PTRS, Hoermann 1993).
        let (root, logarithm) = (rate.sqrt(), rate.ln());
        let b = 0.931 + 2.53 * root;
        let a = -0.059 + 0.02483 * b;
        let inverse_alpha = 1.1239 + 1.1328 / (b - 3.4);
        let accepted = 0.9277 - 3.6224 / (b - 2.0);
        loop {
            let (u, v) = (draws.uniform() - 0.5, draws.uniform());
            let near = 0.5 - u.abs();
            let k = ((2.0 * a / near + b) * u + rate + 0.43).floor();
            if near >= 0.07 && v <= accepted {
                return k;
            }
            if k < 0.0 || (near < 0.013 && v > near) {
                continue;
            }
            let left = v.ln() + inverse_alpha.ln() - (a / (near * near) + b).ln();
            if left <= k * logarithm - rate - ln_factorial(k) {
                return k;
            }
        }
    }
}

/// The number of successes among a number of trials, with a probability.
struct Binomial;

impl Distribution for Binomial {
    const PARAMETERS: usize = 2;

    fn refused([count, chance]: [f64; 2]) -> Option<&'static str> {
        if count < 0.0 {
            return Some(
                "invalid count of a binomial distribution, expected it to be non-negative",
            );
        }
        let outside = !chance.is_nan() && !(0.0..=1.0).contains(&chance);
        outside
            .then_some("invalid probability of a binomial distribution, expected it within [0, 1]")
    }

    fn draw([count, chance]: [f64; 2], draws: &mut Draws) -> f64 {
        if count.is_nan() || chance.is_nan() {
            return f64::NAN;
        }
        let count = count.floor();
        if chance > 0.5 {
            return count - few(count, 1.0 - chance, draws);
        }
        few(count, chance, draws)
    }
}

/// A binomial number with a probability of at most 1/2.
fn few(count: f64, chance: f64, draws: &mut Draws) -> f64 {
    if count == 0.0 || chance == 0.0 {
        return 0.0;
    }
    let odds = chance / (1.0 - chance);
    if count * chance < 10.0 {
        // By inversion.
        let none = (count * (-chance).ln_1p()).exp();
        let (mut left, mut here, mut k) = (draws.uniform(), none, 0.0);
        while left > here && k < count.min(200.0) {
            left -= here;
            k += 1.0;
            here *= odds * (count - k + 1.0) / k;
        }
        return k;
    }
    // Transformed rejection with squeeze (BTRS, Hoermann 1993).
    let root = (count * chance * (1.0 - chance)).sqrt();
    let b = 1.15 + 2.53 * root;
    let a = -0.0873 + 0.0248 * b + 0.01 * chance;
    let center = count * chance + 0.5;
    let accepted = 0.92 - 4.2 / b;
    let alpha = (2.83 + 5.1 / b) * root;
    let mode = ((count + 1.0) * chance).floor();
    let at_mode = ln_factorial(mode) + ln_factorial(count - mode);
    loop {
        let (u, v) = (draws.uniform() - 0.5, draws.uniform());
        let near = 0.5 - u.abs();
        let k = ((2.0 * a / near + b) * u + center).floor();
        if near >= 0.07 && v <= accepted {
            return k;
        }
        if k < 0.0 || k > count {
            continue;
        }
        let left = (v * alpha / (a / (near * near) + b)).ln();
        let right = at_mode - ln_factorial(k) - ln_factorial(count - k) + (k - mode) * odds.ln();
        if left <= right {
            return k;
        }
    }
}

/// The gamma distribution with a shape and the scale 1 (Marsaglia and Tsang 2000).
struct StandardGamma;

impl Distribution for StandardGamma {
    const PARAMETERS: usize = 1;

    fn refused([shape, _]: [f64; 2]) -> Option<&'static str> {
        (shape < 0.0)
            .then_some("invalid shape of a gamma distribution, expected it to be non-negative")
    }

    fn draw([shape, _]: [f64; 2], draws: &mut Draws) -> f64 {
        if shape.is_nan() || shape.is_infinite() || shape == 0.0 {
            return shape;
        }
        // A shape below 1 is that of one more, times a power of a uniform number.
        let (shape, scale) = if shape < 1.0 {
            (shape + 1.0, draws.uniform().powf(1.0 / shape))
        } else {
            (shape, 1.0)
        };
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = draws.normal();
            let root = 1.0 + c * x;
            if root <= 0.0 {
                continue;
            }
            let v = root * root * root;
            let u = draws.uniform();
            let square = x * x;
            if u < 1.0 - 0.0331 * square * square || u.ln() < 0.5 * square + d * (1.0 - v + v.ln())
            {
                return scale * d * v;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Binomial, Distribution, Draws, Poisson, StandardGamma, ln_factorial};

    /// Mean and variance of many draws are those of the distribution, within six deviations of the mean.
    fn has_moments<D: Distribution>(parameters: [f64; 2], mean: f64, variance: f64) {
        const COUNT: u64 = 40_000;
        let values: Vec<f64> = (0..COUNT)
            .map(|at| D::draw(parameters, &mut Draws::new(7, at)))
            .collect();
        let found = values.iter().sum::<f64>() / COUNT as f64;
        let spread = values
            .iter()
            .map(|value| (value - found).powi(2))
            .sum::<f64>()
            / COUNT as f64;
        let deviation = (variance / COUNT as f64).sqrt();
        assert!(
            (found - mean).abs() < 6.0 * deviation,
            "{parameters:?}: a mean of {found}, not {mean}"
        );
        assert!(
            (spread / variance - 1.0).abs() < 0.06,
            "{parameters:?}: a variance of {spread}, not {variance}"
        );
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        for rate in [0.3, 4.0, 9.9, 10.1, 50.0, 3000.0] {
            has_moments::<Poisson>([rate, 0.0], rate, rate);
        }
        for (count, chance) in [
            (7.0, 0.2),
            (30.0, 0.9),
            (200.0, 0.3),
            (1000.0, 0.6),
            (1e6, 0.5),
        ] {
            has_moments::<Binomial>(
                [count, chance],
                count * chance,
                count * chance * (1.0 - chance),
            );
        }
        for shape in [0.1, 0.8, 1.0, 3.0, 100.0] {
            has_moments::<StandardGamma>([shape, 0.0], shape, shape);
        }
    }

    #[test]
    fn edges_are_what_they_must_be() {
        let draws = || Draws::new(3, 5);
        assert_eq!(Poisson::draw([0.0, 0.0], &mut draws()), 0.0);
        assert_eq!(Binomial::draw([9.0, 0.0], &mut draws()), 0.0);
        assert_eq!(Binomial::draw([9.0, 1.0], &mut draws()), 9.0);
        assert_eq!(Binomial::draw([0.0, 0.5], &mut draws()), 0.0);
        assert_eq!(StandardGamma::draw([0.0, 0.0], &mut draws()), 0.0);
        assert!(Binomial::draw([f64::NAN, 0.5], &mut draws()).is_nan());
        assert!(Poisson::refused([-1.0, 0.0]).is_some() && Binomial::refused([1.0, 1.1]).is_some());
    }

    #[test]
    fn factorials_are_right_on_both_sides_of_the_series() {
        let mut exact = 0.0;
        for k in 1..40 {
            exact += f64::from(k).ln();
            assert!((ln_factorial(f64::from(k)) - exact).abs() < 1e-9, "{k}!");
        }
    }
}
