//! R1, R7 and R14: the structs in which calls get what they need: none, larger ones, chains, and kinds and flags that nobody
//! knows.

use std::ffi::c_void;
use std::ptr::{null, null_mut};

use outrigger_device::{Code, params, sys};

use super::kit::{Bench, fill, holds};
use super::raw::{Newer, Raw, call, unknown_extension};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Verdict};

tests! { "core.params":
    /// `memory_alloc` without parameters is refused, and writes no address.
    of_memory_are_needed: R4 R7, run |c| of_memory(c, |_| None, Code::INVALID_ARGUMENT);
    /// Memory of a kind that the device does not have is unsupported, and nothing is taken.
    an_unknown_kind_of_memory: R4 R14, run |c| each(&[1, 77, 0x7fff_ffff, 0xffff_fff0], |kind| {
        of_memory(c, |size| Some(sys::otr_memory_params { kind, ..params::memory(size) }), Code::UNSUPPORTED)
    });
    /// Memory with flags that nobody knows is refused, and nothing is taken.
    unknown_flags_of_memory: R4 R7, run |c| each(&[2, 0x8000_0000, 3], |flags| {
        of_memory(c, |size| Some(sys::otr_memory_params { flags, ..params::memory(size) }), Code::INVALID_ARGUMENT)
    });
    /// An alignment that is no power of two is refused, and nothing is taken.
    an_odd_alignment: R4 R7, run |c| each(&[3, 24, 65, 192], |alignment| {
        let alignment = u64::from(alignment);
        of_memory(c, |size| Some(sys::otr_memory_params { alignment, ..params::memory(size) }), Code::INVALID_ARGUMENT)
    });
    /// Memory is aligned as it was asked for, or the alignment is unsupported.
    an_alignment_is_kept: R4 R14;
    /// Any driver takes the hint that memory may be exported.
    memory_for_export_is_memory: R7 R13;
    /// An event without parameters is one without flags.
    an_event_needs_none: R7 R22;
    /// Commands without parameters are refused, and the queue stays idle.
    of_commands_are_needed: R4 R7;
    /// Structs of a newer host, larger and with chains, are read as far as they are known.
    of_a_newer_host: R1 R3;
    /// Larger structs of a newer host, with chains, reserve, make and map memory.
    of_a_newer_host_in_virtual_memory: R1 R3 R37 R39, needs VirtualMemory;
}

fn each(values: &[u32], test: impl Fn(u32) -> Verdict) -> Verdict {
    values.iter().try_for_each(|value| {
        test(*value).map_err(|failure| failure.context(format!("{value:#x}")))
    })
}

/// Checks what is answered for memory that is not to be had, that there is a text, and that nothing was taken.
fn of_memory(
    context: &Context,
    make: impl Fn(u64) -> Option<sys::otr_memory_params>,
    code: Code,
) -> Verdict {
    let raw = Raw::open(context)?;
    let before = super::kit::free(raw.driver())?;
    let (given, mut address) = (make(4096), 0x5a5a);
    let given = given.as_ref().map_or(null(), std::ptr::from_ref);
    let answer = call!(
        raw.api(),
        memory_alloc,
        raw.handle(),
        0,
        given,
        &mut address
    );
    raw.refuses(answer, code, "memory_alloc")?;
    equal!(address, 0x5a5a, "R4: the output of a failed call");
    equal!(
        super::kit::free(raw.driver())?,
        before,
        "free memory afterwards"
    );
    Ok(())
}

fn an_alignment_is_kept(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (raw, queue) = (Raw::of(bench.driver()), bench.queue()?);
    let usual = u64::from(bench.properties(0)?.address_alignment);
    for alignment in (0..26).map(|shift| 1_u64 << shift) {
        for size in [1, 4096, 70_000] {
            let given = sys::otr_memory_params {
                alignment,
                ..params::memory(size)
            };
            let mut address = 0;
            let answer = call!(
                raw.api(),
                memory_alloc,
                raw.handle(),
                0,
                &given,
                &mut address
            );
            let what = format!("{size} bytes, aligned to {alignment}");
            if answer != Code::OK.0 && alignment > usual {
                raw.refuses(answer, Code::UNSUPPORTED, &what)?;
                equal!(address, 0, "R4: the output of a failed call");
                continue;
            }
            raw.takes(answer, &what)?;
            bench.keep(address);
            let least = alignment.max(usual);
            check!(
                address.is_multiple_of(least),
                "R14: {what}: {address:#x} is a multiple of {least}"
            );
            fill(&queue, address, size, &[5])?;
            holds(&queue, address, size as usize, 5, &what)?;
        }
    }
    bench.finish()
}

fn memory_for_export_is_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (raw, queue) = (Raw::of(bench.driver()), bench.queue()?);
    for flags in [0, sys::OTR_MEMORY_EXPORTABLE] {
        let given = sys::otr_memory_params {
            flags,
            ..params::memory(4096)
        };
        let mut address = 0;
        let answer = call!(
            raw.api(),
            memory_alloc,
            raw.handle(),
            0,
            &given,
            &mut address
        );
        raw.takes(answer, "memory_alloc")?;
        bench.keep(address);
        fill(&queue, address, 4096, &[6])?;
        holds(
            &queue,
            address,
            4096,
            6,
            "memory with the hint, and without",
        )?;
    }
    bench.finish()
}

