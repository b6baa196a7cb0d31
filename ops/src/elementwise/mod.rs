//! Elementwise operators: how a call is planned, and the kernel that runs it.
//!
//! An operator has a function of one to three values (a [`Map`]) for each class that it supports, and a rule for the
//! class that a call is computed in. The engine does broadcasting, strides, conversion and threads, so a function sees
//! values only.

mod arithmetic;
pub(crate) mod engine;
mod functions;
pub(crate) mod real;
mod select;

pub(crate) use arithmetic::OPERATORS as ARITHMETIC;
use engine::BLOCK;
pub(crate) use functions::OPERATORS as FUNCTIONS;
pub(crate) use select::OPERATORS as SELECTION;

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};

use engine::{Header, IMMEDIATE, code};

use crate::call::{Call, Scalar, Tensor};
use crate::convert::{
    Class, Compute, bf16_to_f32, class_of, f16_to_f32, f32_to_bf16, f32_to_f16, is_float,
};
use crate::error::{Result, invalid, unsupported};
use crate::geometry::{self, MAX_OPERANDS};
use crate::isa::{Isa, Vectorised, dispatch};
use crate::memory::ArgumentBlock;
use crate::plan::{KernelFn, Plan};
use outrigger_device::{Code, DType};

/// A function of N values.
pub(crate) trait Map<const N: usize>: Copy + Send + Sync + 'static {
    /// The values that the function takes.
    type In: Compute;
    /// The value that the function returns.
    type Out: Compute;
    /// Whether [`Map::fixup`] must see each element.
    const FIXUP: bool = false;
    /// The function with its numbers from the argument block.
    fn new(params: [u64; 4]) -> Self;
    /// The value. Must be `#[inline(always)]`, without branches that would keep loops from being vectorised.
    fn apply<I: Isa>(self, x: [Self::In; N]) -> Self::Out;
    /// The value for arguments for which `apply` is not exact enough, which are rare.
    fn fixup(self, _: [Self::In; N]) -> Option<Self::Out> {
        None
    }
}

struct Block<'a, F: Map<N>, const N: usize> {
    function: F,
    inputs: [&'a [F::In]; N],
    out: &'a mut [MaybeUninit<F::Out>],
}

impl<F: Map<N>, const N: usize> Vectorised for Block<'_, F, N> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let n = self.out.len();
        // The lengths are equal, and the compiler knows it, so the loop has no bounds to check.
        let inputs = self.inputs.map(|input| &input[..n]);
        for (index, out) in self.out.iter_mut().enumerate() {
            let x = std::array::from_fn(|k| inputs[k][index]);
            out.write(self.function.apply::<I>(x));
        }
        if F::FIXUP {
            for (index, out) in self.out.iter_mut().enumerate() {
                let x = std::array::from_fn(|k| inputs[k][index]);
                if let Some(value) = self.function.fixup(x) {
                    out.write(value);
                }
            }
        }
    }
}

/// The kernel of a function.
///
/// # Safety
/// `args` is a block of `args_size` bytes that [`Op::plan`] made for this kernel, and its operands,
/// moved by `bias`, lie in live memory.
pub(crate) unsafe extern "C" fn kernel<F: Map<N>, const N: usize>(
    args: *const c_void,
    args_size: u32,
    bias: i64,
) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((header, tail)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let function = F::new(header.params);
    let block = |_: i64, inputs: [&[F::In]; N], out: &mut [MaybeUninit<F::Out>]| {
        dispatch(Block {
            function,
            inputs,
            out,
        });
    };
    // SAFETY: the header is of a plan for this kernel, hence for these types. This function's contract: the operands
    // are live.
    unsafe { engine::run::<F::In, F::Out, N>(&header, tail, bias, &block) }.0
}

/// The rule for the class that a call is computed in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The element type of the output.
    Output,
    /// The element types of the inputs. The output is bool.
    Inputs,
}

/// The properties of an operator that a plan needs.
pub(crate) struct Op {
    /// The number of operands of the function.
    pub(crate) operands: usize,
    /// Whether the first scalar may take the place of the last operand.
    pub(crate) scalar_operand: bool,
    /// The values of the function's numbers that a call leaves out.
    pub(crate) defaults: &'static [Scalar],
    /// The number of the function's numbers that a call must have.
    pub(crate) required: usize,
    pub(crate) rule: Rule,
    /// The kernels by class: f32, f64, i32, i64.
    pub(crate) kernels: [Option<KernelFn>; 4],
    /// The kernel for bool outputs, if not the i32 kernel.
    pub(crate) on_bool: Option<KernelFn>,
    /// Picoseconds per element on one core.
    pub(crate) cost: u32,
}

