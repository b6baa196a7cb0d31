//! Argument blocks as kernels read them, and device memory as they see it.
//!
//! Kernels receive raw addresses. What turns them into memory is kept here and in the elementwise
//! engine, so that each assumption is written down once: blocks come from a plan of the same kernel,
//! operands lie in live memory, aligned to their element size, and nobody else writes them meanwhile.

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
    /// A block as a kernel receives it.
    ///
    /// # Safety
    /// `args` points to `args_size` readable bytes for as long as the result is used.
    #[inline]
    pub(crate) unsafe fn new(args: *const c_void, args_size: u32) -> Self {
        // SAFETY: the caller's promise; bytes need no alignment.
        Self(unsafe { std::slice::from_raw_parts(args.cast::<u8>(), args_size as usize) })
    }

    /// What is left of a block of several parts.
    #[inline]
    pub(crate) fn rest(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The fixed part, and what follows it; `None` if the block is too short.
    #[inline]
    pub(crate) fn split<H: Pod>(self) -> Option<(H, &'a [u8])> {
        let (header, tail) = self.0.split_at_checked(size_of::<H>())?;
        Some((bytemuck::pod_read_unaligned(header), tail))
    }
}

/// A 64-bit number of a tail.
#[inline]
pub(crate) fn read_number(words: &[u8], index: usize) -> Option<i64> {
    let bytes = words.get(index * 8..index * 8 + 8)?;
    Some(i64::from_ne_bytes(bytes.try_into().ok()?))
}

/// Dimensions as `Geometry::push` wrote them, and their number; `None` if a tail is too short.
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

// SAFETY: threads of a kernel read the same inputs, and write parts of outputs that no two share.
unsafe impl Send for Base {}
// SAFETY: as for Send.
unsafe impl Sync for Base {}

impl Base {
    /// A device address, moved to where its bytes are.
    #[inline]
    pub(crate) fn new(address: u64, bias: i64) -> Self {
        Self(address.wrapping_add_signed(bias) as *mut u8)
    }

    /// The place so many bytes further on.
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
    /// `None` if elements of this type, by number, do not convert to `C`.
    #[inline]
    pub(crate) fn new(dtype: u8) -> Option<Self> {
        let dtype = DType(u32::from(dtype));
        Some(Self {
            load: C::loader(dtype)?,
            native: C::is_native(dtype),
        })
    }

    /// As many elements as `scratch` has room for, `stride` bytes apart: where they lie if they are
    /// dense values of `C`, else converted into `scratch`.
    ///
    /// # Safety
    /// They lie in live memory, aligned, that nobody writes while the result is used.
    #[inline]
    pub(crate) unsafe fn row<'s>(
        &self,
        from: *const u8,
        stride: i64,
        scratch: &'s mut [MaybeUninit<C>],
    ) -> &'s [C] {
        if self.native && stride == size_of::<C>() as i64 {
            // SAFETY: dense, aligned values of C, as promised and just compared.
            return unsafe { std::slice::from_raw_parts(from.cast::<C>(), scratch.len()) };
        }
        // SAFETY: as promised.
        unsafe { self.copy(from, stride, scratch) }
    }

    /// As [`Reader::row`], always into `scratch`, so that the memory may then be written.
    ///
    /// # Safety
    /// As for [`Reader::row`], until this call returns.
    #[inline]
    pub(crate) unsafe fn copy<'s>(
        &self,
        from: *const u8,
        stride: i64,
        scratch: &'s mut [MaybeUninit<C>],
    ) -> &'s mut [C] {
        // SAFETY: as promised; a loader writes all of what it is given.
        unsafe {
            (self.load)(from, stride as isize, scratch);
            std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast::<C>(), scratch.len())
        }
    }

    /// One element.
    ///
    /// # Safety
    /// It lies in live, aligned memory.
    #[inline]
    pub(crate) unsafe fn one(&self, from: *const u8) -> C {
        let mut value = [MaybeUninit::uninit()];
        // SAFETY: as promised.
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
    /// `None` if `C` does not convert to elements of this type, by number.
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
    /// The places lie in live memory, aligned, that nobody else uses meanwhile.
    #[inline]
    pub(crate) unsafe fn row(&self, values: &[C], to: *mut u8, stride: i64) {
        // SAFETY: as promised.
        unsafe { (self.store)(values, to, stride as isize) };
    }

    /// Room for `count` values where they belong, if elements there are dense values of `C`.
    ///
    /// # Safety
    /// As for [`Writer::row`], for as long as the result is used.
    #[inline]
    pub(crate) unsafe fn place<'p>(
        &self,
        to: *mut u8,
        stride: i64,
        count: usize,
    ) -> Option<&'p mut [MaybeUninit<C>]> {
        (self.native && stride == size_of::<C>() as i64).then(|| {
            // SAFETY: dense, aligned room for values of C, as promised and just compared.
            unsafe { std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<C>>(), count) }
        })
    }
}

/// A buffer of the kernel itself that its threads fill, each its own ranges.
pub(crate) struct Slots<'a, T> {
    start: *mut T,
    length: usize,
    borrow: std::marker::PhantomData<&'a mut [T]>,
}

// SAFETY: `range` hands a range to one thread at a time, by its caller's promise.
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

    /// A range of the buffer, shortened if it is not all within.
    ///
    /// # Safety
    /// While the result is used, nobody else asks for any of it.
    #[expect(
        clippy::mut_from_ref,
        reason = "ranges of different threads do not overlap"
    )]
    pub(crate) unsafe fn range(&self, first: usize, count: usize) -> &mut [T] {
        let first = first.min(self.length);
        let count = count.min(self.length - first);
        // SAFETY: within the buffer, as just bounded, and nobody else's, as promised.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), count) }
    }
}
