//! The cost of planning, and the speed of the kernels: `cargo bench -p outrigger-ops`.
//!
//! Tests do not run this, because the figures depend on the machine. Each kernel runs on the calling thread and on all
//! cores, as in a host without a pool of its own.

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
        Tensor::new(
            self.data.as_ptr() as u64,
            DType::F32,
            &self.sizes,
            &self.strides,
        )
    }
}

fn id(name: &CStr) -> OperatorId {
    OperatorId::find(name).expect("the operator exists")
}

fn run(plan: &Plan) {
    let args = plan.args();
    // SAFETY: the block is of this plan, and the caller keeps the operands alive.
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
        ..Call::default()
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
        ..Call::default()
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
        ..Call::default()
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

#[divan::bench(args = CORES)]
fn sum_all_1m(bencher: Bencher<'_, '_>, cores: usize) {
    parallel::set_threads(cores);
    let (a, out) = (Dense::new(MILLION), Dense::new(&[1]));
    bench(bencher, c"sum", &[&a], &out, &[]);
}

#[divan::bench]
fn sum_columns_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (a, out) = (Dense::new(&[4096, 256]), Dense::new(&[1, 256]));
    bench(bencher, c"sum", &[&a], &out, &[]);
}

#[divan::bench]
fn sum_rows_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (a, out) = (Dense::new(&[4096, 256]), Dense::new(&[4096, 1]));
    bench(bencher, c"sum", &[&a], &out, &[]);
}

#[divan::bench]
fn argmax_rows_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (a, out) = (Dense::new(&[4096, 256]), Dense::new(&[4096, 2]));
    let (sizes, strides) = ([4096, 1], [1, 1]);
    let indices = Tensor::new(out.tensor().address(), DType::I64, &sizes, &strides);
    let (inputs, outputs) = ([a.tensor()], [indices]);
    let call = Call {
        inputs: &inputs,
        outputs: &outputs,
        scalars: &[],
        ..Call::default()
    };
    let plan = plan(id(c"argmax"), &call).expect("the call is right");
    bencher.bench_local(|| run(black_box(&plan)));
}

#[divan::bench]
fn softmax_rows_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (a, out) = (Dense::new(&[4096, 256]), Dense::new(&[4096, 256]));
    bench(bencher, c"softmax", &[&a], &out, &[Scalar::I64(1)]);
}

#[divan::bench]
fn layer_norm_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (a, out) = (Dense::new(&[4096, 256]), Dense::new(&[4096, 256]));
    let (weight, bias) = (Dense::new(&[256]), Dense::new(&[256]));
    let (mean, rstd) = (Dense::new(&[4096, 1]), Dense::new(&[4096, 1]));
    let scalars = [Scalar::I64(1), Scalar::F64(1e-5)];
    bench_outputs(
        bencher,
        c"layer_norm",
        &[&a, &weight, &bias],
        &[&out, &mean, &rstd],
        &scalars,
    );
}

#[divan::bench]
fn layer_norm_backward_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (a, grad) = (Dense::new(&[4096, 256]), Dense::new(&[4096, 256]));
    let (weight, mean, rstd) = (
        Dense::new(&[256]),
        Dense::new(&[4096, 1]),
        Dense::new(&[4096, 1]),
    );
    let (grad_a, grad_weight, grad_bias) = (
        Dense::new(&[4096, 256]),
        Dense::new(&[256]),
        Dense::new(&[256]),
    );
    bench_outputs(
        bencher,
        c"layer_norm_backward",
        &[&grad, &a, &mean, &rstd, &weight],
        &[&grad_a, &grad_weight, &grad_bias],
        &[Scalar::I64(1)],
    );
}

#[divan::bench(args = CORES)]
fn mm_1024(bencher: Bencher<'_, '_>, cores: usize) {
    parallel::set_threads(cores);
    let square = &[1024, 1024];
    let (a, b, out) = (Dense::new(square), Dense::new(square), Dense::new(square));
    bench(bencher, c"mm", &[&a, &b], &out, &[]);
}

#[divan::bench]
fn mm_64(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let square = &[64, 64];
    let (a, b, out) = (Dense::new(square), Dense::new(square), Dense::new(square));
    bench(bencher, c"mm", &[&a, &b], &out, &[]);
}

#[divan::bench]
fn copy_transposed_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let square = &[1024, 1024];
    let (a, out) = (Dense::new(square).transposed(), Dense::new(square));
    bench(bencher, c"copy", &[&a], &out, &[]);
}

#[divan::bench]
fn fill_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let out = Dense::new(MILLION);
    bench(bencher, c"fill", &[], &out, &[Scalar::F64(1.0)]);
}

#[divan::bench(args = [c"uniform", c"normal"])]
fn random_1m(bencher: Bencher<'_, '_>, name: &CStr) {
    parallel::set_threads(1);
    let out = Dense::new(MILLION);
    let scalars = [
        Scalar::F64(0.0),
        Scalar::F64(1.0),
        Scalar::I64(1),
        Scalar::I64(0),
    ];
    bench(bencher, name, &[], &out, &scalars);
}

#[divan::bench]
fn adamw_1m(bencher: Bencher<'_, '_>) {
    parallel::set_threads(1);
    let (grad, step) = (Dense::new(MILLION), Dense::new(&[1]));
    let (param, m, v) = (
        Dense::new(MILLION),
        Dense::new(MILLION),
        Dense::new(MILLION),
    );
    let scalars = [1e-3, 0.9, 0.999, 1e-8, 0.01, 0.0].map(Scalar::F64);
    bench_outputs(
        bencher,
        c"adamw_step",
        &[&grad, &step],
        &[&param, &m, &v],
        &scalars,
    );
}
