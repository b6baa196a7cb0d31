//! Conversion from element types in memory to the types that kernels compute in, and back.
//!
//! Kernels compute in f32, f64, i32 or i64. Elements are converted a block at a time when they are read and written, so
//! that one inner loop serves every element type. Half precision is computed in f32. Bytes and shorts are computed in
//! i32, whose low bits are those of the narrow result. Conversions follow PyTorch: floats are cut toward zero, integers
//! wrap, and any value but zero is true.

use std::mem::{MaybeUninit, size_of};

use bytemuck::Pod;
use half::{bf16, f16};

use crate::call::Scalar;
use crate::isa::{Isa, Vectorised, dispatch};
use outrigger_device::DType;

/// The type that a kernel computes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    F32,
    F64,
    I32,
    I64,
}

/// The class that elements of a type are computed in; `None` for types without arithmetic.
#[inline]
pub(crate) fn class_of(dtype: DType) -> Option<Class> {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Some(Class::F32),
        DType::F64 => Some(Class::F64),
        DType::I64 => Some(Class::I64),
        DType::I32 | DType::I16 | DType::I8 | DType::U8 | DType::BOOL => Some(Class::I32),
        _ => None,
    }
}

/// True for floating-point types.
#[inline]
pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64)
}

/// Reads `out.len()` elements that are `stride` bytes apart.
///
/// Safety: all elements lie in readable memory, and are aligned to their size.
pub(crate) type Load<C> = unsafe fn(from: *const u8, stride: isize, out: &mut [MaybeUninit<C>]);

/// Writes all values, `stride` bytes apart.
///
/// Safety: all places lie in writable memory, are aligned to their size, and nobody else uses them meanwhile.
pub(crate) type Store<C> = unsafe fn(values: &[C], to: *mut u8, stride: isize);

/// A type that kernels compute in, or a type of results: bool results are bytes.
pub(crate) trait Compute: Pod + Send + Sync + Default + PartialOrd {
    /// The function that reads elements of a type; `None` if they do not convert.
    fn loader(dtype: DType) -> Option<Load<Self>>;
    /// The function that writes elements of a type; `None` if they do not convert.
    fn storer(dtype: DType) -> Option<Store<Self>>;
    /// Whether elements of this type in memory are values of `Self`.
    fn is_native(dtype: DType) -> bool;
    /// A scalar as a word of an argument block.
    fn to_word(scalar: Scalar) -> u64;
    /// The scalar of a word of an argument block.
    fn from_word(word: u64) -> Self;
}

/// An element of memory that converts to and from `C`.
trait Element<C>: Pod {
    fn widen(self) -> C;
    fn narrow(value: C) -> Self;
}

/// A byte of a bool tensor: anything but 0 is true.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
struct Bool(u8);

macro_rules! plain_elements {
    ($($element:ty: $($compute:ty),*;)*) => {$($(
        impl Element<$compute> for $element {
            #[inline(always)]
            fn widen(self) -> $compute { self as $compute }
            #[inline(always)]
            fn narrow(value: $compute) -> Self { value as Self }
        }
    )*)*};
}
plain_elements! {
    f32: f32, f64, i32, i64;
    f64: f32, f64, i32, i64;
    i32: f32, f64, i32, i64;
    i64: f32, f64, i32, i64;
    u64: i32, i64;
    u32: i32, i64;
    u16: i32, i64;
    i16: i32, i64;
    i8: i32, i64;
    u8: i32, i64;
}

/// Integers whose conversion from floats wraps through a wider type instead of saturating.
macro_rules! wrapping_elements {
    ($($element:ty, $through:ty: $($compute:ty),*;)*) => {$($(
        impl Element<$compute> for $element {
            #[inline(always)]
            fn widen(self) -> $compute { self as $compute }
            #[inline(always)]
            fn narrow(value: $compute) -> Self { value as $through as Self }
        }
    )*)*};
}
wrapping_elements! {
    u64, i128: f32, f64;
    u32, i64: f32, f64;
    u16, i32: f32, f64;
    i16, i32: f32, f64;
    i8, i32: f32, f64;
    u8, i32: f32, f64;
}

macro_rules! bool_elements {
    ($($compute:ty = $zero:literal),*) => {$(
        impl Element<$compute> for Bool {
            #[inline(always)]
            fn widen(self) -> $compute { u8::from(self.0 != 0) as $compute }
            #[inline(always)]
            fn narrow(value: $compute) -> Self { Self(u8::from(value != $zero)) }
        }
    )*};
}
bool_elements!(f32 = 0.0, f64 = 0.0, i32 = 0, i64 = 0);

