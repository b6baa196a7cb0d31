//! R7, R13, R16, R26 and R29 for the groups `memory_info`, `pinned_memory` and `peer`.

use std::ffi::c_void;
use std::ptr::null_mut;

use outrigger_device::{Code, CopyKind, Pinned, params};

use super::kit::{
    Bench, HostBytes, Log, block, copy, fail, fails_once, fill, free, holds, note, pattern, read,
    threads, write,
};
use super::raw::{Raw, call};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Gate, Need, Verdict};

tests! { "memory.info":
    /// Free bytes are no more than total bytes, and total bytes are the device's memory.
    figures_make_sense: R38, needs MemoryInfo;
    /// An allocation makes free bytes less, and its end gives them back.
    allocations_are_counted: R29, needs MemoryInfo;
    /// Small allocations are counted, too.
    small_allocations_are_counted: R29, needs MemoryInfo;
    /// A refused allocation takes nothing.
    refused_allocations_take_nothing: R4 R29, needs MemoryInfo;
    /// Each device counts its own memory.
    devices_count_for_themselves: R9 R13, needs MemoryInfo TwoDevices;
    /// Free bytes can be had: what is said to be free is given, down to a sixteenth of the device.
    what_is_free_can_be_had: R29, needs MemoryInfo;
    /// NULL and devices that do not exist are refused, and nothing is written.
    wrong_arguments_are_refused: R4 R7, needs MemoryInfo;
    /// Work takes no device memory: queues, events and commands leave the figures as they are.
    work_takes_no_memory: R29, needs MemoryInfo;
    /// Threads that allocate and free leave the figures as they were.
    threads_leave_no_trace: R8 R29, needs MemoryInfo;
}

fn none(what: &str) -> Failure {
    Failure::new(format!("the driver declares {what}"))
}

fn figures_make_sense(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for device in 0..bench.device_count() {
        let (free, total) = bench
            .memory_info(device)?
            .ok_or_else(|| none("memory_info"))?;
        check!(
            free <= total && total > 0,
            "device {device} has {free} of {total} bytes free"
        );
        check!(
            total <= bench.properties(device)?.total_memory,
            "total bytes are within the device's memory"
        );
    }
    bench.finish()
}

fn allocations_are_counted(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    for size in [1 << 20, 3 << 20, 12_345_678 % (8 << 20)] {
        let (before, total) = bench.memory_info(0)?.ok_or_else(|| none("memory_info"))?;
        let address = bench.memory(size)?;
        let (less, same) = bench.memory_info(0)?.ok_or_else(|| none("memory_info"))?;
        check!(
            less <= before - size && same == total,
            "{before} free bytes before, {less} with {size} less"
        );
        bench.give_back(address)?;
        equal!(
            bench.memory_info(0)?,
            Some((before, total)),
            "after it was freed"
        );
    }
    bench.finish()
}

fn small_allocations_are_counted(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (before, _) = bench.memory_info(0)?.ok_or_else(|| none("memory_info"))?;
    for _ in 0..100 {
        bench.memory(100)?;
    }
    let (less, _) = bench.memory_info(0)?.ok_or_else(|| none("memory_info"))?;
    check!(
        less <= before - 10_000,
        "{before} free bytes before, {less} with 100 times 100 less"
    );
    bench.finish()
}

fn refused_allocations_take_nothing(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let total = bench.properties(0)?.total_memory;
    let before = free(bench.driver())?;
    for size in [total + 1, total * 2, u64::MAX / 2, u64::MAX] {
        answers!(
            bench.memory_alloc(0, size),
            Code::OUT_OF_MEMORY,
            "memory_alloc of {size} bytes"
        );
        equal!(
            free(bench.driver())?,
            before,
            "the figures after {size} bytes were refused"
        );
    }
    bench.finish()
}

fn devices_count_for_themselves(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let before = free(bench.driver())?;
    bench.memory_on(1, 2 << 20)?;
    let after = free(bench.driver())?;
    equal!(after[0], before[0], "the figures of device 0");
    check!(
        after[1] != before[1],
        "the figures of device 1 have changed"
    );
    bench.finish()
}

fn what_is_free_can_be_had(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let total = bench.properties(0)?.total_memory;
    let step = total / 16;
    while bench.memory_info(0)?.ok_or_else(|| none("memory_info"))?.0 >= 2 * step {
        bench.memory(step)?;
    }
    bench.finish()
}

