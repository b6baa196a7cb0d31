//! Operators that are made of others, on a device whose driver has the parts and not the whole: results against those of
//! the host kernels, eager and replayed, and what keeps an operator whole. One test at a time: they share a stream, and the
//! count of where operators ran.

use std::ffi::CString;

use half::bf16;
use outrigger_device::{CopyKind, DType};
use outrigger_hooks::{
    CaptureMode, Device, ExecFlags, Place, Ref, Stream, instantiate, operator_report,
    operator_reset, runtime,
};
use outrigger_ops::{Argument, Call, OperatorId, Scalar, Tensor, Value};
use serial_test::serial;

/// The operators that the driver has.
const PARTS: &str = "add sub mul div exp log sqrt rsqrt erf tanh sigmoid clamp_min gt logical_not masked_fill copy arange sum \
                     amax bmm index_select";

/// One tensor of a case: its sizes, and the range of its values. Bool tensors are true for values above 0.
type Given = (Vec<i64>, DType, f64, f64);

struct Case {
    name: &'static str,
    inputs: Vec<Given>,
    outputs: Vec<(Vec<i64>, DType)>,
    scalars: Vec<Scalar>,
    /// Arguments, of an operator with a schema.
    args: Vec<Argument<'static>>,
    /// The most by which results may differ from the host kernel's.
    limit: f64,
}

/// The devices: the built-in one, and the one with parts alone.
fn devices() -> [&'static Device; 2] {
    static LOADED: std::sync::Once = std::sync::Once::new();
    let runtime = runtime().expect("the runtime starts");
    LOADED.call_once(|| {
        let mut folder = std::env::current_exe().expect("the test has a path");
        folder.pop();
        let list = folder.join(format!("parts-{}.txt", std::process::id()));
        std::fs::write(&list, PARTS.replace(' ', "\n")).expect("the list is written");
        let driver = folder.join("liboutrigger_library_driver.so");
        let spec = format!("{}?devices=1&only={}", driver.display(), list.display());
        assert_eq!(runtime.load(&spec).expect("the driver is loaded"), 1);
        std::fs::remove_file(&list).expect("the list is removed");
    });
    let last = runtime.device_count() - 1;
    [0, last].map(|index| runtime.device(index).expect("the device is there"))
}

fn float(sizes: &[i64], range: (f64, f64), dtype: DType) -> Given {
    (sizes.to_vec(), dtype, range.0, range.1)
}

/// Numbers that look random and are the same in each run.
fn numbers(given: &Given, seed: u64) -> Vec<f64> {
    let (sizes, dtype, low, high) = given;
    let count: i64 = sizes.iter().product();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let value = low + (high - low) * (state >> 11) as f64 / (1u64 << 53) as f64;
            match *dtype {
                DType::I64 => value.floor(),
                DType::BF16 => bf16::from_f64(value).to_f64(),
                DType::BOOL => f64::from(value > 0.0),
                _ => f64::from(value as f32),
            }
        })
        .collect()
}

