//! R57 and R58: devices are found by `open`, and opened one by one.

use std::ptr::{null, null_mut};

use outrigger_device::{Code, params, sys};

use super::core_devices::{bytes, properties};
use super::kit::threads;
use super::raw::{Bare, Newer, Raw, call, unknown_extension};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Verdict};

tests! { "core.opening":
    /// Properties are there before a device is open, and stay the same, but for the priorities.
    properties_come_first: R57;
    /// The names of operators are there before a device is open, and stay the same.
    names_come_first: R57 R45, needs Operators;
    /// A call for a device that is not open is refused, writes nothing, and says why.
    a_closed_device_is_refused: R57 R4;
    /// Opening a device that is open does nothing, and one close is enough.
    opened_again: R58;
    /// Threads may open a device at a time.
    by_many_threads: R58 R8;
    /// A device that was closed is refused, and works once it was opened again.
    closed_and_opened_again: R57 R58;
    /// To close a device that is not open is an invalid device.
    a_closed_device_is_not_closed: R57 R7;
    /// Opening one device leaves the others closed.
    one_alone: R58, needs TwoDevices;
    /// Closing one device leaves the others open.
    the_others_stay_open: R58, needs TwoDevices;
    /// `close` closes devices that are open.
    close_closes_devices: R58 R12;
    /// Larger parameters of a newer host are taken, and so are unknown extensions.
    newer_parameters_are_taken: R1 R3;
    /// Bytes behind the `struct_size` of the parameters are not read.
    smaller_parameters_are_taken: R1;
    /// A flag that is not known is refused, and the device stays closed.
    flags_are_refused: R4 R7;
    /// `device_open` without a driver is an invalid handle, and so is `device_close`.
    no_driver: R7;
    /// A device behind the last is an invalid device.
    no_device: R7;
}

/// A driver that was opened beside the one under test: its devices are closed.
fn closed<'a>(context: &Context, raw: &'a Raw) -> Verdict<Bare<'a>> {
    Bare::closed(context, raw)
}

/// A queue of a device, or why there is none.
fn queue_on(bare: &Bare<'_>, device: u32) -> Verdict<Result<*mut sys::otr_queue, i32>> {
    let mut queue = null_mut();
    let answer = call!(
        bare.api(),
        queue_create,
        bare.handle,
        device,
        null(),
        &mut queue
    );
    Ok(if answer == Code::OK.0 {
        Ok(queue)
    } else {
        Err(answer)
    })
}

/// A device is open: a queue of it works.
#[track_caller]
fn works(bare: &Bare<'_>, device: u32, what: &str) -> Verdict {
    match queue_on(bare, device)? {
        Ok(queue) => {
            bare.raw.synchronize(queue)?;
            bare.raw.destroy(queue, null_mut())
        }
        Err(answer) => {
            let text = bare.raw.text()?;
            Err(crate::Failure::new(format!(
                "{what}: queue_create of device {device} answers {:?} (`{text}`)",
                Code(answer)
            )))
        }
    }
}

/// A device is not open, which the text says.
#[track_caller]
fn is_closed(bare: &Bare<'_>, device: u32, what: &str) -> Verdict {
    let answer = queue_on(bare, device)?;
    let code = answer.map_or_else(Code, |_| Code::OK);
    equal!(
        code,
        Code::INVALID_DEVICE,
        "{what}: queue_create of device {device}"
    );
    let text = bare.raw.text()?;
    check!(
        text.contains("open"),
        "{what}: the text says that it is not open: {text:?}"
    );
    Ok(())
}

#[track_caller]
fn open(bare: &Bare<'_>, device: u32) -> Verdict {
    let answer = call!(bare.api(), device_open, bare.handle, device, null());
    bare.raw
        .takes(answer, &format!("device_open of device {device}"))
}

#[track_caller]
fn close(bare: &Bare<'_>, device: u32) -> Verdict {
    let answer = call!(bare.api(), device_close, bare.handle, device);
    bare.raw
        .takes(answer, &format!("device_close of device {device}"))
}

