//! Fused steps of optimizers: SGD with momentum, and Adam with or without decoupled decay.
//!
//! The formulas are those of `torch.optim` (SGD, Adam, AdamW). Parameter and state are updated in place: they are
//! outputs that are also read. Operands are dense, and all have the same layout.

use std::ffi::c_void;
use std::mem::MaybeUninit;

use bytemuck::{Pod, Zeroable};
use outrigger_device::{Code, DType};

use crate::call::{Call, Scalar, Tensor};
use crate::convert::{Class, class_of};
use crate::error::{Result, invalid, unsupported};
use crate::geometry::checked_size;
use crate::isa::{Isa, Vectorised, dispatch};
use crate::memory::{ArgumentBlock, Base, Reader, Writer};
use crate::norm::Number;
use crate::parallel;
use crate::plan::{KernelFn, Plan};
use crate::registry::Definition;

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"sgd_step",
        plan: plan_sgd,
    },
    Definition {
        name: c"adam_step",
        plan: plan_adam::<false>,
    },
    Definition {
        name: c"adamw_step",
        plan: plan_adam::<true>,
    },
];

/// The most operands: parameter, three of its state, gradient and step.
const OPERANDS: usize = 6;
const GRAD: usize = 4;
const STEP: usize = 5;

/// Values per block.
const BLOCK: usize = 512;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    numel: i64,
    addresses: [u64; OPERANDS],
    params: [f64; 8],
    dtypes: [u8; 8],
}

/// Checks operands that are updated together, and makes the header of their block.
fn pack(call: &Call<'_>, params: [f64; 8]) -> Result<Header> {
    let Some((param, state)) = call.outputs.split_first() else {
        return invalid("0 outputs, the parameter and its state are expected");
    };
    let Some((grad, rest)) = call.inputs.split_first() else {
        return invalid("0 inputs, the gradient is expected");
    };
    if state.len() >= GRAD || rest.len() > 1 {
        return invalid(format!(
            "{} outputs and {} inputs are too many",
            call.outputs.len(),
            call.inputs.len()
        ));
    }
    let mut header = Header {
        numel: param.numel(),
        params,
        ..Header::zeroed()
    };
    let mut put = |place: usize, tensor: &Tensor<'_>| -> Result<()> {
        checked_size(tensor)?;
        if !matches!(class_of(tensor.dtype()), Some(Class::F32 | Class::F64)) {
            return unsupported(format!("not defined for {}", tensor.dtype()));
        }
        header.addresses[place] = tensor.address();
        header.dtypes[place] = tensor.dtype().0 as u8;
        Ok(())
    };
    for (place, tensor) in call.outputs.iter().enumerate().chain([(GRAD, grad)]) {
        if tensor.sizes() != param.sizes() {
            return invalid(format!(
                "sizes differ: {:?} and {:?}",
                tensor.sizes(),
                param.sizes()
            ));
        }
        if !alike(tensor, param) {
            return unsupported("operands that are not dense or not laid out alike");
        }
        put(place, tensor)?;
    }
    for tensor in rest {
        if tensor.numel() != 1 {
            return invalid(format!(
                "the step has {} elements, 1 is expected",
                tensor.numel()
            ));
        }
        put(STEP, tensor)?;
    }
    Ok(header)
}

/// Whether both operands walk dense memory in the same order.
fn alike(a: &Tensor<'_>, b: &Tensor<'_>) -> bool {
    if a.is_contiguous() && b.is_contiguous() {
        return true;
    }
    let same = (0..a.rank()).all(|d| a.sizes()[d] == 1 || a.strides()[d] == b.strides()[d]);
    // Distinct positive strides that span exactly the elements are a permutation of a dense tensor.
    let span: i64 = a
        .sizes()
        .iter()
        .zip(a.strides())
        .map(|(size, stride)| (size - 1) * stride)
        .sum();
    same && span == a.numel() - 1 && a.strides().iter().all(|&stride| stride >= 0)
}

fn kernel_for(param: &Tensor<'_>, f32_kernel: KernelFn, f64_kernel: KernelFn) -> KernelFn {
    if param.dtype() == DType::F64 {
        f64_kernel
    } else {
        f32_kernel
    }
}

fn plan_sgd(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let [lr, momentum, dampening, decay, nesterov, maximize, first] = call.scalars else {
        return invalid(
            "scalars (lr, momentum, dampening, weight_decay, nesterov, maximize, first step) are expected",
        );
    };
    let params = [
        *lr, *momentum, *dampening, *decay, *nesterov, *maximize, *first,
    ];
    let mut numbers = [0.0; 8];
    for (number, scalar) in numbers.iter_mut().zip(params) {
        *number = scalar.to_f64();
    }
    if momentum.to_f64() != 0.0 && call.outputs.len() != 2 || call.inputs.len() != 1 {
        return invalid(
            "1 input (grad) and outputs (param, momentum buffer if there is momentum) are expected",
        );
    }
    let header = pack(call, numbers)?;
    finish(
        plan,
        &header,
        kernel_for(
            &call.outputs[0],
            kernel::<f32, Sgd<f32>>,
            kernel::<f64, Sgd<f64>>,
        ),
    );
    Ok(())
}

