//! The arguments of an operator with a schema: each kind of value arrives as it was passed, and wrong ones are named.

use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;

use outrigger_device::sys::*;

use super::super::operators::empty_call;
use super::*;

tests! { "host-abi.value":
    /// A function gets every kind of value as the caller passed it.
    each_kind_arrives: H6 H9;
    /// A value that is wrong is refused by its place, with what is wrong, and nobody is asked.
    wrong_ones_are_named: H2 H3 H6;
}

/// A value as a function finds it.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Kind(u32),
    Place(u32, u64, u32),
    Number(u32, i64),
    Text(String),
    List(u32, Vec<i64>),
}

/// The call as a function found it, beside the values: dtypes of inputs and outputs, scalars, and flags.
#[derive(Clone, Debug, Default, PartialEq)]
struct Found {
    values: Vec<Seen>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    scalars: Vec<(u32, u64)>,
    flags: u32,
    name: String,
}

static FOUND: Mutex<Option<Found>> = Mutex::new(None);

/// # Safety
/// `first` leads to so many values, or there are none.
unsafe fn list<'a, T>(first: *const T, count: u32) -> &'a [T] {
    match count {
        0 => &[],
        // SAFETY: as above.
        _ => unsafe { std::slice::from_raw_parts(first, count as usize) },
    }
}

fn seen(value: &otr_value_t) -> Seen {
    // SAFETY: the member of the union is that of the kind, and lists are as long as they say.
    unsafe {
        match value.kind {
            OTR_VALUE_NONE => Seen::Kind(value.kind),
            OTR_VALUE_INT | OTR_VALUE_BOOL | OTR_VALUE_DTYPE => {
                Seen::Number(value.kind, value.of.integer)
            }
            OTR_VALUE_STRING => {
                let text = CStr::from_ptr(value.of.string).to_string_lossy();
                Seen::Text(text.into_owned())
            }
            OTR_VALUE_INTS | OTR_VALUE_BOOLS => {
                Seen::List(value.kind, list(value.of.integers, value.count).to_vec())
            }
            kind => Seen::Place(kind, value.of.index, value.count),
        }
    }
}

unsafe extern "C" fn note(
    _: *mut c_void,
    _: otr_stream_t,
    _: otr_operator_id_t,
    call: *const otr_operator_call_t,
) -> *mut otr_status_t {
    // SAFETY: a call whose pointers are valid while it lasts.
    let found = unsafe {
        let call = &*call;
        let dtypes = |first, count| {
            list(first, count)
                .iter()
                .map(|one: &otr_tensor_t| one.dtype)
        };
        let mut values = Vec::new();
        if !call.next.is_null() && (*call.next).type_ == OTR_EXT_OPERATOR_ARGS {
            let args = &*call.next.cast::<otr_operator_args_t>();
            values.extend(list(args.values, args.count).iter().map(seen));
        }
        let scalars = list(call.scalars, call.scalar_count).iter();
        Found {
            values,
            inputs: dtypes(call.inputs, call.input_count).collect(),
            outputs: dtypes(call.outputs, call.output_count).collect(),
            scalars: scalars
                .map(|one: &otr_scalar_t| (one.dtype, one.value.i64_ as u64))
                .collect(),
            flags: call.flags,
            name: CStr::from_ptr(call.name).to_string_lossy().into_owned(),
        }
    };
    *FOUND.lock().expect("no panic") = Some(found);
    null_mut()
}

const NAME: &CStr = c"conformance::values";

/// Registers the function that notes what it finds. Returns a stream and the operator.
fn listen(context: &Context) -> Verdict<(u64, u32)> {
    start(context)?;
    let params = otr_operator_registration_t {
        struct_size: size_of::<otr_operator_registration_t>(),
        next: null(),
        name: NAME.as_ptr(),
        owner: c"conformance".as_ptr(),
        function: Some(note),
        user: null_mut(),
        destroy: None,
        device: OTR_ALL_DEVICES,
        flags: 0,
    };
    made(|out| otr!(operator_register, &params, out))?;
    let operator = made(|out| otr!(operator_find, NAME.as_ptr(), out))?;
    Ok((stream()?, operator))
}

fn value(kind: u32, count: usize, of: otr_value__bindgen_ty_1) -> otr_value_t {
    let count = count as u32;
    otr_value_t { kind, count, of }
}

