//! The kernel of reductions: the walk over memory, and the cut of the work for threads.
//!
//! The pieces of the work depend on the shape alone, and never on the number of threads.

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};

use outrigger_device::{Code, DType};

use super::{Header, Reducer};
use crate::cursor::Cursor;
use crate::geometry::{Dim, MAX_RANK};
use crate::isa::{Isa, Vectorised, dispatch};
use crate::memory::{ArgumentBlock, Base, Reader, Slots, Writer, read_dims};
use crate::parallel;

/// The columns that are reduced at once.
const COLUMNS: usize = 256;

/// The values of a block.
const BLOCK: usize = 1024;

/// The values of a piece of work.
const PIECE: i64 = 1 << 15;

/// The kernel of a reducer.
///
/// # Safety
/// `args` is a block of `args_size` bytes that `Reduction::plan` made for this kernel, and its
/// operands, moved by `bias`, lie in live memory.
pub(super) unsafe extern "C" fn kernel<R: Reducer>(
    args: *const c_void,
    args_size: u32,
    bias: i64,
) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((header, tail)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let Some(work) = Work::<R>::new(&header, tail, bias) else {
        return Code::INTERNAL.0;
    };
    // SAFETY: this function's contract: the operands are live.
    unsafe {
        if work.across() {
            work.columns()
        } else {
            work.rows()
        }
    }
    Code::OK.0
}

struct Work<R: Reducer> {
    reducer: R,
    kept_dims: [Dim; MAX_RANK],
    kept_rank: usize,
    reduced_dims: [Dim; MAX_RANK],
    reduced_rank: usize,
    kept: i64,
    reduced: i64,
    input: Base,
    reader: Reader<R::In>,
    first: Option<(Base, Writer<R::Out>)>,
    second: Option<(Base, Writer<R::Second>)>,
}

impl<R: Reducer> Work<R> {
    fn new(header: &Header, tail: &[u8], bias: i64) -> Option<Self> {
        let (kept_dims, kept_rank) = read_dims(tail, usize::from(header.kept_rank), 3)?;
        let tail = tail.get(kept_rank * 32..)?;
        let (reduced_dims, reduced_rank) = read_dims(tail, usize::from(header.reduced_rank), 3)?;
        let wanted = |k: usize| header.dtypes[k] != DType::INVALID.0 as u8;
        Some(Self {
            reducer: R::new(header.param),
            kept_dims,
            kept_rank,
            reduced_dims,
            reduced_rank,
            kept: header.kept,
            reduced: header.reduced,
            input: Base::new(header.input, bias),
            reader: Reader::new(header.dtypes[0])?,
            first: if wanted(1) {
                Some((
                    Base::new(header.outputs[0], bias),
                    Writer::new(header.dtypes[1])?,
                ))
            } else {
                None
            },
            second: if wanted(2) {
                Some((
                    Base::new(header.outputs[1], bias),
                    Writer::new(header.dtypes[2])?,
                ))
            } else {
                None
            },
        })
    }

    /// Whether memory is walked across the reduced dimensions, a row of columns at a time.
    fn across(&self) -> bool {
        let (kept, reduced) = (&self.kept_dims[0], &self.reduced_dims[0]);
        kept.size >= 16 && kept.strides[0].abs() < reduced.strides[0].abs() && self.reduced > 1
    }

    /// Reduces along the reduced dimensions, one result after the other.
    ///
    /// # Safety
    /// The operands of the plan lie in live memory.
    unsafe fn rows(&self) {
        let pieces = ((self.reduced + PIECE - 1) / PIECE).max(1);
        if pieces == 1 {
            let grain = PIECE / self.reduced.max(1);
            parallel::for_range(0, self.kept, grain, &|begin, end| {
                let mut cursor = Cursor::at(&self.kept_dims[..self.kept_rank], begin);
                for _ in begin..end {
                    // SAFETY: this function's contract: all values of this result are live.
                    let state = unsafe { self.piece(cursor.offset(0), 0, self.reduced) };
                    // SAFETY: this thread alone writes this result.
                    unsafe { self.write(&cursor, state) };
                    cursor.advance(1);
                }
            });
            return;
        }
        // Each result has so many values that they are cut into pieces. The states of pieces are combined at the end.
        let batch = (4096 / pieces).max(1);
        let mut first = 0;
        while first < self.kept {
            let results = batch.min(self.kept - first);
            let mut states = vec![self.reducer.start(); (results * pieces) as usize];
            let slots = Slots::new(&mut states);
            parallel::for_range(0, results * pieces, 1, &|begin, end| {
                for item in begin..end {
                    let cursor =
                        Cursor::at(&self.kept_dims[..self.kept_rank], first + item / pieces);
                    let from = item % pieces * PIECE;
                    let to = (from + PIECE).min(self.reduced);
                    // SAFETY: this function's contract: values `from..to` of this result are live.
                    let state = unsafe { self.piece(cursor.offset(0), from, to) };
                    // SAFETY: there is a slot for each item, and this item is this thread's.
                    unsafe { slots.range(item as usize, 1)[0] = state };
                }
            });
            for (result, states) in states.chunks_exact(pieces as usize).enumerate() {
                let start = self.reducer.start();
                let state = states
                    .iter()
                    .fold(start, |a, &b| self.reducer.combine(a, b));
                let cursor = Cursor::at(&self.kept_dims[..self.kept_rank], first + result as i64);
                // SAFETY: each result is written here alone, once.
                unsafe { self.write(&cursor, state) };
            }
            first += results;
        }
    }

