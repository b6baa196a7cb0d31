//! Layer normalisation over trailing dimensions, and its gradient.
//!
//! Operands are contiguous rows of the normalised elements. An optional operand that is absent is a tensor of dtype
//! INVALID. Means and deviations are accumulated in f64. Gradients of weight and bias are summed over fixed pieces of
//! rows, and the sums of pieces are added in order, so that they are the same for any number of threads.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::ops::{Mul, Sub};

use bytemuck::{Pod, Zeroable};
use outrigger_device::{Code, DType};

use crate::call::{Call, Tensor};
use crate::convert::{Class, Compute, class_of};
use crate::error::{Result, invalid, unsupported};
use crate::geometry::checked_size;
use crate::isa::{Isa, Vectorised, dispatch};
use crate::lanes::{fold, fold_pairs, fold_triples};
use crate::memory::{ArgumentBlock, Base, Reader, Slots, Writer};
use crate::parallel;
use crate::plan::Plan;
use crate::registry::Definition;

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"layer_norm",
        plan: plan_forward,
    },
    Definition {
        name: c"layer_norm_backward",
        plan: plan_backward,
    },
];

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    addresses: [u64; 8],
    dtypes: [u8; 8],
    rows: i64,
    length: i64,
    epsilon: f64,
}

/// Places in a header. Input, weight, mean and rstd mean the same forward and backward.
const INPUT: usize = 0;
const WEIGHT: usize = 1;
const BIAS: usize = 2;
const OUT: usize = 3;
const MEAN: usize = 4;
const RSTD: usize = 5;
const GRAD_WEIGHT: usize = 6;
const GRAD_BIAS: usize = 7;
/// Backward: the incoming gradient is in the place of the bias.
const GRAD: usize = BIAS;

/// The number of pieces that rows are cut into for sums over rows.
const PIECES: i64 = 16;

/// Rows that are summed in the type of the computation, before their sum is added to one in f64.
const FLUSH: u32 = 16;

fn plan_forward(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([input, weight, bias], [out, mean, rstd]) = (call.inputs, call.outputs) else {
        return invalid("inputs (input, weight, bias) and outputs (out, mean, rstd) are expected");
    };
    let [dims, epsilon] = call.scalars else {
        return invalid("scalars (normalized dimensions, eps) are expected");
    };
    let mut header = shape(input, dims.to_i64())?;
    header.epsilon = epsilon.to_f64();
    let total = header.rows * header.length;
    header.put(INPUT, input, total)?;
    header.put_optional(WEIGHT, weight, header.length)?;
    header.put_optional(BIAS, bias, header.length)?;
    header.put(OUT, out, total)?;
    header.put(MEAN, mean, header.rows)?;
    header.put(RSTD, rstd, header.rows)?;
    plan.kernel = match class_of(input.dtype()) {
        Some(Class::F32) => forward::<f32>,
        Some(Class::F64) => forward::<f64>,
        _ => return unsupported(format!("not defined for {}", input.dtype())),
    };
    plan.cost_ns = crate::plan::cost_ns(total, 700);
    plan.push(&header);
    Ok(())
}

fn plan_backward(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let [grad, input, mean, rstd, weight] = call.inputs else {
        return invalid("inputs (grad, input, mean, rstd, weight) are expected");
    };
    let ([grad_input, grad_weight, grad_bias], [dims]) = (call.outputs, call.scalars) else {
        return invalid(
            "outputs (grad_input, grad_weight, grad_bias) and 1 scalar, the number of normalized \
             dimensions, are expected",
        );
    };
    let mut header = shape(input, dims.to_i64())?;
    let total = header.rows * header.length;
    header.put(GRAD, grad, total)?;
    header.put(INPUT, input, total)?;
    header.put(MEAN, mean, header.rows)?;
    header.put(RSTD, rstd, header.rows)?;
    header.put_optional(WEIGHT, weight, header.length)?;
    header.put_optional(OUT, grad_input, total)?;
    header.put_optional(GRAD_WEIGHT, grad_weight, header.length)?;
    header.put_optional(GRAD_BIAS, grad_bias, header.length)?;
    plan.kernel = match class_of(input.dtype()) {
        Some(Class::F32) => backward::<f32>,
        Some(Class::F64) => backward::<f64>,
        _ => return unsupported(format!("not defined for {}", input.dtype())),
    };
    plan.cost_ns = crate::plan::cost_ns(total, 1000);
    plan.push(&header);
    Ok(())
}

