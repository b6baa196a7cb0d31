//! R37 to R41: reserved addresses, physical memory, and what is mapped where, while other work runs.

use std::ffi::c_void;

use outrigger_device::{Code, CopyKind, Driver, Physical, VirtualMemory};

use super::kit::{Bench, Log, block, fill, free, holds, note, read, within, write};
use crate::test::tests;
use crate::verdict::{answers, check, equal};
use crate::{Context, Failure, Gate, Verdict};

tests! { "memory.reserve":
    /// The granularity is a power of two of at least `address_alignment`, and the same each time.
    granularity_makes_sense: R37, needs VirtualMemory;
    /// Reserved ranges are aligned as asked for, and to the granularity.
    ranges_are_aligned: R37, needs VirtualMemory;
    /// Reserved ranges overlap neither each other nor allocations, used or not.
    ranges_overlap_nothing: R13 R37, needs VirtualMemory;
    /// Sizes and alignments that are no multiples of the granularity are refused.
    odd_sizes_are_refused: R7 R37, needs VirtualMemory;
    /// More addresses than there are cannot be reserved, and nothing is taken.
    too_many_addresses_are_refused: R4 R37, needs VirtualMemory;
    /// Reserving takes no memory.
    reserving_takes_no_memory: R37 R38, needs VirtualMemory MemoryInfo;
    /// `release` takes back the whole of a range, and nothing else.
    a_range_is_released_whole: R4 R37, needs VirtualMemory;
    /// A range in which something is mapped is not released.
    a_range_in_use_is_not_released: R37, needs VirtualMemory;
    /// A range is released once.
    a_range_is_released_once: R37, needs VirtualMemory;
    /// `memory_free` refuses reserved and mapped addresses.
    a_range_is_not_freed: R4 R37, needs VirtualMemory;
    /// Ranges come and go, thousands of times.
    ranges_come_and_go: R37, needs VirtualMemory;
    /// Each device has ranges of its own.
    of_each_device: R37, needs VirtualMemory TwoDevices;
}

/// A range of addresses with objects, which gives all of it back at its end.
struct Space<'a> {
    bench: &'a Bench,
    granule: u64,
    base: u64,
    size: u64,
    objects: Vec<Physical>,
}

fn group(driver: &Driver) -> Verdict<VirtualMemory<'_>> {
    driver
        .virtual_memory()
        .ok_or_else(|| Failure::new("the driver has the group virtual_memory"))
}

impl<'a> Space<'a> {
    /// `granules` of addresses, and as many objects of one granule as are asked for, none mapped.
    fn new(bench: &'a Bench, granules: u64, objects: usize) -> Verdict<Self> {
        let memory = group(bench.driver())?;
        let granule = memory.granularity(0)?;
        let size = granules * granule;
        Ok(Self {
            bench,
            granule,
            base: memory.reserve(0, size, 0)?,
            size,
            objects: (0..objects)
                .map(|_| memory.create(0, granule))
                .collect::<Result<_, _>>()?,
        })
    }

    fn group(&self) -> Verdict<VirtualMemory<'a>> {
        group(self.bench.driver())
    }

    /// The address of a granule of the range.
    fn at(&self, granule: u64) -> u64 {
        self.base + granule * self.granule
    }

    /// Maps objects, by their indices, from a granule on.
    #[track_caller]
    fn map(&self, granule: u64, objects: &[usize]) -> Verdict {
        let objects: Vec<Physical> = objects.iter().map(|&i| self.objects[i]).collect();
        // SAFETY: live objects of this driver.
        unsafe { self.group()?.map(self.at(granule), &objects) }?;
        Ok(())
    }

    #[track_caller]
    fn unmap(&self, granule: u64, granules: u64) -> Verdict {
        // SAFETY: the test has waited for all work there.
        unsafe {
            self.group()?
                .unmap(self.at(granule), granules * self.granule)
        }?;
        Ok(())
    }

    /// Gives all of it back; nothing is mapped any more.
    #[track_caller]
    fn end(self) -> Verdict {
        let memory = self.group()?;
        for object in &self.objects {
            // SAFETY: a live object, given back once.
            unsafe { memory.destroy(*object) }?;
        }
        memory.release(self.base, self.size)?;
        Ok(())
    }
}

/// Checks a refusal and that there is a text.
#[track_caller]
fn refused<T>(result: outrigger_device::Result<T>, code: Code, what: &str) -> Verdict {
    answers!(result, code, "{what}");
    check!(
        result.is_err_and(|e| !e.message().is_empty()),
        "R5: {what} has a text"
    );
    Ok(())
}

pub(super) mod object;

pub(super) mod map;

fn granularity_makes_sense(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    for device in 0..bench.device_count() {
        let granule = memory.granularity(device)?;
        let alignment = u64::from(bench.properties(device)?.address_alignment);
        check!(
            granule.is_power_of_two() && granule >= alignment,
            "a granularity of {granule}"
        );
        equal!(memory.granularity(device)?, granule, "asked again");
    }
    bench.finish()
}

fn ranges_are_aligned(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    for device in 0..bench.device_count() {
        let granule = memory.granularity(device)?;
        for (size, alignment) in [(1, 0), (3, 1), (1, 8), (2, 4), (5, 1), (1, 16), (7, 64)] {
            let (size, alignment) = (size * granule, alignment * granule);
            let address = memory.reserve(device, size, alignment)?;
            equal!(
                address % alignment.max(granule),
                0,
                "{size} bytes aligned to {alignment}: {address:#x}"
            );
            memory.release(address, size)?;
        }
    }
    bench.finish()
}

