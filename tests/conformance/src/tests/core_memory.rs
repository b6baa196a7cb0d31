//! R4, R7, R12 to R15 and R29: raw device memory, its addresses, and its end.

use std::ptr::null_mut;

use outrigger_device::{Code, CopyKind, params};

use super::kit::{
    Bench, HostBytes, block, copy, fill, free, holds, part, pattern, read, threads, write,
};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Gate, Verdict};

tests! { "core.memory":
    /// Allocations of any size are aligned to the device's `address_alignment`.
    allocations_are_aligned: R14;
    /// Every byte of an allocation can be used, from 1 byte on.
    every_byte_is_usable: R13, run |c| usable(c, &[1, 2, 3, 63, 64, 65, 100, 127, 128, 129]);
    /// Every byte of an allocation around the size of a page can be used.
    every_byte_around_a_page_is_usable: R13, run |c| usable(c, &[4095, 4096, 4097, 8191, 8193, 65535, 65537]);
    /// Every byte of a large allocation can be used.
    every_byte_of_a_large_one_is_usable: R13, run |c| usable(c, &[(1 << 20) - 1, (1 << 20) + 1, 5 << 20]);
    /// Any address within an allocation is valid: base plus offset.
    an_offset_is_valid: R13;
    /// Live allocations do not overlap, over all devices.
    allocations_do_not_overlap: R13;
    /// Device addresses do not overlap with memory of the host.
    allocations_do_not_overlap_host_memory: R13;
    /// The contents of an allocation stay, whatever happens to its neighbours.
    contents_stay: R13 R16;
    /// An allocation that is made while work runs is apart from what the work uses.
    allocations_while_work_runs: R8 R13;
    /// Address 0 is never an allocation, and is not freed.
    zero_is_not_freed: R4 R7 R13, run |c| not_freed(c, |_| 0);
    /// An address within an allocation is not freed.
    an_offset_is_not_freed: R4 R7, run |c| not_freed(c, |base| base + 64);
    /// The last byte of an allocation is not freed.
    the_last_byte_is_not_freed: R4 R7, run |c| not_freed(c, |base| base + 4095);
    /// The greatest number is not freed.
    the_greatest_number_is_not_freed: R4 R7, run |c| not_freed(c, |_| u64::MAX);
    /// A host pointer is not freed.
    a_host_pointer_is_not_freed: R4 R7, run |c| not_freed(c, |_| HostBytes::of(4096, 1).at(0));
    /// Memory that was freed is not freed again.
    freed_memory_is_not_freed_again: R4 R7;
    /// More than the device has is out of memory, and nothing is taken.
    more_than_all_is_out_of_memory: R4 R5 R29, run |c| too_much(c, |total| total + 1);
    /// Half of all numbers is out of memory.
    half_of_all_numbers_is_out_of_memory: R4 R29, run |c| too_much(c, |_| u64::MAX / 2);
    /// A size that overflows where it is rounded up is out of memory.
    nearly_all_numbers_is_out_of_memory: R4 R29, run |c| too_much(c, |_| u64::MAX - 62);
    /// The greatest size is out of memory.
    the_greatest_size_is_out_of_memory: R4 R29, run |c| too_much(c, |_| u64::MAX);
    /// A device gives what it has, then answers out of memory, and does so again once all was freed.
    a_device_is_used_up_and_usable_again: R29;
    /// Work goes on where memory was refused.
    work_goes_on_when_memory_is_refused: R16 R29;
    /// Memory that is given back can be had again, thousands of times.
    memory_comes_back: R10 R29;
    /// After many sizes came and went, a large piece is to be had again.
    memory_comes_back_in_one_piece: R29;
    /// Thousands of small allocations are live at a time, as far as the memory goes.
    many_are_live: R13, limit 60;
    /// Several threads allocate, use and free memory.
    by_many_threads: R8 R13;
    /// One thread frees what another allocated.
    another_thread_frees: R8 R9;
    /// Each device has memory of its own.
    devices_have_their_own: R9 R13, needs TwoDevices;
}

pub(super) mod visible;

fn allocations_are_aligned(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for device in 0..bench.device_count() {
        let alignment = u64::from(bench.properties(device)?.address_alignment);
        for size in [1, 7, 63, 64, 65, 100, 1000, 4095, 4097, 65535, 1 << 20, 3] {
            let address = bench.memory_on(device, size)?;
            check!(address != 0, "R13: 0 is no address");
            equal!(
                address % alignment,
                0,
                "{size} bytes at {address:#x} of device {device}, modulo {alignment}"
            );
        }
    }
    bench.finish()
}