fn wrong_arguments_are_refused(context: &Context) -> Verdict {
    let raw = Raw::open(context)?;
    // SAFETY: the group is there, and as large as the loader has found.
    let group = unsafe { &*raw.api().memory_info };
    let (mut free, mut total) = (0x5a5a, 0x5a5a);
    let answer = call!(group, info, null_mut(), 0, &mut free, &mut total);
    raw.refuses(answer, Code::INVALID_HANDLE, "info of NULL")?;
    for device in [raw.driver().device_count(), u32::MAX] {
        let answer = call!(group, info, raw.handle(), device, &mut free, &mut total);
        raw.refuses(answer, Code::INVALID_DEVICE, "info of no device")?;
    }
    let answer = call!(group, info, raw.handle(), 0, null_mut(), &mut total);
    raw.refuses(
        answer,
        Code::INVALID_ARGUMENT,
        "info without a place for the free bytes",
    )?;
    let answer = call!(group, info, raw.handle(), 0, &mut free, null_mut());
    raw.refuses(
        answer,
        Code::INVALID_ARGUMENT,
        "info without a place for the total bytes",
    )?;
    equal!(
        (free, total),
        (0x5a5a, 0x5a5a),
        "R4: outputs of failed calls"
    );
    Ok(())
}

fn work_takes_no_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let (memory, gate) = (bench.memory(4096)?, Gate::new());
    let before = free(bench.driver())?;
    let (queue, event) = (bench.queue()?, bench.event()?);
    block(&queue, &gate)?;
    for _ in 0..500 {
        fill(&queue, memory, 4096, &[1])?;
        event.record(&queue)?;
        queue.wait_event(&event)?;
    }
    equal!(
        free(bench.driver())?,
        before,
        "the figures, with 1500 commands submitted"
    );
    gate.open();
    queue.synchronize()?;
    bench.finish()
}

fn threads_leave_no_trace(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let driver = bench.driver();
    threads(6, |thread| {
        for round in 0..200 {
            let address = driver.memory_alloc(0, 1000 + 777 * ((round + thread) % 13) as u64)?;
            driver.memory_info(0)?;
            // SAFETY: no work uses it.
            unsafe { driver.memory_free(address) }?;
        }
        Ok(())
    })?;
    bench.finish()
}

pub(super) mod pinned {
    use super::*;

    tests! { "memory.pinned":
        /// Pinned memory is host memory, of which every byte is usable.
        it_is_host_memory: R13, needs Pinned;
        /// Copies go to and from pinned memory, at any offset.
        copies_use_it: R16 R26, needs Pinned;
        /// Pinned memory overlaps neither device memory nor other pinned memory.
        it_overlaps_nothing: R13, needs Pinned;
        /// More than there can be is out of host memory.
        too_much_is_out_of_host_memory: R4 R29, needs Pinned;
        /// NULL, no bytes and what is not pinned are refused.
        wrong_arguments_are_refused: R4 R7, needs Pinned;
        /// Pinned memory comes and goes, thousands of times, on several threads.
        it_comes_and_goes: R8 R29, needs Pinned;
        /// Host memory is pinned, used by copies, and unpinned; its bytes stay.
        host_memory_is_pinned: R10 R26, needs Pin;
        /// Without the group, host memory serves as well.
        without_it_host_memory_serves: R26, absent Pinned;
    }

