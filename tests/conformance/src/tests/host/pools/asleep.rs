//! Pools that sleep: their memory goes back to the device, and returns with its contents.

use super::*;

tests! { "host-abi.sleep":
    /// A pool that sleeps gives its memory to the device, and wakes with all that it has held.
    contents_survive: H21 H23, needs VirtualMemory;
    /// A user of a pool that sleeps is refused; all that has nothing to do with the pool goes on.
    users_are_refused: H2 H22, needs VirtualMemory;
    /// Memory that a graph keeps of a pool that sleeps outlives the pool's handle, or is refused where it was not
    /// woken.
    what_a_graph_keeps: H13 H24 H27, needs VirtualMemory;
    /// A pool that finds no memory sleeps on, and nothing of it is lost.
    a_pool_that_cannot_wake: H2 H24, needs VirtualMemory;
    /// A pool falls asleep where there is virtual memory, and that is OTR_ERR_UNSUPPORTED elsewhere.
    sleeps_or_is_unsupported: H2, absent VirtualMemory;
}

fn sleep(pool: u64) -> Verdict<u64> {
    made(|out| otr!(pool_sleep, pool, out))
}

fn contents_survive(context: &Context) -> Verdict {
    start(context)?;
    let (first, second, pool) = (stream()?, stream()?, pool()?);
    let mut blocks = Vec::new();
    for (at, size) in [4, 3000, 300_000, 3 * MIB, 9 * MIB + 4096]
        .into_iter()
        .enumerate()
    {
        let (stream, bytes) = ([first, second][at % 2], pattern(size as usize, at as u64));
        let address = pool_alloc(pool, size, stream)?;
        upload(stream, address, &bytes)?;
        blocks.push((address, bytes));
    }
    // Work that is still under way is part of what comes back.
    let late = pool_alloc(pool, 4 * MIB, first)?;
    fill(first, late, 4 * MIB, &[7])?;
    let held = figures(pool)?;
    let released = sleep(pool)?;
    equal!(
        released,
        held.reserved_bytes,
        "bytes that the device got back"
    );
    let asleep = figures(pool)?;
    equal!(
        (asleep.asleep, asleep.asleep_bytes, asleep.reserved_bytes),
        (1, released, 0),
        "whether it sleeps, with how much, and what it holds"
    );
    equal!(
        asleep.allocated_bytes,
        held.allocated_bytes,
        "bytes that are in use of it"
    );
    equal!(sleep(pool)?, 0, "bytes given back by a pool that sleeps");
    // Others get the memory meanwhile, and write all over it.
    let other = alloc(released, first)?;
    fill(first, other, released, &[9])?;
    otr!(stream_synchronize, first)?;
    free(other)?;
    let gone = blocks.remove(1);
    free(gone.0)?;
    for _ in 0..2 {
        otr!(pool_wake, pool)?;
    }
    let awake = figures(pool)?;
    equal!(
        (awake.asleep, awake.asleep_bytes, awake.reserved_bytes),
        (0, 0, held.reserved_bytes),
        "whether it sleeps, with how much, and what it holds"
    );
    for (address, bytes) in &blocks {
        equal!(
            &download::<u8>(first, *address, bytes.len())?,
            bytes,
            "{} bytes that slept",
            bytes.len()
        );
    }
    equal!(
        download::<u8>(first, late, 4 << 20)?,
        vec![7; 4 << 20],
        "work that was under way"
    );
    otr!(pool_sleep, pool, null_mut())?;
    // Memory in use outlives the handle, also of a pool that sleeps.
    otr!(pool_destroy, pool)?;
    let (address, bytes) = &blocks[0];
    equal!(
        &download::<u8>(first, *address, bytes.len())?,
        bytes,
        "what a destroyed pool has held"
    );
    Ok(())
}

