//! Functions of a real number, activations, and those of their gradients that frameworks ask for by name.
//!
//! The definitions are those of PyTorch's operators of the same names. Constants are written out where the formula is
//! an approximation by definition (GELU with tanh).

use super::real::Real;
use super::{maps, operator};
use crate::call::{Call, Scalar};
use crate::error::{Result, invalid};
use crate::plan::Plan;
use crate::registry::Definition;

maps!(Sqrt[f32, f64]() 1 [x] -> same x.sqrt());
maps!(Rsqrt[f32, f64]() 1 [x] -> same 1.0 / x.sqrt());
maps!(Reciprocal[f32, f64]() 1 [x] -> same 1.0 / x);
maps!(Exp[f32, f64]() 1 [x] -> same x.exp_::<I>());
maps!(Expm1[f32, f64]() 1 [x] -> same x.expm1_::<I>());
maps!(Log[f32, f64]() 1 [x] -> same x.log_::<I>());
maps!(Log1p[f32, f64]() 1 [x] -> same x.log1p_::<I>());
maps!(Log2[f32, f64]() 1 [x] -> same x.log2_::<I>());
maps!(Tanh[f32, f64]() 1 [x] -> same x.tanh_::<I>());
maps!(Sigmoid[f32, f64]() 1 [x] -> same x.sigmoid_::<I>());
maps!(Erf[f32, f64]() 1 [x] -> same x.erf_::<I>());
maps!(Floor[f32, f64]() 1 [x] -> same x.floor());
maps!(Ceil[f32, f64]() 1 [x] -> same x.ceil());
maps!(Round[f32, f64]() 1 [x] -> same x.round_ties_even());
maps!(Trunc[f32, f64]() 1 [x] -> same x.trunc());

/// Sines and cosines. The standard library computes those of very large arguments, one by one.
macro_rules! trigonometric {
    ($name:ident, $vector:ident, $scalar:ident) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl super::Map<1> for $name {
            type In = f32;
            type Out = f32;
            const FIXUP: bool = true;
            fn new(_: [u64; 4]) -> Self {
                Self
            }
            #[inline(always)]
            fn apply<I: crate::isa::Isa>(self, [x]: [f32; 1]) -> f32 {
                x.$vector::<I>()
            }
            #[inline(always)]
            fn fixup(self, [x]: [f32; 1]) -> Option<f32> {
                (x.abs() > crate::math::TRIGONOMETRIC_LIMIT).then(|| x.$scalar())
            }
        }
    };
}
trigonometric!(Sin32, sin_, sin);
trigonometric!(Cos32, cos_, cos);
maps!(Sin[f64]() 1 [x] -> same x.sin_::<I>());
maps!(Cos[f64]() 1 [x] -> same x.cos_::<I>());

maps!(Relu[f32, f64, i32, i64]() 1 [x] -> same if x < T::default() { T::default() } else { x });
maps!(LeakyRelu[f32, f64](slope) 1 [x] -> same if x > 0.0 { x } else { x * slope });
maps!(LeakyReluBackward[f32, f64](slope) 2 [grad, x] -> same if x > 0.0 { grad } else { grad * slope });
maps!(ThresholdBackward[f32, f64, i32, i64](threshold) 2 [grad, x] -> same if x <= threshold { T::default() } else { grad });
maps!(SigmoidBackward[f32, f64]() 2 [grad, y] -> same grad * (1.0 - y) * y);
maps!(TanhBackward[f32, f64]() 2 [grad, y] -> same grad * (1.0 - y * y));
maps!(Silu[f32, f64]() 1 [x] -> same x * x.sigmoid_::<I>());
maps!(SiluBackward[f32, f64]() 2 [grad, x] -> same {
    let s = x.sigmoid_::<I>();
    grad * s * (1.0 + x * (1.0 - s))
});
maps!(GeluErf[f32, f64]() 1 [x] -> same {
    0.5 * x * (1.0 + (x * std::f64::consts::FRAC_1_SQRT_2 as T).erf_::<I>())
});
maps!(GeluErfBackward[f32, f64]() 2 [grad, x] -> same {
    let cdf = 0.5 * (1.0 + (x * std::f64::consts::FRAC_1_SQRT_2 as T).erf_::<I>());
    let density = (-0.5 * x * x).exp_::<I>() * SQRT_1_2PI as T;
    grad * (cdf + x * density)
});
maps!(GeluTanh[f32, f64]() 1 [x] -> same {
    0.5 * x * (1.0 + (SQRT_2_PI as T * (x + 0.044715 * x * x * x)).tanh_::<I>())
});
maps!(GeluTanhBackward[f32, f64]() 2 [grad, x] -> same {
    let inner = SQRT_2_PI as T * (x + 0.044715 * x * x * x);
    let t = inner.tanh_::<I>();
    let slope = SQRT_2_PI as T * (1.0 + 3.0 * 0.044715 * x * x);
    grad * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * slope)
});
maps!(Elu[f32, f64](alpha, scale, input_scale) 1 [x] -> same {
    if x > 0.0 { x * scale } else { (x * input_scale).expm1_::<I>() * alpha * scale }
});
maps!(Softplus[f32, f64](beta, threshold) 1 [x] -> same {
    if x * beta > threshold { x } else { (x * beta).exp_::<I>().log1p_::<I>() / beta }
});
maps!(SoftplusBackward[f32, f64](beta, threshold) 2 [grad, x] -> same {
    if x * beta > threshold { grad } else { grad * (x * beta).sigmoid_::<I>() }
});
maps!(Hardtanh[f32, f64](low, high) 2 [grad, x] -> same if x > low && x < high { grad } else { 0.0 });
maps!(Hardsigmoid[f32, f64]() 1 [x] -> same (x + 3.0).clamp(0.0, 6.0) / 6.0);
maps!(Hardswish[f32, f64]() 1 [x] -> same x * (x + 3.0).clamp(0.0, 6.0) / 6.0);

