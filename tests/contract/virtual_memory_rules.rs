//! R37 to R41: reserved addresses, physical memory, and what is mapped where, with work running beside
//! it.

use std::ffi::c_void;

use outrigger_device::{Code, CopyKind, Driver, Physical, VirtualMemory};
use outrigger_tests::Gate;

use crate::support::{Memory, Target, block, event, fill, note, queue, read, write};

crate::cases! {
    VirtualMemory:
        r37_ranges_are_aligned_and_overlap_nothing,
        r37_a_range_is_released_whole_and_empty,
        r38_create_takes_the_memory_and_destroy_gives_it_back,
        r38_memory_of_a_destroyed_object_goes_with_its_last_unmap,
        r39_all_mappings_of_an_object_reach_the_same_bytes_in_order,
        r39_a_map_that_is_refused_maps_nothing,
        r40_map_and_unmap_go_on_beside_work,
        r40_unmap_takes_whole_objects_without_gaps,
        r41_commands_reach_across_objects;
    VirtualMemoryAndHostKernels:
        r41_kernels_reach_across_objects;
}

/// A range of addresses with objects, which gives all of it back at its end.
struct Space {
    driver: Driver,
    granule: u64,
    /// Where the range begins.
    base: u64,
    size: u64,
    objects: Vec<Physical>,
}

impl Space {
    /// `granules` of addresses, and as many objects of one granule as are asked for, none mapped.
    fn new(driver: &Driver, granules: u64, objects: usize) -> Self {
        let memory = driver.virtual_memory().unwrap();
        let granule = memory.granularity(0).unwrap();
        let size = granules * granule;
        Self {
            driver: driver.clone(),
            granule,
            base: memory.reserve(0, size, 0).unwrap(),
            size,
            objects: (0..objects)
                .map(|_| memory.create(0, granule).unwrap())
                .collect(),
        }
    }

    fn memory(&self) -> VirtualMemory<'_> {
        self.driver.virtual_memory().unwrap()
    }

    /// The address of a granule of the range.
    fn at(&self, granule: u64) -> u64 {
        self.base + granule * self.granule
    }

    /// Maps objects, by their indices, from a granule on.
    fn map(&self, granule: u64, objects: &[usize]) {
        let objects: Vec<Physical> = objects.iter().map(|&i| self.objects[i]).collect();
        // SAFETY: live objects of this driver.
        unsafe { self.memory().map(self.at(granule), &objects) }.unwrap();
    }

    fn unmap(&self, granule: u64, granules: u64) {
        // SAFETY: the test has waited for all work there.
        unsafe {
            self.memory()
                .unmap(self.at(granule), granules * self.granule)
        }
        .unwrap();
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let memory = self.driver.virtual_memory().unwrap();
        // SAFETY: each test waits for its queues and unmaps all, or fails.
        let ended = unsafe {
            let objects = self.objects.iter().try_for_each(|o| memory.destroy(*o));
            objects.and(memory.release(self.base, self.size))
        };
        assert!(ended.is_ok() || std::thread::panicking(), "{ended:?}");
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: outrigger_device::Result<T>, code: Code) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    assert!(!error.message().is_empty());
}

fn r37_ranges_are_aligned_and_overlap_nothing(target: &Target) {
    let driver = target.open();
    let memory = driver.virtual_memory().unwrap();
    let mut ranges = Vec::new();
    for device in 0..driver.device_count() {
        let granule = memory.granularity(device).unwrap();
        let alignment = u64::from(driver.properties(device).unwrap().address_alignment);
        assert!(granule.is_power_of_two() && granule >= alignment);
        for (size, alignment) in [(1, 0), (3, 1), (1, 8), (2, 4), (5, 1), (1, 16)] {
            let (size, alignment) = (size * granule, alignment * granule);
            let address = memory.reserve(device, size, alignment).unwrap();
            assert_eq!(address % alignment.max(granule), 0);
            ranges.push((address, size));
        }
        for (size, alignment) in [
            (0, 0),
            (granule / 2, 0),
            (granule + 1, 0),
            (granule, granule * 3),
            (granule, 1),
        ] {
            refused(
                memory.reserve(device, size, alignment),
                Code::INVALID_ARGUMENT,
            );
        }
        // Far more than there are addresses.
        assert!(
            memory
                .reserve(device, (u64::MAX >> 1) / granule * granule, 0)
                .is_err()
        );
    }
    let allocations: Vec<_> = (0..driver.device_count())
        .map(|device| Memory::new(&driver, device, 100_000))
        .collect();
    let mut all = ranges.clone();
    all.extend(allocations.iter().map(|memory| (memory.address, 100_000)));
    all.sort_unstable();
    for pair in all.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
    for (address, size) in ranges {
        memory.release(address, size).unwrap();
    }
    refused(
        memory.granularity(driver.device_count()),
        Code::INVALID_DEVICE,
    );
}