fn bytes(values: &[f64], dtype: DType) -> Vec<u8> {
    let one = |value: &f64| match dtype {
        DType::I64 => (*value as i64).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f64(*value).to_ne_bytes().to_vec(),
        DType::BOOL => vec![u8::from(*value != 0.0)],
        _ => (*value as f32).to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(one).collect()
}

fn values(bytes: &[u8], dtype: DType) -> Vec<f64> {
    let width = dtype.size().expect("a dtype with a size");
    let one = |part: &[u8]| match dtype {
        DType::I64 => i64::from_ne_bytes(part.try_into().unwrap()) as f64,
        DType::BF16 => bf16::from_ne_bytes(part.try_into().unwrap()).to_f64(),
        DType::BOOL => f64::from(part[0]),
        _ => f64::from(f32::from_ne_bytes(part.try_into().unwrap())),
    };
    bytes.chunks_exact(width).map(one).collect()
}

fn strides(sizes: &[i64]) -> Vec<i64> {
    let mut step = 1;
    let mut strides: Vec<i64> = sizes
        .iter()
        .rev()
        .map(|size| {
            let next = step * size;
            std::mem::replace(&mut step, next)
        })
        .collect();
    strides.reverse();
    strides
}

/// Memory of a case on a device.
struct Placed {
    device: &'static Device,
    stream: &'static Ref<Stream>,
    inputs: Vec<u64>,
    outputs: Vec<u64>,
}

impl Placed {
    fn new(case: &Case, device: &'static Device) -> Self {
        let stream = device.default_stream();
        let alloc = |sizes: &[i64], dtype: DType| {
            let bytes = sizes.iter().product::<i64>() as u64 * dtype.size().unwrap() as u64;
            device.alloc(bytes, stream.id()).expect("there is memory")
        };
        let inputs = case.inputs.iter().map(|(sizes, dtype, ..)| match *dtype {
            DType::INVALID => 0,
            dtype => alloc(sizes, dtype),
        });
        let outputs = case
            .outputs
            .iter()
            .map(|(sizes, dtype)| alloc(sizes, *dtype));
        Self {
            device,
            stream,
            inputs: inputs.collect(),
            outputs: outputs.collect(),
        }
    }

    fn write(&self, case: &Case, seed: u64) {
        for (at, (given, &address)) in case.inputs.iter().zip(&self.inputs).enumerate() {
            if given.1 == DType::INVALID {
                continue;
            }
            let bytes = bytes(&numbers(given, seed + 10 * at as u64), given.1);
            let (from, size) = (bytes.as_ptr() as u64, bytes.len() as u64);
            // SAFETY: the stream is waited for before the bytes go.
            unsafe {
                self.stream
                    .copy(address, from, size, CopyKind::HostToDevice)
            }
            .unwrap();
            self.stream.synchronize().unwrap();
        }
    }

    fn call(&self, case: &Case, whole: bool) -> outrigger_hooks::Result<()> {
        let layouts: Vec<_> = case
            .inputs
            .iter()
            .map(|(sizes, ..)| strides(sizes))
            .collect();
        let inputs = case.inputs.iter().zip(&self.inputs).zip(&layouts);
        let inputs: Vec<_> = inputs
            .map(|(((sizes, dtype, ..), address), strides)| match *dtype {
                DType::INVALID => Tensor::ABSENT,
                dtype => Tensor::new(*address, dtype, sizes, strides),
            })
            .collect();
        let layouts: Vec<_> = case
            .outputs
            .iter()
            .map(|(sizes, _)| strides(sizes))
            .collect();
        let outputs = case.outputs.iter().zip(&self.outputs).zip(&layouts);
        let outputs: Vec<_> = outputs
            .map(|(((sizes, dtype), address), strides)| {
                Tensor::new(*address, *dtype, sizes, strides)
            })
            .collect();
        let args: Vec<_> = case.args.iter().cloned().map(Value::new).collect();
        let call = Call {
            inputs: &inputs,
            outputs: &outputs,
            scalars: &case.scalars,
            args: &args,
            device_only: false,
            whole,
        };
        // SAFETY: the operands are live until the case is dropped, which waits; nothing else uses them.
        unsafe { self.stream.call(operator(case.name), &call) }
    }

    fn read(&self, case: &Case) -> Vec<Vec<f64>> {
        let outputs = case.outputs.iter().zip(&self.outputs);
        outputs
            .map(|((sizes, dtype), &address)| {
                let count = sizes.iter().product::<i64>() as usize;
                let mut bytes = vec![0u8; count * dtype.size().unwrap()];
                let (to, size) = (bytes.as_mut_ptr() as u64, bytes.len() as u64);
                // SAFETY: the stream is waited for before the bytes are used.
                unsafe { self.stream.copy(to, address, size, CopyKind::DeviceToHost) }.unwrap();
                self.stream.synchronize().unwrap();
                values(&bytes, *dtype)
            })
            .collect()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        for &address in self
            .inputs
            .iter()
            .chain(&self.outputs)
            .filter(|one| **one != 0)
        {
            let _ = self.device.free(address);
        }
    }
}

fn operator(name: &str) -> OperatorId {
    OperatorId::find(&CString::new(name).unwrap()).expect("the operator is known")
}

fn place(name: &str) -> Vec<Place> {
    let report = operator_report();
    let rows = report
        .iter()
        .filter(|row| row.operator == name && row.calls > 0);
    rows.map(|row| row.place).collect()
}

/// The cases of a dtype, which the inputs and outputs have unless they are statistics or indices.
fn cases(dtype: DType) -> Vec<Case> {
    let (wide, narrow) = ((-3.0, 3.0), (0.1, 2.0));
    let limit = if dtype == DType::BF16 { 0.02 } else { 2e-5 };
    let absent = || (vec![], DType::INVALID, 0.0, 0.0);
    let case = |name, inputs: &[(&[i64], (f64, f64))], outputs: &[&[i64]], scalars: &[f64]| Case {
        name,
        inputs: inputs
            .iter()
            .map(|(sizes, range)| float(sizes, *range, dtype))
            .collect(),
        outputs: outputs
            .iter()
            .map(|sizes| (sizes.to_vec(), dtype))
            .collect(),
        scalars: scalars.iter().map(|&value| Scalar::F64(value)).collect(),
        args: vec![],
        limit,
    };
    let x: &[i64] = &[3, 5, 7];
    let mut cases = vec![
        case("fill", &[], &[x], &[1.5]),
        case("copy", &[(x, wide)], &[x], &[]),
        case(
            "cat",
            &[(&[2, 3], wide), (&[4, 3], wide)],
            &[&[6, 3]],
            &[0.0],
        ),
        case("square", &[(x, wide)], &[x], &[]),
        case("relu", &[(x, wide)], &[x], &[]),
        case("silu", &[(x, wide)], &[x], &[]),
        case("gelu", &[(x, wide)], &[x], &[0.0]),
        case("gelu", &[(x, wide)], &[x], &[1.0]),
        case(
            "addcmul",
            &[(x, wide), (&[5, 7], wide), (x, wide)],
            &[x],
            &[0.5],
        ),
        case(
            "addcdiv",
            &[(x, wide), (x, wide), (&[7], narrow)],
            &[x],
            &[-2.0],
        ),
        case("lerp", &[(x, wide), (x, wide)], &[x], &[0.3]),
        case("squared_error", &[(x, wide), (x, wide)], &[x], &[]),
        case("mean", &[(x, wide)], &[&[3, 1, 7]], &[]),
        case("norm", &[(x, wide)], &[&[3, 1, 1]], &[2.0]),
        case("mm", &[(&[4, 6], wide), (&[6, 5], wide)], &[&[4, 5]], &[]),
        case("mv", &[(&[4, 6], wide), (&[6], wide)], &[&[4]], &[]),
        case(
            "addmm",
            &[(&[5], wide), (&[4, 6], wide), (&[6, 5], wide)],
            &[&[4, 5]],
            &[],
        ),
        case(
            "addmm",
            &[(&[5], wide), (&[4, 6], wide), (&[6, 5], wide)],
            &[&[4, 5]],
            &[0.5, 2.0],
        ),
        case(
            "addmm",
            &[(&[5], wide), (&[4, 6], wide), (&[6, 5], wide)],
            &[&[4, 5]],
            &[0.0, 2.0],
        ),
        case(
            "baddbmm",
            &[(&[4, 5], wide), (&[2, 4, 6], wide), (&[2, 6, 5], wide)],
            &[&[2, 4, 5]],
            &[1.0, -1.0],
        ),
        case(
            "addmv",
            &[(&[4], wide), (&[4, 6], wide), (&[6], wide)],
            &[&[4]],
            &[],
        ),
        case("softmax", &[(x, wide)], &[x], &[1.0]),
        case("log_softmax", &[(x, wide)], &[x], &[2.0]),
        case("softmax_backward", &[(x, wide), (x, narrow)], &[x], &[0.0]),
        case(
            "log_softmax_backward",
            &[(x, wide), (x, (-3.0, 0.0))],
            &[x],
            &[1.0],
        ),
    ];
    let stats = DType::F32;
    let rows: &[i64] = &[3, 5, 1];
    let mut layer_norm = case(
        "layer_norm",
        &[(x, wide), (&[7], wide), (&[7], wide)],
        &[x, rows, rows],
        &[],
    );
    layer_norm.scalars = vec![Scalar::I64(1), Scalar::F64(1e-5)];
    layer_norm.outputs[1].1 = stats;
    layer_norm.outputs[2].1 = stats;
    let mut plain = case(
        "layer_norm",
        &[(x, wide)],
        &[x, &[3, 1, 1], &[3, 1, 1]],
        &[],
    );
    plain.inputs.extend([absent(), absent()]);
    plain.scalars = vec![Scalar::I64(2), Scalar::F64(1e-5)];
    plain.outputs[1].1 = stats;
    plain.outputs[2].1 = stats;
    let mut embedding = case("embedding", &[(&[9, 4], wide)], &[&[2, 3, 4]], &[]);
    embedding.inputs.push((vec![2, 3], DType::I64, 0.0, 8.99));
    cases.extend([layer_norm, plain, embedding]);
    cases
}

#[test]
#[serial]
fn parts_make_the_whole() {
    let [whole, parts] = devices();
    for (number, case) in [DType::F32, DType::BF16]
        .into_iter()
        .flat_map(cases)
        .enumerate()
    {
        let case = &case;
        let on_parts = Placed::new(case, parts);
        let on_whole = Placed::new(case, whole);
        let same = |seed: u64, how: &str| {
            on_whole.write(case, seed);
            on_whole.call(case, false).unwrap();
            let (found, expected) = (on_parts.read(case), on_whole.read(case));
            for (output, (found, expected)) in found.iter().zip(&expected).enumerate() {
                for (at, (one, other)) in found.iter().zip(expected).enumerate() {
                    let near = (one - other).abs() <= case.limit * (1.0 + other.abs());
                    assert!(
                        near,
                        "{} ({number}) {how}: output {output} at {at}: {one}, not {other}",
                        case.name
                    );
                }
            }
        };
        let seed = 1000 * number as u64 + 1;
        on_parts.write(case, seed);
        operator_reset();
        on_parts
            .call(case, false)
            .unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(place(case.name), [Place::Device], "{}", case.name);
        same(seed, "eager");

        // The same with other numbers in a replay.
        on_parts
            .stream
            .capture_begin(CaptureMode::ThreadLocal, None)
            .unwrap();
        on_parts.call(case, false).unwrap();
        let graph = on_parts.stream.capture_end().unwrap();
        let exec = instantiate(&graph, ExecFlags::default()).unwrap();
        on_parts.write(case, seed + 1);
        operator_reset();
        exec.replay(on_parts.stream).unwrap();
        same(seed + 1, "replayed");
        let report = operator_report();
        assert!(
            report
                .iter()
                .all(|row| row.place == Place::Device || row.calls == 0),
            "{report:?}"
        );
    }
}

#[test]
#[serial]
fn what_is_kept_whole_is_not_made_of_parts() {
    let [_, parts] = devices();
    let case = &cases(DType::F32)[5];
    assert_eq!(case.name, "silu");
    let placed = Placed::new(case, parts);
    placed.write(case, 3);
    let ran = |whole: bool| {
        operator_reset();
        placed.call(case, whole).unwrap();
        placed.stream.synchronize().unwrap();
        place("silu")
    };
    assert!(parts.offers(operator("silu")));
    assert_eq!(ran(false), [Place::Device]);
    assert_eq!(ran(true), [Place::HostKernel]);
    parts.keep_whole(&[operator("softmax"), operator("silu")]);
    assert!(!parts.offers(operator("silu")));
    assert_eq!(ran(false), [Place::HostKernel]);
    parts.keep_whole(&[]);
    assert_eq!(ran(false), [Place::Device]);
    assert!(!parts.offers(operator("prod")));
}

/// The outputs for these inputs.
type Reference = fn(&[Vec<f64>]) -> Vec<Vec<f64>>;

/// Cases without a host kernel to compare with: operators with a schema. Inputs are [3,4,6] and the like.
fn schema_cases() -> Vec<(Case, Reference)> {
    use Argument::{Bool, Input, Int, Ints, None as Absent, Output, Scalar as Number};
    let wide = (-2.0, 2.0);
    let case = |name,
                inputs: &[&[i64]],
                outputs: &[&[i64]],
                scalars: &[f64],
                args: &[Argument<'static>]| Case {
        name,
        inputs: inputs
            .iter()
            .map(|sizes| float(sizes, wide, DType::F32))
            .collect(),
        outputs: outputs
            .iter()
            .map(|sizes| (sizes.to_vec(), DType::F32))
            .collect(),
        scalars: scalars.iter().map(|&value| Scalar::F64(value)).collect(),
        args: args.to_vec(),
        limit: 1e-5,
    };
    let linear = |activation| {
        let args = [Input(0), Input(1), Input(2), Input(3), Int(activation)];
        case(
            "linear",
            &[&[2, 3, 4], &[5, 4], &[5], &[2, 3, 5]],
            &[&[2, 3, 5]],
            &[],
            &args,
        )
    };
    let mut cases: Vec<(Case, Reference)> = vec![
        (linear(0), |x| linear_of(x, |y| y)),
        (linear(1), |x| linear_of(x, |y| y.max(0.0))),
        (linear(4), |x| linear_of(x, |y| y / (1.0 + (-y).exp()))),
        (
            case(
                "linear",
                &[&[6, 4], &[5, 4]],
                &[&[6, 5]],
                &[],
                &[Input(0), Input(1), Absent, Absent, Int(0)],
            ),
            |x| {
                linear_of(
                    &[x[0].clone(), x[1].clone(), vec![0.0; 5], vec![0.0; 30]],
                    |y| y,
                )
            },
        ),
        (
            case(
                "rms_norm",
                &[&[3, 4, 6], &[6]],
                &[&[3, 4, 6], &[3, 4, 1]],
                &[1e-3],
                &[Input(0), Ints(&[6]), Input(1), Number(0)],
            ),
            |x| {
                let rstd: Vec<f64> = x[0]
                    .chunks(6)
                    .map(|row| 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / 6.0 + 1e-3).sqrt())
                    .collect();
                let out = x[0]
                    .iter()
                    .enumerate()
                    .map(|(at, value)| value * rstd[at / 6] * x[1][at % 6]);
                vec![out.collect(), rstd]
            },
        ),
        (
            case(
                "native_group_norm",
                &[&[3, 4, 6], &[4], &[4]],
                &[&[3, 4, 6], &[3, 2], &[3, 2]],
                &[1e-3],
                &[
                    Input(0),
                    Input(1),
                    Input(2),
                    Int(3),
                    Int(4),
                    Int(6),
                    Int(2),
                    Number(0),
                ],
            ),
            |x| normalized(x, |at| at / 12, 6, |at| at / 6 % 4, None),
        ),
    ];
    let batch = |training| {
        case(
            "native_batch_norm",
            &[&[3, 4, 6], &[4], &[4]],
            &[&[4], &[4], &[3, 4, 6], &[4], &[4]],
            &[0.25, 1e-3],
            &[
                Input(0),
                Input(1),
                Input(2),
                Output(0),
                Output(1),
                Bool(training),
                Number(0),
                Number(1),
            ],
        )
    };
    cases.push((batch(true), |x| {
        let mut found = normalized(x, |at| at / 6 % 4, 4, |at| at / 6 % 4, None);
        // Running statistics begin with 0.5.
        let mean = found[1]
            .iter()
            .map(|mean| 0.75 * 0.5 + 0.25 * mean)
            .collect();
        let var = found[2]
            .iter()
            .map(|rstd| 0.75 * 0.5 + 0.25 * (1.0 / (rstd * rstd) - 1e-3) * 18.0 / 17.0);
        let var = var.collect();
        found.splice(0..0, [mean, var]);
        found
    }));
    cases.push((batch(false), |x| {
        let found = normalized(x, |at| at / 6 % 4, 4, |at| at / 6 % 4, Some((0.5, 0.5)));
        // Nothing is said of statistics that are not computed.
        vec![vec![0.5; 4], vec![0.5; 4], found[0].clone()]
    }));
    let attention = |mask: &'static [i64], causal, heads| {
        let mut made = case(
            "attention",
            &[&[2, 4, 3, 5], &[2, heads, 6, 5], &[2, heads, 6, 2]],
            &[&[2, 4, 3, 2], &[2, 4, 3]],
            &[0.5, 0.0, 0.0, 0.0],
            &[
                Input(0),
                Input(1),
                Input(2),
                Absent,
                Bool(causal),
                Number(0),
                Number(1),
                Number(2),
                Number(3),
            ],
        );
        if !mask.is_empty() {
            made.inputs.push(float(mask, wide, DType::F32));
            made.args[3] = Input(3);
        }
        made
    };
    cases.push((attention(&[], false, 4), |x| {
        attention_of(x, 4, |_, _, _| 0.0)
    }));
    cases.push((attention(&[], true, 2), |x| {
        attention_of(x, 2, |_, q, k| if k > q { f64::NEG_INFINITY } else { 0.0 })
    }));
    cases.push((attention(&[3, 6], false, 1), |x| {
        attention_of(x, 1, |x, q, k| x[3][q * 6 + k])
    }));
    // Rows whose mask is all false see nothing.
    let mut hidden = attention(&[3, 6], false, 4);
    hidden.inputs[3].1 = DType::BOOL;
    hidden.inputs[3].3 = -0.5;
    cases.push((hidden, |x| attention_of(x, 4, |_, _, _| f64::NEG_INFINITY)));
    let mut some = attention(&[2, 1, 3, 6], false, 4);
    some.inputs[3].1 = DType::BOOL;
    cases.push((some, |x| {
        let shown = |n: usize, q: usize, k: usize| x[3][(n * 3 + q) * 6 + k] != 0.0;
        attention_of_batch(x, 4, |_, n, q, k| {
            if shown(n, q, k) {
                0.0
            } else {
                f64::NEG_INFINITY
            }
        })
    }));
    cases
}

