//! Memory as a host can learn of it and limit it: statistics, facts of an address, limits,
//! snapshots, and calls that give cached memory back.

use crate::tests::host::bindings::*;
use outrigger_device::Code;
use serde_json::Value;

use super::{
    alloc, download, fill, filled, held, json, made, near, otr, refused, start, stats, stream,
};
use crate::test::tests;
use crate::verdict::{check, equal};
use crate::{Context, Verdict};

tests! { "host-abi.accounting":
    /// Statistics follow what is allocated and freed; peaks and counts start anew where they are reset.
    statistics: H2 H24;
    /// Small and large blocks add up to all blocks.
    statistics_agree: H9;
    /// Of any address within an allocation the same is known; of others nothing.
    facts_of_an_address: H2 H21;
    /// A request that a limit of the device has no room for is refused, and is met once the limit is lifted.
    limits_of_a_device: H2 H24;
    /// A fraction is a limit in other words.
    fractions_of_a_device: H2 H24;
    /// A request that the limit of the process has no room for is refused, and is met once the limit is lifted.
    limits_of_the_process: H2 H24;
    /// Cached memory is given back down to what is to stay, and memory in use is not.
    cached_memory_is_given_back: H23;
    /// A snapshot tells each segment and block, as many bytes as the statistics.
    snapshots: H11;
}

const MIB: u64 = 1 << 20;

fn free(address: u64) -> Verdict {
    Ok(otr!(memory_free, 0, address)?)
}

fn statistics(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    otr!(memory_reset_accumulated, 0)?;
    otr!(memory_reset_peak, 0)?;
    let before = stats()?;
    let sizes = [100, 5000, 3 * MIB];
    let total: u64 = sizes.iter().sum();
    let addresses: Vec<u64> = sizes
        .iter()
        .map(|&size| alloc(size, stream))
        .collect::<Verdict<_>>()?;
    let in_use = stats()?;
    equal!(
        in_use.allocations.current - before.allocations.current,
        3,
        "blocks handed out"
    );
    equal!(in_use.allocations.allocated, 3, "blocks since the reset");
    equal!(
        in_use.requested_bytes.current - before.requested_bytes.current,
        total,
        "bytes that were asked for"
    );
    let rounded = in_use.allocated_bytes.current - before.allocated_bytes.current;
    check!(rounded >= total, "{rounded} bytes handed out of {total}");
    check!(
        in_use.reserved_bytes.current >= in_use.allocated_bytes.current,
        "no more is handed out than was taken from the device"
    );
    check!(in_use.device_allocs > 0, "calls of the driver");
    addresses.into_iter().try_for_each(free)?;
    otr!(stream_synchronize, stream)?;
    let freed = stats()?;
    equal!(
        freed.allocated_bytes.current,
        before.allocated_bytes.current,
        "bytes in use after all were freed"
    );
    equal!(freed.allocations.freed, 3, "blocks that came back");
    equal!(
        freed.allocated_bytes.peak,
        in_use.allocated_bytes.current,
        "the peak stays"
    );
    refused(
        otr!(memory_alloc, 0, 1 << 60, stream, &mut 0),
        Code::OUT_OF_MEMORY,
        "too much memory",
    )?;
    equal!(stats()?.ooms, freed.ooms + 1, "requests that were not met");

    otr!(memory_reset_peak, 0)?;
    let reset = stats()?;
    equal!(
        reset.allocated_bytes.peak,
        reset.allocated_bytes.current,
        "a peak that was reset"
    );
    equal!(reset.allocations.allocated, 3, "counts that were not reset");
    otr!(memory_reset_accumulated, 0)?;
    let reset = stats()?;
    equal!(
        (reset.allocations.allocated, reset.allocations.freed),
        (0, 0),
        "counts that were reset"
    );
    equal!(
        (reset.ooms, reset.device_allocs),
        (0, 0),
        "plain counts that were reset"
    );
    Ok(())
}

