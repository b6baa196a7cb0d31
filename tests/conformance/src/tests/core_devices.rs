//! R1, R3, R4, R9 and R14: the number of devices, and the properties of each.

use std::ffi::CStr;
use std::mem::offset_of;
use std::ptr::null;

use outrigger_device::{Code, sys};

use super::kit::threads;
use super::raw::{Newer, Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Verdict};

tests! { "core.device":
    /// There is a device, and the number of devices does not change.
    the_count_stays: R7;
    /// Properties are the same each time and on each thread, for each device.
    properties_stay: R8 R9;
    /// Properties make sense: a name, a power of two of at least 64 as alignment, memory, priorities.
    properties_make_sense: R14;
    /// A place on the PCI bus and a node of memory are told with their flags alone, and make sense; so do kinds of memory.
    places_make_sense: R57;
    /// Limits make sense: no allocation is larger than the memory, no group smaller than a sub-group.
    limits_make_sense: R7;
    /// More than the largest allocation is out of memory.
    the_largest_allocation_is_the_largest: R29;
    /// A format of code is loaded only where the properties say so.
    code_formats_are_told: R4 R7;
    /// Two devices are told apart: where they have uuids, these differ.
    devices_are_told_apart: R13, needs TwoDevices;
    /// A driver writes no further than a host that knows only the size and the chain of properties.
    an_old_host_gets_nothing: R1, run |c| truncated(c, offset_of!(sys::otr_device_properties, name));
    /// A driver writes no further than a host that knows the name.
    an_old_host_gets_the_name: R1, run |c| truncated(c, offset_of!(sys::otr_device_properties, vendor));
    /// A driver writes no further than a host that knows properties up to the flags.
    an_old_host_gets_the_flags: R1, run |c| truncated(c, offset_of!(sys::otr_device_properties, total_memory));
    /// A driver writes no further than a host that knows all but the last field.
    an_old_host_gets_all_but_the_last: R1, run |c| truncated(c, offset_of!(sys::otr_device_properties, memory_bytes));
    /// A larger struct of a newer host is filled in as far as the driver knows it.
    a_newer_host_gets_what_is_known: R1;
    /// `struct_size` and `next` stay the host's, and unknown extensions are skipped.
    the_chain_stays: R1 R3;
    /// A call for a device that is not there writes nothing.
    a_refused_call_writes_nothing: R4;
    /// A device is named in each call: what one thread does on one does not move another to it.
    there_is_no_current_device: R9, needs TwoDevices;
}

fn empty() -> sys::otr_device_properties {
    // SAFETY: zero is valid for all fields.
    let mut properties: sys::otr_device_properties = unsafe { std::mem::zeroed() };
    properties.struct_size = size_of_val(&properties);
    properties
}

/// All bytes of a struct without padding that matters.
pub(super) fn bytes(properties: &sys::otr_device_properties) -> Vec<u8> {
    let size = size_of_val(properties);
    // SAFETY: made from zeroed memory, of which each byte is initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(properties).cast(), size) }.to_vec()
}

fn get(raw: &Raw, device: u32) -> Verdict<sys::otr_device_properties> {
    properties(raw.api(), raw.handle(), device)
}

/// The properties of a device of any open driver.
pub(super) fn properties(
    api: &sys::otr_driver_api,
    driver: *mut sys::otr_driver,
    device: u32,
) -> Verdict<sys::otr_device_properties> {
    let mut properties = empty();
    let answer = call!(api, device_properties, driver, device, &mut properties);
    answers!(answer, Code::OK, "device_properties of device {device}");
    Ok(properties)
}

fn the_count_stays(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut first = 0;
    raw.takes(
        call!(raw.api(), device_count, raw.handle(), &mut first),
        "device_count",
    )?;
    check!(first > 0, "there is a device");
    for _ in 0..10 {
        let mut count = 0x5555;
        raw.takes(
            call!(raw.api(), device_count, raw.handle(), &mut count),
            "device_count",
        )?;
        equal!(count, first, "the number of devices, asked again");
    }
    Ok(())
}

