//! R39 to R41: what is mapped where, what is refused, and other work that runs meanwhile.

use super::*;

tests! { "memory.map":
    /// Mapped memory is read and written as allocated memory is.
    mapped_memory_is_memory: R39 R41, needs VirtualMemory;
    /// Objects lie one behind the other, in the order in which they were given.
    objects_lie_in_order: R39, needs VirtualMemory;
    /// All addresses of an object reach the same bytes.
    all_addresses_reach_the_same_bytes: R16 R39, needs VirtualMemory;
    /// Bytes that one queue wrote at one address, another that waits for it reads at another.
    over_queues_and_addresses: R24 R39, needs VirtualMemory;
    /// An object is mapped twice by one call.
    twice_in_one_call: R39, needs VirtualMemory;
    /// The contents of an object go with it to another address.
    contents_move_with_the_object: R39, needs VirtualMemory;
    /// A map of nothing is refused.
    of_nothing_is_refused: R4 R7 R39, needs VirtualMemory, run |c| not_mapped(c, 0, &[]);
    /// A map over the end of the range is refused, and maps nothing.
    over_the_end_is_refused: R4 R39, needs VirtualMemory, run |c| not_mapped(c, 5, &[1, 2]);
    /// A map onto what is mapped is refused, and maps nothing.
    onto_a_mapping_is_refused: R4 R39, needs VirtualMemory, run |c| not_mapped(c, 2, &[1]);
    /// A map of which the last object would lie onto a mapping is refused, and maps nothing.
    into_a_mapping_is_refused: R4 R39, needs VirtualMemory, run |c| not_mapped(c, 0, &[1, 2, 1]);
    /// A map between granules is refused.
    between_granules_is_refused: R4 R37 R39, needs VirtualMemory;
    /// A map outside of all ranges is refused.
    outside_of_ranges_is_refused: R4 R39, needs VirtualMemory;
    /// Objects of another device are refused, also among right ones.
    of_another_device_is_refused: R4 R39, needs VirtualMemory TwoDevices;
    /// Memory is mapped and unmapped beside work that waits for the caller.
    beside_work_that_waits: R40, needs VirtualMemory;
    /// Mappings come and go while work runs on other mappings of the same objects.
    beside_work_on_the_same_objects: R40, needs VirtualMemory;
    /// An unmap of part of an object is refused, and nothing is unmapped.
    part_of_an_object_stays: R4 R40, needs VirtualMemory, run |c| not_unmapped(c, 1, 1);
    /// An unmap that begins within an object is refused.
    the_second_half_of_an_object_stays: R4 R40, needs VirtualMemory, run |c| not_unmapped(c, 2, 2);
    /// An unmap over a gap is refused.
    over_a_gap_is_refused: R4 R40, needs VirtualMemory, run |c| not_unmapped(c, 3, 4);
    /// An unmap of what is not mapped is refused.
    of_what_is_not_mapped_is_refused: R4 R40, needs VirtualMemory, run |c| not_unmapped(c, 4, 1);
    /// An unmap of no bytes is refused.
    an_unmap_of_nothing_is_refused: R4 R7 R40, needs VirtualMemory, run |c| not_unmapped(c, 0, 0);
    /// One unmap takes what several maps have put there, and part of what one did.
    an_unmap_of_several: R40, needs VirtualMemory;
    /// Copies and fills reach across the borders of objects.
    commands_reach_across: R41, needs VirtualMemory;
    /// Kernels reach across the borders of objects.
    kernels_reach_across: R41, needs VirtualMemory HostKernels;
}

fn mapped_memory_is_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space, other) = (
        bench.queue()?,
        Space::new(&bench, 2, 2)?,
        bench.memory(4096)?,
    );
    space.map(0, &[0, 1])?;
    fill(&queue, space.at(0), 2 * space.granule, &[1, 2])?;
    within(&queue, other, space.at(1) - 2048, 4096)?;
    equal!(
        read(&queue, other, 4096)?,
        [1, 2].repeat(2048),
        "copied from mapped memory"
    );
    fill(&queue, other, 4096, &[7])?;
    within(&queue, space.at(0), other, 4096)?;
    holds(&queue, space.at(0), 4096, 7, "copied to mapped memory")?;
    space.unmap(0, 2)?;
    space.end()?;
    bench.finish()
}

