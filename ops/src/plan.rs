//! A planned call: the kernel, and the argument block that it reads.
//!
//! A block is a fixed header of plain data, followed by 64-bit numbers such as sizes and strides. It is small, and has
//! no pointers to host memory. It may be copied to any address, so kernels read it unaligned. Planning allocates
//! nothing if the block fits into the inline space.

use std::ffi::{CStr, c_void};
use std::mem::{MaybeUninit, size_of};

use bytemuck::Pod;

/// A host kernel: `otr_host_kernel_fn` of the driver contract. It adds `bias` to a device address to reach its bytes.
/// Its result is a `Code`.
pub type KernelFn = unsafe extern "C" fn(args: *const c_void, args_size: u32, bias: i64) -> i32;

/// The inline space of a block in 64-bit words: enough for three operands of four dimensions. A plan is returned by
/// value, so more space would cost every call.
const INLINE_WORDS: usize = 40;

/// A call that is ready to run: in stream order, any number of times, on any thread.
pub struct Plan {
    /// The kernel.
    pub kernel: KernelFn,
    /// The operator's name, for failures and traces.
    pub label: &'static CStr,
    /// The estimated run time on one core in nanoseconds. `docs/operators.md` has the model.
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
    /// A plan of no work, which is filled in place, because a block is too large to be moved around.
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

    /// The argument block, which `kernel` is given with its size.
    #[inline]
    pub fn args(&self) -> &[u8] {
        let words = if self.spilled.is_empty() {
            self.inline.as_ptr().cast::<u8>()
        } else {
            self.spilled.as_ptr().cast::<u8>()
        };
        // SAFETY: `push` initialised the first `bytes` bytes of the space in use, which has at least that many.
        unsafe { std::slice::from_raw_parts(words, self.bytes as usize) }
    }

    /// Appends plain data. Its size is a multiple of 8, so that whole words follow.
    #[inline]
    pub(crate) fn push<T: Pod>(&mut self, value: &T) {
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        self.push_bytes(bytemuck::bytes_of(value));
    }

    /// Appends the first numbers of an array of fixed size. That is faster than copying a slice.
    #[inline]
    pub(crate) fn push_first<const N: usize>(&mut self, numbers: &[i64; N], count: usize) {
        let at = self.bytes as usize;
        if at + N * 8 <= INLINE_WORDS * 8 && self.spilled.is_empty() {
            // SAFETY: the inline space has room for all N numbers, as just compared. Those beyond `count` are not
            // counted.
            unsafe {
                let to = self.inline.as_mut_ptr().cast::<u8>().add(at);
                to.copy_from_nonoverlapping(numbers.as_ptr().cast::<u8>(), N * 8);
            }
            self.bytes += count.min(N) as u32 * 8;
        } else {
            self.push_numbers(&numbers[..count.min(N)]);
        }
    }

    /// Appends a block of words.
    pub(crate) fn push_words(&mut self, words: &[u64]) {
        self.push_bytes(bytemuck::cast_slice(words));
    }

    /// Appends 64-bit numbers after the header.
    #[inline]
    pub(crate) fn push_numbers(&mut self, numbers: &[i64]) {
        self.push_bytes(bytemuck::cast_slice(numbers));
    }

    #[inline]
    fn push_bytes(&mut self, data: &[u8]) {
        let at = self.bytes as usize;
        if at + data.len() <= INLINE_WORDS * 8 && self.spilled.is_empty() {
            // SAFETY: the inline space has room for the data after its first `at` bytes, as just compared, and `data`
            // is not a reference into it.
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

/// The estimated time for `elements` at `picoseconds` each, plus the overhead of a kernel.
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
