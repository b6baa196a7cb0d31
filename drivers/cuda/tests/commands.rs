//! Commands in streams: which calls of CUDA they are, and that the contract's order holds where CUDA's own does not.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::bench::{Bench, block, free, read, refusal, write};
use outrigger_device::{Code, CopyKind, sys};
use serial_test::serial;

#[test]
#[serial]
fn fills_write_their_pattern_at_any_alignment() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let base = driver.memory_alloc(0, 4096).unwrap();
    let patterns: [&[u8]; 8] = [
        &[7],
        &[1, 2],
        &[1, 2, 3, 4],
        &[1, 2, 3, 4, 5, 6, 7, 8],
        &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16],
        &[5; 16],
        &[1, 2, 1, 2, 1, 2, 1, 2],
        &[0, 0, 0, 0, 0, 0, 240, 63],
    ];
    for pattern in patterns {
        for offset in 0..8 {
            for count in [1, 2, 33] {
                let size = pattern.len() * count;
                // SAFETY: within the allocation.
                unsafe {
                    queue.fill(base, 4096, &[0xee]).unwrap();
                    queue.fill(base + offset, size as u64, pattern).unwrap();
                }
                let mut expected = vec![0xee; 4096];
                for at in 0..size {
                    expected[offset as usize + at] = pattern[at % pattern.len()];
                }
                assert!(
                    read(&queue, base, 4096) == expected,
                    "{pattern:?} at {offset}, {count} times"
                );
            }
        }
    }
    free(&driver, base);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn a_command_is_one_call_of_cuda_where_cuda_has_it() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, -9).unwrap();
    let memory = driver.memory_alloc(0, 4096).unwrap();
    let host = driver.pinned().unwrap().alloc(4096).unwrap();
    let event = driver.event_create(0, false).unwrap();
    let expect = |what: &str, calls: &[&str]| assert_eq!(bench.calls(), calls, "{what}");
    bench.calls();
    // SAFETY: within both allocations, which live until the queue has finished.
    unsafe {
        queue
            .copy(memory, host as u64, 4096, CopyKind::HostToDevice)
            .unwrap();
        expect("a copy of pinned memory", &["cuMemcpyHtoDAsync_v2"]);
        queue
            .copy(host as u64 + 64, memory, 64, CopyKind::DeviceToHost)
            .unwrap();
        expect("a copy to pinned memory", &["cuMemcpyDtoHAsync_v2"]);
        queue
            .copy(memory, memory + 64, 64, CopyKind::DeviceToDevice)
            .unwrap();
        expect("a copy on the device", &["cuMemcpyDtoDAsync_v2"]);
        queue.fill(memory, 64, &[1]).unwrap();
        expect("bytes", &["cuMemsetD8Async"]);
        queue.fill(memory, 64, &[1, 0]).unwrap();
        expect("words of 2", &["cuMemsetD16Async"]);
        queue.fill(memory, 64, &[1, 0, 0, 0]).unwrap();
        expect("words of 4", &["cuMemsetD32Async"]);
        queue.fill(memory, 64, &1.0_f64.to_le_bytes()).unwrap();
        expect("words of 8", &["cuMemsetD2D32Async"; 2]);
        queue.fill(memory, 64, &[0; 16]).unwrap();
        expect("a long pattern that is a short one", &["cuMemsetD8Async"]);
        queue
            .copy(memory, host as u64, 0, CopyKind::HostToDevice)
            .unwrap();
        expect("no bytes", &[]);
    }
    event.record(&queue).unwrap();
    expect("the first event", &["cuEventCreate", "cuEventRecord"]);
    event.record(&queue).unwrap();
    expect("an event where nothing was submitted since", &[]);
    queue.callback(|_| {}).unwrap();
    expect(
        "a host call without an outcome",
        &["cuLaunchHostFunc", "cuStreamWaitValue32_v2"],
    );
    queue.synchronize().unwrap();
    expect("a wait", &["cuStreamSynchronize"]);
    queue.synchronize().unwrap();
    expect("a wait for nothing", &[]);
    drop(event);
    drop(queue);
    // SAFETY: no work uses it.
    unsafe { driver.pinned().unwrap().free(host) }.unwrap();
    free(&driver, memory);
    bench.finish(driver);
}