fn properties_come_first(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    let without_priorities = |mut all: sys::otr_device_properties| {
        (all.priority_lowest, all.priority_highest) = (0, 0);
        bytes(&all)
    };
    let count = raw.driver().device_count();
    for device in 0..count {
        let before = properties(bare.api(), bare.handle, device)?;
        check!(
            before.name[0] != 0 && before.total_memory > 0,
            "device {device} says what it is"
        );
        let kept = without_priorities(before);
        equal!(
            without_priorities(properties(raw.api(), raw.handle(), device)?),
            kept,
            "properties of device {device}, which is open, against those of one that is not"
        );
        open(&bare, device)?;
        equal!(
            without_priorities(properties(bare.api(), bare.handle, device)?),
            kept,
            "properties of device {device} once it is open"
        );
        close(&bare, device)?;
    }
    bare.close("close")
}

fn names_come_first(context: &Context) -> Verdict {
    let driver = context.open()?;
    let Some(operators) = driver.operators() else {
        return Err(crate::Failure::new("the driver has operators"));
    };
    let names = operators.names(0)?;
    driver.close_device(0)?;
    equal!(
        operators.names(0)?,
        names,
        "names of a device that is not open"
    );
    check!(!driver.is_open(0), "to ask for them opens nothing");
    Ok(())
}

fn a_closed_device_is_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    let refused = |answer: i32, what: &str| {
        raw.refuses(answer, Code::INVALID_DEVICE, what)?;
        let text = raw.text()?;
        check!(
            text.contains("open"),
            "the text of {what} says that the device is not open: {text:?}"
        );
        Ok(())
    };
    is_closed(&bare, 0, "before device_open")?;
    let mut address = 0x5a5a;
    let answer = call!(
        bare.api(),
        memory_alloc,
        bare.handle,
        0,
        &params::memory(64),
        &mut address
    );
    refused(answer, "memory_alloc")?;
    let marker = std::ptr::without_provenance_mut(0x5a5a);
    let mut event = marker;
    let answer = call!(bare.api(), event_create, bare.handle, 0, null(), &mut event);
    refused(answer, "event_create")?;
    let (mut free, mut total) = (0x5a5a, 0x5a5a);
    if let Some(group) = raw.driver().as_raw().memory_info() {
        refused(
            call!(group, info, bare.handle, 0, &mut free, &mut total),
            "info",
        )?;
    }
    let mut time = 0x5a5a;
    if let Some(group) = raw.driver().as_raw().timing() {
        refused(
            call!(group, device_time, bare.handle, 0, &mut time),
            "device_time",
        )?;
    }
    let mut granularity = 0x5a5a;
    if let Some(group) = raw.driver().as_raw().virtual_memory() {
        refused(
            call!(group, granularity, bare.handle, 0, &mut granularity),
            "granularity",
        )?;
    }
    equal!(
        [address, free, total, time, granularity],
        [0x5a5a; 5],
        "R4: what refused calls were to write"
    );
    check!(event == marker, "R4: no event was written");
    open(&bare, 0)?;
    works(&bare, 0, "after device_open")?;
    bare.close("close")
}

fn opened_again(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    for _ in 0..3 {
        open(&bare, 0)?;
        works(&bare, 0, "opened")?;
    }
    close(&bare, 0)?;
    is_closed(&bare, 0, "after one device_close")?;
    bare.close("close")
}

fn by_many_threads(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let driver = raw.driver();
    for _ in 0..20 {
        let bare = closed(context, &raw)?;
        let handle = bare.handle.expose_provenance();
        threads(4, |_| {
            let raw = Raw::of(driver);
            let same = Bare {
                raw: &raw,
                handle: std::ptr::with_exposed_provenance_mut(handle),
            };
            open(&same, 0)?;
            works(&same, 0, "opened by several threads")
        })?;
        close(&bare, 0)?;
        is_closed(&bare, 0, "after one device_close")?;
        bare.close("close")?;
    }
    Ok(())
}

fn closed_and_opened_again(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    for _ in 0..5 {
        open(&bare, 0)?;
        let mut address = 0;
        let answer = call!(
            bare.api(),
            memory_alloc,
            bare.handle,
            0,
            &params::memory(4096),
            &mut address
        );
        raw.takes(answer, "memory_alloc")?;
        let Ok(queue) = queue_on(&bare, 0)? else {
            return Err(crate::Failure::new("an open device has a queue"));
        };
        let pattern = [7u8];
        let fill = params::fill(address, 4096, pattern.as_ptr().cast(), 1);
        let answer = call!(bare.api(), fill, queue, &fill);
        raw.takes(answer, "fill")?;
        raw.synchronize(queue)?;
        raw.destroy(queue, null_mut())?;
        raw.takes(
            call!(bare.api(), memory_free, bare.handle, address),
            "memory_free",
        )?;
        close(&bare, 0)?;
        is_closed(&bare, 0, "after device_close")?;
    }
    bare.close("close")
}

