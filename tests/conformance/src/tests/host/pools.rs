//! Pools: memory that is separate from what all share, for threads and graphs, with limits.

pub(in crate::tests) mod asleep;

use std::ptr::null_mut;

use crate::tests::host::bindings::*;
use outrigger_device::{Code, CopyKind};
use serde_json::Value;

use super::{
    alloc, begin, download, end, executable, fill, filled, json, made, otr, refused, start, stats,
    stream, upload,
};
use crate::test::tests;
use crate::tests::kit::{pattern, threads};
use crate::verdict::{check, equal};
use crate::{Context, Need, Verdict};

tests! { "host-abi.pool":
    /// A thread allocates from the pool of its innermost use that fits, and other threads are not concerned.
    uses_of_pools: H14 H15;
    /// Uses end in the reverse order, on their thread.
    uses_end_in_order: H2 H15;
    /// Memory of a pool is its own: nobody else gets it, and it stays cached while the pool lives.
    a_pool_is_apart: H11 H23;
    /// The handle may go before the memory does.
    memory_outlives_the_handle: H5 H11 H13;
    /// A request that the limit of a pool has no room for is refused, and is met once the limit is lifted.
    limits: H2 H24;
    /// A snapshot of a pool tells its segments alone.
    snapshots: H11;
    /// Graphs allocate from a pool that they are given.
    graphs_share_a_pool: H25 H27;
    /// Memory that a graph needs in between may serve others between replays: replays and others compute what they
    /// should.
    others_use_what_a_graph_has_free: H23 H27;
    /// A pool serves streams and graphs of its device only.
    pools_stay_on_their_device: H2 H8, needs TwoDevices;
}

const MIB: u64 = 1 << 20;

fn pool() -> Verdict<u64> {
    made(|out| otr!(pool_create, 0, out))
}

fn figures(pool: u64) -> Verdict<otr_pool_info_t> {
    filled(|out| otr!(pool_info, pool, out))
}

fn pool_alloc(pool: u64, size: u64, stream: u64) -> Verdict<u64> {
    made(|out| otr!(pool_alloc, pool, size, stream, out))
}

fn facts(address: u64) -> Verdict<otr_pointer_info_t> {
    filled(|out| otr!(memory_pointer_info, 0, address, out))
}

fn free(address: u64) -> Verdict {
    Ok(otr!(memory_free, 0, address)?)
}

/// The pool of which new memory is.
fn pool_of_new(stream: u64) -> Verdict<u64> {
    let address = alloc(3000, stream)?;
    let known = facts(address)?;
    equal!(
        known.pool == 0,
        known.pool_number == 0,
        "whether memory of a pool has handle and number"
    );
    free(address)?;
    Ok(known.pool)
}

fn begin_use(pool: u64, stream: u64) -> Verdict {
    Ok(otr!(pool_begin_use, pool, stream)?)
}

fn uses_of_pools(context: &Context) -> Verdict {
    start(context)?;
    let (first, second) = (stream()?, stream()?);
    let (outer, inner) = (pool()?, pool()?);
    equal!(pool_of_new(first)?, 0, "the pool of memory that all share");
    begin_use(outer, 0)?;
    begin_use(inner, second)?;
    equal!(
        pool_of_new(first)?,
        outer,
        "the inner use is of another stream"
    );
    equal!(pool_of_new(second)?, inner, "the inner use");
    threads(1, |_| {
        equal!(pool_of_new(second)?, 0, "the pool of another thread");
        begin_use(inner, 0)?;
        equal!(pool_of_new(first)?, inner, "the use of that thread");
        Ok(otr!(pool_end_use, inner)?)
    })?;
    otr!(pool_end_use, inner)?;
    equal!(pool_of_new(second)?, outer, "the outer use");
    // A pool that is named comes before one that is used.
    let named = pool_alloc(inner, 500, first)?;
    equal!(facts(named)?.pool, inner, "the pool that was named");
    free(named)?;
    otr!(pool_end_use, outer)?;
    equal!(pool_of_new(first)?, 0, "the pool without a use");
    Ok(())
}

