//! Functions of one f32 without branches, so that loops over them are vectorised, and the few functions of f64 that the
//! standard library lacks.
//!
//! Polynomials are minimax fits made for this file (Remez exchange, errors weighted by the result). Argument reductions
//! are the classical ones (Cody and Waite 1980). Every function is within 2 ulp (sigmoid: 3) of the true value over its
//! whole range, with subnormals, infinities and NaN; tests check that. No branch on data may keep a loop from being
//! vectorised.

use crate::isa::Isa;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; products of the first with integers up to 2^9 are exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;
/// Adding and subtracting this rounds to an integer (|x| < 2^22), which is then in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Evaluates a polynomial, coefficients from the constant term up.
#[inline(always)]
fn poly32<I: Isa, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    for k in (0..N - 1).rev() {
        sum = I::fma32(sum, x, c[k]);
    }
    sum
}

#[inline(always)]
fn poly64<I: Isa, const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut sum = c[N - 1];
    for k in (0..N - 1).rev() {
        sum = I::fma64(sum, x, c[k]);
    }
    sum
}

/// 2^n for -126 <= n <= 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) as u32) << 23)
}

/// x = n ln 2 + r with |r| <= ln 2 / 2: (n, r), for |x| < 2^21.
#[inline(always)]
fn reduce_exp<I: Isa>(x: f32) -> (i32, f32) {
    let rounded = I::fma32(x, LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = I::fma32(n, -LN2_HI, x);
    let r = I::fma32(n, -LN2_LO, r);
    ((rounded.to_bits() as i32) - (ROUND.to_bits() as i32), r)
}

/// e^x.
#[inline(always)]
pub(crate) fn exp<I: Isa>(x: f32) -> f32 {
    // Beyond these bounds the result is 0 or infinity, and within them two factors can scale by 2^n.
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -104.0 { -104.0 } else { clamped };
    let (n, r) = reduce_exp::<I>(clamped);
    let p = poly32::<I, 5>(
        r,
        [
            0.499_999_94,
            0.166_665_15,
            0.041_668_456,
            0.008_369_419,
            0.001_381_314_5,
        ],
    );
    let p = I::fma32(p, r * r, r) + 1.0;
    let half = n >> 1;
    let result = p * power_of_two(half) * power_of_two(n - half);
    if x.is_nan() { x } else { result }
}

/// e^x - 1, without cancellation near 0.
#[inline(always)]
pub(crate) fn expm1<I: Isa>(x: f32) -> f32 {
    let clamped = if x > 89.0 { 89.0 } else { x };
    let clamped = if clamped < -40.0 { -40.0 } else { clamped };
    let (n, r) = reduce_exp::<I>(clamped);
    let p = poly32::<I, 6>(
        r,
        [
            0.5,
            0.166_666_67,
            0.041_666_344,
            0.008_333_27,
            0.001_394_204_6,
            0.000_199_156_24,
        ],
    );
    let q = I::fma32(p, r * r, r);
    // 2^n q + (2^n - 1). 2^128 is not an f32, so that factor is taken in two steps.
    let half = n >> 1;
    let (s, t) = (power_of_two(half), power_of_two(n - half));
    let result = if n > 126 {
        (q + 1.0) * s * t
    } else {
        I::fma32(s * t, q, s * t - 1.0)
    };
    let result = if x.abs() < 1e-30 { x } else { result };
    if x.is_nan() { x } else { result }
}

/// x = 2^e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)): (e, f), for finite x > 0.
#[inline(always)]
fn reduce_log(x: f32) -> (f32, f32) {
    const SQRT_HALF: u32 = 0x3f35_04f3;
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits().wrapping_sub(SQRT_HALF);
    let e = (bits as i32 >> 23) as f32;
    let mantissa = f32::from_bits((bits & 0x007f_ffff).wrapping_add(SQRT_HALF));
    (if tiny { e - 23.0 } else { e }, mantissa - 1.0)
}

/// ln(1 + f) - f, for f as `reduce_log` gives it.
#[inline(always)]
fn log_tail<I: Isa>(f: f32) -> f32 {
    let p = poly32::<I, 9>(
        f,
        [
            0.333_333_13,
            -0.250_000_1,
            0.200_021_19,
            -0.166_679_96,
            0.142_195_52,
            -0.124_055_885,
            0.118_881_62,
            -0.116_756_52,
            0.067_466_42,
        ],
    );
    let square = f * f;
    I::fma32(p * f, square, -0.5 * square)
}

/// The logarithm of x if x is 0, negative, infinite or NaN; else `result`.
#[inline(always)]
fn log_special(x: f32, result: f32) -> f32 {
    let result = if x == f32::INFINITY { x } else { result };
    let result = if x == 0.0 { f32::NEG_INFINITY } else { result };
    // False for NaN too.
    if x >= 0.0 { result } else { f32::NAN }
}

/// The natural logarithm.
#[inline(always)]
pub(crate) fn log<I: Isa>(x: f32) -> f32 {
    let (e, f) = reduce_log(x);
    let low = I::fma32(e, LN2_LO, log_tail::<I>(f));
    log_special(x, I::fma32(e, LN2_HI, f + low))
}

/// The logarithm of base 2.
#[inline(always)]
pub(crate) fn log2<I: Isa>(x: f32) -> f32 {
    // log2 e in two parts; the first has few bits, so that its product with f is nearly exact.
    const HI: f32 = 1.442_382_8;
    const LO: f32 = 3.122_284e-4;
    let (e, f) = reduce_log(x);
    let tail = log_tail::<I>(f);
    let low = I::fma32(f + tail, LO, tail * HI);
    log_special(x, I::fma32(f, HI, low) + e)
}

/// ln(1 + x), without cancellation near 0.
#[inline(always)]
pub(crate) fn log1p<I: Isa>(x: f32) -> f32 {
    let u = 1.0 + x;
    // The rounding error of 1 + x, relative to u.
    let lost = if x > 1.0 {
        1.0 - (u - x)
    } else {
        x - (u - 1.0)
    };
    let (e, f) = reduce_log(u);
    let correction = lost / u;
    let low = I::fma32(e, LN2_LO, log_tail::<I>(f)) + correction;
    let result = log_special(u, I::fma32(e, LN2_HI, f + low));
    if x.abs() < 1e-30 { x } else { result }
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let square = x * x;
    let p = poly32::<I, 5>(
        square,
        [
            -0.333_331_97,
            0.133_292_44,
            -0.053_566_992,
            0.020_111_665,
            -0.005_155_119,
        ],
    );
    let small = I::fma32(p * square, x, x);
    let bounded = if a > 10.0 { 10.0 } else { a };
    let large = 1.0 - 2.0 / (exp::<I>(2.0 * bounded) + 1.0);
    let result = if a < 0.7 { small } else { large.copysign(x) };
    if x.is_nan() { x } else { result }
}

/// The logistic function 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<I: Isa>(x: f32) -> f32 {
    let e = exp::<I>(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// The error function.
#[inline(always)]
pub(crate) fn erf<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let square = x * x;
    let p = poly32::<I, 7>(
        square,
        [
            0.128_379_17,
            -0.376_126_35,
            0.112_836_94,
            -0.026_859_27,
            0.005_200_634_2,
            -0.000_813_743_86,
            8.345_228e-5,
        ],
    );
    let small = I::fma32(p, x, x);
    let bounded = if a > 4.0 { 4.0 } else { a };
    let q = poly32::<I, 9>(
        bounded,
        [
            0.000_150_612_2,
            -1.129_381_8,
            -0.633_663_36,
            -0.107_858_19,
            0.024_774_49,
            -0.003_994_089_6,
            0.000_378_846_07,
            -1.131_071_7e-5,
            -7.375_036e-7,
        ],
    );
    let large = (1.0 - exp::<I>(q)).copysign(x);
    let result = if a < 0.93 { small } else { large };
    if x.is_nan() { x } else { result }
}

/// Sines and cosines are vectorised up to here. Beyond it the reduction would need hundreds of bits of pi.
pub(crate) const TRIGONOMETRIC_LIMIT: f32 = 1e6;

/// x = n pi/2 + r with |r| <= pi/4, in f64: (n modulo 2^32, r), for |x| <= `TRIGONOMETRIC_LIMIT`.
#[inline(always)]
fn reduce_trigonometric(x: f32) -> (u32, f64) {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // pi/2 in two parts; the first has 33 bits, so that its product with n is exact.
    const HI: f64 = 1.570_796_326_734_125_6;
    const LO: f64 = 6.077_100_506_506_192e-11;
    let x = f64::from(x);
    let rounded = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = rounded - ROUND;
    (rounded.to_bits() as u32, (x - n * HI) - n * LO)
}

/// The sine of n pi/2 + r.
#[inline(always)]
fn quarter_sine<I: Isa>(n: u32, r: f64) -> f32 {
    let square = r * r;
    let s = poly64::<I, 4>(
        square,
        [
            -0.166_666_666_414_267_5,
            0.008_333_329_362_299_632,
            -0.000_198_393_271_414_387_84,
            2.718_237_315_182_737_5e-6,
        ],
    );
    let sine = I::fma64(s * square, r, r);
    let c = poly64::<I, 4>(
        square,
        [
            0.041_666_666_622_478_525,
            -0.001_388_888_372_272_883_3,
            2.479_951_178_756_934_6e-5,
            -2.720_954_946_592_229_6e-7,
        ],
    );
    let cosine = I::fma64(c, square * square, I::fma64(square, -0.5, 1.0));
    let value = if n & 1 == 0 { sine } else { cosine } as f32;
    f32::from_bits(value.to_bits() ^ ((n & 2) << 30))
}

/// The sine, for |x| <= `TRIGONOMETRIC_LIMIT`.
#[inline(always)]
pub(crate) fn sin<I: Isa>(x: f32) -> f32 {
    let (n, r) = reduce_trigonometric(x);
    let result = quarter_sine::<I>(n, r);
    // Keeps the sign of zero.
    if x == 0.0 { x } else { result }
}

/// The cosine, for |x| <= `TRIGONOMETRIC_LIMIT`.
#[inline(always)]
pub(crate) fn cos<I: Isa>(x: f32) -> f32 {
    let (n, r) = reduce_trigonometric(x);
    quarter_sine::<I>(n.wrapping_add(1), r)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Baseline, Vectorised, dispatch};

    /// Distance in units of the last place of the correctly rounded result.
    fn ulps(got: f32, want: f64) -> f64 {
        let rounded = want as f32;
        if rounded.is_nan() || got.is_nan() {
            return if rounded.is_nan() && got.is_nan() {
                0.0
            } else {
                f64::INFINITY
            };
        }
        if rounded.is_infinite() || got.is_infinite() {
            return if rounded == got { 0.0 } else { f64::INFINITY };
        }
        let next = f32::from_bits(rounded.abs().to_bits() + 1);
        let unit = f64::from(next) - f64::from(rounded.abs());
        if unit.is_finite() {
            (f64::from(got) - want).abs() / unit
        } else {
            0.0
        }
    }

    macro_rules! wide {
        ($function:ident) => {{
            struct Call(f32);
            impl Vectorised for Call {
                type Output = f32;
                #[inline(always)]
                fn run<I: Isa>(self) -> f32 {
                    $function::<I>(self.0)
                }
            }
            |x: f32| dispatch(Call(x))
        }};
    }

    /// Every 997th f32, so that all binades and signs are met, and the neighbourhood of 0 and 1.
    fn check(name: &str, limit: f64, f: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64, max: f32) {
        let mut worst = (0.0, 0.0f32);
        let near = (0..20_000).map(|k| (k as f32 - 10_000.0) * 0.0005);
        let all = (0..=u32::MAX / 997).map(|k| f32::from_bits(k * 997));
        for x in all.chain(near).filter(|x| x.is_nan() || x.abs() <= max) {
            let error = ulps(f(x), want(f64::from(x)));
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(
            worst.0 <= limit,
            "{name}({:e}) is off by {} ulp",
            worst.1,
            worst.0
        );
    }

    #[test]
    fn functions_are_within_two_ulp() {
        macro_rules! both {
            ($f:ident, $want:expr, $max:expr) => {
                both!($f, $want, $max, 2.0)
            };
            ($f:ident, $want:expr, $max:expr, $limit:expr) => {
                check(stringify!($f), $limit, $f::<Baseline>, $want, $max);
                check(stringify!($f), $limit, wide!($f), $want, $max);
            };
        }
        let infinite = f32::INFINITY;
        both!(exp, f64::exp, infinite);
        both!(expm1, f64::exp_m1, infinite);
        both!(log, f64::ln, infinite);
        both!(log2, f64::log2, infinite);
        both!(log1p, f64::ln_1p, infinite);
        both!(tanh, f64::tanh, infinite);
        both!(erf, libm::erf, infinite);

        both!(sigmoid, |x: f64| 1.0 / (1.0 + (-x).exp()), infinite, 3.0);
        both!(sin, f64::sin, TRIGONOMETRIC_LIMIT);
        both!(cos, f64::cos, TRIGONOMETRIC_LIMIT);
    }
}
