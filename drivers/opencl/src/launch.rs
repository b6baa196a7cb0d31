//! The entry that launches a kernel: what the host gives is checked, and becomes a launch at once or later.

use std::mem::MaybeUninit;
use std::sync::Arc;

use outrigger_contract as c;
use outrigger_driver_kit::given::null;
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::origin::Label;
use outrigger_driver_kit::{Fault, Result};

use crate::driver::Open;
use crate::kernel::{Kernel, Launch, Shape};
use crate::queue::{Command, get as get_queue};

/// The handle of a kernel.
pub(crate) struct KernelHandle {
    pub(crate) open: Arc<Open>,
    pub(crate) device: u32,
    pub(crate) kernel: Arc<Kernel>,
}

impl Object for KernelHandle {
    type Raw = c::otr_drv_kernel;
    const KIND: u64 = 0x6f63_6c20_6b65_726e;
    const NAME: &'static str = "the kernel";
}

/// # Safety
/// R8, R10, R30.
pub(crate) unsafe fn launch(
    queue: *mut c::otr_queue,
    kernel: *mut c::otr_drv_kernel,
    launch: *const c::otr_launch,
) -> Result {
    // SAFETY: this function's contract.
    let (queue, handle) = unsafe { (get_queue(queue)?, handle::get::<KernelHandle>(kernel)?) };
    if !Arc::ptr_eq(&queue.open, &handle.open) {
        return Err(Fault::handle(
            "the kernel and the queue are of two open drivers: both have to be of one",
        ));
    }
    if queue.device != handle.device {
        return Err(Fault::new(
            c::OTR_ERR_INVALID_DEVICE,
            format!(
                "the kernel is of device {} and the queue of device {}",
                handle.device, queue.device
            ),
        ));
    }
    if launch.is_null() {
        return Err(null("the launch"));
    }
    let mut shorter = MaybeUninit::zeroed();
    // SAFETY: not NULL, so a struct of its size (R1), which lives through the call.
    let launch = unsafe { whole(launch, &mut shorter) };
    if launch.shared_bytes != 0 {
        return Err(Fault::argument(format!(
            "{} bytes of shared memory: local memory of OpenCL is an argument (OTR_ARGUMENT_LOCAL)",
            launch.shared_bytes
        )));
    }
    // SAFETY: R10: lists of the lengths that the launch has.
    let (block, parts) = unsafe {
        (
            list(
                launch.args.cast::<u8>(),
                launch.args_size,
                "the block of arguments",
            )?,
            list(
                launch.arguments,
                launch.argument_count,
                "the list of arguments",
            )?,
        )
    };
    let shape = Shape::of(launch)?;
    let kernel = &handle.kernel;
    // SAFETY: the label lives as long as the process, as `otr_launch` has it.
    let label = unsafe { Label::new(launch.label) };
    queue.ordered.submit(
        label,
        |lane, origin| {
            kernel.with_arguments(block, parts, |object| {
                kernel.enqueue(lane.raw(), lane.unseen(), object, &shape, origin)
            })
        },
        |_| {
            kernel.check_group(&shape)?;
            // OpenCL's refusal of an argument is reported now and not later.
            kernel.with_arguments(block, parts, |_| Ok(()))?;
            Ok(Command::Launch(Box::new(Launch {
                kernel: Arc::clone(kernel),
                shape,
                block: block.into(),
                parts: parts.into(),
            })))
        },
    )
}

/// A launch in full: that of an older host ends earlier, and what it lacks is 0 (R1).
///
/// # Safety
/// `launch` is a struct of its size, which lives as long as `shorter` is borrowed.
#[inline]
unsafe fn whole(
    launch: *const c::otr_launch,
    shorter: &mut MaybeUninit<c::otr_launch>,
) -> &c::otr_launch {
    // SAFETY: every struct begins with its size.
    let size = unsafe { launch.cast::<usize>().read() };
    if size >= size_of::<c::otr_launch>() {
        // SAFETY: as large as the type.
        return unsafe { &*launch };
    }
    // SAFETY: `shorter` is zeroed, which is valid for all fields, and has room for as many bytes.
    unsafe {
        let to = shorter.as_mut_ptr();
        std::ptr::copy_nonoverlapping(launch.cast::<u8>(), to.cast::<u8>(), size);
        shorter.assume_init_ref()
    }
}

/// A list of the host.
///
/// # Safety
/// `first` is NULL, or that of as many which live for `'a`.
#[inline]
unsafe fn list<'a, T>(first: *const T, count: u32, what: &str) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if first.is_null() || !first.is_aligned() {
        return Err(null(what));
    }
    // SAFETY: not NULL and aligned; this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(first, count as usize) })
}
