//! Opening and closing: what is missing is said, and what was half done is undone.

use crate::bench::{Bench, driver_path, free, other_library, read, refusal, write};
use outrigger_device::{Code, Driver};
use serial_test::serial;

#[test]
#[serial]
fn a_machine_without_cuda_is_told_so() {
    let driver = driver_path();
    let driver = driver.display();
    let open = |options: &str| {
        let spec = format!("{driver}{options}");
        Driver::open(&spec.parse().unwrap())
    };
    let (code, text) = refusal(open("?libcuda=libcuda-that-is-not-there.so"));
    assert_eq!(code, Code::NOT_FOUND);
    assert!(
        text.contains("libcuda-that-is-not-there.so cannot be loaded"),
        "{text}"
    );
    let (code, text) = refusal(open(&format!("?libcuda={}", other_library().display())));
    assert_eq!(code, Code::LOAD);
    assert!(text.contains("has no function cuInit"), "{text}");
    let (code, text) = refusal(open("?colour=red"));
    assert_eq!(code, Code::INVALID_ARGUMENT);
    assert!(
        text.contains("`colour`") && text.contains("libcuda=PATH"),
        "{text}"
    );
}

#[test]
#[serial]
fn a_driver_that_is_too_old_and_a_machine_without_devices_are_told_apart() {
    let bench = Bench::new();
    bench.version(11030);
    let (code, text) = refusal(bench.try_open(None));
    assert_eq!(code, Code::LOAD);
    assert!(text.contains("has CUDA 11.3, and 11.4 is needed"), "{text}");
    bench.version(13000);
    bench.fail("cuInit", 0, 100);
    let (code, text) = refusal(bench.try_open(None));
    assert_eq!(code, Code::LOAD);
    assert!(
        text.contains("cuInit answered") && text.contains("(100)"),
        "{text}"
    );
    let (code, text) = refusal(bench.try_open(Some("libnvrtc-that-is-not-there.so")));
    assert_eq!(code, Code::NOT_FOUND);
    assert!(text.contains("NVRTC cannot be loaded"), "{text}");
    let driver = bench.open();
    bench.finish(driver);
}

#[test]
#[serial]
fn devices_are_described() {
    let bench = Bench::new();
    let driver = bench.open();
    assert_eq!(driver.device_count(), 2);
    let device = driver.properties(1).unwrap();
    assert_eq!(
        (device.name.as_str(), device.vendor.as_str()),
        ("stand-in 1", "NVIDIA")
    );
    assert_eq!(device.uuid, [2; 16]);
    assert_eq!(device.total_memory, 256 << 20);
    assert_eq!((device.priority_lowest, device.priority_highest), (0, -5));
    assert_eq!(device.pci.unwrap().to_string(), "0000:02:00.0");
    assert_eq!(device.limits.sub_group, 32);
    assert_eq!(device.limits.block, [1024, 1024, 64]);
    assert_eq!(device.limits.formats, 1 << 3 | 1 << 4 | 1 << 6);
    // 1 GHz of 256 bits, twice in a clock; 4 units of 128 at 1 GHz.
    assert_eq!(device.peak_bytes_per_second, 64_000_000_000);
    assert_eq!(device.peak_flops_f32, 1_024_000_000_000);
    bench.finish(driver);
}

#[test]
#[serial]
fn an_open_that_fails_half_way_leaves_nothing() {
    let bench = Bench::new();
    drop(bench.open());
    let calls = bench.calls();
    for (at, name) in calls.iter().enumerate() {
        // A call of the closing is no part of what opening needs.
        if name == "cuEventDestroy_v2" || name == "cuStreamDestroy_v2" || name.contains("Release") {
            continue;
        }
        let before = calls[..at].iter().filter(|other| *other == name).count();
        bench.fail(name, before as u32, 999);
        // A failure that concerns one device leaves the other, and copies between two need nothing of this.
        let count = bench.try_open(None).map(|driver| {
            let opened = |device: &u32| driver.open_device(*device).is_ok();
            let count = (0..driver.device_count()).filter(opened).count();
            // A device whose opening has failed once is tried again.
            let all = 0..driver.device_count();
            all.for_each(|device| driver.open_device(device).unwrap());
            assert_eq!(bench.retained(), driver.device_count(), "call {at}, {name}");
            count
        });
        let is_right = match count {
            Ok(2) => name == "cuDeviceCanAccessPeer",
            Ok(count) => count == 1,
            Err(_) => true,
        };
        assert!(is_right, "call {at}, {name}: {count:?}");
        assert_eq!(bench.retained(), 0, "call {at}, {name}");
    }
    let driver = bench.open();
    bench.finish(driver);
}