#[test]
#[serial]
fn copies_of_pageable_memory_neither_wait_nor_run_ahead() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    // More than one piece, and not a whole number of them.
    let size = (5 << 19) + 7;
    let memory = driver.memory_alloc(0, size as u64).unwrap();
    let source = Arc::new(Mutex::new(vec![1_u8; size]));
    let mut back = vec![0_u8; size];
    let mut copy = vec![0_u8; size];
    let from = source.lock().unwrap().as_ptr() as u64;
    let gate = block(&queue);
    let own = source.clone();
    // Different in each piece.
    let expected: Vec<u8> = (0..size).map(|at| (at / 1000) as u8).collect();
    let new = expected.clone();
    queue
        .callback(move |_| own.lock().unwrap().copy_from_slice(&new))
        .unwrap();
    let start = Instant::now();
    // SAFETY: as many bytes in all of them, which live until the queue has finished.
    unsafe {
        let (back, copy) = (back.as_mut_ptr() as u64, copy.as_mut_ptr() as u64);
        queue
            .copy(memory, from, size as u64, CopyKind::HostToDevice)
            .unwrap();
        queue
            .copy(back, memory, size as u64, CopyKind::DeviceToHost)
            .unwrap();
        queue
            .copy(copy, back, size as u64, CopyKind::HostToHost)
            .unwrap();
    }
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "submissions waited for the host call"
    );
    assert!(!queue.query().unwrap());
    gate.open();
    queue.synchronize().unwrap();
    // The copies have brought what the host call before them had written.
    assert!(back == expected && copy == back);
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn memory_that_was_pinned_is_copied_directly() {
    let bench = Bench::new();
    let driver = bench.open();
    let (api, handle) = driver.raw();
    // SAFETY: the group lives as long as the driver.
    let pinned = unsafe { &*api.pinned_memory };
    let queue = driver.queue_create(1, 0).unwrap();
    let memory = driver.memory_alloc(1, 8192).unwrap();
    let mut bytes = vec![3_u8; 8192];
    // SAFETY: the bytes live until they are unpinned.
    let pin = |pointer: *mut u8, size| unsafe { pinned.pin.unwrap()(handle, pointer.cast(), size) };
    assert_eq!(pin(bytes.as_mut_ptr(), 8192), 0);
    assert_eq!(pin(bytes.as_mut_ptr(), 8192), Code::INVALID_ARGUMENT.0);
    bench.calls();
    write(&queue, memory, &bytes);
    assert_eq!(
        bench.calls(),
        ["cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"]
    );
    // SAFETY: as above; nothing uses them any more.
    unsafe {
        let unpin = |pointer: *mut u8| pinned.unpin.unwrap()(handle, pointer.cast());
        assert_eq!(unpin(bytes.as_mut_ptr()), 0);
        assert_eq!(unpin(bytes.as_mut_ptr()), Code::INVALID_ARGUMENT.0);
    }
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn what_a_host_call_answers_decides_and_what_cannot_fail_does_not() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    write(&queue, memory, &[0; 64]);
    let seen = Arc::new(AtomicI32::new(-1));
    queue.host_call(|_| Err(Code::OUT_OF_RANGE)).unwrap();
    // SAFETY: within the allocation, which lives until the queue has finished.
    unsafe { queue.fill(memory, 64, &[1]) }.unwrap();
    let own = seen.clone();
    queue
        .callback(move |upstream| {
            own.store(
                upstream.map_or_else(|code| code.0, |()| 0),
                Ordering::SeqCst,
            )
        })
        .unwrap();
    let (code, _) = refusal(queue.synchronize());
    assert_eq!(code, Code::OUT_OF_RANGE);
    assert_eq!(seen.load(Ordering::SeqCst), Code::OUT_OF_RANGE.0);
    assert_eq!(
        read(&queue, memory, 64),
        [0; 64],
        "what was behind it is not executed"
    );
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn a_lost_device_calls_its_host_calls_once_and_can_be_closed() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let gate = block(&queue);
    for number in 0..3 {
        let own = seen.clone();
        queue
            .callback(move |upstream| {
                own.lock()
                    .unwrap()
                    .push((number, upstream.map_or_else(|code| code.0, |()| 0)))
            })
            .unwrap();
    }
    bench.lose(0, 700);
    gate.open();
    let (code, text) = refusal(queue.synchronize());
    assert_eq!(code, Code::DEVICE_LOST);
    assert!(
        text.contains("CUDA_ERROR_ILLEGAL_ADDRESS") && text.contains("in a new process"),
        "{text}"
    );
    let lost = Code::DEVICE_LOST.0;
    assert_eq!(*seen.lock().unwrap(), [(0, lost), (1, lost), (2, lost)]);
    // SAFETY: refused.
    let (code, _) = refusal(unsafe { queue.fill(memory, 64, &[1]) });
    assert_eq!(code, Code::DEVICE_LOST);
    let (code, _) = refusal(driver.memory_alloc(0, 64));
    assert_eq!(code, Code::DEVICE_LOST);
    let other = driver.queue_create(1, 0).unwrap();
    other.synchronize().unwrap();
    drop(other);
    free(&driver, memory);
    drop(queue);
    drop(driver);
    assert_eq!(bench.retained(), 0);
    assert_eq!(seen.lock().unwrap().len(), 3);
}

