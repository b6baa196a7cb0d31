//! R1, R3, R4, R10 and R12: opening a driver, its options, and closing it.

use std::ffi::CString;
use std::mem::offset_of;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use outrigger_device::{Code, CopyKind, params, sys};

use super::kit::{Bench, HostBytes, block, delay, fill, holds, threads};
use super::raw::{Bare, Newer, Raw, call, open_params, options, unknown_extension};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "core.open":
    /// Parameters at NULL mean defaults.
    without_parameters: R7;
    /// Options at NULL mean defaults.
    without_options: R7, run |c| defaults(c, null());
    /// An empty text of options means defaults.
    with_empty_options: R7, run |c| defaults(c, c"".as_ptr());
    /// An unknown option is an invalid argument, the text names it, and no driver is given.
    an_unknown_option_is_named: R4 R5 R7;
    /// An option with a value that makes no sense is refused, where the option is known.
    a_bad_value_is_refused: R7;
    /// A larger struct of a newer host is taken.
    larger_parameters_are_taken: R1;
    /// Bytes behind the `struct_size` of the parameters are not read.
    smaller_parameters_are_taken: R1;
    /// Extension records of unknown type are skipped, in any number.
    unknown_extensions_are_skipped: R3;
    /// The text of the options may go once the call has returned.
    the_options_may_go: R10;
    /// Each result of `open` is independent: one does not know the memory of another.
    results_are_independent: R7 R13;
    /// Allocations of two open drivers do not overlap with each other's bytes: what one writes the other
    /// does not see.
    two_drivers_work_at_once: R8 R16;
    /// A driver is opened and closed again and again, and leaves nothing behind.
    again_and_again: R10 R12;
    /// Drivers are opened, used and closed by several threads at a time.
    by_many_threads: R8;
    /// A process that had many queues closes its driver.
    closes_after_many_queues: R10 R12;
}

pub(super) mod close;

fn without_parameters(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut driver = null_mut();
    raw.takes(
        call!(raw.api(), open, null(), &mut driver),
        "open without parameters",
    )?;
    usable(&raw, driver)
}

fn defaults(context: &Context, text: *const std::ffi::c_char) -> Verdict {
    let raw = Raw::open(context)?;
    let mut driver = null_mut();
    raw.takes(
        call!(raw.api(), open, &open_params(text), &mut driver),
        "open with defaults",
    )?;
    usable(&raw, driver)
}

/// The driver has a device and can be closed.
fn usable(raw: &Raw, driver: *mut sys::otr_driver) -> Verdict {
    check!(!driver.is_null(), "open gave a driver");
    let (mut count, mut queue) = (0, null_mut());
    raw.takes(
        call!(raw.api(), device_count, driver, &mut count),
        "device_count",
    )?;
    check!(count > 0, "it has a device");
    raw.takes(
        call!(raw.api(), device_open, driver, 0, null()),
        "device_open",
    )?;
    raw.takes(
        call!(raw.api(), queue_create, driver, 0, null(), &mut queue),
        "queue_create",
    )?;
    raw.synchronize(queue)?;
    raw.destroy(queue, null_mut())?;
    raw.takes(call!(raw.api(), close, driver), "close")
}

fn an_unknown_option_is_named(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    for text in [
        c"conformance_nonsense=1",
        c"conformance_nonsense=",
        c"conformance_nonsense=a=b",
    ] {
        let marker = std::ptr::without_provenance_mut(0x5a5a);
        let mut driver = marker;
        let answer = call!(raw.api(), open, &open_params(text.as_ptr()), &mut driver);
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("open with {text:?}"),
        )?;
        check!(
            raw.text()?.contains("conformance_nonsense"),
            "the text names the option: {:?}",
            raw.text()?
        );
        check!(driver == marker, "R4: no driver was written");
    }
    // Also behind options that are known.
    let known = options(context)?.into_string()?;
    if !known.is_empty() {
        let text = CString::new(format!("{known},conformance_nonsense=1"))?;
        let mut driver = null_mut();
        let answer = call!(raw.api(), open, &open_params(text.as_ptr()), &mut driver);
        raw.refuses(
            answer,
            Code::INVALID_ARGUMENT,
            "open with a known and an unknown option",
        )?;
    }
    Ok(())
}

fn a_bad_value_is_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let known = options(context)?.into_string()?;
    for key in known
        .split(',')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, _)| key)
    {
        let text = CString::new(format!("{key}=~no~value~"))?;
        let mut driver = null_mut();
        let answer = call!(raw.api(), open, &open_params(text.as_ptr()), &mut driver);
        // A path or a name may be any text; it then names what is not there.
        let code = Code(answer);
        check!(
            code == Code::INVALID_ARGUMENT || code == Code::NOT_FOUND,
            "open with {text:?} answered {code:?}"
        );
        check!(!raw.text()?.is_empty(), "R5: there is a text");
        check!(driver.is_null(), "R4: no driver was written");
    }
    Ok(())
}

fn larger_parameters_are_taken(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let options = options(context)?;
    let mut params = Newer::new(open_params(options.as_ptr()));
    params.known.struct_size = Newer::<sys::otr_open_params>::SIZE;
    let mut driver = null_mut();
    raw.takes(
        call!(raw.api(), open, &params.known, &mut driver),
        "open with a larger struct",
    )?;
    check!(params.is_untouched(), "nothing was written to it");
    usable(&raw, driver)
}

