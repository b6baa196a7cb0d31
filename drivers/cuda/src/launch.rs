//! Launches: how a kernel and its arguments are put into a stream.

use std::ffi::c_void;

use outrigger_driver_kit::Result;

use crate::cuda;
use crate::device::Device;

/// A kernel of a loaded module.
#[derive(Clone, Copy)]
pub(crate) struct Function(pub(crate) cuda::Function);

// SAFETY: CUDA's functions may be used by any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// A launch that is kept, with a copy of its arguments.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) function: Function,
    pub(crate) shape: Shape,
    pub(crate) block: Vec<u8>,
    /// The offsets of the parameters in the block, in their order; `None`: the block is laid out as the kernel has
    /// them.
    pub(crate) parameters: Option<Vec<u32>>,
}

/// The grid and the groups of a launch, and the shared memory of a group.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
}

/// More parameters than kernels have are put on the heap.
const FEW: usize = 64;

impl Launch {
    /// The context of the device is entered.
    pub(crate) fn issue(&self, device: &Device, stream: cuda::Stream) -> Result {
        let offsets = self.parameters.as_deref();
        let block = (self.block.as_ptr(), self.block.len());
        // SAFETY: the offsets were checked against the block when this was made.
        unsafe { launch_now(device, stream, self.function, self.shape, block, offsets) }
    }
}

/// Puts a launch into a stream, whose context is entered.
///
/// # Safety
/// The stream is live. The block has so many bytes, and all parameters begin and end within it; memory that they name is live (R7).
pub(crate) unsafe fn launch_now(
    device: &Device,
    stream: cuda::Stream,
    function: Function,
    shape: Shape,
    block: (*const u8, usize),
    offsets: Option<&[u32]>,
) -> Result {
    let ([x, y, z], [a, b, d]) = (shape.grid, shape.block);
    let put = |parameters, extra| {
        // SAFETY: a live function and stream; the parameters are read before the call returns (R30).
        let launched = unsafe {
            (device.cuda.launch)(
                function.0,
                x,
                y,
                z,
                a,
                b,
                d,
                shape.shared,
                stream,
                parameters,
                extra,
            )
        };
        device.check(launched, "cuLaunchKernel")
    };
    // SAFETY: this function's contract.
    unsafe { with_arguments(block, offsets, put) }
}

/// Calls a function with the arguments of a kernel as CUDA takes them: as places of parameters, or as a block. One of the
/// two is NULL, and both are without parameters.
///
/// # Safety
/// The block has so many bytes, and all parameters begin within it.
pub(crate) unsafe fn with_arguments<R>(
    (block, mut size): (*const u8, usize),
    offsets: Option<&[u32]>,
    call: impl FnOnce(*mut *mut c_void, *mut *mut c_void) -> R,
) -> R {
    let none = std::ptr::null_mut();
    let mut extra = [
        cuda::LAUNCH_PARAM_BUFFER_POINTER,
        block.cast_mut().cast::<c_void>(),
        cuda::LAUNCH_PARAM_BUFFER_SIZE,
        std::ptr::from_mut(&mut size).cast(),
        cuda::LAUNCH_PARAM_END,
    ];
    let (mut few, mut many) = ([none; FEW], Vec::new());
    let (parameters, extra) = match offsets {
        None if size == 0 => (std::ptr::null_mut(), std::ptr::null_mut()),
        None => (std::ptr::null_mut(), extra.as_mut_ptr()),
        Some(offsets) => {
            let places = if offsets.len() <= FEW {
                &mut few[..offsets.len()]
            } else {
                many.resize(offsets.len(), none);
                &mut many[..]
            };
            for (place, offset) in places.iter_mut().zip(offsets) {
                // SAFETY: within the block.
                *place = unsafe { block.add(*offset as usize) }.cast_mut().cast();
            }
            (places.as_mut_ptr(), std::ptr::null_mut())
        }
    };
    call(parameters, extra)
}
