//! Host kernels for what is not an operator: copies, fills and host functions. With them a program has one kind of
//! step only: a host kernel with an argument block of whole words.
//!
//! This file writes each block and has the kernel that reads it. Other files read blocks through `copy_of` and
//! `fill_of` alone.

use std::ffi::c_void;

use outrigger_device::{Code, CopyKind, HostFn, foreign_call};
use outrigger_ops::KernelFn;
use outrigger_ops::parallel;

/// A host function of a graph. `bias` is what to add to a device address to reach its bytes; `upstream` is the failure
/// of the work before it, or OK. The function returns its outcome.
pub type HostNodeFn = unsafe extern "C" fn(user: *mut c_void, bias: i64, upstream: i32) -> i32;

/// The bytes of a copy or fill from which on threads share it.
const GRAIN: i64 = 1 << 20;

/// Reads the words of an argument block.
///
/// # Safety
/// `args` points to at least `N` words. It need not be aligned.
pub(crate) unsafe fn words<const N: usize>(args: *const c_void) -> [u64; N] {
    // SAFETY: this function's contract: `N` words are there. A launch may have copied the block to any address (R30).
    unsafe { args.cast::<[u64; N]>().read_unaligned() }
}

// ---- Copies ------------------------------------------------------------------------------------

/// The words of a copy's block that hold its addresses.
pub(crate) const COPY_DST: u32 = 0;
pub(crate) const COPY_SRC: u32 = 1;

/// The block of a copy.
pub(crate) fn copy_block(dst: u64, src: u64, size: u64, kind: CopyKind) -> [u64; 4] {
    [dst, src, size, u64::from(kind.raw())]
}

/// Reads the block of a copy.
pub(crate) fn copy_of(block: &[u64]) -> Option<(u64, u64, u64, CopyKind)> {
    let &[dst, src, size, kind] = block else {
        return None;
    };
    Some((dst, src, size, CopyKind::from_raw(kind as u32)?))
}

/// # Safety
/// `args` is a block of [`copy_block`]. Its two ranges are live, after `bias` was added to device addresses, and do not
/// overlap.
pub(crate) unsafe extern "C" fn copy(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: a block of `copy_block` has four words.
    let block = unsafe { words::<4>(args) };
    let Some((dst, src, size, kind)) = copy_of(&block) else {
        return Code::INTERNAL.0;
    };
    let end =
        |device: bool, address: u64| address.wrapping_add(if device { bias as u64 } else { 0 });
    let (dst, src) = (
        end(kind.writes_device(), dst),
        end(kind.reads_device(), src),
    );
    parallel::for_range(0, size as i64, GRAIN, &|begin, end| {
        let (from, to) = (src + begin as u64, dst + begin as u64);
        // SAFETY: this function's contract: the ranges are live and do not overlap. `for_range` gives out each part
        // once.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, (end - begin) as usize);
        }
    });
    Code::OK.0
}

// ---- Fills -------------------------------------------------------------------------------------

/// The word of a fill's block that holds its address.
pub(crate) const FILL_DST: u32 = 0;

/// The block of a fill. The pattern of 1, 2, 4, 8 or 16 bytes is repeated to 16 bytes.
pub(crate) fn fill_block(dst: u64, size: u64, pattern: &[u8]) -> [u64; 4] {
    let mut bytes = [0u8; 16];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern[index % pattern.len()];
    }
    let [low, high] = bytemuck::cast::<[u8; 16], [u64; 2]>(bytes);
    [dst, size, low, high]
}

/// Reads the block of a fill: address, size, and the pattern as 16 bytes.
pub(crate) fn fill_of(block: &[u64]) -> Option<(u64, u64, [u8; 16])> {
    let &[dst, size, low, high] = block else {
        return None;
    };
    Some((dst, size, bytemuck::cast([low, high])))
}

