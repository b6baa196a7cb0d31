//! Runs a function of up to three operands over all elements. The engine splits the range over threads, walks
//! dimensions, converts elements, and gives dense blocks of values to the function.
//!
//! Only here do elementwise kernels turn addresses into memory. Functions see safe slices only. Inputs
//! that are dense and need no conversion are passed where they lie. All others are gathered into a block on the stack.
//! Results go straight to memory where that is allowed.
//!
//! The SAFETY lines below rely on two things. Planning has checked that operands are aligned, and that the output
//! overlaps an input only element for element. The contract of [`run`] says that operands lie in live memory.

use std::mem::{MaybeUninit, size_of};

use bytemuck::{Pod, Zeroable};

use crate::convert::{Compute, Load, Store};
use crate::cursor::Cursor;
use crate::geometry::{Dim, MAX_OPERANDS, MAX_RANK};
use crate::memory::{Base, Reader, Writer, read_dims, read_number};
use crate::parallel;
use outrigger_device::{Code, DType};

/// The values of a block: enough to hide the cost of a block, and few enough for the first cache.
pub(crate) const BLOCK: usize = 1024;

/// Rows of at least this length are passed one by one. Shorter ones are gathered into full blocks.
const LONG_ROW: usize = 256;

/// A call with a single row of at most this length runs without setting up a walk.
const SHORT: usize = 32;

/// Marks an operand whose value is in the block itself, in place of an address.
pub(crate) const IMMEDIATE: u8 = u8::MAX;

/// The fixed header of an argument block. Dimensions follow, as `Geometry::push` writes them.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    /// Elements of the output.
    pub(crate) numel: i64,
    /// The output's address, then the inputs'; for an immediate operand its value.
    pub(crate) addresses: [u64; MAX_OPERANDS],
    /// The numbers of the function.
    pub(crate) params: [u64; 4],
    /// The element types, by number, or `IMMEDIATE`.
    pub(crate) dtypes: [u8; MAX_OPERANDS],
    /// The number of dimensions after the header.
    pub(crate) rank: u16,
    /// The smallest number of elements that is worth a thread, in blocks.
    pub(crate) grain_blocks: u16,
}

/// The number of an element type in a header.
#[inline]
pub(crate) fn code(dtype: DType) -> u8 {
    dtype.0 as u8
}

/// Computes a block of results from as many values of each input. Must write all of them. The number is the position of
/// the first result, in the order in which the output's memory is walked.
pub(crate) type BlockFn<'a, In, Out, const N: usize> =
    &'a (dyn Fn(i64, [&[In]; N], &mut [MaybeUninit<Out>]) + Sync);

/// An operand at the time that the kernel runs.
struct Source<In> {
    base: *const u8,
    load: Load<In>,
    /// Whether values can be used where they lie.
    native: bool,
    /// Whether the operand walks memory densely over all dimensions.
    dense: bool,
    /// Whether every row is the same.
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

// SAFETY: the pointers are to device memory, which threads of a kernel share. Inputs are only read. Each element of the
// output is written by the one thread whose range has it.
unsafe impl<In, Out, const N: usize> Sync for Walk<In, Out, N> {}

/// Runs `function` over all elements.
///
/// # Safety
/// Header and tail are those of a plan for `In`, `Out` and N inputs. The operands, moved by `bias`, lie in live memory.
/// Nobody else writes the operands meanwhile, and nobody else reads the output.
pub(crate) unsafe fn run<In: Compute, Out: Compute, const N: usize>(
    header: &Header,
    tail: &[u8],
    bias: i64,
    function: BlockFn<'_, In, Out, N>,
) -> Code {
    if header.rank == 1 && header.numel <= SHORT as i64 {
        // SAFETY: this function's contract is that of `short`.
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
        // SAFETY: this function's contract: the operands are live. The range lies within the elements of the plan, and
        // no other thread has a part of it.
        unsafe { walk.range(begin, end, function) };
    });
    Code::OK
}

