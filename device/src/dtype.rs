//! The element types that both contracts share, as a newtype over the integer of `base.h`.

use std::fmt;

use crate::sys;

/// The type of an element. Any number is valid; one that is not listed here has no size.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType(pub u32);

macro_rules! dtypes {
    ($($(#[$doc:meta])* $name:ident = $value:path, $text:literal, $size:literal;)*) => {
        impl DType {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// All element types, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The size of an element in bytes; `None` for a number that is no element type.
            pub const fn size(self) -> Option<usize> {
                match self {
                    $(Self::$name => Some($size),)*
                    _ => None,
                }
            }

            /// The name of the element type in lower case, or `"invalid"`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    _ => "invalid",
                }
            }
        }
    };
}

dtypes! {
    /// One byte, 0 or 1.
    BOOL = sys::OTR_DTYPE_BOOL, "bool", 1;
    /// Unsigned, 8 bits.
    U8 = sys::OTR_DTYPE_U8, "u8", 1;
    /// Signed, 8 bits.
    I8 = sys::OTR_DTYPE_I8, "i8", 1;
    /// Signed, 16 bits.
    I16 = sys::OTR_DTYPE_I16, "i16", 2;
    /// Signed, 32 bits.
    I32 = sys::OTR_DTYPE_I32, "i32", 4;
    /// Signed, 64 bits.
    I64 = sys::OTR_DTYPE_I64, "i64", 8;
    /// Unsigned, 16 bits.
    U16 = sys::OTR_DTYPE_U16, "u16", 2;
    /// Unsigned, 32 bits.
    U32 = sys::OTR_DTYPE_U32, "u32", 4;
    /// Unsigned, 64 bits.
    U64 = sys::OTR_DTYPE_U64, "u64", 8;
    /// IEEE 754 binary16.
    F16 = sys::OTR_DTYPE_F16, "f16", 2;
    /// The upper half of an IEEE 754 binary32.
    BF16 = sys::OTR_DTYPE_BF16, "bf16", 2;
    /// IEEE 754 binary32.
    F32 = sys::OTR_DTYPE_F32, "f32", 4;
    /// IEEE 754 binary64.
    F64 = sys::OTR_DTYPE_F64, "f64", 8;
    /// Two F32: real, imaginary.
    C64 = sys::OTR_DTYPE_C64, "c64", 8;
    /// Two F64: real, imaginary.
    C128 = sys::OTR_DTYPE_C128, "c128", 16;
    /// OCP OFP8: 4 bits of exponent, 3 of fraction; no infinity, and all ones but the sign are NaN.
    F8E4M3 = sys::OTR_DTYPE_F8E4M3, "f8e4m3", 1;
    /// OCP OFP8: 5 bits of exponent, 2 of fraction; infinities and NaN as in IEEE 754.
    F8E5M2 = sys::OTR_DTYPE_F8E5M2, "f8e5m2", 1;
    /// A power of two, which scales a block of an OCP microscaling format.
    F8E8M0 = sys::OTR_DTYPE_F8E8M0, "f8e8m0", 1;
    /// A byte with two numbers of OCP microscaling's 4 bits, the even place in its low half.
    F4E2M1X2 = sys::OTR_DTYPE_F4E2M1X2, "f4e2m1x2", 1;
    /// A byte with two signed integers of 4 bits, the even place in its low half.
    I4X2 = sys::OTR_DTYPE_I4X2, "i4x2", 1;
    /// A byte with two unsigned integers of 4 bits, the even place in its low half.
    U4X2 = sys::OTR_DTYPE_U4X2, "u4x2", 1;
    /// 4 bits of exponent with bias 8, 3 of fraction; no infinity, and the bits of negative zero are NaN.
    F8E4M3FNUZ = sys::OTR_DTYPE_F8E4M3FNUZ, "f8e4m3fnuz", 1;
    /// 5 bits of exponent with bias 16, 2 of fraction; no infinity, and the bits of negative zero are NaN.
    F8E5M2FNUZ = sys::OTR_DTYPE_F8E5M2FNUZ, "f8e5m2fnuz", 1;
}

impl DType {
    /// No element type.
    pub const INVALID: Self = Self(sys::OTR_DTYPE_INVALID);
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::DType;

    #[test]
    fn numbers_are_dense_and_sized() {
        for (index, dtype) in DType::ALL.iter().enumerate() {
            assert_eq!(dtype.0 as usize, index + 1);
            assert!(dtype.size().is_some());
        }
        assert_eq!(DType(99).size(), None);
        assert_eq!(DType::INVALID.to_string(), "invalid");
    }
}
