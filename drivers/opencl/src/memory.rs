//! Memory: allocations of shared virtual memory, whose addresses are numbers (R13), what is free of it, and host
//! memory that a device reaches fast.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::c_void;

use outrigger_contract as c;
use outrigger_driver_kit::given::Out;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::cl::{self, Cl};
use crate::device::{ALIGNMENT, Context, Device, create_queue};
use crate::driver::{Open, get};

/// # Safety
/// R8, R10.
pub(crate) unsafe fn alloc(
    handle: *mut c::otr_driver,
    device: u32,
    size: u64,
    place: *mut c::otr_address_t,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let of = open.device(device)?;
    let place = Out::new(place, "the place for the address")?;
    let address = open.allocations.alloc(device, size, || {
        // Coarse-grain memory is enough where the host never touches it.
        let fine = if of.visible {
            cl::CL_MEM_SVM_FINE_GRAIN_BUFFER
        } else {
            0
        };
        let flags = cl::CL_MEM_READ_WRITE | fine;
        // SAFETY: a live context whose devices have SVM; R29: NULL says that there is no memory.
        let memory =
            unsafe { (open.cl.clSVMAlloc)(of.context.raw, flags, size as usize, ALIGNMENT) };
        (!memory.is_null()).then_some(memory as u64)
    })?;
    place.give(address);
    Ok(())
}

/// # Safety
/// R8, R12: the work that uses the memory has finished.
pub(crate) unsafe fn free(handle: *mut c::otr_driver, address: c::otr_address_t) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    open.allocations.free(address, |device| {
        let context = open.devices[device as usize].context.raw;
        // SAFETY: `alloc` got it from this context, and R12: nothing uses it any more.
        unsafe { (open.cl.clSVMFree)(context, address as *mut c_void) };
    })
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn info(
    handle: *mut c::otr_driver,
    device: u32,
    free: *mut u64,
    total: *mut u64,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    open.device(device)?;
    let free = Out::new(free, "the place for the free bytes")?;
    let total = Out::new(total, "the place for the total bytes")?;
    let (left, all) = open.allocations.info(device);
    free.give(left);
    total.give(all);
    Ok(())
}

/// Host memory that was given out, by its address.
#[derive(Default)]
pub(crate) struct Pinned(Mutex<HashMap<usize, Kind>>);

enum Kind {
    /// Plain memory, which is all that a CPU can want.
    Plain(Layout),
    /// A buffer of OpenCL's in host memory, mapped as long as it lives.
    Mapped(cl::cl_mem, u32),
}

// SAFETY: OpenCL's buffers may be used by any thread.
unsafe impl Send for Kind {}

/// What pinned memory is aligned to: a page.
const PAGE: usize = 4096;

impl Pinned {
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn pinned_alloc(
    handle: *mut c::otr_driver,
    size: u64,
    place: *mut *mut c_void,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let place = Out::new(place, "the place for the pointer")?;
    if size == 0 {
        return Err(Fault::argument(
            "an allocation of 0 bytes; at least 1 is needed",
        ));
    }
    let other = (open.devices.iter()).position(|device| !device.is_cpu);
    let taken = match other {
        None => plain(size),
        Some(index) => mapped(open.cl, &open.devices[index], index as u32, size),
    };
    let (pointer, kind) = taken.ok_or_else(|| {
        Fault::host_memory(format!(
            "{size} bytes of pinned host memory are not to be had"
        ))
    })?;
    open.pinned.0.lock().insert(pointer as usize, kind);
    place.give(pointer);
    Ok(())
}

/// # Safety
/// R8, R12: the work that uses the memory has finished.
pub(crate) unsafe fn pinned_free(handle: *mut c::otr_driver, pointer: *mut c_void) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let Some(kind) = open.pinned.0.lock().remove(&(pointer as usize)) else {
        return Err(Fault::argument(format!(
            "{pointer:p} is not pinned memory of this driver, or was freed before"
        )));
    };
    give_back(open, pointer, kind)
}

