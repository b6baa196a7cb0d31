//! Operators that choose, bound or blend values, and operators of three operands.

use super::real::Real;
use super::{maps, operator};
use crate::call::Scalar;
use crate::registry::Definition;

maps!(Where[f32, f64, i32, i64]() 3 [condition, a, b] -> same if condition != T::default() { a } else { b });
maps!(MaskedFill[f32, f64, i32, i64](value) 2 [x, mask] -> same if mask != T::default() { value } else { x });
maps!(Clamp[f32, f64, i32, i64](low, high) 1 [x] -> same {
    // Comparisons with NaN are false, so NaN stays NaN. The upper bound wins, as in PyTorch.
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
});
maps!(ClampMin[f32, f64, i32, i64](low) 1 [x] -> same if x < low { low } else { x });
maps!(ClampMax[f32, f64, i32, i64](high) 1 [x] -> same if x > high { high } else { x });
maps!(Addcmul[f32, f64](value) 3 [x, a, b] -> same x + value * a * b);
maps!(AddcmulInt[i32, i64](value) 3 [x, a, b] -> same x.wrapping_add(value.wrapping_mul(a).wrapping_mul(b)));
maps!(Addcdiv[f32, f64](value) 3 [x, a, b] -> same x + value * (a / b));
maps!(Lerp[f32, f64](weight) 2 [a, b] -> same lerp::<T, I>(a, b, weight));
maps!(LerpTensor[f32, f64]() 3 [a, b, weight] -> same lerp::<T, I>(a, b, weight));
maps!(SquaredError[f32, f64]() 2 [a, b] -> same (a - b) * (a - b));
maps!(SquaredErrorBackward[f32, f64](factor) 3 [grad, a, b] -> same grad * factor * (a - b));

/// a + weight (b - a), computed from the nearer end, so that both ends are exact.
#[inline(always)]
fn lerp<T, I: crate::isa::Isa>(a: T, b: T, weight: T) -> T
where
    T: Real + std::ops::Sub<Output = T> + std::ops::Neg<Output = T> + From<f32>,
{
    let one = T::from(1.0);
    let from_a = weight.fma_::<I>(b - a, a);
    let from_b = (-(b - a)).fma_::<I>(one - weight, b);
    let half = T::from(0.5);
    if weight < half && weight > -half {
        from_a
    } else {
        from_b
    }
}

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    operator!(c"where", 3, Output, 300, [Where<f32>; Where<f64>; Where<i32>; Where<i64>],
        scalar_operand: true),
    operator!(c"masked_fill", 2, Output, 300,
        [MaskedFill<f32>; MaskedFill<f64>; MaskedFill<i32>; MaskedFill<i64>],
        defaults: &[Scalar::I64(0)], required: 1),
    operator!(c"clamp", 1, Output, 200, [Clamp<f32>; Clamp<f64>; Clamp<i32>; Clamp<i64>],
        defaults: &[Scalar::I64(0), Scalar::I64(0)], required: 2),
    operator!(c"clamp_min", 1, Output, 200, [ClampMin<f32>; ClampMin<f64>; ClampMin<i32>; ClampMin<i64>],
        defaults: &[Scalar::I64(0)], required: 1),
    operator!(c"clamp_max", 1, Output, 200, [ClampMax<f32>; ClampMax<f64>; ClampMax<i32>; ClampMax<i64>],
        defaults: &[Scalar::I64(0)], required: 1),
    operator!(c"addcmul", 3, Output, 300,
        [Addcmul<f32>; Addcmul<f64>; AddcmulInt<i32>; AddcmulInt<i64>],
        defaults: &[Scalar::I64(1)]),
    operator!(c"addcdiv", 3, Output, 400, [Addcdiv<f32>; Addcdiv<f64>;;],
        defaults: &[Scalar::I64(1)]),
    operator!(c"lerp", 2, Output, 300, [Lerp<f32>; Lerp<f64>;;],
        defaults: &[Scalar::F64(0.0)], required: 1),
    operator!(c"lerp_tensor", 3, Output, 300, [LerpTensor<f32>; LerpTensor<f64>;;]),
    operator!(c"squared_error", 2, Output, 250, [SquaredError<f32>; SquaredError<f64>;;]),
    operator!(c"squared_error_backward", 3, Output, 300,
        [SquaredErrorBackward<f32>; SquaredErrorBackward<f64>;;],
        defaults: &[Scalar::F64(2.0)]),
];
