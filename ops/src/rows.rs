//! Operators that work along one dimension: softmax, log-softmax and their gradients, cumulative sums.
//!
//! One thread reads, computes and writes each row, and threads share the rows. A row that is not dense, or not of the
//! type that is computed in, is copied to a buffer and back.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use bytemuck::{Pod, Zeroable};
use outrigger_device::Code;

use crate::call::{Call, Tensor};
use crate::convert::{Class, Compute, class_of, is_float};
use crate::cursor::Cursor;
use crate::elementwise::real::Real;
use crate::error::{Result, invalid, unsupported};
use crate::geometry::{Dim, Geometry, MAX_OPERANDS, checked_size};
use crate::isa::{Isa, Vectorised, dispatch};
use crate::lanes::{LANES, fold, fold_pairs};
use crate::memory::{ArgumentBlock, Base, Reader, Writer, read_dims};
use crate::parallel;
use crate::plan::{KernelFn, Plan};
use crate::registry::Definition;

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"softmax",
        plan: plan_rows::<1, Softmax>,
    },
    Definition {
        name: c"log_softmax",
        plan: plan_rows::<1, LogSoftmax>,
    },
    Definition {
        name: c"softmax_backward",
        plan: plan_rows::<2, SoftmaxBackward>,
    },
    Definition {
        name: c"log_softmax_backward",
        plan: plan_rows::<2, LogSoftmaxBackward>,
    },
    Definition {
        name: c"cumsum",
        plan: plan_rows::<1, CumulativeSum>,
    },
];

/// The function of the rows of N inputs.
trait RowFunction<const N: usize>: 'static {
    /// Picoseconds per element.
    const COST: u32;
    /// The kernels by class: f32, f64, i64.
    const KERNELS: [Option<KernelFn>; 3];
}

/// The function of a row, in one type.
trait RowMap<C: Compute, const N: usize>: 'static {
    /// Computes a row. All rows have the same length, which is at least 1. Writes all of `out`.
    fn apply<I: Isa>(inputs: [&[C]; N], out: &mut [MaybeUninit<C>]);
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    /// Output, then inputs.
    addresses: [u64; 3],
    strides: [i64; 3],
    length: i64,
    rows: i64,
    dtypes: [u8; 4],
    rank: u32,
}

fn plan_rows<const N: usize, F: RowFunction<N>>(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([output], [dim]) = (call.outputs, call.scalars) else {
        return invalid("1 output and 1 scalar, the dimension, are expected");
    };
    if call.inputs.len() != N {
        return invalid(format!("{} inputs, {N} are expected", call.inputs.len()));
    }
    let rank = output.rank();
    let dim = dim.to_i64();
    if dim != 0 && !(0..rank as i64).contains(&dim) {
        return invalid(format!("dimension {dim} is not one of 0..{rank}"));
    }
    let class = match class_of(output.dtype()) {
        Some(Class::F32) => 0,
        Some(Class::F64) => 1,
        Some(Class::I64) => 2,
        _ => return unsupported(format!("not defined for {}", output.dtype())),
    };
    for input in call.inputs {
        if input.sizes() != output.sizes() {
            return invalid(format!(
                "sizes differ: {:?} and {:?}",
                input.sizes(),
                output.sizes()
            ));
        }
        let fits = if class == 2 {
            !is_float(input.dtype())
        } else {
            true
        };
        if class_of(input.dtype()).is_none() || !fits {
            return unsupported(format!("from {} to {}", input.dtype(), output.dtype()));
        }
    }
    let Some(kernel) = F::KERNELS[class] else {
        return unsupported(format!("not defined for {}", output.dtype()));
    };
    let operand = |k: usize| -> Option<&Tensor<'_>> {
        if k == 0 {
            Some(output)
        } else {
            call.inputs.get(k - 1)
        }
    };
    let mut header = Header {
        length: 1,
        ..Header::zeroed()
    };
    let mut sizes = [0; 3];
    for (k, size) in sizes.iter_mut().enumerate() {
        let Some(tensor) = operand(k) else { continue };
        *size = checked_size(tensor)?;
        header.addresses[k] = tensor.address();
        header.dtypes[k] = tensor.dtype().0 as u8;
        if rank > 0 {
            header.strides[k] = tensor.strides()[dim as usize] * *size;
        }
    }
    let mut geometry = Geometry::empty();
    for d in (0..rank).rev() {
        if d as i64 == dim {
            header.length = output.sizes()[d];
            continue;
        }
        let mut strides = [0; MAX_OPERANDS];
        for (k, stride) in strides[..3].iter_mut().enumerate() {
            *stride = operand(k).map_or(0, |tensor| tensor.strides()[d] * sizes[k]);
        }
        geometry.add(
            Dim {
                size: output.sizes()[d],
                strides,
            },
            false,
        )?;
    }
    geometry.finish(3);
    if geometry.numel * header.length == 0 {
        return Ok(());
    }
    header.rows = geometry.numel;
    header.rank = geometry.rank as u32;
    plan.kernel = kernel;
    plan.cost_ns = crate::plan::cost_ns(geometry.numel.saturating_mul(header.length), F::COST);
    plan.push(&header);
    geometry.push(3, plan);
    Ok(())
}

