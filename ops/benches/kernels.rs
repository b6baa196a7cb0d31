//! What planning costs, and how fast the kernels are: `cargo bench -p outrigger-ops`.
//!
//! Not run by tests; figures depend on the machine. Each kernel runs on the calling thread and on
//! all cores, as a host without its own pool would run it.

use std::ffi::{CStr, c_void};

use divan::{Bencher, black_box};
use outrigger_ops::{Call, DType, OperatorId, Plan, Scalar, Tensor, parallel, plan};

fn main() {
    divan::main();
}

/// A dense tensor of ones.
struct Dense {
    data: Vec<f32>,
    sizes: Vec<i64>,
    strides: Vec<i64>,
}

impl Dense {
    fn new(sizes: &[i64]) -> Self {
        let mut strides = vec![1; sizes.len()];
        for k in (1..sizes.len()).rev() {
            strides[k - 1] = strides[k] * sizes[k];
        }
        let numel: i64 = sizes.iter().product();
        Self {
            data: vec![1.0; numel as usize],
            sizes: sizes.to_vec(),
            strides,
        }
    }

    fn transposed(mut self) -> Self {
        self.sizes.reverse();
        self.strides.reverse();
        self
    }

    fn tensor(&self) -> Tensor<'_> {
        Tensor {
            address: self.data.as_ptr() as u64,
            dtype: DType::F32,
            sizes: &self.sizes,
            strides: &self.strides,
        }
    }
}

fn id(name: &CStr) -> OperatorId {
    OperatorId::find(name).expect("the operator exists")
}

fn run(plan: &Plan) {
    let args = plan.args();
    // SAFETY: the block is of this plan, and the operands are alive in the caller's frame.
    let code = unsafe { (plan.kernel)(args.as_ptr().cast::<c_void>(), args.len() as u32, 0) };
    assert_eq!(code, 0);
}

fn bench(
    bencher: Bencher<'_, '_>,
    name: &CStr,
    inputs: &[&Dense],
    output: &Dense,
    scalars: &[Scalar],
) {
    bench_outputs(bencher, name, inputs, &[output], scalars);
}

fn bench_outputs(
    bencher: Bencher<'_, '_>,
    name: &CStr,
    inputs: &[&Dense],
    outputs: &[&Dense],
    scalars: &[Scalar],
) {
    let inputs: Vec<_> = inputs.iter().map(|input| input.tensor()).collect();
    let outputs: Vec<_> = outputs.iter().map(|output| output.tensor()).collect();
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        scalars,
    };
    let plan = plan(id(name), &call).expect("the call is right");
    bencher.bench_local(|| run(black_box(&plan)));
}

const MILLION: &[i64] = &[1 << 20];
const CORES: &[usize] = &[1, 2];

#[divan::bench]
fn plan_add_one(bencher: Bencher<'_, '_>) {
    let (a, b, out) = (Dense::new(&[1]), Dense::new(&[1]), Dense::new(&[1]));
    let (inputs, outputs) = ([a.tensor(), b.tensor()], [out.tensor()]);
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        scalars: &[],
    };
    let add = id(c"add");
    bencher.bench_local(|| plan(black_box(add), black_box(&call)).map(|plan| plan.cost_ns));
}

#[divan::bench]
fn plan_add_strided(bencher: Bencher<'_, '_>) {
    let (a, b) = (
        Dense::new(&[8, 9, 10]),
        Dense::new(&[10, 9, 8]).transposed(),
    );
    let out = Dense::new(&[8, 9, 10]);
    let (inputs, outputs) = ([a.tensor(), b.tensor()], [out.tensor()]);
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        scalars: &[],
    };
    let add = id(c"add");
    bencher.bench_local(|| plan(black_box(add), black_box(&call)).map(|plan| plan.cost_ns));
}

#[divan::bench]
fn add_one(bencher: Bencher<'_, '_>) {
    let (a, b, out) = (Dense::new(&[1]), Dense::new(&[1]), Dense::new(&[1]));
    bench(bencher, c"add", &[&a, &b], &out, &[]);
}

#[divan::bench(args = CORES)]
fn add_1m(bencher: Bencher<'_, '_>, cores: usize) {
    parallel::set_threads(cores);
    let (a, b, out) = (
        Dense::new(MILLION),
        Dense::new(MILLION),
        Dense::new(MILLION),
    );
    bench(bencher, c"add", &[&a, &b], &out, &[]);
}

#[divan::bench(args = CORES)]
fn add_in_place_1m(bencher: Bencher<'_, '_>, cores: usize) {
    parallel::set_threads(cores);
    let (a, b) = (Dense::new(MILLION), Dense::new(MILLION));
    bench(bencher, c"add", &[&a, &b], &a, &[]);
}

#[divan::bench]
fn add_row_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (a, b, out) = (
        Dense::new(&[16384, 64]),
        Dense::new(&[64]),
        Dense::new(&[16384, 64]),
    );
    bench(bencher, c"add", &[&a, &b], &out, &[]);
}

#[divan::bench]
fn add_transposed_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (a, b) = (
        Dense::new(&[1024, 1024]),
        Dense::new(&[1024, 1024]).transposed(),
    );
    let out = Dense::new(&[1024, 1024]);
    bench(bencher, c"add", &[&a, &b], &out, &[]);
}

#[divan::bench(args = [c"exp", c"log", c"tanh", c"gelu", c"sin", c"sigmoid", c"relu", c"sqrt"])]
fn unary_1m(bencher: Bencher<'_, '_>, name: &CStr) {
    parallel::set_threads(1);
    let (a, out) = (Dense::new(MILLION), Dense::new(MILLION));
    bench(bencher, name, &[&a], &out, &[]);
}
