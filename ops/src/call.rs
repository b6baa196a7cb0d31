//! The arguments of an operator: operands by address and layout, and scalars.
//!
//! The types describe memory, and never touch it. An address is a number of the device, and only a kernel that runs
//! in stream order may turn it into a pointer.

use std::ffi::CStr;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use outrigger_device::DType;
use outrigger_device::sys::{self, otr_tensor, otr_value, otr_value__bindgen_ty_1};

/// An operand: its address on the device and its layout. It has the form of the C ABI, so that the operands of a host
/// reach the driver without a conversion.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Tensor<'a> {
    /// Both lists have as many numbers as the rank says, for `'a`.
    raw: otr_tensor,
    lists: PhantomData<&'a [i64]>,
}

// SAFETY: it is plain data and shared references to lists of numbers.
unsafe impl Send for Tensor<'_> {}
// SAFETY: as above.
unsafe impl Sync for Tensor<'_> {}

impl<'a> Tensor<'a> {
    /// An operand that is absent.
    pub const ABSENT: Self = Self {
        raw: otr_tensor {
            address: 0,
            dtype: DType::INVALID.0,
            rank: 0,
            sizes: std::ptr::null(),
            strides: std::ptr::null(),
        },
        lists: PhantomData,
    };

    /// An operand whose element with all indices 0 has this device address (any, if there are no elements). Sizes and
    /// strides are in elements. A stride is 0 for a broadcast dimension, and may be negative.
    ///
    /// # Panics
    /// If there are not as many strides as sizes.
    #[inline]
    pub fn new(address: u64, dtype: DType, sizes: &'a [i64], strides: &'a [i64]) -> Self {
        assert!(
            sizes.len() == strides.len(),
            "a tensor of {} sizes and {} strides: there must be as many of each",
            sizes.len(),
            strides.len()
        );
        Self {
            raw: otr_tensor {
                address,
                dtype: dtype.0,
                rank: sizes.len() as u32,
                sizes: sizes.as_ptr(),
                strides: strides.as_ptr(),
            },
            lists: PhantomData,
        }
    }

    /// The tensors of a caller, as they are; `None` if a list is NULL or not aligned.
    ///
    /// # Safety
    /// Each list is NULL, or has as many numbers as the rank says, which do not change during `'a`.
    #[inline]
    pub unsafe fn of_raw(raw: &'a [otr_tensor]) -> Option<&'a [Self]> {
        let valid = |list: *const i64| !list.is_null() && list.is_aligned();
        let right = |one: &otr_tensor| one.rank == 0 || valid(one.sizes) && valid(one.strides);
        if !raw.iter().all(right) {
            return None;
        }
        // SAFETY: the type is transparent, and this function's contract is what its field promises.
        Some(unsafe { std::slice::from_raw_parts(raw.as_ptr().cast(), raw.len()) })
    }

    /// The form of the C ABI.
    #[inline]
    pub fn raw(&self) -> &otr_tensor {
        &self.raw
    }

    /// The device address of the element with all indices 0. Any value if there are no elements.
    #[inline]
    pub fn address(&self) -> u64 {
        self.raw.address
    }

    /// The same layout at another address.
    #[inline]
    #[must_use]
    pub fn at(mut self, address: u64) -> Self {
        self.raw.address = address;
        self
    }

    /// Element type; `INVALID` for an operand that is absent.
    #[inline]
    pub fn dtype(&self) -> DType {
        DType(self.raw.dtype)
    }

    /// The same memory as elements of another type.
    #[inline]
    #[must_use]
    pub fn of_dtype(mut self, dtype: DType) -> Self {
        self.raw.dtype = dtype.0;
        self
    }

    /// Sizes in elements; their count is the rank.
    #[inline]
    pub fn sizes(&self) -> &'a [i64] {
        // SAFETY: the field's promise.
        unsafe { list(self.raw.sizes, self.raw.rank) }
    }

    /// Strides in elements, as many as sizes.
    #[inline]
    pub fn strides(&self) -> &'a [i64] {
        // SAFETY: the field's promise.
        unsafe { list(self.raw.strides, self.raw.rank) }
    }

    /// Number of dimensions.
    #[inline]
    pub fn rank(&self) -> usize {
        self.raw.rank as usize
    }

    /// The bytes that the elements reach over: the distance of the first one from the address, and how many there are. 0
    /// bytes without elements.
    pub fn reach(&self) -> (i64, u64) {
        let size = self.dtype().size().unwrap_or(0) as i64;
        if size == 0 || self.numel() == 0 {
            return (0, 0);
        }
        let (mut low, mut high) = (0, 0);
        for (&extent, &stride) in self.sizes().iter().zip(self.strides()) {
            let reach = (extent - 1) * stride;
            if reach < 0 {
                low += reach;
            } else {
                high += reach;
            }
        }
        (low * size, ((high - low + 1) * size) as u64)
    }

    /// Number of elements: the product of the sizes, 1 for rank 0.
    #[inline]
    pub fn numel(&self) -> i64 {
        self.sizes().iter().product()
    }

    /// True if the elements lie densely in row-major order. Strides of dimensions of size 1 do not
    /// matter, and a tensor without elements is contiguous.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&size, &stride) in self.sizes().iter().zip(self.strides()).rev() {
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

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor")
            .field("address", &format_args!("{:#x}", self.address()))
            .field("dtype", &self.dtype())
            .field("sizes", &self.sizes())
            .field("strides", &self.strides())
            .finish()
    }
}

