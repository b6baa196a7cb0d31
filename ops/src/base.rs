//! Element types and codes, by the numbers of `outrigger/base.h`, until the device layer has them.

/// An element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DType(pub u32);

macro_rules! dtypes {
    ($($name:ident = $number:literal),*) => {
        impl DType { $(#[doc = "An element type."] pub const $name: Self = Self($number);)* }
    };
}
dtypes!(
    INVALID = 0,
    BOOL = 1,
    U8 = 2,
    I8 = 3,
    I16 = 4,
    I32 = 5,
    I64 = 6,
    U16 = 7,
    U32 = 8,
    U64 = 9,
    F16 = 10,
    BF16 = 11,
    F32 = 12,
    F64 = 13,
    C64 = 14,
    C128 = 15
);

/// An outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

impl Code {
    /// Success.
    pub const OK: Self = Self(0);
    /// An index was out of bounds.
    pub const OUT_OF_RANGE: Self = Self(12);
    /// A defect of the side that reports it.
    pub const INTERNAL: Self = Self(18);
}
