//! Argument blocks as kernels read them, and device memory as they see it.
//!
//! Kernels receive raw addresses. What turns them into memory is kept here and in the elementwise
//! engine, so that each assumption is written down once: blocks come from a plan of the same kernel,
//! operands lie in live memory, aligned to their element size, and nobody else writes them meanwhile.

use std::ffi::c_void;
use std::mem::size_of;

use bytemuck::Pod;

/// The bytes of an argument block.
#[derive(Clone, Copy)]
pub(crate) struct ArgumentBlock<'a>(&'a [u8]);

impl<'a> ArgumentBlock<'a> {
    /// A block as a kernel receives it.
    ///
    /// # Safety
    /// `args` points to `args_size` readable bytes for as long as the result is used.
    #[inline]
    pub(crate) unsafe fn new(args: *const c_void, args_size: u32) -> Self {
        // SAFETY: the caller's promise; bytes need no alignment.
        Self(unsafe { std::slice::from_raw_parts(args.cast::<u8>(), args_size as usize) })
    }

    /// The fixed part, and what follows it; `None` if the block is too short.
    #[inline]
    pub(crate) fn split<H: Pod>(self) -> Option<(H, &'a [u8])> {
        let (header, tail) = self.0.split_at_checked(size_of::<H>())?;
        Some((bytemuck::pod_read_unaligned(header), tail))
    }
}