fn plan_adam<const DECOUPLED: bool>(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let (numbers, step): (&[Scalar], f64) = match call.scalars {
        [numbers @ .., step] if call.inputs.len() == 1 => (numbers, step.to_f64()),
        numbers => (numbers, 0.0),
    };
    let [lr, beta1, beta2, epsilon, decay, maximize] = numbers else {
        return invalid(
            "scalars (lr, beta1, beta2, eps, weight_decay, maximize), and the step unless it is the \
             second input, are expected",
        );
    };
    if !matches!(call.outputs.len(), 3 | 4) {
        return invalid(
            "outputs (param, exp_avg, exp_avg_sq, max_exp_avg_sq if amsgrad) are expected",
        );
    }
    let [lr, beta1, beta2, epsilon, decay, maximize] =
        [lr, beta1, beta2, epsilon, decay, maximize].map(|scalar| scalar.to_f64());
    let decoupled = f64::from(u8::from(DECOUPLED));
    let header = pack(
        call,
        [lr, beta1, beta2, epsilon, decay, maximize, step, decoupled],
    )?;
    finish(
        plan,
        &header,
        kernel_for(
            &call.outputs[0],
            kernel::<f32, Adam<f32>>,
            kernel::<f64, Adam<f64>>,
        ),
    );
    Ok(())
}

fn finish(plan: &mut Plan, header: &Header, kernel: KernelFn) {
    if header.numel > 0 {
        plan.kernel = kernel;
        plan.cost_ns = crate::plan::cost_ns(header.numel, 800);
        plan.push(header);
    }
}

/// The step of an optimizer, in one type.
trait Step<C>: Copy + Send + Sync {
    fn new(header: &Header, step: f64) -> Self;
    /// Updates parameters and state by a block of gradients. State that is absent is empty.
    fn apply<I: Isa>(self, state: &mut [&mut [C]; GRAD], grad: &[C]);
}

#[derive(Clone, Copy)]
struct Sgd<C> {
    lr: C,
    momentum: C,
    /// 1 - dampening; 1 at the first step, at which the buffer becomes the gradient.
    take: C,
    keep: C,
    decay: C,
    nesterov: bool,
    sign: C,
}

#[derive(Clone, Copy)]
struct Adam<C> {
    beta1: C,
    beta2: C,
    one_less1: C,
    one_less2: C,
    epsilon: C,
    /// The decay that is added to the gradient, and the factor of the parameter if the decay is decoupled.
    decay: C,
    shrink: C,
    sign: C,
    step_size: C,
    root_correction: C,
}

macro_rules! steps {
    ($($t:ident),*) => {$(
        impl Step<$t> for Sgd<$t> {
            fn new(h: &Header, _: f64) -> Self {
                let [lr, momentum, dampening, decay, nesterov, maximize, first, _] = h.params;
                let first = first != 0.0;
                Self {
                    lr: lr as $t,
                    momentum: momentum as $t,
                    take: if first { 1.0 } else { (1.0 - dampening) as $t },
                    keep: if first { 0.0 } else { momentum as $t },
                    decay: decay as $t,
                    nesterov: nesterov != 0.0,
                    sign: if maximize != 0.0 { -1.0 } else { 1.0 },
                }
            }
            #[inline(always)]
            fn apply<I: Isa>(self, [param, buffer, ..]: &mut [&mut [$t]; GRAD], grad: &[$t]) {
                if self.momentum == 0.0 {
                    for (p, g) in param.iter_mut().zip(grad) {
                        let g = p.fma::<I>(self.decay, self.sign * *g);
                        *p -= self.lr * g;
                    }
                    return;
                }
                for ((p, b), g) in param.iter_mut().zip(buffer.iter_mut()).zip(grad) {
                    let g = p.fma::<I>(self.decay, self.sign * *g);
                    // A buffer that was never written may hold anything, even NaN.
                    let kept = if self.keep == 0.0 { 0.0 } else { *b * self.keep };
                    *b = g.fma::<I>(self.take, kept);
                    let g = if self.nesterov { b.fma::<I>(self.momentum, g) } else { *b };
                    *p -= self.lr * g;
                }
            }
        }
        impl Step<$t> for Adam<$t> {
            fn new(h: &Header, step: f64) -> Self {
                let [lr, beta1, beta2, epsilon, decay, maximize, _, decoupled] = h.params;
                let decoupled = decoupled != 0.0;
                Self {
                    beta1: beta1 as $t,
                    beta2: beta2 as $t,
                    one_less1: (1.0 - beta1) as $t,
                    one_less2: (1.0 - beta2) as $t,
                    epsilon: epsilon as $t,
                    decay: if decoupled { 0.0 } else { decay as $t },
                    shrink: if decoupled { (1.0 - lr * decay) as $t } else { 1.0 },
                    sign: if maximize != 0.0 { -1.0 } else { 1.0 },
                    step_size: (lr / (1.0 - beta1.powf(step))) as $t,
                    root_correction: (1.0 - beta2.powf(step)).sqrt() as $t,
                }
            }
            #[inline(always)]
            fn apply<I: Isa>(self, state: &mut [&mut [$t]; GRAD], grad: &[$t]) {
                let [param, first, second, largest] = state;
                let n = grad.len();
                let (param, first, second) = (&mut param[..n], &mut first[..n], &mut second[..n]);
                for k in 0..n {
                    let p = param[k] * self.shrink;
                    let g = p.fma::<I>(self.decay, self.sign * grad[k]);
                    let m = first[k].fma::<I>(self.beta1, self.one_less1 * g);
                    let v = second[k].fma::<I>(self.beta2, self.one_less2 * g * g);
                    first[k] = m;
                    second[k] = v;
                    param[k] = p;
                }
                let top = if largest.is_empty() {
                    &*second
                } else {
                    for (top, v) in largest.iter_mut().zip(second.iter()) {
                        *top = if *v > *top { *v } else { *top };
                    }
                    &**largest
                };
                for ((p, m), v) in param.iter_mut().zip(first.iter()).zip(top) {
                    *p -= self.step_size * *m / (v.sqrt() / self.root_correction + self.epsilon);
                }
            }
        }
    )*};
}
steps!(f32, f64);