fn statistics_agree(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    for size in [1, 600, 70_000, 2 * MIB, 9 * MIB] {
        let (kept, gone) = (alloc(size, stream)?, alloc(size, stream)?);
        check!(kept != gone, "two allocations have two addresses");
        free(gone)?;
    }
    let told = stats()?;
    let (small, large) = (&told.small, &told.large);
    let sums = [
        (
            "blocks",
            told.allocations,
            small.allocations,
            large.allocations,
        ),
        (
            "bytes handed out",
            told.allocated_bytes,
            small.allocated_bytes,
            large.allocated_bytes,
        ),
        (
            "bytes asked for",
            told.requested_bytes,
            small.requested_bytes,
            large.requested_bytes,
        ),
        (
            "bytes taken",
            told.reserved_bytes,
            small.reserved_bytes,
            large.reserved_bytes,
        ),
    ];
    for (what, all, small, large) in sums {
        equal!(
            (
                small.current + large.current,
                small.allocated + large.allocated,
                small.freed + large.freed
            ),
            (all.current, all.allocated, all.freed),
            "{what}, small and large: now, came, went"
        );
        check!(
            small.current > 0 && large.current > 0,
            "there are {what} of both sizes"
        );
    }
    Ok(())
}

fn facts(address: u64) -> Verdict<otr_pointer_info_t> {
    filled(|out| otr!(memory_pointer_info, 0, address, out))
}

fn facts_of_an_address(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let address = alloc(10_000, stream)?;
    for offset in [0, 1, 9_999] {
        let known = facts(address + offset)?;
        equal!(
            (known.base, known.requested, known.stream),
            (address, 10_000, stream),
            "start, size asked for and stream at {offset}"
        );
        equal!((known.pool, known.pool_number), (0, 0), "the pool");
        let device = made(|out| otr!(memory_find, address + offset, out))?;
        equal!(device, 0, "the device of the number at {offset}");
        check!(known.label.is_null(), "it has no label");
    }
    // All usable bytes are usable.
    let usable = facts(address)?.size;
    check!(usable >= 10_000, "usable are {usable} bytes");
    fill(stream, address, usable, &[7])?;
    equal!(
        download::<u8>(stream, address + usable - 8, 8)?,
        [7; 8],
        "the last usable bytes"
    );
    let on_stack = std::ptr::from_ref(&usable) as u64;
    free(address)?;
    for (what, nowhere) in [
        ("freed memory", address),
        ("address 0", 0),
        ("host memory", on_stack),
        ("the end of the address space", u64::MAX),
    ] {
        let mut info = otr_pointer_info_t {
            base: 0x5a,
            ..super::Filled::sized(size_of::<otr_pointer_info_t>())
        };
        refused(
            otr!(memory_pointer_info, 0, nowhere, &mut info),
            Code::NOT_FOUND,
            what,
        )?;
        equal!(info.base, 0x5a, "H2: outputs of a failed call");
        let mut device = 0x5a;
        let found = otr!(memory_find, nowhere, &mut device);
        let text = refused(found, Code::NOT_FOUND, what)?.text;
        check!(
            text.contains(&format!("{nowhere:#x}")),
            "H3: the number in {text}"
        );
        equal!(device, 0x5a, "H2: the output of a search that fails");
    }
    Ok(())
}

fn limit() -> Verdict<u64> {
    made(|out| otr!(memory_limit, 0, out))
}