fn objects_lie_in_order(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 6, 3)?);
    for object in 0..3 {
        space.map(5, &[object])?;
        fill(&queue, space.at(5), space.granule, &[object as u8])?;
        queue.synchronize()?;
        space.unmap(5, 1)?;
    }
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 1, 0]] {
        space.map(1, &order)?;
        for (at, object) in order.into_iter().enumerate() {
            holds(
                &queue,
                space.at(1 + at as u64),
                64,
                object as u8,
                "the start of an object",
            )?;
            holds(
                &queue,
                space.at(2 + at as u64) - 64,
                64,
                object as u8,
                "the end of an object",
            )?;
        }
        space.unmap(1, 3)?;
    }
    space.end()?;
    bench.finish()
}

fn all_addresses_reach_the_same_bytes(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 8, 3)?);
    space.map(0, &[0, 1, 2])?;
    space.map(4, &[2, 0, 0])?;
    for round in 0..50u8 {
        let at = u64::from(round) * 64;
        fill(&queue, space.at(0) + at, 64, &[round])?;
        holds(
            &queue,
            space.at(5) + at,
            64,
            round,
            "object 0 at its second address",
        )?;
        fill(&queue, space.at(6) + at, 64, &[round ^ 0xff])?;
        holds(
            &queue,
            space.at(0) + at,
            64,
            round ^ 0xff,
            "object 0 at its first, written at its third",
        )?;
        fill(&queue, space.at(4) + at, 64, &[round ^ 0x55])?;
        holds(&queue, space.at(2) + at, 64, round ^ 0x55, "object 2")?;
    }
    space.unmap(4, 3)?;
    holds(
        &queue,
        space.at(0),
        64,
        0xff,
        "object 0, with one address left",
    )?;
    space.unmap(0, 3)?;
    space.end()?;
    bench.finish()
}

fn over_queues_and_addresses(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (first, second) = (bench.queue()?, bench.queue()?);
    let (go, done) = (bench.event()?, bench.event()?);
    let space = Space::new(&bench, 4, 2)?;
    space.map(0, &[0, 1])?;
    space.map(2, &[1, 0])?;
    for round in 1..=40u8 {
        fill(&first, space.at(0), space.granule, &[round])?;
        go.record(&first)?;
        second.wait_event(&go)?;
        // From object 0, at its second address, to object 1, at its second.
        within(&second, space.at(2), space.at(3), space.granule)?;
        done.record(&second)?;
        first.wait_event(&done)?;
        holds(
            &first,
            space.at(1),
            space.granule as usize,
            round,
            "object 1 at its first address",
        )?;
    }
    space.unmap(0, 4)?;
    space.end()?;
    bench.finish()
}

fn twice_in_one_call(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 4, 1)?);
    space.map(0, &[0, 0, 0])?;
    fill(&queue, space.at(1), space.granule, &[5])?;
    for at in 0..3 {
        holds(&queue, space.at(at), 256, 5, "one of three addresses")?;
    }
    space.unmap(0, 3)?;
    space.end()?;
    bench.finish()
}

fn contents_move_with_the_object(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 8, 2)?);
    space.map(0, &[0])?;
    space.map(1, &[1])?;
    fill(&queue, space.at(0), space.granule, &[1])?;
    fill(&queue, space.at(1), space.granule, &[2])?;
    queue.synchronize()?;
    space.unmap(0, 2)?;
    space.map(6, &[1, 0])?;
    holds(
        &queue,
        space.at(6),
        space.granule as usize,
        2,
        "object 1 at its new address",
    )?;
    holds(
        &queue,
        space.at(7),
        space.granule as usize,
        1,
        "object 0 at its new address",
    )?;
    space.unmap(6, 2)?;
    space.end()?;
    bench.finish()
}

/// A range of 6 granules, of which the third is mapped: tries a map that is refused.
fn not_mapped(context: &Context, granule: u64, objects: &[usize]) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 6, 3)?);
    space.map(2, &[0])?;
    fill(&queue, space.at(2), space.granule, &[6])?;
    queue.synchronize()?;
    let objects: Vec<Physical> = objects.iter().map(|&i| space.objects[i]).collect();
    // SAFETY: live objects of this driver.
    let answer = unsafe { space.group()?.map(space.at(granule), &objects) };
    refused(answer, Code::INVALID_ARGUMENT, "the map")?;
    unharmed(&queue, space)?;
    bench.finish()
}

/// Checks that the bytes mapped in the third granule are there, and that all else is free to be mapped.
fn unharmed(queue: &outrigger_device::Queue, space: Space<'_>) -> Verdict {
    holds(
        queue,
        space.at(2),
        space.granule as usize,
        6,
        "what is mapped",
    )?;
    space.map(0, &[1, 2])?;
    space.map(3, &[1, 2, 0])?;
    holds(
        queue,
        space.at(5),
        64,
        6,
        "the same object at another address",
    )?;
    space.unmap(0, 6)?;
    space.end()
}