    /// The state of values `from..to` of a result. `offset` is where the values of the result begin.
    ///
    /// # Safety
    /// The values lie in live memory.
    unsafe fn piece(&self, offset: i64, from: i64, to: i64) -> R::State {
        let mut scratch = [const { MaybeUninit::<R::In>::uninit() }; BLOCK];
        let mut state = self.reducer.start();
        let mut cursor = Cursor::at(&self.reduced_dims[..self.reduced_rank], from);
        let stride = self.reduced_dims[0].strides[0];
        let dense = stride == size_of::<R::In>() as i64;
        let mut at = from;
        while at < to {
            let left = (to - at) as usize;
            // A part is at most a block, which is what `scratch` has room for.
            let part = cursor.row_left().min(left).min(BLOCK);
            let pointer = self.input.at(offset + cursor.offset(0));
            let part = if dense || cursor.row_left() >= part.min(64) || part == left {
                // SAFETY: this function's contract: `part` values of one row are live.
                let values = unsafe { self.reader.row(pointer, stride, &mut scratch[..part]) };
                state = dispatch(Take {
                    reducer: self.reducer,
                    state,
                    first: at,
                    values,
                });
                cursor.advance(part);
                part
            } else {
                // Short rows are gathered, so that each call of the reducer has a block of values.
                let goal = left.min(BLOCK);
                let mut filled = 0;
                while filled < goal {
                    let part = cursor.row_left().min(goal - filled);
                    let pointer = self.input.at(offset + cursor.offset(0));
                    let room = &mut scratch[filled..filled + part];
                    // SAFETY: this function's contract: `part` values of one row are live.
                    unsafe { self.reader.copy(pointer, stride, room) };
                    filled += part;
                    cursor.advance(part);
                }
                // SAFETY: the loop above filled the first `filled` values.
                let values =
                    unsafe { std::slice::from_raw_parts(scratch.as_ptr().cast::<R::In>(), filled) };
                state = dispatch(Take {
                    reducer: self.reducer,
                    state,
                    first: at,
                    values,
                });
                filled
            };
            at += part as i64;
        }
        state
    }

    /// Reduces across the reduced dimensions, a band of columns at a time.
    ///
    /// # Safety
    /// The operands of the plan lie in live memory.
    unsafe fn columns(&self) {
        let width = self.kept_dims[0].size;
        let bands = (width + COLUMNS as i64 - 1) / COLUMNS as i64;
        let strips = self.kept / width * bands;
        // One thread takes all values of a strip, unless there are fewer strips than threads.
        let depth = (PIECE / width.min(COLUMNS as i64)).max(1);
        let pieces = if strips >= 16 {
            1
        } else {
            (self.reduced + depth - 1) / depth
        };
        let depth = (self.reduced + pieces - 1) / pieces;
        let band_width = width.min(COLUMNS as i64) as usize;
        let batch = (4096 / pieces).max(1);
        let mut first = 0;
        while first < strips {
            let count = batch.min(strips - first);
            if pieces == 1 {
                let grain = (PIECE / (band_width as i64 * self.reduced)).max(1);
                parallel::for_range(first, first + count, grain, &|begin, end| {
                    for strip in begin..end {
                        let mut states = [self.reducer.start(); COLUMNS];
                        // SAFETY: this function's contract: all values of the strip are live.
                        unsafe {
                            let n = self.strip(strip, bands, 0, self.reduced, &mut states);
                            self.write_strip(strip, bands, &states[..n]);
                        }
                    }
                });
            } else {
                let mut states = vec![self.reducer.start(); (count * pieces) as usize * band_width];
                let slots = Slots::new(&mut states);
                parallel::for_range(0, count * pieces, 1, &|begin, end| {
                    for item in begin..end {
                        let mut states = [self.reducer.start(); COLUMNS];
                        let from = item % pieces * depth;
                        let to = (from + depth).min(self.reduced);
                        // SAFETY: this function's contract: values `from..to` of the strip are live.
                        let n = unsafe {
                            self.strip(first + item / pieces, bands, from, to, &mut states)
                        };
                        // SAFETY: there is a row of slots for each item, and this item is this thread's.
                        let row = unsafe { slots.range(item as usize * band_width, n) };
                        row.copy_from_slice(&states[..n]);
                    }
                });
                for (k, parts) in states
                    .chunks_exact(pieces as usize * band_width)
                    .enumerate()
                {
                    let mut total = [self.reducer.start(); COLUMNS];
                    for part in parts.chunks_exact(band_width) {
                        for (total, &state) in total.iter_mut().zip(part) {
                            *total = self.reducer.combine(*total, state);
                        }
                    }
                    let strip = first + k as i64;
                    let n = self.strip_width(strip, bands);
                    // SAFETY: each result is written here alone, once.
                    unsafe { self.write_strip(strip, bands, &total[..n]) };
                }
            }
            first += count;
        }
    }