fn limits_of_a_device(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    equal!(limit()?, u64::MAX, "the limit where none was set");
    let kept = alloc(2 * MIB, stream)?;
    fill(stream, kept, 2 * MIB, &[4])?;
    let most = held()? + 20 * MIB;
    otr!(memory_set_limit, 0, most)?;
    equal!(limit()?, most, "the limit that was set");
    for _ in 0..3 {
        refused(
            otr!(memory_alloc, 0, 32 * MIB, stream, &mut 0),
            Code::OUT_OF_MEMORY,
            "more than the limit has room for",
        )?;
        free(alloc(10 * MIB, stream)?)?;
        check!(
            stats()?.reserved_bytes.current <= most,
            "what is held stays below the limit"
        );
    }
    // Memory in use stays.
    otr!(memory_set_limit, 0, 1)?;
    refused(
        otr!(memory_alloc, 0, 32 * MIB, stream, &mut 0),
        Code::OUT_OF_MEMORY,
        "memory under a limit of one byte",
    )?;
    equal!(
        download::<u8>(stream, kept, 64)?,
        [4; 64],
        "what was there before the limit"
    );
    otr!(memory_set_limit, 0, u64::MAX)?;
    free(alloc(32 * MIB, stream)?)
}

fn fractions_of_a_device(context: &Context) -> Verdict {
    start(context)?;
    let fraction = || made::<f64>(|out| otr!(memory_fraction, 0, out));
    let (mut left, mut total) = (0, 0);
    otr!(memory_info, 0, &mut left, &mut total)?;
    check!(left <= total, "{left} of {total} bytes are free");
    equal!(fraction()?, 1.0, "the fraction without a limit");
    for wrong in [-0.25, 1.5, f64::NAN, f64::INFINITY] {
        refused(
            otr!(memory_set_fraction, 0, wrong),
            Code::INVALID_ARGUMENT,
            "a number that is no fraction",
        )?;
    }
    equal!(limit()?, u64::MAX, "the limit after refused fractions");
    otr!(memory_set_fraction, 0, 0.5)?;
    check!(
        limit()?.abs_diff(total / 2) <= 1,
        "half of {total} bytes, and the limit is {}",
        limit()?
    );
    check!(
        near(fraction()?, 0.5, 1e-6),
        "the fraction is {}",
        fraction()?
    );
    refused(
        otr!(memory_alloc, 0, total / 2 + MIB, stream()?, &mut 0),
        Code::OUT_OF_MEMORY,
        "more than half",
    )?;
    Ok(())
}

fn process() -> Verdict<(u64, u64)> {
    let (mut held, mut limit) = (0, 0);
    otr!(memory_process_info, &mut held, &mut limit)?;
    Ok((held, limit))
}

fn limits_of_the_process(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let base = held()?;
    equal!(
        process()?,
        (base, u64::MAX),
        "what is held, and the limit where none was set"
    );
    let kept = alloc(10 * MIB, stream)?;
    let with = process()?.0;
    equal!(with, stats()?.reserved_bytes.current, "what is held");
    check!(with >= base + 10 * MIB, "10 MiB are held");
    otr!(memory_set_process_limit, with + 20 * MIB)?;
    equal!(process()?.1, with + 20 * MIB, "the limit that was set");
    refused(
        otr!(memory_alloc, 0, 32 * MIB, stream, &mut 0),
        Code::OUT_OF_MEMORY,
        "more than the process may hold",
    )?;
    // Another device is under the same limit.
    let devices = made(|out| otr!(device_count, out))?;
    let other = made(|out| otr!(stream_default, devices - 1, out))?;
    refused(
        otr!(memory_alloc, devices - 1, 32 * MIB, other, &mut 0),
        Code::OUT_OF_MEMORY,
        "more than the process may hold, on the last device",
    )?;
    // The memory that the last device has cached makes room.
    let cached = made(|out| otr!(memory_alloc, devices - 1, 18 * MIB, other, out))?;
    otr!(memory_free, devices - 1, cached)?;
    let room = alloc(14 * MIB, stream)?;
    check!(
        process()?.0 <= with + 20 * MIB,
        "the process holds {} bytes under a limit of {}",
        process()?.0,
        with + 20 * MIB
    );
    free(room)?;
    otr!(memory_set_process_limit, u64::MAX)?;
    free(alloc(32 * MIB, stream)?)?;
    free(kept)?;
    otr!(device_synchronize, devices - 1)?;
    otr!(memory_empty_cache, devices - 1)?;
    equal!(held()?, base, "what is held after all was given back");
    equal!(process()?.0, base, "what the process holds");
    Ok(())
}

