//! The negative log-likelihood of classes, and its gradient.
//!
//! If a target is out of bounds and not the ignored one, the kernel's result is `OUT_OF_RANGE`. Weights that are absent
//! are a tensor of dtype INVALID.

use std::ffi::c_void;

use bytemuck::{Pod, Zeroable};
use outrigger_device::{Code, DType};

use crate::call::{Call, Scalar, Tensor};
use crate::convert::{Class, class_of};
use crate::error::{Result, invalid, unsupported};
use crate::failure::failed_with;
use crate::geometry::checked_size;
use crate::memory::{ArgumentBlock, Base, Reader, Writer};
use crate::norm::Number;
use crate::plan::Plan;
use crate::registry::Definition;

/// The operators of this file.
pub(crate) const OPERATORS: &[Definition] = &[
    Definition {
        name: c"nll_loss_forward",
        plan: plan_forward,
    },
    Definition {
        name: c"nll_loss_backward",
        plan: plan_backward,
    },
];

/// The ways to reduce the losses of the items.
const NONE: i64 = 0;
const MEAN: i64 = 1;

/// An operand: its address, and its byte strides over items and classes.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Operand {
    address: u64,
    item: i64,
    class: i64,
    dtype: u64,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Header {
    /// Forward: scores. Backward: the gradient of the scores, which is written.
    scores: Operand,
    target: Operand,
    weight: Operand,
    /// Forward: the loss. Backward: its gradient.
    loss: Operand,
    total_weight: Operand,
    items: i64,
    classes: i64,
    ignored: i64,
    reduction: i64,
}

/// An operand over items and classes, over items or over classes. An operand of rank 0 has strides of 0.
fn operand(tensor: &Tensor<'_>, letters: &str, [items, classes]: [i64; 2]) -> Result<Operand> {
    let size = checked_size(tensor)?;
    let mut result = Operand {
        address: tensor.address(),
        dtype: u64::from(tensor.dtype().0),
        ..Operand::zeroed()
    };
    // The scores of one item may have no dimension of items, as PyTorch allows.
    let letters = if letters.len() == tensor.rank() + 1 {
        &letters[1..]
    } else {
        letters
    };
    if tensor.rank() != letters.len() {
        return invalid(format!(
            "an operand has rank {}, {} is expected",
            tensor.rank(),
            letters.len()
        ));
    }
    for (d, letter) in letters.chars().enumerate() {
        let want = if letter == 'n' { items } else { classes };
        if tensor.sizes()[d] != want {
            return invalid(format!(
                "an operand has size {}, {want} is expected",
                tensor.sizes()[d]
            ));
        }
        let stride = tensor.strides()[d] * size;
        if letter == 'n' {
            result.item = stride;
        } else {
            result.class = stride;
        }
    }
    Ok(result)
}

fn sizes(scores: &Tensor<'_>) -> Result<[i64; 2]> {
    match *scores.sizes() {
        [items, classes] => Ok([items, classes]),
        [classes] => Ok([1, classes]),
        _ => invalid(format!(
            "scores have rank {}, 1 or 2 is expected",
            scores.rank()
        )),
    }
}

fn header(
    [scores, target, weight, loss, total_weight]: [&Tensor<'_>; 5],
    scalars: &[Scalar],
) -> Result<Header> {
    let [reduction, ignored] = scalars else {
        return invalid("scalars (reduction, ignored index) are expected");
    };
    let reduction = reduction.to_i64();
    if !(0..=2).contains(&reduction) {
        return invalid(format!(
            "reduction {reduction}: 0 none, 1 mean, 2 sum are expected"
        ));
    }
    if target.dtype() != DType::I64 {
        return unsupported(format!("targets are {}, i64 is expected", target.dtype()));
    }
    let shape = sizes(scores)?;
    let weight = if weight.dtype() == DType::INVALID {
        Operand::zeroed()
    } else {
        operand(weight, "c", shape)?
    };
    Ok(Header {
        scores: operand(scores, "nc", shape)?,
        target: operand(target, "n", shape)?,
        weight,
        loss: operand(loss, if reduction == NONE { "n" } else { "" }, shape)?,
        total_weight: operand(total_weight, "", shape)?,
        items: shape[0],
        classes: shape[1],
        ignored: ignored.to_i64(),
        reduction,
    })
}

fn plan_forward(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([scores, target, weight], [loss, total_weight]) = (call.inputs, call.outputs) else {
        return invalid(
            "inputs (scores, target, weight) and outputs (loss, total_weight) are expected",
        );
    };
    let header = header([scores, target, weight, loss, total_weight], call.scalars)?;
    plan.kernel = match class_of(scores.dtype()) {
        Some(Class::F32) => forward::<f32>,
        Some(Class::F64) => forward::<f64>,
        _ => return unsupported(format!("not defined for {}", scores.dtype())),
    };
    plan.cost_ns = crate::plan::cost_ns(header.items, 5000);
    plan.push(&header);
    Ok(())
}

fn plan_backward(call: &Call<'_>, plan: &mut Plan) -> Result<()> {
    let ([grad, target, weight, total_weight], [out]) = (call.inputs, call.outputs) else {
        return invalid("inputs (grad, target, weight, total_weight) and 1 output are expected");
    };
    let header = header([out, target, weight, grad, total_weight], call.scalars)?;
    plan.kernel = match class_of(out.dtype()) {
        Some(Class::F32) => backward::<f32>,
        Some(Class::F64) => backward::<f64>,
        _ => return unsupported(format!("not defined for {}", out.dtype())),
    };
    plan.cost_ns = crate::plan::cost_ns(header.items * (header.classes + 20), 250);
    plan.push(&header);
    Ok(())
}

/// The operands that both directions read.
struct Items<'a, C> {
    h: &'a Header,
    target: Base,
    targets: Reader<i64>,
    weight: Option<(Base, Reader<C>)>,
}

