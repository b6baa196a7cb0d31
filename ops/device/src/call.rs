//! Reads a call in the form of the driver contract, as the types of the operator crate.

use std::ffi::CStr;
use std::mem::offset_of;

use outrigger_device::{Code, DType, sys};
use outrigger_ops::{Argument, Call, OperatorId, PlanError, Scalar, Tensor, Value};

/// The reason why a call gets no operator: a code, and a text for people.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) text: String,
}

pub(crate) type Result<T> = std::result::Result<T, Refusal>;

impl Refusal {
    pub(crate) fn new(code: Code, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }
}

/// There is no kernel for the call. Something else serves it.
#[cold]
pub(crate) fn unsupported<T>(text: impl Into<String>) -> Result<T> {
    Err(Refusal::new(Code::UNSUPPORTED, text))
}

/// The call is none of the catalog.
#[cold]
pub(crate) fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Refusal::new(Code::INVALID_ARGUMENT, text))
}

/// Refuses what the operator's host kernel refuses, so that sizes and element types are checked at one place. Scalars do not
/// count, because a launch brings its own.
pub(crate) fn agrees(name: &CStr, call: &Call<'_>) -> Result<()> {
    let Some(id) = OperatorId::find(name) else {
        return unsupported("there is no such operator");
    };
    match outrigger_ops::plan(id, call) {
        Ok(_) => Ok(()),
        Err(PlanError::Unsupported(text)) => unsupported(text),
        Err(PlanError::Invalid(text)) => invalid(text),
    }
}

/// The most scalars of a call.
const SCALARS: usize = 64;

/// Gives `with` a call of the host.
///
/// # Safety
/// `raw` is NULL, or a struct of the size that stands in it whose pointers are NULL or lead to as much as it says; all
/// of it stays so during this function.
pub(crate) unsafe fn read<R>(
    raw: *const sys::otr_operator_call,
    with: impl FnOnce(&CStr, &Call<'_>) -> Result<R>,
) -> Result<R> {
    // SAFETY: this function's contract: NULL, or a struct.
    let Some(call) = (unsafe { raw.as_ref() }) else {
        return invalid("the call is NULL");
    };
    // All fields were there in the first version of the contract.
    const SIZE: usize = offset_of!(sys::otr_operator_call, flags) + size_of::<u32>();
    if call.struct_size < SIZE {
        let size = call.struct_size;
        return invalid(format!(
            "a call of {size} bytes; version 1.0 has {SIZE} of them"
        ));
    }
    if call.name.is_null() {
        return invalid("the name of the operator is NULL");
    }
    if call.scalar_count as usize > SCALARS {
        return unsupported(format!("a call of more than {SCALARS} scalars"));
    }
    // SAFETY: this function's contract: lists are NULL or as long as their counts say.
    let (inputs, outputs, numbers) = unsafe {
        (
            list(call.inputs, call.input_count, "inputs")?,
            list(call.outputs, call.output_count, "outputs")?,
            list(call.scalars, call.scalar_count, "scalars")?,
        )
    };
    // SAFETY: as above; a name that is not NULL ends with a NUL.
    let (inputs, outputs, name) = unsafe {
        let tensors = Tensor::of_raw(inputs).zip(Tensor::of_raw(outputs));
        let Some((inputs, outputs)) = tensors else {
            return invalid("sizes or strides of an operand are NULL or not aligned");
        };
        (inputs, outputs, CStr::from_ptr(call.name))
    };
    let mut scalars = [Scalar::I64(0); SCALARS];
    for (scalar, number) in scalars.iter_mut().zip(numbers) {
        *scalar = match DType(number.dtype) {
            // SAFETY: the member that the dtype names.
            DType::F64 => Scalar::F64(unsafe { number.value.f64_ }),
            // SAFETY: as above.
            DType::I64 => Scalar::I64(unsafe { number.value.i64_ }),
            other => return invalid(format!("a scalar is f64 or i64, not {other}")),
        };
    }
    let args = arguments(call)?;
    let call = Call {
        inputs,
        outputs,
        scalars: &scalars[..numbers.len()],
        args,
        ..Call::default()
    };
    with(name, &call)
}

/// The arguments of an operator that has a schema, from the call's chain of extensions.
fn arguments(call: &sys::otr_operator_call) -> Result<&[Value<'_>]> {
    // SAFETY: R3: NULL, or a record with its size and the next one.
    let record = match unsafe { sys::find_record(call.next, sys::OTR_EXT_OPERATOR_ARGS) } {
        Ok(Some(record)) => record,
        Ok(None) => return Ok(&[]),
        Err(why) => return invalid(format!("the call cannot be read: {why}")),
    };
    // SAFETY: a live record.
    if unsafe { record.as_ref() }.struct_size < size_of::<sys::otr_operator_args>() {
        return invalid("the record of arguments is cut off");
    }
    // SAFETY: R3: a record of this type and of at least this size.
    let args = unsafe { record.cast::<sys::otr_operator_args>().as_ref() };
    // SAFETY: the list is NULL or has as many values as counted.
    let values = unsafe { list(args.values, args.count, "arguments")? };
    // SAFETY: R10: lists and strings of the call are valid during it.
    let values = unsafe { Value::of_raw(values, call) };
    values.or_else(|(at, why)| invalid(format!("argument {at}: {why}")))
}

/// # Safety
/// `start` is NULL, or there are `count` entries that outlive the result.
unsafe fn list<'a, T>(start: *const T, count: u32, what: &str) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if start.is_null() || !start.is_aligned() => invalid(format!(
            "{what} are NULL or not aligned, and {count} are counted"
        )),
        // SAFETY: not NULL, so there are `count` entries, which outlive the result.
        count => Ok(unsafe { std::slice::from_raw_parts(start, count as usize) }),
    }
}