fn uses_end_in_order(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let (outer, inner) = (pool()?, pool()?);
    begin_use(outer, 0)?;
    begin_use(inner, 0)?;
    refused(
        otr!(pool_end_use, outer),
        Code::INVALID_ARGUMENT,
        "the end of the outer use first",
    )?;
    threads(1, |_| {
        refused(
            otr!(pool_end_use, inner),
            Code::INVALID_ARGUMENT,
            "the end of another thread's use",
        )?;
        Ok(())
    })?;
    equal!(pool_of_new(stream)?, inner, "the use after refused ends");
    refused(
        otr!(pool_begin_use, outer, 77),
        Code::INVALID_HANDLE,
        "a use for a stream that is none",
    )?;
    equal!(pool_of_new(stream)?, inner, "the use after a refused one");
    otr!(pool_end_use, inner)?;
    otr!(pool_end_use, outer)?;
    refused(
        otr!(pool_end_use, outer),
        Code::INVALID_ARGUMENT,
        "one end too many",
    )?;
    Ok(())
}

fn a_pool_is_apart(context: &Context) -> Verdict {
    start(context)?;
    let (stream, pool) = (stream()?, pool()?);
    let empty = figures(pool)?;
    equal!(
        (empty.reserved_bytes, empty.allocated_bytes, empty.segments),
        (0, 0, 0),
        "what a new pool holds"
    );
    equal!(
        (empty.device, empty.users, empty.limit, empty.asleep),
        (0, 0, u64::MAX, 0),
        "its device, users, limit and sleep"
    );
    check!(empty.number != 0, "it has a number");
    let (small, large) = (
        pool_alloc(pool, 700, stream)?,
        pool_alloc(pool, 5 * MIB, stream)?,
    );
    equal!(pool_alloc(pool, 0, stream)?, 0, "the address of 0 bytes");
    let used = figures(pool)?;
    check!(
        used.allocated_bytes >= 5 * MIB + 700 && used.reserved_bytes >= used.allocated_bytes,
        "{} bytes in use, of {} that were taken",
        used.allocated_bytes,
        used.reserved_bytes
    );
    equal!(
        used.peak_allocated_bytes,
        used.allocated_bytes,
        "the most that were in use"
    );
    check!(used.segments > 0, "there are segments");
    let known = facts(large)?;
    equal!(
        (known.pool, known.pool_number, known.requested),
        (pool, empty.number, 5 * MIB),
        "pool, its number, and size of its memory"
    );
    fill(stream, large, 5 * MIB, &[1])?;
    free(large)?;
    otr!(device_synchronize, 0)?;
    otr!(memory_empty_cache, 0)?;
    otr!(memory_trim, 0, 0, null_mut())?;
    let cached = figures(pool)?;
    equal!(
        (cached.reserved_bytes, cached.peak_allocated_bytes),
        (used.reserved_bytes, used.peak_allocated_bytes),
        "what a live pool holds, and has used, after caches were emptied"
    );
    check!(
        cached.allocated_bytes < used.allocated_bytes,
        "less is in use"
    );
    let shared = alloc(5 * MIB, stream)?;
    equal!(facts(shared)?.pool, 0, "the pool of others' memory");
    let again = pool_alloc(pool, 5 * MIB, stream)?;
    equal!(
        figures(pool)?.reserved_bytes,
        used.reserved_bytes,
        "what the pool holds after it has used its memory again"
    );
    for address in [small, shared, again] {
        free(address)?;
    }
    Ok(otr!(pool_destroy, pool)?)
}