impl Element<u8> for Bool {
    #[inline(always)]
    fn widen(self) -> u8 {
        u8::from(self.0 != 0)
    }
    #[inline(always)]
    fn narrow(value: u8) -> Self {
        Self(value)
    }
}

macro_rules! half_elements {
    ($($element:ty, $widen:ident, $narrow:ident: $($compute:ty),*;)*) => {$($(
        impl Element<$compute> for $element {
            #[inline(always)]
            fn widen(self) -> $compute { $widen(self.to_bits()) as $compute }
            #[inline(always)]
            fn narrow(value: $compute) -> Self { Self::from_bits($narrow(value as f32)) }
        }
    )*)*};
}
half_elements! {
    f16, f16_to_f32, f32_to_f16: f32, f64, i32, i64;
    bf16, bf16_to_f32, f32_to_bf16: f32, f64, i32, i64;
}

/// There are no branches, so that this is vectorised. A multiplication moves the exponent, and also normalises
/// subnormals.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    const MOVE: f32 = f32::from_bits((127 + 112) << 23); // 2^112
    let bits = u32::from(bits);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * MOVE;
    let special = if bits & 0x7c00 == 0x7c00 {
        0x7f80_0000
    } else {
        0
    };
    f32::from_bits(magnitude.to_bits() | special | ((bits & 0x8000) << 16))
}

/// Rounds to nearest, ties to even.
#[inline(always)]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    const SUBNORMAL: u32 = ((127 - 15) + (23 - 10) + 1) << 23;
    let bits = value.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let odd = (magnitude >> 13) & 1;
    let normal = magnitude.wrapping_add(0xc800_0fff).wrapping_add(odd) >> 13;
    // The addition aligns the bits of the result at the end of the mantissa, and rounds.
    let shifted = f32::from_bits(magnitude) + f32::from_bits(SUBNORMAL);
    let subnormal = shifted.to_bits().wrapping_sub(SUBNORMAL);
    let finite = if magnitude < 0x3880_0000 {
        subnormal
    } else {
        normal
    };
    let large = if magnitude > 0x7f80_0000 {
        0x7e00
    } else {
        0x7c00
    };
    let result = if magnitude >= 0x4780_0000 {
        large
    } else {
        finite
    };
    (result | ((bits >> 16) & 0x8000)) as u16
}

#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to nearest, ties to even.
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
    (if bits & 0x7fff_ffff > 0x7f80_0000 {
        0x7fc0
    } else {
        rounded
    }) as u16
}

struct LoadDense<'a, S, C>(&'a [S], &'a mut [MaybeUninit<C>]);

impl<S: Element<C>, C> Vectorised for LoadDense<'_, S, C> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        for (value, out) in self.0.iter().zip(self.1) {
            out.write(value.widen());
        }
    }
}

struct StoreDense<'a, S, C>(&'a [C], &'a mut [MaybeUninit<S>]);

impl<S: Element<C>, C: Copy> Vectorised for StoreDense<'_, S, C> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        for (value, out) in self.0.iter().zip(self.1) {
            out.write(S::narrow(*value));
        }
    }
}

/// [`Load`] for elements of type `S`.
unsafe fn load<S: Element<C>, C: Copy>(from: *const u8, stride: isize, out: &mut [MaybeUninit<C>]) {
    let from = from.cast::<S>();
    if stride == size_of::<S>() as isize {
        // SAFETY: `Load`: the elements are readable and aligned, and at this stride they are dense. S is plain data.
        let values = unsafe { std::slice::from_raw_parts(from, out.len()) };
        dispatch(LoadDense(values, out));
    } else {
        for (index, out) in out.iter_mut().enumerate() {
            // SAFETY: `Load`: element `index` is readable and aligned.
            let value = unsafe { from.byte_offset(index as isize * stride).read() };
            out.write(value.widen());
        }
    }
}

/// [`Store`] for elements of type `S`.
unsafe fn store<S: Element<C>, C: Copy>(values: &[C], to: *mut u8, stride: isize) {
    let to = to.cast::<S>();
    if stride == size_of::<S>() as isize {
        // SAFETY: `Store`: the places are writable, aligned and used by nobody else, and at this stride they are dense.
        // So `values` is elsewhere.
        let places =
            unsafe { std::slice::from_raw_parts_mut(to.cast::<MaybeUninit<S>>(), values.len()) };
        dispatch(StoreDense(values, places));
    } else {
        for (index, value) in values.iter().enumerate() {
            // SAFETY: `Store`: place `index` is writable and aligned.
            unsafe {
                to.byte_offset(index as isize * stride)
                    .write(S::narrow(*value))
            };
        }
    }
}