    /// The number of columns of a strip.
    fn strip_width(&self, strip: i64, bands: i64) -> usize {
        let first = strip % bands * COLUMNS as i64;
        (self.kept_dims[0].size - first).min(COLUMNS as i64) as usize
    }

    fn strip_cursor(&self, strip: i64, bands: i64) -> Cursor<'_> {
        let first = strip % bands * COLUMNS as i64;
        let position = strip / bands * self.kept_dims[0].size + first;
        Cursor::at(&self.kept_dims[..self.kept_rank], position)
    }

    /// Takes values `from..to` of all columns of a strip into their states. Returns the number of columns.
    ///
    /// # Safety
    /// The values lie in live memory.
    unsafe fn strip(
        &self,
        strip: i64,
        bands: i64,
        from: i64,
        to: i64,
        states: &mut [R::State; COLUMNS],
    ) -> usize {
        let n = self.strip_width(strip, bands);
        let base = self.strip_cursor(strip, bands).offset(0);
        let mut scratch = [const { MaybeUninit::<R::In>::uninit() }; COLUMNS];
        let mut cursor = Cursor::at(&self.reduced_dims[..self.reduced_rank], from);
        for index in from..to {
            let pointer = self.input.at(base + cursor.offset(0));
            let stride = self.kept_dims[0].strides[0];
            // SAFETY: this function's contract: n values of one row of columns are live.
            let values = unsafe { self.reader.row(pointer, stride, &mut scratch[..n]) };
            dispatch(TakeEach {
                reducer: self.reducer,
                states: &mut states[..n],
                index,
                values,
            });
            cursor.advance(1);
        }
        n
    }

    /// Writes the results of a strip.
    ///
    /// # Safety
    /// The outputs lie in live memory, and no other thread writes these results.
    unsafe fn write_strip(&self, strip: i64, bands: i64, states: &[R::State]) {
        let mut cursor = self.strip_cursor(strip, bands);
        for &state in states {
            // SAFETY: this function's contract. The cursor is at this column's result.
            unsafe { self.write(&cursor, state) };
            cursor.advance(1);
        }
    }

    /// Writes one result.
    ///
    /// # Safety
    /// The outputs lie in live memory, and no other thread writes this result.
    unsafe fn write(&self, cursor: &Cursor<'_>, state: R::State) {
        let (first, second) = self.reducer.finish(state, self.reduced);
        if let Some((base, writer)) = &self.first {
            // SAFETY: this function's contract: the place of this result is live, and this thread's.
            unsafe { writer.row(&[first], base.at(cursor.offset(1)), 0) };
        }
        if let Some((base, writer)) = &self.second {
            // SAFETY: this function's contract: the place of this result is live, and this thread's.
            unsafe { writer.row(&[second], base.at(cursor.offset(2)), 0) };
        }
    }
}

struct Take<'a, R: Reducer> {
    reducer: R,
    state: R::State,
    first: i64,
    values: &'a [R::In],
}

impl<R: Reducer> Vectorised for Take<'_, R> {
    type Output = R::State;
    #[inline(always)]
    fn run<I: Isa>(self) -> R::State {
        self.reducer.take::<I>(self.state, self.first, self.values)
    }
}

struct TakeEach<'a, R: Reducer> {
    reducer: R,
    states: &'a mut [R::State],
    index: i64,
    values: &'a [R::In],
}

impl<R: Reducer> Vectorised for TakeEach<'_, R> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        self.reducer
            .take_each::<I>(self.states, self.index, self.values);
    }
}
