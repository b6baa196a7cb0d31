//! Tensors in memory with sentinels around them, and the two ways to run operators on them.

use std::ffi::CString;
use std::ptr::null;

use outrigger_device::sys::{
    OTR_EXT_OPERATOR_ARGS, OTR_VALUE_BOOL, OTR_VALUE_BOOLS, OTR_VALUE_DTYPE, OTR_VALUE_INPUT,
    OTR_VALUE_INPUTS, OTR_VALUE_INT, OTR_VALUE_INTS, OTR_VALUE_NONE, OTR_VALUE_OUTPUT,
    OTR_VALUE_SCALAR, OTR_VALUE_STRING, otr_ext, otr_operator_args_t, otr_operator_call_t,
    otr_scalar__bindgen_ty_1, otr_scalar_t, otr_tensor_t, otr_value__bindgen_ty_1, otr_value_t,
};
use outrigger_device::{DType, Queue};

use super::numbers::{close, decode, encode, width};
use crate::Verdict;
use crate::tests::kit::write;
use crate::verdict::{check, equal};

/// The side that runs operators: the C ABI of the host side, or the driver's own library.
pub(in crate::tests) trait Runner {
    /// Memory with these bytes.
    fn place(&self, bytes: &[u8]) -> Verdict<u64>;

    /// The bytes at an address, after all work.
    fn fetch(&self, address: u64, size: usize) -> Verdict<Vec<u8>>;

    /// Runs a call to its end; false where there is no operator for it and need not be.
    fn run(&self, call: &otr_operator_call_t) -> Verdict<bool>;

    /// Makes the same choices each time.
    fn seed(&self) -> u64;
}

/// Bytes around each operand in memory.
pub(in crate::tests) const GUARD: usize = 256;
pub(in crate::tests) const SENTINEL: u8 = 0xa7;

/// A tensor in device memory with sentinels around it.
pub(in crate::tests) struct Operand {
    /// The address of the first element; where strides are negative others lie below it.
    address: u64,
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    /// The address of the lowest element.
    lowest: u64,
    /// Elements from the lowest to the highest.
    span: usize,
}

impl Operand {
    /// A dense operand, in row-major order.
    pub(in crate::tests) fn dense(
        on: &dyn Runner,
        dtype: DType,
        sizes: &[i64],
        values: &[f64],
    ) -> Verdict<Self> {
        Self::new(on, dtype, sizes, &row_major(sizes), values)
    }

    /// A dense operand without memory: for questions, not for launches.
    pub(super) fn nowhere(dtype: DType, sizes: &[i64]) -> Self {
        Self {
            address: 0,
            dtype,
            sizes: sizes.to_vec(),
            strides: row_major(sizes),
            lowest: 0,
            span: 0,
        }
    }

    /// An operand with strides; `values` are in the order of memory.
    pub(in crate::tests) fn new(
        on: &dyn Runner,
        dtype: DType,
        sizes: &[i64],
        strides: &[i64],
        values: &[f64],
    ) -> Verdict<Self> {
        let width = width(dtype);
        let mut bytes = vec![SENTINEL; 2 * GUARD + values.len() * width];
        for (at, value) in values.iter().enumerate() {
            bytes[GUARD + at * width..][..width].copy_from_slice(&encode(dtype, *value));
        }
        let below: i64 = (sizes.iter().zip(strides))
            .map(|(size, stride)| (size - 1).max(0) * (-stride).max(0))
            .sum();
        let lowest = on.place(&bytes)? + GUARD as u64;
        Ok(Self {
            address: lowest + below as u64 * width as u64,
            dtype,
            sizes: sizes.to_vec(),
            strides: strides.to_vec(),
            lowest,
            span: values.len(),
        })
    }

    /// Overwrites the elements, given in the order of memory, in order of a queue.
    pub(super) fn set(&self, queue: &Queue, values: &[f64]) -> Verdict {
        let bytes = values.iter().flat_map(|value| encode(self.dtype, *value));
        write(queue, self.lowest, &bytes.collect::<Vec<_>>())
    }

