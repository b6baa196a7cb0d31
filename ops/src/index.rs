//! Operators that move rows or elements by index: embedding and its gradient, index_select and gather.
//!
//! Elements are moved as bytes, whatever their type. If an index is out of bounds, the kernel's result is
//! `OUT_OF_RANGE`, and the rows and elements of all other indices are still moved.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use bytemuck::{Pod, Zeroable};
use outrigger_device::{Code, DType};

use crate::call::{Call, Tensor};
use crate::convert::{Class, class_of};
use crate::cursor::Cursor;
use crate::error::{Result, invalid, unsupported};
use crate::failure::out_of_bounds;
use crate::geometry::{Dim, Geometry, MAX_OPERANDS, checked_size};
use crate::memory::{ArgumentBlock, Base, Reader, Writer, read_dims};
use crate::norm::Number;
use crate::parallel;
use crate::plan::{KernelFn, Plan};
use crate::registry::Definition;

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"embedding",
        plan: plan_embedding,
    },
    Definition {
        name: c"embedding_dense_backward",
        plan: plan_embedding_backward,
    },
    Definition {
        name: c"index_select",
        plan: plan_index_select,
    },
    Definition {
        name: c"gather",
        plan: plan_gather,
    },
];

/// Picoseconds per byte moved, and per index.
const COST_PER_BYTE: i64 = 60;
const COST_PER_INDEX: i64 = 5000;

/// The moves of rows of bytes by index.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Rows {
    from: u64,
    indices: u64,
    to: u64,
    /// The number of times that all of this is repeated, and the byte strides between repetitions.
    outer: i64,
    from_outer: i64,
    to_outer: i64,
    /// The number of indices, the number of rows, the bytes of a row, and the byte stride between rows of the input.
    count: i64,
    limit: i64,
    bytes: i64,
    from_row: i64,
    index_dtype: u8,
    /// The dimension that the indices are of, for errors.
    dim: u8,
    reserved: [u8; 6],
}

fn checked_indices(indices: &Tensor<'_>) -> Result<()> {
    if !matches!(indices.dtype(), DType::I64 | DType::I32) {
        return unsupported(format!(
            "indices are {}, i64 or i32 are expected",
            indices.dtype()
        ));
    }
    checked_size(indices)?;
    if indices.is_contiguous() {
        Ok(())
    } else {
        unsupported("indices that are not contiguous")
    }
}

fn contiguous(tensor: &Tensor<'_>) -> Result<i64> {
    let size = checked_size(tensor)?;
    if tensor.is_contiguous() {
        Ok(size)
    } else {
        unsupported("operands that are not contiguous")
    }
}

fn plan_embedding(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([weight, indices], [out]) = (call.inputs, call.outputs) else {
        return invalid("inputs (weight, indices) and 1 output are expected");
    };
    checked_indices(indices)?;
    let [limit, length] = *weight.sizes() else {
        return invalid(format!(
            "the weight has rank {}, 2 is expected",
            weight.rank()
        ));
    };
    let size = contiguous(out)?;
    checked_size(weight)?;
    if out.dtype() != weight.dtype() {
        return invalid(format!(
            "the output is {}, the weight {}",
            out.dtype(),
            weight.dtype()
        ));
    }
    if weight.strides()[1] != 1 && length > 1 {
        return unsupported("a weight whose rows are not dense");
    }
    let rows = indices.numel().saturating_mul(length);
    if out.numel() != rows || out.sizes().last() != Some(&length) {
        return invalid(format!(
            "output {:?} is not indices {:?} and rows of {length}",
            out.sizes(),
            indices.sizes()
        ));
    }
    plan_rows(
        plan,
        &Rows {
            from: weight.address(),
            indices: indices.address(),
            to: out.address(),
            outer: 1,
            count: indices.numel(),
            limit,
            bytes: length * size,
            from_row: weight.strides()[0] * size,
            index_dtype: indices.dtype().0 as u8,
            ..Rows::zeroed()
        },
    );
    Ok(())
}