fn between_granules_is_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 6, 3)?);
    space.map(2, &[0])?;
    fill(&queue, space.at(2), space.granule, &[6])?;
    queue.synchronize()?;
    for offset in [1, 64, space.granule / 2] {
        // SAFETY: live objects of this driver.
        let answer = unsafe {
            space
                .group()?
                .map(space.at(3) + offset, &space.objects[1..2])
        };
        refused(answer, Code::INVALID_ARGUMENT, "a map between granules")?;
    }
    unharmed(&queue, space)?;
    bench.finish()
}

fn outside_of_ranges_is_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 6, 3)?);
    space.map(2, &[0])?;
    fill(&queue, space.at(2), space.granule, &[6])?;
    queue.synchronize()?;
    let gone = space.group()?.reserve(0, space.granule, 0)?;
    space.group()?.release(gone, space.granule)?;
    for address in [0, gone, u64::MAX / space.granule * space.granule] {
        // SAFETY: live objects of this driver.
        let answer = unsafe { space.group()?.map(address, &space.objects[1..2]) };
        refused(
            answer,
            Code::INVALID_ARGUMENT,
            "a map outside of all ranges",
        )?;
    }
    unharmed(&queue, space)?;
    bench.finish()
}

fn of_another_device_is_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 6, 3)?);
    space.map(2, &[0])?;
    fill(&queue, space.at(2), space.granule, &[6])?;
    queue.synchronize()?;
    let memory = space.group()?;
    let foreign = memory.create(1, memory.granularity(1)?)?;
    for objects in [
        vec![foreign],
        vec![space.objects[1], foreign, space.objects[2]],
    ] {
        // SAFETY: live objects of this driver.
        let answer = unsafe { memory.map(space.at(3), &objects) };
        refused(
            answer,
            Code::INVALID_ARGUMENT,
            "a map of another device's object",
        )?;
    }
    // SAFETY: a live object, given back once.
    unsafe { memory.destroy(foreign) }?;
    unharmed(&queue, space)?;
    bench.finish()
}

fn beside_work_that_waits(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, gate, space) = (bench.queue()?, Gate::new(), Space::new(&bench, 8, 3)?);
    space.map(0, &[0, 1])?;
    space.map(6, &[2])?;
    fill(&queue, space.at(0), 2 * space.granule, &[1])?;
    queue.synchronize()?;
    block(&queue, &gate)?;
    fill(&queue, space.at(0), 2 * space.granule, &[2])?;
    // The work waits for this thread: a call that waited for it would not return.
    space.map(3, &[1, 0])?;
    space.unmap(6, 1)?;
    space.map(6, &[2])?;
    space.unmap(6, 1)?;
    check!(!queue.query()?, "the work has not finished");
    gate.open();
    holds(
        &queue,
        space.at(3),
        2 * space.granule as usize,
        2,
        "what the work wrote",
    )?;
    space.unmap(0, 2)?;
    space.unmap(3, 2)?;
    space.end()?;
    bench.finish()
}

fn beside_work_on_the_same_objects(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, log, space) = (bench.queue()?, Log::default(), Space::new(&bench, 8, 2)?);
    space.map(0, &[0, 1])?;
    for round in 0..300u64 {
        fill(&queue, space.at(0), 2 * space.granule, &[round as u8])?;
        note(&queue, &log, round)?;
        space.map(6, &[(round % 2) as usize])?;
        space.unmap(6, 1)?;
    }
    holds(
        &queue,
        space.at(0),
        2 * space.granule as usize,
        299u64 as u8,
        "the last fill",
    )?;
    equal!(log.values().len(), 300, "calls");
    space.unmap(0, 2)?;
    space.end()?;
    bench.finish()
}

/// Mapped are granule 0, an object of two at 1, granule 3, and an object of two at 5: tries an unmap.
fn not_unmapped(context: &Context, granule: u64, granules: u64) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let mut space = Space::new(&bench, 8, 2)?;
    let large = space.group()?.create(0, 2 * space.granule)?;
    space.objects.push(large);
    space.map(0, &[0])?;
    space.map(1, &[2, 1])?;
    space.map(5, &[2])?;
    fill(&queue, space.at(0), 4 * space.granule, &[4])?;
    queue.synchronize()?;
    // SAFETY: refused, so that nothing is unmapped.
    let answer = unsafe {
        space
            .group()?
            .unmap(space.at(granule), granules * space.granule)
    };
    refused(
        answer,
        Code::INVALID_ARGUMENT,
        &format!("an unmap of {granules} granules at {granule}"),
    )?;
    holds(
        &queue,
        space.at(0),
        4 * space.granule as usize,
        4,
        "what is mapped",
    )?;
    space.unmap(0, 3)?;
    space.unmap(3, 1)?;
    space.unmap(5, 2)?;
    space.end()?;
    bench.finish()
}

