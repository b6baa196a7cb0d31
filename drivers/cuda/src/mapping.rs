//! Virtual memory (R37 to R41): ranges of addresses, objects of memory, and which object is mapped where.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_contract as c;
use outrigger_driver_kit::given::{self, Out};
use outrigger_driver_kit::handle::{self, Object};
use outrigger_driver_kit::{Fault, Result};

use crate::cuda;
use crate::device::Device;
use crate::driver::{Open, get};
use crate::memory::no_room;
use crate::ranges::{Range, within};

/// The handle of memory without an address.
pub(crate) struct Physical {
    open: Arc<Open>,
    device: u32,
    raw: cuda::Physical,
    size: u64,
}

impl Object for Physical {
    type Raw = c::otr_physical;
    const KIND: u64 = 0x6375_6461_7068_7973;
    const NAME: &'static str = "the memory object";
}

/// A device that has virtual memory.
fn with_mapping(open: &Open, device: u32) -> Result<&Device> {
    let device = open.device(device)?;
    if device.granularity() == 0 {
        let text = format!("{} has no virtual memory", device.name);
        return Err(Fault::unsupported(text));
    }
    Ok(device)
}

/// A size or an address that the device cannot map by (R37).
fn check_multiple(device: &Device, what: &str, number: u64) -> Result {
    if number == 0 || !number.is_multiple_of(device.granularity()) {
        return Err(Fault::argument(format!(
            "{what}, {number:#x}, has to be a multiple of the granularity, {:#x}, and not 0",
            device.granularity()
        )));
    }
    Ok(())
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn granularity(
    handle: *mut c::otr_driver,
    device: u32,
    bytes: *mut u64,
) -> Result {
    // SAFETY: this function's contract.
    let device = with_mapping(unsafe { get(handle)? }, device)?;
    Out::new(bytes, "the place for the granularity")?.give(device.granularity());
    Ok(())
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn reserve(
    handle: *mut c::otr_driver,
    device: u32,
    params: *const c::otr_reserve_params,
    place: *mut c::otr_address_t,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let of = with_mapping(open, device)?;
    let place = Out::new(place, "the place for the address")?;
    // SAFETY: R1: NULL, or a struct of the size that stands in it.
    let params = unsafe { given::params(params, "the parameters of the range")? };
    no_flags(params.flags)?;
    let (size, alignment) = (params.size, params.alignment);
    check_multiple(of, "the size", size)?;
    if alignment != 0 {
        check_multiple(of, "the alignment", alignment)?;
        if !alignment.is_power_of_two() {
            return Err(Fault::argument(format!(
                "the alignment, {alignment:#x}, is no power of two"
            )));
        }
    }
    let _entered = of.enter()?;
    let mut address = 0;
    let align = alignment.max(of.granularity()) as usize;
    // SAFETY: a place for the address; CUDA chooses it.
    let reserved = unsafe { (of.cuda.reserve)(&mut address, size as usize, align, 0, 0) };
    if reserved == cuda::ERROR_OUT_OF_MEMORY {
        return Err(Fault::host_memory(format!(
            "{size} bytes of addresses are not to be had"
        )));
    }
    of.check(reserved, "cuMemAddressReserve")?;
    let range = Range {
        size,
        device,
        mapped: BTreeMap::new(),
    };
    open.mappings.ranges.write().insert(address, range);
    place.give(address);
    Ok(())
}

/// # Safety
/// R8, R12.
pub(crate) unsafe fn release(handle: *mut c::otr_driver, address: u64, size: u64) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let device = {
        let mut ranges = open.mappings.ranges.write();
        match ranges.get(&address) {
            Some(range) if range.size != size => {
                let text = format!(
                    "the range at {address:#x} has {} bytes, not {size}",
                    range.size
                );
                return Err(Fault::argument(text));
            }
            Some(range) if !range.mapped.is_empty() => {
                let text = format!(
                    "{} objects are mapped in the range at {address:#x}",
                    range.mapped.len()
                );
                return Err(Fault::new(c::OTR_ERR_BUSY, text));
            }
            Some(range) => {
                let device = range.device;
                ranges.remove(&address);
                device
            }
            None => {
                let text = format!("{address:#x} is not the beginning of a reserved range");
                return Err(Fault::argument(text));
            }
        }
    };
    let device = &open.devices[device as usize];
    if let Ok(_entered) = device.enter() {
        // SAFETY: `reserve` got it, and nothing is mapped in it.
        unsafe { (device.cuda.release_range)(address, size as usize) };
    }
    Ok(())
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn create(
    handle: *mut c::otr_driver,
    device: u32,
    params: *const c::otr_memory_params,
    place: *mut *mut c::otr_physical,
) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let of = with_mapping(open, device)?;
    let place = Out::new(place, "the place for the memory object")?;
    // SAFETY: R1: NULL, or a struct of the size that stands in it.
    let params = unsafe { given::memory(params, u64::MAX)? };
    if params.alignment != 0 {
        return Err(Fault::argument(format!(
            "an object with an alignment of {} bytes: it has no address to be aligned, so it is 0",
            params.alignment
        )));
    }
    let size = params.size;
    check_multiple(of, "the size", size)?;
    let _entered = of.enter()?;
    let (mut raw, properties) = (0, of.allocation_properties());
    // SAFETY: a place for the object, and a struct that lives through the call.
    let made = unsafe { (of.cuda.create)(&mut raw, size as usize, &properties, 0) };
    if made == cuda::ERROR_OUT_OF_MEMORY {
        return Err(no_room(of, size));
    }
    of.check(made, "cuMemCreate")?;
    of.live.objects.fetch_add(1, Ordering::Relaxed);
    place.give(handle::give(Physical {
        open: Arc::clone(open),
        device,
        raw,
        size,
    }));
    Ok(())
}

/// # Safety
/// R8.
pub(crate) unsafe fn destroy(handle: *mut c::otr_driver, physical: *mut c::otr_physical) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    // SAFETY: as above.
    unsafe { object(open, physical)? };
    // SAFETY: as above.
    let physical = unsafe { handle::take::<Physical>(physical)? };
    let device = &open.devices[physical.device as usize];
    if let Ok(_entered) = device.enter() {
        // SAFETY: made by `create`; what is mapped keeps its memory until it is unmapped (R38).
        unsafe { (device.cuda.release)(physical.raw) };
    }
    device.live.objects.fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

fn no_flags(flags: u32) -> Result {
    if flags == 0 {
        return Ok(());
    }
    Err(Fault::argument(format!(
        "flags {flags:#x} of virtual memory; none are known"
    )))
}

/// An object of this open driver.
///
/// # Safety
/// R8: the handle is NULL, or one of this driver's that no other call destroys.
unsafe fn object<'a>(open: &Arc<Open>, handle: *mut c::otr_physical) -> Result<&'a Physical> {
    // SAFETY: this function's contract.
    let physical = unsafe { handle::get::<Physical>(handle)? };
    if !Arc::ptr_eq(open, &physical.open) {
        return Err(Fault::handle("the memory object is of another open driver"));
    }
    Ok(physical)
}

/// # Safety
/// R8, R10.
pub(crate) unsafe fn map(handle: *mut c::otr_driver, params: *const c::otr_map_params) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    // SAFETY: R1: NULL, or a struct of the size that stands in it.
    let params = unsafe { given::params(params, "the parameters of the mapping")? };
    no_flags(params.flags)?;
    let (address, physical, count) = (params.address, params.physical, params.count);
    if physical.is_null() || count == 0 {
        return Err(Fault::argument(
            "no memory objects to be mapped; at least one is needed",
        ));
    }
    // SAFETY: R10: not NULL, so as many handles.
    let handles = unsafe { std::slice::from_raw_parts(physical, count as usize) };
    // SAFETY: R8, for each of them.
    let objects = handles.iter().map(|one| unsafe { object(open, *one) });
    let objects: Vec<&Physical> = objects.collect::<Result<_>>()?;
    let size = objects
        .iter()
        .try_fold(0_u64, |sum, one| sum.checked_add(one.size));
    let size = size
        .ok_or_else(|| Fault::argument("the objects have more bytes than there are addresses"))?;
    let places = || {
        objects.iter().scan(address, |at, one| {
            let place = *at;
            *at += one.size;
            Some((place, *one))
        })
    };
    let device = {
        let mut ranges = open.mappings.ranges.write();
        let range = within(&mut ranges, address, size)?;
        check_multiple(&open.devices[range.device as usize], "the address", address)?;
        if objects.iter().any(|one| one.device != range.device) {
            let text = format!(
                "the range is of device {}, and an object is not",
                range.device
            );
            return Err(Fault::argument(text));
        }
        let before = range.mapped.range(..address + size).next_back();
        if before.is_some_and(|(start, size)| start + size > address) {
            let text = format!("something is mapped in the {size} bytes at {address:#x} already");
            return Err(Fault::argument(text));
        }
        // Taken before the calls, so that nobody else takes it.
        range
            .mapped
            .extend(places().map(|(place, one)| (place, one.size)));
        &open.devices[range.device as usize]
    };
    map_all(device, address, size, places()).map_err(|(fault, stays)| {
        let mut ranges = open.mappings.ranges.write();
        if let Ok(range) = within(&mut ranges, address, size) {
            for (place, _) in places().filter(|(place, _)| *place >= address + stays) {
                range.mapped.remove(&place);
            }
        }
        fault
    })
}

