//! The group `operators`, present with the option `operators=native`: `add` and `mm` of f32, as a
//! vendor's library would have them. They exist to test the code above. Outrigger's own kernels are
//! faster, and serve every other call.
//!
//! `prepare` keeps the layout of the operands. A launch adds their addresses and the scalars, and
//! becomes the argument block of a kernel. So no command refers to the prepared operator.

mod call;
mod kernels;

use std::ffi::c_char;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::command::Launch;
use super::driver::{Device, Host, give, writable};
use super::event::queue;
use super::fault::{Fault, done};
use super::queue::Queue;
use super::submit::on_device;
use crate::{Code, DType, sys};
use call::{Call, View};
use kernels::{Add, Block, DIMENSIONS, Mm, WIDTH};

/// An operator of the host.
struct Operator {
    host: Arc<Host>,
    device: u32,
    layout: Layout,
}

/// How the operands of a call lie, the two inputs before the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// Sizes of the output, to which both inputs were broadcast; dimensions that are not there have 1.
    Add {
        sizes: [u64; DIMENSIONS],
        strides: [[i64; DIMENSIONS]; 3],
    },
    /// A product of m x k by k x n.
    Mm {
        sizes: [u64; 3],
        strides: [[i64; 2]; 3],
    },
}

impl Layout {
    /// The layout of a call; a fault if this driver has no operator for it.
    fn of(call: &Call<'_>) -> Result<Self, Fault> {
        let (&[a, b], &[out]) = (call.inputs, call.outputs) else {
            return Err(call.unsupported("other operands than two inputs and one output"));
        };
        // SAFETY: operands of the call, whose lists the host vouches for.
        let [a, b, out] = unsafe { [View::of(&a)?, View::of(&b)?, View::of(&out)?] };
        if [&a, &b, &out].iter().any(|view| view.dtype != DType::F32) {
            return Err(call.unsupported("an element type other than f32"));
        }
        let layout = match call.name.to_bytes() {
            b"add" => out.broadcast(&a).zip(out.broadcast(&b)).map(|(a, b)| {
                let (sizes, strides) = out.extents();
                let strides = [a, b, strides];
                Self::Add { sizes, strides }
            }),
            b"mm" => match (a.matrix(), b.matrix(), out.matrix()) {
                (Some([m, k]), Some([inner, n]), Some(product))
                    if k == inner && product == [m, n] =>
                {
                    let strides = [&a, &b, &out].map(|view| [view.strides[0], view.strides[1]]);
                    let sizes = [m, k, n];
                    Some(Self::Mm { sizes, strides })
                }
                _ => None,
            },
            _ => return Err(call.unsupported("another operator than add and mm")),
        };
        layout.ok_or_else(|| call.unsupported("sizes that do not go together"))
    }

    /// Bytes of workspace of a launch: a product has the columns of its second operand there. `None` for
    /// more elements than there are addresses.
    fn workspace_bytes(&self) -> Option<u64> {
        match *self {
            Self::Add { sizes, .. } => {
                let count = |count: u64, size| count.checked_mul(size);
                sizes.into_iter().try_fold(1, count).map(|_| 0)
            }
            Self::Mm {
                sizes: [_, k, n], ..
            } => k.checked_mul(n)?.checked_mul(WIDTH as u64),
        }
    }

    /// Launches a call of this layout: the kernel with its argument block.
    fn launch(&self, queue: &'static Queue, call: &Call<'_>, workspace: u64) -> Result<(), Fault> {
        let (device, addresses) = (queue.device(), call.addresses());
        match *self {
            Self::Add { sizes, strides } => {
                let [a, b, out] = strides;
                let block = Add {
                    sizes,
                    strides,
                    pointers: [
                        pointer(device, "first input", addresses[0], &sizes, &a)?,
                        pointer(device, "second input", addresses[1], &sizes, &b)?,
                        pointer(device, "output", addresses[2], &sizes, &out)?,
                    ],
                    alpha: call.alpha()?,
                };
                let cost = sizes.iter().product();
                submit(queue, cost, &block)
            }
            Self::Mm { sizes, strides } => {
                let ([m, k, n], [a, b, out]) = (sizes, strides);
                if !call.scalars.is_empty() {
                    return Err(Fault::argument("mm takes no scalar"));
                }
                let bytes = self.workspace_bytes().unwrap_or(u64::MAX);
                let block = Mm {
                    sizes,
                    strides,
                    pointers: [
                        pointer(device, "first input", addresses[0], &[m, k], &a)?,
                        pointer(device, "second input", addresses[1], &[k, n], &b)?,
                        pointer(device, "output", addresses[2], &[m, n], &out)?,
                    ],
                    workspace: on_device(device, "workspace", workspace, bytes)?,
                };
                let cost = m.saturating_mul(n).saturating_mul(k / 4 + 1);
                submit(queue, cost, &block)
            }
        }
    }
}

/// Puts the kernel of a block into a queue.
fn submit<B: Block>(queue: &'static Queue, cost: u64, block: &B) -> Result<(), Fault> {
    let launch = Launch {
        kernel: B::KERNEL,
        bias: 0,
        label: B::LABEL.as_ptr(),
        estimate: u32::try_from(cost).unwrap_or(u32::MAX),
    };
    queue.submit_launch(launch, block.bytes())
}

