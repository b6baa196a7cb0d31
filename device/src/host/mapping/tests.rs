//! Tests of a device's virtual memory alone: mappings that are undone, the end of objects, imports. The
//! kernel says which memory can be reached.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::super::memory::Memory;
use super::super::options::Face;
use super::super::pages::{Pages, Part};
use super::{Code, GRANULARITY, Mapping};

fn memory(face: Face) -> Memory {
    Memory::new(0, 1, 32 * GRANULARITY, face).unwrap()
}

/// The byte at a device address, as a kernel would reach it.
fn byte(memory: &Memory, address: u64) -> *mut u8 {
    memory.resolve(address, 1).unwrap() as *mut u8
}

/// Whether a touch of a device address would reach memory, as the kernel tells.
fn reachable(memory: &Memory, address: u64) -> bool {
    let pointer = byte(memory, address) as u64;
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (start, end) = range.split_once('-').unwrap();
        let bound = |hex| u64::from_str_radix(hex, 16).unwrap();
        (bound(start)..bound(end)).contains(&pointer) && rest.starts_with("rw")
    })
}

fn nothing_left(mapping: &Mapping) {
    let left = mapping.left();
    assert_eq!((left.ranges, left.objects, left.imports), (0, 0, 0));
    let state = mapping.state.lock();
    assert!(state.mapped.is_empty() && state.objects.is_empty());
    assert_eq!((state.offsets.count(), state.reserved.count()), (0, 0));
}

#[test]
fn a_map_that_fails_half_way_leaves_nothing_mapped() {
    for face in [Face::Unified, Face::Discrete] {
        let memory = memory(face);
        let mapping = memory.mapping();
        let own = mapping.create(GRANULARITY).unwrap();
        // A file that is open for reading only cannot be mapped for writing.
        let path = format!("/proc/self/fd/{}", mapping.pages.file().as_raw_fd());
        let read_only = OwnedFd::from(File::open(path).unwrap());
        let broken = mapping.adopt(Part {
            pages: Arc::new(Pages::of(read_only)),
            offset: 0,
            size: GRANULARITY,
        });
        let range = mapping.reserve(4 * GRANULARITY, 0).unwrap();
        let fault = mapping.map(range, &[own, own, broken, own]).unwrap_err();
        assert!(
            format!("{fault:?}").contains("2097152 of 8388608"),
            "{fault:?}"
        );
        assert!(mapping.state.lock().mapped.is_empty());
        for granule in 0..4 {
            assert!(!reachable(&memory, range + granule * GRANULARITY));
        }
        // All of the range can be mapped, and an object reaches its bytes from each place.
        mapping.map(range, &[own, own, own, own]).unwrap();
        // SAFETY: just mapped.
        unsafe {
            byte(&memory, range + 5).write(7);
            assert_eq!(byte(&memory, range + 3 * GRANULARITY + 5).read(), 7);
        }
        assert!(reachable(&memory, range + 3 * GRANULARITY));
        mapping.unmap(range + GRANULARITY, 3 * GRANULARITY).unwrap();
        for granule in 1..4 {
            let end = range + (granule + 1) * GRANULARITY - 1;
            assert!(!reachable(&memory, range + granule * GRANULARITY));
            assert!(!reachable(&memory, end));
        }
        assert!(reachable(&memory, range));
        mapping.unmap(range, GRANULARITY).unwrap();
        mapping.release(range, 4 * GRANULARITY).unwrap();
        mapping.destroy(own).unwrap();
        mapping.destroy(broken).unwrap();
        nothing_left(mapping);
        assert_eq!(memory.available(), memory.limit());
    }
}

#[test]
fn memory_goes_with_the_last_mapping_and_its_bytes_too() {
    let memory = memory(Face::Unified);
    let mapping = memory.mapping();
    let range = mapping.reserve(3 * GRANULARITY, 0).unwrap();
    let object = mapping.create(GRANULARITY).unwrap();
    mapping.map(range, &[object]).unwrap();
    mapping.map(range + GRANULARITY, &[object]).unwrap();
    // SAFETY: just mapped.
    unsafe { byte(&memory, range).write(9) };
    mapping.destroy(object).unwrap();
    let fault = mapping.map(range + 2 * GRANULARITY, &[object]).unwrap_err();
    assert_eq!(fault.code(), Code::INVALID_HANDLE);
    mapping.unmap(range, GRANULARITY).unwrap();
    assert_eq!(memory.available(), memory.limit() - GRANULARITY);
    // SAFETY: still mapped there.
    assert_eq!(unsafe { byte(&memory, range + GRANULARITY).read() }, 9);
    mapping.unmap(range + GRANULARITY, GRANULARITY).unwrap();
    assert_eq!(memory.available(), memory.limit());
    let next = mapping.create(GRANULARITY).unwrap();
    mapping.map(range, &[next]).unwrap();
    // SAFETY: just mapped. No value is promised; here it shows that the pages were given back.
    assert_eq!(unsafe { byte(&memory, range).read() }, 0);
    mapping.unmap(range, GRANULARITY).unwrap();
    mapping.destroy(next).unwrap();
    mapping.release(range, 3 * GRANULARITY).unwrap();
    nothing_left(mapping);
}

#[test]
fn an_import_takes_addresses_of_its_own_and_gives_them_back() {
    for face in [Face::Unified, Face::Discrete] {
        let memory = memory(face);
        let mapping = memory.mapping();
        // Smaller than a granule, and not at the start of one.
        let part = Part {
            pages: Arc::new(Pages::new(1 << 20).unwrap()),
            offset: 64 << 10,
            size: 192 << 10,
        };
        let (one, two) = (
            mapping.import(part.clone()).unwrap(),
            mapping.import(part).unwrap(),
        );
        // SAFETY: both are mapped, and to the same bytes.
        unsafe {
            byte(&memory, one + 5).write(3);
            assert_eq!(byte(&memory, two + 5).read(), 3);
        }
        assert!(reachable(&memory, one + (192 << 10) - 1));
        assert!(!reachable(&memory, one + (192 << 10)));
        assert_eq!(memory.available(), memory.limit());
        assert!(mapping.unmap(one, 192 << 10).is_err());
        assert!(mapping.release(one, GRANULARITY).is_err());
        mapping.close(one).unwrap();
        assert!(mapping.close(one).is_err() && !reachable(&memory, one));
        mapping.close(two).unwrap();
        nothing_left(mapping);
    }
}

#[test]
fn more_mappings_than_the_kernel_has_are_refused_before_the_first() {
    let setting = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let objects = setting.trim().parse::<u64>().unwrap() / 2 + 1;
    // A device of this memory has a little more than enough addresses.
    let limit = (objects / 128 + 1) * GRANULARITY;
    let memory = Memory::new(0, 1, limit, Face::Unified).unwrap();
    let mapping = memory.mapping();
    let object = mapping.create(GRANULARITY).unwrap();
    let range = mapping.reserve(objects * GRANULARITY, 0).unwrap();
    let fault = mapping
        .map(range, &vec![object; objects as usize])
        .unwrap_err();
    assert_eq!(fault.code(), Code::OUT_OF_HOST_MEMORY);
    assert!(
        format!("{fault:?}").contains("vm.max_map_count"),
        "{fault:?}"
    );
    assert!(!reachable(&memory, range));
    // It was not counted.
    mapping.map(range, &[object, object]).unwrap();
    mapping.unmap(range, 2 * GRANULARITY).unwrap();
    mapping.destroy(object).unwrap();
    mapping.release(range, objects * GRANULARITY).unwrap();
    nothing_left(mapping);
}
