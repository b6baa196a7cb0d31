//! The live addresses of a driver, and the memory of each device that they take: the checks of R7 and the group
//! `memory_info` need both. The file takes no memory itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_contract as c;
use parking_lot::RwLock;

use crate::{Fault, Result};

/// The memory of one device.
#[derive(Debug)]
struct Room {
    limit: u64,
    largest: u64,
    used: AtomicU64,
}

#[derive(Debug)]
struct Live {
    size: u64,
    device: u32,
}

/// The allocations of all devices of an open driver.
#[derive(Debug)]
pub struct Allocations {
    rooms: Box<[Room]>,
    /// By address. R13: they do not overlap.
    live: RwLock<BTreeMap<u64, Live>>,
}

impl Allocations {
    /// Devices by their bytes in all, and the bytes of their largest allocation.
    pub fn new(devices: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let room = |(limit, largest): (u64, u64)| Room {
            limit,
            largest: largest.min(limit),
            used: AtomicU64::new(0),
        };
        Self {
            rooms: devices.into_iter().map(room).collect(),
            live: RwLock::default(),
        }
    }

    /// Free and total bytes of a device.
    pub fn info(&self, device: u32) -> (u64, u64) {
        let room = &self.rooms[device as usize];
        (room.limit - room.used.load(Ordering::Relaxed), room.limit)
    }

    /// The number of live addresses.
    pub fn count(&self) -> usize {
        self.live.read().len()
    }

    /// The number of live allocations of a device.
    pub fn count_of(&self, device: u32) -> usize {
        let live = self.live.read();
        live.values().filter(|live| live.device == device).count()
    }

    /// Makes an allocation: room is taken first, then `alloc` is called, which gives an address or `None`.
    ///
    /// # Errors
    /// `OTR_ERR_OUT_OF_MEMORY` where it does not fit, or `alloc` gives nothing (R29).
    pub fn alloc(
        &self,
        device: u32,
        size: u64,
        alloc: impl FnOnce() -> Option<u64>,
    ) -> Result<u64> {
        if size == 0 {
            return Err(Fault::argument(
                "an allocation of 0 bytes; at least 1 is needed",
            ));
        }
        let room = &self.rooms[device as usize];
        let take = |used: u64| {
            let fits = size <= room.largest && size <= room.limit - used;
            fits.then(|| used + size)
        };
        let taken = (room.used).fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        let address = taken.ok().and_then(|_| {
            let address = alloc();
            if address.is_none() {
                room.used.fetch_sub(size, Ordering::Relaxed);
            }
            address
        });
        let Some(address) = address else {
            let (free, total) = self.info(device);
            return Err(Fault::new(
                c::OTR_ERR_OUT_OF_MEMORY,
                format!(
                    "{size} bytes do not fit on device {device}: {free} of {total} are free, and at most {} can be \
                     had at a time",
                    room.largest
                ),
            ));
        };
        self.live.write().insert(address, Live { size, device });
        Ok(address)
    }

    /// Ends an allocation, and calls `free` with its device before the room counts as free again.
    ///
    /// # Errors
    /// `OTR_ERR_INVALID_ARGUMENT` for an address that no allocation begins at.
    pub fn free(&self, address: u64, free: impl FnOnce(u32)) -> Result {
        let Some(live) = self.live.write().remove(&address) else {
            return Err(Fault::argument(format!(
                "{address:#x} is not the address of an allocation of this driver"
            )));
        };
        free(live.device);
        let used = &self.rooms[live.device as usize].used;
        used.fetch_sub(live.size, Ordering::Relaxed);
        Ok(())
    }

    /// Whether bytes are within one allocation of a device.
    #[inline]
    pub fn has(&self, device: u32, address: u64, size: u64) -> bool {
        let live = self.live.read();
        let found = live.range(..=address).next_back();
        found.is_some_and(|(start, live)| {
            let offset = address - start;
            live.device == device && offset < live.size && size <= live.size - offset
        })
    }

    /// Refuses bytes that are not (R7).
    ///
    /// # Errors
    /// `OTR_ERR_INVALID_ARGUMENT`, with the range in the text.
    pub fn check(&self, device: u32, address: u64, size: u64) -> Result {
        if self.has(device, address, size) {
            return Ok(());
        }
        Err(Fault::argument(format!(
            "the {size} bytes at {address:#x} are not within one allocation of device {device}"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::Allocations;
    use outrigger_contract as c;

    #[test]
    fn room_is_counted_and_ranges_are_known() {
        let all = Allocations::new([(1000, 600), (50, 0)]);
        let a = all.alloc(0, 600, || Some(0x1000)).unwrap();
        assert_eq!(all.info(0), (400, 1000));
        for size in [401, 601, u64::MAX] {
            let fault = all.alloc(0, size, || unreachable!()).unwrap_err();
            assert_eq!(fault.code(), c::OTR_ERR_OUT_OF_MEMORY);
        }
        assert!(all.alloc(0, 0, || unreachable!()).is_err());
        assert!(all.alloc(0, 100, || None).is_err());
        assert_eq!(all.info(0), (400, 1000), "what was refused took nothing");
        assert!(all.check(0, a, 600).is_ok());
        assert!(all.check(0, a + 599, 1).is_ok());
        for (device, at, size) in [
            (0, a, 601),
            (0, a + 600, 1),
            (0, a - 1, 1),
            (1, a, 1),
            (0, a + 1, u64::MAX),
            (0, 0, 1),
        ] {
            let fault = all.check(device, at, size).unwrap_err();
            assert_eq!(fault.code(), c::OTR_ERR_INVALID_ARGUMENT);
        }
        assert!(all.free(a + 1, |_| unreachable!()).is_err());
        all.free(a, |device| assert_eq!(device, 0)).unwrap();
        assert_eq!((all.info(0), all.count()), ((1000, 1000), 0));
    }
}
