//! Calls that CUDA refuses half-way: a call has changed nothing then, or its command is submitted and has failed.

use crate::bench::{Bench, free, read, refusal, write};
use outrigger_device::{Code, CopyKind};
use serial_test::serial;

#[test]
#[serial]
fn a_command_that_has_begun_when_cuda_refuses_a_call_of_it_has_failed() {
    let bench = Bench::new();
    let driver = bench.open();
    let queue = driver.queue_create(0, 0).unwrap();
    let memory = driver.memory_alloc(0, 4 << 20).unwrap();
    let host = vec![7_u8; 3 << 20];
    let pattern: Vec<u8> = (1..=16).collect();
    // SAFETY: the host's memory outlives the queue, and nothing else uses the device's.
    let fill = || unsafe { queue.fill(memory, 64, &pattern) };
    // SAFETY: as above.
    let copy = || unsafe {
        let from = host.as_ptr() as u64;
        queue.copy(memory, from, 3 << 20, CopyKind::HostToDevice)
    };
    let cases: [(&str, &dyn Fn() -> outrigger_device::Result<()>); 3] = [
        ("cuMemsetD2D32Async", &fill),
        ("cuMemcpyHtoDAsync_v2", &copy),
        ("cuLaunchHostFunc", &copy),
    ];
    for (name, submit) in cases {
        bench.fail(name, 1, 2);
        submit().unwrap();
        // The command behind the refused one is skipped (R20).
        // SAFETY: nothing else uses the memory.
        unsafe { queue.fill(memory + 64, 64, &[9]) }.unwrap();
        let failed = queue.synchronize().unwrap_err();
        assert_eq!(failed.code(), Code::OUT_OF_MEMORY, "{name}");
        assert!(failed.submission().is_some(), "{name}: {failed:?}");
        assert_ne!(read(&queue, memory + 64, 64), [9; 64], "{name}");
        // The first call of a command is refused with it.
        write(&queue, memory, &[0; 64]);
        bench.fail(name, 0, 2);
        if name != "cuMemcpyHtoDAsync_v2" {
            assert_eq!(refusal(submit()).0, Code::OUT_OF_MEMORY, "{name}");
            assert_eq!(read(&queue, memory, 64), [0; 64], "{name}");
        } else {
            submit().unwrap();
            assert!(queue.synchronize().is_err(), "the block was filled before");
        }
        submit().unwrap();
        queue.synchronize().unwrap();
    }
    free(&driver, memory);
    drop(queue);
    bench.finish(driver);
}

#[test]
#[serial]
fn an_unmap_that_cuda_refuses_has_changed_nothing() {
    let bench = Bench::new();
    let driver = bench.open();
    let virtual_memory = driver.virtual_memory().unwrap();
    let page = virtual_memory.granularity(0).unwrap();
    let range = virtual_memory.reserve(0, 3 * page, 0).unwrap();
    let objects: Vec<_> = (0..3)
        .map(|_| virtual_memory.create(0, page).unwrap())
        .collect();
    let queue = driver.queue_create(0, 0).unwrap();
    // SAFETY: nothing uses the range but the queue, which has finished when something is unmapped.
    unsafe {
        virtual_memory.map(range, &objects).unwrap();
        bench.fail("cuMemUnmap", 0, 999);
        assert!(virtual_memory.unmap(range + page, page).is_err());
        queue.fill(range, 3 * page, &[1]).unwrap();
        queue.synchronize().unwrap();
        let busy = virtual_memory.release(range, 3 * page);
        assert_eq!(refusal(busy).0, Code::BUSY);
        virtual_memory.unmap(range + page, page).unwrap();
        assert!(queue.fill(range, 3 * page, &[1]).is_err());
        virtual_memory.unmap(range, page).unwrap();
        virtual_memory.unmap(range + 2 * page, page).unwrap();
        for object in objects {
            virtual_memory.destroy(object).unwrap();
        }
    }
    virtual_memory.release(range, 3 * page).unwrap();
    drop(queue);
    bench.finish(driver);
}