fn usable(context: &Context, sizes: &[usize]) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let all: Vec<_> = sizes
        .iter()
        .map(|&size| Ok((bench.memory(size as u64)?, size)))
        .collect::<Verdict<_>>()?;
    for &(address, size) in &all {
        write(&queue, address, &pattern(size, size as u64))?;
    }
    for &(address, size) in &all {
        equal!(
            read(&queue, address, size)?,
            pattern(size, size as u64),
            "an allocation of {size} bytes"
        );
    }
    bench.finish()
}

fn an_offset_is_valid(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(1000)?);
    fill(&queue, address, 1000, &[0])?;
    let mut model = vec![0; 1000];
    for (at, byte) in [
        (0, 1u8),
        (1, 2),
        (63, 3),
        (64, 4),
        (499, 5),
        (998, 6),
        (999, 7),
    ] {
        write(&queue, address + at, &[byte])?;
        model[at as usize] = byte;
        equal!(
            read(&queue, address + at, 1)?,
            [byte],
            "the byte at offset {at}"
        );
    }
    equal!(read(&queue, address, 1000)?, model, "all of it");
    bench.finish()
}

fn apart(ranges: &mut [(u64, u64)]) -> Verdict {
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let ((first, size), (second, _)) = (pair[0], pair[1]);
        check!(
            first + size <= second,
            "{size} bytes at {first:#x} overlap with {second:#x}"
        );
    }
    Ok(())
}

fn allocations_do_not_overlap(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let sizes = [1, 63, 64, 65, 1000, 4096, 4097, 100_000, 1 << 20];
    let mut live = Vec::new();
    for round in 0..6 {
        for device in 0..bench.device_count() {
            for size in sizes {
                live.push((bench.memory_on(device, size)?, size));
            }
        }
        apart(&mut live.clone())?;
        // Some are made anew, so that freed ranges are used again.
        let mut index = round;
        let (keep, gone): (Vec<_>, Vec<_>) = live.into_iter().partition(|_| {
            index += 1;
            index % 3 != 0
        });
        for (address, _) in gone {
            bench.give_back(address)?;
        }
        live = keep;
    }
    bench.finish()
}

fn allocations_do_not_overlap_host_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let mut ranges = Vec::new();
    for size in [64u64, 4096, 1 << 16, 1 << 20, 4 << 20] {
        for device in 0..bench.device_count() {
            ranges.push((bench.memory_on(device, size)?, size));
        }
        let bytes = HostBytes::of(size as usize, 0);
        ranges.push((bytes.at(0), size));
    }
    let local = [0u8; 256];
    ranges.push((local.as_ptr() as u64, 256));
    ranges.push((context.spec().as_ptr() as u64, 1));
    apart(&mut ranges)?;
    bench.finish()
}

fn contents_stay(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let mut rng = context.rng();
    let mut live: Vec<(u64, usize, u64)> = Vec::new();
    for round in 0..300u64 {
        if live.len() > 40 || (!live.is_empty() && rng.u8(..) < 80) {
            let (address, size, seed) = live.swap_remove(rng.usize(..live.len()));
            equal!(
                read(&queue, address, size)?,
                pattern(size, seed),
                "an allocation of {size} bytes, before it goes"
            );
            bench.give_back(address)?;
        } else {
            let size = rng.usize(1..20_000);
            let address = bench.memory(size as u64)?;
            write(&queue, address, &pattern(size, round))?;
            live.push((address, size, round));
        }
    }
    for (address, size, seed) in live {
        equal!(
            read(&queue, address, size)?,
            pattern(size, seed),
            "an allocation of {size} bytes, at the end"
        );
    }
    bench.finish()
}

fn allocations_while_work_runs(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, other) = (bench.queue()?, bench.queue()?);
    let address = bench.memory(1 << 16)?;
    let gate = Gate::new();
    block(&queue, &gate)?;
    fill(&queue, address, 1 << 16, &[1])?;
    for value in 2..10u8 {
        let another = bench.memory(1 << 16)?;
        fill(&other, another, 1 << 16, &[value])?;
        holds(&other, another, 1 << 16, value, "new memory")?;
    }
    gate.open();
    holds(&queue, address, 1 << 16, 1, "the first allocation")?;
    bench.finish()
}