    fn group<'a>(bench: &'a Bench) -> Verdict<Pinned<'a>> {
        bench.driver().pinned().ok_or_else(|| none("pinned_memory"))
    }

    fn it_is_host_memory(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        for size in [1usize, 63, 4096, 100_001, 3 << 20] {
            let pointer = group(&bench)?.alloc(size as u64)?.cast::<u8>();
            let expected = pattern(size, size as u64);
            // SAFETY: the memory has this size, and nobody else uses it.
            unsafe {
                pointer.copy_from_nonoverlapping(expected.as_ptr(), size);
                let found = std::slice::from_raw_parts(pointer, size).to_vec();
                group(&bench)?.free(pointer.cast())?;
                equal!(found, expected, "{size} bytes of pinned memory");
            }
        }
        bench.finish()
    }

    fn copies_use_it(context: &Context) -> Verdict {
        const SIZE: usize = 65536;
        let bench = Bench::new(context)?;
        let (queue, memory) = (bench.queue()?, bench.memory(SIZE as u64)?);
        let pointer = group(&bench)?.alloc(2 * SIZE as u64)?.cast::<u8>();
        for (round, offset) in [0, 1, 63, 4095].into_iter().enumerate() {
            let expected = pattern(SIZE - offset, round as u64);
            // SAFETY: the memory is large enough; only one side uses it at a time.
            unsafe {
                pointer
                    .add(offset)
                    .copy_from_nonoverlapping(expected.as_ptr(), SIZE - offset)
            };
            let size = (SIZE - offset) as u64;
            copy(
                &queue,
                memory,
                pointer as u64 + offset as u64,
                size,
                CopyKind::HostToDevice,
            )?;
            copy(
                &queue,
                pointer as u64 + SIZE as u64,
                memory,
                size,
                CopyKind::DeviceToHost,
            )?;
            queue.synchronize()?;
            // SAFETY: as above.
            let found =
                unsafe { std::slice::from_raw_parts(pointer.add(SIZE), SIZE - offset) }.to_vec();
            equal!(found, expected, "copied to the device and back");
        }
        // SAFETY: the work is over.
        unsafe { group(&bench)?.free(pointer.cast()) }?;
        bench.finish()
    }

    fn it_overlaps_nothing(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let mut ranges = Vec::new();
        for size in [1u64, 64, 4096, 100_000] {
            ranges.push((group(&bench)?.alloc(size)? as u64, size));
            ranges.push((bench.memory(size)?, size));
            ranges.push((HostBytes::of(size as usize, 0).at(0), size));
        }
        let pinned: Vec<_> = ranges.iter().step_by(3).map(|range| range.0).collect();
        ranges.sort_unstable();
        for pair in ranges.windows(2) {
            check!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?} overlap");
        }
        for pointer in pinned {
            // SAFETY: pinned above, and nobody uses it.
            unsafe { group(&bench)?.free(pointer as *mut c_void) }?;
        }
        bench.finish()
    }

    fn too_much_is_out_of_host_memory(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        for size in [1 << 60, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            answers!(
                group(&bench)?.alloc(size),
                Code::OUT_OF_HOST_MEMORY,
                "{size} bytes of pinned memory"
            );
        }
        let pointer = group(&bench)?.alloc(4096)?;
        // SAFETY: nobody uses it.
        unsafe { group(&bench)?.free(pointer) }?;
        bench.finish()
    }

    fn wrong_arguments_are_refused(context: &Context) -> Verdict {
        let raw = Raw::open(context)?;
        // SAFETY: the group is there, and the loader has found these two entries.
        let group = unsafe { &*raw.api().pinned_memory };
        let marker = std::ptr::without_provenance_mut(0x5a5a);
        let mut pointer = marker;
        raw.refuses(
            call!(group, alloc, null_mut(), 64, &mut pointer),
            Code::INVALID_HANDLE,
            "alloc of NULL",
        )?;
        raw.refuses(
            call!(group, alloc, raw.handle(), 0, &mut pointer),
            Code::INVALID_ARGUMENT,
            "alloc of no bytes",
        )?;
        raw.refuses(
            call!(group, alloc, raw.handle(), 64, null_mut()),
            Code::INVALID_ARGUMENT,
            "alloc without a place",
        )?;
        check!(pointer == marker, "R4: the output of failed calls");
        raw.refuses(
            call!(group, free, null_mut(), marker),
            Code::INVALID_HANDLE,
            "free of NULL",
        )?;
        raw.takes(
            call!(group, alloc, raw.handle(), 4096, &mut pointer),
            "alloc",
        )?;
        let inside = pointer.cast::<u8>().wrapping_add(64).cast();
        let other = HostBytes::of(64, 0).at(0) as *mut c_void;
        for wrong in [null_mut(), inside, other] {
            raw.refuses(
                call!(group, free, raw.handle(), wrong),
                Code::INVALID_ARGUMENT,
                "free of what is not pinned",
            )?;
        }
        raw.takes(call!(group, free, raw.handle(), pointer), "free")?;
        raw.refuses(
            call!(group, free, raw.handle(), pointer),
            Code::INVALID_ARGUMENT,
            "free, again",
        )
    }

    fn it_comes_and_goes(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        threads(4, |thread| {
            for round in 0..300 {
                let pointer = group(&bench)?.alloc(64 + 1000 * (round % 7) + thread as u64)?;
                // SAFETY: at least one byte, which nobody else uses.
                unsafe {
                    pointer.cast::<u8>().write(1);
                    group(&bench)?.free(pointer)?;
                }
            }
            Ok(())
        })?;
        bench.finish()
    }

    fn host_memory_is_pinned(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let raw = Raw::of(bench.driver());
        let (queue, memory) = (bench.queue()?, bench.memory(1 << 16)?);
        // SAFETY: the group is there, and the test's need says that it has these entries.
        let group = unsafe { &*raw.api().pinned_memory };
        let bytes = HostBytes::new(pattern(1 << 16, 1));
        let pointer = bytes.at(0) as *mut c_void;
        raw.takes(call!(group, pin, raw.handle(), pointer, 1 << 16), "pin")?;
        copy(&queue, memory, bytes.at(0), 1 << 16, CopyKind::HostToDevice)?;
        equal!(
            read(&queue, memory, 1 << 16)?,
            pattern(1 << 16, 1),
            "copied from pinned memory"
        );
        raw.takes(call!(group, unpin, raw.handle(), pointer), "unpin")?;
        equal!(bytes.get(), pattern(1 << 16, 1), "the bytes, unpinned");
        raw.refuses(
            call!(group, unpin, raw.handle(), pointer),
            Code::INVALID_ARGUMENT,
            "unpin, again",
        )?;
        raw.refuses(
            call!(group, pin, raw.handle(), null_mut(), 64),
            Code::INVALID_ARGUMENT,
            "pin of NULL",
        )?;
        bench.finish()
    }

    fn without_it_host_memory_serves(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        if context.has(bench.driver(), Need::Pinned) {
            return Ok(());
        }
        check!(
            bench.driver().pinned().is_none(),
            "there is no pinned memory"
        );
        let (queue, memory) = (bench.queue()?, bench.memory(4096)?);
        write(&queue, memory, &pattern(4096, 1))?;
        equal!(
            read(&queue, memory, 4096)?,
            pattern(4096, 1),
            "copied from and to ordinary host memory"
        );
        bench.finish()
    }
}