#[test]
#[serial]
fn errors_that_take_the_context_lose_the_device_and_no_others() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 64).unwrap();
    let answer = |code| {
        bench.fail("cuMemsetD8Async", 0, code);
        // SAFETY: refused.
        refusal(unsafe { queue.fill(memory, 64, &[1]) }).0
    };
    // As cuda.h says of each: any further work returns the same error.
    for code in [
        214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721,
    ] {
        assert_eq!(answer(code), Code::DEVICE_LOST, "{code}");
    }
    assert_eq!(answer(1), Code::INVALID_ARGUMENT);
    assert_eq!(answer(2), Code::OUT_OF_MEMORY);
    assert_eq!(answer(720), Code::INTERNAL);
    assert_eq!(answer(999), Code::INTERNAL);
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn events_tell_times_of_one_clock() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let (before, after) = (
        driver.event_create(0, true).unwrap(),
        driver.event_create(0, true).unwrap(),
    );
    let now = || driver.device_time_ns(0).unwrap().unwrap();
    let start = now();
    before.record(&queue).unwrap();
    queue
        .callback(|_| std::thread::sleep(Duration::from_millis(5)))
        .unwrap();
    after.record(&queue).unwrap();
    assert_eq!(after.time_ns().unwrap(), None);
    queue.synchronize().unwrap();
    let end = now();
    let times = [
        start,
        before.time_ns().unwrap().unwrap(),
        after.time_ns().unwrap().unwrap(),
        end,
    ];
    assert!(times.is_sorted(), "{times:?}");
    assert!(times[2] - times[1] >= 5_000_000, "{times:?}");
    drop((before, after, queue));
    bench.finish(driver);
}

#[test]
#[serial]
fn out_of_memory_is_told_with_what_there_is() {
    let bench = Bench::new();
    let driver = bench.open();
    let (code, text) = refusal(driver.memory_alloc(0, 1 << 40));
    assert_eq!(code, Code::OUT_OF_MEMORY);
    assert!(
        text.contains("stand-in 0") && text.contains("268435456"),
        "{text}"
    );
    let (code, _) = refusal(driver.pinned().unwrap().alloc(1 << 40));
    assert_eq!(code, Code::OUT_OF_HOST_MEMORY);
    bench.finish(driver);
}