/// # Safety
/// `first` leads to `count` numbers that do not change during `'a`; it may be anything if there are none.
#[inline]
unsafe fn list<'a>(first: *const i64, count: u32) -> &'a [i64] {
    if count == 0 {
        return &[];
    }
    // SAFETY: this function's contract.
    unsafe { std::slice::from_raw_parts(first, count as usize) }
}

/// An argument of a call, in the form of the C ABI: what stands in the operator's schema at its place.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Value<'a> {
    /// The kind of the value is known, and what it points to is there for `'a`.
    raw: otr_value,
    lists: PhantomData<&'a [i64]>,
}

// SAFETY: it is plain data and shared references.
unsafe impl Send for Value<'_> {}
// SAFETY: as above.
unsafe impl Sync for Value<'_> {}

/// An argument as a kernel reads it. Tensors and numbers are named by their place in the call's lists.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "each is what `otr_value_kind_t` says of it")]
pub enum Argument<'a> {
    None,
    Input(usize),
    Inputs(Range<usize>),
    Output(usize),
    Outputs(Range<usize>),
    Scalar(usize),
    Scalars(Range<usize>),
    Int(i64),
    Bool(bool),
    DType(DType),
    String(&'a CStr),
    Ints(&'a [i64]),
    Bools(&'a [i64]),
}

impl<'a> Value<'a> {
    /// An argument.
    pub fn new(argument: Argument<'a>) -> Self {
        let index = |index: usize| otr_value__bindgen_ty_1 {
            index: index as u64,
        };
        let integer = |integer| otr_value__bindgen_ty_1 { integer };
        let integers = |list: &[i64]| otr_value__bindgen_ty_1 {
            integers: list.as_ptr(),
        };
        let (kind, count, of) = match argument {
            Argument::None => (sys::OTR_VALUE_NONE, 0, index(0)),
            Argument::Input(at) => (sys::OTR_VALUE_INPUT, 0, index(at)),
            Argument::Inputs(range) => (sys::OTR_VALUE_INPUTS, range.len(), index(range.start)),
            Argument::Output(at) => (sys::OTR_VALUE_OUTPUT, 0, index(at)),
            Argument::Outputs(range) => (sys::OTR_VALUE_OUTPUTS, range.len(), index(range.start)),
            Argument::Scalar(at) => (sys::OTR_VALUE_SCALAR, 0, index(at)),
            Argument::Scalars(range) => (sys::OTR_VALUE_SCALARS, range.len(), index(range.start)),
            Argument::Int(value) => (sys::OTR_VALUE_INT, 0, integer(value)),
            Argument::Bool(value) => (sys::OTR_VALUE_BOOL, 0, integer(value.into())),
            Argument::DType(value) => (sys::OTR_VALUE_DTYPE, 0, integer(value.0.into())),
            Argument::String(text) => {
                let string = text.as_ptr();
                let of = otr_value__bindgen_ty_1 { string };
                (sys::OTR_VALUE_STRING, text.to_bytes().len(), of)
            }
            Argument::Ints(list) => (sys::OTR_VALUE_INTS, list.len(), integers(list)),
            Argument::Bools(list) => (sys::OTR_VALUE_BOOLS, list.len(), integers(list)),
        };
        Self {
            raw: otr_value {
                kind,
                count: count as u32,
                of,
            },
            lists: PhantomData,
        }
    }

    /// The arguments of a caller, as they are.
    ///
    /// # Safety
    /// Lists and strings are NULL, or as long as their counts say, and do not change during `'a`.
    ///
    /// # Errors
    /// The place of the first argument that is not right, and why: its kind is unknown, or it names an operand that the
    /// call does not have, or a list or string is not there.
    pub unsafe fn of_raw(
        raw: &'a [otr_value],
        call: &sys::otr_operator_call,
    ) -> Result<&'a [Self], (usize, &'static str)> {
        for (at, value) in raw.iter().enumerate() {
            let wrong = |why| Err((at, why));
            let single = !matches!(
                value.kind,
                sys::OTR_VALUE_INPUTS
                    | sys::OTR_VALUE_OUTPUTS
                    | sys::OTR_VALUE_SCALARS
                    | sys::OTR_VALUE_STRING
                    | sys::OTR_VALUE_INTS
                    | sys::OTR_VALUE_BOOLS
            );
            if single && value.count != 0 {
                return wrong("its kind has no count");
            }
            let places = match value.kind {
                sys::OTR_VALUE_INPUT | sys::OTR_VALUE_INPUTS => call.input_count,
                sys::OTR_VALUE_OUTPUT | sys::OTR_VALUE_OUTPUTS => call.output_count,
                sys::OTR_VALUE_SCALAR | sys::OTR_VALUE_SCALARS => call.scalar_count,
                sys::OTR_VALUE_NONE
                | sys::OTR_VALUE_INT
                | sys::OTR_VALUE_BOOL
                | sys::OTR_VALUE_DTYPE => continue,
                sys::OTR_VALUE_STRING => {
                    // SAFETY: all members are 8 bytes.
                    let string = unsafe { value.of.string };
                    if string.is_null() {
                        return wrong("its string is NULL");
                    }
                    // SAFETY: a string of so many bytes and a NUL, by this function's contract.
                    let bytes = unsafe {
                        std::slice::from_raw_parts(string.cast::<u8>(), value.count as usize + 1)
                    };
                    if CStr::from_bytes_with_nul(bytes).is_err() {
                        return wrong("its string does not end where its count says");
                    }
                    continue;
                }
                sys::OTR_VALUE_INTS | sys::OTR_VALUE_BOOLS => {
                    // SAFETY: all members are 8 bytes.
                    let list = unsafe { value.of.integers };
                    if value.count > 0 && (list.is_null() || !list.is_aligned()) {
                        return wrong("its list is NULL or not aligned");
                    }
                    continue;
                }
                _ => return wrong("its kind is unknown"),
            };
            // SAFETY: all members are 8 bytes.
            let first = unsafe { value.of.index };
            let count = if single { 1 } else { u64::from(value.count) };
            if first
                .checked_add(count)
                .is_none_or(|end| end > u64::from(places))
            {
                return wrong("it names an operand or scalar that the call does not have");
            }
        }
        // SAFETY: the type is transparent; the loop checked what its field promises.
        Ok(unsafe { std::slice::from_raw_parts(raw.as_ptr().cast(), raw.len()) })
    }

    /// The form of the C ABI.
    #[inline]
    pub fn raw(&self) -> otr_value {
        self.raw
    }

    /// The argument.
    #[inline]
    pub fn get(&self) -> Argument<'a> {
        let count = self.raw.count as usize;
        // SAFETY: all members are 8 bytes for which every bit pattern is a value.
        let (index, integer) = unsafe { (self.raw.of.index as usize, self.raw.of.integer) };
        // Behind an overflow there is no operand: such a range is of an operand that the call does not have.
        let range = index..index.saturating_add(count);
        // SAFETY: a value of such a kind has a list of so many numbers, by the field's promise.
        let integers = || unsafe { list(self.raw.of.integers, self.raw.count) };
        match self.raw.kind {
            sys::OTR_VALUE_INPUT => Argument::Input(index),
            sys::OTR_VALUE_INPUTS => Argument::Inputs(range),
            sys::OTR_VALUE_OUTPUT => Argument::Output(index),
            sys::OTR_VALUE_OUTPUTS => Argument::Outputs(range),
            sys::OTR_VALUE_SCALAR => Argument::Scalar(index),
            sys::OTR_VALUE_SCALARS => Argument::Scalars(range),
            sys::OTR_VALUE_INT => Argument::Int(integer),
            sys::OTR_VALUE_BOOL => Argument::Bool(integer != 0),
            sys::OTR_VALUE_DTYPE => Argument::DType(DType(integer as u32)),
            sys::OTR_VALUE_STRING => {
                // SAFETY: a value of this kind has a string, by the field's promise.
                Argument::String(unsafe { CStr::from_ptr(self.raw.of.string) })
            }
            sys::OTR_VALUE_INTS => Argument::Ints(integers()),
            sys::OTR_VALUE_BOOLS => Argument::Bools(integers()),
            _ => Argument::None,
        }
    }
}

impl fmt::Debug for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
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

/// One call of an operator. `docs/operators.md` lists the operands, scalars and arguments of each operator.
#[derive(Clone, Copy, Debug, Default)]
pub struct Call<'a> {
    /// The operands that are read.
    pub inputs: &'a [Tensor<'a>],
    /// The operands that are written. In-place operators also read them.
    pub outputs: &'a [Tensor<'a>],
    /// The scalars, in the documented order.
    pub scalars: &'a [Scalar],
    /// The arguments in schema order, of an operator that has a schema.
    pub args: &'a [Value<'a>],
    /// Whether nothing but an operator of the driver may serve the call: there is no plan for it.
    pub device_only: bool,
    /// Whether the operator is not made of others: the driver has the whole, or the host kernel runs.
    pub whole: bool,
}
