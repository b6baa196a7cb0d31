//! Checks whether the sizes and strides of an operand are possible at all. Every operator relies on that.
//!
//! All operands are checked here and nowhere else, before a planner or a driver sees them. In an operand that passes,
//! no size is negative. The product of its sizes, each stride, and the number of elements between its lowest and its
//! highest address are at most [`MOST`]. So a stride times its size, in bytes of the largest element type, fits into
//! `i64`.

use crate::call::{Call, Tensor};
use crate::error::{Result, invalid};

/// The most elements of an operand, the largest stride, and the most elements that an operand may reach over.
const MOST: u64 = 1 << MOST_BITS;
const MOST_BITS: u32 = 56;

/// The bits of the rank of an operand that has elements and that [`is_small`] accepts.
const RANK_BITS: u32 = 6;

/// Checks all operands of a call.
///
/// # Errors
/// [`crate::PlanError::Invalid`] that names the operand and what is wrong with it.
#[inline]
pub(crate) fn check(call: &Call<'_>) -> Result<()> {
    for (at, input) in call.inputs.iter().enumerate() {
        if !is_small(input) {
            check_one("input", at, input)?;
        }
    }
    for (at, output) in call.outputs.iter().enumerate() {
        if !is_small(output) {
            check_one("output", at, output)?;
        }
    }
    Ok(())
}

/// Whether the largest size and the largest stride alone show that an operand is possible. They do for most operands,
/// and this check is quick.
#[inline]
fn is_small(tensor: &Tensor<'_>) -> bool {
    let rank = tensor.rank();
    let (mut sizes, mut strides) = (0, 0);
    for (&size, &stride) in tensor.sizes().iter().zip(tensor.strides()) {
        sizes |= size as u64;
        strides |= stride as u64;
    }
    // Each size is less than 2^size_bits, and each stride less than 2^stride_bits. A negative number has 64 bits. An
    // operand that passes has a rank of at most 56, or only sizes of 0.
    let size_bits = u64::BITS - sizes.leading_zeros();
    let stride_bits = u64::BITS - strides.leading_zeros();
    size_bits as usize * rank <= MOST_BITS as usize
        && size_bits + stride_bits + RANK_BITS <= MOST_BITS
}

/// Checks one operand of any layout.
#[inline(never)]
fn check_one(side: &str, at: usize, tensor: &Tensor<'_>) -> Result<()> {
    let (sizes, strides) = (tensor.sizes(), tensor.strides());
    let (mut numel, mut span) = (Some(1u64), Some(0u64));
    for (&size, &stride) in sizes.iter().zip(strides) {
        let Ok(size) = u64::try_from(size) else {
            return invalid(format!(
                "{side} {at} has size {size}, at least 0 is expected: {sizes:?}"
            ));
        };
        // A size of 0 counts as 1, because planners multiply some of the sizes, too. A stride is checked also where the
        // size is 1, because kernels use it.
        numel = numel.and_then(|numel| numel.checked_mul(size.max(1)));
        let stride = Some(stride.unsigned_abs()).filter(|&stride| stride <= MOST);
        let reach = stride.and_then(|stride| stride.checked_mul(size.max(1) - 1));
        span = span.and_then(|span| span.checked_add(reach?));
    }
    if numel.is_none_or(|numel| numel > MOST) {
        return invalid(format!(
            "{side} {at} has sizes {sizes:?}, whose product is more than {MOST}"
        ));
    }
    if span.is_none_or(|span| span > MOST) {
        return invalid(format!(
            "{side} {at} has sizes {sizes:?} and strides {strides:?}, which reach over more than {MOST} \
             elements"
        ));
    }
    Ok(())
}