fn r37_a_range_is_released_whole_and_empty(target: &Target) {
    let driver = target.open();
    let space = Space::new(&driver, 4, 1);
    let (memory, granule) = (space.memory(), space.granule);
    for (address, size) in [
        (space.base, 3 * granule),
        (space.base, 5 * granule),
        (space.at(1), 3 * granule),
        (0, 4 * granule),
    ] {
        refused(memory.release(address, size), Code::INVALID_ARGUMENT);
    }
    // SAFETY: no allocation, so that nothing is freed.
    refused(
        unsafe { driver.memory_free(space.base) },
        Code::INVALID_ARGUMENT,
    );
    space.map(3, &[0]);
    refused(memory.release(space.base, 4 * granule), Code::BUSY);
    let queue = queue(&driver);
    write(&queue, space.at(3), &[1, 2, 3]);
    assert_eq!(read(&queue, space.at(3), 3), [1, 2, 3]);
    // SAFETY: as above; it is mapped, and still no allocation.
    refused(
        unsafe { driver.memory_free(space.at(3)) },
        Code::INVALID_ARGUMENT,
    );
    space.unmap(3, 1);
    // Released, it is no range any more; the same addresses may be another's then.
    let other = memory.reserve(0, granule, 0).unwrap();
    memory.release(other, granule).unwrap();
    refused(memory.release(other, granule), Code::INVALID_ARGUMENT);
}

/// Free bytes of device 0, where the driver tells.
fn free_bytes(driver: &Driver) -> Option<u64> {
    driver.memory_info(0).unwrap().map(|(free, _)| free)
}

fn r38_create_takes_the_memory_and_destroy_gives_it_back(target: &Target) {
    let driver = target.open();
    let memory = driver.virtual_memory().unwrap();
    let granule = memory.granularity(0).unwrap();
    let total = driver.properties(0).unwrap().total_memory;
    for size in [0, granule / 2, granule + 1] {
        refused(memory.create(0, size), Code::INVALID_ARGUMENT);
    }
    for size in [total + 1, u64::MAX / 2, u64::MAX - 1] {
        let size = size
            .checked_next_multiple_of(granule)
            .unwrap_or(u64::MAX / granule * granule);
        refused(memory.create(0, size), Code::OUT_OF_MEMORY);
    }
    let before = free_bytes(&driver);
    let size = (total / 8).next_multiple_of(granule);
    for _ in 0..2 {
        let mut objects = Vec::new();
        let error = loop {
            match memory.create(0, size) {
                Ok(object) => objects.push(object),
                Err(error) => break error,
            }
            assert!(objects.len() <= 8, "more than the device has");
        };
        assert_eq!(error.code(), Code::OUT_OF_MEMORY);
        assert!(
            objects.len() >= 4,
            "only {} of 8 parts could be had",
            objects.len()
        );
        if let (Some(before), Some(now)) = (before, free_bytes(&driver)) {
            assert!(now <= before - objects.len() as u64 * size);
        }
        // Objects and allocations share the memory.
        refused(driver.memory_alloc(0, total - size), Code::OUT_OF_MEMORY);
        for object in objects {
            // SAFETY: a live object, given back once.
            unsafe { memory.destroy(object) }.unwrap();
        }
        assert_eq!(free_bytes(&driver), before);
    }
}

fn r38_memory_of_a_destroyed_object_goes_with_its_last_unmap(target: &Target) {
    let driver = target.open();
    let (queue, before) = (queue(&driver), free_bytes(&driver));
    let mut space = Space::new(&driver, 3, 1);
    let memory = driver.virtual_memory().unwrap();
    space.map(0, &[0]);
    space.map(2, &[0]);
    write(&queue, space.at(0), b"still here");
    queue.synchronize().unwrap();
    let object = space.objects.pop().unwrap();
    // SAFETY: a live object, given back once.
    unsafe { memory.destroy(object) }.unwrap();
    // SAFETY: refused, since the handle was given back.
    refused(
        unsafe { memory.map(space.at(1), &[object]) },
        Code::INVALID_HANDLE,
    );
    assert_eq!(read(&queue, space.at(2), 10), b"still here");
    space.unmap(0, 1);
    assert_eq!(read(&queue, space.at(2), 10), b"still here");
    if let (Some(before), Some(now)) = (before, free_bytes(&driver)) {
        assert!(
            now <= before - space.granule,
            "it is in use until its last unmap"
        );
    }
    space.unmap(2, 1);
    assert_eq!(free_bytes(&driver), before);
}