/// The shortest pattern that repeats to these 16 bytes. The size of a fill is a multiple of it, because the size is a
/// multiple of the pattern that the fill was given.
pub(crate) fn shortest(pattern: &[u8; 16]) -> &[u8] {
    let repeats = |length: &usize| {
        let first = &pattern[..*length];
        pattern.chunks(*length).all(|chunk| chunk == first)
    };
    let length = [1, 2, 4, 8].into_iter().find(repeats).unwrap_or(16);
    &pattern[..length]
}

/// # Safety
/// `args` is a block of [`fill_block`]. Its range is live after `bias` was added to the address.
pub(crate) unsafe extern "C" fn fill(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: a block of `fill_block` has four words.
    let block = unsafe { words::<4>(args) };
    let Some((dst, size, pattern)) = fill_of(&block) else {
        return Code::INTERNAL.0;
    };
    let start = dst.wrapping_add(bias as u64);
    let pieces = (size as i64).div_euclid(16) + 1;
    parallel::for_range(0, pieces, GRAIN / 16, &|begin, end| {
        let (begin, end) = (begin as u64 * 16, (end as u64 * 16).min(size));
        // SAFETY: this function's contract: the range is live. `for_range` gives out each part once.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                (start + begin) as *mut u8,
                end.saturating_sub(begin) as usize,
            )
        };
        for piece in bytes.chunks_mut(16) {
            piece.copy_from_slice(&pattern[..piece.len()]);
        }
    });
    Code::OK.0
}

// ---- Host functions ----------------------------------------------------------------------------

/// # Safety
/// `args` is a block of [`host_block`] with a [`HostNodeFn`], which may be called with its user data now.
pub(crate) unsafe extern "C" fn host_node(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract is that of `call_host` for this kernel.
    unsafe { call_host(host_node, args, bias, Code::OK.0) }
}

/// # Safety
/// `args` is a block of [`host_block`] with a [`HostFn`], which may be called with its user data now.
pub(crate) unsafe extern "C" fn host_call(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract is that of `call_host` for this kernel.
    unsafe { call_host(host_call, args, bias, Code::OK.0) }
}

/// The block of a host function of either type: [`HostNodeFn`] or [`HostFn`].
pub(crate) fn host_block(function: usize, user: *mut c_void) -> [u64; 2] {
    [function as u64, user as u64]
}

/// Whether a kernel calls a host function.
pub(crate) fn is_host(kernel: KernelFn) -> bool {
    std::ptr::fn_addr_eq(kernel, host_node as KernelFn)
        || std::ptr::fn_addr_eq(kernel, host_call as KernelFn)
}

/// Calls a host function, and tells it the failure of the work before it.
///
/// # Safety
/// The contract of `host_node` or `host_call`, whichever `kernel` is.
pub(crate) unsafe fn call_host(
    kernel: KernelFn,
    args: *const c_void,
    bias: i64,
    upstream: i32,
) -> i32 {
    // SAFETY: this function's contract: a block of `host_block` has two words.
    let [function, user] = unsafe { words::<2>(args) };
    let user = user as *mut c_void;
    let code = if std::ptr::fn_addr_eq(kernel, host_node as KernelFn) {
        // SAFETY: the block of `host_node` holds a function of this type.
        let function = unsafe { std::mem::transmute::<usize, HostNodeFn>(function as usize) };
        // SAFETY: this function's contract: the function may be called with this user data now.
        unsafe { foreign_call!(function, user, bias, upstream) }
    } else {
        // SAFETY: the block of `host_call` holds a function of this type.
        let function = unsafe { std::mem::transmute::<usize, HostFn>(function as usize) };
        // SAFETY: this function's contract: the function may be called with this user data now.
        unsafe { foreign_call!(function, user, upstream) }
    };
    // R27: NOT_READY is not an outcome, and counts as EXECUTION.
    if code == Code::NOT_READY.0 {
        Code::EXECUTION.0
    } else {
        code
    }
}
