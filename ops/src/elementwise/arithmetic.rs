//! Arithmetic, comparisons, logical and bitwise operators of two operands, and the unary operators that integers have,
//! too.
//!
//! Integers wrap, as in PyTorch. An integer divided by zero gives 0, because a kernel cannot report a single element.

use super::functions::{Reciprocal, Rsqrt, Sqrt};
use super::{maps, operator};
use crate::call::{Call, Scalar};
use crate::convert::is_float;
use crate::error::Result;
use crate::plan::Plan;
use crate::registry::Definition;

/// a^b of integers by squaring. It wraps. For negative exponents only the powers of 1 and -1 are not 0.
macro_rules! power {
    ($a:expr, $b:expr) => {
        match ($a, $b) {
            (mut base, mut exponent) if exponent >= 0 => {
                let mut result = 1;
                while exponent > 0 {
                    if exponent & 1 == 1 {
                        result = base.wrapping_mul(result);
                    }
                    base = base.wrapping_mul(base);
                    exponent >>= 1;
                }
                result
            }
            (1, _) => 1,
            (-1, exponent) => 1 - 2 * (exponent & 1),
            _ => 0,
        }
    };
}

maps!(Add[f32, f64](alpha) 2 [a, b] -> same a + alpha * b);
maps!(AddInt[i32, i64](alpha) 2 [a, b] -> same a.wrapping_add(alpha.wrapping_mul(b)));
maps!(Sub[f32, f64](alpha) 2 [a, b] -> same a - alpha * b);
maps!(SubInt[i32, i64](alpha) 2 [a, b] -> same a.wrapping_sub(alpha.wrapping_mul(b)));
maps!(RSub[f32, f64](alpha) 2 [a, b] -> same b - alpha * a);
maps!(RSubInt[i32, i64](alpha) 2 [a, b] -> same b.wrapping_sub(alpha.wrapping_mul(a)));
maps!(Mul[f32, f64]() 2 [a, b] -> same a * b);
maps!(MulInt[i32, i64]() 2 [a, b] -> same a.wrapping_mul(b));
maps!(Div[f32, f64]() 2 [a, b] -> same a / b);
maps!(RDiv[f32, f64]() 2 [a, b] -> same b / a);
maps!(DivTrunc[f32, f64]() 2 [a, b] -> same (a / b).trunc());
maps!(DivTruncInt[i32, i64]() 2 [a, b] -> same if b == 0 { 0 } else { a.wrapping_div(b) });
maps!(DivFloor[f32, f64]() 2 [a, b] -> same {
    // As in Python: the quotient that belongs to the remainder, not the rounded a / b.
    let rest = a % b;
    let quotient = (a - rest) / b;
    let quotient = if rest != 0.0 && (b < 0.0) != (rest < 0.0) { quotient - 1.0 } else { quotient };
    let floor = quotient.floor();
    let floor = if quotient - floor > 0.5 { floor + 1.0 } else { floor };
    if b == 0.0 {
        a / b
    } else if quotient == 0.0 {
        (0.0 as T).copysign(a / b)
    } else {
        floor
    }
});
maps!(DivFloorInt[i32, i64]() 2 [a, b] -> same if b == 0 {
    0
} else {
    let quotient = a.wrapping_div(b);
    let rest = a.wrapping_rem(b);
    if rest != 0 && (rest < 0) != (b < 0) { quotient - 1 } else { quotient }
});
maps!(Remainder[f32, f64]() 2 [a, b] -> same {
    let rest = a % b;
    if rest != 0.0 && (b < 0.0) != (rest < 0.0) { rest + b } else { rest }
});
maps!(RemainderInt[i32, i64]() 2 [a, b] -> same if b == 0 {
    0
} else {
    let rest = a.wrapping_rem(b);
    if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }
});
maps!(Fmod[f32, f64]() 2 [a, b] -> same a % b);
maps!(FmodInt[i32, i64]() 2 [a, b] -> same if b == 0 { 0 } else { a.wrapping_rem(b) });
maps!(Pow[f32, f64]() 2 [a, b] -> same a.powf(b));
maps!(Cube[f32, f64]() 1 [a] -> same a * a * a);
maps!(PowInt[i32, i64]() 2 [a, b] -> same power!(a, b));
maps!(RPowInt[i32, i64]() 2 [a, b] -> same power!(b, a));
maps!(RPow[f32, f64]() 2 [a, b] -> same b.powf(a));
maps!(Maximum[f32, f64, i32, i64]() 2 [a, b] -> same if a > b || is_nan(a) { a } else { b });
maps!(Minimum[f32, f64, i32, i64]() 2 [a, b] -> same if a < b || is_nan(a) { a } else { b });
maps!(BitwiseAnd[i32, i64]() 2 [a, b] -> same a & b);
maps!(BitwiseOr[i32, i64]() 2 [a, b] -> same a | b);
maps!(BitwiseXor[i32, i64]() 2 [a, b] -> same a ^ b);
maps!(BitwiseNot[i32, i64]() 1 [a] -> same !a);