fn linear_of(x: &[Vec<f64>], activation: fn(f64) -> f64) -> Vec<Vec<f64>> {
    let out = (0..30).map(|at| {
        let (row, column) = (at / 5, at % 5);
        let sum: f64 = (0..4)
            .map(|k| x[0][row * 4 + k] * x[1][column * 4 + k])
            .sum();
        activation(sum + x[2][column]) + x[3][at]
    });
    vec![out.collect()]
}

/// The norm of [3,4,6] with statistics of groups of elements, of which there are so many, or with given mean and variance.
fn normalized(
    x: &[Vec<f64>],
    group: fn(usize) -> usize,
    groups: usize,
    channel: fn(usize) -> usize,
    given: Option<(f64, f64)>,
) -> Vec<Vec<f64>> {
    let of = |group_: usize| {
        (0..72)
            .filter(move |&at| group(at) == group_)
            .map(|at| x[0][at])
    };
    let count = (72 / groups) as f64;
    let means: Vec<f64> = (0..groups)
        .map(|one| given.map_or_else(|| of(one).sum::<f64>() / count, |given| given.0))
        .collect();
    let rstds: Vec<f64> = (0..groups)
        .map(|one| {
            let var = of(one).map(|x| (x - means[one]).powi(2)).sum::<f64>() / count;
            1.0 / (given.map_or(var, |given| given.1) + 1e-3).sqrt()
        })
        .collect();
    let out = (0..72).map(|at| {
        let centred = (x[0][at] - means[group(at)]) * rstds[group(at)];
        centred * x[1][channel(at)] + x[2][channel(at)]
    });
    vec![out.collect(), means, rstds]
}

