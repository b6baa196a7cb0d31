//! Functions of a real number under one name for f32 and f64, so that an operator is written once.
//!
//! f32 has the vectorised functions of `math`. f64 has those of the standard library, which are exact enough to serve
//! as the reference.

use crate::convert::Compute;
use crate::isa::Isa;
use crate::math;

/// f32 or f64.
pub(crate) trait Real: Compute {
    fn exp_<I: Isa>(self) -> Self;
    fn expm1_<I: Isa>(self) -> Self;
    fn log_<I: Isa>(self) -> Self;
    fn log1p_<I: Isa>(self) -> Self;
    fn log2_<I: Isa>(self) -> Self;
    fn sin_<I: Isa>(self) -> Self;
    fn cos_<I: Isa>(self) -> Self;
    fn tanh_<I: Isa>(self) -> Self;
    fn sigmoid_<I: Isa>(self) -> Self;
    fn erf_<I: Isa>(self) -> Self;
    /// `self * b + c`.
    fn fma_<I: Isa>(self, b: Self, c: Self) -> Self;
}

macro_rules! by_math {
    ($($method:ident = $function:ident),*) => {$(
        #[inline(always)]
        fn $method<I: Isa>(self) -> Self {
            math::$function::<I>(self)
        }
    )*};
}

impl Real for f32 {
    by_math!(
        exp_ = exp,
        expm1_ = expm1,
        log_ = log,
        log1p_ = log1p,
        log2_ = log2,
        sin_ = sin,
        cos_ = cos,
        tanh_ = tanh,
        sigmoid_ = sigmoid,
        erf_ = erf
    );
    #[inline(always)]
    fn fma_<I: Isa>(self, b: Self, c: Self) -> Self {
        I::fma32(self, b, c)
    }
}

macro_rules! by_std {
    ($($method:ident = $function:ident),*) => {$(
        #[inline(always)]
        fn $method<I: Isa>(self) -> Self {
            self.$function()
        }
    )*};
}

impl Real for f64 {
    by_std!(
        exp_ = exp,
        expm1_ = exp_m1,
        log_ = ln,
        log1p_ = ln_1p,
        log2_ = log2,
        sin_ = sin,
        cos_ = cos,
        tanh_ = tanh
    );
    #[inline(always)]
    fn sigmoid_<I: Isa>(self) -> Self {
        1.0 / (1.0 + (-self).exp())
    }
    #[inline(always)]
    fn erf_<I: Isa>(self) -> Self {
        libm::erf(self)
    }
    #[inline(always)]
    fn fma_<I: Isa>(self, b: Self, c: Self) -> Self {
        I::fma64(self, b, c)
    }
}