fn an_event_needs_none(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let queue = raw.queue()?;
    let plain = params::event(0);
    for given in [null(), &raw const plain] {
        let mut event = null_mut();
        let answer = call!(raw.api(), event_create, raw.handle(), 0, given, &mut event);
        raw.takes(answer, "event_create")?;
        raw.takes(call!(raw.api(), event_record, event, queue), "event_record")?;
        raw.synchronize(queue)?;
        raw.destroy(null_mut(), event)?;
    }
    raw.destroy(queue, null_mut())
}

fn of_commands_are_needed(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let queue = raw.queue()?;
    for (answer, what) in [
        (
            call!(raw.api(), copy, queue, null()),
            "copy without parameters",
        ),
        (
            call!(raw.api(), fill, queue, null()),
            "fill without parameters",
        ),
        (
            call!(raw.api(), host_call, queue, null()),
            "host_call without parameters",
        ),
    ] {
        answers!(answer, Code::INVALID_ARGUMENT, "{what}");
        answers!(raw.query(queue)?, Code::OK, "queue_query after {what}");
    }
    raw.refuses(
        call!(raw.api(), copy, queue, null()),
        Code::INVALID_ARGUMENT,
        "copy without parameters",
    )?;
    raw.destroy(queue, null_mut())
}

/// A struct with fields that no driver knows yet, and a chain of records of unknown types.
macro_rules! newer {
    ($known:expr, $chain:expr) => {{
        let mut newer = Newer::new($known);
        newer.known.struct_size = size_of_val(&newer);
        newer.known.next = $chain;
        newer
    }};
}

unsafe extern "C" fn count(user: *mut c_void, upstream: i32) -> i32 {
    // SAFETY: the number of the test below, which waits for the call.
    unsafe { *user.cast::<u32>() += 1 };
    upstream
}

fn of_a_newer_host(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    let last = unknown_extension(null());
    let first = unknown_extension(&last);
    let queue = raw.queue()?;

    let memory = newer!(params::memory(4096), &first);
    let mut address = 0;
    let answer = call!(
        raw.api(),
        memory_alloc,
        raw.handle(),
        0,
        &memory.known,
        &mut address
    );
    raw.takes(answer, "memory_alloc of a newer host")?;
    let event = newer!(params::event(0), &first);
    let mut point = null_mut();
    let answer = call!(
        raw.api(),
        event_create,
        raw.handle(),
        0,
        &event.known,
        &mut point
    );
    raw.takes(answer, "event_create of a newer host")?;

    let pattern = [7_u8];
    let fill = newer!(
        params::fill(address, 4096, pattern.as_ptr().cast(), 1),
        &first
    );
    raw.takes(
        call!(raw.api(), fill, queue, &fill.known),
        "fill of a newer host",
    )?;
    let mut back = [0_u8; 64];
    let to = back.as_mut_ptr().expose_provenance() as u64;
    let copy = newer!(
        params::copy(to, address, 64, sys::OTR_COPY_DEVICE_TO_HOST),
        &first
    );
    raw.takes(
        call!(raw.api(), copy, queue, &copy.known),
        "copy of a newer host",
    )?;
    let mut called = 0_u32;
    let user = (&raw mut called).cast();
    let host_call = newer!(params::host_call(Some(count), user, 0), &first);
    raw.takes(
        call!(raw.api(), host_call, queue, &host_call.known),
        "host_call of a newer host",
    )?;
    raw.synchronize(queue)?;
    equal!(back, [7; 64], "what was filled and copied");
    equal!(called, 1, "calls");
    for untouched in [
        memory.is_untouched(),
        event.is_untouched(),
        fill.is_untouched(),
        copy.is_untouched(),
        host_call.is_untouched(),
    ] {
        check!(untouched, "R1: nothing was written behind what is known");
    }
    raw.destroy(queue, point)?;
    raw.takes(
        call!(raw.api(), memory_free, raw.handle(), address),
        "memory_free",
    )
}

fn of_a_newer_host_in_virtual_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (raw, queue) = (Raw::of(bench.driver()), bench.queue()?);
    let last = unknown_extension(null());
    let first = unknown_extension(&last);
    // SAFETY: R1: the table is the driver's, and lives as long as it is open.
    let Some(group) = (unsafe { raw.api().virtual_memory.as_ref() }) else {
        return Err(crate::Failure::new(
            "the driver has the group virtual_memory",
        ));
    };
    let mut size = 0;
    let answer = call!(group, granularity, raw.handle(), 0, &mut size);
    raw.takes(answer, "granularity")?;

    let range = newer!(params::reserve(size, 0), &first);
    let mut address = 0;
    let answer = call!(group, reserve, raw.handle(), 0, &range.known, &mut address);
    raw.takes(answer, "reserve of a newer host")?;
    let memory = newer!(params::memory(size), &first);
    let mut object = null_mut();
    let answer = call!(group, create, raw.handle(), 0, &memory.known, &mut object);
    raw.takes(answer, "create of a newer host")?;
    let place = newer!(params::map(address, &raw const object, 1), &first);
    let answer = call!(group, map, raw.handle(), &place.known);
    raw.takes(answer, "map of a newer host")?;

    fill(&queue, address, size, &[8])?;
    holds(&queue, address, size as usize, 8, "what was mapped")?;
    for untouched in [
        range.is_untouched(),
        memory.is_untouched(),
        place.is_untouched(),
    ] {
        check!(untouched, "R1: nothing was written behind what is known");
    }
    for (answer, what) in [
        (call!(group, unmap, raw.handle(), address, size), "unmap"),
        (call!(group, destroy, raw.handle(), object), "destroy"),
        (
            call!(group, release, raw.handle(), address, size),
            "release",
        ),
    ] {
        raw.takes(answer, what)?;
    }
    bench.finish()
}