fn give_back(open: &Open, pointer: *mut c_void, kind: Kind) -> Result {
    match kind {
        Kind::Plain(layout) => {
            // SAFETY: `plain` got it with this layout, and R12: nothing uses it any more.
            unsafe { std::alloc::dealloc(pointer.cast(), layout) };
            Ok(())
        }
        Kind::Mapped(buffer, device) => {
            let device = &open.devices[device as usize];
            let unmapped = with_queue(open.cl, device, |queue| {
                // SAFETY: `mapped` mapped this buffer there, and R12: nothing uses it any more.
                unsafe {
                    let (none, unmap) = (std::ptr::null(), open.cl.clEnqueueUnmapMemObject);
                    unmap(queue, buffer, pointer, 0, none, std::ptr::null_mut())
                }
            });
            // SAFETY: made by `mapped`; OpenCL keeps it until the unmapping is over.
            unsafe { (open.cl.clReleaseMemObject)(buffer) };
            unmapped.map_or(Ok(()), |status| {
                cl::check(status, "clEnqueueUnmapMemObject")
            })
        }
    }
}

fn plain(size: u64) -> Option<(*mut c_void, Kind)> {
    let size = usize::try_from(size).ok()?.checked_next_multiple_of(PAGE)?;
    let layout = Layout::from_size_align(size, PAGE).ok()?;
    // SAFETY: the size is not 0.
    let memory = unsafe { std::alloc::alloc(layout) };
    (!memory.is_null()).then_some((memory.cast(), Kind::Plain(layout)))
}

fn mapped(cl: &'static Cl, device: &Device, index: u32, size: u64) -> Option<(*mut c_void, Kind)> {
    let size = usize::try_from(size).ok()?;
    let flags = cl::CL_MEM_READ_WRITE | cl::CL_MEM_ALLOC_HOST_PTR;
    let mut status = cl::CL_SUCCESS;
    // SAFETY: a live context, and no memory of ours.
    let buffer = unsafe {
        let null = std::ptr::null_mut();
        (cl.clCreateBuffer)(device.context.raw, flags, size, null, &mut status)
    };
    if status != cl::CL_SUCCESS {
        return None;
    }
    let pointer = with_queue(cl, device, |queue| {
        let access = cl::CL_MAP_READ | cl::CL_MAP_WRITE;
        let (none, event) = (std::ptr::null(), std::ptr::null_mut());
        let (map, wait) = (cl.clEnqueueMapBuffer, cl::CL_TRUE);
        // SAFETY: a live queue and buffer of one context, and all of the buffer.
        unsafe {
            map(
                queue,
                buffer,
                wait,
                access,
                0,
                size,
                0,
                none,
                event,
                &mut status,
            )
        }
    });
    match pointer {
        Some(pointer) if status == cl::CL_SUCCESS && !pointer.is_null() => {
            Some((pointer, Kind::Mapped(buffer, index)))
        }
        _ => {
            // SAFETY: made above, and not mapped.
            unsafe { (cl.clReleaseMemObject)(buffer) };
            None
        }
    }
}

/// Does something on a queue of its own, and waits for it.
fn with_queue<T>(
    cl: &'static Cl,
    device: &Device,
    body: impl FnOnce(cl::cl_command_queue) -> T,
) -> Option<T> {
    let context: &Context = &device.context;
    let queue = create_queue(cl, device.id, context, false).ok()?;
    let result = body(queue);
    // SAFETY: made above, and released once it is idle.
    unsafe {
        (cl.clFinish)(queue);
        (cl.clReleaseCommandQueue)(queue);
    }
    Some(result)
}

#[cfg(test)]
mod tests {
    use super::{give_back, mapped};
    use crate::tests::opened;

    #[test]
    fn buffers_in_host_memory_are_mapped() {
        let Some(open) = opened("") else { return };
        let (pointer, kind) = mapped(open.cl, &open.devices[0], 0, 100_000).unwrap();
        // SAFETY: 100000 bytes of host memory, which nobody else uses.
        unsafe {
            pointer.cast::<u8>().write_bytes(7, 100_000);
            assert_eq!(pointer.cast::<u8>().add(99_999).read(), 7);
        }
        give_back(&open, pointer, kind).unwrap();
        assert!(mapped(open.cl, &open.devices[0], 0, 1 << 60).is_none());
    }
}