struct Row<'a, C, const N: usize, M> {
    inputs: [&'a [C]; N],
    out: &'a mut [MaybeUninit<C>],
    map: std::marker::PhantomData<M>,
}

impl<C: Compute, const N: usize, M: RowMap<C, N>> Vectorised for Row<'_, C, N, M> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        M::apply::<I>(self.inputs, self.out);
    }
}

/// The kernel of a row function.
///
/// # Safety
/// `args` is a block that `plan_rows` made for this kernel, and its operands, moved by `bias`, lie in
/// live memory; the output overlaps inputs only element for element.
unsafe extern "C" fn kernel<C: Compute, const N: usize, M: RowMap<C, N>>(
    args: *const c_void,
    args_size: u32,
    bias: i64,
) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, tail)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let (Some((dims, rank)), Some(writer)) = (
        read_dims(tail, h.rank as usize, 3),
        Writer::<C>::new(h.dtypes[0]),
    ) else {
        return Code::INTERNAL.0;
    };
    let mut readers = [None; N];
    for (k, reader) in readers.iter_mut().enumerate() {
        *reader = Reader::<C>::new(h.dtypes[k + 1]);
    }
    if readers.iter().any(Option::is_none) {
        return Code::INTERNAL.0;
    }
    let bases = h.addresses.map(|address| Base::new(address, bias));
    let length = h.length as usize;
    let grain = ((1 << 14) / h.length).max(1);
    parallel::for_range(0, h.rows, grain, &|begin, end| {
        let mut buffers = [const { Vec::<C>::new() }; N];
        let mut result = Vec::<C>::new();
        let mut cursor = Cursor::at(&dims[..rank], begin);
        for _ in begin..end {
            let mut inputs: [&[C]; N] = [&[]; N];
            for (k, ((input, buffer), reader)) in inputs
                .iter_mut()
                .zip(&mut buffers)
                .zip(readers.iter().flatten())
                .enumerate()
            {
                let from = bases[k + 1].at(cursor.offset(k + 1));
                buffer.reserve(length);
                let room = &mut buffer.spare_capacity_mut()[..length];
                // SAFETY: this function's contract: this is a row of this input.
                *input = unsafe { reader.row(from, h.strides[k + 1], room) };
            }
            let to = bases[0].at(cursor.offset(0));
            // If the output is an input, results wait in a buffer until the inputs are read.
            let apart = inputs
                .iter()
                .all(|input| input.as_ptr().cast::<u8>() != to.cast_const());
            let place = if apart {
                // SAFETY: the row of the output is this thread's, and no input is there.
                unsafe { writer.place(to, h.strides[0], length) }
            } else {
                None
            };
            let map = std::marker::PhantomData::<M>;
            if let Some(out) = place {
                dispatch(Row { inputs, out, map });
            } else {
                result.reserve(length);
                dispatch(Row {
                    inputs,
                    out: &mut result.spare_capacity_mut()[..length],
                    map,
                });
                // SAFETY: a row function writes all of its row.
                unsafe { result.set_len(length) };
                // SAFETY: the row of the output is this thread's. The inputs are not read any more.
                unsafe { writer.row(&result, to, h.strides[0]) };
                result.clear();
            }
            cursor.advance(1);
        }
    });
    Code::OK.0
}

macro_rules! row_functions {
    ($($name:ident, $n:literal, $cost:literal, $int:expr;)*) => {$(
        struct $name;
        impl RowFunction<$n> for $name {
            const COST: u32 = $cost;
            const KERNELS: [Option<KernelFn>; 3] =
                [Some(kernel::<f32, $n, $name>), Some(kernel::<f64, $n, $name>), $int];
        }
    )*};
}
row_functions! {
    Softmax, 1, 1000, None;
    LogSoftmax, 1, 1000, None;
    SoftmaxBackward, 2, 500, None;
    LogSoftmaxBackward, 2, 1000, None;
    CumulativeSum, 1, 1000, Some(kernel::<i64, 1, CumulativeSum>);
}