fn an_unmap_of_several(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 8, 4)?);
    for _ in 0..5 {
        space.map(0, &[0])?;
        space.map(1, &[1, 2])?;
        space.map(3, &[3, 0, 1])?;
        fill(&queue, space.at(0), 6 * space.granule, &[8])?;
        queue.synchronize()?;
        // The first two maps and the head of the third; then its tail.
        space.unmap(0, 4)?;
        holds(
            &queue,
            space.at(4),
            2 * space.granule as usize,
            8,
            "what is left",
        )?;
        space.unmap(5, 1)?;
        space.unmap(4, 1)?;
    }
    space.end()?;
    bench.finish()
}

fn commands_reach_across(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space, other) = (bench.queue()?, Space::new(&bench, 8, 4)?, bench.memory(64)?);
    space.map(0, &[0, 1, 2, 3])?;
    // Neighbours here that are none there.
    space.map(4, &[3, 1, 0])?;
    fill(&queue, space.at(0), 4 * space.granule, &[0])?;
    let (border, next) = (space.at(5), space.at(6));
    write(&queue, border - 3, &[1, 2, 3, 4, 5, 6])?;
    fill(&queue, next - 8, 16, &[7, 8])?;
    equal!(
        read(&queue, space.at(4) - 3, 3)?,
        [1, 2, 3],
        "the end of object 3"
    );
    equal!(
        read(&queue, space.at(1), 3)?,
        [4, 5, 6],
        "the start of object 1"
    );
    equal!(
        read(&queue, space.at(2) - 8, 9)?,
        [7, 8, 7, 8, 7, 8, 7, 8, 0],
        "the end of object 1"
    );
    equal!(
        read(&queue, space.at(0), 9)?,
        [7, 8, 7, 8, 7, 8, 7, 8, 0],
        "the start of object 0"
    );
    within(&queue, other, border - 3, 6)?;
    equal!(
        read(&queue, other, 6)?,
        [1, 2, 3, 4, 5, 6],
        "copied across a border"
    );
    super::super::kit::copy(
        &queue,
        space.at(2) - 100,
        border - 3,
        200,
        CopyKind::DeviceToDevice,
    )?;
    equal!(
        read(&queue, space.at(2) - 100, 6)?,
        [1, 2, 3, 4, 5, 6],
        "from one border to another"
    );
    space.unmap(0, 7)?;
    space.end()?;
    bench.finish()
}

/// Doubles the bytes of a range of device memory.
unsafe extern "C" fn double(args: *const c_void, size: u32, bias: i64) -> i32 {
    if size as usize != size_of::<[u64; 2]>() {
        return Code::INVALID_ARGUMENT.0;
    }
    // SAFETY: the block is a pair of device address and size, of memory that is mapped; the bias makes
    // the address a pointer.
    unsafe {
        let [address, size] = args.cast::<[u64; 2]>().read_unaligned();
        let start = address.wrapping_add_signed(bias) as *mut u8;
        for byte in std::slice::from_raw_parts_mut(start, size as usize) {
            *byte *= 2;
        }
    }
    Code::OK.0
}

fn kernels_reach_across(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, space) = (bench.queue()?, Space::new(&bench, 4, 2)?);
    let Some(kernel) = bench.host_kernel(0, double)? else {
        return Err(Failure::new("the driver takes host kernels"));
    };
    space.map(0, &[0, 1])?;
    space.map(2, &[1, 0])?;
    fill(&queue, space.at(0), 2 * space.granule, &[3])?;
    let args = [space.at(3) - 100, 200].map(u64::to_ne_bytes).concat();
    // SAFETY: what the kernel expects, and mapped until the queue has been waited for.
    unsafe { queue.launch(&kernel, &args, 0, c"double") }?;
    equal!(
        read(&queue, space.at(2) - 101, 101)?[..2],
        [3, 6],
        "the end of object 1 at its first address"
    );
    equal!(
        read(&queue, space.at(0), 101)?[99..],
        [6, 3],
        "the start of object 0 at its first address"
    );
    space.unmap(0, 4)?;
    space.end()?;
    bench.finish()
}
