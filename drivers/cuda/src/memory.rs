//! Memory: allocations of a device, what is free of it, and host memory that devices reach fast.

use std::ffi::c_void;

use outrigger_contract as c;
use outrigger_driver_kit::given::{Out, memory, null};
use outrigger_driver_kit::{Fault, Result};

use crate::cuda;
use crate::device::{ALIGNMENT, Device};
use crate::driver::get;
use crate::pinned::alloc_pinned;

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
    let _entered = of.enter()?;
    let mut other = None;
    let address = open.allocations.alloc(device, size, || {
        let mut address = 0;
        // SAFETY: a place for the address.
        let taken = unsafe { (of.cuda.memory_alloc)(&mut address, size as usize) };
        if taken != cuda::SUCCESS && taken != cuda::ERROR_OUT_OF_MEMORY {
            other = of.check(taken, "cuMemAlloc").err();
        }
        (taken == cuda::SUCCESS).then_some(address)
    });
    let address = address.map_err(|fault| match other {
        Some(other) => other,
        None if fault.code() == c::OTR_ERR_OUT_OF_MEMORY => no_room(of, size),
        None => fault,
    })?;
    place.give(address);
    Ok(())
}

/// The memory of a device is used up; its context is entered.
#[cold]
pub(crate) fn no_room(device: &Device, size: u64) -> Fault {
    let room = match info_of(device) {
        Ok((free, total)) => format!("{free} of {total} bytes are free"),
        Err(_) => "how many are free is not known".to_owned(),
    };
    Fault::new(
        c::OTR_ERR_OUT_OF_MEMORY,
        format!("{size} bytes are not to be had on {}: {room}", device.name),
    )
}

/// # Safety
/// R8, R12: the work that uses the memory has finished.
pub(crate) unsafe fn free(handle: *mut c::otr_driver, address: c::otr_address_t) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    open.allocations.free(address, |device| {
        let device = &open.devices[device as usize];
        // A context that is lost takes its memory along.
        if let Ok(_entered) = device.enter() {
            // SAFETY: `alloc` got it from this context, and R12: nothing uses it any more.
            unsafe { (device.cuda.memory_free)(address) };
        }
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
    let device = unsafe { get(handle)? }.device(device)?;
    let free = Out::new(free, "the place for the free bytes")?;
    let total = Out::new(total, "the place for the total bytes")?;
    let _entered = device.enter()?;
    let (left, all) = info_of(device)?;
    free.give(left);
    total.give(all);
    Ok(())
}

fn info_of(device: &Device) -> Result<(u64, u64)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: places for both numbers.
    let told = unsafe { (device.cuda.memory_info)(&mut free, &mut total) };
    device.check(told, "cuMemGetInfo")?;
    Ok((free as u64, total as u64))
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
    // Portable memory is pinned for all devices.
    let (index, device) = open.any_device()?;
    let _entered = device.enter()?;
    let pointer = alloc_pinned(device, size)?;
    open.pinned.add(pointer, size, false, index);
    place.give(pointer);
    Ok(())
}

/// # Safety
/// R8, R12: the work that uses the memory has finished.
pub(crate) unsafe fn pinned_free(handle: *mut c::otr_driver, pointer: *mut c_void) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let device = &open.devices[open.pinned.take(pointer, false)? as usize];
    if let Ok(_entered) = device.enter() {
        // SAFETY: `pinned_alloc` got it, and R12: nothing uses it any more.
        unsafe { (device.cuda.host_free)(pointer) };
    }
    Ok(())
}

/// # Safety
/// R8, R10: `size` bytes of the host's, which stay as long as they are pinned.
pub(crate) unsafe fn pin(handle: *mut c::otr_driver, pointer: *mut c_void, size: u64) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    if pointer.is_null() {
        return Err(null("the memory to be pinned"));
    }
    if size == 0 {
        return Err(Fault::argument(
            "0 bytes cannot be pinned; at least 1 is needed",
        ));
    }
    let (index, device) = open.any_device()?;
    let _entered = device.enter()?;
    // SAFETY: as many bytes of the host's.
    let pinned = unsafe {
        (device.cuda.host_register)(pointer, size as usize, cuda::HOST_REGISTER_PORTABLE)
    };
    match pinned {
        cuda::ERROR_HOST_MEMORY_ALREADY_REGISTERED => {
            return Err(Fault::argument(format!(
                "some of the {size} bytes at {pointer:p} are pinned already"
            )));
        }
        cuda::ERROR_OUT_OF_MEMORY => {
            return Err(Fault::host_memory(format!("{size} bytes cannot be pinned")));
        }
        status => device.check(status, "cuMemHostRegister")?,
    }
    open.pinned.add(pointer, size, true, index);
    Ok(())
}

/// # Safety
/// R8, R12: the work that uses the memory has finished.
pub(crate) unsafe fn unpin(handle: *mut c::otr_driver, pointer: *mut c_void) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let device = &open.devices[open.pinned.take(pointer, true)? as usize];
    if let Ok(_entered) = device.enter() {
        // SAFETY: `pin` has pinned it, and R12: no work uses it any more.
        unsafe { (device.cuda.host_unregister)(pointer) };
    }
    Ok(())
}
