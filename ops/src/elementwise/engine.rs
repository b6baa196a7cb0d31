//! Runs a function of up to three operands over all elements: splits the range over threads, walks
//! dimensions, converts elements, and hands dense blocks of values to the function.
//!
//! This is the one place where elementwise kernels turn addresses into memory. Functions see safe
//! slices only: inputs that are dense in memory and need no conversion are passed as they are, all
//! others are gathered into a block on the stack; results go straight to memory if they may.
//!
//! Its promise rests on what planning checked: operands lie where the block says, in live memory
//! (the caller's promise to the stream), aligned, and the output does not overlap an input except
//! element for element.

use std::mem::{MaybeUninit, size_of};

use bytemuck::{Pod, Zeroable};

use crate::convert::{Compute, Load, Store};
use crate::cursor::Cursor;
use crate::geometry::{Dim, MAX_OPERANDS, MAX_RANK};
use crate::memory::{Base, Reader, Writer, read_dims, read_number};
use crate::parallel;
use outrigger_device::{Code, DType};

/// Values per block: large enough to hide the cost of a block, small enough for the first cache.
pub(crate) const BLOCK: usize = 1024;

/// Rows at least this long are handed over one by one; shorter ones are gathered into full blocks.
const LONG_ROW: usize = 256;

/// Calls of one row that is no longer than this are run without setting up a walk.
const SHORT: usize = 32;

/// Marks an operand whose value stands in the block itself, in place of its address.
pub(crate) const IMMEDIATE: u8 = u8::MAX;

/// The fixed part of an argument block; dimensions follow as `Geometry::push` wrote them.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    /// Elements of the output.
    pub(crate) numel: i64,
    /// Output first, then inputs; for an immediate operand its value.
    pub(crate) addresses: [u64; MAX_OPERANDS],
    /// Numbers of the function itself.
    pub(crate) params: [u64; 4],
    /// Element types, by number, or `IMMEDIATE`.
    pub(crate) dtypes: [u8; MAX_OPERANDS],
    /// Dimensions in the tail.
    pub(crate) rank: u16,
    /// Smallest number of elements worth a thread, in blocks.
    pub(crate) grain_blocks: u16,
}

/// The number of an element type in a header.
#[inline]
pub(crate) fn code(dtype: DType) -> u8 {
    dtype.0 as u8
}

/// Computes a block of results from as many values of each input, and must write all of them. The
/// number is the position of the first in the order in which the output's memory is walked.
pub(crate) type BlockFn<'a, In, Out, const N: usize> =
    &'a (dyn Fn(i64, [&[In]; N], &mut [MaybeUninit<Out>]) + Sync);

/// An operand at run time.
struct Source<In> {
    base: *const u8,
    load: Load<In>,
    /// Values can be used where they lie.
    native: bool,
    /// The operand walks memory densely over all dimensions.
    dense: bool,
    /// Every row is the same.
    same_rows: bool,
}

struct Sink<Out> {
    base: *mut u8,
    store: Store<Out>,
    native: bool,
    dense: bool,
}

struct Walk<In, Out, const N: usize> {
    dims: [Dim; MAX_RANK],
    rank: usize,
    sources: [Source<In>; N],
    sink: Sink<Out>,
}

// SAFETY: the pointers are to device memory, which threads of a kernel share: inputs are only read,
// and each element of the output is written by the one thread whose range holds it.
unsafe impl<In, Out, const N: usize> Sync for Walk<In, Out, N> {}