maps!(Eq[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a == b));
maps!(Ne[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a != b));
maps!(Lt[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a < b));
maps!(Le[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a <= b));
maps!(Gt[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a > b));
maps!(Ge[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a >= b));
maps!(LogicalAnd[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a != T::default()) & u8::from(b != T::default()));
maps!(LogicalOr[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a != T::default()) | u8::from(b != T::default()));
maps!(LogicalXor[f32, f64, i32, i64]() 2 [a, b] -> truth u8::from(a != T::default()) ^ u8::from(b != T::default()));
maps!(LogicalNot[f32, f64, i32, i64]() 1 [a] -> truth u8::from(a == T::default()));
maps!(IsNan[f32, f64, i32, i64]() 1 [a] -> truth u8::from(is_nan(a)));
maps!(IsInf[f32, f64]() 1 [a] -> truth u8::from(a.abs() == T::INFINITY));
maps!(IsFinite[f32, f64]() 1 [a] -> truth u8::from(a.abs() < T::INFINITY));

maps!(Neg[f32, f64]() 1 [a] -> same -a);
maps!(NegInt[i32, i64]() 1 [a] -> same a.wrapping_neg());
maps!(Abs[f32, f64]() 1 [a] -> same a.abs());
maps!(AbsInt[i32, i64]() 1 [a] -> same a.wrapping_abs());
maps!(Sign[f32, f64, i32, i64]() 1 [a] -> same {
    let zero = T::default();
    T::from(i8::from(a > zero) - i8::from(a < zero))
});
maps!(Square[f32, f64]() 1 [a] -> same a * a);
maps!(SquareInt[i32, i64]() 1 [a] -> same a.wrapping_mul(a));

#[expect(
    clippy::eq_op,
    reason = "NaN is what differs from itself, and integers never do"
)]
#[inline(always)]
fn is_nan<T: PartialOrd>(a: T) -> bool {
    a != a
}

const ONE: &[Scalar] = &[Scalar::I64(1)];

macro_rules! arithmetic {
    ($name:literal, $cost:literal, $float:ident, $int:ident $(, $field:ident: $value:expr)*) => {
        operator!($name, 2, Output, $cost, [$float<f32>; $float<f64>; $int<i32>; $int<i64>],
            scalar_operand: true $(, $field: $value)*)
    };
}

macro_rules! comparison {
    ($name:literal, $map:ident) => {
        operator!($name, 2, Inputs, 200, [$map<f32>; $map<f64>; $map<i32>; $map<i64>],
            scalar_operand: true)
    };
}

