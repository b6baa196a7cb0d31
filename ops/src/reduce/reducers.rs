//! Sums, means, products, norms, variances, and whether any or all values are true.
//!
//! Floats are accumulated in f64 over independent lanes, so that a sum of f32 is exact except for its last bit or so.
//! Integers are accumulated in i64, and wrap.

use super::{Outputs, Reducer, Reduction, kernel};
use crate::call::Call;
use crate::convert::{Class, Compute, class_of, is_float};
use crate::error::{Result, invalid, unsupported};
use crate::isa::Isa;
use crate::lanes::fold;
use crate::plan::{KernelFn, Plan};
use crate::registry::Definition;

/// Declares a reducer whose state is one number.
macro_rules! folds {
    ($name:ident[$($in:ty => $state:ty),*] start $start:expr; take |$s:ident, $x:ident| $take:expr;
     join |$a:ident, $b:ident| $join:expr; finish |$self:ident, $f:ident, $count:ident| $finish:expr) => {
        #[derive(Clone, Copy)]
        struct $name<In>(std::marker::PhantomData<In>);
        $(impl Reducer for $name<$in> {
            type In = $in;
            type Out = $state;
            type Second = $state;
            type State = $state;
            fn new(_: f64) -> Self {
                Self(std::marker::PhantomData)
            }
            fn start(self) -> $state {
                $start
            }
            #[inline(always)]
            fn take<I: Isa>(self, state: $state, _: i64, values: &[$in]) -> $state {
                let part = fold(
                    values,
                    self.start(),
                    |$s: $state, $x: $in| { let $x = $x as $state; $take },
                    |$a: $state, $b: $state| $join,
                );
                self.combine(state, part)
            }
            #[inline(always)]
            fn take_each<I: Isa>(self, states: &mut [$state], _: i64, values: &[$in]) {
                for (state, &value) in states.iter_mut().zip(values) {
                    let ($s, $x) = (*state, value as $state);
                    *state = $take;
                }
            }
            fn combine(self, $a: $state, $b: $state) -> $state {
                $join
            }
            fn finish($self, $f: $state, $count: i64) -> ($state, $state) {
                let value = $finish;
                (value, value)
            }
        })*
    };
}

folds!(Sum[f32 => f64, f64 => f64] start 0.0; take |s, x| s + x; join |a, b| a + b; finish |self, f, _count| f);
folds!(SumInt[i64 => i64] start 0; take |s, x| s.wrapping_add(x); join |a, b| a.wrapping_add(b); finish |self, f, _count| f);
folds!(Mean[f32 => f64, f64 => f64] start 0.0; take |s, x| s + x; join |a, b| a + b; finish |self, f, count| f / count as f64);
folds!(Prod[f32 => f64, f64 => f64] start 1.0; take |s, x| s * x; join |a, b| a * b; finish |self, f, _count| f);
folds!(ProdInt[i64 => i64] start 1; take |s, x| s.wrapping_mul(x); join |a, b| a.wrapping_mul(b); finish |self, f, _count| f);
folds!(Norm1[f32 => f64, f64 => f64] start 0.0; take |s, x| s + x.abs(); join |a, b| a + b; finish |self, f, _count| f);
folds!(Norm2[f32 => f64, f64 => f64] start 0.0; take |s, x| s + x * x; join |a, b| a + b; finish |self, f, _count| f.sqrt());
folds!(NormMax[f32 => f64, f64 => f64] start 0.0;
    take |s, x| if x.abs() > s || x.is_nan() { x.abs() } else { s };
    join |a, b| if b > a || b.is_nan() { b } else { a }; finish |self, f, _count| f);

/// Whether any values are true, or negated, whether not all are. The state counts them.
#[derive(Clone, Copy)]
struct Truth<In, const ALL: bool>(std::marker::PhantomData<In>);