fn a_closed_device_is_not_closed(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    let refused = || {
        let answer = call!(bare.api(), device_close, bare.handle, 0);
        raw.refuses(
            answer,
            Code::INVALID_DEVICE,
            "device_close of a device that is not open",
        )
    };
    refused()?;
    open(&bare, 0)?;
    close(&bare, 0)?;
    refused()?;
    bare.close("close")
}

fn one_alone(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    let count = raw.driver().device_count();
    open(&bare, 1)?;
    works(&bare, 1, "opened alone")?;
    for device in (0..count).filter(|device| *device != 1) {
        is_closed(&bare, device, "only device 1 was opened")?;
    }
    open(&bare, 0)?;
    works(&bare, 0, "opened behind device 1")?;
    bare.close("close")
}

fn the_others_stay_open(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    open(&bare, 0)?;
    open(&bare, 1)?;
    close(&bare, 1)?;
    works(&bare, 0, "device 1 was closed")?;
    is_closed(&bare, 1, "after device_close")?;
    bare.close("close")
}

fn close_closes_devices(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    for _ in 0..10 {
        let bare = closed(context, &raw)?;
        for device in 0..raw.driver().device_count() {
            open(&bare, device)?;
            works(&bare, device, "opened")?;
        }
        bare.close("close of a driver with open devices")?;
    }
    Ok(())
}

/// Parameters of `device_open`.
fn params(flags: u32) -> sys::otr_device_params {
    sys::otr_device_params {
        struct_size: size_of::<sys::otr_device_params>(),
        next: null(),
        flags,
        reserved: 0,
    }
}

fn newer_parameters_are_taken(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    let mut newer = Newer::new(params(0));
    newer.known.struct_size = Newer::<sys::otr_device_params>::SIZE;
    let unknown = unknown_extension(null());
    newer.known.next = &unknown;
    let answer = call!(bare.api(), device_open, bare.handle, 0, &newer.known);
    raw.takes(
        answer,
        "device_open with a larger struct and an unknown extension",
    )?;
    check!(newer.is_untouched(), "nothing was written to it");
    works(&bare, 0, "opened")?;
    bare.close("close")
}

fn smaller_parameters_are_taken(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    let mut smaller = params(u32::MAX);
    smaller.struct_size = std::mem::offset_of!(sys::otr_device_params, flags);
    let answer = call!(bare.api(), device_open, bare.handle, 0, &smaller);
    raw.takes(answer, "device_open with a struct without flags")?;
    works(&bare, 0, "opened")?;
    bare.close("close")
}

fn flags_are_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = closed(context, &raw)?;
    for flags in [1, 2, 0x8000_0000] {
        let answer = call!(bare.api(), device_open, bare.handle, 0, &params(flags));
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("device flags {flags:#x}"),
        )?;
        is_closed(&bare, 0, "after a refused device_open")?;
    }
    bare.close("close")
}

fn no_driver(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let answer = call!(raw.api(), device_open, null_mut(), 0, null());
    raw.refuses(answer, Code::INVALID_HANDLE, "device_open of NULL")?;
    let answer = call!(raw.api(), device_close, null_mut(), 0);
    raw.refuses(answer, Code::INVALID_HANDLE, "device_close of NULL")
}

fn no_device(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let count = raw.driver().device_count();
    for device in [count, count + 1, u32::MAX] {
        let answer = call!(raw.api(), device_open, raw.handle(), device, null());
        raw.refuses(
            answer,
            Code::INVALID_DEVICE,
            &format!("device_open of {device} of {count}"),
        )?;
        let answer = call!(raw.api(), device_close, raw.handle(), device);
        raw.refuses(
            answer,
            Code::INVALID_DEVICE,
            &format!("device_close of {device} of {count}"),
        )?;
    }
    answers!(
        raw.driver()
            .queue_create(0, 0)
            .map(drop)
            .map_or_else(|error| error.code(), |()| Code::OK),
        Code::OK,
        "a queue afterwards"
    );
    Ok(())
}
