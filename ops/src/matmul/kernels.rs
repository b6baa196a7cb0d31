//! The kernels of matrix products: how a product is cut for threads, and how each part is computed.
//!
//! Within a part everything is serial: `gemm` starts no threads of its own.

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};

use outrigger_device::Code;

use super::{Header, Matrix};
use crate::convert::Compute;
use crate::memory::{ArgumentBlock, Base, Reader, Writer};
use crate::parallel;

/// The cut of a batch of products: ranges of the columns, or of the rows, of one product.
struct Parts {
    by_rows: bool,
    extent: i64,
    per_batch: i64,
}

/// A rectangle of the output.
struct Part {
    batch: i64,
    row: i64,
    rows: i64,
    column: i64,
    columns: i64,
}

impl Parts {
    fn new(h: &Header) -> Self {
        // Steps of computation that are worth a thread: about a tenth of a millisecond.
        const WORTH: i64 = 1 << 22;
        let by_rows = h.m > h.n;
        let (length, other) = if by_rows { (h.m, h.n) } else { (h.n, h.m) };
        let threads = parallel::threads() as i64;
        // No more parts than threads, because each part packs the other side again. Parts are whole vectors.
        let share = (length * h.batches + threads - 1) / threads;
        let extent = share.max(WORTH / (other * h.k.max(1)).max(1));
        let extent = ((extent + 15) / 16 * 16).min(length);
        Self {
            by_rows,
            extent,
            per_batch: (length + extent - 1) / extent,
        }
    }

    fn count(&self, h: &Header) -> i64 {
        h.batches * self.per_batch
    }

    /// The smallest number of parts that is worth a thread.
    fn grain(&self, h: &Header) -> i64 {
        let steps = self.extent * if self.by_rows { h.n } else { h.m } * h.k.max(1);
        ((1 << 20) / steps.max(1)).max(1)
    }

    fn get(&self, index: i64, h: &Header) -> Part {
        let (batch, first) = (index / self.per_batch, index % self.per_batch * self.extent);
        if self.by_rows {
            let rows = self.extent.min(h.m - first);
            Part {
                batch,
                row: first,
                rows,
                column: 0,
                columns: h.n,
            }
        } else {
            let columns = self.extent.min(h.n - first);
            Part {
                batch,
                row: 0,
                rows: h.m,
                column: first,
                columns,
            }
        }
    }
}

impl Matrix {
    /// The byte offset of an element.
    fn offset(&self, batch: i64, row: i64, column: i64) -> i64 {
        batch * self.batch + row * self.row + column * self.column
    }
}

/// An element type that `gemm` multiplies without conversion.
pub(super) trait Native: Compute + std::ops::Mul<Output = Self> {}

impl Native for f32 {}
impl Native for f64 {}