fn at(kind: u32, index: u64, count: usize) -> otr_value_t {
    value(kind, count, otr_value__bindgen_ty_1 { index })
}

fn number(kind: u32, integer: i64) -> otr_value_t {
    value(kind, 0, otr_value__bindgen_ty_1 { integer })
}

fn texts(count: usize, string: *const c_char) -> otr_value_t {
    value(OTR_VALUE_STRING, count, otr_value__bindgen_ty_1 { string })
}

fn integers(kind: u32, count: usize, integers: *const i64) -> otr_value_t {
    value(kind, count, otr_value__bindgen_ty_1 { integers })
}

/// Makes a call of three inputs, the second of which is absent, two outputs and three scalars, with these values.
fn pass(stream: u64, operator: u32, values: &[otr_value_t]) -> Verdict<Result<(), Refused>> {
    let address = alloc(64, stream)?;
    let (sizes, strides) = ([2i64, 4], [4i64, 1]);
    let tensor = |dtype: DType| otr_tensor_t {
        address,
        dtype: dtype.0,
        rank: 2,
        sizes: sizes.as_ptr(),
        strides: strides.as_ptr(),
    };
    // SAFETY: an operand that is absent is all zeros.
    let absent: otr_tensor_t = unsafe { std::mem::zeroed() };
    let inputs = [tensor(DType::F32), absent, tensor(DType::I64)];
    let outputs = [tensor(DType::BF16), tensor(DType::BOOL)];
    let scalars = [
        scalar(DType::F64, -2),
        scalar(DType::I64, i64::MIN),
        scalar(DType::I64, 5),
    ];
    let args = otr_operator_args_t {
        ext: otr_ext_t {
            struct_size: size_of::<otr_operator_args_t>(),
            type_: OTR_EXT_OPERATOR_ARGS,
            reserved: 0,
            next: null(),
        },
        values: values.as_ptr(),
        count: values.len() as u32,
        reserved: 0,
    };
    let call = otr_operator_call_t {
        next: &raw const args.ext,
        inputs: inputs.as_ptr(),
        outputs: outputs.as_ptr(),
        scalars: scalars.as_ptr(),
        input_count: 3,
        output_count: 2,
        scalar_count: 3,
        flags: OTR_CALL_DEVICE_ONLY,
        ..empty_call()
    };
    Ok(otr!(operator_call, stream, operator, &call))
}

fn each_kind_arrives(context: &Context) -> Verdict {
    let (stream, operator) = listen(context)?;
    let (ints, bools) = ([7, -8, i64::MAX], [1, 0]);
    let text = c"amax, and \xc3\xa9";
    let values = [
        at(OTR_VALUE_NONE, 0, 0),
        at(OTR_VALUE_INPUT, 1, 0),
        at(OTR_VALUE_INPUTS, 1, 2),
        at(OTR_VALUE_INPUTS, 3, 0),
        at(OTR_VALUE_OUTPUT, 0, 0),
        at(OTR_VALUE_OUTPUTS, 0, 2),
        at(OTR_VALUE_SCALAR, 2, 0),
        at(OTR_VALUE_SCALARS, 0, 3),
        number(OTR_VALUE_INT, i64::MIN),
        number(OTR_VALUE_BOOL, 1),
        number(OTR_VALUE_DTYPE, i64::from(DType::F16.0)),
        texts(text.to_bytes().len(), text.as_ptr()),
        texts(0, c"".as_ptr()),
        integers(OTR_VALUE_INTS, 3, ints.as_ptr()),
        integers(OTR_VALUE_INTS, 0, null()),
        integers(OTR_VALUE_BOOLS, 2, bools.as_ptr()),
    ];
    pass(stream, operator, &values)??;
    let found = FOUND.lock().expect("no panic").take().unwrap_or_default();
    let expected = Found {
        values: vec![
            Seen::Kind(OTR_VALUE_NONE),
            Seen::Place(OTR_VALUE_INPUT, 1, 0),
            Seen::Place(OTR_VALUE_INPUTS, 1, 2),
            Seen::Place(OTR_VALUE_INPUTS, 3, 0),
            Seen::Place(OTR_VALUE_OUTPUT, 0, 0),
            Seen::Place(OTR_VALUE_OUTPUTS, 0, 2),
            Seen::Place(OTR_VALUE_SCALAR, 2, 0),
            Seen::Place(OTR_VALUE_SCALARS, 0, 3),
            Seen::Number(OTR_VALUE_INT, i64::MIN),
            Seen::Number(OTR_VALUE_BOOL, 1),
            Seen::Number(OTR_VALUE_DTYPE, i64::from(DType::F16.0)),
            Seen::Text("amax, and \u{e9}".to_owned()),
            Seen::Text(String::new()),
            Seen::List(OTR_VALUE_INTS, ints.to_vec()),
            Seen::List(OTR_VALUE_INTS, Vec::new()),
            Seen::List(OTR_VALUE_BOOLS, bools.to_vec()),
        ],
        inputs: vec![DType::F32.0, DType::INVALID.0, DType::I64.0],
        outputs: vec![DType::BF16.0, DType::BOOL.0],
        scalars: vec![
            (DType::F64.0, (-2f64).to_bits()),
            (DType::I64.0, i64::MIN as u64),
            (DType::I64.0, 5),
        ],
        flags: OTR_CALL_DEVICE_ONLY,
        name: "conformance::values".to_owned(),
    };
    equal!(found, expected, "what the function found");
    Ok(())
}

