//! Copies between layouts and element types, and fills.
//!
//! Elements of one type are moved as bits, by their size alone. If memory orders differ, they are moved in square
//! tiles, so that both sides are walked a cache line at a time. Between element types the elementwise engine converts.

use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};

use bytemuck::{Pod, Zeroable};
use outrigger_device::{Code, DType};

use crate::call::{Call, Scalar, Tensor};
use crate::convert::{Class, is_float};
use crate::cursor::Cursor;
use crate::elementwise::engine::{Header, code};
use crate::elementwise::{kernel, maps};
use crate::error::{Result, invalid, unsupported};
use crate::geometry::{self, Dim, MAX_OPERANDS, MAX_RANK};
use crate::memory::{ArgumentBlock, Base, read_dims};
use crate::narrow::{F8E4M3, F8E4M3Fnuz, F8E5M2, F8E5M2Fnuz};
use crate::parallel;
use crate::plan::{KernelFn, Plan};
use crate::registry::Definition;

maps!(Identity[f32, f64, i32, i64]() 1 [x] -> same x);

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"copy",
        plan: plan_copy,
    },
    Definition {
        name: c"fill",
        plan: plan_fill,
    },
    Definition {
        name: c"cat",
        plan: plan_cat,
    },
];

/// Picoseconds per byte moved on one core.
const COST_PER_BYTE: u32 = 50;

