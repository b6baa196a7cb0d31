//! Host memory that devices reach fast: where it comes from, and what was given out. Handles are not known here.

use std::alloc::Layout;
use std::collections::HashMap;
use std::ffi::c_void;

use outrigger_contract as c;
use outrigger_driver_kit::{Fault, Result};
use parking_lot::Mutex;

use crate::cl::{self, Cl};
use crate::device::{Device, create_queue};

/// Host memory that was given out, by its address.
#[derive(Default)]
pub(crate) struct Pinned(Mutex<HashMap<usize, Kind>>);

enum Kind {
    /// Plain memory, which is all that a CPU can want.
    Plain(Layout),
    /// A buffer of OpenCL's in host memory, mapped as long as it lives.
    Mapped(cl::cl_mem, usize),
}

// SAFETY: OpenCL's buffers may be used by any thread.
unsafe impl Send for Kind {}

/// The alignment of pinned memory: a page.
const PAGE: usize = 4096;

impl Pinned {
    /// The number of live allocations.
    pub(crate) fn count(&self) -> usize {
        self.0.lock().len()
    }

    /// Memory that the devices reach fast.
    pub(crate) fn alloc(
        &self,
        cl: &'static Cl,
        devices: &[Device],
        size: u64,
    ) -> Result<*mut c_void> {
        if size == 0 {
            return Err(Fault::argument(
                "an allocation of 0 bytes; at least 1 is needed",
            ));
        }
        let taken = if devices.iter().all(|device| device.is_cpu) {
            plain(size)
        } else {
            let other = |device: &Device| !device.is_cpu && device.is_open();
            let index = devices.iter().position(other);
            let index = index.ok_or_else(|| {
                Fault::new(
                    c::OTR_ERR_INVALID_DEVICE,
                    "no device that is not the CPU is open: device_open comes first",
                )
            })?;
            mapped(cl, &devices[index], index, size)
        };
        let (pointer, kind) = taken.ok_or_else(|| {
            Fault::host_memory(format!(
                "{size} bytes of pinned host memory are not to be had"
            ))
        })?;
        self.0.lock().insert(pointer as usize, kind);
        Ok(pointer)
    }

    /// Gives memory back, that no work uses any more (R12).
    pub(crate) fn free(&self, cl: &'static Cl, devices: &[Device], pointer: *mut c_void) -> Result {
        let Some(kind) = self.0.lock().remove(&(pointer as usize)) else {
            return Err(Fault::argument(format!(
                "{pointer:p} is not pinned memory of this driver, or was freed before"
            )));
        };
        match kind {
            Kind::Plain(layout) => {
                // SAFETY: `plain` got it with this layout, and R12: nothing uses it any more.
                unsafe { std::alloc::dealloc(pointer.cast(), layout) };
                Ok(())
            }
            Kind::Mapped(buffer, device) => unmap(cl, &devices[device], buffer, pointer),
        }
    }
}

fn unmap(cl: &'static Cl, device: &Device, buffer: cl::cl_mem, pointer: *mut c_void) -> Result {
    let unmapped = with_queue(cl, device, |queue| {
        // SAFETY: `mapped` mapped this buffer there, and R12: nothing uses it any more.
        unsafe {
            let (none, unmap) = (std::ptr::null(), cl.clEnqueueUnmapMemObject);
            unmap(queue, buffer, pointer, 0, none, std::ptr::null_mut())
        }
    });
    // SAFETY: made by `mapped`; OpenCL keeps it until the unmapping is over.
    unsafe { (cl.clReleaseMemObject)(buffer) };
    unmapped.map_or(Ok(()), |status| {
        cl::check(status, "clEnqueueUnmapMemObject")
    })
}

fn plain(size: u64) -> Option<(*mut c_void, Kind)> {
    let size = usize::try_from(size).ok()?.checked_next_multiple_of(PAGE)?;
    let layout = Layout::from_size_align(size, PAGE).ok()?;
    // SAFETY: the size is not 0.
    let memory = unsafe { std::alloc::alloc(layout) };
    (!memory.is_null()).then_some((memory.cast(), Kind::Plain(layout)))
}

fn mapped(
    cl: &'static Cl,
    device: &Device,
    index: usize,
    size: u64,
) -> Option<(*mut c_void, Kind)> {
    let size = usize::try_from(size).ok()?;
    let flags = cl::CL_MEM_READ_WRITE | cl::CL_MEM_ALLOC_HOST_PTR;
    let mut status = cl::CL_SUCCESS;
    // SAFETY: a live context, and no memory of ours.
    let buffer = unsafe {
        let null = std::ptr::null_mut();
        (cl.clCreateBuffer)(device.context().raw, flags, size, null, &mut status)
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
    let queue = create_queue(cl, device.id, device.context(), false).ok()?;
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
    use super::{mapped, unmap};
    use crate::tests::opened;

    #[test]
    fn buffers_in_host_memory_are_mapped() {
        let Some(open) = opened("") else { return };
        let device = &open.devices[0];
        let (pointer, kind) = mapped(open.cl, device, 0, 100_000).unwrap();
        // SAFETY: 100000 bytes of host memory, which nobody else uses.
        unsafe {
            pointer.cast::<u8>().write_bytes(7, 100_000);
            assert_eq!(pointer.cast::<u8>().add(99_999).read(), 7);
        }
        let super::Kind::Mapped(buffer, 0) = kind else {
            panic!("it is a buffer of device 0");
        };
        unmap(open.cl, device, buffer, pointer).unwrap();
        assert!(mapped(open.cl, device, 0, 1 << 60).is_none());
    }
}
