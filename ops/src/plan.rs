//! A planned call: the kernel, and the packed argument block that it reads.
//!
//! A block is a fixed header (plain old data) followed by a tail of 64-bit numbers (sizes, strides).
//! It is small, has no pointers to host memory, and may be copied anywhere: kernels read it
//! unaligned. Planning must not allocate while the block fits the inline space.

use std::ffi::{CStr, c_void};
use std::mem::{MaybeUninit, size_of};

use bytemuck::Pod;

/// A host kernel: `otr_host_kernel_fn` of the driver contract. `bias` is added to a device address to
/// reach its bytes. The result is a `Code`.
pub type KernelFn = unsafe extern "C" fn(args: *const c_void, args_size: u32, bias: i64) -> i32;

/// Inline space of a block, in 64-bit words: three operands of four dimensions. A plan is returned by
/// value, so that more would cost every call.
const INLINE_WORDS: usize = 40;

/// A call that is ready to run: in stream order, any number of times, on any thread.
pub struct Plan {
    /// What runs.
    pub kernel: KernelFn,
    /// The operator's name, for failures and traces.
    pub label: &'static CStr,
    /// Estimated run time on one core in nanoseconds; the model stands in `docs/operators.md`.
    pub cost_ns: u32,
    bytes: u32,
    inline: [MaybeUninit<u64>; INLINE_WORDS],
    spilled: Vec<u64>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan")
            .field("label", &self.label)
            .field("cost_ns", &self.cost_ns)
            .field("args_size", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Plan {
    /// A plan of nothing, to be filled in place: a block is too large to be moved around.
    #[inline]
    pub(crate) fn new(label: &'static CStr) -> Self {
        Self {
            kernel: nothing,
            label,
            cost_ns: 0,
            bytes: 0,
            inline: [const { MaybeUninit::uninit() }; INLINE_WORDS],
            spilled: Vec::new(),
        }
    }

    /// The packed argument block, to be handed to `kernel` with its size.
    #[inline]
    pub fn args(&self) -> &[u8] {
        let words = if self.spilled.is_empty() {
            self.inline.as_ptr().cast::<u8>()
        } else {
            self.spilled.as_ptr().cast::<u8>()
        };
        // SAFETY: `push` initialised the first `bytes` bytes of whichever store is in use, and both
        // hold at least that many.
        unsafe { std::slice::from_raw_parts(words, self.bytes as usize) }
    }

    /// Appends plain data. Its size must be a multiple of 8, so that what follows is in whole words.
    #[inline]
    pub(crate) fn push<T: Pod>(&mut self, value: &T) {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        self.push_bytes(bytemuck::bytes_of(value));
    }

    /// Appends the first numbers of an array of fixed size, which is copied faster than a slice.
    #[inline]
    pub(crate) fn push_first<const N: usize>(&mut self, numbers: &[i64; N], count: usize) {
        let at = self.bytes as usize;
        if at + N * 8 <= INLINE_WORDS * 8 && self.spilled.is_empty() {
            // SAFETY: as in `push_bytes`; what lies beyond `count` is overwritten or not counted.
            unsafe {
                let to = self.inline.as_mut_ptr().cast::<u8>().add(at);
                to.copy_from_nonoverlapping(numbers.as_ptr().cast::<u8>(), N * 8);
            }
            self.bytes += count.min(N) as u32 * 8;
        } else {
            self.push_numbers(&numbers[..count.min(N)]);
        }
    }

    /// Appends numbers of the tail.
    #[inline]
    pub(crate) fn push_numbers(&mut self, numbers: &[i64]) {
        self.push_bytes(bytemuck::cast_slice(numbers));
    }

    #[inline]
    fn push_bytes(&mut self, data: &[u8]) {
        let at = self.bytes as usize;
        if at + data.len() <= INLINE_WORDS * 8 && self.spilled.is_empty() {
            // SAFETY: the inline store has room for the data behind the `at` bytes in use, as was
            // just compared, and no reference to it can be `data`.
            unsafe {
                let to = self.inline.as_mut_ptr().cast::<u8>().add(at);
                to.copy_from_nonoverlapping(data.as_ptr(), data.len());
            }
        } else {
            self.spill(data);
        }
        self.bytes += data.len() as u32;
    }

    #[cold]
    fn spill(&mut self, data: &[u8]) {
        let at = self.bytes as usize;
        let mut words = vec![0u64; (at + data.len()).div_ceil(8)];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        bytes[..at].copy_from_slice(self.args());
        bytes[at..at + data.len()].copy_from_slice(data);
        self.spilled = words;
    }
}

/// Estimated time for so many elements at so many picoseconds each, on top of what a kernel costs.
#[inline]
pub(crate) fn cost_ns(elements: i64, picoseconds: u32) -> u32 {
    const OVERHEAD: u64 = 20;
    let work = (elements as u64).saturating_mul(u64::from(picoseconds)) / 1000;
    u32::try_from(work.saturating_add(OVERHEAD)).unwrap_or(u32::MAX)
}

/// The kernel of a call without elements.
unsafe extern "C" fn nothing(_args: *const c_void, _args_size: u32, _bias: i64) -> i32 {
    outrigger_device::Code::OK.0
}