fn cached_memory_is_given_back(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let base = held()?;
    let blocks: Vec<u64> = (0..5)
        .map(|_| alloc(10 * MIB, stream))
        .collect::<Verdict<_>>()?;
    for &address in &blocks {
        fill(stream, address, 10 * MIB, &[8])?;
    }
    blocks[1..].iter().copied().try_for_each(free)?;
    let cached = || Verdict::Ok(stats()?.inactive_split_bytes.current);
    let (reserved, before) = (stats()?.reserved_bytes.current, cached()?);
    check!(before >= 40 * MIB, "{before} bytes are cached");
    let trim = |keep| made(|out| otr!(memory_trim, 0, keep, out));
    equal!(trim(u64::MAX)?, 0, "bytes given back where all may stay");
    let released = trim(25 * MIB)?;
    check!(
        cached()? <= 25 * MIB,
        "{} bytes stay cached of the 25 MiB that may",
        cached()?
    );
    equal!(
        stats()?.reserved_bytes.current,
        reserved - released,
        "what is held after {released} bytes were given back"
    );
    equal!(
        download::<u8>(stream, blocks[0], 64)?,
        [8; 64],
        "memory in use"
    );
    otr!(memory_trim, 0, 0, std::ptr::null_mut())?;
    otr!(memory_empty_cache, 0)?;
    check!(
        stats()?.reserved_bytes.current < reserved - 30 * MIB,
        "{} bytes are held, of which 10 MiB are in use",
        stats()?.reserved_bytes.current
    );
    equal!(
        download::<u8>(stream, blocks[0] + 10 * MIB - 64, 64)?,
        [8; 64],
        "memory in use"
    );
    free(blocks[0])?;
    equal!(held()?, base, "what is held after all was given back");
    Ok(())
}

fn list<'a>(value: &'a Value, name: &str) -> Verdict<&'a Vec<Value>> {
    value[name]
        .as_array()
        .ok_or_else(|| crate::Failure::new(format!("`{name}` is a list, in {value}")))
}

fn snapshots(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (small, large) = (alloc(300, stream)?, alloc(5 * MIB, stream)?);
    free(alloc(700, stream)?)?;
    let host = super::pinned::pinned(5000)?;
    for device in [0, OTR_ALL_DEVICES] {
        let snapshot = json(|out| otr!(memory_snapshot, device, out))?;
        let of_device: Vec<&Value> = list(&snapshot, "segments")?
            .iter()
            .filter(|segment| segment["device"] == 0)
            .collect();
        let held: u64 = of_device
            .iter()
            .filter(|segment| segment["is_view"] != true)
            .filter_map(|segment| segment["total_size"].as_u64())
            .sum();
        equal!(
            held,
            stats()?.reserved_bytes.current,
            "bytes of all segments"
        );
        for (address, size) in [(small, 300), (large, 5 * MIB)] {
            let mut blocks = of_device
                .iter()
                .filter_map(|segment| segment["blocks"].as_array())
                .flatten();
            let block = blocks.find(|block| block["address"] == address);
            let block = block.ok_or_else(|| {
                crate::Failure::new(format!("a block at {address:#x}, in {snapshot}"))
            })?;
            equal!(block["requested_size"], size, "size of {block}");
            equal!(block["state"], "active_allocated", "state of {block}");
        }
        check!(
            list(&snapshot, "device_traces")?
                .iter()
                .all(|events| events == &Value::Array(Vec::new())),
            "no events were kept"
        );
        equal!(
            list(&snapshot, "host_segments")?.is_empty(),
            device == 0,
            "pinned memory is told of all devices only"
        );
        check!(
            snapshot["allocator_settings"].is_object(),
            "there are settings"
        );
    }
    Ok(otr!(host_free, host)?)
}