/// The number of rows and their length.
fn shape(input: &Tensor<'_>, dims: i64) -> Result<Header> {
    let rank = input.rank();
    if dims < 1 || dims > rank as i64 {
        return invalid(format!(
            "{dims} normalized dimensions, 1 to {rank} are expected"
        ));
    }
    let (outer, inner) = input.sizes().split_at(rank - dims as usize);
    Ok(Header {
        rows: outer.iter().product(),
        length: inner.iter().product(),
        ..Header::zeroed()
    })
}

impl Header {
    fn put(&mut self, place: usize, tensor: &Tensor<'_>, numel: i64) -> Result<()> {
        checked_size(tensor)?;
        if tensor.numel() != numel {
            return invalid(format!(
                "an operand has {} elements, {numel} are expected",
                tensor.numel()
            ));
        }
        if !tensor.is_contiguous() {
            return unsupported("operands that are not contiguous");
        }
        if !matches!(class_of(tensor.dtype()), Some(Class::F32 | Class::F64)) {
            return unsupported(format!("not defined for {}", tensor.dtype()));
        }
        self.addresses[place] = tensor.address();
        self.dtypes[place] = tensor.dtype().0 as u8;
        Ok(())
    }

    fn put_optional(&mut self, place: usize, tensor: &Tensor<'_>, numel: i64) -> Result<()> {
        if tensor.dtype() == DType::INVALID {
            Ok(())
        } else {
            self.put(place, tensor, numel)
        }
    }

    fn has(&self, place: usize) -> bool {
        self.dtypes[place] != DType::INVALID.0 as u8
    }
}

/// An operand at the time that the kernel runs: rows of values of one class.
struct Operand<C> {
    base: Base,
    size: i64,
    reader: Reader<C>,
    writer: Writer<C>,
}

impl<C: Compute> Operand<C> {
    /// Returns `None` if the operand is absent, or of a type without a class.
    fn new(h: &Header, place: usize, bias: i64) -> Option<Self> {
        let dtype = h.dtypes[place];
        Some(Self {
            base: Base::new(h.addresses[place], bias),
            size: DType(u32::from(dtype)).size()? as i64,
            reader: Reader::new(dtype)?,
            writer: Writer::new(dtype)?,
        })
    }

    /// Values from an index on. They are in `scratch` if they have to be converted.
    ///
    /// # Safety
    /// The values are elements of the operand, and nobody writes them while they are used.
    unsafe fn read<'s>(&self, index: i64, scratch: &'s mut [MaybeUninit<C>]) -> &'s [C] {
        // SAFETY: operands are contiguous. This function's contract: the elements exist, and nobody writes them.
        unsafe {
            self.reader
                .row(self.base.at(index * self.size), self.size, scratch)
        }
    }

    /// Writes values from an index on.
    ///
    /// # Safety
    /// The places are elements of the operand, and nobody else uses them meanwhile.
    unsafe fn write(&self, index: i64, values: &[C]) {
        // SAFETY: operands are contiguous. This function's contract: the elements exist, and nobody else uses them.
        unsafe {
            self.writer
                .row(values, self.base.at(index * self.size), self.size)
        };
    }
}

/// A number that rows are computed in.
pub(crate) trait Number: Compute + Mul<Output = Self> + Sub<Output = Self> {
    fn wide(self) -> f64;
    fn of(value: f64) -> Self;
    fn fma<I: Isa>(self, b: Self, c: Self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn of(value: f64) -> Self {
        value as f32
    }
    #[inline(always)]
    fn fma<I: Isa>(self, b: f32, c: f32) -> f32 {
        I::fma32(self, b, c)
    }
}

impl Number for f64 {
    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }
    #[inline(always)]
    fn of(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn fma<I: Isa>(self, b: f64, c: f64) -> f64 {
        I::fma64(self, b, c)
    }
}

struct ForwardRow<'a, C> {
    x: &'a [C],
    weight: &'a [C],
    bias: &'a [C],
    out: &'a mut [C],
    epsilon: f64,
}