/// Runs `function` over all elements.
///
/// # Safety
/// Header and tail are those of a plan for `In`, `Out` and N inputs, and the operands, moved by
/// `bias`, lie in live memory that nobody else writes, and whose output nobody else reads, meanwhile.
pub(crate) unsafe fn run<In: Compute, Out: Compute, const N: usize>(
    header: &Header,
    tail: &[u8],
    bias: i64,
    function: BlockFn<'_, In, Out, N>,
) -> Code {
    if header.rank == 1 && header.numel <= SHORT as i64 {
        // SAFETY: as promised.
        return match unsafe { short(header, tail, bias, function) } {
            Some(()) => Code::OK,
            None => Code::INTERNAL,
        };
    }
    let Some(walk) = Walk::<In, Out, N>::new(header, tail, bias) else {
        return Code::INTERNAL;
    };
    let grain = i64::from(header.grain_blocks) * BLOCK as i64;
    parallel::for_range(0, header.numel, grain, &|begin, end| {
        // SAFETY: the range lies within the elements of the plan, parts of other threads are
        // disjoint from it, and memory is the caller's promise.
        unsafe { walk.range(begin, end, function) };
    });
    Code::OK
}

/// Runs a short row: everything passes through the stack. `None` if the block is not of this kernel.
///
/// # Safety
/// As for [`run`].
#[inline]
unsafe fn short<In: Compute, Out: Compute, const N: usize>(
    header: &Header,
    tail: &[u8],
    bias: i64,
    function: BlockFn<'_, In, Out, N>,
) -> Option<()> {
    let n = usize::try_from(header.numel).ok()?.min(SHORT);
    let mut scratch = [const { [const { MaybeUninit::<In>::uninit() }; SHORT] }; N];
    let mut results = [const { MaybeUninit::<Out>::uninit() }; SHORT];
    let mut inputs: [&[In]; N] = [&[]; N];
    for (k, (block, input)) in scratch.iter_mut().zip(&mut inputs).enumerate() {
        let block = &mut block[..n];
        if header.dtypes[k + 1] == IMMEDIATE {
            block.fill(MaybeUninit::new(In::from_word(header.addresses[k + 1])));
        } else {
            let reader = Reader::<In>::new(header.dtypes[k + 1])?;
            let stride = read_number(tail, k + 2)?;
            let from = Base::new(header.addresses[k + 1], bias).at(0);
            // SAFETY: the operand is n elements at this stride.
            unsafe { reader.copy(from, stride, block) };
        }
        // SAFETY: all n values were written just now.
        *input = unsafe { std::slice::from_raw_parts(block.as_ptr().cast::<In>(), n) };
    }
    function(0, inputs, &mut results[..n]);
    let writer = Writer::<Out>::new(header.dtypes[0])?;
    // SAFETY: functions write all of what they are given.
    let values = unsafe { std::slice::from_raw_parts(results.as_ptr().cast::<Out>(), n) };
    // SAFETY: the output is n elements at this stride.
    unsafe {
        writer.row(
            values,
            Base::new(header.addresses[0], bias).at(0),
            read_number(tail, 1)?,
        );
    }
    Some(())
}

impl<In: Compute, Out: Compute, const N: usize> Walk<In, Out, N> {
    /// Reads a block; `None` if it was not made for this kernel.
    #[inline]
    fn new(header: &Header, tail: &[u8], bias: i64) -> Option<Self> {
        let (dims, rank) = read_dims(tail, usize::from(header.rank), N + 1)?;
        let dense = |operand: usize, size: usize| {
            let mut expected = size as i64;
            dims[..rank].iter().all(|dim| {
                let fits = dim.strides[operand] == expected;
                expected *= dim.size;
                fits
            })
        };
        let dtype = DType(u32::from(header.dtypes[0]));
        let sink = Sink {
            base: header.addresses[0].wrapping_add_signed(bias) as *mut u8,
            store: Out::storer(dtype)?,
            native: Out::is_native(dtype),
            dense: dense(0, size_of::<Out>()),
        };
        let mut sources = [const { None }; N];
        for (k, slot) in sources.iter_mut().enumerate() {
            *slot = Some(if header.dtypes[k + 1] == IMMEDIATE {
                Source {
                    base: (&raw const header.addresses[k + 1]).cast::<u8>(),
                    load: load_immediate::<In>,
                    native: false,
                    dense: false,
                    same_rows: true,
                }
            } else {
                let dtype = DType(u32::from(header.dtypes[k + 1]));
                Source {
                    base: header.addresses[k + 1].wrapping_add_signed(bias) as *const u8,
                    load: In::loader(dtype)?,
                    native: In::is_native(dtype),
                    dense: dense(k + 1, size_of::<In>()),
                    same_rows: dims[1..rank].iter().all(|dim| dim.strides[k + 1] == 0),
                }
            });
        }
        let sources =
            sources.map(|source| source.expect("every slot was filled by the loop above"));
        Some(Self {
            dims,
            rank,
            sources,
            sink,
        })
    }