fn wrong_ones_are_named(context: &Context) -> Verdict {
    let (stream, operator) = listen(context)?;
    let fine = number(OTR_VALUE_INT, 1);
    let cut = [b'a', 0, b'b', 0];
    let crooked = std::ptr::without_provenance(12);
    let absent = "it names an operand or scalar that the call does not have";
    let no_list = "its list is NULL or not aligned";
    let all = [
        (at(77, 0, 0), "its kind is unknown"),
        (at(OTR_VALUE_INPUT, 3, 0), absent),
        (at(OTR_VALUE_OUTPUT, 2, 0), absent),
        (at(OTR_VALUE_SCALAR, 3, 0), absent),
        (at(OTR_VALUE_INPUTS, 2, 2), absent),
        (at(OTR_VALUE_OUTPUTS, 0, 3), absent),
        (at(OTR_VALUE_SCALARS, u64::MAX, 2), absent),
        (at(OTR_VALUE_INPUT, 0, 1), "its kind has no count"),
        (value(OTR_VALUE_INT, 1, fine.of), "its kind has no count"),
        (texts(1, null()), "its string is NULL"),
        (
            texts(2, cut.as_ptr().cast()),
            "its string does not end where its count says",
        ),
        (
            texts(1, c"ab".as_ptr()),
            "its string does not end where its count says",
        ),
        (integers(OTR_VALUE_INTS, 1, null()), no_list),
        (integers(OTR_VALUE_BOOLS, 2, null()), no_list),
        (integers(OTR_VALUE_INTS, 1, crooked), no_list),
    ];
    for (wrong, why) in all {
        let answer = pass(stream, operator, &[fine, fine, wrong])?;
        let told = refused(answer, Code::INVALID_ARGUMENT, why)?;
        for part in ["argument 2", why] {
            check!(
                told.text.contains(part),
                "{part} in the text: {}",
                told.text
            );
        }
    }
    let short = otr_operator_args_t {
        ext: otr_ext_t {
            struct_size: size_of::<otr_ext_t>(),
            type_: OTR_EXT_OPERATOR_ARGS,
            reserved: 0,
            next: null(),
        },
        values: &raw const fine,
        count: 1,
        reserved: 0,
    };
    let call = otr_operator_call_t {
        next: &raw const short.ext,
        ..empty_call()
    };
    let answer = otr!(operator_call, stream, operator, &call);
    let told = refused(
        answer,
        Code::INVALID_ARGUMENT,
        "arguments that are too short",
    )?;
    check!(told.text.contains("struct_size"), "H9: {}", told.text);
    let numbers = [scalar(DType::I64, 1); OTR_SCALARS_MAX as usize + 1];
    let call = otr_operator_call_t {
        scalars: numbers.as_ptr(),
        scalar_count: numbers.len() as u32,
        ..empty_call()
    };
    let answer = otr!(operator_call, stream, operator, &call);
    let told = refused(answer, Code::INVALID_ARGUMENT, "too many scalars")?;
    check!(
        told.text.contains("64 scalars"),
        "the most there are: {}",
        told.text
    );
    check!(
        FOUND.lock().expect("no panic").is_none(),
        "the function is not asked for a call that is wrong"
    );
    Ok(())
}
