//! What is no operator, as host kernels: copies, fills and host functions, each with an argument block
//! of whole words. A program then knows one kind of step only.
//!
//! A block is written by this file and read by the kernel beside it; nobody else looks inside.

use std::ffi::c_void;

use outrigger_device::{Code, CopyKind, HostFn, foreign_call};
use outrigger_ops::KernelFn;
use outrigger_ops::parallel;

/// A host function of a graph: user data, what to add to a device address to reach its bytes, and the
/// failure of the work before it, if any. What it returns is its outcome.
pub type HostNodeFn = unsafe extern "C" fn(user: *mut c_void, bias: i64, upstream: i32) -> i32;

/// Bytes from which on a copy or fill is shared among threads.
const GRAIN: i64 = 1 << 20;

/// The words of an argument block.
///
/// # Safety
/// `args` is a block of at least `N` words.
pub(crate) unsafe fn words<const N: usize>(args: *const c_void) -> [u64; N] {
    // SAFETY: the caller's promise; a launch may have copied the block anywhere.
    unsafe { args.cast::<[u64; N]>().read_unaligned() }
}

// ---- Copies ------------------------------------------------------------------------------------

/// Where the addresses stand in a copy's block.
pub(crate) const COPY_DST: u32 = 0;
pub(crate) const COPY_SRC: u32 = 1;

/// The block of a copy.
pub(crate) fn copy_block(dst: u64, src: u64, size: u64, kind: CopyKind) -> [u64; 4] {
    [dst, src, size, u64::from(kind.raw())]
}

/// What a copy's block says.
pub(crate) fn copy_of(block: &[u64]) -> Option<(u64, u64, u64, CopyKind)> {
    let &[dst, src, size, kind] = block else {
        return None;
    };
    Some((dst, src, size, CopyKind::from_raw(kind as u32)?))
}

/// # Safety
/// `args` is a block of `copy_block` whose ranges are live, where device addresses are moved by `bias`.
pub(crate) unsafe extern "C" fn copy(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: the caller's promise.
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
        // SAFETY: parts of live ranges that do not overlap (R26), each part once.
        unsafe {
            std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, (end - begin) as usize);
        }
    });
    Code::OK.0
}

// ---- Fills -------------------------------------------------------------------------------------

/// Where the address stands in a fill's block.
pub(crate) const FILL_DST: u32 = 0;

/// The block of a fill with a pattern of 1, 2, 4, 8 or 16 bytes: the pattern is kept as 16.
pub(crate) fn fill_block(dst: u64, size: u64, pattern: &[u8]) -> [u64; 4] {
    let mut bytes = [0u8; 16];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = pattern[index % pattern.len()];
    }
    let [low, high] = bytemuck::cast::<[u8; 16], [u64; 2]>(bytes);
    [dst, size, low, high]
}

/// What a fill's block says: address, size, and the pattern as 16 bytes.
pub(crate) fn fill_of(block: &[u64]) -> Option<(u64, u64, [u8; 16])> {
    let &[dst, size, low, high] = block else {
        return None;
    };
    Some((dst, size, bytemuck::cast([low, high])))
}

/// The shortest pattern that repeats to the same bytes: it fits every size that the longer one does.
pub(crate) fn shortest(pattern: &[u8; 16]) -> &[u8] {
    let repeats = |length: &usize| {
        let first = &pattern[..*length];
        pattern.chunks(*length).all(|chunk| chunk == first)
    };
    let length = [1, 2, 4, 8].into_iter().find(repeats).unwrap_or(16);
    &pattern[..length]
}

/// # Safety
/// `args` is a block of `fill_block` whose range, moved by `bias`, is live.
pub(crate) unsafe extern "C" fn fill(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: the caller's promise.
    let block = unsafe { words::<4>(args) };
    let Some((dst, size, pattern)) = fill_of(&block) else {
        return Code::INTERNAL.0;
    };
    let start = dst.wrapping_add(bias as u64);
    let pieces = (size as i64).div_euclid(16) + 1;
    parallel::for_range(0, pieces, GRAIN / 16, &|begin, end| {
        let (begin, end) = (begin as u64 * 16, (end as u64 * 16).min(size));
        // SAFETY: a part of the live range, each part once.
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
/// `args` holds a [`HostNodeFn`] and its user data, which may be called.
pub(crate) unsafe extern "C" fn host_node(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { call_host(host_node, args, bias, Code::OK.0) }
}

/// # Safety
/// `args` holds a [`HostFn`] and its user data, which may be called.
pub(crate) unsafe extern "C" fn host_call(args: *const c_void, _size: u32, bias: i64) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { call_host(host_call, args, bias, Code::OK.0) }
}

/// The block of a host function of either type.
pub(crate) fn host_block(function: usize, user: *mut c_void) -> [u64; 2] {
    [function as u64, user as u64]
}

/// Whether the kernel is that of a host function.
pub(crate) fn is_host(kernel: KernelFn) -> bool {
    std::ptr::fn_addr_eq(kernel, host_node as KernelFn)
        || std::ptr::fn_addr_eq(kernel, host_call as KernelFn)
}

/// Calls a host function with the failure of the work before it.
///
/// # Safety
/// As for `host_node` or `host_call`, whichever `kernel` is.
pub(crate) unsafe fn call_host(
    kernel: KernelFn,
    args: *const c_void,
    bias: i64,
    upstream: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    let [function, user] = unsafe { words::<2>(args) };
    let user = user as *mut c_void;
    let code = if std::ptr::fn_addr_eq(kernel, host_node as KernelFn) {
        // SAFETY: the block holds a function of this type, by the caller's promise.
        let function = unsafe { std::mem::transmute::<usize, HostNodeFn>(function as usize) };
        // SAFETY: as above.
        unsafe { foreign_call!(function, user, bias, upstream) }
    } else {
        // SAFETY: as above.
        let function = unsafe { std::mem::transmute::<usize, HostFn>(function as usize) };
        // SAFETY: as above.
        unsafe { foreign_call!(function, user, upstream) }
    };
    // A code that is no failure would read as success further on.
    if code == Code::NOT_READY.0 {
        Code::EXECUTION.0
    } else {
        code
    }
}
