//! The entries of the group `virtual_memory`. They check what can be checked cheaply (R7); which device
//! is meant follows from the address or the object, and the rest is the device's.

use super::driver::{Device, Host, give, writable};
use super::exports::Kind;
use super::fault::{Fault, done};
use super::mapping::{GRANULARITY, Mapping};
use crate::{Code, sys};

pub(super) unsafe extern "C" fn granularity(
    driver: *mut sys::otr_driver,
    device: u32,
    bytes: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        // SAFETY: the host's promise: NULL or writable.
        unsafe { give(bytes, GRANULARITY) }
    })
}

pub(super) unsafe extern "C" fn reserve(
    driver: *mut sys::otr_driver,
    device: u32,
    size: u64,
    alignment: u64,
    address: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let host = unsafe { Host::from_handle(driver)? };
        let mapping = host.device(device)?.memory.mapping();
        writable(address)?;
        let reserved = mapping.reserve(size, alignment)?;
        // SAFETY: not NULL, so writable.
        unsafe { give(address, reserved) }
    })
}

pub(super) unsafe extern "C" fn release(
    driver: *mut sys::otr_driver,
    address: u64,
    size: u64,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let host = unsafe { Host::from_handle(driver)? };
        at(&host, address)?.release(address, size)
    })
}

pub(super) unsafe extern "C" fn create(
    driver: *mut sys::otr_driver,
    device: u32,
    size: u64,
    physical: *mut *mut sys::otr_physical,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let host = unsafe { Host::from_handle(driver)? };
        let mapping = host.device(device)?.memory.mapping();
        writable(physical)?;
        let number = mapping.create(size)?;
        // SAFETY: not NULL, so writable.
        unsafe { give(physical, to_handle(number)) }
    })
}

pub(super) unsafe extern "C" fn destroy(
    driver: *mut sys::otr_driver,
    physical: *mut sys::otr_physical,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let host = unsafe { Host::from_handle(driver)? };
        let (device, number) = object(&host, physical)?;
        device.memory.mapping().destroy(number)?;
        host.exports.forget(Kind::Physical, number);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn map(
    driver: *mut sys::otr_driver,
    address: u64,
    physical: *const *mut sys::otr_physical,
    count: u32,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let host = unsafe { Host::from_handle(driver)? };
        if physical.is_null() || count == 0 {
            return Err(Fault::argument("no objects to map; at least 1 is needed"));
        }
        // SAFETY: not NULL, so `count` handles.
        let handles = unsafe { std::slice::from_raw_parts(physical, count as usize) };
        let mapping = at(&host, address)?;
        let numbers = handles
            .iter()
            .map(|&handle| {
                let (device, number) = object(&host, handle)?;
                if std::ptr::eq(device.memory.mapping(), mapping) {
                    Ok(number)
                } else {
                    Err(Fault::argument(format!(
                        "physical memory of device {} at {address:#x}, an address of another device",
                        device.index
                    )))
                }
            })
            .collect::<Result<Vec<u64>, Fault>>()?;
        mapping.map(address, &numbers)
    })
}

pub(super) unsafe extern "C" fn unmap(
    driver: *mut sys::otr_driver,
    address: u64,
    size: u64,
) -> i32 {
    done(|| {
        // SAFETY: the host's promise.
        let host = unsafe { Host::from_handle(driver)? };
        at(&host, address)?.unmap(address, size)
    })
}

/// The virtual memory that an address is of.
fn at(host: &Host, address: u64) -> Result<&Mapping, Fault> {
    host.devices
        .iter()
        .map(|device| device.memory.mapping())
        .find(|mapping| mapping.has_address(address))
        .ok_or_else(|| {
            Fault::argument(format!(
                "{address:#x} is in no reserved range of a device of this driver"
            ))
        })
}

/// The handle of an object: its number, which is never used as a pointer and never given out again.
pub(super) fn to_handle(number: u64) -> *mut sys::otr_physical {
    std::ptr::without_provenance_mut(number as usize)
}

/// The device and number of an object.
pub(super) fn object(host: &Host, handle: *mut sys::otr_physical) -> Result<(&Device, u64), Fault> {
    if handle.is_null() {
        return Err(Fault::null("the physical memory", Code::INVALID_HANDLE));
    }
    let number = handle.addr() as u64;
    let device = host
        .devices
        .iter()
        .find(|device| device.memory.mapping().has_object(number));
    match device {
        Some(device) => Ok((device, number)),
        None => Err(Fault::new(
            Code::INVALID_HANDLE,
            format!("{number:#x} is not physical memory of this driver, or was destroyed before"),
        )),
    }
}
