//! R7, R10, R25, R27, R28 and R30: the arguments of copies, fills, host calls and launches.

use outrigger_device::{Code, CopyKind};
use outrigger_tests::Gate;

use crate::support::{Log, Memory, Target, block, count_kernel, fill, note, queue, read, write};

crate::cases! {
    Nothing:
        r07_a_range_outside_of_memory_is_refused,
        r07_a_pattern_of_another_size_is_refused,
        r10_a_pattern_may_go_after_the_call,
        r25_a_size_of_zero_does_nothing,
        r27_host_calls_are_called_once_and_in_order,
        r28_a_fill_repeats_its_pattern;
    HostKernels:
        r30_arguments_are_copied_during_the_call;
}

fn r07_a_range_outside_of_memory_is_refused(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 1 << 16);
    let host = [0u8; 16];
    let pointer = host.as_ptr() as u64;
    // SAFETY: each of these is refused, so that nothing is executed.
    let refused = unsafe {
        [
            (
                "beyond the end of all memory",
                queue.copy(memory.address, pointer, 1 << 62, CopyKind::HostToDevice),
            ),
            (
                "around the end of the numbers",
                queue.copy(memory.address, pointer, u64::MAX, CopyKind::HostToDevice),
            ),
            (
                "no source",
                queue.copy(memory.address, 0, 16, CopyKind::HostToDevice),
            ),
            (
                "no destination",
                queue.copy(0, memory.address, 16, CopyKind::DeviceToHost),
            ),
            (
                "host memory as device memory",
                queue.copy(pointer, memory.address, 16, CopyKind::DeviceToDevice),
            ),
            ("a fill of host memory", queue.fill(pointer, 16, &[1])),
            ("a fill of address 0", queue.fill(0, 16, &[1])),
        ]
    };
    for (what, result) in refused {
        let error = result.expect_err(what);
        assert_eq!(error.code(), Code::INVALID_ARGUMENT, "{what}");
        assert!(!error.message().is_empty(), "{what}");
    }
    assert!(queue.query().unwrap(), "nothing was submitted");
}

fn r07_a_pattern_of_another_size_is_refused(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 4096);
    fill(&queue, memory.address, 4096, &[1]);
    for (size, pattern) in [(12, 3), (32, 32), (0, 3), (17, 2), (100, 16), (5, 4)] {
        // SAFETY: each of these is refused, so that nothing is executed.
        let result = unsafe { queue.fill(memory.address, size, &[9; 32][..pattern]) };
        assert_eq!(
            result.unwrap_err().code(),
            Code::INVALID_ARGUMENT,
            "{size} bytes of {pattern}"
        );
    }
    assert_eq!(read(&queue, memory.address, 4096), [1; 4096]);
}

fn r10_a_pattern_may_go_after_the_call(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 64);
    let gate = Gate::new();
    block(&queue, &gate);
    let mut pattern = [1u8, 2, 3, 4];
    fill(&queue, memory.address, 64, &pattern);
    pattern.fill(0xff);
    std::hint::black_box(&mut pattern);
    gate.open();
    assert_eq!(read(&queue, memory.address, 64), [1, 2, 3, 4].repeat(16));
}

fn r25_a_size_of_zero_does_nothing(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 64);
    let (log, host) = (Log::default(), [0u8; 1]);
    fill(&queue, memory.address, 64, &[4]);
    note(&queue, &log, 1);
    fill(&queue, memory.address, 0, &[5, 6]);
    // SAFETY: nothing is copied.
    unsafe {
        queue
            .copy(
                memory.address,
                host.as_ptr() as u64,
                0,
                CopyKind::HostToDevice,
            )
            .unwrap();
        queue
            .copy(
                memory.address,
                memory.address + 32,
                0,
                CopyKind::DeviceToDevice,
            )
            .unwrap();
    }
    // The addresses of nothing are not looked at: hosts pass NULL for empty buffers.
    fill(&queue, 0, 0, &[5]);
    // SAFETY: nothing is copied.
    unsafe {
        queue
            .copy(memory.address, 0, 0, CopyKind::HostToDevice)
            .unwrap();
        queue
            .copy(0, memory.address, 0, CopyKind::DeviceToHost)
            .unwrap();
    }
    note(&queue, &log, 2);
    assert_eq!(read(&queue, memory.address, 64), [4; 64]);
    assert_eq!(log.values(), [1, 2]);
}

fn r27_host_calls_are_called_once_and_in_order(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let log = Log::default();
    for i in 0..3000 {
        note(&queue, &log, i);
    }
    queue.synchronize().unwrap();
    assert_eq!(log.values(), (0..3000).collect::<Vec<_>>());
}

fn r28_a_fill_repeats_its_pattern(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 300_000);
    let pattern: Vec<u8> = (1..=16).collect();
    for width in [1, 2, 4, 8, 16] {
        // At odd addresses too: only the size is a multiple of the pattern.
        for (offset, count) in [(0, 1), (1, 3), (64, 100), (7, 4099), (3, 200_000 / width)] {
            let size = count * width;
            fill(&queue, memory.address, size as u64 + offset + 16, &[0]);
            fill(
                &queue,
                memory.address + offset,
                size as u64,
                &pattern[..width],
            );
            let bytes = read(&queue, memory.address, size + offset as usize + 16);
            let (before, rest) = bytes.split_at(offset as usize);
            let (filled, behind) = rest.split_at(size);
            assert!(
                before.iter().chain(behind).all(|b| *b == 0),
                "bytes around it, width {width}"
            );
            assert!(
                filled.chunks(width).all(|chunk| chunk == &pattern[..width]),
                "width {width}, {count} times"
            );
        }
    }
    write(&queue, memory.address, &[1]);
    assert_eq!(read(&queue, memory.address, 1), [1]);
}

fn r30_arguments_are_copied_during_the_call(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let kernel = driver.host_kernel(0, count_kernel).unwrap().unwrap();
    let gate = Gate::new();
    let mut counter = 0u64;
    block(&queue, &gate);
    let mut args = [0u8; 16];
    args[..8].copy_from_slice(&(&raw mut counter as u64).to_ne_bytes());
    for step in 1..=10u64 {
        args[8..].copy_from_slice(&step.to_ne_bytes());
        // SAFETY: what the kernel expects; the counter outlives the launches.
        unsafe { queue.launch(&kernel, &args, 0, c"count") }.unwrap();
    }
    args.fill(0);
    std::hint::black_box(&mut args);
    gate.open();
    queue.synchronize().unwrap();
    // SAFETY: all launches have finished; the counter was written behind the compiler's back.
    assert_eq!(unsafe { (&raw const counter).read_volatile() }, 55);
}