impl<'a, C: Number> Items<'a, C> {
    fn new(h: &'a Header, bias: i64) -> Option<Self> {
        let weight = if h.weight.dtype == 0 {
            None
        } else {
            Some((
                Base::new(h.weight.address, bias),
                Reader::new(h.weight.dtype as u8)?,
            ))
        };
        Some(Self {
            h,
            target: Base::new(h.target.address, bias),
            targets: Reader::new(h.target.dtype as u8)?,
            weight,
        })
    }

    /// The class and the weight of an item; `Ok(None)` for an ignored one, an error for one out of bounds.
    ///
    /// # Safety
    /// The operands lie in live memory, and the item exists.
    unsafe fn get(&self, item: i64) -> Result<Option<(i64, f64)>, Code> {
        // SAFETY: this function's contract: the item's target is live.
        let class = unsafe { self.targets.one(self.target.at(item * self.h.target.item)) };
        if class == self.h.ignored {
            return Ok(None);
        }
        if class < 0 || class >= self.h.classes {
            return Err(failed_with(
                Code::OUT_OF_RANGE,
                &[c"nll_loss_forward", c"nll_loss_backward"],
                format!(
                    "target {class} is out of bounds for {} classes",
                    self.h.classes
                ),
            ));
        }
        let weight = match &self.weight {
            Some((base, reader)) => {
                // SAFETY: the class exists, as just compared. This function's contract: the weights are live.
                unsafe { reader.one(base.at(class * self.h.weight.class)) }.wide()
            }
            None => 1.0,
        };
        Ok(Some((class, weight)))
    }
}

/// # Safety
/// `args` is a block that `plan_forward` made, and its operands, moved by `bias`, lie in live memory.
unsafe extern "C" fn forward<C: Number>(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, _)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let (Some(items), Some(reader), Some(writer), Some(total_writer)) = (
        Items::<C>::new(&h, bias),
        Reader::<C>::new(h.scores.dtype as u8),
        Writer::<C>::new(h.loss.dtype as u8),
        Writer::<C>::new(h.total_weight.dtype as u8),
    ) else {
        return Code::INTERNAL.0;
    };
    let (scores, loss) = (
        Base::new(h.scores.address, bias),
        Base::new(h.loss.address, bias),
    );
    let (mut sum, mut total) = (0.0, 0.0);
    for item in 0..h.items {
        // SAFETY: the operands are live, and the item exists.
        let value = match unsafe { items.get(item) } {
            Err(code) => return code.0,
            Ok(None) => 0.0,
            Ok(Some((class, weight))) => {
                let at = item * h.scores.item + class * h.scores.class;
                total += weight;
                // SAFETY: the score of this item and class exists, and is live.
                -weight * unsafe { reader.one(scores.at(at)) }.wide()
            }
        };
        if h.reduction == NONE {
            // SAFETY: the place of this item's loss is live, and used by nobody else.
            unsafe { writer.row(&[C::of(value)], loss.at(item * h.loss.item), 0) };
        }
        sum += value;
    }
    if h.reduction == MEAN {
        // If the weights add up to 0, there is no mean: 0 / 0.
        sum /= total;
    }
    // SAFETY: each of the results is one live element.
    unsafe {
        if h.reduction != NONE {
            writer.row(&[C::of(sum)], loss.at(0), 0);
        }
        let total = if h.reduction == NONE { 0.0 } else { total };
        total_writer.row(
            &[C::of(total)],
            Base::new(h.total_weight.address, bias).at(0),
            0,
        );
    }
    Code::OK.0
}

/// # Safety
/// `args` is a block that `plan_backward` made, and its operands, moved by `bias`, lie in live memory.
unsafe extern "C" fn backward<C: Number>(args: *const c_void, args_size: u32, bias: i64) -> i32 {
    // SAFETY: this function's contract: `args` points to a block of `args_size` bytes.
    let block = unsafe { ArgumentBlock::new(args, args_size) };
    let Some((h, _)) = block.split::<Header>() else {
        return Code::INTERNAL.0;
    };
    let (Some(items), Some(writer), Some(reader), Some(total_reader)) = (
        Items::<C>::new(&h, bias),
        Writer::<C>::new(h.scores.dtype as u8),
        Reader::<C>::new(h.loss.dtype as u8),
        Reader::<C>::new(h.total_weight.dtype as u8),
    ) else {
        return Code::INTERNAL.0;
    };
    let (out, grad) = (
        Base::new(h.scores.address, bias),
        Base::new(h.loss.address, bias),
    );
    // SAFETY: the total weight is one live element.
    let total = unsafe { total_reader.one(Base::new(h.total_weight.address, bias).at(0)) }.wide();
    let zeros = vec![C::default(); h.classes as usize];
    for item in 0..h.items {
        // SAFETY: the item's row of the output is live, and used by nobody else.
        unsafe { writer.row(&zeros, out.at(item * h.scores.item), h.scores.class) };
        // SAFETY: the operands are live, and the item exists.
        let (class, weight) = match unsafe { items.get(item) } {
            Err(code) => return code.0,
            Ok(None) => continue,
            Ok(Some(found)) => found,
        };
        // SAFETY: the item's gradient, or with stride 0 the only one, is live.
        let grad = unsafe { reader.one(grad.at(item * h.loss.item)) }.wide();
        let value = if h.reduction == MEAN {
            -weight * grad / total
        } else {
            -weight * grad
        };
        let at = item * h.scores.item + class * h.scores.class;
        // SAFETY: one element of the item's row, which is live and used by nobody else.
        unsafe { writer.row(&[C::of(value)], out.at(at), 0) };
    }
    Code::OK.0
}
