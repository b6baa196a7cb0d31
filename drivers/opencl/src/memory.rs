//! The entries for memory: allocations of shared virtual memory, whose addresses are numbers (R13), what is free of
//! it, and pinned host memory.

use std::ffi::c_void;

use outrigger_contract as c;
use outrigger_driver_kit::Result;
use outrigger_driver_kit::given::{Out, memory};

use crate::cl;
use crate::device::ALIGNMENT;
use crate::driver::get;

/// # Safety
/// R8, R10.
pub(crate) unsafe fn alloc(
    handle: *mut c::otr_driver,
    device: u32,
    params: *const c::otr_memory_params,
    place: *mut c::otr_address_t,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let of = open.device(device)?;
    let place = Out::new(place, "the place for the address")?;
    // SAFETY: R1: NULL, or a struct of the size that stands in it.
    let size = unsafe { memory(params, ALIGNMENT.into())? }.size;
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
            unsafe { (open.cl.clSVMAlloc)(of.context().raw, flags, size as usize, ALIGNMENT) };
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
        let context = open.devices[device as usize].context().raw;
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
    place.give(open.pinned.alloc(open.cl, &open.devices, size)?);
    Ok(())
}

/// # Safety
/// R8, R12: the work that uses the memory has finished.
pub(crate) unsafe fn pinned_free(handle: *mut c::otr_driver, pointer: *mut c_void) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    open.pinned.free(open.cl, &open.devices, pointer)
}