/// Maps all of them or none. If CUDA refuses to undo a part, so many bytes stay mapped, which the error says (R4): whoever
/// unmaps them is served.
fn map_all<'a>(
    device: &Device,
    address: u64,
    size: u64,
    places: impl Iterator<Item = (u64, &'a Physical)>,
) -> Result<(), (Fault, u64)> {
    let _entered = device.enter().map_err(|fault| (fault, 0))?;
    let (cuda, mut done) = (device.cuda, 0);
    let mut result = Ok(());
    for (place, one) in places {
        // SAFETY: a place that nothing is mapped at, and a whole object of this size.
        let mapped = unsafe { (cuda.map)(place, one.size as usize, 0, one.raw, 0) };
        result = device.check(mapped, "cuMemMap");
        if result.is_err() {
            break;
        }
        done = place + one.size - address;
    }
    if result.is_ok() {
        let access = cuda::Access {
            location: device.location(),
            flags: cuda::ACCESS_READ_WRITE,
        };
        // SAFETY: all of the range is mapped now.
        let set = unsafe { (cuda.set_access)(address, size as usize, &access, 1) };
        result = device.check(set, "cuMemSetAccess");
    }
    let Err(fault) = result else {
        return Ok(());
    };
    if done == 0 {
        return Err((fault, 0));
    }
    // SAFETY: what was mapped above, which nobody uses yet.
    let undone = unsafe { (cuda.unmap)(address, done as usize) };
    match device.check(undone, "cuMemUnmap") {
        Ok(()) => Err((fault, 0)),
        Err(why) => {
            let text = format!(
                "{}; and the first {done} bytes stay mapped, unmap them: {}",
                fault.text(),
                why.text()
            );
            Err((Fault::new(fault.code(), text), done))
        }
    }
}