    /// Computes elements `begin..end` of the order in which dimensions are walked.
    ///
    /// # Safety
    /// As for [`run`], and no other thread computes these elements.
    unsafe fn range(&self, begin: i64, end: i64, function: BlockFn<'_, In, Out, N>) {
        let mut scratch = [const { [const { MaybeUninit::<In>::uninit() }; BLOCK] }; N];
        let mut results = [const { MaybeUninit::<Out>::uninit() }; BLOCK];
        // What a block holds that can be used again: where it was read, and how many values.
        let mut repeated = [(std::ptr::null::<u8>(), 0usize); N];
        let mut cursor = Cursor::at(&self.dims[..self.rank], begin);
        let whole_row = self.dims[0].size as usize;
        let mut at = begin;
        while at < end {
            let left = (end - at) as usize;
            let row = cursor.row_left();
            let one_row = row >= LONG_ROW || row >= left;
            // Short rows are taken together; whole ones, so that rows that are all the same line up.
            let n = if one_row {
                left.min(row).min(BLOCK)
            } else if row < whole_row {
                row
            } else {
                left.min(BLOCK / whole_row * whole_row)
            };
            let one_row = one_row || n <= row;
            let inner = &self.dims[0].strides;

            let mut inputs: [&[In]; N] = [&[]; N];
            for (k, ((source, block), input)) in self
                .sources
                .iter()
                .zip(&mut scratch)
                .zip(&mut inputs)
                .enumerate()
            {
                let stride = inner[k + 1] as isize;
                if source.dense && source.native {
                    // SAFETY: dense elements of type In from element `at` on; they stay in place and
                    // unchanged until `function` returns: results go elsewhere if they overlap.
                    let from = unsafe { source.base.cast::<In>().offset(at as isize) };
                    // SAFETY: as above.
                    *input = unsafe { std::slice::from_raw_parts(from, n) };
                    continue;
                }
                let pointer = source.base.wrapping_offset(cursor.offset(k + 1) as isize);
                if one_row && source.native && stride == size_of::<In>() as isize {
                    // SAFETY: as above: within a row of stride 1 the next n elements are dense.
                    *input = unsafe { std::slice::from_raw_parts(pointer.cast::<In>(), n) };
                    continue;
                }
                if one_row && stride == 0 {
                    if repeated[k].0 != pointer || repeated[k].1 < n {
                        // SAFETY: the row's element is readable.
                        unsafe { (source.load)(pointer, 0, &mut block[..1]) };
                        let value = block[0];
                        let fill = row.min(left).min(BLOCK);
                        block[..fill].fill(value);
                        repeated[k] = (pointer, fill);
                    }
                } else if one_row {
                    // SAFETY: the next n elements of the row are readable.
                    unsafe { (source.load)(pointer, stride, &mut block[..n]) };
                    repeated[k].1 = 0;
                } else if !source.same_rows || repeated[k].0 != pointer || repeated[k].1 < n {
                    // SAFETY: n more elements are in range.
                    unsafe { self.gather(k, &cursor, &mut block[..n]) };
                    repeated[k] = (pointer, if source.same_rows { n } else { 0 });
                }
                // SAFETY: the first n values of the block were written just now or, repeated, before.
                *input = unsafe { std::slice::from_raw_parts(block.as_ptr().cast::<In>(), n) };
            }

            // SAFETY: element `at` is in range.
            unsafe { self.emit(at, n, one_row, &cursor, inputs, &mut results, function) };
            at += n as i64;
            cursor.advance(n);
        }
    }