fn r39_all_mappings_of_an_object_reach_the_same_bytes_in_order(target: &Target) {
    let driver = target.open();
    let space = Space::new(&driver, 8, 3);
    space.map(0, &[0, 1, 2]);
    // The view: other order, one object twice, and one behind the other.
    space.map(4, &[2, 0, 0]);
    let (first, second) = (queue(&driver), queue(&driver));
    let (go, done) = (event(&driver), event(&driver));
    for round in 0..50u8 {
        let at = u64::from(round) * 64;
        // Written at one address by one queue, read at another by the other, copied on by the first.
        let gate = Gate::new();
        block(&first, &gate);
        fill(&first, space.at(0) + at, 64, &[round]);
        fill(&first, space.at(2) + at, 64, &[round ^ 0xff]);
        go.record(&first).unwrap();
        second.wait_event(&go).unwrap();
        for (dst, src) in [(5, 4), (1, 6)] {
            // SAFETY: both ranges are mapped until the queues have been waited for.
            unsafe {
                second.copy(
                    space.at(dst) + at + if dst == 5 { 64 } else { 0 },
                    space.at(src) + at,
                    64,
                    CopyKind::DeviceToDevice,
                )
            }
            .unwrap();
        }
        done.record(&second).unwrap();
        first.wait_event(&done).unwrap();
        gate.open();
        assert_eq!(read(&first, space.at(0) + at + 64, 64), [round ^ 0xff; 64]);
        assert_eq!(read(&first, space.at(6) + at, 64), [round; 64]);
        assert_eq!(read(&first, space.at(1) + at, 64), [round; 64]);
    }
    space.unmap(4, 3);
    assert_eq!(read(&first, space.at(1), 64), [0; 64]);
    space.unmap(0, 3);
}

fn r39_a_map_that_is_refused_maps_nothing(target: &Target) {
    let driver = target.open();
    let space = Space::new(&driver, 6, 3);
    let (memory, queue) = (space.memory(), queue(&driver));
    let objects = space.objects.clone();
    space.map(2, &[0]);
    fill(&queue, space.at(2), space.granule, &[6]);
    let map = |address, objects: &[Physical]| {
        // SAFETY: live objects of this driver.
        unsafe { memory.map(address, objects) }
    };
    for (what, address, objects) in [
        ("no objects", space.at(0), &objects[..0]),
        ("in the way at the end", space.at(0), &objects[..3]),
        ("in the way at the start", space.at(2), &objects[1..3]),
        ("over the end of the range", space.at(5), &objects[1..3]),
        (
            "not at a granule",
            space.at(3) + space.granule / 2,
            &objects[1..2],
        ),
        ("no range", 0, &objects[1..2]),
    ] {
        let error = map(address, objects).expect_err(what);
        assert_eq!(error.code(), Code::INVALID_ARGUMENT, "{what}: {error}");
    }
    if driver.device_count() > 1 {
        let granule = memory.granularity(1).unwrap();
        let foreign = memory.create(1, granule).unwrap();
        refused(
            map(space.at(3), &[objects[1], foreign, objects[2]]),
            Code::INVALID_ARGUMENT,
        );
        // SAFETY: a live object, given back once.
        unsafe { memory.destroy(foreign) }.unwrap();
    }
    // What was there is there, and all else is free to be mapped.
    assert_eq!(read(&queue, space.at(2), 64), [6; 64]);
    space.map(0, &[1, 2]);
    space.map(3, &[1, 2, 0]);
    assert_eq!(read(&queue, space.at(5), 64), [6; 64]);
    space.unmap(0, 6);
}

fn r40_map_and_unmap_go_on_beside_work(target: &Target) {
    let driver = target.open();
    let space = Space::new(&driver, 8, 3);
    space.map(0, &[0, 1]);
    space.map(6, &[2]);
    let (queue, gate) = (queue(&driver), Gate::new());
    fill(&queue, space.at(0), 2 * space.granule, &[1]);
    queue.synchronize().unwrap();
    block(&queue, &gate);
    fill(&queue, space.at(0), 2 * space.granule, &[2]);
    // The work waits for this thread: a map or unmap that waited for it would hang.
    space.map(3, &[1, 0]);
    space.unmap(6, 1);
    space.map(6, &[2]);
    space.unmap(6, 1);
    assert!(!queue.query().unwrap());
    gate.open();
    assert_eq!(read(&queue, space.at(3), 64), [2; 64]);
    // Mappings come and go while other work runs on the same objects.
    let log = crate::support::Log::default();
    for round in 0..200u64 {
        fill(&queue, space.at(0), 2 * space.granule, &[round as u8]);
        note(&queue, &log, round);
        space.map(6, &[(round % 2) as usize]);
        space.unmap(6, 1);
    }
    assert_eq!(read(&queue, space.at(4), 64), [199; 64]);
    assert_eq!(log.values().len(), 200);
    space.unmap(0, 2);
    space.unmap(3, 2);
}