fn ranges_overlap_nothing(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let (mut ranges, mut all) = (Vec::new(), Vec::new());
    for device in 0..bench.device_count() {
        let granule = memory.granularity(device)?;
        for size in [1, 3, 8, 2, 1, 5] {
            let size = size * granule;
            ranges.push((memory.reserve(device, size, 0)?, size));
            all.push((bench.memory_on(device, 100_000)?, 100_000));
        }
    }
    all.extend(&ranges);
    all.sort_unstable();
    for pair in all.windows(2) {
        check!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?} overlap");
    }
    for (address, size) in ranges {
        memory.release(address, size)?;
    }
    bench.finish()
}

fn odd_sizes_are_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    for (size, alignment) in [
        (0, 0),
        (granule / 2, 0),
        (granule + 1, 0),
        (granule, granule * 3),
        (granule, 1),
        (granule, granule / 2),
    ] {
        let answer = memory.reserve(0, size, alignment);
        refused(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("{size} bytes aligned to {alignment}"),
        )?;
    }
    bench.finish()
}

fn too_many_addresses_are_refused(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    for size in [u64::MAX >> 1, u64::MAX] {
        let answer = memory.reserve(0, size / granule * granule, 0);
        check!(
            answer.is_err_and(|e| !e.message().is_empty()),
            "{size} bytes of addresses are refused, with a text"
        );
    }
    let address = memory.reserve(0, granule, 0)?;
    memory.release(address, granule)?;
    bench.finish()
}

fn reserving_takes_no_memory(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    let before = free(bench.driver())?;
    // More than the device has.
    let size = (bench.properties(0)?.total_memory * 4).next_multiple_of(granule);
    let address = memory.reserve(0, size, 0)?;
    equal!(
        free(bench.driver())?,
        before,
        "free memory, with four times as many addresses reserved"
    );
    memory.release(address, size)?;
    bench.finish()
}

fn a_range_is_released_whole(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let space = Space::new(&bench, 4, 1)?;
    let granule = space.granule;
    for (address, size) in [
        (space.base, 3 * granule),
        (space.base, 5 * granule),
        (space.at(1), 3 * granule),
        (0, 4 * granule),
        (space.base, 0),
    ] {
        let answer = space.group()?.release(address, size);
        refused(
            answer,
            Code::INVALID_ARGUMENT,
            &format!("a release of {size:#x} bytes at {address:#x}"),
        )?;
    }
    space.map(3, &[0])?;
    holds_after_fill(&bench, space.at(3))?;
    space.unmap(3, 1)?;
    space.end()?;
    bench.finish()
}

fn holds_after_fill(bench: &Bench, address: u64) -> Verdict {
    let queue = bench.queue()?;
    fill(&queue, address, 256, &[9])?;
    holds(&queue, address, 256, 9, "mapped memory")
}

fn a_range_in_use_is_not_released(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let space = Space::new(&bench, 4, 1)?;
    space.map(3, &[0])?;
    for _ in 0..3 {
        refused(
            space.group()?.release(space.base, space.size),
            Code::BUSY,
            "a release of a range in use",
        )?;
        holds_after_fill(&bench, space.at(3))?;
    }
    space.unmap(3, 1)?;
    space.end()?;
    bench.finish()
}

fn a_range_is_released_once(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    let address = memory.reserve(0, granule, 0)?;
    memory.release(address, granule)?;
    refused(
        memory.release(address, granule),
        Code::INVALID_ARGUMENT,
        "a second release",
    )?;
    bench.finish()
}

fn a_range_is_not_freed(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let space = Space::new(&bench, 2, 1)?;
    // SAFETY: no allocation, so that nothing is freed.
    let answer = unsafe { bench.memory_free(space.base) };
    refused(
        answer,
        Code::INVALID_ARGUMENT,
        "memory_free of a reserved address",
    )?;
    space.map(0, &[0])?;
    // SAFETY: as above; it is mapped, and still no allocation.
    let answer = unsafe { bench.memory_free(space.base) };
    refused(
        answer,
        Code::INVALID_ARGUMENT,
        "memory_free of a mapped address",
    )?;
    holds_after_fill(&bench, space.base)?;
    space.unmap(0, 1)?;
    space.end()?;
    bench.finish()
}

fn ranges_come_and_go(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    let granule = memory.granularity(0)?;
    for round in 0..2000u64 {
        let size = (1 + round % 7) * granule;
        let address = memory.reserve(0, size, 0)?;
        memory.release(address, size)?;
    }
    bench.finish()
}

fn of_each_device(context: &Context) -> Verdict {
    let bench = Bench::new(context)?;
    let memory = group(bench.driver())?;
    for device in 0..2 {
        let granule = memory.granularity(device)?;
        let (object, address) = (
            memory.create(device, granule)?,
            memory.reserve(device, granule, 0)?,
        );
        // SAFETY: a live object of this device; the work has finished before it is unmapped.
        unsafe { memory.map(address, &[object]) }?;
        let queue = bench.queue_on(device)?;
        fill(&queue, address, granule, &[device as u8 + 1])?;
        holds(
            &queue,
            address,
            granule as usize,
            device as u8 + 1,
            "mapped memory of a device",
        )?;
        // SAFETY: as above.
        unsafe {
            memory.unmap(address, granule)?;
            memory.destroy(object)?;
        }
        memory.release(address, granule)?;
    }
    refused(
        memory.granularity(bench.device_count()),
        Code::INVALID_DEVICE,
        "granularity of no device",
    )?;
    bench.finish()
}