/// The host pointer to the first element of an operand, all of whose elements are memory of the device.
fn pointer(
    device: &Device,
    what: &str,
    address: u64,
    sizes: &[u64],
    strides: &[i64],
) -> Result<u64, Fault> {
    if sizes.contains(&0) {
        return Ok(address);
    }
    let reach = |of: fn(i64) -> bool| -> i128 {
        (sizes.iter().zip(strides))
            .filter(|(_, stride)| of(**stride))
            .map(|(size, stride)| i128::from(size - 1) * i128::from(*stride))
            .sum::<i128>()
            * i128::from(WIDTH)
    };
    let (below, above) = (-reach(i64::is_negative), reach(i64::is_positive));
    let start = u64::try_from(i128::from(address) - below);
    let (Ok(start), Ok(size)) = (start, u64::try_from(below + above + i128::from(WIDTH))) else {
        return Err(Fault::argument(format!(
            "the {what} at {address:#x} reaches beyond all addresses"
        )));
    };
    // What lies below the first element is no more than the address: it fits.
    Ok(on_device(device, what, start, size)? + below as u64)
}

/// The operators that [`Layout::of`] knows.
struct Names([*const c_char; 2]);

// SAFETY: the pointers lead to constants.
unsafe impl Sync for Names {}

static NAMES: Names = Names([c"add".as_ptr(), c"mm".as_ptr()]);

pub(in crate::host) unsafe extern "C" fn names(
    driver: *mut sys::otr_driver,
    device: u32,
    names: *mut *const *const c_char,
    count: *mut u32,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        unsafe { Host::from_handle(driver)? }.has_device(device)?;
        writable(names)?;
        writable(count)?;
        // SAFETY: neither is NULL, so both are writable.
        unsafe {
            give(names, NAMES.0.as_ptr())?;
            give(count, NAMES.0.len() as u32)
        }
    })
}

pub(in crate::host) unsafe extern "C" fn prepare(
    driver: *mut sys::otr_driver,
    device: u32,
    call: *const sys::otr_operator_call,
    answer: *mut sys::otr_operator_answer,
    place: *mut *mut sys::otr_operator,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let device = host.device(device)?.index;
        writable(answer)?;
        writable(place)?;
        // SAFETY: R1, R10: NULL, or a struct of the size that stands in it, valid with its lists during
        // the call.
        let call = unsafe { Call::read(call)? };
        let layout = Layout::of(&call)?;
        let bytes = layout
            .workspace_bytes()
            .ok_or_else(|| call.unsupported("more elements than there are addresses"))?;
        // SAFETY: not NULL, so a struct of the size that stands in it (R1).
        let size = unsafe { (*answer).struct_size };
        // All fields were there in the first version of the contract.
        if size < size_of::<sys::otr_operator_answer>() {
            return Err(Fault::argument(format!(
                "an answer of {size} bytes; version 1.0 has {}",
                size_of::<sys::otr_operator_answer>()
            )));
        }
        host.operators.fetch_add(1, Ordering::Relaxed);
        let operator = Box::new(Operator {
            host: Arc::clone(&host),
            device,
            layout,
        });
        // SAFETY: neither is NULL, so both are writable.
        unsafe {
            give(&raw mut (*answer).workspace_bytes, bytes)?;
            give(place, Box::into_raw(operator).cast())
        }
    })
}

/// The operator behind a handle.
///
/// # Safety
/// `handle` is NULL or came from `prepare` and was not released.
unsafe fn operator<'a>(handle: *mut sys::otr_operator) -> Result<&'a Operator, Fault> {
    // SAFETY: NULL, or from `prepare` and not released.
    unsafe { handle.cast::<Operator>().as_ref() }
        .ok_or_else(|| Fault::null("the operator", Code::INVALID_HANDLE))
}

pub(in crate::host) unsafe extern "C" fn release(handle: *mut sys::otr_operator) -> i32 {
    done(|| {
        // SAFETY: R8: no other call uses the operator that the host releases, so it is NULL or live.
        let operator = unsafe { operator(handle)? };
        operator.host.operators.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: made by `Box::into_raw` in `prepare`, and given back by the host. Launches hold copies
        // of the layout.
        drop(unsafe { Box::from_raw(std::ptr::from_ref(operator).cast_mut()) });
        Ok(())
    })
}

pub(in crate::host) unsafe extern "C" fn launch(
    handle: *mut sys::otr_queue,
    prepared: *mut sys::otr_operator,
    call: *const sys::otr_operator_call,
    workspace: u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a queue that the host destroys, so it is NULL or live.
        let (queue, operator) = unsafe { (queue(handle)?, operator(prepared)?) };
        if !queue.is_of(&operator.host) {
            return Err(Fault::new(
                Code::INVALID_HANDLE,
                "the operator and the queue are of two open drivers: both have to be of one",
            ));
        }
        let device = queue.device().index;
        if device != operator.device {
            return Err(Fault::new(
                Code::INVALID_DEVICE,
                format!(
                    "the queue is of device {device}, and the operator was prepared for device {}",
                    operator.device
                ),
            ));
        }
        // SAFETY: R1, R10: NULL, or a struct of the size that stands in it, valid with its lists during
        // the call.
        let call = unsafe { Call::read(call)? };
        if !Layout::of(&call).is_ok_and(|layout| layout == operator.layout) {
            return Err(Fault::argument(format!(
                "a call of `{}` with other operands than the operator was prepared for",
                call.name.to_string_lossy()
            )));
        }
        operator.layout.launch(queue, &call, workspace)
    })
}