/// The kernel of products without conversion.
///
/// # Safety
/// `args` is a block that `plan_product` made for this kernel. Its operands, moved by `bias`, lie in live memory. The
/// output overlaps no matrix, and overlaps the bias only element for element.
pub(super) unsafe extern "C" fn native_kernel<T: Native>(
    args: *const c_void,
    args_size: u32,
    bias: i64,
) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((header, _)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let (Some(reader), Some(writer)) = (
        Reader::<T>::new(header.dtype),
        Writer::<T>::new(header.dtype),
    ) else {
        return Code::INTERNAL.0;
    };
    let parts = Parts::new(&header);
    let h = &header;
    let (alpha, beta) = (T::from_word(h.alpha), T::from_word(h.beta));
    let base = |matrix: &Matrix| Base::new(matrix.address, bias);
    let (out, left, right) = (base(&h.output), base(&h.left), base(&h.right));
    let in_place = same_place(&h.output, &h.bias, h);
    parallel::for_range(0, parts.count(h), parts.grain(h), &|begin, end| {
        for index in begin..end {
            let p = parts.get(index, h);
            let out = out
                .at(h.output.offset(p.batch, p.row, p.column))
                .cast::<T>();
            if h.has_bias != 0 && !in_place {
                let from = base(&h.bias).at(h.bias.offset(p.batch, p.row, p.column));
                // SAFETY: this part of the output is this thread's, and the bias is readable.
                unsafe { put_bias((reader, writer), h, from, out, &p) };
            }
            if h.k == 0 {
                // SAFETY: this part of the output is this thread's.
                unsafe { scale(h, out, &p, beta) };
                continue;
            }
            let left = left.at(h.left.offset(p.batch, p.row, 0)).cast::<T>();
            let right = right.at(h.right.offset(p.batch, 0, p.column)).cast::<T>();
            let size = size_of::<T>() as i64;
            let stride = |bytes: i64| (bytes / size) as isize;
            // SAFETY: rows x columns, rows x k and k x columns elements of live memory at these strides, which are
            // whole elements. This function's contract: the output overlaps no matrix.
            unsafe {
                gemm::gemm(
                    p.rows as usize,
                    p.columns as usize,
                    h.k as usize,
                    out,
                    stride(h.output.column),
                    stride(h.output.row),
                    h.has_bias != 0,
                    left,
                    stride(h.left.column),
                    stride(h.left.row),
                    right,
                    stride(h.right.column),
                    stride(h.right.row),
                    beta,
                    alpha,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        }
    });
    Code::OK.0
}

/// Whether the bias is the output itself, as in an in-place call.
fn same_place(output: &Matrix, bias: &Matrix, h: &Header) -> bool {
    output.address == bias.address
        && (h.m == 1 || output.row == bias.row)
        && (h.n == 1 || output.column == bias.column)
        && (h.batches == 1 || output.batch == bias.batch)
}

/// Copies a part of the bias to the output, where the product is added to it.
///
/// # Safety
/// `from` and `out` are the part's rows and columns at the header's strides, in live memory. The part of the output is
/// this thread's.
unsafe fn put_bias<T: Native>(
    (reader, writer): (Reader<T>, Writer<T>),
    h: &Header,
    from: *const u8,
    out: *mut T,
    part: &Part,
) {
    let writer_stride = h.output.column;
    let mut scratch = [const { MaybeUninit::<T>::uninit() }; 512];
    for row in 0..part.rows {
        let mut at = 0;
        while at < part.columns {
            let part = (part.columns - at).min(512);
            let from = from.wrapping_offset((row * h.bias.row + at * h.bias.column) as isize);
            // SAFETY: this function's contract: `part` elements of a row of the bias are live.
            let values = unsafe { reader.copy(from, h.bias.column, &mut scratch[..part as usize]) };
            let to = out.wrapping_byte_offset((row * h.output.row + at * writer_stride) as isize);
            // SAFETY: this function's contract: the same part of the output is live, and this thread's.
            unsafe { writer.row(values, to.cast::<u8>(), writer_stride) };
            at += part;
        }
    }
}

/// Writes the result for k = 0: the scaled bias, which was copied to the output, or 0.
///
/// # Safety
/// `out` is the part's rows and columns at the header's strides, in live memory, and this thread's.
unsafe fn scale<T: Native>(h: &Header, out: *mut T, part: &Part, beta: T) {
    for row in 0..part.rows {
        for column in 0..part.columns {
            let at = row * h.output.row + column * h.output.column;
            let place = out.wrapping_byte_offset(at as isize);
            // SAFETY: this function's contract: the element is live. If there is a bias, it was written before.
            unsafe {
                let value = if h.has_bias != 0 {
                    place.read() * beta
                } else {
                    T::default()
                };
                place.write(value);
            }
        }
    }
}

/// A type that matrices of other element types are converted to for a product.
pub(super) trait Converted: Compute {
    /// `out = alpha left right + beta bias` for dense row-major matrices. `out` has the bias, if there is one.
    fn product(sizes: [usize; 3], operands: [&[Self]; 2], out: &mut [Self], factors: [Self; 2]);
}

impl Converted for f32 {
    fn product(
        [m, n, k]: [usize; 3],
        [left, right]: [&[f32]; 2],
        out: &mut [f32],
        factors: [f32; 2],
    ) {
        let [alpha, beta] = factors;
        assert!(left.len() >= m * k && right.len() >= k * n && out.len() >= m * n);
        let (a, b, c) = (left.as_ptr(), right.as_ptr(), out.as_mut_ptr());
        let (n_, k_) = (n as isize, k as isize);
        // SAFETY: the slices are dense row-major matrices of these sizes, as just compared.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                c,
                1,
                n_,
                true,
                a,
                1,
                k_,
                b,
                1,
                n_,
                beta,
                alpha,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    }
}

impl Converted for i64 {
    fn product(
        [m, n, k]: [usize; 3],
        [left, right]: [&[i64]; 2],
        out: &mut [i64],
        factors: [i64; 2],
    ) {
        let [alpha, beta] = factors;
        for (row, line) in out.chunks_exact_mut(n).take(m).enumerate() {
            for value in line.iter_mut() {
                *value = value.wrapping_mul(beta);
            }
            for (step, &a) in left[row * k..(row + 1) * k].iter().enumerate() {
                let a = a.wrapping_mul(alpha);
                for (value, &b) in line.iter_mut().zip(&right[step * n..(step + 1) * n]) {
                    *value = value.wrapping_add(a.wrapping_mul(b));
                }
            }
        }
    }
}

/// The kernel of products with conversion.
///
/// # Safety
/// The contract of [`native_kernel`].
pub(super) unsafe extern "C" fn converted_kernel<C: Converted>(
    args: *const c_void,
    args_size: u32,
    bias: i64,
) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((header, _)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let (Some(reader), Some(writer)) = (
        Reader::<C>::new(header.dtype),
        Writer::<C>::new(header.dtype),
    ) else {
        return Code::INTERNAL.0;
    };
    let parts = Parts::new(&header);
    let h = &header;
    let base = |matrix: &Matrix| Base::new(matrix.address, bias);
    parallel::for_range(0, parts.count(h), parts.grain(h), &|begin, end| {
        let (mut left, mut right, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for index in begin..end {
            let p = parts.get(index, h);
            let (m, n, k) = (p.rows as usize, p.columns as usize, h.k as usize);
            // SAFETY: this function's contract: the matrices of this part, at the header's strides, are live.
            unsafe {
                let from = base(&h.left).at(h.left.offset(p.batch, p.row, 0));
                read_dense(reader, &h.left, from, [m, k], &mut left);
                let from = base(&h.right).at(h.right.offset(p.batch, 0, p.column));
                read_dense(reader, &h.right, from, [k, n], &mut right);
                if h.has_bias != 0 {
                    let from = base(&h.bias).at(h.bias.offset(p.batch, p.row, p.column));
                    read_dense(reader, &h.bias, from, [m, n], &mut out);
                } else {
                    out.clear();
                    out.resize(m * n, C::default());
                }
            }
            let factors = [C::from_word(h.alpha), C::from_word(h.beta)];
            C::product([m, n, k], [&left, &right], &mut out, factors);
            let to = base(&h.output).at(h.output.offset(p.batch, p.row, p.column));
            for (row, line) in out.chunks_exact(n).enumerate() {
                let to = to.wrapping_offset((row as i64 * h.output.row) as isize);
                // SAFETY: a row of this part of the output, which is this thread's.
                unsafe { writer.row(line, to, h.output.column) };
            }
        }
    });
    Code::OK.0
}

/// Copies a matrix into dense row-major order.
///
/// # Safety
/// `from` is a matrix of these sizes at the matrix's strides, in live memory.
unsafe fn read_dense<C: Compute>(
    reader: Reader<C>,
    matrix: &Matrix,
    from: *const u8,
    [rows, columns]: [usize; 2],
    into: &mut Vec<C>,
) {
    into.clear();
    into.reserve(rows * columns);
    for row in 0..rows {
        let from = from.wrapping_offset((row as i64 * matrix.row) as isize);
        let room = &mut into.spare_capacity_mut()[..columns];
        // SAFETY: this function's contract: the row is live. The reader writes all of the room.
        unsafe {
            reader.copy(from, matrix.column, room);
            into.set_len((row + 1) * columns);
        }
    }
}
