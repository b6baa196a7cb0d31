//! Every operator on a device without hardware: the kernels as plain C, on the sample of the catalog in each element
//! type, against the host kernels.

use std::ffi::CStr;

use half::{bf16, f16};
use outrigger_device::{Code, DType, Driver};
use outrigger_device_ops::with_kernels;
use outrigger_ops::catalog::samples::Sample;
use outrigger_ops::{Argument, Call, OperatorId, Scalar, Tensor, Value, plan, with_raw};

/// A number of a fixed sequence, in [0, 1).
fn random(state: &mut u64) -> f64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 11) as f64 / (1_u64 << 53) as f64
}

/// Elements of a type: positive numbers below 1, so that all functions have values; integers from 0 to 3.
fn elements(dtype: DType, count: usize, state: &mut u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        let x = random(state);
        let (real, whole) = (0.1 + 0.8 * x, (x * 4.0) as i64);
        match dtype {
            DType::F32 => bytes.extend((real as f32).to_ne_bytes()),
            DType::F64 => bytes.extend(real.to_ne_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(real).to_ne_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f64(real).to_ne_bytes()),
            DType::BOOL => bytes.push((whole & 1) as u8),
            other => bytes.extend(&whole.to_ne_bytes()[..other.size().unwrap()]),
        }
    }
    bytes
}

/// The elements as numbers.
fn numbers(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    let size = dtype.size().unwrap();
    let number = |one: &[u8]| match dtype {
        DType::F32 => f64::from(f32::from_ne_bytes(one.try_into().unwrap())),
        DType::F64 => f64::from_ne_bytes(one.try_into().unwrap()),
        DType::F16 => f16::from_ne_bytes(one.try_into().unwrap()).to_f64(),
        DType::BF16 => bf16::from_ne_bytes(one.try_into().unwrap()).to_f64(),
        DType::I64 => i64::from_ne_bytes(one.try_into().unwrap()) as f64,
        DType::I32 => f64::from(i32::from_ne_bytes(one.try_into().unwrap())),
        DType::I16 => f64::from(i16::from_ne_bytes(one.try_into().unwrap())),
        DType::I8 => f64::from(one[0] as i8),
        _ => f64::from(one[0]),
    };
    bytes.chunks(size).map(number).collect()
}

/// Memory of a call on a device whose addresses are host pointers.
struct Memory<'a> {
    driver: &'a Driver,
    places: Vec<(u64, Vec<u8>)>,
}

impl Memory<'_> {
    fn place(&mut self, tensor: &Tensor<'_>, state: &mut u64) -> u64 {
        let (before, bytes) = tensor.reach();
        let size = tensor.dtype().size().unwrap_or(1);
        let content = elements(tensor.dtype(), (bytes as usize / size).max(1), state);
        let address = self.driver.memory_alloc(0, content.len() as u64).unwrap();
        self.places.push((address, content));
        address.wrapping_sub(before as u64)
    }

    fn fill(&self) {
        for (address, content) in &self.places {
            // SAFETY: R15: an allocation of that size, whose address is a host pointer.
            unsafe {
                std::ptr::copy_nonoverlapping(content.as_ptr(), *address as *mut u8, content.len())
            };
        }
    }

    fn bytes(&self) -> Vec<Vec<u8>> {
        let of = |(address, content): &(u64, Vec<u8>)| {
            // SAFETY: as above.
            unsafe { std::slice::from_raw_parts(*address as *const u8, content.len()) }.to_vec()
        };
        self.places.iter().map(of).collect()
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        for (address, _) in &self.places {
            // SAFETY: R12: the work that uses it was waited for.
            let _ = unsafe { self.driver.memory_free(*address) };
        }
    }
}

/// The most that a result may differ, by element type.
fn allowed(dtype: DType) -> f64 {
    match dtype {
        DType::F32 => 2e-5,
        DType::F64 => 1e-11,
        DType::F16 => 4e-3,
        DType::BF16 => 3e-2,
        _ => 0.0,
    }
}

/// Whether the device had an operator; what differs if it did.
fn judge(driver: &Driver, id: OperatorId, dtype: DType) -> Result<bool, String> {
    let Some(sample) = Sample::new(id, dtype) else {
        return Ok(false);
    };
    sample.with(|call| compare(driver, id, call))
}