    /// Computes n results and puts them in their places.
    ///
    /// # Safety
    /// As for `range`, for elements `at..at + n`, in one row if `one_row`.
    #[expect(
        clippy::too_many_arguments,
        reason = "the state of one loop, split only to be read"
    )]
    #[inline(always)]
    unsafe fn emit(
        &self,
        at: i64,
        n: usize,
        one_row: bool,
        cursor: &Cursor<'_>,
        inputs: [&[In]; N],
        results: &mut [MaybeUninit<Out>; BLOCK],
        function: BlockFn<'_, In, Out, N>,
    ) {
        let stride = self.dims[0].strides[0] as isize;
        let row_dense = one_row && stride == size_of::<Out>() as isize;
        let place = if self.sink.dense {
            self.sink
                .base
                .wrapping_offset(at as isize * size_of::<Out>() as isize)
        } else {
            self.sink.base.wrapping_offset(cursor.offset(0) as isize)
        };
        if self.sink.native && (self.sink.dense || row_dense) {
            let (from, to) = (place as usize, place as usize + n * size_of::<Out>());
            let apart = inputs.iter().all(|input| {
                let range = input.as_ptr_range();
                range.end as usize <= from || to <= range.start as usize
            });
            if apart {
                // SAFETY: n dense places of type Out, ours alone, and apart from the inputs.
                let out =
                    unsafe { std::slice::from_raw_parts_mut(place.cast::<MaybeUninit<Out>>(), n) };
                function(at, inputs, out);
                return;
            }
        }
        function(at, inputs, &mut results[..n]);
        // SAFETY: functions write all of what they are given.
        let values = unsafe { std::slice::from_raw_parts(results.as_ptr().cast::<Out>(), n) };
        if one_row {
            // SAFETY: n places of this row are ours; inputs are no longer used.
            unsafe { (self.sink.store)(values, place, stride) };
        } else {
            let mut cursor = cursor.clone();
            let mut done = 0;
            while done < n {
                let part = cursor.row_left().min(n - done);
                let place = self.sink.base.wrapping_offset(cursor.offset(0) as isize);
                // SAFETY: the part lies in one row and is ours.
                unsafe { (self.sink.store)(&values[done..done + part], place, stride) };
                done += part;
                cursor.advance(part);
            }
        }
    }

    /// Reads values of input k across rows.
    ///
    /// # Safety
    /// As many elements from the cursor on are in range.
    unsafe fn gather(&self, k: usize, cursor: &Cursor<'_>, block: &mut [MaybeUninit<In>]) {
        let source = &self.sources[k];
        let stride = self.dims[0].strides[k + 1] as isize;
        let mut cursor = cursor.clone();
        let mut done = 0;
        while done < block.len() {
            let part = cursor.row_left().min(block.len() - done);
            let pointer = source.base.wrapping_offset(cursor.offset(k + 1) as isize);
            let room = &mut block[done..done + part];
            if stride == 0 {
                // SAFETY: the row's one element is readable.
                unsafe { (source.load)(pointer, 0, &mut room[..1]) };
                room.fill(room[0]);
            } else {
                // SAFETY: the part lies in one row, which is readable.
                unsafe { (source.load)(pointer, stride, room) };
            }
            done += part;
            cursor.advance(part);
        }
    }
}

/// Reads the value that stands in the header instead of an address.
unsafe fn load_immediate<C: Compute>(from: *const u8, _: isize, out: &mut [MaybeUninit<C>]) {
    // SAFETY: `from` is the header's word, which is aligned and lives as long as the kernel runs.
    let word = unsafe { from.cast::<u64>().read() };
    out.fill(MaybeUninit::new(C::from_word(word)));
}
