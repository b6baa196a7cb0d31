//! The entries of the group `ipc`: which memory or event is exported, and where an import goes in this
//! process. `exports` knows what a handle contains.

use super::driver::{Host, give, writable};
use super::event::{Event, event};
use super::exports::{Handle, Kind};
use super::fault::{Fault, done, params};
use super::mapping::GRANULARITY;
use super::virtual_memory::{object, to_handle};
use crate::{Code, sys};

pub(super) unsafe extern "C" fn memory_export(
    driver: *mut sys::otr_driver,
    base: u64,
    handle: *mut sys::otr_ipc_handle_t,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        unsafe { params(handle, "the place for the handle")? };
        for device in host.devices() {
            if let Some(part) = device.memory.part(base)? {
                let bytes = host.exports.export((Kind::Memory, base), &part)?;
                // SAFETY: not NULL, and as large as the type.
                unsafe { (*handle).bytes = bytes };
                return Ok(());
            }
        }
        Err(Fault::argument(format!(
            "{base:#x} is not an allocation of a device of this driver; what is mapped is exported by \
             its physical memory"
        )))
    })
}

pub(super) unsafe extern "C" fn memory_import(
    driver: *mut sys::otr_driver,
    device: u32,
    handle: *const sys::otr_ipc_handle_t,
    found: *mut sys::otr_imported,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let mapping = host.device(device)?.memory.mapping();
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        unsafe { params(found, "the place for what is imported")? };
        // SAFETY: NULL, or readable during the call (R10).
        let bytes = unsafe { read(handle)? };
        let part = host.exports.import(Kind::Memory, &bytes)?;
        let size = part.size;
        let address = mapping.import(part)?;
        // SAFETY: not NULL, and as large as the type.
        unsafe { ((*found).address, (*found).size) = (address, size) };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn memory_close(driver: *mut sys::otr_driver, base: u64) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let mut mappings = host.devices().map(|device| device.memory.mapping());
        match mappings.find(|mapping| mapping.has_address(base)) {
            Some(mapping) => mapping.close(base),
            None => Err(Fault::argument(format!(
                "{base:#x} is not an imported allocation of this driver"
            ))),
        }
    })
}

pub(super) unsafe extern "C" fn physical_export(
    driver: *mut sys::otr_driver,
    physical: *mut sys::otr_physical,
    handle: *mut sys::otr_ipc_handle_t,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let (device, number) = object(&host, physical)?;
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        unsafe { params(handle, "the place for the handle")? };
        let part = device.memory.mapping().part(number)?;
        let bytes = host.exports.export((Kind::Physical, number), &part)?;
        // SAFETY: not NULL, and as large as the type.
        unsafe { (*handle).bytes = bytes };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn physical_import(
    driver: *mut sys::otr_driver,
    device: u32,
    handle: *const sys::otr_ipc_handle_t,
    found: *mut sys::otr_imported,
    physical: *mut *mut sys::otr_physical,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let mapping = host.device(device)?.memory.mapping();
        writable(physical)?;
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        unsafe { params(found, "the place for what is imported")? };
        // SAFETY: NULL, or readable during the call (R10).
        let bytes = unsafe { read(handle)? };
        let part = host.exports.import(Kind::Physical, &bytes)?;
        if !part.size.is_multiple_of(GRANULARITY) || !part.offset.is_multiple_of(GRANULARITY) {
            return Err(Fault::new(
                Code::INVALID_HANDLE,
                format!(
                    "physical memory of {} bytes; the granularity is {GRANULARITY}",
                    part.size
                ),
            ));
        }
        let size = part.size;
        let number = mapping.adopt(part);
        // SAFETY: neither is NULL, and what was found is as large as its type.
        unsafe {
            ((*found).address, (*found).size) = (0, size);
            give(physical, to_handle(number))
        }
    })
}

pub(super) unsafe extern "C" fn event_export(
    handle: *mut sys::otr_drv_event,
    place: *mut sys::otr_ipc_handle_t,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses an event that the host destroys, so it is NULL or live.
        let event = unsafe { event(handle)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        unsafe { params(place, "the place for the handle")? };
        let bytes = event.export()?;
        // SAFETY: not NULL, and as large as the type.
        unsafe { (*place).bytes = bytes };
        Ok(())
    })
}

pub(super) unsafe extern "C" fn event_import(
    driver: *mut sys::otr_driver,
    handle: *const sys::otr_ipc_handle_t,
    place: *mut *mut sys::otr_drv_event,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        writable(place)?;
        // SAFETY: NULL, or readable during the call (R10).
        let bytes = unsafe { read(handle)? };
        let event = Event::import(&host, &bytes)?;
        // SAFETY: not NULL, so writable.
        unsafe { give(place, event.handle()) }
    })
}

/// The bytes of a handle.
///
/// # Safety
/// `handle` is NULL, or to a struct that begins with its size.
unsafe fn read(handle: *const sys::otr_ipc_handle_t) -> Result<Handle, Fault> {
    // SAFETY: this function's contract.
    Ok(unsafe { params(handle, "the handle")? }.bytes)
}