fn not_freed(context: &Context, address: impl FnOnce(u64) -> u64) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, base) = (bench.queue()?, bench.memory(4096)?);
    fill(&queue, base, 4096, &[3])?;
    queue.synchronize()?;
    let before = free(bench.driver())?;
    let address = address(base);
    // SAFETY: not the address of an allocation, so that nothing is freed.
    let freed = unsafe { bench.driver().memory_free(address) };
    answers!(freed, Code::INVALID_ARGUMENT, "memory_free of {address:#x}");
    check!(
        freed.is_err_and(|e| !e.message().is_empty()),
        "R5: it has a text"
    );
    equal!(free(bench.driver())?, before, "free memory afterwards");
    holds(&queue, base, 4096, 3, "the allocation")?;
    bench.finish()
}

fn freed_memory_is_not_freed_again(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let kept = bench.memory(4096)?;
    let address = bench.memory(4096)?;
    bench.give_back(address)?;
    let before = free(bench.driver())?;
    for _ in 0..3 {
        // SAFETY: no allocation any more, so that nothing is freed.
        let freed = unsafe { bench.driver().memory_free(address) };
        answers!(freed, Code::INVALID_ARGUMENT, "memory_free, again");
    }
    equal!(free(bench.driver())?, before, "free memory afterwards");
    let next = bench.memory(4096)?;
    check!(next != kept, "what is live is not given out again");
    bench.finish()
}

fn too_much(context: &Context, size: impl Fn(u64) -> u64) -> Verdict {
    let raw = Raw::open(context)?;
    for device in 0..raw.driver().device_count() {
        let size = size(raw.driver().properties(device)?.total_memory);
        let before = free(raw.driver())?;
        let mut address = 0x5a5a;
        let answer = call!(
            raw.api(),
            memory_alloc,
            raw.handle(),
            device,
            &params::memory(size),
            &mut address
        );
        raw.refuses(
            answer,
            Code::OUT_OF_MEMORY,
            &format!("memory_alloc of {size} bytes"),
        )?;
        equal!(address, 0x5a5a, "R4: the output");
        equal!(free(raw.driver())?, before, "free memory afterwards");
        let answer = call!(
            raw.api(),
            memory_alloc,
            raw.handle(),
            device,
            &params::memory(4096),
            &mut address
        );
        raw.takes(answer, "memory_alloc of 4096 bytes afterwards")?;
        raw.takes(
            call!(raw.api(), memory_free, raw.handle(), address),
            "memory_free",
        )?;
    }
    let answer = call!(
        raw.api(),
        memory_alloc,
        raw.handle(),
        0,
        &params::memory(u64::MAX),
        null_mut()
    );
    answers!(
        answer,
        Code::INVALID_ARGUMENT,
        "memory_alloc without a place for the address"
    );
    Ok(())
}

fn a_device_is_used_up_and_usable_again(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let step = (bench.properties(0)?.total_memory / 8).max(1);
    for round in 0..3 {
        let mut live = Vec::new();
        let answer = loop {
            match bench.driver().memory_alloc(0, step) {
                Ok(address) => live.push(address),
                Err(error) => break error,
            }
            check!(live.len() <= 8, "no more than the device has is given");
        };
        equal!(
            answer.code(),
            Code::OUT_OF_MEMORY,
            "the answer where nothing is left"
        );
        check!(
            live.len() >= 4,
            "{} of 8 parts of the memory could be had, in round {round}",
            live.len()
        );
        for (at, &address) in live.iter().enumerate() {
            fill(&queue, address, 64, &[at as u8])?;
        }
        for (at, address) in live.into_iter().enumerate() {
            holds(&queue, address, 64, at as u8, "a part of the memory")?;
            // SAFETY: all work has finished.
            unsafe { bench.driver().memory_free(address) }?;
        }
    }
    bench.finish()
}

fn work_goes_on_when_memory_is_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (queue, address) = (bench.queue()?, bench.memory(4096)?);
    let gate = Gate::new();
    block(&queue, &gate)?;
    fill(&queue, address, 4096, &[6])?;
    answers!(
        bench.driver().memory_alloc(0, u64::MAX / 4),
        Code::OUT_OF_MEMORY,
        "too much memory"
    );
    check!(!queue.query()?, "the blocked queue has not finished");
    gate.open();
    holds(&queue, address, 4096, 6, "what was filled meanwhile")?;
    bench.finish()
}