/// 1 / sqrt(2 pi).
const SQRT_1_2PI: f64 = 0.398_942_280_401_432_7;
/// sqrt(2 / pi).
const SQRT_2_PI: f64 = 0.797_884_560_802_865_4;

macro_rules! real {
    ($name:literal, $n:literal, $cost:literal, $map:ident $(, $field:ident: $value:expr)*) => {
        operator!($name, $n, Output, $cost, [$map<f32>; $map<f64>;;] $(, $field: $value)*)
    };
}

/// GELU with the error function; if the scalar is not 0, its approximation with tanh.
fn plan_gelu(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    static ERF: Definition = real!(c"gelu", 1, 1600, GeluErf);
    static TANH: Definition = real!(c"gelu", 1, 1400, GeluTanh);
    by_form(&ERF, &TANH, call, plan)
}

fn plan_gelu_backward(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    static ERF: Definition = real!(c"gelu_backward", 2, 2200, GeluErfBackward);
    static TANH: Definition = real!(c"gelu_backward", 2, 1600, GeluTanhBackward);
    by_form(&ERF, &TANH, call, plan)
}

fn by_form(erf: &Definition, tanh: &Definition, call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let approximate = match call.scalars {
        [] => false,
        [form] => form.to_i64() != 0,
        _ => return invalid("1 scalar at most is expected: 0 for erf, 1 for tanh"),
    };
    let definition = if approximate { tanh } else { erf };
    (definition.plan)(
        &Call {
            scalars: &[],
            ..*call
        },
        plan,
    )
}

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    real!(c"sqrt", 1, 600, Sqrt),
    real!(c"rsqrt", 1, 900, Rsqrt),
    real!(c"reciprocal", 1, 300, Reciprocal),
    real!(c"exp", 1, 600, Exp),
    real!(c"expm1", 1, 800, Expm1),
    real!(c"log", 1, 800, Log),
    real!(c"log1p", 1, 1200, Log1p),
    real!(c"log2", 1, 800, Log2),
    operator!(c"sin", 1, Output, 1500, [Sin32; Sin<f64>;;]),
    operator!(c"cos", 1, Output, 1500, [Cos32; Cos<f64>;;]),
    real!(c"tanh", 1, 1200, Tanh),
    real!(c"sigmoid", 1, 900, Sigmoid),
    real!(c"erf", 1, 1500, Erf),
    real!(c"floor", 1, 200, Floor),
    real!(c"ceil", 1, 200, Ceil),
    real!(c"round", 1, 200, Round),
    real!(c"trunc", 1, 200, Trunc),
    operator!(c"relu", 1, Output, 200, [Relu<f32>; Relu<f64>; Relu<i32>; Relu<i64>]),
    real!(c"leaky_relu", 1, 250, LeakyRelu, defaults: &[Scalar::F64(0.01)]),
    real!(c"leaky_relu_backward", 2, 250, LeakyReluBackward, defaults: &[Scalar::F64(0.01)]),
    operator!(c"threshold_backward", 2, Output, 250,
        [ThresholdBackward<f32>; ThresholdBackward<f64>; ThresholdBackward<i32>; ThresholdBackward<i64>],
        defaults: &[Scalar::F64(0.0)]),
    real!(c"sigmoid_backward", 2, 250, SigmoidBackward),
    real!(c"tanh_backward", 2, 250, TanhBackward),
    real!(c"silu", 1, 1000, Silu),
    real!(c"silu_backward", 2, 1200, SiluBackward),
    Definition {
        name: c"gelu",
        plan: plan_gelu,
    },
    Definition {
        name: c"gelu_backward",
        plan: plan_gelu_backward,
    },
    real!(c"elu", 1, 900, Elu, defaults: &[Scalar::F64(1.0), Scalar::F64(1.0), Scalar::F64(1.0)]),
    real!(c"softplus", 1, 2000, Softplus, defaults: &[Scalar::F64(1.0), Scalar::F64(20.0)]),
    real!(c"softplus_backward", 2, 1200, SoftplusBackward, defaults: &[Scalar::F64(1.0), Scalar::F64(20.0)]),
    real!(c"hardtanh_backward", 2, 250, Hardtanh, defaults: &[Scalar::F64(-1.0), Scalar::F64(1.0)], required: 2),
    real!(c"hardsigmoid", 1, 250, Hardsigmoid),
    real!(c"hardswish", 1, 300, Hardswish),
];
