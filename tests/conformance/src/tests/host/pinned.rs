//! Pinned host memory: memory of the host that copies use, reused in the order of the streams that use it.

use std::ffi::c_void;
use std::ptr::null_mut;

use crate::tests::host::bindings::*;
use outrigger_device::{Code, CopyKind};

use super::work::hold;
use super::{alloc, download, fill, filled, made, otr, refused, start, stream};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Gate, Verdict};

tests! { "host-abi.pinned":
    /// Pinned memory is memory of the host, to and from which devices copy.
    it_is_host_memory: H21 H22;
    /// Pinned memory is told apart from other memory, also from that which was freed.
    it_is_told_apart: H2 H21 H22;
    /// Memory that a stream was said to use is not reused before it is done.
    recorded_streams_hold_it: H23;
    /// Statistics follow what is allocated and freed, and start anew where they are reset.
    statistics: H9 H11;
    /// A request that the limit has no room for is refused; cached memory makes room, or is given back.
    limits: H2 H24;
}

const MIB: u64 = 1 << 20;

/// Pinned memory of this size.
#[track_caller]
pub(super) fn pinned(size: u64) -> Verdict<*mut c_void> {
    let mut pointer = null_mut();
    otr!(host_alloc, size, &mut pointer)?;
    Ok(pointer)
}

fn is_pinned(pointer: *const c_void) -> Verdict<bool> {
    Ok(made(|out: *mut u32| otr!(host_is_pinned, pointer, out))? == 1)
}

fn host_stats() -> Verdict<otr_memory_stats_t> {
    filled(|out| otr!(host_stats, out))
}

/// Fills pinned memory that no work uses.
fn write(pointer: *mut c_void, size: usize, value: u8) {
    // SAFETY: allocated by the test with at least this size, and no work uses it now.
    unsafe { pointer.cast::<u8>().write_bytes(value, size) };
}

fn it_is_host_memory(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let size = 100_000;
    let (host, device) = (pinned(size)?, alloc(size, stream)?);
    write(host, size as usize, 6);
    let (up, down) = (CopyKind::HostToDevice.raw(), CopyKind::DeviceToHost.raw());
    otr!(copy, stream, device, host as u64, size, up)?;
    equal!(
        download::<u8>(stream, device, size as usize)?,
        vec![6; size as usize],
        "what was copied from pinned memory"
    );
    fill(stream, device, size, &[9])?;
    otr!(copy, stream, host as u64, device, size, down)?;
    otr!(stream_synchronize, stream)?;
    // SAFETY: allocated above with this size, and the copy to it has finished.
    let bytes = unsafe { std::slice::from_raw_parts(host.cast::<u8>(), size as usize) };
    equal!(bytes, vec![9; size as usize], "what was copied to it");
    Ok(otr!(host_free, host)?)
}

fn it_is_told_apart(context: &Context) -> Verdict {
    start(context)?;
    let (pointer, other) = (pinned(5000)?, [0u8; 64]);
    for offset in [0, 1, 4999] {
        check!(
            is_pinned(pointer.wrapping_byte_add(offset))?,
            "byte {offset} is pinned"
        );
    }
    let elsewhere = other.as_ptr().cast::<c_void>().cast_mut();
    check!(!is_pinned(elsewhere)?, "memory of the test is not pinned");
    check!(!is_pinned(null_mut())?, "NULL is not pinned");
    equal!(pinned(0)?, null_mut(), "0 bytes");
    otr!(host_free, null_mut())?;
    let wrong = [
        ("memory of the test", otr!(host_free, elsewhere)),
        ("an offset", otr!(host_free, pointer.wrapping_byte_add(64))),
        (
            "an address of the device",
            otr!(host_free, alloc(64, stream()?)? as *mut c_void),
        ),
        (
            "a use of memory of the test",
            otr!(host_record_stream, elsewhere, stream()?),
        ),
    ];
    for (what, answer) in wrong {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    check!(is_pinned(pointer)?, "it is pinned after refused frees");
    otr!(host_free, pointer)?;
    check!(!is_pinned(pointer)?, "freed memory is not pinned");
    refused(
        otr!(host_free, pointer),
        Code::INVALID_ARGUMENT,
        "a second free",
    )?;
    refused(
        otr!(memory_free, 0, pointer as u64),
        Code::INVALID_ARGUMENT,
        "a free as memory of a device",
    )?;
    Ok(())
}

fn recorded_streams_hold_it(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (size, kind) = (1 << 16, CopyKind::HostToDevice.raw());
    let kept = alloc(size, stream)?;
    for round in 1..10u8 {
        let (pointer, gate) = (pinned(size)?, Gate::new());
        write(pointer, size as usize, round);
        hold(stream, &gate)?;
        otr!(copy, stream, kept, pointer as u64, size, kind)?;
        otr!(host_record_stream, pointer, stream)?;
        otr!(host_free, pointer)?;
        // Were the same memory given out now, this is what would be copied.
        let another = pinned(size)?;
        check!(another != pointer, "the copy still uses it");
        write(another, size as usize, 0xee);
        gate.open();
        equal!(
            download::<u8>(stream, kept, size as usize)?,
            vec![round; size as usize],
            "what the stream copied"
        );
        otr!(host_free, another)?;
    }
    Ok(())
}

fn statistics(context: &Context) -> Verdict {
    start(context)?;
    otr!(host_reset_accumulated)?;
    let before = host_stats()?;
    let (small, large) = (pinned(1000)?, pinned(3 * MIB)?);
    let in_use = host_stats()?;
    equal!(
        in_use.requested_bytes.current - before.requested_bytes.current,
        3 * MIB + 1000,
        "bytes that were asked for"
    );
    equal!(in_use.allocations.allocated, 2, "blocks since the reset");
    otr!(host_free, small)?;
    otr!(host_free, large)?;
    let freed = host_stats()?;
    equal!(
        (freed.requested_bytes.current, freed.requested_bytes.peak),
        (
            before.requested_bytes.current,
            in_use.requested_bytes.current
        ),
        "bytes in use and their peak"
    );
    otr!(host_reset_peak)?;
    equal!(
        host_stats()?.requested_bytes.peak,
        before.requested_bytes.current,
        "a peak that was reset"
    );
    equal!(
        host_stats()?.allocations.freed,
        2,
        "counts that were not reset"
    );
    otr!(host_reset_accumulated)?;
    equal!(host_stats()?.allocations.freed, 0, "counts that were reset");
    Ok(())
}

fn limits(context: &Context) -> Verdict {
    start(context)?;
    otr!(host_empty_cache)?;
    let base = host_stats()?.reserved_bytes.current;
    otr!(host_set_limit, base + 40 * MIB)?;
    let first = pinned(24 * MIB)?;
    let mut pointer = null_mut();
    refused(
        otr!(host_alloc, 24 * MIB, &mut pointer),
        Code::OUT_OF_HOST_MEMORY,
        "more than the limit has room for",
    )?;
    check!(pointer.is_null(), "H2: the output of a failed call");
    otr!(host_free, first)?;
    check!(
        host_stats()?.reserved_bytes.current >= base + 24 * MIB,
        "freed memory is cached"
    );
    // Another size: what is cached is given back for it.
    let second = pinned(36 * MIB)?;
    write(second, 36 << 20, 1);
    otr!(host_set_limit, u64::MAX)?;
    let third = pinned(24 * MIB)?;
    write(third, 24 << 20, 1);
    otr!(host_free, second)?;
    otr!(host_free, third)?;
    otr!(host_empty_cache)?;
    equal!(
        host_stats()?.reserved_bytes.current,
        base,
        "what is held after all was given back"
    );
    Ok(())
}