impl<C: Number> Vectorised for ForwardRow<'_, C> {
    type Output = (f64, f64);
    #[inline(always)]
    fn run<I: Isa>(self) -> (f64, f64) {
        let n = self.x.len() as f64;
        let add = |a: f64, b: f64| a + b;
        let mean = fold(self.x, 0.0, |s, x: C| s + x.wide(), add) / n;
        let squares = |s, x: C| {
            let d = x.wide() - mean;
            s + d * d
        };
        let variance = fold(self.x, 0.0, squares, add) / n;
        let rstd = 1.0 / (variance + self.epsilon).sqrt();
        // The mean is subtracted first: x * rstd - mean * rstd would round even where x is the mean.
        let (shift, scale) = (C::of(mean), C::of(rstd));
        let affine = self.weight.iter().zip(self.bias);
        for ((out, x), (weight, bias)) in self.out.iter_mut().zip(self.x).zip(affine) {
            *out = ((*x - shift) * scale).fma::<I>(*weight, *bias);
        }
        (mean, rstd)
    }
}

/// # Safety
/// `args` is a block that `plan_forward` made, and its operands, moved by `bias`, lie in live memory.
unsafe extern "C" fn forward<C: Number>(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, _)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let operand = |place| Operand::<C>::new(&h, place, bias);
    let (Some(input), Some(output), Some(mean), Some(rstd)) =
        (operand(INPUT), operand(OUT), operand(MEAN), operand(RSTD))
    else {
        return Code::INTERNAL.0;
    };
    let length = h.length as usize;
    // SAFETY: this function's contract: weight and bias are live, if they are present.
    let (weight, shift) = unsafe {
        (
            all_or(operand(WEIGHT), length, 1.0),
            all_or(operand(BIAS), length, 0.0),
        )
    };
    let room = || vec![MaybeUninit::<C>::uninit(); length];
    let grain = ((1 << 14) / h.length.max(1)).max(1);
    parallel::for_range(0, h.rows, grain, &|begin, end| {
        let mut x_room = room();
        let mut result = vec![C::default(); length];
        for row in begin..end {
            // SAFETY: this function's contract: this row of the input is live.
            let x = unsafe { input.read(row * h.length, &mut x_room) };
            let (weight, bias, epsilon) = (&weight[..], &shift[..], h.epsilon);
            let out = &mut result[..];
            let (m, r) = dispatch(ForwardRow {
                x,
                weight,
                bias,
                out,
                epsilon,
            });
            // SAFETY: the results of this row are this thread's.
            unsafe {
                output.write(row * h.length, &result);
                mean.write(row, &[C::of(m)]);
                rstd.write(row, &[C::of(r)]);
            }
        }
    });
    Code::OK.0
}

/// All values of an operand; if the operand is absent, `length` times `value`.
///
/// # Safety
/// The operand lies in live memory, and nobody writes it meanwhile.
unsafe fn all_or<C: Number>(operand: Option<Operand<C>>, length: usize, value: f64) -> Vec<C> {
    let mut room = vec![MaybeUninit::uninit(); length];
    match operand {
        // SAFETY: this function's contract: the operand is live, and nobody writes it.
        Some(operand) => unsafe { operand.read(0, &mut room) }.to_vec(),
        None => vec![C::of(value); length],
    }
}

struct BackwardRow<'a, C> {
    grad: &'a [C],
    x: &'a [C],
    weight: &'a [C],
    mean: f64,
    rstd: f64,
    /// Gets the normalised row, and then the row's gradient if it is wanted.
    out: &'a mut [C],
    wants_input: bool,
    grad_weight: &'a mut [C],
    grad_bias: &'a mut [C],
}

impl<C: Number> Vectorised for BackwardRow<'_, C> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        let (shift, scale) = (C::of(self.mean), C::of(self.rstd));
        for (normal, x) in self.out.iter_mut().zip(self.x) {
            *normal = (*x - shift) * scale;
        }
        let terms = self.out.iter().zip(self.grad);
        for (sum, (normal, grad)) in self.grad_weight.iter_mut().zip(terms) {
            *sum = normal.fma::<I>(*grad, *sum);
        }
        for (sum, grad) in self.grad_bias.iter_mut().zip(self.grad) {
            *sum = grad.fma::<I>(C::of(1.0), *sum);
        }
        if !self.wants_input {
            return;
        }
        let n = self.x.len() as f64;
        let add = |a: f64, b: f64| a + b;
        let sum = fold_pairs(
            self.grad,
            self.weight,
            0.0,
            |s, g, w| s + (g * w).wide(),
            add,
        );
        let dot = |s: f64, g: C, w: C, z: C| s + (g * w * z).wide();
        let dot = fold_triples(self.grad, self.weight, self.out, 0.0, dot, add);
        let (mean, slope) = (C::of(-sum / n), C::of(-dot / n));
        for ((out, grad), weight) in self.out.iter_mut().zip(self.grad).zip(self.weight) {
            // rstd (grad weight - mean - normal slope)
            let inner = out.fma::<I>(slope, mean);
            *out = grad.fma::<I>(*weight, inner) * scale;
        }
    }
}