fn plan_index_select(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([input, indices], [out], [dim]) = (call.inputs, call.outputs, call.scalars) else {
        return invalid(
            "inputs (input, indices), 1 output and 1 scalar, the dimension, are expected",
        );
    };
    checked_indices(indices)?;
    let size = contiguous(input)?;
    contiguous(out)?;
    let dim = usize::try_from(dim.to_i64()).unwrap_or(usize::MAX);
    let fits = |d: usize| {
        out.sizes()[d]
            == if d == dim {
                indices.numel()
            } else {
                input.sizes()[d]
            }
    };
    if dim >= input.rank() || out.rank() != input.rank() || !(0..out.rank()).all(fits) {
        return invalid(format!(
            "output {:?} is not input {:?} with {} indices in dimension {dim}",
            out.sizes(),
            input.sizes(),
            indices.numel()
        ));
    }
    if out.dtype() != input.dtype() {
        return invalid(format!(
            "the output is {}, the input {}",
            out.dtype(),
            input.dtype()
        ));
    }
    let inner: i64 = input.sizes()[dim + 1..].iter().product::<i64>() * size;
    plan_rows(
        plan,
        &Rows {
            from: input.address(),
            indices: indices.address(),
            to: out.address(),
            outer: input.sizes()[..dim].iter().product(),
            from_outer: input.sizes()[dim] * inner,
            to_outer: indices.numel() * inner,
            count: indices.numel(),
            limit: input.sizes()[dim],
            dim: dim as u8,
            bytes: inner,
            from_row: inner,
            index_dtype: indices.dtype().0 as u8,
            ..Rows::zeroed()
        },
    );
    Ok(())
}

fn plan_rows(plan: &mut Plan, rows: &Rows) {
    if rows.outer * rows.count * rows.bytes == 0 {
        return;
    }
    plan.kernel = rows_kernel;
    let per_index = rows.bytes.saturating_mul(COST_PER_BYTE);
    let per_index = per_index.saturating_add(COST_PER_INDEX);
    let per_index = per_index.min(i64::from(u32::MAX));
    plan.cost_ns = crate::plan::cost_ns(rows.outer * rows.count, per_index as u32);
    plan.push(rows);
}

/// The first index that a kernel found out of bounds.
#[derive(Default)]
struct Bad(OnceLock<i64>);

impl Bad {
    #[cold]
    fn note(&self, index: i64) {
        // Threads may find several: any one will do.
        let _ = self.0.set(index);
    }

    /// The result of a kernel of these operators.
    fn code(&self, operators: &[&'static CStr], dimension: u8, size: i64) -> i32 {
        let code = self
            .0
            .get()
            .map(|&index| out_of_bounds(operators, index, usize::from(dimension), size));
        code.unwrap_or(Code::OK).0
    }
}

/// # Safety
/// `args` is a block that `plan_rows` made, and its operands, moved by `bias`, lie in live memory.
unsafe extern "C" fn rows_kernel(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, _)) = block.split::<Rows>() else {
        return Code::INTERNAL.0;
    };
    let Some(reader) = Reader::<i64>::new(h.index_dtype) else {
        return Code::INTERNAL.0;
    };
    let index_size = DType(u32::from(h.index_dtype)).size().unwrap_or(8) as i64;
    let (from, to) = (Base::new(h.from, bias), Base::new(h.to, bias));
    let indices = Base::new(h.indices, bias);
    let bad = Bad::default();
    let grain = ((1 << 17) / h.bytes.max(32)).max(1);
    parallel::for_range(0, h.outer * h.count, grain, &|begin, end| {
        for item in begin..end {
            let (outer, k) = (item / h.count, item % h.count);
            // SAFETY: this function's contract: index k of the operand is live.
            let index = unsafe { reader.one(indices.at(k * index_size)) };
            if index < 0 || index >= h.limit {
                bad.note(index);
                continue;
            }
            // SAFETY: the row of the input exists, as just compared. The row of the output is that of index k. The
            // operands do not overlap.
            unsafe {
                to.at(outer * h.to_outer + k * h.bytes)
                    .copy_from_nonoverlapping(
                        from.at(outer * h.from_outer + index * h.from_row),
                        h.bytes as usize,
                    );
            }
        }
    });
    bad.code(&[c"index_select", c"embedding"], h.dim, h.limit)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Backward {
    grad: u64,
    indices: u64,
    out: u64,
    count: i64,
    limit: i64,
    length: i64,
    /// The index whose row gets no gradient; negative for none.
    padding: i64,
    dtype: u8,
    index_dtype: u8,
    reserved: [u8; 6],
}

