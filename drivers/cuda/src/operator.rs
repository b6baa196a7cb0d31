//! The group `operators` (R45 to R47): products of matrices by cuBLASLt, where it is installed.

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_contract as c;
use outrigger_driver_kit::given::{Out, null};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::origin::Label;
use outrigger_driver_kit::{Fault, Result};

use crate::body::{Leaf, Recorded};
use crate::call::Call;
use crate::driver::{Open, get as get_driver};
use crate::lane::Command;
use crate::product::{Launch, NAMES, Product, Shape};
use crate::queue::get as get_queue;

/// The handle of an operator.
pub(crate) struct Operator {
    open: Arc<Open>,
    device: u32,
    /// The product, which launches that wait share.
    product: Arc<Product>,
}

impl Object for Operator {
    type Raw = c::otr_operator;
    const KIND: u64 = 0x6375_6461_6f70_6572;
    const NAME: &'static str = "the operator";
}

/// The names as the host gets them.
struct Names([*const c_char; NAMES.len()]);

// SAFETY: the pointers lead to constants.
unsafe impl Sync for Names {}

static GIVEN: Names = Names([
    NAMES[0].as_ptr(),
    NAMES[1].as_ptr(),
    NAMES[2].as_ptr(),
    NAMES[3].as_ptr(),
]);

/// # Safety
/// R8, R10.
pub(crate) unsafe fn names(
    handle: *mut c::otr_driver,
    device: u32,
    names: *mut *const *const c_char,
    count: *mut u32,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    open.found(device)?;
    let names = Out::new(names, "the place for the names")?;
    let count = Out::new(count, "the place for their number")?;
    names.give(GIVEN.0.as_ptr());
    let is_there = open.library.is_there();
    count.give(if is_there { NAMES.len() as u32 } else { 0 });
    Ok(())
}

/// # Safety
/// R1, R8, R10.
pub(crate) unsafe fn prepare(
    handle: *mut c::otr_driver,
    device: u32,
    call: *const c::otr_operator_call,
    answer: *mut c::otr_operator_answer,
    place: *mut *mut c::otr_operator,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get_driver(handle)? };
    let of = open.device(device)?;
    let place = Out::new(place, "the place for the operator")?;
    if answer.is_null() {
        return Err(null("the place for the answer"));
    }
    // SAFETY: not NULL, so a struct that begins with its size (R1).
    let size = unsafe { answer.cast::<usize>().read() };
    // All members were there in the first version of the contract.
    if size < size_of::<c::otr_operator_answer>() {
        let text = format!(
            "an answer of {size} bytes: version 1.0 has {}",
            size_of::<c::otr_operator_answer>()
        );
        return Err(Fault::argument(text));
    }
    // SAFETY: this function's contract.
    let call = unsafe { Call::read(call)? };
    let shape = Shape::of(&call)?;
    let _entered = of.enter()?;
    let product = Product::new(&*open.library.handle(of)?, shape)?;
    // SAFETY: as above.
    unsafe { (*answer).workspace_bytes = product.workspace() };
    of.live.operators.fetch_add(1, Ordering::Relaxed);
    place.give(handle::give(Operator {
        open: Arc::clone(open),
        device,
        product: Arc::new(product),
    }));
    Ok(())
}

/// # Safety
/// R8, R47: the last launch has finished.
pub(crate) unsafe fn release(operator: *mut c::otr_operator) -> Result {
    // SAFETY: this function's contract.
    let operator = unsafe { handle::take::<Operator>(operator)? };
    let live = &operator.open.devices[operator.device as usize].live;
    live.operators.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// # Safety
/// R1, R8, R10, R46, R47.
pub(crate) unsafe fn launch(
    queue: *mut c::otr_queue,
    operator: *mut c::otr_operator,
    call: *const c::otr_operator_call,
    workspace: c::otr_address_t,
) -> Result {
    // SAFETY: this function's contract.
    let (queue, operator) = unsafe { (get_queue(queue)?, handle::get::<Operator>(operator)?) };
    let product = &operator.product;
    if !Arc::ptr_eq(&queue.open, &operator.open) {
        return Err(Fault::handle(
            "the operator and the queue are of two open drivers",
        ));
    }
    if queue.device != operator.device {
        return Err(Fault::new(
            c::OTR_ERR_INVALID_DEVICE,
            format!(
                "an operator of device {} on a queue of device {}",
                operator.device, queue.device
            ),
        ));
    }
    // SAFETY: this function's contract.
    let call = unsafe { Call::read(call)? };
    if Shape::of(&call).ok() != Some(product.shape()) {
        return Err(Fault::argument(format!(
            "a call of {} with other operands than the operator was prepared for",
            call.name()
        )));
    }
    let launch = Launch {
        b: call.input_from_end(0),
        a: call.input_from_end(1),
        bias: call.input_from_end(2),
        out: call.output(),
        beta: call.scalar(0, 1.0)?,
        alpha: call.scalar(1, 1.0)?,
        workspace,
    };
    let is_missing = workspace == 0 && product.workspace() > 0;
    if is_missing || product.is_missing_one(&launch) {
        return Err(null("an operand or the workspace"));
    }
    if queue.keeps(|| Ok(Recorded::Leaf(Leaf::Product(Arc::clone(product), launch))))? {
        return Ok(());
    }
    queue.ordered.submit(
        Label::NONE,
        |lane, _| lane.product(product, &launch),
        |_| Ok(Command::Product(Arc::clone(product), launch)),
    )
}