fn memory_outlives_the_handle(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    otr!(memory_empty_cache, 0)?;
    let (before, pool) = (stats()?.reserved_bytes.current, pool()?);
    let number = figures(pool)?.number;
    let kept = pool_alloc(pool, 3 * MIB, stream)?;
    fill(stream, kept, 3 * MIB, &[5])?;
    begin_use(pool, 0)?;
    equal!(figures(pool)?.users, 1, "users");
    otr!(pool_destroy, pool)?;
    refused(
        otr!(pool_alloc, pool, 64, stream, &mut 0),
        Code::INVALID_HANDLE,
        "memory of a pool whose handle is gone",
    )?;
    // The use goes on until it ends.
    let late = alloc(900, stream)?;
    equal!(
        (facts(late)?.pool, facts(late)?.pool_number),
        (0, number),
        "handle and number of the pool of late memory"
    );
    otr!(pool_end_use, pool)?;
    equal!(
        download::<u8>(stream, kept, 64)?,
        [5; 64],
        "what the pool has held"
    );
    free(kept)?;
    free(late)?;
    otr!(device_synchronize, 0)?;
    otr!(memory_empty_cache, 0)?;
    equal!(
        stats()?.reserved_bytes.current,
        before,
        "what is held after the last block was freed"
    );
    Ok(())
}

fn limits(context: &Context) -> Verdict {
    start(context)?;
    let (stream, pool) = (stream()?, pool()?);
    let kept = pool_alloc(pool, 4 * MIB, stream)?;
    fill(stream, kept, 4 * MIB, &[2])?;
    let used = figures(pool)?;
    let limit = used.allocated_bytes + MIB;
    otr!(pool_set_limit, pool, limit)?;
    equal!(figures(pool)?.limit, limit, "the limit that was set");
    for size in [MIB + 1, 8 * MIB, u64::MAX] {
        let mut out = 0x5a;
        refused(
            otr!(pool_alloc, pool, size, stream, &mut out),
            Code::OUT_OF_MEMORY,
            &format!("{size} bytes more"),
        )?;
        equal!(out, 0x5a, "H2: the output of a failed call");
    }
    equal!(
        figures(pool)?.allocated_bytes,
        used.allocated_bytes,
        "bytes in use after refused requests"
    );
    free(pool_alloc(pool, MIB, stream)?)?;
    // Memory that all share is under no such limit, and neither is another pool.
    free(alloc(8 * MIB, stream)?)?;
    otr!(pool_set_limit, pool, 0)?;
    equal!(
        download::<u8>(stream, kept, 64)?,
        [2; 64],
        "what is in use stays"
    );
    otr!(pool_set_limit, pool, u64::MAX)?;
    free(pool_alloc(pool, 8 * MIB, stream)?)?;
    free(kept)
}

fn snapshots(context: &Context) -> Verdict {
    start(context)?;
    let (stream, pool) = (stream()?, pool()?);
    alloc(3 * MIB, stream)?;
    let addresses = [
        pool_alloc(pool, 700, stream)?,
        pool_alloc(pool, 5 * MIB, stream)?,
    ];
    let snapshot = json(|out| otr!(pool_snapshot, pool, out))?;
    let segments: Vec<&Value> = snapshot["segments"]
        .as_array()
        .into_iter()
        .flatten()
        .collect();
    let known = figures(pool)?;
    check!(
        segments
            .iter()
            .all(|segment| segment["segment_pool_id"][1] == known.number),
        "all segments are of pool {}, in {snapshot}",
        known.number
    );
    let held: u64 = segments
        .iter()
        .filter(|segment| segment["is_view"] != true)
        .filter_map(|segment| segment["total_size"].as_u64())
        .sum();
    equal!(held, known.reserved_bytes, "bytes of all segments");
    for address in addresses {
        let mut blocks = segments
            .iter()
            .filter_map(|segment| segment["blocks"].as_array())
            .flatten();
        check!(
            blocks.any(|block| block["address"] == address),
            "the block at {address:#x}, in {snapshot}"
        );
    }
    Ok(())
}