fn smaller_parameters_are_taken(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut params = open_params(std::ptr::without_provenance(1)); // to read it would end the process
    params.struct_size = offset_of!(sys::otr_open_params, options);
    let mut driver = null_mut();
    raw.takes(
        call!(raw.api(), open, &params, &mut driver),
        "open with a struct without options",
    )?;
    usable(&raw, driver)
}

fn unknown_extensions_are_skipped(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let options = options(context)?;
    let third = unknown_extension(null());
    let second = unknown_extension(&third);
    let first = unknown_extension(&second);
    let mut params = open_params(options.as_ptr());
    params.next = &first;
    let mut driver = null_mut();
    raw.takes(
        call!(raw.api(), open, &params, &mut driver),
        "open with unknown extensions",
    )?;
    usable(&raw, driver)
}

fn the_options_may_go(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let mut text = options(context)?.into_bytes_with_nul();
    let mut params = open_params(text.as_ptr().cast());
    let mut driver = null_mut();
    raw.takes(call!(raw.api(), open, &params, &mut driver), "open")?;
    let last = text.len() - 1;
    text[..last].fill(b'~');
    std::hint::black_box(&mut text);
    params.options = null();
    std::hint::black_box(&mut params);
    let mut count = 0;
    raw.takes(
        call!(raw.api(), device_count, driver, &mut count),
        "device_count",
    )?;
    equal!(
        count,
        raw.driver().device_count(),
        "devices with the same options"
    );
    usable(&raw, driver)
}

fn results_are_independent(context: &Context) -> Verdict {
    let first = Bench::new(context)?;
    let second = Bench::new(context)?;
    let address = first.memory(4096)?;
    let (queue, theirs) = (first.queue()?, second.queue()?);
    fill(&queue, address, 4096, &[3])?;
    queue.synchronize()?;
    // SAFETY: the second driver does not know the address, and frees nothing.
    let freed = unsafe { second.driver().memory_free(address) };
    answers!(
        freed,
        Code::INVALID_ARGUMENT,
        "memory_free of another driver's memory"
    );
    // SAFETY: refused, so that nothing is executed.
    let filled = unsafe { theirs.fill(address, 64, &[9]) };
    answers!(
        filled,
        Code::INVALID_ARGUMENT,
        "fill of another driver's memory"
    );
    theirs.synchronize()?;
    holds(&queue, address, 4096, 3, "memory of the first driver")?;
    second.finish()?;
    first.finish()
}

fn two_drivers_work_at_once(context: &Context) -> Verdict {
    let (first, second) = (Bench::new(context)?, Bench::new(context)?);
    let (a, b) = (first.memory(65536)?, second.memory(65536)?);
    let (one, two) = (first.queue()?, second.queue()?);
    let gate = Gate::new();
    block(&one, &gate)?;
    fill(&one, a, 65536, &[1])?;
    fill(&two, b, 65536, &[2])?;
    let bytes = HostBytes::of(65536, 0);
    super::kit::copy(&two, bytes.at(0), b, 65536, CopyKind::DeviceToHost)?;
    two.synchronize()?;
    equal!(bytes.get(), vec![2; 65536], "what the second driver filled");
    gate.open();
    holds(&one, a, 65536, 1, "what the first driver filled")?;
    second.finish()?;
    holds(
        &one,
        a,
        65536,
        1,
        "the first driver's memory, when the second's is gone",
    )?;
    first.finish()
}

fn again_and_again(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    for _ in 0..60 {
        let bare = Bare::open(context, &raw)?;
        let queue = bare.queue()?;
        let mut address = 0;
        let made = call!(
            raw.api(),
            memory_alloc,
            bare.handle,
            0,
            &params::memory(1 << 16),
            &mut address
        );
        raw.takes(made, "memory_alloc")?;
        let filled = call!(
            raw.api(),
            fill,
            queue,
            &params::fill(address, 1 << 16, [1u8].as_ptr().cast(), 1)
        );
        raw.takes(filled, "fill")?;
        raw.synchronize(queue)?;
        raw.takes(
            call!(raw.api(), memory_free, bare.handle, address),
            "memory_free",
        )?;
        raw.destroy(queue, null_mut())?;
        bare.close("close")?;
    }
    Ok(())
}

fn by_many_threads(context: &Context) -> Verdict {
    threads(6, |thread| {
        for round in 0..5 {
            let bench = Bench::new(context)?;
            let (queue, address) = (bench.queue()?, bench.memory(4096)?);
            let value = (thread * 16 + round) as u8;
            fill(&queue, address, 4096, &[value])?;
            holds(&queue, address, 4096, value, "a driver of this thread")?;
            bench.finish()?;
        }
        Ok(())
    })
}

fn closes_after_many_queues(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let bare = Bare::open(context, &raw)?;
    for _ in 0..20 {
        let queues: Vec<_> = (0..16).map(|_| bare.queue()).collect::<Verdict<_>>()?;
        for queue in queues {
            raw.synchronize(queue)?;
            raw.destroy(queue, null_mut())?;
        }
    }
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    delay(&queue, Duration::from_millis(1))?;
    queue.synchronize()?;
    bare.close("close")
}