/// Powers. The most common exponents have vectorised kernels of their own, as in PyTorch.
fn plan_pow(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    static POW: Definition = arithmetic!(c"pow", 8000, Pow, PowInt);
    static SQUARE: Definition = operator!(c"pow", 1, Output, 200, [Square<f32>; Square<f64>;;]);
    static CUBE: Definition = operator!(c"pow", 1, Output, 200, [Cube<f32>; Cube<f64>;;]);
    static SQRT: Definition = operator!(c"pow", 1, Output, 600, [Sqrt<f32>; Sqrt<f64>;;]);
    static RSQRT: Definition = operator!(c"pow", 1, Output, 900, [Rsqrt<f32>; Rsqrt<f64>;;]);
    static INVERSE: Definition =
        operator!(c"pow", 1, Output, 300, [Reciprocal<f32>; Reciprocal<f64>;;]);
    let special = match (call.inputs, call.outputs, call.scalars) {
        ([_], [output], [exponent]) if is_float(output.dtype()) => match exponent.to_f64() {
            2.0 => Some(&SQUARE),
            3.0 => Some(&CUBE),
            0.5 => Some(&SQRT),
            -0.5 => Some(&RSQRT),
            -1.0 => Some(&INVERSE),
            _ => None,
        },
        _ => None,
    };
    match special {
        Some(special) => (special.plan)(
            &Call {
                scalars: &[],
                ..*call
            },
            plan,
        ),
        None => (POW.plan)(call, plan),
    }
}

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    arithmetic!(c"add", 250, Add, AddInt, defaults: ONE),
    arithmetic!(c"sub", 250, Sub, SubInt, defaults: ONE),
    arithmetic!(c"rsub", 250, RSub, RSubInt, defaults: ONE),
    arithmetic!(c"mul", 250, Mul, MulInt),
    operator!(c"div", 2, Output, 300, [Div<f32>; Div<f64>;;], scalar_operand: true),
    operator!(c"rdiv", 2, Output, 300, [RDiv<f32>; RDiv<f64>;;], scalar_operand: true),
    arithmetic!(c"div_trunc", 2000, DivTrunc, DivTruncInt),
    arithmetic!(c"div_floor", 8000, DivFloor, DivFloorInt),
    arithmetic!(c"remainder", 8000, Remainder, RemainderInt),
    arithmetic!(c"fmod", 8000, Fmod, FmodInt),
    Definition {
        name: c"pow",
        plan: plan_pow,
    },
    arithmetic!(c"rpow", 8000, RPow, RPowInt),
    arithmetic!(c"maximum", 250, Maximum, Maximum),
    arithmetic!(c"minimum", 250, Minimum, Minimum),
    operator!(c"bitwise_and", 2, Output, 250, [;; BitwiseAnd<i32>; BitwiseAnd<i64>], scalar_operand: true),
    operator!(c"bitwise_or", 2, Output, 250, [;; BitwiseOr<i32>; BitwiseOr<i64>], scalar_operand: true),
    operator!(c"bitwise_xor", 2, Output, 250, [;; BitwiseXor<i32>; BitwiseXor<i64>], scalar_operand: true),
    operator!(c"bitwise_not", 1, Output, 250, [;; BitwiseNot<i32>; BitwiseNot<i64>],
        on_bool: Some(super::kernel::<LogicalNot<i32>, 1>)),
    comparison!(c"eq", Eq),
    comparison!(c"ne", Ne),
    comparison!(c"lt", Lt),
    comparison!(c"le", Le),
    comparison!(c"gt", Gt),
    comparison!(c"ge", Ge),
    comparison!(c"logical_and", LogicalAnd),
    comparison!(c"logical_or", LogicalOr),
    comparison!(c"logical_xor", LogicalXor),
    operator!(c"logical_not", 1, Inputs, 200, [LogicalNot<f32>; LogicalNot<f64>; LogicalNot<i32>; LogicalNot<i64>]),
    operator!(c"isnan", 1, Inputs, 200, [IsNan<f32>; IsNan<f64>; IsNan<i32>; IsNan<i64>]),
    operator!(c"isinf", 1, Inputs, 200, [IsInf<f32>; IsInf<f64>;;]),
    operator!(c"isfinite", 1, Inputs, 200, [IsFinite<f32>; IsFinite<f64>;;]),
    operator!(c"neg", 1, Output, 200, [Neg<f32>; Neg<f64>; NegInt<i32>; NegInt<i64>]),
    operator!(c"abs", 1, Output, 200, [Abs<f32>; Abs<f64>; AbsInt<i32>; AbsInt<i64>]),
    operator!(c"sign", 1, Output, 200, [Sign<f32>; Sign<f64>; Sign<i32>; Sign<i64>]),
    operator!(c"square", 1, Output, 200, [Square<f32>; Square<f64>; SquareInt<i32>; SquareInt<i64>]),
];