fn graphs_share_a_pool(context: &Context) -> Verdict {
    start(context)?;
    let (stream, pool) = (stream()?, pool()?);
    let result = alloc(64, stream)?;
    let captured = |value: u8| {
        otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, pool)?;
        let inner = alloc(MIB, stream)?;
        fill(stream, inner, MIB, &[value])?;
        let kind = CopyKind::DeviceToDevice.raw();
        otr!(copy, stream, result, inner + MIB - 64, 64, kind)?;
        free(inner)?;
        let graph = end(stream)?;
        let exec = executable(graph)?;
        otr!(graph_destroy, graph)?;
        Verdict::Ok(exec)
    };
    let (first, second) = (captured(1)?, captured(2)?);
    let held = figures(pool)?;
    check!(
        held.users >= 2 && held.reserved_bytes >= MIB,
        "{} users of {} bytes",
        held.users,
        held.reserved_bytes
    );
    check!(
        held.reserved_bytes < 8 * MIB,
        "two graphs use the same memory: {} bytes",
        held.reserved_bytes
    );
    // The pool lives on in them.
    otr!(pool_destroy, pool)?;
    for (exec, value) in [(first, 1), (second, 2), (first, 1)] {
        otr!(graph_replay, exec, stream)?;
        equal!(
            download::<u8>(stream, result, 64)?,
            [value; 64],
            "the result of a replay"
        );
    }
    Ok(())
}

fn others_use_what_a_graph_has_free(context: &Context) -> Verdict {
    const SIZE: u64 = 6 * MIB;
    start(context)?;
    let streams = [stream()?, stream()?];
    let result = alloc(64, streams[0])?;
    begin(streams[0])?;
    let inner = alloc(SIZE, streams[0])?;
    fill(streams[0], inner, SIZE, &[77])?;
    let kind = CopyKind::DeviceToDevice.raw();
    otr!(copy, streams[0], result, inner + SIZE - 64, 64, kind)?;
    free(inner)?;
    let graph = end(streams[0])?;
    let exec = executable(graph)?;
    otr!(graph_destroy, graph)?;
    // On the stream of the replays and on another one, freed before the replay and in use during it.
    for (round, freed) in [true, false, false, true, false, true]
        .into_iter()
        .enumerate()
    {
        let (at, value) = (streams[round / 2 % 2], round as u8 + 1);
        fill(streams[0], result, 64, &[0])?;
        let block = alloc(SIZE, at)?;
        fill(at, block, SIZE, &[value])?;
        if freed {
            free(block)?;
        }
        otr!(graph_replay, exec, streams[0])?;
        equal!(
            download::<u8>(streams[0], result, 64)?,
            [77; 64],
            "the result of replay {round}"
        );
        if !freed {
            let found = download::<u8>(at, block, SIZE as usize)?;
            let right = found.iter().filter(|&&byte| byte == value).count();
            equal!(right, SIZE as usize, "bytes that replay {round} left alone");
            free(block)?;
        }
    }
    Ok(otr!(graph_exec_destroy, exec)?)
}

fn pools_stay_on_their_device(context: &Context) -> Verdict {
    start(context)?;
    let stream = stream()?;
    let other = made(|out| otr!(stream_create, 1, 0, out))?;
    let (here, there) = (pool()?, made(|out| otr!(pool_create, 1, out))?);
    equal!(figures(there)?.device, 1, "the device of the other pool");
    let mut out = 0x5a;
    let wrong = [
        (
            "memory for a stream of another device",
            otr!(pool_alloc, there, 64, stream, &mut out),
        ),
        (
            "a use for a stream of another device",
            otr!(pool_begin_use, here, other),
        ),
        (
            "a capture into a pool of another device",
            otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, there),
        ),
        (
            "a graph in a pool of another device",
            otr!(graph_create, 0, there, &mut out),
        ),
    ];
    for (what, answer) in wrong {
        refused(answer, Code::INVALID_ARGUMENT, what)?;
    }
    equal!(out, 0x5a, "H2: outputs of failed calls");
    begin_use(there, 0)?;
    equal!(pool_of_new(stream)?, 0, "the pool of memory of this device");
    let address = made(|out| otr!(memory_alloc, 1, 64, other, out))?;
    let known = filled::<otr_pointer_info_t>(|out| otr!(memory_pointer_info, 1, address, out))?;
    equal!(known.pool, there, "and of the other");
    Ok(otr!(pool_end_use, there)?)
}
