//! The kernels of the operators, and their argument blocks. A block holds host pointers, so there is no
//! bias. The memory that a kernel reaches was checked when the launch was submitted.

use std::ffi::{CStr, c_void};

use crate::{Code, HostKernelFn};

/// More dimensions are left to others.
pub(super) const DIMENSIONS: usize = 8;

/// Bytes of an element.
pub(super) const WIDTH: i64 = 4;

/// An argument block, which is copied as bytes.
///
/// # Safety
/// It has no padding, and the kernel reads a block of this type.
pub(super) unsafe trait Block: Copy {
    const KERNEL: HostKernelFn;
    const LABEL: &CStr;

    fn bytes(&self) -> &[u8] {
        // SAFETY: there is no padding, so all bytes of the block are initialized.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Self>()) }
    }
}

/// The argument block of [`add`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Add {
    pub(super) sizes: [u64; DIMENSIONS],
    pub(super) strides: [[i64; DIMENSIONS]; 3],
    pub(super) pointers: [u64; 3],
    pub(super) alpha: f64,
}

// SAFETY: its fields are made of words of eight bytes; `add` reads it.
unsafe impl Block for Add {
    const KERNEL: HostKernelFn = add;
    const LABEL: &CStr = c"add";
}

/// The argument block of [`mm`].
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Mm {
    pub(super) sizes: [u64; 3],
    pub(super) strides: [[i64; 2]; 3],
    pub(super) pointers: [u64; 3],
    pub(super) workspace: u64,
}

// SAFETY: its fields are made of words of eight bytes; `mm` reads it.
unsafe impl Block for Mm {
    const KERNEL: HostKernelFn = mm;
    const LABEL: &CStr = c"mm";
}

/// out = a + alpha b.
unsafe extern "C" fn add(args: *const c_void, _: u32, _: i64) -> i32 {
    // SAFETY: a block of this type, which a queue may put anywhere.
    let block = unsafe { args.cast::<Add>().read_unaligned() };
    let (mut at, mut offsets) = ([0u64; DIMENSIONS], [0i64; 3]);
    for _ in 0..block.sizes.iter().product::<u64>() {
        let [a, b, out] =
            std::array::from_fn(|which| element(block.pointers[which], offsets[which]));
        // SAFETY: elements of the operands, whose range was checked and which are live (R12).
        unsafe {
            let sum = a.read_unaligned() + block.alpha as f32 * b.read_unaligned();
            out.write_unaligned(sum);
        }
        // The next element, the last dimension first; behind its end each goes back to its beginning.
        for dimension in (0..DIMENSIONS).rev() {
            at[dimension] += 1;
            let ended = at[dimension] == block.sizes[dimension];
            let steps = 1 - if ended { at[dimension] as i64 } else { 0 };
            for (offset, strides) in offsets.iter_mut().zip(&block.strides) {
                *offset += steps * strides[dimension];
            }
            if !ended {
                break;
            }
            at[dimension] = 0;
        }
    }
    Code::OK.0
}

/// A product of matrices. The columns of the second one are brought together first.
unsafe extern "C" fn mm(args: *const c_void, _: u32, _: i64) -> i32 {
    // SAFETY: a block of this type, which a queue may put anywhere.
    let block = unsafe { args.cast::<Mm>().read_unaligned() };
    let [m, k, n] = block.sizes.map(|size| size as i64);
    let [a, b, out] = std::array::from_fn(|which| {
        let (pointer, [row, column]) = (block.pointers[which], block.strides[which]);
        move |i: i64, j: i64| element(pointer, i * row + j * column)
    });
    let packed = |column: i64, at: i64| element(block.workspace, column * k + at);
    for column in 0..n {
        for at in 0..k {
            // SAFETY: an element of the second operand, and one of the k x n of the workspace; the ranges of
            // both were checked, and they are live (R12).
            unsafe { packed(column, at).write_unaligned(b(at, column).read_unaligned()) };
        }
    }
    for row in 0..m {
        for column in 0..n {
            // Several sums, so that there is no chain of additions to wait for.
            let mut sums = [0f32; 8];
            for at in 0..k {
                // SAFETY: elements of the first operand and of the workspace, as above.
                let product =
                    unsafe { a(row, at).read_unaligned() * packed(column, at).read_unaligned() };
                sums[at as usize % sums.len()] += product;
            }
            // SAFETY: an element of the output, as above.
            unsafe { out(row, column).write_unaligned(sums.iter().sum()) };
        }
    }
    Code::OK.0
}

/// The place of an element, so many elements from the first one.
fn element(pointer: u64, offset: i64) -> *mut f32 {
    pointer.wrapping_add_signed(offset * WIDTH) as *mut f32
}