/// The same of a call, whose operands are given memory and elements here.
fn compare(driver: &Driver, id: OperatorId, call: &Call<'_>) -> Result<bool, String> {
    let mut state = 7;
    let mut memory = Memory {
        driver,
        places: Vec::new(),
    };
    let mut placed = |tensor: &Tensor<'_>| match tensor.dtype() {
        DType::INVALID => 0,
        _ => memory.place(tensor, &mut state),
    };
    let addresses: Vec<u64> = call
        .inputs
        .iter()
        .chain(call.outputs)
        .map(&mut placed)
        .collect();
    let moved = |tensors: &[Tensor<'_>], first: usize| -> Vec<(u64, usize)> {
        (0..tensors.len())
            .map(|at| (addresses[first + at], at))
            .collect()
    };
    let inputs: Vec<_> = moved(call.inputs, 0)
        .into_iter()
        .map(|(to, at)| call.inputs[at].at(to))
        .collect();
    let outputs: Vec<_> = moved(call.outputs, call.inputs.len())
        .into_iter()
        .map(|(to, at)| call.outputs[at].at(to))
        .collect();
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        ..*call
    };
    let operators = driver.operators().unwrap();
    // SAFETY: the raw call points to what lives in this closure.
    let prepared = with_raw(id, &call, |raw| unsafe { operators.prepare(0, raw) });
    let Some((operator, needs)) = prepared.map_err(|error| format!("prepare: {error}"))? else {
        return Ok(false);
    };
    memory.fill();
    let reference = plan(id, &call).map_err(|error| format!("the host kernel: {error}"))?;
    // SAFETY: the operands lie in live memory, whose addresses are host pointers.
    let code = unsafe {
        (reference.kernel)(
            reference.args().as_ptr().cast(),
            reference.args().len() as u32,
            0,
        )
    };
    assert_eq!(code, 0, "{id:?}");
    let right = memory.bytes();
    memory.fill();
    let queue = driver.queue_create(0, 0).unwrap();
    let workspace = match needs.workspace_bytes {
        0 => 0,
        bytes => driver.memory_alloc(0, bytes).unwrap(),
    };
    // SAFETY: operands and workspace live until the launch has finished, which is waited for.
    with_raw(id, &call, |raw| unsafe {
        queue.launch_operator(&operator, raw, workspace)
    })
    .map_err(|error| format!("launch: {error}"))?;
    queue
        .synchronize()
        .map_err(|error| format!("it failed: {error}"))?;
    let found = memory.bytes();
    if workspace != 0 {
        // SAFETY: R12: waited for.
        unsafe { driver.memory_free(workspace) }.unwrap();
    }
    let operands = call
        .inputs
        .iter()
        .chain(call.outputs)
        .filter(|one| one.dtype() != DType::INVALID);
    let limit = call
        .outputs
        .iter()
        .map(|one| allowed(one.dtype()))
        .fold(0.0, f64::max);
    for (at, (operand, (right, found))) in operands.zip(right.iter().zip(&found)).enumerate() {
        let kind = operand.dtype();
        let (right, found) = (numbers(kind, right), numbers(kind, found));
        let scale = right.iter().fold(1.0_f64, |most, one| {
            if one.is_finite() {
                most.max(one.abs())
            } else {
                most
            }
        });
        for (place, (right, found)) in right.iter().zip(&found).enumerate() {
            let same = right == found || right.is_nan() && found.is_nan();
            let close = (right - found).abs() <= limit * scale;
            if !same && !close {
                return Err(format!(
                    "operand {at}, element {place}: {found}, the host kernel has {right}"
                ));
            }
        }
    }
    Ok(true)
}

/// Enough to compile every text for each kind of register and of conversion; the conformance suite has the others.
const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::I64, DType::BOOL];

/// Operators whose operands cannot be any numbers: some are results of their forward, others in order. The conformance suite
/// judges them.
const PARTICULAR: [&CStr; 5] = [
    c"attention_backward",
    c"embedding_bag",
    c"max_pool2d_backward",
    c"max_pool3d_backward",
    c"adaptive_max_pool2d_backward",
];

