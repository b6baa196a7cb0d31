//! The arguments of an operator: operands by address and layout, and scalars.
//!
//! These types describe memory, and never touch it. An address is a number of the device, and only a kernel that runs
//! in stream order may turn it into a pointer.

use outrigger_device::DType;

/// An operand: its address on the device and its layout.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    /// The device address of the element with all indices 0. Any value if there are no elements.
    pub address: u64,
    /// Element type.
    pub dtype: DType,
    /// Sizes in elements; their count is the rank.
    pub sizes: &'a [i64],
    /// Strides in elements, as many as sizes. A stride is 0 for a broadcast dimension, and may be negative.
    pub strides: &'a [i64],
}

impl Tensor<'_> {
    /// Number of dimensions.
    #[inline]
    pub fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Number of elements: the product of the sizes, 1 for rank 0.
    #[inline]
    pub fn numel(&self) -> i64 {
        self.sizes.iter().product()
    }

    /// True if the elements lie densely in row-major order. Strides of dimensions of size 1 do not
    /// matter, and a tensor without elements is contiguous.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.sizes.iter().zip(self.strides).rev() {
            if size != 1 {
                if stride != expected {
                    return self.numel() == 0;
                }
                expected *= size;
            }
        }
        true
    }
}

/// A number that is passed by value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scalar {
    /// A floating-point number.
    F64(f64),
    /// An integer; booleans are 0 and 1.
    I64(i64),
}

impl Scalar {
    /// The value as a floating-point number; integers are rounded to nearest.
    #[inline]
    pub fn to_f64(self) -> f64 {
        match self {
            Scalar::F64(value) => value,
            Scalar::I64(value) => value as f64,
        }
    }

    /// The value as an integer. Fractions are cut, and a value that does not fit becomes the nearest bound.
    #[inline]
    pub fn to_i64(self) -> i64 {
        match self {
            Scalar::F64(value) => value as i64,
            Scalar::I64(value) => value,
        }
    }

    /// True if the value was given as a floating-point number.
    #[inline]
    pub fn is_float(self) -> bool {
        matches!(self, Scalar::F64(_))
    }
}

/// One call of an operator. `docs/operators.md` lists the operands and scalars of each operator.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The operands that are read.
    pub inputs: &'a [Tensor<'a>],
    /// The operands that are written. In-place operators also read them.
    pub outputs: &'a [Tensor<'a>],
    /// The scalars, in the documented order.
    pub scalars: &'a [Scalar],
}