fn users_are_refused(context: &Context) -> Verdict {
    start(context)?;
    let (stream, pool) = (stream()?, pool()?);
    let (inside, outside) = (pool_alloc(pool, 4096, stream)?, alloc(4096, stream)?);
    let d2d = CopyKind::DeviceToDevice.raw();
    upload(stream, inside, &[3u8; 4096])?;
    // One graph has its own memory in the pool, the other one reads some of the pool's.
    otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, pool)?;
    refused(
        otr!(pool_sleep, pool, null_mut()),
        Code::CAPTURE,
        "the sleep of a pool into which is recorded",
    )?;
    equal!(figures(pool)?.asleep, 0, "whether it sleeps");
    let own = alloc(4096, stream)?;
    fill(stream, own, 4096, &[4])?;
    otr!(copy, stream, outside, own, 4096, d2d)?;
    let first = made(|out| otr!(capture_end, stream, out))?;
    otr!(capture_begin, stream, OTR_CAPTURE_GLOBAL, 0)?;
    otr!(copy, stream, outside, inside, 4096, d2d)?;
    let second = made(|out| otr!(capture_end, stream, out))?;
    let mut execs = [0; 2];
    for (exec, graph) in execs.iter_mut().zip([first, second]) {
        otr!(graph_instantiate, graph, 0, exec)?;
    }
    sleep(pool)?;
    let pattern = [1u8];
    let busy = [
        ("a replay", otr!(graph_replay, execs[0], stream)),
        ("a replay that reads", otr!(graph_replay, execs[1], stream)),
        ("an allocation", otr!(pool_alloc, pool, 64, stream, &mut 0)),
        (
            "a copy from it",
            otr!(copy, stream, outside, inside, 64, d2d),
        ),
        (
            "a fill of it",
            otr!(fill, stream, inside, 64, pattern.as_ptr().cast(), 1),
        ),
    ];
    for (what, answer) in busy {
        refused(answer, Code::BUSY, what)?;
    }
    if context.has(&context.open()?, Need::Graphs) {
        for graph in [first, second] {
            let made = otr!(graph_instantiate, graph, OTR_GRAPH_NATIVE, &mut 0);
            refused(made, Code::BUSY, "a graph of the driver over it")?;
        }
    }
    let snapshot = json(|out| otr!(pool_snapshot, pool, out))?;
    equal!(snapshot["segments"], serde_json::json!([]), "its segments");
    fill(stream, outside, 4096, &[6])?;
    equal!(
        download::<u8>(stream, outside, 64)?,
        [6; 64],
        "work that has nothing to do with it"
    );
    otr!(pool_wake, pool)?;
    for (exec, value) in execs.into_iter().zip([4, 3]) {
        otr!(graph_replay, exec, stream)?;
        equal!(
            download::<u8>(stream, outside, 4096)?,
            vec![value; 4096],
            "the result of a replay after it woke"
        );
    }
    Ok(())
}

fn what_a_graph_keeps(context: &Context) -> Verdict {
    start(context)?;
    for lost in [false, true] {
        let (stream, pool) = (stream()?, pool()?);
        let (inside, outside) = (pool_alloc(pool, 8 * MIB, stream)?, alloc(64, stream)?);
        fill(stream, inside, 64, &[3])?;
        fill(stream, outside, 64, &[0])?;
        begin(stream)?;
        super::super::copy(stream, outside, inside)?;
        let exec = executable(end(stream)?)?;
        free(inside)?;
        otr!(stream_synchronize, stream)?;
        otr!(memory_empty_cache, 0)?;
        sleep(pool)?;
        if lost {
            otr!(memory_set_limit, 0, 4 * MIB)?;
        }
        otr!(pool_destroy, pool)?;
        otr!(memory_set_limit, 0, u64::MAX)?;
        let replayed = otr!(graph_replay, exec, stream);
        if lost {
            refused(replayed, Code::BUSY, "a replay on memory that sleeps")?;
        } else {
            replayed?;
        }
        let value = if lost { 0 } else { 3 };
        equal!(
            download::<u8>(stream, outside, 64)?,
            [value; 64],
            "what a replay has copied"
        );
        otr!(graph_exec_destroy, exec)?;
    }
    Ok(())
}

fn a_pool_that_cannot_wake(context: &Context) -> Verdict {
    start(context)?;
    let (stream, pool) = (stream()?, pool()?);
    let bytes = pattern(8 << 20, context.seed());
    let address = pool_alloc(pool, 8 * MIB, stream)?;
    upload(stream, address, &bytes)?;
    otr!(memory_empty_cache, 0)?;
    sleep(pool)?;
    otr!(memory_set_limit, 0, 4 * MIB)?;
    for _ in 0..2 {
        refused(
            otr!(pool_wake, pool),
            Code::OUT_OF_MEMORY,
            "a pool that finds no memory",
        )?;
        equal!(figures(pool)?.asleep, 1, "whether it sleeps");
    }
    otr!(memory_set_limit, 0, u64::MAX)?;
    otr!(pool_wake, pool)?;
    equal!(
        download::<u8>(stream, address, bytes.len())?,
        bytes,
        "what it has held"
    );
    Ok(())
}

fn sleeps_or_is_unsupported(context: &Context) -> Verdict {
    start(context)?;
    let (stream, pool) = (stream()?, pool()?);
    let address = pool_alloc(pool, 5000, stream)?;
    fill(stream, address, 5000, &[8])?;
    let mut released = 0x5a;
    let answer = otr!(pool_sleep, pool, &mut released);
    if context.has(&context.open()?, Need::VirtualMemory) {
        answer?;
        check!(released >= 5000, "{released} bytes were given back");
    } else {
        refused(answer, Code::UNSUPPORTED, "sleep without virtual memory")?;
        equal!(released, 0x5a, "H2: the output of a failed call");
        equal!(figures(pool)?.asleep, 0, "whether it sleeps");
    }
    otr!(pool_wake, pool)?;
    equal!(
        download::<u8>(stream, address, 5000)?,
        vec![8; 5000],
        "what the pool has held"
    );
    Ok(())
}