struct Update<'a, 'b, C, S> {
    step: S,
    state: &'a mut [&'b mut [C]; GRAD],
    grad: &'a [C],
}

impl<C, S: Step<C>> Vectorised for Update<'_, '_, C, S> {
    type Output = ();
    #[inline(always)]
    fn run<I: Isa>(self) {
        self.step.apply::<I>(self.state, self.grad);
    }
}

/// An operand at the time that the kernel runs.
struct Operand<C> {
    base: Base,
    size: i64,
    reader: Reader<C>,
    writer: Writer<C>,
}

/// # Safety
/// `args` is a block that the planning of this file made for this kernel. Its operands, moved by `bias`, lie in live
/// memory and do not overlap.
unsafe extern "C" fn kernel<C: Number, S: Step<C>>(
    args: *const c_void,
    args_size: u32,
    bias: i64,
) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, _)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let operand = |place: usize| {
        let dtype = h.dtypes[place];
        Some(Operand::<C> {
            base: Base::new(h.addresses[place], bias),
            size: DType(u32::from(dtype)).size()? as i64,
            reader: Reader::new(dtype)?,
            writer: Writer::new(dtype)?,
        })
    };
    let state: [Option<Operand<C>>; GRAD] = std::array::from_fn(operand);
    let Some(grad) = operand(GRAD) else {
        return Code::INTERNAL.0;
    };
    // SAFETY: this function's contract: the step is one live element.
    let step = operand(STEP).map(|step| unsafe { step.reader.one(step.base.at(0)) }.wide());
    let step = S::new(&h, step.unwrap_or(h.params[6]));
    parallel::for_range(0, h.numel, 1 << 13, &|begin, end| {
        let mut rooms = [const { [const { MaybeUninit::<C>::uninit() }; BLOCK] }; GRAD];
        let mut grad_room = [const { MaybeUninit::<C>::uninit() }; BLOCK];
        let mut at = begin;
        while at < end {
            let n = (end - at).min(BLOCK as i64) as usize;
            let mut blocks: [&mut [C]; GRAD] = [&mut [], &mut [], &mut [], &mut []];
            for ((block, room), operand) in blocks.iter_mut().zip(&mut rooms).zip(&state) {
                if let Some(operand) = operand {
                    let from = operand.base.at(at * operand.size);
                    // SAFETY: this function's contract: n dense elements of this operand are live.
                    *block = unsafe { operand.reader.copy(from, operand.size, &mut room[..n]) };
                }
            }
            // SAFETY: this function's contract: n dense gradients are live.
            let grad = unsafe {
                grad.reader
                    .row(grad.base.at(at * grad.size), grad.size, &mut grad_room[..n])
            };
            dispatch(Update {
                step,
                state: &mut blocks,
                grad,
            });
            for (block, operand) in blocks.iter().zip(&state) {
                if let Some(operand) = operand {
                    // SAFETY: n dense elements of this operand, which are this thread's.
                    unsafe {
                        operand
                            .writer
                            .row(block, operand.base.at(at * operand.size), operand.size)
                    };
                }
            }
            at += n as i64;
        }
    });
    Code::OK.0
}
