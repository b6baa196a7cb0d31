//! R29, R38 and R39: physical memory, how it is counted, and when it goes back.

use super::*;

tests! { "memory.object":
    /// Objects take memory from the device, share it with allocations, and give it back.
    objects_take_memory: R29 R38, needs VirtualMemory;
    /// Sizes that are no multiples of the granularity are refused.
    odd_sizes_are_refused: R7 R38, needs VirtualMemory;
    /// More than the device has is out of memory.
    too_much_is_out_of_memory: R29 R38, needs VirtualMemory;
    /// An object counts as used in `memory_info` until it is gone.
    objects_are_counted: R38, needs VirtualMemory MemoryInfo;
    /// Memory of a destroyed object goes with its last unmap, and not before.
    memory_goes_with_the_last_unmap: R38 R39, needs VirtualMemory;
    /// Objects come and go, thousands of times.
    objects_come_and_go: R38, needs VirtualMemory;
}

fn objects_take_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    let total = bench.properties(0)?.total_memory;
    let size = (total / 8).next_multiple_of(granule);
    for _ in 0..3 {
        let mut objects = Vec::new();
        let error = loop {
            match memory.create(0, size) {
                Ok(object) => objects.push(object),
                Err(error) => break error,
            }
            check!(objects.len() <= 8, "no more than the device has is given");
        };
        equal!(error.code(), Code::OUT_OF_MEMORY, "where nothing is left");
        check!(
            objects.len() >= 4,
            "{} of 8 parts could be had",
            objects.len()
        );
        refused(
            bench.memory_alloc(0, total - size),
            Code::OUT_OF_MEMORY,
            "an allocation beside them",
        )?;
        for object in objects {
            // SAFETY: a live object, given back once.
            unsafe { memory.destroy(object) }?;
        }
    }
    bench.finish()
}

fn odd_sizes_are_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    for size in [0, 1, granule / 2, granule + 1, granule * 3 - 64] {
        refused(
            memory.create(0, size),
            Code::INVALID_ARGUMENT,
            &format!("an object of {size} bytes"),
        )?;
    }
    bench.finish()
}

fn too_much_is_out_of_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    let total = bench.properties(0)?.total_memory;
    for size in [total + 1, u64::MAX / 2, u64::MAX - 1] {
        let most = u64::MAX / granule * granule;
        let size = size.checked_next_multiple_of(granule).unwrap_or(most);
        refused(
            memory.create(0, size),
            Code::OUT_OF_MEMORY,
            &format!("an object of {size} bytes"),
        )?;
    }
    bench.finish()
}

fn objects_are_counted(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    let Some((before, total)) = bench.memory_info(0)? else {
        return Err(Failure::new("the driver has the group memory_info"));
    };
    let object = memory.create(0, 2 * granule)?;
    let now = bench.memory_info(0)?;
    check!(
        now.is_some_and(|(free, all)| free <= before - 2 * granule && all == total),
        "{before} before, {now:?} with an object"
    );
    // SAFETY: a live object, given back once.
    unsafe { memory.destroy(object) }?;
    equal!(bench.memory_info(0)?, Some((before, total)), "without it");
    bench.finish()
}

fn memory_goes_with_the_last_unmap(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, before) = (bench.queue()?, free(bench.driver())?);
    let mut space = Space::new(&bench, 3, 1)?;
    space.map(0, &[0])?;
    space.map(2, &[0])?;
    write(&queue, space.at(0), b"still here")?;
    queue.synchronize()?;
    if let Some(object) = space.objects.pop() {
        // SAFETY: a live object, given back once.
        unsafe { space.group()?.destroy(object) }?;
    }
    equal!(
        read(&queue, space.at(2), 10)?,
        b"still here",
        "bytes of a destroyed object that is mapped"
    );
    space.unmap(0, 1)?;
    equal!(
        read(&queue, space.at(2), 10)?,
        b"still here",
        "bytes at its last address"
    );
    if let (Some((was, _)), Some((is, _))) = (before[0], free(bench.driver())?[0]) {
        check!(
            is <= was - space.granule,
            "it counts as used until its last unmap"
        );
    }
    space.unmap(2, 1)?;
    equal!(
        free(bench.driver())?,
        before,
        "free memory after the last unmap"
    );
    space.end()?;
    bench.finish()
}

fn objects_come_and_go(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    for _ in 0..2000 {
        let object = memory.create(0, granule)?;
        // SAFETY: a live object, given back once.
        unsafe { memory.destroy(object) }?;
    }
    bench.finish()
}
