//! Argument blocks and device memory as kernels see them.
//!
//! Kernels receive raw addresses. Only this file and the elementwise engine turn addresses into memory, so that each
//! assumption is written down once: a block comes from a plan of the same kernel; operands lie in live memory, and are
//! aligned to their element size; nobody else writes them meanwhile.

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};

use bytemuck::Pod;
use outrigger_device::DType;

use crate::convert::{Compute, Load, Store};
use crate::geometry::{Dim, MAX_OPERANDS, MAX_RANK};

/// The bytes of an argument block.
#[derive(Clone, Copy)]
pub(crate) struct ArgumentBlock<'a>(&'a [u8]);

impl<'a> ArgumentBlock<'a> {
    /// The block that a kernel receives.
    ///
    /// # Safety
    /// `args` points to `args_size` readable bytes for as long as the result is used.
    #[inline]
    pub(crate) unsafe fn new(args: *const c_void, args_size: u32) -> Self {
        // SAFETY: this function's contract: the bytes are readable. Bytes need no alignment.
        Self(unsafe { std::slice::from_raw_parts(args.cast::<u8>(), args_size as usize) })
    }

    /// The block as words, wherever its bytes lie.
    pub(crate) fn words(self) -> Vec<u64> {
        let chunks = self.0.as_chunks::<8>().0.iter();
        chunks.map(|chunk| u64::from_ne_bytes(*chunk)).collect()
    }

    /// The rest of a block that has several parts.
    #[inline]
    pub(crate) fn rest(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The fixed header, and what follows it; `None` if the block is too short.
    #[inline]
    pub(crate) fn split<H: Pod>(self) -> Option<(H, &'a [u8])> {
        let (header, tail) = self.0.split_at_checked(size_of::<H>())?;
        Some((bytemuck::pod_read_unaligned(header), tail))
    }
}

/// A 64-bit number after the header.
#[inline]
pub(crate) fn read_number(words: &[u8], index: usize) -> Option<i64> {
    let bytes = words.get(index * 8..index * 8 + 8)?;
    Some(i64::from_ne_bytes(bytes.try_into().ok()?))
}

/// The dimensions that `Geometry::push` wrote, and their number; `None` if the block is too short.
#[inline]
pub(crate) fn read_dims(
    tail: &[u8],
    rank: usize,
    operands: usize,
) -> Option<([Dim; MAX_RANK], usize)> {
    let words = 1 + operands;
    if rank == 0 || rank > MAX_RANK || tail.len() < rank * words * 8 {
        return None;
    }
    let mut dims = [Dim {
        size: 1,
        strides: [0; MAX_OPERANDS],
    }; MAX_RANK];
    for (dim, words) in dims.iter_mut().zip(tail.chunks_exact(words * 8)).take(rank) {
        dim.size = read_number(words, 0)?;
        for (k, stride) in dim.strides[..operands].iter_mut().enumerate() {
            *stride = read_number(words, 1 + k)?;
        }
    }
    Some((dims, rank))
}

/// Device memory that the threads of a kernel share.
#[derive(Clone, Copy)]
pub(crate) struct Base(*mut u8);

// SAFETY: the threads of a kernel read the same inputs, and write parts of outputs of which no two threads share one.
unsafe impl Send for Base {}
// SAFETY: as for `Send`: shared parts are only read.
unsafe impl Sync for Base {}

impl Base {
    /// A device address, moved to where the host sees its bytes.
    #[inline]
    pub(crate) fn new(address: u64, bias: i64) -> Self {
        Self(address.wrapping_add_signed(bias) as *mut u8)
    }

    /// The place `offset` bytes further on.
    #[inline]
    pub(crate) fn at(self, offset: i64) -> *mut u8 {
        self.0.wrapping_offset(offset as isize)
    }
}

/// Reads elements of one type as values that a kernel computes with.
#[derive(Clone, Copy)]
pub(crate) struct Reader<C> {
    load: Load<C>,
    native: bool,
}

impl<C: Compute> Reader<C> {
    /// Returns `None` if elements of this type, by number, do not convert to `C`.
    #[inline]
    pub(crate) fn new(dtype: u8) -> Option<Self> {
        let dtype = DType(u32::from(dtype));
        Some(Self {
            load: C::loader(dtype)?,
            native: C::is_native(dtype),
        })
    }