macro_rules! compute {
    ($($compute:ty, $native:ident, $scalar:ident, $word:ty;)*) => {$(
        impl Compute for $compute {
            fn loader(dtype: DType) -> Option<Load<Self>> {
                Some(match dtype {
                    DType::BOOL => load::<Bool, Self>,
                    DType::U8 => load::<u8, Self>,
                    DType::I8 => load::<i8, Self>,
                    DType::I16 => load::<i16, Self>,
                    DType::I32 => load::<i32, Self>,
                    DType::I64 => load::<i64, Self>,
                    DType::U16 => load::<u16, Self>,
                    DType::U32 => load::<u32, Self>,
                    DType::U64 => load::<u64, Self>,
                    DType::F16 => load::<f16, Self>,
                    DType::BF16 => load::<bf16, Self>,
                    DType::F32 => load::<f32, Self>,
                    DType::F64 => load::<f64, Self>,
                    _ => return None,
                })
            }
            fn storer(dtype: DType) -> Option<Store<Self>> {
                Some(match dtype {
                    DType::BOOL => store::<Bool, Self>,
                    DType::U8 => store::<u8, Self>,
                    DType::I8 => store::<i8, Self>,
                    DType::I16 => store::<i16, Self>,
                    DType::I32 => store::<i32, Self>,
                    DType::I64 => store::<i64, Self>,
                    DType::U16 => store::<u16, Self>,
                    DType::U32 => store::<u32, Self>,
                    DType::U64 => store::<u64, Self>,
                    DType::F16 => store::<f16, Self>,
                    DType::BF16 => store::<bf16, Self>,
                    DType::F32 => store::<f32, Self>,
                    DType::F64 => store::<f64, Self>,
                    _ => return None,
                })
            }
            #[inline]
            fn is_native(dtype: DType) -> bool {
                dtype == DType::$native
            }
            #[inline]
            fn to_word(scalar: Scalar) -> u64 {
                (scalar.$scalar() as $compute).to_ne_bytes_word()
            }
            #[inline]
            fn from_word(word: u64) -> Self {
                <$compute>::from_ne_bytes((word as $word).to_ne_bytes())
            }
        }
        impl Word for $compute {
            #[inline]
            fn to_ne_bytes_word(self) -> u64 {
                u64::from(<$word>::from_ne_bytes(self.to_ne_bytes()))
            }
        }
    )*};
}

/// The bits of a number in the low end of a word.
trait Word {
    fn to_ne_bytes_word(self) -> u64;
}

compute! {
    f32, F32, to_f64, u32;
    f64, F64, to_f64, u64;
    i32, I32, to_i64, u32;
    i64, I64, to_i64, u64;
}

/// Truth values: results of comparisons.
impl Compute for u8 {
    fn loader(dtype: DType) -> Option<Load<Self>> {
        (dtype == DType::BOOL).then_some(load::<Bool, Self>)
    }
    fn storer(dtype: DType) -> Option<Store<Self>> {
        (dtype == DType::BOOL).then_some(store::<Bool, Self>)
    }
    #[inline]
    fn is_native(dtype: DType) -> bool {
        dtype == DType::BOOL
    }
    #[inline]
    fn to_word(scalar: Scalar) -> u64 {
        u64::from(scalar.to_f64() != 0.0)
    }
    #[inline]
    fn from_word(word: u64) -> Self {
        word as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_f16_and_bf16_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let (got, want) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#x}"
            );
            let (got, want) = (bf16_to_f32(bits), bf16::from_bits(bits).to_f32());
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{bits:#x}"
            );
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        for value in (0..=u32::MAX / 211).map(|k| f32::from_bits(k * 211)) {
            let (got, want) = (f32_to_f16(value), f16::from_f32(value));
            assert!(
                got == want.to_bits() || value.is_nan() && f16::from_bits(got).is_nan(),
                "{value:e}"
            );
            let (got, want) = (f32_to_bf16(value), bf16::from_f32(value));
            assert!(
                got == want.to_bits() || value.is_nan() && bf16::from_bits(got).is_nan(),
                "{value:e}"
            );
        }
    }
}