/// # Safety
/// `args` is a block that `plan_backward` made, and its operands, moved by `bias`, lie in live memory.
unsafe extern "C" fn backward<C: Number>(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, _)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let operand = |place| Operand::<C>::new(&h, place, bias);
    let (Some(grad), Some(input), Some(mean), Some(rstd)) =
        (operand(GRAD), operand(INPUT), operand(MEAN), operand(RSTD))
    else {
        return Code::INTERNAL.0;
    };
    let grad_input = operand(OUT);
    let length = h.length as usize;
    // SAFETY: this function's contract: the weight is live, if it is present.
    let weight = unsafe { all_or(operand(WEIGHT), length, 1.0) };
    let sum_length = |place: usize| if h.has(place) { length } else { 0 };
    let (weight_sums, bias_sums) = (sum_length(GRAD_WEIGHT), sum_length(GRAD_BIAS));
    let per_piece = weight_sums + bias_sums;
    let pieces = PIECES.min(h.rows);
    let mut sums = vec![0.0f64; per_piece * pieces as usize];
    let slots = Slots::new(&mut sums);
    let grain = (1 << 14) * pieces / (h.length * h.rows).max(1);
    let room = || vec![MaybeUninit::<C>::uninit(); length];
    parallel::for_range(0, pieces, grain.max(1), &|begin, end| {
        let (mut x_room, mut grad_room) = (room(), room());
        let mut result = vec![C::default(); length];
        let (mut part, mut taken) = (vec![C::default(); per_piece], 0);
        for piece in begin..end {
            // SAFETY: the sums of this piece are this thread's.
            let sums = unsafe { slots.range(piece as usize * per_piece, per_piece) };
            let last = (piece + 1) * h.rows / pieces;
            for row in piece * h.rows / pieces..last {
                let (weight_part, bias_part) = part.split_at_mut(weight_sums);
                // SAFETY: this function's contract: this row of each input is live.
                let (x, grad, mean, rstd) = unsafe {
                    (
                        input.read(row * h.length, &mut x_room),
                        grad.read(row * h.length, &mut grad_room),
                        mean.read(row, &mut [MaybeUninit::uninit()])[0].wide(),
                        rstd.read(row, &mut [MaybeUninit::uninit()])[0].wide(),
                    )
                };
                dispatch(BackwardRow {
                    grad,
                    x,
                    weight: &weight,
                    mean,
                    rstd,
                    out: &mut result,
                    wants_input: grad_input.is_some(),
                    grad_weight: weight_part,
                    grad_bias: bias_part,
                });
                if let Some(out) = &grad_input {
                    // SAFETY: this row of the output is this thread's.
                    unsafe { out.write(row * h.length, &result) };
                }
                taken += 1;
                if taken == FLUSH || row + 1 == last {
                    for (sum, part) in sums.iter_mut().zip(&mut part) {
                        *sum += part.wide();
                        *part = C::default();
                    }
                    taken = 0;
                }
            }
        }
    });
    let mut totals = vec![0.0f64; per_piece];
    if per_piece > 0 {
        for part in sums.chunks_exact(per_piece) {
            for (total, part) in totals.iter_mut().zip(part) {
                *total += part;
            }
        }
    }
    let totals: Vec<C> = totals.into_iter().map(C::of).collect();
    let (weight_totals, bias_totals) = totals.split_at(weight_sums);
    for (place, totals) in [(GRAD_WEIGHT, weight_totals), (GRAD_BIAS, bias_totals)] {
        if let Some(out) = operand(place) {
            // SAFETY: this output is written here alone, after all threads are done.
            unsafe { out.write(0, totals) };
        }
    }
    Code::OK.0
}
