//! The memory of a device: one reserved range of addresses, given out in granules of 64 KiB. Knows
//! which bytes are whose, and never touches what is in them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

use super::fault::Fault;
use super::options::Face;
use crate::Code;

/// What addresses are given out in, in bytes. Coarse: the allocator above asks for large segments.
pub(super) const GRANULE: u64 = 64 << 10;
/// Allocations of this size and more are aligned to it, so that the kernel can back them with huge
/// pages.
const HUGE: u64 = 2 << 20;

/// The memory of one device.
#[derive(Debug)]
pub(super) struct Memory {
    /// Where the device range begins: what device addresses are relative to.
    base: u64,
    /// Bytes of address space; twice the memory, so that holes rarely stop an allocation.
    reserved: u64,
    /// Where the host reaches the same bytes, minus `base`; 0 on the unified face.
    bias: i64,
    /// Bytes that may be allocated at a time.
    limit: u64,
    backing: Backing,
    space: Mutex<Space>,
}

/// What gives pages back.
#[derive(Debug)]
enum Backing {
    Anonymous,
    File(OwnedFd),
}

#[derive(Debug)]
struct Space {
    /// Offset to size of each hole. Holes never touch.
    free: BTreeMap<u64, u64>,
    /// Offset to size of each allocation.
    taken: HashMap<u64, u64>,
    used: u64,
}

impl Memory {
    pub(super) fn new(limit: u64, face: Face) -> Result<Self, Fault> {
        let limit = limit.next_multiple_of(GRANULE);
        let reserved = (2 * limit).next_multiple_of(HUGE);
        let refused = |what: &str, error: Errno| {
            Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!(
                    "{what} of {reserved} bytes for a device of {limit} bytes failed: {error}; give the \
                     device less (memory=BYTES) or raise the limit on address space"
                ),
            )
        };
        let (base, alias, backing) = match face {
            Face::Unified => {
                let prot = ProtFlags::READ | ProtFlags::WRITE;
                let base = reserve(reserved, prot).map_err(|e| refused("the mapping", e))?;
                // Fewer faults and less page table; a kernel without huge pages refuses, which is fine.
                // SAFETY: the range was just mapped and nobody else knows it.
                let _ = unsafe { madvise(base, reserved as usize, Advice::LinuxHugepage) };
                (base, base, Backing::Anonymous)
            }
            Face::Discrete => {
                let file = memfd_create("outrigger-device", MemfdFlags::CLOEXEC)
                    .and_then(|file| ftruncate(&file, reserved).map(|()| file))
                    .map_err(|e| refused("the memory file", e))?;
                // SAFETY: a new mapping at an address that the kernel chooses.
                let alias = unsafe {
                    mmap(
                        null_mut(),
                        reserved as usize,
                        ProtFlags::READ | ProtFlags::WRITE,
                        MapFlags::SHARED | MapFlags::NORESERVE,
                        &file,
                        0,
                    )
                }
                .map_err(|e| refused("the mapping", e))?;
                let base = match reserve(reserved, ProtFlags::empty()) {
                    Ok(base) => base,
                    Err(error) => {
                        // SAFETY: mapped above, and nobody else knows it.
                        let _ = unsafe { munmap(alias, reserved as usize) };
                        return Err(refused("the reservation", error));
                    }
                };
                // SAFETY: the range was just mapped and nobody else knows it.
                let _ = unsafe { madvise(alias, reserved as usize, Advice::LinuxHugepage) };
                (base, alias, Backing::File(file))
            }
        };
        let space = Space {
            free: BTreeMap::from([(0, reserved)]),
            taken: HashMap::new(),
            used: 0,
        };
        Ok(Self {
            base: base as u64,
            reserved,
            bias: (alias as i64).wrapping_sub(base as i64),
            limit,
            backing,
            space: Mutex::new(space),
        })
    }

    /// What a kernel adds to a device address to reach its bytes.
    #[inline]
    pub(super) fn bias(&self) -> i64 {
        self.bias
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are not allocated.
    pub(super) fn available(&self) -> u64 {
        self.limit - self.space.lock().used
    }

    /// The number of live allocations.
    pub(super) fn allocations(&self) -> usize {
        self.space.lock().taken.len()
    }

    pub(super) fn alloc(&self, size: u64) -> Result<u64, Fault> {
        let mut space = self.space.lock();
        let needed = size.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX);
        if needed > self.limit - space.used {
            return Err(Fault::new(
                Code::OUT_OF_MEMORY,
                format!(
                    "{size} bytes were asked for and {} of {} bytes are free",
                    self.limit - space.used,
                    self.limit
                ),
            ));
        }
        match space.take(needed) {
            Some(offset) => Ok(self.base + offset),
            None => Err(Fault::new(
                Code::OUT_OF_MEMORY,
                format!(
                    "{size} bytes were asked for; {} of {} bytes are free, but the largest hole has {}",
                    self.limit - space.used,
                    self.limit,
                    space.free.values().max().unwrap_or(&0)
                ),
            )),
        }
    }

    /// Frees an allocation if the address is one's; `false` if it lies outside of this device.
    pub(super) fn free(&self, address: u64) -> Result<bool, Fault> {
        let Some(offset) = address
            .checked_sub(self.base)
            .filter(|&o| o < self.reserved)
        else {
            return Ok(false);
        };
        let mut space = self.space.lock();
        let Some(size) = space.taken.remove(&offset) else {
            return Err(Fault::argument(format!(
                "{address:#x} is not the start of a live allocation: free takes what alloc gave, once"
            )));
        };
        // Before the addresses can be given out again. Pages that cannot be given back stay, which
        // costs memory and breaks nothing.
        let returned = match &self.backing {
            Backing::Anonymous => {
                // SAFETY: these pages are an allocation that has just been freed (R12).
                unsafe { madvise(address as *mut c_void, size as usize, Advice::LinuxDontNeed) }
            }
            Backing::File(file) => fallocate(
                file,
                FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                offset,
                size,
            ),
        };
        if let Err(error) = returned {
            tracing::debug!(target: "outrigger::device", %error, size, "pages were not given back");
        }
        space.give(offset, size);
        Ok(true)
    }

    /// The host pointer to a range of this device; `None` if it does not lie within it.
    #[inline]
    pub(super) fn resolve(&self, address: u64, size: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.base);
        (offset <= self.reserved && size <= self.reserved - offset)
            .then(|| address.wrapping_add_signed(self.bias))
    }

    /// The device's range of addresses, for messages.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.base, self.base + self.reserved)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let alias = self.base.wrapping_add_signed(self.bias);
        // SAFETY: both ranges were mapped by `new` and are used by this value only; the driver drops it
        // after the last work that could touch them.
        unsafe {
            let _ = munmap(self.base as *mut c_void, self.reserved as usize);
            if alias != self.base {
                let _ = munmap(alias as *mut c_void, self.reserved as usize);
            }
        }
    }
}