    pub(in crate::tests) fn tensor(&self) -> otr_tensor_t {
        otr_tensor_t {
            address: self.address,
            dtype: self.dtype.0,
            rank: self.sizes.len() as u32,
            sizes: self.sizes.as_ptr(),
            strides: self.strides.as_ptr(),
        }
    }

    /// All elements in the order of memory; the sentinels must be there.
    pub(in crate::tests) fn values(&self, on: &dyn Runner, what: &str) -> Verdict<Vec<f64>> {
        let width = width(self.dtype);
        let start = self.lowest - GUARD as u64;
        let bytes = on.fetch(start, 2 * GUARD + self.span * width)?;
        let (before, rest) = bytes.split_at(GUARD);
        let (inside, behind) = rest.split_at(self.span * width);
        let kept = |bytes: &[u8]| bytes.iter().all(|byte| *byte == SENTINEL);
        check!(
            kept(before),
            "{what}: nothing in front of an operand is written"
        );
        check!(kept(behind), "{what}: nothing behind an operand is written");
        Ok(inside
            .chunks_exact(width)
            .map(|bytes| decode(self.dtype, bytes))
            .collect())
    }
}

fn row_major(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    for at in (1..sizes.len()).rev() {
        strides[at - 1] = strides[at] * sizes[at].max(1);
    }
    strides
}

/// A call without operands.
pub(in crate::tests) fn empty_call() -> otr_operator_call_t {
    otr_operator_call_t {
        struct_size: size_of::<otr_operator_call_t>(),
        next: null(),
        name: null(),
        inputs: null(),
        outputs: null(),
        scalars: null(),
        input_count: 0,
        output_count: 0,
        scalar_count: 0,
        flags: 0,
    }
}

/// A call with all that it points to.
pub(in crate::tests) struct Arguments {
    name: CString,
    inputs: Vec<otr_tensor_t>,
    outputs: Vec<otr_tensor_t>,
    scalars: Vec<otr_scalar_t>,
    /// Sizes, strides, and lists of integers.
    lists: Vec<Vec<i64>>,
    values: Vec<otr_value_t>,
    texts: Vec<CString>,
    /// The arguments are on the heap, because calls point to them.
    args: Option<Box<otr_operator_args_t>>,
}