fn plan_embedding_backward(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([grad, indices], [out]) = (call.inputs, call.outputs) else {
        return invalid("inputs (grad, indices) and 1 output are expected");
    };
    let padding = match call.scalars {
        [] => -1,
        [padding] => padding.to_i64(),
        _ => return invalid("1 scalar at most, the padding index, is expected"),
    };
    checked_indices(indices)?;
    contiguous(grad)?;
    contiguous(out)?;
    let [limit, length] = *out.sizes() else {
        return invalid(format!("the output has rank {}, 2 is expected", out.rank()));
    };
    if grad.dtype() != out.dtype() || grad.numel() != indices.numel().saturating_mul(length) {
        return invalid(format!(
            "grad {:?} is not indices {:?} and rows of {length}",
            grad.sizes(),
            indices.sizes()
        ));
    }
    let kernel: KernelFn = match class_of(out.dtype()) {
        Some(Class::F32) => backward_kernel::<f32>,
        Some(Class::F64) => backward_kernel::<f64>,
        _ => return unsupported(format!("not defined for {}", out.dtype())),
    };
    if out.numel() == 0 {
        return Ok(());
    }
    plan.kernel = kernel;
    plan.cost_ns = crate::plan::cost_ns(grad.numel() + out.numel(), 300);
    plan.push(&Backward {
        grad: grad.address(),
        indices: indices.address(),
        out: out.address(),
        count: indices.numel(),
        limit,
        length,
        padding,
        dtype: out.dtype().0 as u8,
        index_dtype: indices.dtype().0 as u8,
        reserved: [0; 6],
    });
    Ok(())
}

/// # Safety
/// `args` is a block that `plan_embedding_backward` made, and its operands, moved by `bias`, lie in
/// live memory.
unsafe extern "C" fn backward_kernel<C: Number + std::ops::AddAssign>(
    args: *const c_void,
    args_size: u32,
    bias: i64,
) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, _)) = block.split::<Backward>() else {
        return Code::INTERNAL.0;
    };
    let (Some(reader), Some(writer), Some(index_reader)) = (
        Reader::<C>::new(h.dtype),
        Writer::<C>::new(h.dtype),
        Reader::<i64>::new(h.index_dtype),
    ) else {
        return Code::INTERNAL.0;
    };
    let size = DType(u32::from(h.dtype)).size().unwrap_or(1) as i64;
    let index_size = DType(u32::from(h.index_dtype)).size().unwrap_or(8) as i64;
    let (grad, out) = (Base::new(h.grad, bias), Base::new(h.out, bias));
    let indices = Base::new(h.indices, bias);
    // The gradients that belong to each row of the output, in their order: a counting sort.
    let mut starts = vec![0usize; h.limit as usize + 1];
    let bad = Bad::default();
    // SAFETY: this function's contract: index k of the operand is live, for 0 <= k < count.
    let index_of = |k: i64| unsafe { index_reader.one(indices.at(k * index_size)) };
    for k in 0..h.count {
        let index = index_of(k);
        if index < 0 || index >= h.limit {
            bad.note(index);
        } else if index != h.padding {
            starts[index as usize + 1] += 1;
        }
    }
    for row in 0..h.limit as usize {
        starts[row + 1] += starts[row];
    }
    let mut order = vec![0i64; starts[h.limit as usize]];
    let mut next = starts.clone();
    for k in 0..h.count {
        let index = index_of(k);
        if (0..h.limit).contains(&index) && index != h.padding {
            order[next[index as usize]] = k;
            next[index as usize] += 1;
        }
    }
    let length = h.length as usize;
    let grain = ((1 << 14) / h.length).max(1);
    parallel::for_range(0, h.limit, grain, &|begin, end| {
        let mut sum = vec![C::default(); length];
        let mut room = vec![MaybeUninit::<C>::uninit(); length];
        for row in begin..end {
            sum.fill(C::default());
            for &k in &order[starts[row as usize]..starts[row as usize + 1]] {
                // SAFETY: this function's contract: row k of the gradient is live.
                let values = unsafe { reader.row(grad.at(k * h.length * size), size, &mut room) };
                for (sum, value) in sum.iter_mut().zip(values) {
                    *sum += *value;
                }
            }
            // SAFETY: this row of the output is this thread's.
            unsafe { writer.row(&sum, out.at(row * h.length * size), size) };
        }
    });
    bad.code(&[c"embedding_dense_backward"], 0, h.limit)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Gather {
    to: u64,
    indices: u64,
    from: u64,
    numel: i64,
    limit: i64,
    /// The byte stride of the input in the dimension that is gathered from.
    stride: i64,
    index_dtype: u8,
    /// For errors.
    dim: u8,
    reserved: [u8; 2],
    rank: u32,
}