/// Runs a short row, all of whose values pass through the stack. `None` if the block is not of this kernel.
///
/// # Safety
/// The contract of [`run`].
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
            // SAFETY: this function's contract: n elements of the operand at this stride are live.
            unsafe { reader.copy(from, stride, block) };
        }
        // SAFETY: all n values were written just now.
        *input = unsafe { std::slice::from_raw_parts(block.as_ptr().cast::<In>(), n) };
    }
    function(0, inputs, &mut results[..n]);
    let writer = Writer::<Out>::new(header.dtypes[0])?;
    // SAFETY: a `BlockFn` writes all results that it is given room for.
    let values = unsafe { std::slice::from_raw_parts(results.as_ptr().cast::<Out>(), n) };
    // SAFETY: this function's contract: n elements of the output at this stride are live.
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

    /// Computes elements `begin..end` in the order in which dimensions are walked.
    ///
    /// # Safety
    /// The contract of [`run`]; and no other thread computes these elements.
    unsafe fn range(&self, begin: i64, end: i64, function: BlockFn<'_, In, Out, N>) {
        let mut scratch = [const { [const { MaybeUninit::<In>::uninit() }; BLOCK] }; N];
        let mut results = [const { MaybeUninit::<Out>::uninit() }; BLOCK];
        // For each input, what its block holds and may serve again: where it was read, and the number of values.
        let mut repeated = [(std::ptr::null::<u8>(), 0usize); N];
        let mut cursor = Cursor::at(&self.dims[..self.rank], begin);
        let whole_row = self.dims[0].size as usize;
        let mut at = begin;
        while at < end {
            let left = (end - at) as usize;
            let row = cursor.row_left();
            let one_row = row >= LONG_ROW || row >= left;
            // Short rows are taken together. They are whole rows, so that an input whose rows are all the same is
            // reused.
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
                    // SAFETY: this function's contract: the dense elements of type In from element `at` on are live.
                    // They do not change until `function` returns: results go elsewhere first if they overlap.
                    let from = unsafe { source.base.cast::<In>().offset(at as isize) };
                    // SAFETY: the n elements from `from` on are live, and do not change until `function` returns.
                    *input = unsafe { std::slice::from_raw_parts(from, n) };
                    continue;
                }
                let pointer = source.base.wrapping_offset(cursor.offset(k + 1) as isize);
                if one_row && source.native && stride == size_of::<In>() as isize {
                    // SAFETY: within a row of stride 1 the next n elements are dense. They are live, and do not change
                    // until `function` returns.
                    *input = unsafe { std::slice::from_raw_parts(pointer.cast::<In>(), n) };
                    continue;
                }
                if one_row && stride == 0 {
                    if repeated[k].0 != pointer || repeated[k].1 < n {
                        // SAFETY: this function's contract: the row's element is live.
                        unsafe { (source.load)(pointer, 0, &mut block[..1]) };
                        let value = block[0];
                        let fill = row.min(left).min(BLOCK);
                        block[..fill].fill(value);
                        repeated[k] = (pointer, fill);
                    }
                } else if one_row {
                    // SAFETY: this function's contract: the next n elements of the row are live.
                    unsafe { (source.load)(pointer, stride, &mut block[..n]) };
                    repeated[k].1 = 0;
                } else if !source.same_rows || repeated[k].0 != pointer || repeated[k].1 < n {
                    // SAFETY: this function's contract, for the next n elements.
                    unsafe { self.gather(k, &cursor, &mut block[..n]) };
                    repeated[k] = (pointer, if source.same_rows { n } else { 0 });
                }
                // SAFETY: the first n values of the block were written just now, or before if they are reused.
                *input = unsafe { std::slice::from_raw_parts(block.as_ptr().cast::<In>(), n) };
            }

            // SAFETY: this function's contract, for elements `at..at + n`.
            unsafe { self.emit(at, n, one_row, &cursor, inputs, &mut results, function) };
            at += n as i64;
            cursor.advance(n);
        }
    }

    /// Computes n results and writes them to their places.
    ///
    /// # Safety
    /// The contract of [`Walk::range`] for elements `at..at + n`, which are in one row if `one_row`.
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
                // SAFETY: n dense places of type Out, which are this thread's, and no input is there.
                let out =
                    unsafe { std::slice::from_raw_parts_mut(place.cast::<MaybeUninit<Out>>(), n) };
                function(at, inputs, out);
                return;
            }
        }
        function(at, inputs, &mut results[..n]);
        // SAFETY: a `BlockFn` writes all results that it is given room for.
        let values = unsafe { std::slice::from_raw_parts(results.as_ptr().cast::<Out>(), n) };
        if one_row {
            // SAFETY: the n places of this row are this thread's. The inputs are not used any more.
            unsafe { (self.sink.store)(values, place, stride) };
        } else {
            let mut cursor = cursor.clone();
            let mut done = 0;
            while done < n {
                let part = cursor.row_left().min(n - done);
                let place = self.sink.base.wrapping_offset(cursor.offset(0) as isize);
                // SAFETY: the part lies in one row, and is this thread's.
                unsafe { (self.sink.store)(&values[done..done + part], place, stride) };
                done += part;
                cursor.advance(part);
            }
        }
    }

    /// Reads values of input k across rows.
    ///
    /// # Safety
    /// The elements from the cursor on, as many as the block has room for, are in the range of this thread.
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
                // SAFETY: this function's contract: the row's one element is live.
                unsafe { (source.load)(pointer, 0, &mut room[..1]) };
                room.fill(room[0]);
            } else {
                // SAFETY: this function's contract: the part lies in one row, and is live.
                unsafe { (source.load)(pointer, stride, room) };
            }
            done += part;
            cursor.advance(part);
        }
    }
}

/// Reads the value that stands in the header instead of an address.
unsafe fn load_immediate<C: Compute>(from: *const u8, _: isize, out: &mut [MaybeUninit<C>]) {
    // SAFETY: `from` is a word of the header, which is aligned and lives as long as the kernel runs.
    let word = unsafe { from.cast::<u64>().read() };
    out.fill(MaybeUninit::new(C::from_word(word)));
}