/// An argument of an operator that has a schema.
#[derive(Clone, Copy)]
pub(in crate::tests) enum Given<'a> {
    Nothing,
    In(&'a Operand),
    /// A list of tensors, some of which may be absent.
    Ins(&'a [Option<&'a Operand>]),
    /// A tensor that is written in place. It comes before all results.
    InPlace(&'a Operand),
    Number(f64),
    Int(i64),
    Truth(bool),
    Dtype(DType),
    Text(&'static str),
    Ints(&'a [i64]),
    Truths(&'a [i64]),
}

/// A scalar of a call, in one of the two types that a scalar has.
#[derive(Clone, Copy, Debug)]
pub(in crate::tests) enum Number {
    Real(f64),
    Whole(i64),
}

impl Number {
    fn scalar(self) -> otr_scalar_t {
        let (dtype, value) = match self {
            Self::Real(f64_) => (DType::F64, otr_scalar__bindgen_ty_1 { f64_ }),
            Self::Whole(i64_) => (DType::I64, otr_scalar__bindgen_ty_1 { i64_ }),
        };
        otr_scalar_t {
            dtype: dtype.0,
            reserved: 0,
            value,
        }
    }
}

impl Arguments {
    /// A call whose scalars are real numbers.
    pub(in crate::tests) fn new(
        name: &str,
        inputs: &[&Operand],
        outputs: &[&Operand],
        scalars: &[f64],
    ) -> Verdict<Self> {
        let scalars: Vec<Number> = scalars.iter().copied().map(Number::Real).collect();
        Self::with(name, inputs, outputs, &scalars)
    }

    fn with(
        name: &str,
        inputs: &[&Operand],
        outputs: &[&Operand],
        scalars: &[Number],
    ) -> Verdict<Self> {
        let mut lists = Vec::new();
        let mut tensors = |operands: &[&Operand]| -> Vec<otr_tensor_t> {
            let operands = operands.iter();
            operands
                .map(|operand| {
                    let (sizes, strides) = (operand.sizes.clone(), operand.strides.clone());
                    let tensor = otr_tensor_t {
                        address: operand.address,
                        dtype: operand.dtype.0,
                        rank: sizes.len() as u32,
                        sizes: sizes.as_ptr(),
                        strides: strides.as_ptr(),
                    };
                    lists.extend([sizes, strides]);
                    tensor
                })
                .collect()
        };
        let (inputs, outputs) = (tensors(inputs), tensors(outputs));
        let scalars = scalars.iter().map(|number| number.scalar());
        Ok(Self {
            name: CString::new(name)?,
            inputs,
            outputs,
            scalars: scalars.collect(),
            lists,
            values: Vec::new(),
            texts: Vec::new(),
            args: None,
        })
    }

    /// A call of an operator that has a schema. Its outputs are the tensors that are written in place, then `results`,
    /// some of which may be absent.
    pub(in crate::tests) fn of_schema(
        name: &str,
        given: &[Given<'_>],
        results: &[Option<&Operand>],
    ) -> Verdict<Self> {
        let absent = Operand::nowhere(DType::INVALID, &[]);
        let (mut inputs, mut outputs, mut scalars) = (Vec::new(), Vec::new(), Vec::new());
        let (mut lists, mut texts) = (Vec::new(), Vec::new());
        let mut values = Vec::new();
        for one in given {
            let at = |count: usize| otr_value__bindgen_ty_1 {
                index: count as u64,
            };
            let integer = |integer: i64| otr_value__bindgen_ty_1 { integer };
            let (kind, count, of) = match *one {
                Given::Nothing => (OTR_VALUE_NONE, 0, at(0)),
                Given::In(operand) => {
                    inputs.push(operand);
                    (OTR_VALUE_INPUT, 0, at(inputs.len() - 1))
                }
                Given::Ins(operands) => {
                    let first = inputs.len();
                    inputs.extend(operands.iter().map(|operand| operand.unwrap_or(&absent)));
                    (OTR_VALUE_INPUTS, operands.len(), at(first))
                }
                Given::InPlace(operand) => {
                    outputs.push(operand);
                    (OTR_VALUE_OUTPUT, 0, at(outputs.len() - 1))
                }
                Given::Number(number) => {
                    scalars.push(number);
                    (OTR_VALUE_SCALAR, 0, at(scalars.len() - 1))
                }
                Given::Int(value) => (OTR_VALUE_INT, 0, integer(value)),
                Given::Truth(value) => (OTR_VALUE_BOOL, 0, integer(value.into())),
                Given::Dtype(value) => (OTR_VALUE_DTYPE, 0, integer(value.0.into())),
                Given::Text(text) => {
                    let string = CString::new(text)?;
                    texts.push(string);
                    let string = texts.last().map_or(null(), |text| text.as_ptr());
                    (
                        OTR_VALUE_STRING,
                        text.len(),
                        otr_value__bindgen_ty_1 { string },
                    )
                }
                Given::Ints(list) | Given::Truths(list) => {
                    lists.push(list.to_vec());
                    let integers = lists.last().map_or(null(), |list| list.as_ptr());
                    let kind = match one {
                        Given::Ints(_) => OTR_VALUE_INTS,
                        _ => OTR_VALUE_BOOLS,
                    };
                    (kind, list.len(), otr_value__bindgen_ty_1 { integers })
                }
            };
            let count = count as u32;
            values.push(otr_value_t { kind, count, of });
        }
        outputs.extend(results.iter().map(|operand| operand.unwrap_or(&absent)));
        let mut arguments = Self::new(name, &inputs, &outputs, &scalars)?;
        arguments.lists.extend(lists);
        arguments.texts = texts;
        arguments.values = values;
        arguments.args = Some(Box::new(otr_operator_args_t {
            ext: otr_ext {
                struct_size: size_of::<otr_operator_args_t>(),
                type_: OTR_EXT_OPERATOR_ARGS,
                reserved: 0,
                next: null(),
            },
            values: arguments.values.as_ptr(),
            count: arguments.values.len() as u32,
            reserved: 0,
        }));
        Ok(arguments)
    }

    /// The call; it points into `self`.
    pub(in crate::tests) fn call(&self) -> otr_operator_call_t {
        let args = self.args.as_ref();
        otr_operator_call_t {
            next: args.map_or(null(), |args| &raw const args.ext),
            name: self.name.as_ptr(),
            inputs: self.inputs.as_ptr(),
            outputs: self.outputs.as_ptr(),
            scalars: self.scalars.as_ptr(),
            input_count: self.inputs.len() as u32,
            output_count: self.outputs.len() as u32,
            scalar_count: self.scalars.len() as u32,
            ..empty_call()
        }
    }

    /// Overwrites all that a call points to, once it was taken.
    pub(super) fn wipe(mut self) {
        self.lists.iter_mut().for_each(|list| list.fill(i64::MAX));
        for tensor in self.inputs.iter_mut().chain(&mut self.outputs) {
            (tensor.address, tensor.dtype, tensor.rank) = (0, u32::MAX, 0);
        }
        self.scalars
            .iter_mut()
            .for_each(|scalar| scalar.value.f64_ = f64::NAN);
    }
}

/// Runs an operator, and checks what its first output holds then, in the order of memory, and that nothing
/// is written around the others. Where the runner has no such operator, nothing is written at all.
pub(in crate::tests) fn gives(
    on: &dyn Runner,
    name: &str,
    inputs: &[&Operand],
    outputs: &[&Operand],
    scalars: &[f64],
    expected: &[f64],
    what: &str,
) -> Verdict {
    let scalars: Vec<Number> = scalars.iter().copied().map(Number::Real).collect();
    gives_with(on, name, inputs, outputs, &scalars, expected, what)
}

/// Checks the results of a call with scalars of both types.
pub(super) fn gives_with(
    on: &dyn Runner,
    name: &str,
    inputs: &[&Operand],
    outputs: &[&Operand],
    scalars: &[Number],
    expected: &[f64],
    what: &str,
) -> Verdict {
    let values = || -> Verdict<Vec<Vec<f64>>> {
        let outputs = outputs.iter();
        outputs.map(|output| output.values(on, what)).collect()
    };
    let before = values()?;
    let ran = on.run(&Arguments::with(name, inputs, outputs, scalars)?.call())?;
    let after = values()?;
    if ran {
        return close(outputs[0].dtype, &after[0], expected, what);
    }
    equal!(after, before, "the outputs of {what}, which is unsupported");
    Ok(())
}

/// Runs an operator that has a schema, and checks what its outputs hold then, in the order of memory: for each that is
/// there the values expected, where they are given. Where the runner has no such operator, nothing is written at all.
pub(in crate::tests) fn schema_gives(
    on: &dyn Runner,
    name: &str,
    given: &[Given<'_>],
    results: &[Option<&Operand>],
    expected: &[Option<&[f64]>],
    what: &str,
) -> Verdict {
    let in_place = given.iter().filter_map(|one| match one {
        Given::InPlace(operand) => Some(*operand),
        _ => None,
    });
    let outputs: Vec<Option<&Operand>> =
        in_place.map(Some).chain(results.iter().copied()).collect();
    equal!(expected.len(), outputs.len(), "values expected of {what}");
    let values = || -> Verdict<Vec<Option<Vec<f64>>>> {
        let outputs = outputs.iter();
        let one = |output: &Option<&Operand>| output.map(|one| one.values(on, what)).transpose();
        outputs.map(one).collect()
    };
    let before = values()?;
    let ran = on.run(&Arguments::of_schema(name, given, results)?.call())?;
    let after = values()?;
    if !ran {
        equal!(after, before, "the outputs of {what}, which is unsupported");
        return Ok(());
    }
    for (at, (output, (found, expected))) in
        outputs.iter().zip(after.iter().zip(expected)).enumerate()
    {
        if let (Some(output), Some(found), Some(expected)) = (output, found, expected) {
            close(
                output.dtype,
                found,
                expected,
                &format!("{what}, output {at}"),
            )?;
        }
    }
    Ok(())
}
