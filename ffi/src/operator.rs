//! Operators: looked up by name once, called by number.

use std::ffi::c_char;

use arrayvec::ArrayVec;
use outrigger_device::sys::{
    OTR_EXT_OPERATOR_ARGS, find_record, otr_operator_args_t, otr_operator_call_t, otr_scalar_t,
    otr_tensor_t,
};
use outrigger_hooks as hooks;
use outrigger_hooks::ops::{Call, DType, OperatorId, Scalar, Tensor, Value, parallel};
use outrigger_hooks::{Code, Error, Result};

use crate::guard::{Out, c_str, sized, slice, text, unused};
use crate::{otr_operator_id_t, otr_stream_t};

/// The most scalars of one call.
pub const OTR_SCALARS_MAX: usize = 64;

/// `flags` of a call: nothing but a registered function or an operator of the driver may serve it. Without one the
/// answer is OTR_ERR_UNSUPPORTED, whatever host kernels there are.
pub const OTR_CALL_DEVICE_ONLY: u32 = 1;

/// The operator is not made of others: the driver serves the whole, or a host kernel does.
pub const OTR_CALL_WHOLE: u32 = 2;

type Scalars = ArrayVec<Scalar, OTR_SCALARS_MAX>;

#[inline]
fn tensors<'a>(first: *const otr_tensor_t, count: u32, what: &str) -> Result<&'a [Tensor<'a>]> {
    let raw = slice(first, count as usize, what)?;
    // SAFETY: H6: each list is NULL, or has as many numbers as the rank says, during the call.
    unsafe { Tensor::of_raw(raw) }.ok_or_else(|| no_list(what))
}

// The function fills what the caller has made: returned by value, the array would be copied as a whole.
#[inline]
fn scalars(out: &mut Scalars, array: &[otr_scalar_t]) -> Result<()> {
    for one in array {
        out.try_push(scalar(one)?).map_err(|_| too_many())?;
    }
    Ok(())
}

/// The arguments in the extension chain of a call.
fn arguments<'a>(call: &'a otr_operator_call_t) -> Result<&'a [Value<'a>]> {
    // SAFETY: H6, H9: NULL, or records that are as large as they say, during the call.
    let found = unsafe { find_record(call.next, OTR_EXT_OPERATOR_ARGS) };
    let found = found.map_err(|why| {
        Error::new(
            Code::INVALID_ARGUMENT,
            format!("call->next cannot be read: {why}"),
        )
    })?;
    let Some(record) = found else {
        return Ok(&[]);
    };
    let args = sized(
        record.cast::<otr_operator_args_t>().as_ptr().cast_const(),
        "args",
    )?;
    unused(std::ptr::null(), args.reserved, "args")?;
    let values = slice(args.values, args.count as usize, "args->values")?;
    // SAFETY: H6: lists and strings are as long as their counts say, during the call.
    unsafe { Value::of_raw(values, call) }.map_err(|(at, why)| {
        Error::new(
            Code::INVALID_ARGUMENT,
            format!("argument {at} is wrong: {why}"),
        )
    })
}

/// A number in the form of the header.
#[inline]
pub(crate) fn scalar(scalar: &otr_scalar_t) -> Result<Scalar> {
    unused(std::ptr::null(), scalar.reserved, "scalar")?;
    match DType(scalar.dtype) {
        // SAFETY: both members of the union are 8 bytes for which every bit pattern is a value.
        DType::F64 => Ok(Scalar::F64(unsafe { scalar.value.f64_ })),
        // SAFETY: as above.
        DType::I64 => Ok(Scalar::I64(unsafe { scalar.value.i64_ })),
        other => Err(Error::new(
            Code::INVALID_ARGUMENT,
            format!(
                "a scalar's dtype is OTR_DTYPE_F64 or OTR_DTYPE_I64, not {}",
                other.0
            ),
        )),
    }
}

/// The operator of a number.
#[inline]
fn operator(id: otr_operator_id_t) -> Result<OperatorId> {
    OperatorId::from_index(id).ok_or_else(|| {
        let text = format!("there is no operator number {id}");
        Error::new(Code::NOT_FOUND, text)
    })
}