/// Reserves address space without memory, aligned for huge pages as far as the kernel cares to.
fn reserve(size: u64, prot: ProtFlags) -> Result<*mut c_void, Errno> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    unsafe {
        mmap_anonymous(
            null_mut(),
            size as usize,
            prot,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    }
}

impl Space {
    /// First fit.
    fn take(&mut self, size: u64) -> Option<u64> {
        let alignment = if size >= HUGE { HUGE } else { GRANULE };
        let (hole, length, start) = self.free.iter().find_map(|(&hole, &length)| {
            let start = hole.next_multiple_of(alignment);
            (start + size <= hole + length).then_some((hole, length, start))
        })?;
        self.free.remove(&hole);
        if start > hole {
            self.free.insert(hole, start - hole);
        }
        if start + size < hole + length {
            self.free.insert(start + size, hole + length - start - size);
        }
        self.taken.insert(start, size);
        self.used += size;
        Some(start)
    }

    /// Gives a range back, joined with the holes beside it.
    fn give(&mut self, offset: u64, size: u64) {
        self.used -= size;
        let (mut start, mut end) = (offset, offset + size);
        if let Some((&before, &length)) = self.free.range(..offset).next_back()
            && before + length == offset
        {
            self.free.remove(&before);
            start = before;
        }
        if let Some(length) = self.free.remove(&end) {
            end += length;
        }
        self.free.insert(start, end - start);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{Face, GRANULE, HUGE, Memory};

    #[test]
    fn holes_join_so_that_the_whole_comes_back() {
        for face in [Face::Unified, Face::Discrete] {
            let memory = Memory::new(64 * GRANULE, face).unwrap();
            let all: Vec<u64> = (0..32)
                .map(|i| memory.alloc((1 + i % 3) * GRANULE).unwrap())
                .collect();
            assert_eq!(memory.available(), 64 * GRANULE - (32 + 31) * GRANULE);
            for address in all.iter().step_by(2).chain(all.iter().skip(1).step_by(2)) {
                assert!(memory.free(*address).unwrap());
            }
            assert_eq!(
                (memory.available(), memory.allocations()),
                (64 * GRANULE, 0)
            );
            assert_eq!(
                memory.space.lock().free,
                BTreeMap::from([(0, memory.reserved)])
            );
        }
    }

    #[test]
    fn bytes_are_reached_through_the_bias_and_are_gone_after_free() {
        for face in [Face::Unified, Face::Discrete] {
            let memory = Memory::new(4 * HUGE, face).unwrap();
            let address = memory.alloc(HUGE).unwrap();
            let pointer = memory.resolve(address, HUGE).unwrap() as *mut u8;
            // SAFETY: an allocation of HUGE bytes, reached as a kernel would.
            unsafe { pointer.write_bytes(0xa5, HUGE as usize) };
            assert_eq!(memory.bias() == 0, face == Face::Unified);
            memory.free(address).unwrap();
            let again = memory.alloc(HUGE).unwrap();
            assert_eq!(again, address);
            // SAFETY: as above. The driver promises no value; here it shows that pages were given back.
            assert_eq!(unsafe { pointer.read() }, 0);
        }
    }

    #[test]
    fn the_limit_and_wrong_frees_are_named_with_numbers() {
        let memory = Memory::new(4 * GRANULE, Face::Unified).unwrap();
        let address = memory.alloc(3 * GRANULE).unwrap();
        let fault = format!("{:?}", memory.alloc(2 * GRANULE).unwrap_err());
        assert!(
            fault.contains("131072") && fault.contains("65536 of 262144"),
            "{fault}"
        );
        assert!(memory.alloc(u64::MAX).is_err());
        assert!(memory.free(address + 64).is_err());
        assert!(!memory.free(16).unwrap());
        assert!(memory.free(address).unwrap());
        assert!(memory.free(address).is_err());
        assert!(memory.resolve(address, memory.reserved + 1).is_none());
        assert!(memory.resolve(address - 1, 1).is_none());
        assert!(memory.resolve(u64::MAX, 2).is_none());
    }
}