pub(super) mod peer {
    use super::*;

    tests! { "memory.peer":
        /// A device is told whether it reaches another, the same each time, and itself.
        access_is_told: R7, needs Peer TwoDevices;
        /// Copies reach the other device, in both directions, to the byte.
        copies_reach_the_other: R13 R16, needs Peer TwoDevices;
        /// A copy between devices keeps its place in its queue.
        copies_are_in_order: R16, needs Peer TwoDevices;
        /// A copy of no bytes does nothing, and its addresses are not looked at.
        of_nothing: R25, needs Peer TwoDevices;
        /// A copy behind a failure is not executed.
        behind_a_failure: R20, needs Peer TwoDevices;
        /// NULL, devices that do not exist and memory of no device are refused.
        wrong_arguments_are_refused: R4 R7, needs Peer;
    }

    fn group<'a>(bench: &'a Bench) -> Verdict<outrigger_device::Peer<'a>> {
        bench.driver().peer().ok_or_else(|| none("peer"))
    }

    fn access_is_told(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        for device in 0..bench.device_count() {
            for peer in 0..bench.device_count() {
                let yes = group(&bench)?.can_access(device, peer)?;
                equal!(group(&bench)?.can_access(device, peer)?, yes, "asked again");
            }
        }
        bench.finish()
    }

    fn copies_reach_the_other(context: &Context) -> Verdict {
        const SIZE: u64 = 100_003;
        let bench = Bench::new(context)?;
        for (here, there) in [(0, 1), (1, 0)] {
            if !group(&bench)?.can_access(here, there)? {
                context.note(format!("device {here} does not reach device {there}"));
                continue;
            }
            let (near, far) = (bench.memory_on(here, SIZE)?, bench.memory_on(there, SIZE)?);
            let (queue, other) = (bench.queue_on(here)?, bench.queue_on(there)?);
            for (offset, size) in [(0, SIZE), (1, 1), (7, 4099), (64, 65536)] {
                fill(&queue, near, SIZE, &[0])?;
                write(&other, far, &pattern(SIZE as usize, offset))?;
                other.synchronize()?;
                // SAFETY: both ranges are live until the copy has been waited for.
                unsafe {
                    group(&bench)?.copy(&queue, (here, near + offset), (there, far + offset), size)
                }?;
                let mut expected = vec![0; SIZE as usize];
                let range = offset as usize..(offset + size).min(SIZE) as usize;
                expected[range.clone()].copy_from_slice(&pattern(SIZE as usize, offset)[range]);
                equal!(
                    read(&queue, near, SIZE as usize)?,
                    expected,
                    "{size} bytes from device {there} to {here}"
                );
                fill(&other, far, SIZE, &[1])?;
                other.synchronize()?;
                // SAFETY: as above.
                unsafe {
                    group(&bench)?.copy(&queue, (there, far + offset), (here, near + offset), size)
                }?;
                queue.synchronize()?;
                let back = read(&other, far + offset, size.min(SIZE - offset) as usize)?;
                equal!(back, expected[offset as usize..][..back.len()], "and back");
            }
        }
        bench.finish()
    }

    fn copies_are_in_order(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        if !group(&bench)?.can_access(0, 1)? {
            return Ok(());
        }
        let (near, far) = (bench.memory_on(0, 4096)?, bench.memory_on(1, 4096)?);
        let (queue, gate, log) = (bench.queue_on(0)?, Gate::new(), Log::default());
        block(&queue, &gate)?;
        fill(&queue, near, 4096, &[3])?;
        // SAFETY: both ranges are live until the copy has been waited for.
        unsafe { group(&bench)?.copy(&queue, (1, far), (0, near), 4096) }?;
        fill(&queue, near, 4096, &[4])?;
        note(&queue, &log, 1)?;
        gate.open();
        queue.synchronize()?;
        holds(
            &bench.queue_on(1)?,
            far,
            4096,
            3,
            "what was copied between two fills",
        )?;
        holds(&queue, near, 4096, 4, "the second fill")?;
        bench.finish()
    }

    fn of_nothing(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        let (queue, log) = (bench.queue_on(0)?, Log::default());
        // SAFETY: nothing is copied.
        unsafe { group(&bench)?.copy(&queue, (0, 0), (1, 0), 0) }?;
        note(&queue, &log, 1)?;
        queue.synchronize()?;
        bench.finish()
    }

    fn behind_a_failure(context: &Context) -> Verdict {
        let bench = Bench::new(context)?;
        if !group(&bench)?.can_access(0, 1)? {
            return Ok(());
        }
        let (near, far) = (bench.memory_on(0, 4096)?, bench.memory_on(1, 4096)?);
        let (queue, other) = (bench.queue_on(0)?, bench.queue_on(1)?);
        fill(&queue, near, 4096, &[1])?;
        fill(&other, far, 4096, &[2])?;
        other.synchronize()?;
        fail(&queue, Code::EXECUTION)?;
        // SAFETY: both ranges are live until the copy has been waited for.
        unsafe { group(&bench)?.copy(&queue, (0, near), (1, far), 4096) }?;
        fails_once(&queue, Code::EXECUTION, "the queue")?;
        holds(&queue, near, 4096, 1, "what the skipped copy would write")?;
        bench.finish()
    }

    fn wrong_arguments_are_refused(context: &Context) -> Verdict {
        let raw = Raw::open(context)?;
        // SAFETY: the group is there, and as large as the loader has found.
        let group = unsafe { &*raw.api().peer };
        let count = raw.driver().device_count();
        let mut yes = 0x5a5a;
        raw.refuses(
            call!(group, can_access, null_mut(), 0, 0, &mut yes),
            Code::INVALID_HANDLE,
            "can_access of NULL",
        )?;
        raw.refuses(
            call!(group, can_access, raw.handle(), count, 0, &mut yes),
            Code::INVALID_DEVICE,
            "can_access from no device",
        )?;
        raw.refuses(
            call!(group, can_access, raw.handle(), 0, count, &mut yes),
            Code::INVALID_DEVICE,
            "can_access to no device",
        )?;
        raw.refuses(
            call!(group, can_access, raw.handle(), 0, 0, null_mut()),
            Code::INVALID_ARGUMENT,
            "can_access without a place",
        )?;
        equal!(yes, 0x5a5a, "R4: the output of failed calls");
        let queue = raw.queue()?;
        let address = raw.driver().memory_alloc(0, 4096)?;
        raw.refuses(
            call!(
                group,
                copy,
                null_mut(),
                &params::peer_copy((0, address), (0, address + 64), 64)
            ),
            Code::INVALID_HANDLE,
            "copy on NULL",
        )?;
        raw.refuses(
            call!(
                group,
                copy,
                queue,
                &params::peer_copy((count, address), (0, address + 64), 64)
            ),
            Code::INVALID_DEVICE,
            "copy to no device",
        )?;
        raw.refuses(
            call!(
                group,
                copy,
                queue,
                &params::peer_copy((0, address), (count, address + 64), 64)
            ),
            Code::INVALID_DEVICE,
            "copy from no device",
        )?;
        raw.refuses(
            call!(
                group,
                copy,
                queue,
                &params::peer_copy((0, 0), (0, address), 64)
            ),
            Code::INVALID_ARGUMENT,
            "copy to address 0",
        )?;
        answers!(
            raw.query(queue)?,
            Code::OK,
            "queue_query: nothing was submitted"
        );
        raw.destroy(queue, null_mut())?;
        // SAFETY: nothing was submitted.
        unsafe { raw.driver().memory_free(address) }?;
        Ok(())
    }
}
