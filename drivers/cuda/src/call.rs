//! Calls of operators as the host gives them (R46).

use std::borrow::Cow;
use std::ffi::CStr;
use std::mem::offset_of;

use outrigger_contract as c;
use outrigger_driver_kit::given::null;
use outrigger_driver_kit::{Fault, Result};

/// A call of the host.
pub(crate) struct Call<'a> {
    pub(crate) name: &'a CStr,
    inputs: &'a [c::otr_tensor],
    outputs: &'a [c::otr_tensor],
    scalars: &'a [c::otr_scalar],
}

/// An operand without its address.
pub(crate) struct View<'a> {
    pub(crate) dtype: c::otr_dtype_t,
    pub(crate) sizes: &'a [i64],
    pub(crate) strides: &'a [i64],
}

/// # Safety
/// NULL, or so many of them, which live for `'a`.
unsafe fn list<'a, T>(first: *const T, count: u32, what: &str) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if first.is_null() => Err(null(what)),
        // SAFETY: this function's contract.
        count => Ok(unsafe { std::slice::from_raw_parts(first, count as usize) }),
    }
}

impl<'a> Call<'a> {
    /// # Safety
    /// R1, R10: NULL, or a struct of the size that stands in it, whose pointers are NULL or lead to as much as it says, all
    /// of which lives for `'a`.
    pub(crate) unsafe fn read(call: *const c::otr_operator_call) -> Result<Self> {
        // All members up to here were there in the first version of the contract.
        const SIZE: usize = offset_of!(c::otr_operator_call, flags) + size_of::<u32>();
        // SAFETY: this function's contract.
        let Some(call) = (unsafe { call.as_ref() }) else {
            return Err(null("the call"));
        };
        if call.struct_size < SIZE {
            let text = format!(
                "a call of {} bytes: version 1.0 has {SIZE}",
                call.struct_size
            );
            return Err(Fault::argument(text));
        }
        if call.name.is_null() {
            return Err(null("the name of the operator"));
        }
        // SAFETY: this function's contract.
        unsafe {
            Ok(Self {
                name: CStr::from_ptr(call.name),
                inputs: list(call.inputs, call.input_count, "the inputs")?,
                outputs: list(call.outputs, call.output_count, "the outputs")?,
                scalars: list(call.scalars, call.scalar_count, "the scalars")?,
            })
        }
    }

    pub(crate) fn name(&self) -> Cow<'a, str> {
        self.name.to_string_lossy()
    }

    pub(crate) fn inputs(&self) -> Result<Vec<View<'a>>> {
        self.inputs.iter().map(View::of).collect()
    }

    pub(crate) fn outputs(&self) -> Result<Vec<View<'a>>> {
        self.outputs.iter().map(View::of).collect()
    }

    /// The address of an input, counted from the last one.
    pub(crate) fn input_from_end(&self, number: usize) -> u64 {
        let mut inputs = self.inputs.iter().rev();
        inputs.nth(number).map_or(0, |input| input.address)
    }

    pub(crate) fn output(&self) -> u64 {
        self.outputs.first().map_or(0, |output| output.address)
    }

    /// A scalar, or what stands for one that was left out.
    pub(crate) fn scalar(&self, number: usize, missing: f64) -> Result<f64> {
        let Some(scalar) = self.scalars.get(number) else {
            return Ok(missing);
        };
        match scalar.dtype {
            // SAFETY: the member that the dtype names.
            c::OTR_DTYPE_F64 => Ok(unsafe { scalar.value.f64_ }),
            // SAFETY: as above.
            c::OTR_DTYPE_I64 => Ok(unsafe { scalar.value.i64_ } as f64),
            other => Err(Fault::argument(format!(
                "scalar {number} is of dtype {other}: scalars are OTR_DTYPE_F64 or OTR_DTYPE_I64"
            ))),
        }
    }
}

impl<'a> View<'a> {
    fn of(tensor: &'a c::otr_tensor) -> Result<Self> {
        // SAFETY: R10: each list is NULL, or has an entry for each dimension and lives as long as the call.
        let (sizes, strides) = unsafe {
            (
                list(tensor.sizes, tensor.rank, "the sizes of an operand")?,
                list(tensor.strides, tensor.rank, "the strides of an operand")?,
            )
        };
        if sizes.iter().any(|size| *size < 0) {
            let text = format!("an operand of sizes {sizes:?}: none may be negative");
            return Err(Fault::argument(text));
        }
        Ok(Self {
            dtype: tensor.dtype,
            sizes,
            strides,
        })
    }
}