fn judge_all(options: &str, dtypes: &[DType]) {
    let driver = with_kernels(outrigger_dialect_driver::driver(options).unwrap()).unwrap();
    let (mut wrong, mut served, mut never) = (Vec::new(), 0, Vec::new());
    let of_integers_alone = |name: &CStr| name.to_bytes().starts_with(b"bitwise");
    let names = driver.operators().unwrap().names(0).unwrap();
    for name in names
        .into_iter()
        .filter(|name| !PARTICULAR.contains(&name.as_c_str()))
    {
        let id = OperatorId::find(&name).unwrap();
        let mut any = false;
        for &dtype in dtypes {
            match judge(&driver, id, dtype) {
                Ok(taken) => {
                    any |= taken;
                    served += u32::from(taken);
                }
                Err(text) => wrong.push(format!("{} of {dtype}: {text}", name.to_string_lossy())),
            }
        }
        if !any && (dtypes.len() > 1 || !of_integers_alone(&name)) {
            never.push(name);
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {served} are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(
        never.is_empty(),
        "listed, and served for no element type: {never:?}"
    );
    assert!(served > 60, "{served} samples were served");
}

#[test]
fn all_samples_give_what_the_host_kernels_give() {
    judge_all("devices=1,memory=256M,checked=1", &DTYPES);
}

/// The kernels for groups of many items, run by one item.
#[test]
fn kernels_for_groups_of_many_items_give_the_same() {
    judge_all("devices=1,memory=256M,sub_group=32,checked=1", &DTYPES[..1]);
}

/// A dense tensor: its element type, sizes and strides.
struct Given(DType, Vec<i64>, Vec<i64>);

impl Given {
    fn new(dtype: DType, sizes: &[i64]) -> Self {
        let mut strides = vec![1; sizes.len()];
        for at in (1..sizes.len()).rev() {
            strides[at - 1] = strides[at] * sizes[at];
        }
        Self(dtype, sizes.to_vec(), strides)
    }

    fn tensor(&self) -> Tensor<'_> {
        Tensor::new(1 << 20, self.0, &self.1, &self.2)
    }
}

/// Compares a call of tensors that are dense with the host kernel. The device has to serve it.
fn serves(
    name: &CStr,
    inputs: &[Given],
    outputs: &[Given],
    arguments: &[Argument<'_>],
    scalars: &[Scalar],
) {
    let driver =
        with_kernels(outrigger_dialect_driver::driver("devices=1,memory=256M,checked=1").unwrap())
            .unwrap();
    let inputs: Vec<_> = inputs.iter().map(Given::tensor).collect();
    let outputs: Vec<_> = outputs.iter().map(Given::tensor).collect();
    let args: Vec<_> = arguments
        .iter()
        .map(|one| Value::new(one.clone()))
        .collect();
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        scalars,
        args: &args,
        ..Call::default()
    };
    let served = compare(&driver, OperatorId::find(name).unwrap(), &call);
    assert_eq!(served, Ok(true), "{name:?} of {arguments:?}");
}

/// Lines of more elements than a group holds, in both directions, with many equal elements and with hardly any.
#[test]
fn long_lines_are_sorted() {
    for (dtype, sizes, dim) in [
        (DType::F32, [2, 2500], 1),
        (DType::I64, [2500, 3], 0),
        (DType::F16, [1, 1024], -1),
    ] {
        for descending in [false, true] {
            let arguments = [
                Argument::Input(0),
                Argument::None,
                Argument::Int(dim),
                Argument::Bool(descending),
            ];
            let one = || Given::new(dtype, &sizes);
            let outputs = [one(), Given::new(DType::I64, &sizes)];
            serves(c"sort", &[one()], &outputs, &arguments, &[]);
        }
    }
}

/// Few of many, which takes one round or several, and so many that all are sorted.
#[test]
fn the_first_of_long_lines_are_found() {
    for (dtype, k) in [
        (DType::F32, 1),
        (DType::I64, 7),
        (DType::F32, 400),
        (DType::I64, 700),
        (DType::F32, 0),
    ] {
        for largest in [false, true] {
            let arguments = [
                Argument::Input(0),
                Argument::Int(k),
                Argument::Int(-1),
                Argument::Bool(largest),
                Argument::Bool(true),
            ];
            let outputs = [dtype, DType::I64].map(|dtype| Given::new(dtype, &[2, k]));
            let input = [Given::new(dtype, &[2, 2500])];
            serves(c"topk", &input, &outputs, &arguments, &[]);
        }
    }
}

#[test]
fn long_lines_have_running_results() {
    let one = || Given::new(DType::F32, &[3, 700]);
    serves(c"cumsum", &[one()], &[one()], &[], &[Scalar::I64(1)]);
    let of_dimension = [Argument::Input(0), Argument::Int(1)];
    let indices = Given::new(DType::I64, &[3, 700]);
    serves(c"cummax", &[one()], &[one(), indices], &of_dimension, &[]);
}

/// A sum of more parts than one group adds.
#[test]
fn losses_of_many_elements_are_reduced() {
    for reduction in [0, 1, 2] {
        let arguments = [
            Argument::Input(0),
            Argument::Input(1),
            Argument::Int(reduction),
            Argument::Scalar(0),
        ];
        let inputs = [&[70, 100], &[1, 100]].map(|sizes| Given::new(DType::F32, sizes));
        let whole: &[i64] = if reduction == 0 { &[70, 100] } else { &[] };
        let out = [Given::new(DType::F32, whole)];
        let beta = [Scalar::F64(0.3)];
        serves(c"smooth_l1_loss", &inputs, &out, &arguments, &beta);
    }
}

/// For few rows the weight is read as it is, for more it is written out first.
#[test]
fn products_with_quantized_weights_are_right_for_few_and_many_rows() {
    for (rows, bits) in [(3, 8), (3, 4), (20, 8), (20, 4)] {
        let (weight, bytes) = match bits {
            8 => (DType::I8, 32),
            _ => (DType::U8, 16),
        };
        for zeros in [Argument::None, Argument::Input(3)] {
            let arguments = [
                Argument::Input(0),
                Argument::Input(1),
                Argument::Input(2),
                zeros.clone(),
                Argument::Int(8),
                Argument::Int(bits),
            ];
            let mut inputs = vec![
                Given::new(DType::F32, &[rows, 32]),
                Given::new(weight, &[6, bytes]),
                Given::new(DType::F32, &[6, 4]),
            ];
            if zeros != Argument::None {
                inputs.push(Given::new(DType::F32, &[6, 4]));
            }
            let out = [Given::new(DType::F32, &[rows, 6])];
            serves(c"quantized_mm", &inputs, &out, &arguments, &[]);
        }
    }
}

/// An index that the kernel does not use fails the queue, and the output is written where the index is right.
#[test]
fn an_index_that_is_not_there_fails_the_queue() {
    let options = "devices=1,memory=64M,checked=1";
    let driver = with_kernels(outrigger_dialect_driver::driver(options).unwrap()).unwrap();
    let id = OperatorId::find(c"index").unwrap();
    let address = driver.memory_alloc(0, 512).unwrap();
    for (picked, right) in [([3_i64, -4], true), ([0, 4], false), ([-5, 0], false)] {
        let words = [10_i64, 11, 12, 13, picked[0], picked[1], 0, 0];
        // SAFETY: R15: an allocation of 512 bytes, whose address is a host pointer, and that nothing uses.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr(), address as *mut i64, 8) };
        let (four, two) = (Given::new(DType::I64, &[4]), Given::new(DType::I64, &[2]));
        let inputs = [four.tensor().at(address), two.tensor().at(address + 32)];
        let outputs = [two.tensor().at(address + 48)];
        let args = [Argument::Input(0), Argument::Inputs(1..2)].map(Value::new);
        let call = Call {
            inputs: &inputs,
            outputs: &outputs,
            args: &args,
            ..Call::default()
        };
        let operators = driver.operators().unwrap();
        // SAFETY: the raw call points to what lives in this loop.
        let prepared = with_raw(id, &call, |raw| unsafe { operators.prepare(0, raw) });
        let (operator, needs) = prepared.unwrap().unwrap();
        let workspace = driver.memory_alloc(0, needs.workspace_bytes).unwrap();
        let queue = driver.queue_create(0, 0).unwrap();
        // SAFETY: operands and workspace live until the launch has finished, which is waited for.
        with_raw(id, &call, |raw| unsafe {
            queue.launch_operator(&operator, raw, workspace)
        })
        .unwrap();
        let outcome = queue.synchronize();
        if right {
            outcome.unwrap();
            // SAFETY: as above.
            let found = unsafe { *((address + 48) as *const [i64; 2]) };
            assert_eq!(found, [13, 10]);
        } else {
            assert_eq!(
                outcome.unwrap_err().code(),
                Code::OUT_OF_RANGE,
                "{picked:?}"
            );
        }
        // SAFETY: R12: waited for.
        unsafe { driver.memory_free(workspace) }.unwrap();
    }
    // SAFETY: R12: waited for.
    unsafe { driver.memory_free(address) }.unwrap();
}

/// A launch has room for so many addresses, so more operands are refused when it is asked for the operator.
#[test]
fn more_operands_than_a_launch_has_are_not_taken() {
    let options = "devices=1,memory=64M,checked=1";
    let driver = with_kernels(outrigger_dialect_driver::driver(options).unwrap()).unwrap();
    let one = Given::new(DType::F32, &[1]);
    for (count, taken) in [(150, true), (200, false)] {
        let inputs = vec![one.tensor(); count];
        let out = Given::new(DType::F32, &[count as i64]);
        let call = Call {
            inputs: &inputs,
            outputs: &[out.tensor()],
            scalars: &[Scalar::I64(0)],
            ..Call::default()
        };
        let (id, operators) = (
            OperatorId::find(c"cat").unwrap(),
            driver.operators().unwrap(),
        );
        // SAFETY: the raw call points to what lives in this loop.
        let made = with_raw(id, &call, |raw| unsafe { operators.prepare(0, raw) });
        assert_eq!(made.unwrap().is_some(), taken, "{count} inputs");
    }
}