#[test]
#[serial]
fn devices_that_are_well_are_used_without_the_others() {
    let bench = Bench::new();
    for (bad, good) in [(0, 1), (1, 0)] {
        let driver = bench.try_open(None).unwrap();
        // As where others have filled the memory of the device.
        bench.fail("cuDevicePrimaryCtxRetain", 0, 2);
        let (code, text) = refusal(driver.memory_alloc(bad, 64));
        assert_eq!(code, Code::OUT_OF_MEMORY);
        assert!(
            text.contains(&format!("device {bad}")) && text.contains("cuDevicePrimaryCtxRetain"),
            "{text}"
        );
        assert_eq!(bench.retained(), 0);
        // The other one first, and then the one that failed.
        for device in [good, bad] {
            let queue = driver.queue_create(device, 0).unwrap();
            let memory = driver.memory_alloc(device, 64).unwrap();
            write(&queue, memory, &[3; 64]);
            assert_eq!(read(&queue, memory, 64), [3; 64]);
            free(&driver, memory);
        }
        drop(driver);
        assert_eq!(bench.retained(), 0);
    }
    let driver = bench.open();
    bench.finish(driver);
}

#[test]
#[serial]
fn a_context_is_made_for_what_is_used_alone() {
    let bench = Bench::new();
    let driver = bench.try_open(None).unwrap();
    for device in 0..driver.device_count() {
        let properties = driver.properties(device).unwrap();
        assert_eq!(properties.uuid, [device as u8 + 1; 16]);
        assert_eq!(
            (properties.priority_lowest, properties.priority_highest),
            (0, 0)
        );
        assert!(
            !driver
                .operators()
                .unwrap()
                .names(device)
                .unwrap()
                .is_empty()
        );
    }
    assert_eq!(bench.retained(), 0, "to ask takes no context");
    let queue = driver.queue_create(1, 0).unwrap();
    assert_eq!(bench.retained(), 1);
    let (code, text) = refusal(driver.close_device(1));
    assert_eq!(code, Code::BUSY);
    assert!(text.contains("1 queues"), "{text}");
    drop(queue);
    driver.close_device(1).unwrap();
    assert_eq!(bench.retained(), 0, "a closed device has none");
    // Host memory takes the context of a device, which stays while there is some.
    let pinned = driver.pinned().unwrap();
    let pointer = pinned.alloc(64).unwrap();
    assert_eq!(bench.retained(), 1);
    assert_eq!(refusal(driver.close_device(0)).0, Code::BUSY);
    // SAFETY: nothing uses it.
    unsafe { pinned.free(pointer) }.unwrap();
    driver.close_device(0).unwrap();
    bench.finish(driver);
}

#[test]
#[serial]
fn a_peer_that_is_refused_is_copied_to_all_the_same() {
    let bench = Bench::new();
    // CUDA_ERROR_TOO_MANY_PEERS.
    bench.fail("cuCtxEnablePeerAccess", 0, 711);
    let driver = bench.open();
    let memory = [0, 1].map(|device| driver.memory_alloc(device, 64).unwrap());
    let queues = [0, 1].map(|device| driver.queue_create(device, 0).unwrap());
    write(&queues[0], memory[0], &[5; 64]);
    let peer = driver.peer().unwrap();
    // SAFETY: nothing else uses the memory.
    unsafe { peer.copy(&queues[0], (1, memory[1]), (0, memory[0]), 64) }.unwrap();
    queues[0].synchronize().unwrap();
    assert_eq!(read(&queues[1], memory[1], 64), [5; 64]);
    memory
        .into_iter()
        .for_each(|address| free(&driver, address));
    drop(queues);
    bench.finish(driver);
}

#[test]
#[serial]
fn peers_that_others_have_enabled_are_no_error() {
    let bench = Bench::new();
    let driver = bench.open();
    drop(driver);
    // Contexts are the process's, and remember it.
    let driver = bench.open();
    let peer = driver.peer().unwrap();
    assert!(peer.can_access(0, 1).unwrap() && peer.can_access(1, 1).unwrap());
    bench.finish(driver);
}