impl<In: Compute, const ALL: bool> Reducer for Truth<In, ALL> {
    type In = In;
    type Out = i32;
    type Second = i32;
    type State = u8;
    fn new(_: f64) -> Self {
        Self(std::marker::PhantomData)
    }
    fn start(self) -> u8 {
        u8::from(ALL)
    }
    #[inline(always)]
    fn take<I: Isa>(self, state: u8, _: i64, values: &[In]) -> u8 {
        let part = fold(
            values,
            self.start(),
            |s, x| {
                if ALL {
                    s & u8::from(x != In::default())
                } else {
                    s | u8::from(x != In::default())
                }
            },
            |a, b| if ALL { a & b } else { a | b },
        );
        self.combine(state, part)
    }
    #[inline(always)]
    fn take_each<I: Isa>(self, states: &mut [u8], _: i64, values: &[In]) {
        for (state, value) in states.iter_mut().zip(values) {
            *state = self.combine(*state, u8::from(*value != In::default()));
        }
    }
    fn combine(self, a: u8, b: u8) -> u8 {
        if ALL { a & b } else { a | b }
    }
    fn finish(self, state: u8, _: i64) -> (i32, i32) {
        (i32::from(state), i32::from(state))
    }
}

/// Variance, or its root: count, mean and sum of squared deviations (Chan, Golub and LeVeque 1979).
#[derive(Clone, Copy)]
struct Variance<In, const ROOT: bool> {
    correction: f64,
    input: std::marker::PhantomData<In>,
}

#[derive(Clone, Copy)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

macro_rules! variance {
    ($($in:ty),*) => {$(
        impl<const ROOT: bool> Reducer for Variance<$in, ROOT> {
            type In = $in;
            type Out = f64;
            type Second = f64;
            type State = Moments;
            fn new(correction: f64) -> Self {
                Self { correction, input: std::marker::PhantomData }
            }
            fn start(self) -> Moments {
                Moments { count: 0.0, mean: 0.0, squares: 0.0 }
            }
            #[inline(always)]
            fn take<I: Isa>(self, state: Moments, _: i64, values: &[$in]) -> Moments {
                let count = values.len() as f64;
                if count == 0.0 {
                    return state;
                }
                let sum = fold(values, 0.0, |s, x| s + x as f64, |a, b| a + b);
                let mean = sum / count;
                let squares = fold(
                    values,
                    0.0,
                    |s, x| { let d = x as f64 - mean; s + d * d },
                    |a, b| a + b,
                );
                self.combine(state, Moments { count, mean, squares })
            }
            #[inline(always)]
            fn take_each<I: Isa>(self, states: &mut [Moments], _: i64, values: &[$in]) {
                // All states of a row have the same count.
                let inverse = states.first().map_or(1.0, |state| 1.0 / (state.count + 1.0));
                for (state, &value) in states.iter_mut().zip(values) {
                    let from_old = value as f64 - state.mean;
                    state.count += 1.0;
                    state.mean += from_old * inverse;
                    state.squares += from_old * (value as f64 - state.mean);
                }
            }
            fn combine(self, a: Moments, b: Moments) -> Moments {
                if a.count == 0.0 {
                    return b;
                }
                if b.count == 0.0 {
                    return a;
                }
                let count = a.count + b.count;
                let between = b.mean - a.mean;
                Moments {
                    count,
                    mean: a.mean + between * (b.count / count),
                    squares: a.squares + b.squares + between * between * (a.count * b.count / count),
                }
            }
            fn finish(self, state: Moments, count: i64) -> (f64, f64) {
                let mean = if count == 0 { f64::NAN } else { state.mean };
                let variance = state.squares / (state.count - self.correction).max(0.0);
                (if ROOT { variance.sqrt() } else { variance }, mean)
            }
        }
    )*};
}
variance!(f32, f64);

/// The kernels of an operator by the class of the input.
struct Kernels {
    f32: KernelFn,
    f64: KernelFn,
    int: Option<KernelFn>,
}

fn plan_by_input(
    kernels: &Kernels,
    outputs: Outputs,
    param: f64,
    call: &Call<'_>,
    plan: &mut Plan,
) -> Result<()> {
    let Some(input) = call.inputs.first() else {
        return invalid("0 inputs, 1 is expected");
    };
    let kernel = match class_of(input.dtype()) {
        Some(Class::F32) => Some(kernels.f32),
        Some(Class::F64) => Some(kernels.f64),
        Some(Class::I32 | Class::I64) => kernels.int,
        None => None,
    };
    let Some(kernel) = kernel else {
        return unsupported(format!("not defined for {}", input.dtype()));
    };
    for output in call.outputs {
        if is_float(input.dtype()) && !is_float(output.dtype())
            || class_of(output.dtype()).is_none()
        {
            return unsupported(format!("from {} to {}", input.dtype(), output.dtype()));
        }
    }
    Reduction {
        kernel,
        ordered: false,
        outputs,
        empty: true,
        param,
    }
    .plan(call, plan)
}