/// The edge of a tile, in elements.
const TILE: usize = 32;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Move {
    numel: i64,
    to: u64,
    from: u64,
    rank: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Fill {
    numel: i64,
    to: u64,
    pattern: [u8; 16],
    rank: u64,
}

fn plan_copy(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([output], [input], []) = (call.outputs, call.inputs, call.scalars) else {
        return invalid("1 input, 1 output and no scalars are expected");
    };
    let geometry = geometry::broadcast(output, call.inputs)?;
    if geometry.numel == 0 {
        return Ok(());
    }
    let bytes = (output.dtype().size().unwrap_or(1) + input.dtype().size().unwrap_or(1)) as u32;
    plan.cost_ns = crate::plan::cost_ns(geometry.numel, COST_PER_BYTE * bytes);
    if input.dtype() == output.dtype() {
        plan.kernel = move_kernel_for(bytes / 2);
        plan.push(&Move {
            numel: geometry.numel,
            to: output.address(),
            from: input.address(),
            rank: geometry.rank as u64,
        });
    } else {
        plan.kernel = conversion(input.dtype(), output.dtype())?;
        plan.push(&Header {
            numel: geometry.numel,
            addresses: [output.address(), input.address(), 0, 0],
            params: [0; 4],
            dtypes: [code(output.dtype()), code(input.dtype()), 0, 0],
            rank: geometry.rank as u16,
            grain_blocks: 32,
        });
    }
    geometry.push(2, plan);
    Ok(())
}

/// The kernel that moves elements of this size.
fn move_kernel_for(bytes: u32) -> KernelFn {
    match bytes {
        1 => move_kernel::<u8>,
        2 => move_kernel::<u16>,
        4 => move_kernel::<u32>,
        8 => move_kernel::<u64>,
        // Elements of 16 bytes are moved as pairs of 8 bytes, and need that alignment only.
        _ => move_kernel::<[u64; 2]>,
    }
}

fn plan_cat(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([output], [dim]) = (call.outputs, call.scalars) else {
        return invalid("1 output and 1 scalar, the dimension, are expected");
    };
    let dim = usize::try_from(dim.to_i64()).unwrap_or(usize::MAX);
    let Some(&along) = output.strides().get(dim) else {
        return invalid(format!(
            "dimension {dim} is not one of 0..{}",
            output.rank()
        ));
    };
    let size = geometry::checked_size(output)?;
    let mut first = 0;
    for input in call.inputs {
        let alike = |d: usize| d == dim || input.sizes()[d] == output.sizes()[d];
        if input.rank() != output.rank() || !(0..output.rank()).all(alike) {
            return invalid(format!(
                "input {:?} does not fit output {:?} but for dimension {dim}",
                input.sizes(),
                output.sizes()
            ));
        }
        if input.dtype() != output.dtype() {
            return unsupported(format!(
                "inputs are {} and {}",
                input.dtype(),
                output.dtype()
            ));
        }
        if first + input.sizes()[dim] > output.sizes()[dim] {
            return invalid(format!(
                "inputs add up to more than the {} of the output",
                output.sizes()[dim]
            ));
        }
        let begin = output.address().wrapping_add_signed(first * along * size);
        let part = Tensor::new(begin, output.dtype(), input.sizes(), output.strides());
        first += input.sizes()[dim];
        let geometry = geometry::broadcast(&part, std::slice::from_ref(input))?;
        if geometry.numel == 0 {
            continue;
        }
        plan.push(&Move {
            numel: geometry.numel,
            to: part.address(),
            from: input.address(),
            rank: geometry.rank as u64,
        });
        geometry.push(2, plan);
    }
    if first != output.sizes()[dim] {
        return invalid(format!(
            "inputs add up to {first}, the output has {}",
            output.sizes()[dim]
        ));
    }
    plan.kernel = move_kernel_for(size as u32);
    plan.cost_ns = crate::plan::cost_ns(output.numel(), COST_PER_BYTE * 2 * size as u32);
    Ok(())
}

/// The kernel that converts with no more loss than the target type causes.
fn conversion(from: DType, to: DType) -> Result<KernelFn> {
    let class = match (number_class(from), number_class(to)) {
        (Some(from_class), Some(to_class)) => match (is_float(from), is_float(to)) {
            (true, true) if from_class == Class::F64 || to_class == Class::F64 => Class::F64,
            (true, _) => from_class,
            (false, true) => to_class,
            (false, false) if to == DType::BOOL => from_class,
            (false, false) if from_class == Class::I64 || to_class == Class::I64 => Class::I64,
            (false, false) => Class::I32,
        },
        _ => return unsupported(format!("no conversion from {from} to {to}")),
    };
    Ok(match class {
        Class::F32 => kernel::<Identity<f32>, 1>,
        Class::F64 => kernel::<Identity<f64>, 1>,
        Class::I32 => kernel::<Identity<i32>, 1>,
        Class::I64 => kernel::<Identity<i64>, 1>,
    })
}

/// The class that values of a type are converted through; `None` for types that are not real numbers.
fn number_class(dtype: DType) -> Option<Class> {
    match dtype {
        DType::U16 => Some(Class::I32),
        DType::U32 | DType::U64 => Some(Class::I64),
        _ => crate::convert::class_of(dtype),
    }
}

fn plan_fill(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([output], [], [value]) = (call.outputs, call.inputs, call.scalars) else {
        return invalid("no inputs, 1 output and 1 scalar are expected");
    };
    let geometry = geometry::broadcast(output, &[])?;
    if geometry.numel == 0 {
        return Ok(());
    }
    let size = output.dtype().size().unwrap_or(1);
    plan.kernel = match size {
        1 => fill_kernel::<u8>,
        2 => fill_kernel::<u16>,
        4 => fill_kernel::<u32>,
        8 => fill_kernel::<u64>,
        _ => fill_kernel::<[u64; 2]>,
    };
    plan.cost_ns = crate::plan::cost_ns(geometry.numel, COST_PER_BYTE * size as u32);
    plan.push(&Fill {
        numel: geometry.numel,
        to: output.address(),
        pattern: pattern(*value, output.dtype())?,
        rank: geometry.rank as u64,
    });
    geometry.push(1, plan);
    Ok(())
}

/// The bytes of one element with this value. A complex element gets it as its real part.
///
/// # Errors
/// `UNSUPPORTED` for elements that hold several numbers, and for scales.
pub(crate) fn pattern(value: Scalar, dtype: DType) -> Result<[u8; 16]> {
    let mut pattern = [0; 16];
    let mut put = |bytes: &[u8]| pattern[..bytes.len()].copy_from_slice(bytes);
    let real = value.to_f64();
    // Floats are cut toward zero to i64, so that negative ones wrap as in PyTorch.
    let integer = value.to_i64();
    match dtype {
        DType::F32 | DType::C64 => put(&(real as f32).to_ne_bytes()),
        DType::F64 | DType::C128 => put(&real.to_ne_bytes()),
        DType::F16 => put(&crate::convert::f32_to_f16(real as f32).to_ne_bytes()),
        DType::BF16 => put(&crate::convert::f32_to_bf16(real as f32).to_ne_bytes()),
        DType::BOOL => put(&[u8::from(real != 0.0)]),
        DType::F8E4M3 => put(&[F8E4M3::from_f64(real).0]),
        DType::F8E5M2 => put(&[F8E5M2::from_f64(real).0]),
        DType::F8E4M3FNUZ => put(&[F8E4M3Fnuz::from_f64(real).0]),
        DType::F8E5M2FNUZ => put(&[F8E5M2Fnuz::from_f64(real).0]),
        DType::F8E8M0 | DType::F4E2M1X2 | DType::I4X2 | DType::U4X2 => {
            return unsupported(format!("a number as an element of {dtype}"));
        }
        _ => put(&integer.to_le_bytes()),
    }
    if cfg!(target_endian = "big") && !is_float(dtype) {
        let size = dtype.size().unwrap_or(1);
        pattern[..size].reverse();
    }
    Ok(pattern)
}

/// Moves elements of the size of `T`, for each of the moves of a block.
///
/// # Safety
/// `args` is a block that `plan_copy` or `plan_cat` made for this kernel; the operands, moved by
/// `bias`, lie in live memory, and do not overlap but exactly.
unsafe extern "C" fn move_kernel<T: Pod>(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let mut block = unsafe { ArgumentBlock::new(args, args_size) };
    while let Some((header, tail)) = block.split::<Move>() {
        let Some((dims, rank)) = read_dims(tail, header.rank as usize, 2) else {
            return Code::INTERNAL.0;
        };
        // SAFETY: this function's contract, for one of the moves of the block.
        unsafe { move_one::<T>(&header, &dims[..rank], bias) };
        block = ArgumentBlock::rest(&tail[rank * 24..]);
    }
    Code::OK.0
}

/// Moves elements of the size of `T`.
///
/// # Safety
/// The contract of [`move_kernel`] for this move.
unsafe fn move_one<T: Pod>(header: &Move, dims: &[Dim], bias: i64) {
    if header.to == header.from {
        return; // in place, element for element, where each is already
    }
    let to = Base::new(header.to, bias);
    let from = Base::new(header.from, bias);
    let size = size_of::<T>() as i64;
    let grain = (1 << 17) / size;
    let row = dims[0];
    if row.strides[0] == size && row.strides[1] == size {
        parallel::for_range(0, header.numel, grain, &|begin, end| {
            let mut cursor = Cursor::at(dims, begin);
            let mut left = (end - begin) as usize;
            while left > 0 {
                let part = cursor.row_left().min(left);
                // SAFETY: a dense part of a row on both sides. This function's contract: the two do not overlap.
                unsafe {
                    let (to, from) = (to.at(cursor.offset(0)), from.at(cursor.offset(1)));
                    to.copy_from_nonoverlapping(from, part * size_of::<T>());
                }
                cursor.advance(part);
                left -= part;
            }
        });
    } else if let Some(across) = tiled_dim(dims, size) {
        // SAFETY: this function's contract is that of `move_tiles`. The input is dense in dimension `across`.
        unsafe { move_tiles::<T>(dims, across, header.numel, to, from) };
    } else {
        parallel::for_range(0, header.numel, grain / 4, &|begin, end| {
            let mut cursor = Cursor::at(dims, begin);
            let mut left = (end - begin) as usize;
            while left > 0 {
                let part = cursor.row_left().min(left);
                let (to, from) = (to.at(cursor.offset(0)), from.at(cursor.offset(1)));
                for index in 0..part as isize {
                    // SAFETY: this function's contract: element `index` of the row is live on both sides, and aligned
                    // to T.
                    unsafe {
                        let value = from
                            .offset(index * row.strides[1] as isize)
                            .cast::<T>()
                            .read();
                        to.offset(index * row.strides[0] as isize)
                            .cast::<T>()
                            .write(value);
                    }
                }
                cursor.advance(part);
                left -= part;
            }
        });
    }
}

/// A dimension, not the innermost one, in which the input is dense. `None` unless the output is dense in the innermost
/// dimension, and both are long enough for tiles.
fn tiled_dim(dims: &[Dim], size: i64) -> Option<usize> {
    if dims[0].strides[0] != size || dims[0].size < 8 {
        return None;
    }
    (1..dims.len()).find(|&d| dims[d].strides[1] == size && dims[d].size >= 8)
}

/// Moves an array whose input is dense in dimension `across`, tile by tile.
///
/// # Safety
/// The contract of [`move_kernel`] for this move; the input is dense in dimension `across`.
unsafe fn move_tiles<T: Pod>(dims: &[Dim], across: usize, numel: i64, to: Base, from: Base) {
    let (rows, columns) = (dims[across], dims[0]);
    // The other dimensions, and the number of planes that they make.
    let mut outer = [Dim {
        size: 1,
        strides: [0; MAX_OPERANDS],
    }; MAX_RANK];
    let mut rank = 1;
    for (_, dim) in dims
        .iter()
        .enumerate()
        .skip(1)
        .filter(|(d, _)| *d != across)
    {
        outer[rank] = *dim;
        rank += 1;
    }
    let outer = &outer[..rank];
    let planes = numel / (rows.size * columns.size);
    // A band is TILE rows of a plane.
    let bands = (rows.size + TILE as i64 - 1) / TILE as i64;
    let grain = ((1 << 15) / (columns.size * TILE as i64)).max(1);
    parallel::for_range(0, planes * bands, grain, &|begin, end| {
        let mut tile = [[MaybeUninit::<T>::uninit(); TILE]; TILE];
        for band in begin..end {
            let plane = Cursor::at(outer, band / bands);
            let first = band % bands * TILE as i64;
            let height = (rows.size - first).min(TILE as i64) as usize;
            let to = to.at(plane.offset(0) + first * rows.strides[0]);
            let from = from.at(plane.offset(1) + first * rows.strides[1]);
            let mut column = 0;
            while column < columns.size {
                let width = (columns.size - column).min(TILE as i64) as usize;
                for (x, line) in tile[..width].iter_mut().enumerate() {
                    let at = (column + x as i64) * columns.strides[1];
                    // SAFETY: this function's contract: `height` dense elements of column x of the band are live.
                    unsafe {
                        let values = from.wrapping_offset(at as isize).cast::<MaybeUninit<T>>();
                        values.copy_to_nonoverlapping(line.as_mut_ptr(), height);
                    }
                }
                for y in 0..height {
                    let at = y as i64 * rows.strides[0] + column * columns.strides[0];
                    let row = to.wrapping_offset(at as isize).cast::<MaybeUninit<T>>();
                    for (x, line) in tile[..width].iter().enumerate() {
                        // SAFETY: element x of the `width` dense elements in row y of the band, which is this thread's.
                        // All of `line` was read above.
                        unsafe { row.add(x).write(line[y]) };
                    }
                }
                column += width as i64;
            }
        }
    });
}

/// Fills elements of the size of `T` with a pattern.
///
/// # Safety
/// `args` is a block that `plan_fill` made for this kernel, and the output, moved by `bias`, lies in
/// live memory.
unsafe extern "C" fn fill_kernel<T: Pod + Sync>(
    args: *const c_void,
    args_size: u32,
    bias: i64,
) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((header, tail)) = block.split::<Fill>() else {
        return Code::INTERNAL.0;
    };
    let Some((dims, rank)) = read_dims(tail, header.rank as usize, 1) else {
        return Code::INTERNAL.0;
    };
    let dims = &dims[..rank];
    let to = Base::new(header.to, bias);
    let value: T = bytemuck::pod_read_unaligned(&header.pattern[..size_of::<T>()]);
    let stride = dims[0].strides[0] as isize;
    parallel::for_range(
        0,
        header.numel,
        (1 << 18) / size_of::<T>() as i64,
        &|begin, end| {
            let mut cursor = Cursor::at(dims, begin);
            let mut left = (end - begin) as usize;
            while left > 0 {
                let part = cursor.row_left().min(left);
                let row = to.at(cursor.offset(0));
                if stride == size_of::<T>() as isize {
                    // SAFETY: a dense part of a row of the output, which is this thread's, of plain data.
                    let row = unsafe {
                        std::slice::from_raw_parts_mut(row.cast::<MaybeUninit<T>>(), part)
                    };
                    row.fill(MaybeUninit::new(value));
                } else {
                    for index in 0..part as isize {
                        // SAFETY: this function's contract: element `index` of the row is live, and aligned to T.
                        unsafe { row.offset(index * stride).cast::<T>().write(value) };
                    }
                }
                cursor.advance(part);
                left -= part;
            }
        },
    );
    Code::OK.0
}
