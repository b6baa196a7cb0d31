//! Reads a call of an operator, in the form in which the host passed it.

use std::ffi::CStr;
use std::mem::offset_of;

use super::kernels::DIMENSIONS;
use crate::host::fault::Fault;
use crate::{Code, DType, sys};

/// A call of the host.
pub(super) struct Call<'a> {
    pub(super) name: &'a CStr,
    pub(super) inputs: &'a [sys::otr_tensor],
    pub(super) outputs: &'a [sys::otr_tensor],
    pub(super) scalars: &'a [sys::otr_scalar],
}

impl<'a> Call<'a> {
    /// # Safety
    /// `call` is NULL, or a struct of the size that stands in it whose pointers are NULL or lead to as
    /// much as it says; all of it outlives the result.
    pub(super) unsafe fn read(call: *const sys::otr_operator_call) -> Result<Self, Fault> {
        // SAFETY: NULL, or a struct of the size that stands in it (R1), which outlives the result.
        let Some(call) = (unsafe { call.as_ref() }) else {
            return Err(Fault::null("the call", Code::INVALID_ARGUMENT));
        };
        // All fields were there in the first version of the contract.
        const SIZE: usize = offset_of!(sys::otr_operator_call, flags) + size_of::<u32>();
        if call.struct_size < SIZE {
            return Err(Fault::argument(format!(
                "a call of {} bytes; version 1.0 has {SIZE}",
                call.struct_size
            )));
        }
        if call.name.is_null() {
            return Err(Fault::null(
                "the name of the operator",
                Code::INVALID_ARGUMENT,
            ));
        }
        // SAFETY: the name is not NULL, so NUL-terminated; the lists are NULL or as long as their
        // counts say.
        unsafe {
            Ok(Self {
                name: CStr::from_ptr(call.name),
                inputs: list(call.inputs, call.input_count, "the inputs")?,
                outputs: list(call.outputs, call.output_count, "the outputs")?,
                scalars: list(call.scalars, call.scalar_count, "the scalars")?,
            })
        }
    }

    #[cold]
    pub(super) fn unsupported(&self, what: &str) -> Fault {
        let name = self.name.to_string_lossy();
        Fault::new(
            Code::UNSUPPORTED,
            format!("`{name}` with {what}; this driver has add and mm of f32"),
        )
    }

    /// Where the operands begin; called for a call that has a layout, and so three of them.
    pub(super) fn addresses(&self) -> [u64; 3] {
        let mut operands = self.inputs.iter().chain(self.outputs);
        std::array::from_fn(|_| operands.next().map_or(0, |operand| operand.address))
    }

    /// What `add` multiplies its second input with.
    pub(super) fn alpha(&self) -> Result<f64, Fault> {
        match self.scalars {
            [] => Ok(1.0),
            [alpha] => match DType(alpha.dtype) {
                // SAFETY: the member that the dtype names.
                DType::F64 => Ok(unsafe { alpha.value.f64_ }),
                // SAFETY: as above.
                DType::I64 => Ok(unsafe { alpha.value.i64_ } as f64),
                other => Err(Fault::argument(format!(
                    "a scalar is F64 or I64, not {other:?}"
                ))),
            },
            more => Err(Fault::argument(format!(
                "add takes one scalar, not {}",
                more.len()
            ))),
        }
    }
}

/// An operand without its address.
pub(super) struct View<'a> {
    pub(super) dtype: DType,
    pub(super) sizes: &'a [i64],
    pub(super) strides: &'a [i64],
}

impl<'a> View<'a> {
    /// # Safety
    /// The lists of the tensor are NULL, or have an entry for each dimension and outlive this.
    pub(super) unsafe fn of(tensor: &sys::otr_tensor) -> Result<Self, Fault> {
        // SAFETY: each list is NULL, or has an entry for each dimension and outlives this.
        let (sizes, strides) = unsafe {
            (
                list(tensor.sizes, tensor.rank, "the sizes of an operand")?,
                list(tensor.strides, tensor.rank, "the strides of an operand")?,
            )
        };
        if sizes.iter().any(|size| *size < 0) {
            return Err(Fault::argument(format!(
                "an operand of sizes {sizes:?}; none may be negative"
            )));
        }
        Ok(Self {
            dtype: DType(tensor.dtype),
            sizes,
            strides,
        })
    }

    /// Sizes and strides, with dimensions of size 1 in front of those that are there.
    pub(super) fn extents(&self) -> ([u64; DIMENSIONS], [i64; DIMENSIONS]) {
        let (mut sizes, mut strides) = ([1; DIMENSIONS], [0; DIMENSIONS]);
        let first = DIMENSIONS - self.sizes.len();
        for (at, size) in self.sizes.iter().enumerate() {
            sizes[first + at] = size.unsigned_abs();
            strides[first + at] = self.strides[at];
        }
        (sizes, strides)
    }

    /// The strides by which an input is read for each element of this output; `None` if it cannot be.
    pub(super) fn broadcast(&self, input: &View<'_>) -> Option<[i64; DIMENSIONS]> {
        if self.sizes.len() > DIMENSIONS || input.sizes.len() > self.sizes.len() {
            return None;
        }
        let ((to, _), (from, mut strides)) = (self.extents(), input.extents());
        for at in 0..DIMENSIONS {
            match from[at] {
                size if size == to[at] => {}
                1 => strides[at] = 0,
                _ => return None,
            }
        }
        Some(strides)
    }

    /// Rows and columns.
    pub(super) fn matrix(&self) -> Option<[u64; 2]> {
        match *self.sizes {
            [rows, columns] => Some([rows.unsigned_abs(), columns.unsigned_abs()]),
            _ => None,
        }
    }
}

/// A list of the host.
///
/// # Safety
/// `start` is NULL, or there are `count` entries that outlive the result.
unsafe fn list<'a, T>(start: *const T, count: u32, what: &str) -> Result<&'a [T], Fault> {
    match count {
        0 => Ok(&[]),
        _ if start.is_null() => Err(Fault::null(what, Code::INVALID_ARGUMENT)),
        // SAFETY: not NULL, so there are `count` entries, which outlive the result.
        count => Ok(unsafe { std::slice::from_raw_parts(start, count as usize) }),
    }
}