/// # Safety
/// R8, R40: the work that uses the range has finished.
pub(crate) unsafe fn unmap(handle: *mut c::otr_driver, address: u64, size: u64) -> Result {
    // SAFETY: this function's contract.
    let open = unsafe { get(handle)? };
    let (device, gone) = {
        let mut ranges = open.mappings.ranges.write();
        let range = within(&mut ranges, address, size)?;
        let mut at = address;
        while at < address + size
            && let Some(size) = range.mapped.get(&at)
        {
            at += size;
        }
        if size == 0 || at != address + size {
            return Err(Fault::argument(format!(
                "the {size} bytes at {address:#x} do not begin and end where mapped objects do, or have gaps"
            )));
        }
        // Gone before the call, so that no new work gets in.
        let mut gone = range.mapped.split_off(&address);
        range.mapped.append(&mut gone.split_off(&(address + size)));
        (&open.devices[range.device as usize], gone)
    };
    let unmapped = device.enter().and_then(|_entered| {
        // SAFETY: whole objects, and R40: nothing uses them any more.
        let unmapped = unsafe { (device.cuda.unmap)(address, size as usize) };
        device.check(unmapped, "cuMemUnmap")
    });
    if unmapped.is_err()
        && let Ok(range) = within(&mut open.mappings.ranges.write(), address, size)
    {
        range.mapped.extend(gone);
    }
    unmapped
}