fn attention_of(
    x: &[Vec<f64>],
    heads: usize,
    added: fn(&[Vec<f64>], usize, usize) -> f64,
) -> Vec<Vec<f64>> {
    attention_of_batch(x, heads, |x, _, q, k| added(x, q, k))
}

/// Attention of [2,4,3,5] over keys [2,heads,6,5] and values [2,heads,6,2], with a scale of 0.5.
fn attention_of_batch(
    x: &[Vec<f64>],
    heads: usize,
    added: impl Fn(&[Vec<f64>], usize, usize, usize) -> f64,
) -> Vec<Vec<f64>> {
    let (mut out, mut sums) = (Vec::new(), Vec::new());
    for (n, h, q) in (0..24).map(|at| (at / 12, at / 3 % 4, at % 3)) {
        let head = n * heads + h * heads / 4;
        let scores: Vec<f64> = (0..6)
            .map(|k| {
                let products = (0..5)
                    .map(|d| x[0][((n * 4 + h) * 3 + q) * 5 + d] * x[1][(head * 6 + k) * 5 + d]);
                0.5 * products.sum::<f64>() + added(x, n, q, k)
            })
            .collect();
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        for e in 0..2 {
            let weighted = (0..6).map(|k| scores[k].exp() * x[2][(head * 6 + k) * 2 + e]);
            out.push(if sum > 0.0 {
                weighted.sum::<f64>() / sum
            } else {
                0.0
            });
        }
        sums.push(sum.ln());
    }
    vec![out, sums]
}

