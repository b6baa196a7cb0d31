//! The books of a device's virtual memory: which ranges are reserved, which objects exist, and what is
//! mapped where. This module maps nothing itself.

use std::collections::{BTreeMap, HashMap};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::fault::Fault;
use super::super::pages::Part;
use super::super::ranges::Ranges;
use crate::Code;

/// Objects that are mapped in this process: each counts for one of the kernel's mappings, and the range
/// beside it for another.
pub(super) static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// What a device's virtual memory consists of at the moment.
#[derive(Debug)]
pub(super) struct State {
    /// Reserved ranges.
    pub(super) reserved: Ranges,
    /// By device address. They never overlap.
    pub(super) mapped: BTreeMap<u64, Mapped>,
    pub(super) objects: HashMap<u64, Object>,
    /// Parts of the file.
    pub(super) offsets: Ranges,
    /// The number of the next object. Never used again, so that a stale one is known as such.
    pub(super) next: u64,
    /// Imported allocations: address to size. Each has a range of its own.
    pub(super) imports: HashMap<u64, u64>,
}

/// An object at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapped {
    pub(super) object: u64,
    pub(super) size: u64,
}

/// Physical memory.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) part: Part,
    pub(super) mappings: usize,
    /// Whether the host still has its handle.
    pub(super) live: bool,
    /// Whether it is this device's own memory, and not another process's.
    pub(super) own: bool,
}

impl State {
    /// An object whose number the host has.
    pub(super) fn object(&mut self, number: u64) -> Result<&mut Object, Fault> {
        self.objects
            .get_mut(&number)
            .filter(|object| object.live)
            .ok_or_else(|| {
                Fault::new(
                    Code::INVALID_HANDLE,
                    format!(
                        "{number:#x} is not physical memory of this device, or was destroyed before"
                    ),
                )
            })
    }

    pub(super) fn add(&mut self, part: Part, own: bool) -> u64 {
        let number = self.next;
        self.next += 1;
        self.objects.insert(
            number,
            Object {
                part,
                mappings: 0,
                live: true,
                own,
            },
        );
        number
    }

    pub(super) fn reserve(&mut self, size: u64, alignment: u64) -> Result<u64, Fault> {
        self.reserved.take(size, alignment).ok_or_else(|| {
            Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!(
                    "{size} bytes of addresses were asked for, aligned to {alignment}; the largest hole \
                     has {}",
                    self.reserved.largest()
                ),
            )
        })
    }

    /// Gives a reserved range back that nothing is mapped in.
    pub(super) fn release(&mut self, address: u64) {
        if let Some(size) = self.reserved.remove(address) {
            self.reserved.free(address, size);
        }
    }
}

/// Counts objects as mapped, as long as the kernel has mappings for them and for taking them away again.
pub(super) fn count(objects: usize) -> Result<(), Fault> {
    static MOST: OnceLock<usize> = OnceLock::new();
    let most = *MOST.get_or_init(|| {
        let setting = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
        // Linux's default, where it does not tell.
        setting.trim().parse().unwrap_or(65_530) / 2
    });
    MAPPED
        .try_update(Ordering::Relaxed, Ordering::Relaxed, |mapped| {
            mapped.checked_add(objects).filter(|mapped| *mapped <= most)
        })
        .map(drop)
        .map_err(|mapped| {
            Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!(
                    "{objects} more objects beside the {mapped} mapped ones would exceed the {most} of \
                     this process: create larger ones, or raise vm.max_map_count"
                ),
            )
        })
}
