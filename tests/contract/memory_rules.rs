//! R12 to R15 and R29, and the groups for memory: addresses, alignment, what the host sees, and limits.

use outrigger_device::{Code, CopyKind};

use crate::support::{Memory, Target, fill, queue, read, write};

crate::cases! {
    Nothing:
        r04_a_wrong_address_is_not_freed,
        r13_allocations_do_not_overlap,
        r13_an_offset_address_is_valid,
        r14_allocations_are_aligned,
        r29_out_of_memory_leaves_the_driver_usable;
    HostVisible:
        r15_a_device_address_is_a_host_pointer;
    MemoryInfo:
        memory_info_counts_what_is_allocated;
    Pinned:
        pinned_memory_is_host_memory;
    Peer:
        peer_copies_reach_the_other_device;
}

fn r04_a_wrong_address_is_not_freed(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 4096);
    fill(&queue, memory.address, 4096, &[3]);
    for address in [0, memory.address + 64, u64::MAX] {
        // SAFETY: not the address of an allocation, so that nothing is freed.
        let error = unsafe { driver.memory_free(address) }.unwrap_err();
        assert_eq!(error.code(), Code::INVALID_ARGUMENT);
        assert!(!error.message().is_empty());
    }
    assert_eq!(read(&queue, memory.address, 4096), [3; 4096]);
}

fn r13_allocations_do_not_overlap(target: &Target) {
    let driver = target.open();
    let sizes = [1, 63, 64, 65, 1000, 4096, 4097, 100_000, 1 << 20];
    let mut live = Vec::new();
    for device in 0..driver.device_count() {
        for size in sizes {
            live.push((Memory::new(&driver, device, size), size));
        }
    }
    // Every second one is made anew, so that freed ranges are used again.
    for device in 0..driver.device_count() {
        let mut index = 0;
        live.retain(|_| {
            index += 1;
            index % 2 == 0
        });
        live.extend(sizes.map(|size| (Memory::new(&driver, device, size), size)));
    }
    let mut ranges: Vec<_> = live
        .iter()
        .map(|(m, size)| (m.address, m.address + size))
        .collect();
    ranges.sort_unstable();
    assert!(ranges[0].0 != 0);
    for pair in ranges.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
}

fn r13_an_offset_address_is_valid(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 1000);
    fill(&queue, memory.address, 1000, &[0]);
    for (at, byte) in [(0, 1u8), (1, 2), (499, 3), (999, 4)] {
        write(&queue, memory.address + at, &[byte]);
    }
    let bytes = read(&queue, memory.address, 1000);
    assert_eq!((bytes[0], bytes[1], bytes[499], bytes[999]), (1, 2, 3, 4));
    assert_eq!(read(&queue, memory.address + 999, 1), [4]);
    assert_eq!(bytes.iter().filter(|b| **b != 0).count(), 4);
}

fn r14_allocations_are_aligned(target: &Target) {
    let driver = target.open();
    for device in 0..driver.device_count() {
        let alignment = u64::from(driver.properties(device).unwrap().address_alignment);
        assert!(alignment.is_power_of_two() && alignment >= 64);
        let live: Vec<_> = [1, 7, 100, 5000]
            .map(|size| Memory::new(&driver, device, size))
            .into();
        assert!(live.iter().all(|memory| memory.address % alignment == 0));
    }
}

fn r15_a_device_address_is_a_host_pointer(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let memory = Memory::new(&driver, 0, 256);
    fill(&queue, memory.address, 256, &[1, 2]);
    queue.synchronize().unwrap();
    // SAFETY: the driver promises host-visible memory, and its work has finished.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.address as *mut u8, 256) };
    assert!(bytes.chunks(2).all(|pair| pair == [1, 2]));
    bytes.fill(9);
    assert_eq!(read(&queue, memory.address, 256), [9; 256]);
}

fn r29_out_of_memory_leaves_the_driver_usable(target: &Target) {
    let driver = target.open();
    let queue = queue(&driver);
    let total = driver.properties(0).unwrap().total_memory;
    for size in [total + 1, u64::MAX / 2, u64::MAX - 4096, u64::MAX] {
        let error = driver.memory_alloc(0, size).unwrap_err();
        assert_eq!(error.code(), Code::OUT_OF_MEMORY, "{size} bytes");
        assert!(!error.message().is_empty());
    }
    // In the small: until nothing is left, and then again.
    let step = (total / 8).max(1);
    for _ in 0..2 {
        let mut live = Vec::new();
        let error = loop {
            match driver.memory_alloc(0, step) {
                Ok(address) => live.push(address),
                Err(error) => break error,
            }
            assert!(live.len() <= 8, "more than the device has");
        };
        assert_eq!(error.code(), Code::OUT_OF_MEMORY);
        assert!(
            live.len() >= 4,
            "only {} of 8 parts of the memory could be had",
            live.len()
        );
        fill(&queue, live[0], 64, &[5]);
        assert_eq!(read(&queue, live[0], 64), [5; 64]);
        for address in live {
            // SAFETY: all work has finished.
            unsafe { driver.memory_free(address) }.unwrap();
        }
    }
}

fn memory_info_counts_what_is_allocated(target: &Target) {
    let driver = target.open();
    let (free, total) = driver.memory_info(0).unwrap().unwrap();
    assert!(free <= total && total > 0);
    let memory = Memory::new(&driver, 0, 1 << 20);
    let (less, same) = driver.memory_info(0).unwrap().unwrap();
    assert!(
        less <= free - (1 << 20) && same == total,
        "{free} before, {less} with a MiB less"
    );
    drop(memory);
    assert_eq!(driver.memory_info(0).unwrap(), Some((free, total)));
}

fn pinned_memory_is_host_memory(target: &Target) {
    let driver = target.open();
    let (queue, pinned) = (queue(&driver), driver.pinned().unwrap());
    let memory = Memory::new(&driver, 0, 4096);
    let pointer = pinned.alloc(4096).unwrap().cast::<u8>();
    // SAFETY: the pinned memory is live, and only one side at a time uses it.
    unsafe {
        pointer.write_bytes(7, 4096);
        queue
            .copy(memory.address, pointer as u64, 4096, CopyKind::HostToDevice)
            .unwrap();
        queue.synchronize().unwrap();
        pointer.write_bytes(0, 4096);
        queue
            .copy(pointer as u64, memory.address, 4096, CopyKind::DeviceToHost)
            .unwrap();
        queue.synchronize().unwrap();
        assert_eq!(std::slice::from_raw_parts(pointer, 4096), [7; 4096]);
        pinned.free(pointer.cast()).unwrap();
    }
}

fn peer_copies_reach_the_other_device(target: &Target) {
    let driver = target.open();
    let peer = driver.peer().unwrap();
    if !peer.can_access(0, 1).unwrap() {
        return;
    }
    let (near, far) = (Memory::new(&driver, 0, 4096), Memory::new(&driver, 1, 4096));
    let queues = [
        driver.queue_create(0, 0).unwrap(),
        driver.queue_create(1, 0).unwrap(),
    ];
    fill(&queues[1], far.address, 4096, &[8]);
    queues[1].synchronize().unwrap();
    // SAFETY: both ranges are live until the copy has been waited for.
    unsafe { peer.copy(&queues[0], (0, near.address), (1, far.address), 4096) }.unwrap();
    assert_eq!(read(&queues[0], near.address, 4096), [8; 4096]);
}