fn properties_stay(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let driver = raw.driver();
    for device in 0..driver.device_count() {
        let first = bytes(&get(&raw, device)?);
        threads(4, |_| {
            let raw = Raw::of(driver);
            for _ in 0..50 {
                equal!(
                    bytes(&get(&raw, device)?),
                    first,
                    "properties of device {device}"
                );
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn properties_make_sense(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    for device in 0..raw.driver().device_count() {
        let properties = get(&raw, device)?;
        for (what, field) in [
            ("name", &properties.name[..]),
            ("vendor", &properties.vendor[..]),
        ] {
            check!(field.contains(&0), "the {what} of device {device} ends");
            // SAFETY: it ends within the field.
            let text = unsafe { CStr::from_ptr(field.as_ptr()) }.to_str()?;
            check!(!text.is_empty(), "device {device} has a {what}");
        }
        let alignment = properties.address_alignment;
        check!(
            alignment.is_power_of_two() && alignment >= 64,
            "the alignment {alignment} of device {device}"
        );
        check!(properties.total_memory > 0, "device {device} has memory");
        let (lowest, highest) = (properties.priority_lowest, properties.priority_highest);
        check!(
            lowest >= highest,
            "a lower number is more urgent: lowest {lowest}, highest {highest}"
        );
        let known = sys::OTR_DEVICE_HOST_VISIBLE
            | sys::OTR_DEVICE_CPU
            | sys::OTR_DEVICE_PCI
            | sys::OTR_DEVICE_NUMA;
        check!(
            properties.flags & !known == 0,
            "flags of device {device}: {:#x}",
            properties.flags
        );
    }
    Ok(())
}

fn places_make_sense(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    for device in 0..raw.driver().device_count() {
        let one = get(&raw, device)?;
        let place = [
            one.pci_domain,
            one.pci_bus,
            one.pci_device,
            one.pci_function,
        ];
        if one.flags & sys::OTR_DEVICE_PCI == 0 {
            equal!(
                place,
                [0; 4],
                "the place of device {device}, without OTR_DEVICE_PCI"
            );
        } else {
            check!(
                place[1] < 256 && place[2] < 32 && place[3] < 8,
                "device {device} has a place as a bus has: {place:?}"
            );
        }
        if one.flags & sys::OTR_DEVICE_NUMA == 0 {
            equal!(
                one.numa_node,
                0,
                "the node of device {device}, without OTR_DEVICE_NUMA"
            );
        }
        equal!(one.reserved, 0, "`reserved` of device {device}");
        check!(
            [0, one.total_memory].contains(&one.memory_bytes[0]),
            "the memory of kind 0 of device {device} is {} bytes of {}",
            one.memory_bytes[0],
            one.total_memory
        );
    }
    Ok(())
}

fn limits_make_sense(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    for device in 0..raw.driver().device_count() {
        let one = get(&raw, device)?;
        check!(
            one.largest_allocation <= one.total_memory,
            "the largest allocation of device {device} is {} of {} bytes",
            one.largest_allocation,
            one.total_memory
        );
        check!(
            one.failure_scope <= sys::OTR_FAILURE_DEVICE,
            "the scope of a failure is {}",
            one.failure_scope
        );
        let group = one.largest_group;
        check!(
            one.largest_block.iter().all(|&items| items <= group),
            "a block of {:?} in a group of {group}",
            one.largest_block
        );
        check!(
            one.sub_group <= group,
            "a sub-group of {} in a group of {group}",
            one.sub_group
        );
    }
    Ok(())
}

fn the_largest_allocation_is_the_largest(context: &Context) -> Verdict {
    let driver = context.open()?;
    for device in 0..driver.device_count() {
        let properties = driver.properties(device)?;
        let most = match properties.largest_allocation {
            0 => properties.total_memory,
            bytes => bytes,
        };
        for size in [most + 1, most.saturating_mul(2), u64::MAX] {
            answers!(
                driver.memory_alloc(device, size),
                Code::OUT_OF_MEMORY,
                "{size} bytes of device {device}, whose largest allocation is {most}"
            );
        }
    }
    Ok(())
}

fn code_formats_are_told(context: &Context) -> Verdict {
    unsafe extern "C" fn nothing(_: *const std::ffi::c_void, _: u32, _: i64) -> i32 {
        Code::OK.0
    }
    let driver = context.open()?;
    for device in 0..driver.device_count() {
        let limits = driver.properties(device)?.limits;
        if driver.host_kernel(device, nothing)?.is_some() {
            check!(
                limits.takes(sys::OTR_CODE_HOST_FUNCTION),
                "device {device} takes host functions, and says so: {:#x}",
                limits.formats
            );
        }
        let others = sys::OTR_CODE_SPIRV..32;
        for format in others.filter(|&format| !limits.takes(format)) {
            answers!(
                driver.module_load(device, format, b"no code", None),
                Code::UNSUPPORTED,
                "code of format {format}, of {:#x}",
                limits.formats
            );
        }
    }
    Ok(())
}

fn devices_are_told_apart(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let all: Vec<_> = (0..raw.driver().device_count())
        .map(|device| Ok(get(&raw, device)?.uuid))
        .collect::<Verdict<_>>()?;
    for (device, uuid) in all.iter().enumerate().filter(|(_, uuid)| **uuid != [0; 16]) {
        let same = all.iter().filter(|other| *other == uuid).count();
        equal!(same, 1, "devices with the uuid of device {device}");
    }
    Ok(())
}

fn truncated(context: &Context, size: usize) -> Verdict {
    let raw = Raw::open(context)?;
    let whole = get(&raw, 0)?;
    let mut properties = empty();
    let total = size_of_val(&properties);
    // SAFETY: the bytes are the struct's own, and any value is valid for each field.
    unsafe {
        let tail = (&raw mut properties).cast::<u8>().add(size);
        tail.write_bytes(0xa5, total - size);
    }
    properties.struct_size = size;
    let answer = call!(
        raw.api(),
        device_properties,
        raw.handle(),
        0,
        &mut properties
    );
    raw.takes(answer, &format!("device_properties of {size} bytes"))?;
    equal!(properties.struct_size, size, "the host's struct_size");
    let (found, expected) = (bytes(&properties), bytes(&whole));
    let start = offset_of!(sys::otr_device_properties, name);
    equal!(
        found[start..size],
        expected[start..size],
        "what the host knows of"
    );
    equal!(
        found[size..],
        vec![0xa5; total - size],
        "what lies behind it"
    );
    Ok(())
}

fn a_newer_host_gets_what_is_known(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let whole = get(&raw, 0)?;
    let mut newer = Newer::new(empty());
    newer.known.struct_size = Newer::<sys::otr_device_properties>::SIZE;
    let answer = call!(
        raw.api(),
        device_properties,
        raw.handle(),
        0,
        &raw mut newer.known
    );
    raw.takes(answer, "device_properties of a larger struct")?;
    equal!(newer.known.total_memory, whole.total_memory, "total_memory");
    equal!(newer.known.name, whole.name, "the name");
    equal!(
        newer.known.struct_size,
        Newer::<sys::otr_device_properties>::SIZE,
        "the host's struct_size"
    );
    check!(
        newer.is_untouched(),
        "nothing is written that the driver does not know"
    );
    Ok(())
}

fn the_chain_stays(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let whole = get(&raw, 0)?;
    let mut properties = empty();
    let mut unknown = super::raw::unknown_extension(null());
    properties.next = &raw mut unknown;
    let answer = call!(
        raw.api(),
        device_properties,
        raw.handle(),
        0,
        &mut properties
    );
    raw.takes(answer, "device_properties with an unknown extension")?;
    check!(
        std::ptr::eq(properties.next, &raw const unknown),
        "`next` stays the host's"
    );
    equal!(
        properties.struct_size,
        size_of_val(&properties),
        "the host's struct_size"
    );
    equal!(unknown.type_, 0xffff_0001, "the type of the extension");
    equal!(
        properties.total_memory,
        whole.total_memory,
        "the rest is as ever"
    );
    Ok(())
}

fn a_refused_call_writes_nothing(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut properties = empty();
    let before = bytes(&properties);
    let device = raw.driver().device_count();
    let answer = call!(
        raw.api(),
        device_properties,
        raw.handle(),
        device,
        &mut properties
    );
    raw.refuses(
        answer,
        outrigger_device::Code::INVALID_DEVICE,
        "device_properties",
    )?;
    equal!(bytes(&properties), before, "the struct of a refused call");
    Ok(())
}

fn there_is_no_current_device(context: &Context) -> Verdict {
    let bench = super::kit::Bench::new(context)?;
    let before = super::kit::free(bench.driver())?;
    let memory = [bench.memory_on(0, 1 << 16)?, bench.memory_on(1, 1 << 16)?];
    threads(2, |thread| {
        let queue = bench.driver().queue_create(thread as u32, 0)?;
        for round in 0..200u32 {
            let value = (round as u8) ^ (thread as u8) << 7;
            super::kit::fill(&queue, memory[thread], 4096, &[value])?;
            super::kit::holds(
                &queue,
                memory[thread],
                4096,
                value,
                "memory of this thread's device",
            )?;
            // The other device, in between.
            bench
                .driver()
                .queue_create(1 - thread as u32, 0)?
                .synchronize()?;
        }
        Ok(())
    })?;
    if let (Some((was, _)), Some((is, _))) = (before[1], super::kit::free(bench.driver())?[1]) {
        check!(
            is <= was - (1 << 16),
            "the memory of device 1 was taken from device 1"
        );
    }
    bench.finish()
}