fn plan_gather(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([input, indices], [out], [dim]) = (call.inputs, call.outputs, call.scalars) else {
        return invalid(
            "inputs (input, indices), 1 output and 1 scalar, the dimension, are expected",
        );
    };
    if !matches!(indices.dtype(), DType::I64 | DType::I32) {
        return unsupported(format!(
            "indices are {}, i64 or i32 are expected",
            indices.dtype()
        ));
    }
    let rank = input.rank();
    let dim = usize::try_from(dim.to_i64()).unwrap_or(usize::MAX);
    if rank == 0 || indices.rank() != rank || dim >= rank || out.sizes() != indices.sizes() {
        return invalid(format!(
            "input {:?}, indices {:?} and output {:?} in dimension {dim}: ranks must be equal, and \
             the output as large as the indices",
            input.sizes(),
            indices.sizes(),
            out.sizes()
        ));
    }
    if out.dtype() != input.dtype() {
        return invalid(format!(
            "the output is {}, the input {}",
            out.dtype(),
            input.dtype()
        ));
    }
    let (size, index_size) = (checked_size(input)?, checked_size(indices)?);
    checked_size(out)?;
    let mut geometry = Geometry::empty();
    for d in (0..rank).rev() {
        if d != dim && indices.sizes()[d] > input.sizes()[d] {
            return invalid(format!(
                "indices have size {} in dimension {d}, at most {} is expected",
                indices.sizes()[d],
                input.sizes()[d]
            ));
        }
        let mut strides = [0; MAX_OPERANDS];
        strides[0] = out.strides()[d] * size;
        strides[1] = indices.strides()[d] * index_size;
        strides[2] = if d == dim {
            0
        } else {
            input.strides()[d] * size
        };
        geometry.add(
            Dim {
                size: out.sizes()[d],
                strides,
            },
            false,
        )?;
    }
    geometry.finish(3);
    if geometry.numel == 0 {
        return Ok(());
    }
    plan.kernel = match size {
        1 => gather_kernel::<u8>,
        2 => gather_kernel::<u16>,
        4 => gather_kernel::<u32>,
        8 => gather_kernel::<u64>,
        _ => gather_kernel::<[u64; 2]>,
    };
    plan.cost_ns = crate::plan::cost_ns(geometry.numel, 2000);
    plan.push(&Gather {
        to: out.address(),
        indices: indices.address(),
        from: input.address(),
        numel: geometry.numel,
        limit: input.sizes()[dim],
        stride: input.strides()[dim] * size,
        index_dtype: indices.dtype().0 as u8,
        dim: dim as u8,
        reserved: [0; 2],
        rank: geometry.rank as u32,
    });
    geometry.push(3, plan);
    Ok(())
}

/// # Safety
/// `args` is a block that `plan_gather` made for this kernel, and its operands, moved by `bias`, lie
/// in live memory.
unsafe extern "C" fn gather_kernel<T: Pod>(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, tail)) = block.split::<Gather>() else {
        return Code::INTERNAL.0;
    };
    let (Some(reader), Some((dims, rank))) = (
        Reader::<i64>::new(h.index_dtype),
        read_dims(tail, h.rank as usize, 3),
    ) else {
        return Code::INTERNAL.0;
    };
    let (to, from) = (Base::new(h.to, bias), Base::new(h.from, bias));
    let indices = Base::new(h.indices, bias);
    let bad = Bad::default();
    parallel::for_range(0, h.numel, 1 << 13, &|begin, end| {
        let mut cursor = Cursor::at(&dims[..rank], begin);
        for _ in begin..end {
            // SAFETY: this function's contract: the index at the cursor is live.
            let index = unsafe { reader.one(indices.at(cursor.offset(1))) };
            if index < 0 || index >= h.limit {
                bad.note(index);
            } else {
                // SAFETY: the element of the input exists, as just compared. Its place in the output is at the cursor.
                // Both are aligned to T.
                unsafe {
                    let from = from.at(cursor.offset(2) + index * h.stride).cast::<T>();
                    to.at(cursor.offset(0)).cast::<T>().write(from.read());
                }
            }
            cursor.advance(1);
        }
    });
    bad.code(&[c"gather"], h.dim, h.limit)
}
