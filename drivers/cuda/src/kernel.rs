//! Kernels: the entry that launches them, and what it checks.

use std::ffi::c_void;
use std::sync::Arc;

use outrigger_contract as c;
use outrigger_driver_kit::given::null;
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::origin::Label;
use outrigger_driver_kit::{Fault, Result, field};

use crate::body::{Leaf, Recorded};
use crate::cuda;
use crate::driver::Open;
use crate::lane::Command;
use crate::launch::{Function, Launch, Shape};
use crate::queue::get as get_queue;

/// The handle of a kernel.
pub(crate) struct Kernel {
    open: Arc<Open>,
    device: u32,
    function: Function,
    /// Work-items that a group may have.
    largest_group: u32,
    /// Bytes of shared memory that a launch may ask for.
    shared: u32,
}

impl Object for Kernel {
    type Raw = c::otr_drv_kernel;
    const KIND: u64 = 0x6375_6461_6b65_726e;
    const NAME: &'static str = "the kernel";
}

impl Kernel {
    /// A kernel of a loaded module; the context is entered.
    pub(crate) fn new(open: &Arc<Open>, index: u32, function: cuda::Function) -> Result<Self> {
        let device = open.device(index)?;
        let ask = |what| {
            let mut value = 0;
            // SAFETY: a place for the number, and a live function.
            let told = unsafe { (device.cuda.function_attribute)(&mut value, what, function) };
            device.check(told, "cuFuncGetAttribute")?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let own: u32 = ask(cuda::FUNCTION_SHARED_SIZE_BYTES)?;
        let shared = device.shared.saturating_sub(own);
        let what = cuda::FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // Without this call a launch gets no more than old devices had.
        // SAFETY: a live function, which no launch has used yet.
        let set = unsafe { (device.cuda.function_set)(function, what, shared as i32) };
        device.check(set, "cuFuncSetAttribute")?;
        Ok(Self {
            open: Arc::clone(open),
            device: index,
            function: Function(function),
            largest_group: ask(cuda::FUNCTION_MAX_THREADS_PER_BLOCK)?,
            shared,
        })
    }
}

/// # Safety
/// R1, R8, R10.
pub(crate) unsafe fn launch(
    queue: *mut c::otr_queue,
    kernel: *mut c::otr_drv_kernel,
    launch: *const c::otr_launch,
) -> Result {
    // SAFETY: this function's contract.
    let (queue, kernel) = unsafe { (get_queue(queue)?, handle::get::<Kernel>(kernel)?) };
    if !Arc::ptr_eq(&queue.open, &kernel.open) {
        return Err(Fault::handle(
            "the kernel and the queue are of two open drivers",
        ));
    }
    if queue.device != kernel.device {
        return Err(Fault::new(
            c::OTR_ERR_INVALID_DEVICE,
            format!(
                "a kernel of device {} on a queue of device {}",
                kernel.device, queue.device
            ),
        ));
    }
    if launch.is_null() {
        return Err(null("the launch"));
    }
    macro_rules! given {
        ($field:ident, $missing:expr) => {
            // SAFETY: not NULL, so a struct of its size (R1).
            unsafe { field!(launch, c::otr_launch, $field) }.unwrap_or($missing)
        };
    }
    let mut shape = Shape {
        grid: given!(grid, [0; 3]),
        block: given!(block, [0; 3]),
        shared: given!(shared_bytes, 0),
    };
    let args: *const c_void = given!(args, std::ptr::null());
    let size = given!(args_size, 0) as usize;
    let arguments: *const c::otr_argument = given!(arguments, std::ptr::null());
    let count = given!(argument_count, 0) as usize;
    if args.is_null() && size > 0 {
        return Err(null("the argument block"));
    }
    if arguments.is_null() && count > 0 {
        return Err(null("the list of arguments"));
    }
    let arguments = if arguments.is_null() {
        None
    } else {
        // SAFETY: not NULL, so as many structs, which live through the call (R10).
        Some(unsafe { std::slice::from_raw_parts(arguments, count) })
    };
    let offsets = arguments
        .map(|arguments| parameters(arguments, size, &mut shape.shared))
        .transpose()?;
    check_shape(
        kernel,
        &queue.open.devices[queue.device as usize].largest_block,
        &shape,
    )?;
    let label = given!(label, std::ptr::null());
    // SAFETY: as the header says, the label lives as long as the process.
    let label = unsafe { Label::new(label) };
    let block = (args.cast::<u8>(), size);
    let kept = || {
        let mut copy = vec![0; size];
        if size > 0 {
            // SAFETY: R10: not NULL, so as many bytes.
            unsafe { std::ptr::copy_nonoverlapping(block.0, copy.as_mut_ptr(), size) };
        }
        Launch {
            function: kernel.function,
            shape,
            block: copy,
            parameters: offsets.clone(),
        }
    };
    if queue.keeps(|| Ok(Recorded::Leaf(Leaf::Launch(Arc::new(kept())))))? {
        return Ok(());
    }
    queue.ordered.submit(
        label,
        // SAFETY: the block has so many bytes (R10), and `parameters` has checked what begins in it.
        |lane, _| unsafe { lane.launch(kernel.function, shape, block, offsets.as_deref()) },
        |_| Ok(Command::Launch(Box::new(kept()))),
    )
}

/// The offsets of parameters in the block. Local memory is no parameter in CUDA: it is the shared memory of the launch,
/// of which there is more then.
fn parameters(arguments: &[c::otr_argument], size: usize, shared: &mut u32) -> Result<Vec<u32>> {
    let mut offsets = Vec::with_capacity(arguments.len());
    for (number, argument) in arguments.iter().enumerate() {
        let bytes = match argument.kind {
            c::OTR_ARGUMENT_VALUE => argument.size,
            c::OTR_ARGUMENT_ADDRESS => 8,
            c::OTR_ARGUMENT_LOCAL => {
                // Each begins where any type may begin.
                let more = argument.size.checked_next_multiple_of(16);
                let sum = more.and_then(|more| shared.checked_add(more));
                let large =
                    || Fault::argument(format!("argument {number} is too much local memory"));
                *shared = sum.ok_or_else(large)?;
                continue;
            }
            kind => {
                let text = format!(
                    "argument {number} is of kind {kind}, which is unknown: they are 0 to 2"
                );
                return Err(Fault::argument(text));
            }
        };
        if u64::from(argument.offset) + u64::from(bytes) > size as u64 {
            return Err(Fault::argument(format!(
                "argument {number}, {bytes} bytes at {}, reaches beyond the {size} bytes of the block",
                argument.offset
            )));
        }
        offsets.push(argument.offset);
    }
    Ok(offsets)
}

fn check_shape(kernel: &Kernel, largest: &[u32; 3], shape: &Shape) -> Result {
    let Shape {
        grid,
        block,
        shared,
    } = shape;
    if grid.contains(&0) || block.contains(&0) {
        let text = format!("a grid of {grid:?} groups of {block:?} work-items has none");
        return Err(Fault::argument(text));
    }
    let sides = block.iter().map(|side| u64::from(*side));
    let items = sides.fold(1, u64::saturating_mul);
    let fits = block.iter().zip(largest).all(|(side, most)| side <= most);
    if !fits || items > u64::from(kernel.largest_group) {
        return Err(Fault::argument(format!(
            "groups of {block:?} work-items; this kernel takes {} in all, and the device {largest:?}",
            kernel.largest_group
        )));
    }
    if *shared > kernel.shared {
        return Err(Fault::argument(format!(
            "{shared} bytes of local memory; this kernel can have {}",
            kernel.shared
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parameters;
    use outrigger_contract as c;

    fn argument(offset: u32, size: u32, kind: u32) -> c::otr_argument {
        c::otr_argument { offset, size, kind }
    }

    #[test]
    fn parameters_lie_in_the_block_and_local_memory_does_not() {
        let list = [
            argument(0, 8, c::OTR_ARGUMENT_ADDRESS),
            argument(0, 20, c::OTR_ARGUMENT_LOCAL),
            argument(8, 4, c::OTR_ARGUMENT_VALUE),
            argument(0, 16, c::OTR_ARGUMENT_LOCAL),
        ];
        let mut shared = 4;
        assert_eq!(parameters(&list, 12, &mut shared).unwrap(), [0, 8]);
        assert_eq!(shared, 4 + 32 + 16);
        let mut refused = |list: &[_]| {
            let fault = parameters(list, 12, &mut shared).unwrap_err();
            assert_eq!(fault.code(), c::OTR_ERR_INVALID_ARGUMENT);
            fault.text().to_owned()
        };
        assert!(refused(&[argument(8, 5, c::OTR_ARGUMENT_VALUE)]).contains("beyond the 12"));
        assert!(refused(&[argument(5, 1, c::OTR_ARGUMENT_ADDRESS)]).contains("beyond"));
        assert!(refused(&[argument(u32::MAX, u32::MAX, c::OTR_ARGUMENT_VALUE)]).contains("beyond"));
        assert!(refused(&[argument(0, 1, 9)]).contains("kind 9"));
        assert!(refused(&[argument(0, u32::MAX, c::OTR_ARGUMENT_LOCAL)]).contains("too much"));
    }
}