impl Op {
    /// Checks a call, and fills its plan.
    #[inline]
    pub(crate) fn plan(&self, call: &Call<'_>, plan: &mut Plan) -> Result<()> {
        let [output] = call.outputs else {
            return invalid(format!("{} outputs, 1 is expected", call.outputs.len()));
        };
        let given = call.inputs.len();
        let immediate = self.scalar_operand && given + 1 == self.operands;
        if given != self.operands && !immediate {
            return self.wrong_count(given);
        }
        let (operand, params) = match call.scalars.split_first() {
            Some((first, rest)) if immediate => (Some(*first), rest),
            None if immediate => return self.wrong_count(given),
            _ => (None, call.scalars),
        };
        if params.len() < self.required || params.len() > self.defaults.len() {
            return invalid(format!(
                "{} scalars, {} to {} are expected",
                call.scalars.len(),
                self.required + usize::from(immediate),
                self.defaults.len() + usize::from(immediate),
            ));
        }
        let class = match self.rule {
            Rule::Output => class_of_output(output, call.inputs, operand)?,
            Rule::Inputs => class_of_inputs(output, call.inputs, operand)?,
        };
        let kernel = match self.on_bool {
            Some(kernel) if output.dtype() == DType::BOOL => Some(kernel),
            _ => self.kernels[class as usize],
        };
        let Some(kernel) = kernel else {
            return unsupported(format!("not defined for {class:?} elements"));
        };

        let shape = geometry::shape(output, call.inputs)?;
        let mut header = Header {
            numel: shape.numel,
            addresses: [output.address(), 0, 0, 0],
            params: [0; 4],
            dtypes: [code(output.dtype()), 0, 0, 0],
            rank: 1,
            grain_blocks: (8_000_000 / self.cost / BLOCK as u32).clamp(1, 32) as u16,
        };
        for (k, input) in call.inputs.iter().enumerate() {
            header.addresses[k + 1] = input.address();
            header.dtypes[k + 1] = code(input.dtype());
        }
        if let Some(operand) = operand {
            let operand = match self.rule {
                Rule::Inputs => rounded_like(operand, call.inputs[0].dtype()),
                Rule::Output => operand,
            };
            header.addresses[self.operands] = word(class, operand);
            header.dtypes[self.operands] = IMMEDIATE;
        }
        for (k, default) in self.defaults.iter().enumerate() {
            header.params[k] = word(class, params.get(k).copied().unwrap_or(*default));
        }
        plan.cost_ns = crate::plan::cost_ns(shape.numel, self.cost);
        match shape.dense() {
            Some(numbers) => {
                plan.push(&header);
                plan.push_first(&numbers, self.operands + 2);
            }
            None => {
                let geometry = geometry::general(output, call.inputs, &shape)?;
                header.rank = geometry.rank as u16;
                plan.push(&header);
                geometry.push(self.operands + 1, plan);
            }
        }
        if shape.numel > 0 {
            plan.kernel = kernel;
        }
        Ok(())
    }

    #[cold]
    fn wrong_count(&self, given: usize) -> Result<()> {
        let or_scalar = if self.scalar_operand {
            ", the last of them as tensor or scalar"
        } else {
            ""
        };
        invalid(format!(
            "{given} inputs, {} are expected{or_scalar}",
            self.operands
        ))
    }
}

#[inline]
fn word(class: Class, scalar: Scalar) -> u64 {
    match class {
        Class::F32 => f32::to_word(scalar),
        Class::F64 => f64::to_word(scalar),
        Class::I32 => i32::to_word(scalar),
        Class::I64 => i64::to_word(scalar),
    }
}