fn memory_comes_back(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let size = part(&bench, 3)?;
    for round in 0..2000 {
        let address = bench.driver().memory_alloc(0, size);
        let address =
            address.map_err(|e| crate::Failure::from(e).context(format!("round {round}")))?;
        // SAFETY: no work uses it.
        unsafe { bench.driver().memory_free(address) }?;
    }
    bench.finish()
}

fn memory_comes_back_in_one_piece(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let total = bench.properties(0)?.total_memory;
    let mut rng = context.rng();
    let mut live = Vec::new();
    for _ in 0..200 {
        match bench.driver().memory_alloc(0, rng.u64(1..total / 32)) {
            Ok(address) => live.push(address),
            Err(error) => equal!(error.code(), Code::OUT_OF_MEMORY, "the reason"),
        }
    }
    rng.shuffle(&mut live);
    for address in live {
        // SAFETY: no work uses it.
        unsafe { bench.driver().memory_free(address) }?;
    }
    bench.memory(part(&bench, 2)?)?;
    bench.finish()
}

fn many_are_live(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let queue = bench.queue()?;
    let mut live = Vec::new();
    for at in 0..4000u64 {
        let address = match bench.driver().memory_alloc(0, 64 + at % 64) {
            Ok(address) => address,
            // A driver may round small sizes up as far as it likes.
            Err(error) if error.code() == Code::OUT_OF_MEMORY => break,
            Err(error) => return Err(error.into()),
        };
        fill(&queue, address, 8, &at.to_ne_bytes())?;
        live.push((address, 64 + at % 64));
    }
    let addresses: Vec<_> = live.iter().map(|range| range.0).collect();
    check!(
        live.len() > 16,
        "{} small allocations could be had",
        live.len()
    );
    for at in (0..live.len()).step_by(97) {
        equal!(
            read(&queue, addresses[at], 8)?,
            (at as u64).to_ne_bytes(),
            "allocation {at}"
        );
    }
    queue.synchronize()?;
    apart(&mut live)?;
    for address in addresses {
        // SAFETY: all work has finished.
        unsafe { bench.driver().memory_free(address) }?;
    }
    bench.finish()
}

fn by_many_threads(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let driver = bench.driver();
    threads(8, |thread| {
        let queue = driver.queue_create(0, 0)?;
        for round in 0..60usize {
            let size = 64 + (round * 97 + thread * 31) % 5000;
            let address = driver.memory_alloc(0, size as u64)?;
            let value = (round ^ thread << 5) as u8;
            fill(&queue, address, size as u64, &[value])?;
            holds(&queue, address, size, value, "memory of one of 8 threads")?;
            // SAFETY: its work has finished.
            unsafe { driver.memory_free(address) }?;
        }
        Ok(())
    })?;
    bench.finish()
}

fn another_thread_frees(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let driver = bench.driver();
    let addresses: Vec<_> = (0..64)
        .map(|_| driver.memory_alloc(0, 1000))
        .collect::<Result<_, _>>()?;
    threads(4, |thread| {
        for &address in addresses.iter().skip(thread).step_by(4) {
            // SAFETY: no work uses it, and each is freed by one thread.
            unsafe { driver.memory_free(address) }?;
        }
        Ok(())
    })?;
    bench.finish()
}

fn devices_have_their_own(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let total = bench.properties(0)?.total_memory;
    // More than a half of the device, in as many parts as it takes.
    let size = part(&bench, 8)?;
    let parts = (total / 8 * 5).div_ceil(size);
    let first = bench.memory_on(0, size)?;
    for _ in 1..parts {
        bench.memory_on(0, size)?;
    }
    let mut again = (0..parts).map(|_| bench.driver().memory_alloc(0, size));
    let refused = again.find_map(|part| match part {
        Ok(address) => {
            bench.keep(address);
            None
        }
        Err(error) => Some(error),
    });
    answers!(
        refused.map_or(Ok(()), Err),
        Code::OUT_OF_MEMORY,
        "as much again on device 0"
    );
    if bench.properties(1)?.total_memory >= total {
        for _ in 0..parts {
            bench.memory_on(1, size)?;
        }
    }
    let queue = bench.queue_on(0)?;
    fill(&queue, first + size - 64, 64, &[1])?;
    holds(
        &queue,
        first + size - 64,
        64,
        1,
        "the end of a large allocation",
    )?;
    bench.finish()
}