/// The largest value; NaN if there is one.
#[inline(always)]
fn largest<C: Compute>(values: &[C]) -> C {
    let bigger = |a: C, b: C| {
        #[expect(clippy::eq_op, reason = "NaN is what differs from itself")]
        let take = (a > b) | (a != a);
        if take { a } else { b }
    };
    let mut best = [values[0]; LANES];
    let (blocks, rest) = values.as_chunks::<LANES>();
    for block in blocks {
        for (best, value) in best.iter_mut().zip(block) {
            *best = bigger(*value, *best);
        }
    }
    best.into_iter()
        .chain(rest.iter().copied())
        .reduce(bigger)
        .unwrap_or_default()
}

macro_rules! row_maps {
    ($($t:ident),*) => {$(
        impl RowMap<$t, 1> for Softmax {
            #[inline(always)]
            fn apply<I: Isa>([x]: [&[$t]; 1], out: &mut [MaybeUninit<$t>]) {
                let x = &x[..out.len()];
                let max = largest(x);
                // In a row of infinities x - max is NaN, and so is the result, as it should be.
                for (out, x) in out.iter_mut().zip(x) {
                    out.write((*x - max).exp_::<I>());
                }
                // SAFETY: the loop above wrote all values.
                let out = unsafe { &mut *(std::ptr::from_mut(out) as *mut [$t]) };
                let sum = fold(out, 0.0, |s, x| s + f64::from(x), |a, b| a + b);
                let scale = (1.0 / sum) as $t;
                for value in out {
                    *value *= scale;
                }
            }
        }
        impl RowMap<$t, 1> for LogSoftmax {
            #[inline(always)]
            fn apply<I: Isa>([x]: [&[$t]; 1], out: &mut [MaybeUninit<$t>]) {
                let x = &x[..out.len()];
                let max = largest(x);
                let sum = fold(
                    x,
                    0.0,
                    |s, x| s + f64::from((x - max).exp_::<I>()),
                    |a, b| a + b,
                );
                let log = sum.ln() as $t;
                for (out, x) in out.iter_mut().zip(x) {
                    out.write(*x - max - log);
                }
            }
        }
        impl RowMap<$t, 2> for SoftmaxBackward {
            #[inline(always)]
            fn apply<I: Isa>([grad, y]: [&[$t]; 2], out: &mut [MaybeUninit<$t>]) {
                let (grad, y) = (&grad[..out.len()], &y[..out.len()]);
                let dot = fold_pairs(
                    grad,
                    y,
                    0.0,
                    |s, g, y| s + f64::from(g) * f64::from(y),
                    |a, b| a + b,
                ) as $t;
                for (out, (grad, y)) in out.iter_mut().zip(grad.iter().zip(y)) {
                    out.write((*grad - dot) * *y);
                }
            }
        }
        impl RowMap<$t, 2> for LogSoftmaxBackward {
            #[inline(always)]
            fn apply<I: Isa>([grad, y]: [&[$t]; 2], out: &mut [MaybeUninit<$t>]) {
                let (grad, y) = (&grad[..out.len()], &y[..out.len()]);
                let sum = fold(grad, 0.0, |s, g| s + f64::from(g), |a, b| a + b) as $t;
                for (out, (grad, y)) in out.iter_mut().zip(grad.iter().zip(y)) {
                    out.write(*grad - y.exp_::<I>() * sum);
                }
            }
        }
        impl RowMap<$t, 1> for CumulativeSum {
            #[inline(always)]
            fn apply<I: Isa>([x]: [&[$t]; 1], out: &mut [MaybeUninit<$t>]) {
                let mut sum = 0.0f64;
                for (out, x) in out.iter_mut().zip(x) {
                    sum += f64::from(*x);
                    out.write(sum as $t);
                }
            }
        }
    )*};
}
row_maps!(f32, f64);

impl RowMap<i64, 1> for CumulativeSum {
    fn apply<I: Isa>([x]: [&[i64]; 1], out: &mut [MaybeUninit<i64>]) {
        let mut sum = 0i64;
        for (out, x) in out.iter_mut().zip(x) {
            sum = sum.wrapping_add(*x);
            out.write(sum);
        }
    }
}