/// Questions that the makers of operators ask of a call.
pub(crate) trait Asked<'a> {
    /// An input that has to be there.
    fn input(&self, at: usize) -> Result<&'a Tensor<'a>>;
    /// An output that has to be there.
    fn output(&self, at: usize) -> Result<&'a Tensor<'a>>;
    /// An input that may be absent.
    fn maybe_input(&self, at: usize) -> Option<&'a Tensor<'a>>;
    /// An output that may be absent.
    fn maybe_output(&self, at: usize) -> Option<&'a Tensor<'a>>;
    /// An argument of the schema.
    fn argument(&self, at: usize) -> Argument<'a>;
    /// The place in the inputs of the tensor that an argument names; `None` if it was left out.
    fn place(&self, at: usize) -> Option<usize>;
    /// An integer of the schema.
    fn integer(&self, at: usize) -> Result<i64>;
    /// A truth value of the schema.
    fn truth(&self, at: usize) -> Result<bool>;
    /// A list of integers or truth values of the schema.
    fn integers(&self, at: usize) -> Result<&'a [i64]>;
    /// The place in the scalars of a number of the schema; `None` if it was left out.
    fn number(&self, at: usize) -> Option<usize>;
}

/// A tensor that a call must have.
fn operand<'a>(tensors: &'a [Tensor<'a>], what: &str, at: usize) -> Result<&'a Tensor<'a>> {
    match tensors.get(at) {
        // An operand that is left out has no type, and neither has one of a type without a code.
        Some(tensor) if tensor.dtype() == DType::INVALID => {
            unsupported(format!("{what} {at} has no type"))
        }
        Some(tensor) => Ok(tensor),
        None => invalid(format!("{what} {at} is missing")),
    }
}

impl<'a> Asked<'a> for Call<'a> {
    fn input(&self, at: usize) -> Result<&'a Tensor<'a>> {
        operand(self.inputs, "input", at)
    }

    fn output(&self, at: usize) -> Result<&'a Tensor<'a>> {
        operand(self.outputs, "output", at)
    }

    fn maybe_input(&self, at: usize) -> Option<&'a Tensor<'a>> {
        let tensor = self.inputs.get(at);
        tensor.filter(|tensor| tensor.dtype() != DType::INVALID)
    }

    fn maybe_output(&self, at: usize) -> Option<&'a Tensor<'a>> {
        let tensor = self.outputs.get(at);
        tensor.filter(|tensor| tensor.dtype() != DType::INVALID)
    }

    fn argument(&self, at: usize) -> Argument<'a> {
        self.args.get(at).map_or(Argument::None, Value::get)
    }

    fn place(&self, at: usize) -> Option<usize> {
        match self.argument(at) {
            Argument::Input(place) => self.maybe_input(place).map(|_| place),
            _ => None,
        }
    }

    fn integer(&self, at: usize) -> Result<i64> {
        match self.argument(at) {
            Argument::Int(value) => Ok(value),
            other => invalid(format!("argument {at} is {other:?}, not an integer")),
        }
    }

    fn truth(&self, at: usize) -> Result<bool> {
        match self.argument(at) {
            Argument::Bool(value) => Ok(value),
            other => invalid(format!("argument {at} is {other:?}, not a truth value")),
        }
    }

    fn integers(&self, at: usize) -> Result<&'a [i64]> {
        match self.argument(at) {
            Argument::Ints(list) | Argument::Bools(list) => Ok(list),
            other => invalid(format!("argument {at} is {other:?}, not a list")),
        }
    }

    fn number(&self, at: usize) -> Option<usize> {
        match self.argument(at) {
            Argument::Scalar(place) => Some(place),
            _ => None,
        }
    }
}
