//! The entries of the group `virtual_memory`. They make the cheap checks (R7), and find the device by
//! the address or the object; the device does the rest.

use super::driver::{Device, Host, give, memory_params, writable};
use super::exports::Kind;
use super::fault::{Fault, done, params};
use super::mapping::{GRANULARITY, Mapping};
use crate::{Code, sys};

pub(super) unsafe extern "C" fn granularity(
    driver: *mut sys::otr_driver,
    device: u32,
    bytes: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        host.device(device)?;
        // SAFETY: `give` refuses NULL (R7); the host makes any other place writable.
        unsafe { give(bytes, GRANULARITY) }
    })
}

pub(super) unsafe extern "C" fn reserve(
    driver: *mut sys::otr_driver,
    device: u32,
    range: *const sys::otr_reserve_params,
    address: *mut u64,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let mapping = host.device(device)?.memory.mapping();
        writable(address)?;
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let range = unsafe { params(range, "the parameters of the range")? };
        no_flags(range.flags)?;
        let reserved = mapping.reserve(range.size, range.alignment)?;
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
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        at(&host, address)?.release(address, size)
    })
}

pub(super) unsafe extern "C" fn create(
    driver: *mut sys::otr_driver,
    device: u32,
    object: *const sys::otr_memory_params,
    physical: *mut *mut sys::otr_physical,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let mapping = host.device(device)?.memory.mapping();
        writable(physical)?;
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let object = unsafe { memory_params(object, 0)? };
        if object.alignment != 0 {
            return Err(Fault::argument(format!(
                "an object with an alignment of {} bytes: it has no address to be aligned, so it is 0",
                object.alignment
            )));
        }
        let number = mapping.create(object.size)?;
        // SAFETY: not NULL, so writable.
        unsafe { give(physical, to_handle(number)) }
    })
}

pub(super) unsafe extern "C" fn destroy(
    driver: *mut sys::otr_driver,
    physical: *mut sys::otr_physical,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        let (device, number) = object(&host, physical)?;
        device.memory.mapping().destroy(number)?;
        host.exports.forget(Kind::Physical, number);
        Ok(())
    })
}

pub(super) unsafe extern "C" fn map(
    driver: *mut sys::otr_driver,
    objects: *const sys::otr_map_params,
) -> i32 {
    done(|| {
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        // SAFETY: R1: NULL, or a struct of the size that stands in it.
        let objects = unsafe { params(objects, "the parameters of the mapping")? };
        no_flags(objects.flags)?;
        let (address, physical, count) = (objects.address, objects.physical, objects.count);
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
        // SAFETY: R8: no call uses a driver that the host closes, so it is NULL or open.
        let host = unsafe { Host::from_handle(driver)? };
        at(&host, address)?.unmap(address, size)
    })
}

fn no_flags(flags: u32) -> Result<(), Fault> {
    if flags == 0 {
        return Ok(());
    }
    Err(Fault::argument(format!(
        "flags {flags:#x} of virtual memory; none are known"
    )))
}