fn no_scalars(call: &Call<'_>) -> Result<()> {
    if call.scalars.is_empty() {
        Ok(())
    } else {
        invalid("no scalars are expected")
    }
}

macro_rules! sums {
    ($name:literal, $reducer:ident, $int:expr) => {
        Definition {
            name: $name,
            plan: |call, plan| {
                const KERNELS: Kernels = Kernels {
                    f32: kernel::<$reducer<f32>>,
                    f64: kernel::<$reducer<f64>>,
                    int: $int,
                };
                no_scalars(call)?;
                plan_by_input(&KERNELS, Outputs::First, 0.0, call, plan)
            },
        }
    };
}

fn plan_norm(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let [order] = call.scalars else {
        return invalid("1 scalar, the order of the norm, is expected");
    };
    let order = order.to_f64();
    let kernels = if order == 1.0 {
        Kernels {
            f32: kernel::<Norm1<f32>>,
            f64: kernel::<Norm1<f64>>,
            int: None,
        }
    } else if order == 2.0 {
        Kernels {
            f32: kernel::<Norm2<f32>>,
            f64: kernel::<Norm2<f64>>,
            int: None,
        }
    } else if order == f64::INFINITY {
        Kernels {
            f32: kernel::<NormMax<f32>>,
            f64: kernel::<NormMax<f64>>,
            int: None,
        }
    } else {
        return unsupported("norms of another order than 1, 2 and infinity");
    };
    plan_by_input(&kernels, Outputs::First, 0.0, call, plan)
}

fn plan_variance<const ROOT: bool>(call: &Call<'_>, plan: &mut Plan) -> Result<()>
where
    Variance<f32, ROOT>: Reducer,
    Variance<f64, ROOT>: Reducer,
{
    let correction = match call.scalars {
        [] => 1.0,
        [correction] => correction.to_f64(),
        _ => return invalid("1 scalar at most, the correction, is expected"),
    };
    let kernels = Kernels {
        f32: kernel::<Variance<f32, ROOT>>,
        f64: kernel::<Variance<f64, ROOT>>,
        int: None,
    };
    let outputs = if call.outputs.len() == 2 {
        Outputs::Both
    } else {
        Outputs::First
    };
    plan_by_input(&kernels, outputs, correction, call, plan)
}

fn plan_truth<const ALL: bool>(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    no_scalars(call)?;
    let Some(input) = call.inputs.first() else {
        return invalid("0 inputs, 1 is expected");
    };
    let kernel = match class_of(input.dtype()) {
        Some(Class::F32) => kernel::<Truth<f32, ALL>>,
        Some(Class::F64) => kernel::<Truth<f64, ALL>>,
        Some(Class::I32) => kernel::<Truth<i32, ALL>>,
        Some(Class::I64) => kernel::<Truth<i64, ALL>>,
        None => return unsupported(format!("not defined for {}", input.dtype())),
    };
    let reduction = Reduction {
        kernel,
        ordered: false,
        outputs: Outputs::First,
        empty: true,
        param: 0.0,
    };
    reduction.plan(call, plan)
}

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    sums!(c"sum", Sum, Some(kernel::<SumInt<i64>>)),
    sums!(c"mean", Mean, None),
    sums!(c"prod", Prod, Some(kernel::<ProdInt<i64>>)),
    Definition {
        name: c"norm",
        plan: plan_norm,
    },
    Definition {
        name: c"var",
        plan: plan_variance::<false>,
    },
    Definition {
        name: c"std",
        plan: plan_variance::<true>,
    },
    Definition {
        name: c"any",
        plan: plan_truth::<false>,
    },
    Definition {
        name: c"all",
        plan: plan_truth::<true>,
    },
];