    /// As many elements as `scratch` has room for, `stride` bytes apart. The result is the memory itself if the
    /// elements are dense values of `C`; else they are converted into `scratch`.
    ///
    /// # Safety
    /// The elements lie in live memory, are aligned, and nobody writes them while the result is used.
    #[inline]
    pub(crate) unsafe fn row<'s>(
        &self,
        from: *const u8,
        stride: i64,
        scratch: &'s mut [MaybeUninit<C>],
    ) -> &'s [C] {
        if self.native && stride == size_of::<C>() as i64 {
            // SAFETY: the elements are dense values of C, as just compared. This function's contract: they are live and
            // aligned.
            return unsafe { std::slice::from_raw_parts(from.cast::<C>(), scratch.len()) };
        }
        // SAFETY: this function's contract is that of `copy`.
        unsafe { self.copy(from, stride, scratch) }
    }

    /// Converts elements into `scratch` in any case, so that the memory may be written afterwards; see [`Reader::row`].
    ///
    /// # Safety
    /// The contract of [`Reader::row`], until this call returns.
    #[inline]
    pub(crate) unsafe fn copy<'s>(
        &self,
        from: *const u8,
        stride: i64,
        scratch: &'s mut [MaybeUninit<C>],
    ) -> &'s mut [C] {
        // SAFETY: this function's contract: the elements are live and aligned. A loader writes all values that it is
        // given.
        unsafe {
            (self.load)(from, stride as isize, scratch);
            std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<C>(), scratch.len())
        }
    }

    /// One element.
    ///
    /// # Safety
    /// The element lies in live memory, and is aligned.
    #[inline]
    pub(crate) unsafe fn one(&self, from: *const u8) -> C {
        let mut value = [MaybeUninit::uninit()];
        // SAFETY: this function's contract: the element is live and aligned.
        unsafe { self.copy(from, 0, &mut value)[0] }
    }
}

/// Writes values as elements of one type.
#[derive(Clone, Copy)]
pub(crate) struct Writer<C> {
    store: Store<C>,
    native: bool,
}

impl<C: Compute> Writer<C> {
    /// Returns `None` if `C` does not convert to elements of this type, by number.
    #[inline]
    pub(crate) fn new(dtype: u8) -> Option<Self> {
        let dtype = DType(u32::from(dtype));
        Some(Self {
            store: C::storer(dtype)?,
            native: C::is_native(dtype),
        })
    }

    /// Writes all values, `stride` bytes apart.
    ///
    /// # Safety
    /// The places lie in live memory, are aligned, and nobody else uses them meanwhile.
    #[inline]
    pub(crate) unsafe fn row(&self, values: &[C], to: *mut u8, stride: i64) {
        // SAFETY: this function's contract: the places are live, aligned, and used by nobody else.
        unsafe { (self.store)(values, to, stride as isize) };
    }

    /// The places of `count` values in memory, if elements there are dense values of `C`.
    ///
    /// # Safety
    /// The contract of [`Writer::row`], as long as the result is used.
    #[inline]
    pub(crate) unsafe fn place<'p>(
        &self,
        to: *mut u8,
        stride: i64,
        count: usize,
    ) -> Option<&'p mut [MaybeUninit<C>]> {
        (self.native && stride == size_of::<C>() as i64).then(|| {
            // SAFETY: the places are dense values of C, as just compared. This function's contract: they are live,
            // aligned, and used by nobody else.
            unsafe { std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<C>>(), count) }
        })
    }
}

/// A buffer of a kernel that its threads fill. Each thread fills ranges of its own.
pub(crate) struct Slots<'a, T> {
    start: *mut T,
    length: usize,
    borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: the contract of `range`, the only access, is that no two results overlap.
unsafe impl<T: Send> Sync for Slots<'_, T> {}

impl<'a, T> Slots<'a, T> {
    /// Lends a buffer to threads.
    pub(crate) fn new(values: &'a mut [T]) -> Self {
        Self {
            start: values.as_mut_ptr(),
            length: values.len(),
            borrow: std::marker::PhantomData,
        }
    }

    /// A range of the buffer, shortened to what lies within the buffer.
    ///
    /// # Safety
    /// No other result of this function overlaps this one while it is used.
    #[expect(
        clippy::mut_from_ref,
        reason = "ranges of different threads do not overlap"
    )]
    pub(crate) unsafe fn range(&self, first: usize, count: usize) -> &mut [T] {
        let first = first.min(self.length);
        let count = count.min(self.length - first);
        // SAFETY: the range lies within the buffer, as just bounded. This function's contract: no other one overlaps
        // it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), count) }
    }
}