/// Runs `with` on a caller's operator call.
#[inline]
pub(crate) fn with_call<R>(
    operator_id: otr_operator_id_t,
    call: *const otr_operator_call_t,
    with: impl FnOnce(OperatorId, &Call<'_>) -> Result<R>,
) -> Result<R> {
    let call = sized(call, "call")?;
    if call.flags & !(OTR_CALL_DEVICE_ONLY | OTR_CALL_WHOLE) != 0 {
        return Err(unknown_flags(call.flags));
    }
    let operator = operator(operator_id)?;
    let mut numbers = Scalars::new();
    scalars(
        &mut numbers,
        slice(call.scalars, call.scalar_count as usize, "scalars")?,
    )?;
    with(
        operator,
        &Call {
            inputs: tensors(call.inputs, call.input_count, "inputs")?,
            outputs: tensors(call.outputs, call.output_count, "outputs")?,
            scalars: &numbers,
            args: arguments(call)?,
            device_only: call.flags & OTR_CALL_DEVICE_ONLY != 0,
            whole: call.flags & OTR_CALL_WHOLE != 0,
        },
    )
}

#[cold]
fn too_many() -> Error {
    Error::new(
        Code::INVALID_ARGUMENT,
        format!("more than {OTR_SCALARS_MAX} scalars"),
    )
}

#[cold]
fn no_list(what: &str) -> Error {
    Error::new(
        Code::INVALID_ARGUMENT,
        format!(
            "sizes or strides of one of the {what} are NULL or not aligned, and its rank is not 0"
        ),
    )
}

#[cold]
fn unknown_flags(flags: u32) -> Error {
    Error::new(
        Code::INVALID_ARGUMENT,
        format!(
            "call->flags {flags:#x} has bits without a meaning: those with one are OTR_CALL_DEVICE_ONLY and \
             OTR_CALL_WHOLE"
        ),
    )
}

api! {
    /// The number of an operator, the same for the life of the process: one of docs/operators.md, by its name
    /// or that of a framework's operator that it serves, or any operator of a framework by its schema name
    /// ("aten::grid_sampler_2d"), which drivers may have. OTR_ERR_NOT_FOUND for another name.
    fn otr_operator_find(name: *const c_char, operator_id: *mut otr_operator_id_t) {
        let out = Out::new(operator_id, "operator_id")?;
        let Some(found) = OperatorId::find(c_str(name, "name")?) else {
            let name = text(name, "name")?;
            let reason = format!("there is no operator named '{name}'");
            return Err(Error::new(Code::NOT_FOUND, reason));
        };
        out.set(found.index());
        Ok(())
    }

    /// Keeps operators whole on a device: they are not made of others where the driver has the parts alone. Operators
    /// that were kept whole before, by a call or the variable OUTRIGGER_WHOLE, are no longer.
    fn otr_operator_keep_whole(device: u32, ids: *const otr_operator_id_t, count: u32) {
        let ids = slice(ids, count as usize, "ids")?;
        let ids: Vec<_> = ids.iter().map(|id| operator(*id)).collect::<Result<_>>()?;
        hooks::runtime()?.device(device)?.keep_whole(&ids);
        Ok(())
    }

    /// Sets `yes` to 1 if the driver of a device has the operator for some operands, as a whole or in parts, or a function
    /// is registered for it there, else to 0.
    fn otr_operator_offered(device: u32, operator_id: otr_operator_id_t, yes: *mut u32) {
        let out = Out::new(yes, "yes")?;
        let operator = operator(operator_id)?;
        out.set(hooks::runtime()?.device(device)?.serves(operator).into());
        Ok(())
    }

    /// Runs an operator in stream order and returns at once. The operands lie in live memory of the
    /// stream's device. `name` of the call is ignored. The call may be freed after the return.
    /// OTR_ERR_INVALID_ARGUMENT if operands or scalars do not fit the operator; OTR_ERR_UNSUPPORTED if
    /// there is no kernel for these arguments. In both cases nothing was done. An index out of bounds
    /// shows when the work runs: the stream fails with OTR_ERR_OUT_OF_RANGE.
    fn otr_operator_call(
        stream: otr_stream_t,
        operator_id: otr_operator_id_t,
        call: *const otr_operator_call_t,
    ) {
        with_call(operator_id, call, |operator, call| {
            let stream = hooks::stream(stream)?;
            // SAFETY: H22: the host sees to it that operands lie in live memory of the device.
            unsafe { stream.call(operator, call) }
        })
    }

    /// Sets the number of threads of the built-in pool, for the whole process; 0: as many as cores.
    fn otr_set_threads(threads: u32) {
        parallel::set_threads(threads as usize);
        Ok(())
    }
}