#[test]
#[serial]
fn operators_with_a_schema_are_made_of_parts() {
    let [_, parts] = devices();
    for (number, (case, reference)) in schema_cases().iter().enumerate() {
        let placed = Placed::new(case, parts);
        let seed = 1000 * number as u64 + 7;
        placed.write(case, seed);
        for &address in placed
            .outputs
            .iter()
            .take(2)
            .filter(|_| case.name == "native_batch_norm")
        {
            let half = 0.5f32.to_ne_bytes();
            // SAFETY: both are live until the work has finished.
            unsafe { placed.stream.fill(address, 16, &half) }.unwrap();
        }
        operator_reset();
        placed
            .call(case, false)
            .unwrap_or_else(|error| panic!("{} ({number}): {error}", case.name));
        assert_eq!(place(case.name), [Place::Device], "{}", case.name);
        let inputs: Vec<_> = case
            .inputs
            .iter()
            .enumerate()
            .map(|(at, given)| numbers(given, seed + 10 * at as u64))
            .collect();
        for (output, (found, expected)) in
            placed.read(case).iter().zip(reference(&inputs)).enumerate()
        {
            for (at, (one, other)) in found.iter().zip(&expected).enumerate() {
                let near = one == other || (one - other).abs() <= case.limit * (1.0 + other.abs());
                assert!(
                    near,
                    "{} ({number}): output {output} at {at}: {one}, not {other}",
                    case.name
                );
            }
        }
    }
}