#[inline]
fn class_of_output(
    output: &Tensor<'_>,
    inputs: &[Tensor<'_>],
    operand: Option<Scalar>,
) -> Result<Class> {
    let Some(class) = class_of(output.dtype()) else {
        return unsupported(format!("no arithmetic on {}", output.dtype()));
    };
    let mut has_float = operand.is_some_and(Scalar::is_float);
    for input in inputs {
        has_float |= is_float(input.dtype());
        if class_of(input.dtype()).is_none() {
            return unsupported(format!("no arithmetic on {}", input.dtype()));
        }
    }
    if has_float && matches!(class, Class::I32 | Class::I64) {
        return unsupported("floating-point operands with an integer output");
    }
    Ok(class)
}

/// The class of a comparison. Operands with dimensions decide. Others only raise it from integers to floats, as PyTorch
/// promotes.
#[inline]
fn class_of_inputs(
    output: &Tensor<'_>,
    inputs: &[Tensor<'_>],
    operand: Option<Scalar>,
) -> Result<Class> {
    if output.dtype() != DType::BOOL {
        return unsupported("the output of this operator is bool");
    }
    let (mut with_dims, mut without) = (None, None);
    for input in inputs {
        let Some(class) = class_of(input.dtype()) else {
            return unsupported(format!("no arithmetic on {}", input.dtype()));
        };
        let slot = if input.rank() == 0 {
            &mut without
        } else {
            &mut with_dims
        };
        *slot = Some(slot.map_or(class, |other| wider(class, other)));
    }
    let mut class = match (with_dims, without) {
        (Some(dims), Some(other)) => match (dims, other) {
            (Class::F32 | Class::F64, _) => dims,
            _ => wider(dims, other),
        },
        (Some(class), None) | (None, Some(class)) => class,
        (None, None) => return invalid("no inputs"),
    };
    match operand {
        Some(Scalar::F64(_)) if matches!(class, Class::I32 | Class::I64) => class = Class::F32,
        Some(Scalar::I64(value)) if class == Class::I32 && i32::try_from(value).is_err() => {
            class = Class::I64;
        }
        _ => {}
    }
    Ok(class)
}

#[inline]
fn wider(a: Class, b: Class) -> Class {
    match (a, b) {
        (Class::F64, _) | (_, Class::F64) => Class::F64,
        (Class::F32, _) | (_, Class::F32) => Class::F32,
        (Class::I64, _) | (_, Class::I64) => Class::I64,
        _ => Class::I32,
    }
}

/// A scalar as an element of a half-precision tensor would hold it.
#[inline]
fn rounded_like(scalar: Scalar, dtype: DType) -> Scalar {
    match dtype {
        DType::F16 => Scalar::F64(f64::from(f16_to_f32(f32_to_f16(scalar.to_f64() as f32)))),
        DType::BF16 => Scalar::F64(f64::from(bf16_to_f32(f32_to_bf16(scalar.to_f64() as f32)))),
        _ => scalar,
    }
}

const _: () = assert!(size_of::<Header>().is_multiple_of(8) && MAX_OPERANDS == 4);

/// Declares functions: name, classes, numbers, operands, and body. In a body `I` is the instruction set, and `T` the
/// type that is computed in. `truth` functions return bool.
macro_rules! maps {
    ($name:ident[$($t:ident),*] $p:tt $n:literal $x:tt -> $out:ident $body:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name<T>([T; 4]);
        $($crate::elementwise::maps!(@one $name $t $p $n $x $out $body);)*
    };
    (@one $name:ident $t:ident ($($p:ident),*) $n:literal $x:tt $out:ident $body:expr) => {
        const _: () = {
            #[allow(dead_code, reason = "not every body names its type")]
            type T = $t;
            impl $crate::elementwise::Map<$n> for $name<$t> {
                type In = $t;
                type Out = $crate::elementwise::maps!(@out $out $t);
                #[inline(always)]
                fn new(params: [u64; 4]) -> Self {
                    Self(params.map(<$t as $crate::convert::Compute>::from_word))
                }
                #[inline(always)]
                fn apply<I: $crate::isa::Isa>(self, $x: [$t; $n]) -> Self::Out {
                    let [$($p,)* ..] = self.0;
                    $body
                }
            }
        };
    };
    (@out same $t:ident) => { $t };
    (@out truth $t:ident) => { u8 };
}
pub(crate) use maps;

/// Declares operators over functions, for `Definition` lists.
macro_rules! operator {
    ($name:literal, $n:literal, $rule:ident, $cost:literal,
     [$($f32:ty)?; $($f64:ty)?; $($i32:ty)?; $($i64:ty)?] $(, $field:ident: $value:expr)*) => {
        $crate::registry::Definition {
            name: $name,
            plan: |call, plan| {
                #[allow(clippy::needless_update, reason = "only some operators set all fields")]
                static OP: $crate::elementwise::Op = $crate::elementwise::Op {
                    $($field: $value,)*
                    ..$crate::elementwise::Op {
                        operands: $n,
                        scalar_operand: false,
                        defaults: &[],
                        required: 0,
                        rule: $crate::elementwise::Rule::$rule,
                        kernels: [
                            $crate::elementwise::operator!(@kernel $n $($f32)?),
                            $crate::elementwise::operator!(@kernel $n $($f64)?),
                            $crate::elementwise::operator!(@kernel $n $($i32)?),
                            $crate::elementwise::operator!(@kernel $n $($i64)?),
                        ],
                        on_bool: None,
                        cost: $cost,
                    }
                };
                OP.plan(call, plan)
            },
        }
    };
    (@kernel $n:literal) => { None };
    (@kernel $n:literal $f:ty) => { Some($crate::elementwise::kernel::<$f, $n>) };
}
pub(crate) use operator;
