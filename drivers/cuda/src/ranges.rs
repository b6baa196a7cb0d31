//! The ranges of addresses that are reserved, and what is mapped in them.

use std::collections::BTreeMap;

use outrigger_driver_kit::{Fault, Result};
use parking_lot::RwLock;

/// The ranges of an open driver. The lock is held to read or change them, never over a call of CUDA's.
#[derive(Default)]
pub(crate) struct Mappings {
    pub(crate) ranges: RwLock<BTreeMap<u64, Range>>,
}

pub(crate) struct Range {
    pub(crate) size: u64,
    pub(crate) device: u32,
    /// Sizes of mapped objects by their addresses.
    pub(crate) mapped: BTreeMap<u64, u64>,
}

impl Mappings {
    pub(crate) fn count(&self) -> usize {
        self.ranges.read().len()
    }

    /// The number of reserved ranges of a device.
    pub(crate) fn count_of(&self, device: u32) -> usize {
        let ranges = self.ranges.read();
        ranges
            .values()
            .filter(|range| range.device == device)
            .count()
    }

    /// Whether all bytes are in mapped memory of a device.
    pub(crate) fn reaches(&self, device: u32, address: u64, size: u64) -> bool {
        let ranges = self.ranges.read();
        let Some((_, range)) = ranges.range(..=address).next_back() else {
            return false;
        };
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let mut at = address;
        // Objects that lie one behind the other are one piece of memory to the device (R41).
        while range.device == device && at < end {
            match range.mapped.range(..=at).next_back() {
                Some((start, size)) if at - start < *size => at = start + size,
                _ => return false,
            }
        }
        range.device == device
    }
}

/// The range that has all of these bytes.
pub(crate) fn within(
    ranges: &mut BTreeMap<u64, Range>,
    address: u64,
    size: u64,
) -> Result<&mut Range> {
    let found = ranges.range_mut(..=address).next_back();
    let has = |(start, range): &(&u64, &mut Range)| {
        let offset = address - **start;
        offset < range.size && size <= range.size - offset
    };
    found.filter(has).map(|(_, range)| range).ok_or_else(|| {
        Fault::argument(format!(
            "the {size} bytes at {address:#x} are not within one reserved range"
        ))
    })
}