#[test]
#[serial]
fn a_mapping_that_fails_half_way_is_undone() {
    let bench = Bench::new();
    let driver = bench.open();
    let virtual_memory = driver.virtual_memory().unwrap();
    let page = virtual_memory.granularity(0).unwrap();
    let before = driver.memory_info(0).unwrap();
    let range = virtual_memory.reserve(0, 4 * page, 0).unwrap();
    let objects: Vec<_> = (0..3)
        .map(|_| virtual_memory.create(0, page).unwrap())
        .collect();
    let queue = driver.queue_create(0, 0).unwrap();
    for (name, after) in [("cuMemMap", 0), ("cuMemMap", 2), ("cuMemSetAccess", 0)] {
        bench.fail(name, after, 2);
        // SAFETY: nothing uses the range.
        let (code, _) = refusal(unsafe { virtual_memory.map(range, &objects) });
        assert_eq!(code, Code::OUT_OF_MEMORY, "{name} after {after}");
        // SAFETY: refused.
        let filled = unsafe { queue.fill(range, 64, &[1]) };
        assert!(filled.is_err(), "nothing is mapped");
    }
    // A mapping that cannot be undone is reported, and stays until somebody unmaps it (R4).
    bench.fail("cuMemMap", 2, 2);
    bench.fail("cuMemUnmap", 0, 999);
    // SAFETY: as above.
    let (code, text) = refusal(unsafe { virtual_memory.map(range, &objects) });
    assert_eq!(code, Code::OUT_OF_MEMORY);
    assert!(
        text.contains(&format!("first {} bytes stay mapped", 2 * page)),
        "{text}"
    );
    // SAFETY: as above.
    let (code, _) = refusal(unsafe { virtual_memory.map(range, &objects) });
    assert_eq!(code, Code::INVALID_ARGUMENT, "something is mapped there");
    // SAFETY: as above.
    unsafe { virtual_memory.unmap(range, 2 * page) }.unwrap();
    // SAFETY: as above.
    unsafe { virtual_memory.map(range, &objects) }.unwrap();
    // SAFETY: across the borders of objects (R41).
    unsafe { queue.fill(range, 3 * page, &[1, 2, 3, 4, 5, 6, 7, 8]) }.unwrap();
    assert_eq!(read(&queue, range + page - 4, 8), [5, 6, 7, 8, 1, 2, 3, 4]);
    // SAFETY: the queue has finished.
    unsafe {
        virtual_memory.unmap(range, 3 * page).unwrap();
        for object in objects {
            virtual_memory.destroy(object).unwrap();
        }
    }
    virtual_memory.release(range, 4 * page).unwrap();
    assert_eq!(driver.memory_info(0).unwrap(), before);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn a_host_call_that_blocks_keeps_no_other_queue_from_working() {
    let bench = Bench::new();
    let driver = bench.open();
    let (first, second) = (
        driver.queue_create(0, 0).unwrap(),
        driver.queue_create(0, 0).unwrap(),
    );
    let memory = driver.memory_alloc(0, 64).unwrap();
    // CUDA has one thread for the functions of all streams, and copies of pageable memory need it too.
    let gate = block(&first);
    write(&second, memory, &[3; 64]);
    let own = gate.clone();
    second.callback(move |_| own.open()).unwrap();
    first.synchronize().unwrap();
    assert_eq!(read(&second, memory, 64), [3; 64]);
    free(&driver, memory);
    drop((first, second));
    bench.finish(driver);
}

#[test]
#[serial]
fn a_host_call_that_cuda_refuses_is_not_called() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    unsafe extern "C" fn count(user: *mut std::ffi::c_void, _: i32) -> i32 {
        std::thread::sleep(Duration::from_millis(10));
        // SAFETY: the number of the test, which outlives the queue.
        unsafe { &*user.cast::<AtomicI32>() }.fetch_add(1, Ordering::SeqCst);
        0
    }
    let calls = AtomicI32::new(0);
    let submit = || {
        let user = std::ptr::from_ref(&calls).cast_mut().cast();
        // SAFETY: as above.
        unsafe { queue.host_call_raw(count, user, sys::OTR_HOST_CALL_CANNOT_FAIL) }
    };
    submit().unwrap();
    bench.fail("cuLaunchHostFunc", 0, 2);
    assert_eq!(refusal(submit()).0, Code::OUT_OF_MEMORY);
    // The call is on its way when this is refused, and waited for.
    bench.fail("cuStreamWaitValue32_v2", 0, 2);
    submit().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    submit().unwrap();
    queue.synchronize().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    drop(queue);
    // If streams cannot wait for memory, the list of the kit serves.
    bench.fail("cuStreamWaitValue32_v2", 0, 801);
    let queue = driver.queue_create(0, 0).unwrap();
    bench.calls();
    queue.callback(|_| {}).unwrap();
    queue.synchronize().unwrap();
    assert!(!bench.calls().contains(&"cuLaunchHostFunc".to_owned()));
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn threads_share_a_queue() {
    const SIZE: usize = 3 << 19;
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let pinned = driver.pinned().unwrap().alloc(4096).unwrap() as u64;
    std::thread::scope(|scope| {
        let (driver, queue) = (&driver, &queue);
        for thread in 0..3_u8 {
            scope.spawn(move || {
                let memory = driver.memory_alloc(0, SIZE as u64).unwrap();
                for round in 0..40_u8 {
                    let value = thread * 64 + round;
                    // Several calls of CUDA each, between which other threads make theirs.
                    write(queue, memory, &vec![value; SIZE]);
                    assert!(
                        read(queue, memory, SIZE) == vec![value; SIZE],
                        "{thread}: {round}"
                    );
                    let pattern: Vec<u8> = (0..16).map(|at| at + value).collect();
                    // SAFETY: all of the allocation.
                    unsafe { queue.fill(memory, SIZE as u64, &pattern) }.unwrap();
                    assert!(
                        read(queue, memory, SIZE) == pattern.repeat(SIZE / 16),
                        "{thread}: {round}"
                    );
                }
                free(driver, memory);
            });
        }
        scope.spawn(move || {
            for _ in 0..400 {
                queue.host_call(|upstream| upstream).unwrap();
                call(queue, |_| {});
                std::thread::yield_now();
            }
        });
        // One call of CUDA each, so that the others' pieces are what can go wrong.
        scope.spawn(move || {
            let memory = driver.memory_alloc(0, 4096).unwrap();
            for _ in 0..400 {
                // SAFETY: within both, which live until the queue has finished.
                unsafe { queue.copy(memory, pinned, 4096, CopyKind::HostToDevice) }.unwrap();
            }
            queue.synchronize().unwrap();
            free(driver, memory);
        });
    });
    // SAFETY: no work uses it.
    unsafe { driver.pinned().unwrap().free(pinned as *mut _) }.unwrap();
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn the_current_context_of_a_thread_stays() {
    let bench = Bench::new();
    let before = bench.current();
    let driver = bench.open();
    assert_eq!(bench.current(), before);
    for device in 0..2 {
        let queue = driver.queue_create(device, 0).unwrap();
        let memory = driver.memory_alloc(device, 64).unwrap();
        write(&queue, memory, &[1; 64]);
        assert!(driver.memory_alloc(device, 1 << 40).is_err());
        free(&driver, memory);
        drop(queue);
        assert_eq!(bench.current(), before, "device {device}");
    }
    bench.finish(driver);
}
