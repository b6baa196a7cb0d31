//! Host kernels that tests launch.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::{Code, Kernel, Queue};

use crate::Verdict;

/// Adds a number to the counter at a host address; fails where the number is `u64::MAX`.
pub(super) unsafe extern "C" fn count(args: *const c_void, size: u32, _bias: i64) -> i32 {
    if size as usize != size_of::<[u64; 2]>() {
        return Code::INVALID_ARGUMENT.0;
    }
    // SAFETY: the block was made by `arguments`, of a counter that is never freed.
    unsafe {
        let [counter, step] = args.cast::<[u64; 2]>().read_unaligned();
        if step == u64::MAX {
            return Code::OUT_OF_RANGE.0;
        }
        (*(counter as *const AtomicU64)).fetch_add(step, Ordering::SeqCst);
    }
    Code::OK.0
}

/// The argument block of [`count`].
pub(super) fn arguments(counter: &'static AtomicU64, step: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(std::ptr::from_ref(counter) as u64).to_ne_bytes());
    bytes[8..].copy_from_slice(&step.to_ne_bytes());
    bytes
}

#[track_caller]
pub(super) fn launch_count(
    queue: &Queue,
    kernel: &Kernel,
    counter: &'static AtomicU64,
    step: u64,
) -> Verdict {
    launch_labelled(queue, kernel, counter, step, c"count")
}

#[track_caller]
pub(super) fn launch_labelled(
    queue: &Queue,
    kernel: &Kernel,
    counter: &'static AtomicU64,
    step: u64,
    label: &'static CStr,
) -> Verdict {
    // SAFETY: what the kernel expects.
    unsafe { queue.launch(kernel, &arguments(counter, step), 0, label) }?;
    Ok(())
}

/// A counter that lives as long as the process.
pub(super) fn counter() -> &'static AtomicU64 {
    Box::leak(Box::default())
}