/// The virtual memory that an address is of.
fn at(host: &Host, address: u64) -> Result<&Mapping, Fault> {
    host.devices()
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
        .devices()
        .find(|device| device.memory.mapping().has_object(number));
    match device {
        Some(device) => Ok((device, number)),
        None => Err(Fault::new(
            Code::INVALID_HANDLE,
            format!("{number:#x} is not physical memory of this driver, or was destroyed before"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::ptr::{null, null_mut};

    use super::super::driver::{close, device_open, memory_info, open};
    use super::super::ipc::{
        memory_close, memory_export, memory_import, physical_export, physical_import,
    };
    use super::*;
    use crate::params as plain;

    fn opened() -> *mut sys::otr_driver {
        let params = sys::otr_open_params {
            struct_size: size_of::<sys::otr_open_params>(),
            next: null(),
            options: c"devices=1,memory=64M".as_ptr(),
        };
        let mut driver = null_mut();
        // SAFETY: both pointers are valid through the call.
        assert_eq!(unsafe { open(&params, &mut driver) }, Code::OK.0);
        // SAFETY: the driver is open.
        assert_eq!(unsafe { device_open(driver, 0, null()) }, Code::OK.0);
        driver
    }

    #[test]
    fn null_and_foreign_handles_are_refused_and_leave_nothing_behind() {
        let (driver, none) = (opened(), null_mut());
        let foreign = to_handle(0x1234);
        let (mut number, mut object) = (77, to_handle(77));
        let (range, memory) = (&plain::reserve(GRANULARITY, 0), &plain::memory(GRANULARITY));
        let mapping = |address, object: *const _| plain::map(address, object, 1);
        let mut found = plain::imported();
        let mut handle = plain::ipc_handle([7; 64]);
        // SAFETY: every pointer is NULL or valid through its call; the foreign handle is never followed.
        unsafe {
            for (name, code) in [
                ("granularity", granularity(none, 0, &mut number)),
                ("reserve", reserve(none, 0, range, &mut number)),
                ("release", release(none, GRANULARITY, GRANULARITY)),
                ("create", create(none, 0, memory, &mut object)),
                ("destroy", destroy(none, foreign)),
                ("destroy NULL", destroy(driver, null_mut())),
                ("destroy a foreign one", destroy(driver, foreign)),
                ("map", map(none, &mapping(GRANULARITY, &foreign))),
                ("unmap", unmap(none, GRANULARITY, GRANULARITY)),
                ("memory_export", memory_export(none, 64, &mut handle)),
                ("memory_import", memory_import(none, 0, &handle, &mut found)),
                ("memory_close", memory_close(none, 64)),
                (
                    "physical_export",
                    physical_export(none, foreign, &mut handle),
                ),
                (
                    "export a foreign one",
                    physical_export(driver, foreign, &mut handle),
                ),
                (
                    "physical_import",
                    physical_import(none, 0, &handle, &mut found, &mut object),
                ),
                (
                    "import of no handle",
                    memory_import(driver, 0, &handle, &mut found),
                ),
            ] {
                assert_eq!(Code(code), Code::INVALID_HANDLE, "{name}");
            }
            for (name, code) in [
                ("granularity", granularity(driver, 0, null_mut())),
                ("reserve", reserve(driver, 0, range, null_mut())),
                ("create", create(driver, 0, memory, null_mut())),
                ("map of no list", map(driver, &mapping(GRANULARITY, null()))),
                ("memory_export", memory_export(driver, 64, null_mut())),
                (
                    "memory_import",
                    memory_import(driver, 0, null(), &mut found),
                ),
                (
                    "memory_import",
                    memory_import(driver, 0, &handle, null_mut()),
                ),
                ("memory_close", memory_close(driver, 64)),
                (
                    "physical_import",
                    physical_import(driver, 0, null(), &mut found, &mut object),
                ),
                (
                    "physical_import without a place",
                    physical_import(driver, 0, &handle, null_mut(), &mut object),
                ),
                (
                    "reserve of nothing",
                    reserve(driver, 0, null(), &mut number),
                ),
                ("create of nothing", create(driver, 0, null(), &mut object)),
                ("map of nothing", map(driver, null())),
            ] {
                assert_eq!(Code(code), Code::INVALID_ARGUMENT, "{name}");
            }
            assert_eq!((number, object, handle.bytes), (77, to_handle(77), [7; 64]));
            assert_eq!((found.address, found.size), (0, 0));
            let (mut free, mut total) = (0, 0);
            assert_eq!(memory_info(driver, 0, &mut free, &mut total), Code::OK.0);
            assert_eq!(free, total);
            // A map with NULL among its objects.
            assert_eq!(reserve(driver, 0, range, &mut number), Code::OK.0);
            assert_eq!(
                map(driver, &mapping(number, &null_mut())),
                Code::INVALID_HANDLE.0
            );
            // What is left stands in the way of closing.
            assert_eq!(close(driver), Code::BUSY.0);
            assert_eq!(release(driver, number, GRANULARITY), Code::OK.0);
            assert_eq!(create(driver, 0, memory, &mut object), Code::OK.0);
            assert_eq!(close(driver), Code::BUSY.0);
            assert_eq!(destroy(driver, object), Code::OK.0);
            assert_eq!(close(driver), Code::OK.0);
        }
    }
}