fn r40_unmap_takes_whole_objects_without_gaps(target: &Target) {
    let driver = target.open();
    let mut space = Space::new(&driver, 8, 2);
    let large = space.memory().create(0, 2 * space.granule).unwrap();
    space.objects.push(large);
    let (memory, queue, granule) = (space.memory(), queue(&driver), space.granule);
    space.map(0, &[0]);
    space.map(1, &[2, 1]);
    space.map(5, &[2]);
    fill(&queue, space.at(0), 4 * granule, &[4]);
    queue.synchronize().unwrap();
    for (what, address, size) in [
        ("half of an object", space.at(1), granule),
        ("its other half", space.at(2), 2 * granule),
        ("a gap at the end", space.at(3), 2 * granule),
        ("a gap in the middle", space.at(3), 3 * granule),
        ("a gap at the start", space.at(4), 3 * granule),
        ("a gap and half of an object", space.at(4), 2 * granule),
        ("nothing", space.at(7), granule),
        ("no bytes", space.at(0), 0),
        ("all numbers", space.at(0), u64::MAX),
        ("no range", 0, granule),
    ] {
        // SAFETY: refused, so that nothing is unmapped.
        let error = unsafe { memory.unmap(address, size) }.expect_err(what);
        assert_eq!(error.code(), Code::INVALID_ARGUMENT, "{what}: {error}");
    }
    assert_eq!(
        read(&queue, space.at(0), 4 * granule as usize),
        vec![4; 4 * granule as usize]
    );
    // Several maps at once, then the tail of one.
    space.unmap(0, 3);
    assert_eq!(read(&queue, space.at(3), 64), [4; 64]);
    space.unmap(3, 1);
    space.unmap(5, 2);
}

fn r41_commands_reach_across_objects(target: &Target) {
    let driver = target.open();
    let space = Space::new(&driver, 8, 4);
    let queue = queue(&driver);
    space.map(0, &[0, 1, 2, 3]);
    // Neighbours at the view that are none at home.
    space.map(4, &[3, 1, 0]);
    fill(&queue, space.at(0), 4 * space.granule, &[0]);
    let (border, next) = (space.at(5), space.at(6));
    write(&queue, border - 3, &[1, 2, 3, 4, 5, 6]);
    fill(&queue, next - 8, 16, &[7, 8]);
    assert_eq!(read(&queue, space.at(4) - 3, 3), [1, 2, 3]);
    assert_eq!(read(&queue, space.at(1), 3), [4, 5, 6]);
    assert_eq!(
        read(&queue, space.at(2) - 8, 9),
        [7, 8, 7, 8, 7, 8, 7, 8, 0]
    );
    assert_eq!(read(&queue, space.at(0), 9), [7, 8, 7, 8, 7, 8, 7, 8, 0]);
    let allocation = Memory::new(&driver, 0, 64);
    // SAFETY: both ranges are live until the copy has been waited for.
    unsafe { queue.copy(allocation.address, border - 3, 6, CopyKind::DeviceToDevice) }.unwrap();
    assert_eq!(read(&queue, allocation.address, 6), [1, 2, 3, 4, 5, 6]);
    space.unmap(0, 7);
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

fn r41_kernels_reach_across_objects(target: &Target) {
    let driver = target.open();
    let space = Space::new(&driver, 4, 2);
    let (queue, kernel) = (
        queue(&driver),
        driver.host_kernel(0, double).unwrap().unwrap(),
    );
    space.map(0, &[0, 1]);
    space.map(2, &[1, 0]);
    fill(&queue, space.at(0), 2 * space.granule, &[3]);
    let args = [space.at(3) - 100, 200].map(u64::to_ne_bytes).concat();
    // SAFETY: what the kernel expects, and mapped until the queue has been waited for.
    unsafe { queue.launch(&kernel, &args, 0, c"double") }.unwrap();
    assert_eq!(read(&queue, space.at(2) - 101, 101)[..2], [3, 6]);
    assert_eq!(read(&queue, space.at(0), 101)[99..], [6, 3]);
    space.unmap(0, 4);
}
