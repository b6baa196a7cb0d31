//! The memory of a device: one range of addresses. Its first part is allocated in granules of 64 KiB;
//! the rest is for mapped memory. This module knows which bytes belong to whom, and never touches their
//! contents.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::fault::Fault;
use super::mapping::{GRANULARITY, Mapping};
use super::options::Face;
use super::pages::{HUGE, Huge, Pages, Part, Span, huge_pages, private};
use super::ranges::Ranges;
use crate::Code;

/// Addresses are allocated in multiples of this, in bytes. It is coarse, because the allocator above
/// asks for large segments.
pub(super) const GRANULE: u64 = 64 << 10;
/// Addresses for mappings, in multiples of the memory: every stream of a host may reserve a range as
/// large as the device. Addresses cost nothing.
const ADDRESSES: u64 = 256;
/// The most of these addresses, in bytes, for all devices of a driver: a quarter of what a process has.
const MOST_ADDRESSES: u64 = 1 << 45;
/// Room in the file for objects, in multiples of the memory, so that holes never stop one.
const OFFSETS: u64 = 64;

/// The memory of one device.
#[derive(Debug)]
pub(super) struct Memory {
    /// Where device addresses lie: `plain` bytes of allocations, and what `mapping` gives out.
    device: Span,
    /// The addresses at which the host reaches the same bytes, if these differ. Kept only to keep the
    /// addresses reserved.
    _alias: Option<Span>,
    /// `alias` minus `device`; 0 on the unified face.
    bias: i64,
    /// Bytes of address space for allocations; twice the memory, so that holes rarely stop one.
    plain: u64,
    quota: Arc<Quota>,
    /// The pages behind mapped memory. If `in_file`, allocations lie there, too, at their offset in the
    /// device's range; otherwise they are private memory of this process.
    pages: Arc<Pages>,
    in_file: bool,
    /// The allocations, by offset.
    space: Mutex<Ranges>,
    /// The files of allocations that can be given away by descriptor, by offset. Each has one of its own, so that whoever
    /// has the descriptor reaches these bytes and no others, and keeps them.
    own_files: Mutex<HashMap<u64, Arc<Pages>>>,
    mapping: Mapping,
}

/// How much of a device is in use.
#[derive(Debug)]
pub(super) struct Quota {
    limit: u64,
    used: AtomicU64,
}

impl Quota {
    /// Takes bytes, if that many are free.
    pub(super) fn charge(&self, size: u64) -> Result<(), Fault> {
        self.used
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(size).filter(|used| *used <= self.limit)
            })
            .map(drop)
            .map_err(|used| {
                Fault::new(
                    Code::OUT_OF_MEMORY,
                    format!(
                        "{size} bytes were asked for and {} of {} bytes are free",
                        self.limit - used,
                        self.limit
                    ),
                )
            })
    }

    /// Gives charged bytes back.
    pub(super) fn give(&self, size: u64) {
        self.used.fetch_sub(size, Ordering::Relaxed);
    }

    fn available(&self) -> u64 {
        self.limit - self.used.load(Ordering::Relaxed)
    }
}

/// The bytes of a device that is asked for with so many.
pub(super) fn limit_of(memory: u64) -> u64 {
    memory.next_multiple_of(GRANULE)
}

impl Memory {
    /// The memory of device `index` of `devices`, which are asked for with `memory` bytes each.
    pub(super) fn new(index: u32, devices: u32, memory: u64, face: Face) -> Result<Self, Fault> {
        let limit = limit_of(memory);
        let plain = (2 * limit).next_multiple_of(HUGE);
        let refused = |what: &str, error: Errno| {
            Fault::new(
                Code::OUT_OF_HOST_MEMORY,
                format!(
                    "{what} for a device of {limit} bytes failed: {error}; give the device less \
                     (memory=BYTES) or raise the limit on address space"
                ),
            )
        };
        // Where address space is limited, fewer ranges for mapping do.
        let mut mappable = limit
            .saturating_mul(ADDRESSES)
            .min(MOST_ADDRESSES / u64::from(devices))
            .next_multiple_of(GRANULARITY);
        let (device, alias) = loop {
            let spans = Span::reserve(plain + mappable).and_then(|device| {
                let alias = match face {
                    Face::Unified => None,
                    Face::Discrete => Some(Span::reserve(plain + mappable)?),
                };
                Ok((device, alias))
            });
            match spans {
                Ok(spans) => break spans,
                Err(_) if mappable > plain => {
                    mappable = (mappable / 2).next_multiple_of(GRANULARITY)
                }
                Err(error) => return Err(refused("the reservation of addresses", error)),
            }
        };
        let offsets = limit.saturating_mul(OFFSETS);
        let pages = Pages::new(plain + offsets).map_err(|e| refused("the memory file", e))?;
        let pages = Arc::new(pages);
        // With huge pages a file is as fast as memory of the process alone, and it can be shared.
        let in_file = face == Face::Discrete || huge_pages() != Huge::Never;
        if in_file {
            let reached = alias.as_ref().unwrap_or(&device).start;
            // SAFETY: the start of a span that nobody else knows yet.
            unsafe { pages.map(reached, plain, 0) }
        } else {
            device.back(plain)
        }
        .map_err(|e| refused("the mapping", e))?;
        let quota = Arc::new(Quota {
            limit,
            used: AtomicU64::new(0),
        });
        let bias = alias.as_ref().map_or(0, |alias| {
            (alias.start as i64).wrapping_sub(device.start as i64)
        });
        let mapping = Mapping::new(
            index,
            device.start + plain..device.start + plain + mappable,
            bias,
            plain..plain + offsets,
            Arc::clone(&pages),
            Arc::clone(&quota),
        );
        Ok(Self {
            device,
            _alias: alias,
            bias,
            plain,
            quota,
            pages,
            in_file,
            space: Mutex::new(Ranges::new(0, plain)),
            own_files: Mutex::default(),
            mapping,
        })
    }

    /// What a kernel adds to a device address to reach its bytes.
    #[inline]
    pub(super) fn bias(&self) -> i64 {
        self.bias
    }

    pub(super) fn limit(&self) -> u64 {
        self.quota.limit
    }

    /// Bytes that are in no allocation and no object.
    pub(super) fn available(&self) -> u64 {
        self.quota.available()
    }

    /// The number of live allocations.
    pub(super) fn allocations(&self) -> usize {
        self.space.lock().count()
    }

    /// Reserved ranges, objects, and what is mapped.
    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Takes memory. What is allocated is aligned to the largest page at most.
    pub(super) fn alloc(&self, size: u64, alignment: u64) -> Result<u64, Fault> {
        if alignment > HUGE {
            return Err(Fault::new(
                Code::UNSUPPORTED,
                format!("an alignment of {alignment} bytes; this driver aligns to {HUGE} at most"),
            ));
        }
        let needed = size.checked_next_multiple_of(GRANULE).unwrap_or(u64::MAX);
        self.quota.charge(needed)?;
        let usual = if needed >= HUGE { HUGE } else { GRANULE };
        let alignment = alignment.max(usual);
        let mut space = self.space.lock();
        match space.take(needed, alignment) {
            Some(offset) => Ok(self.device.start + offset),
            None => {
                self.quota.give(needed);
                Err(Fault::new(
                    Code::OUT_OF_MEMORY,
                    format!(
                        "{size} bytes were asked for; {} of {} bytes are free, but the largest hole has {}",
                        self.quota.available(),
                        self.quota.limit,
                        space.largest()
                    ),
                ))
            }
        }
    }

    /// Takes memory that can be given away by descriptor.
    pub(super) fn alloc_exportable(&self, size: u64, alignment: u64) -> Result<u64, Fault> {
        let address = self.alloc(size, alignment)?;
        let offset = address - self.device.start;
        let size = self.space.lock().size(offset).unwrap_or(0);
        let file = Pages::new(size).and_then(|pages| {
            // SAFETY: the range was taken just now, and nobody knows it yet.
            unsafe { pages.map(self.reached(offset), size, 0) }?;
            Ok(pages)
        });
        match file {
            Ok(pages) => {
                self.own_files.lock().insert(offset, Arc::new(pages));
                Ok(address)
            }
            Err(error) => {
                if self.restore(offset, size) {
                    self.free(address, || ())?;
                }
                Err(Fault::new(
                    Code::OUT_OF_HOST_MEMORY,
                    format!("no file for {size} bytes that can be exported: {error}"),
                ))
            }
        }
    }

    /// The file of an allocation that [`alloc_exportable`](Self::alloc_exportable) gave; `None` if the address lies outside
    /// of where allocations are.
    pub(super) fn own_file(&self, address: u64) -> Result<Option<Part>, Fault> {
        let Some(offset) = self.offset(address) else {
            return Ok(None);
        };
        let Some(size) = self.space.lock().size(offset) else {
            return Err(Fault::argument(format!(
                "{address:#x} is not the start of a live allocation"
            )));
        };
        match self.own_files.lock().get(&offset) {
            Some(pages) => Ok(Some(Part {
                pages: Arc::clone(pages),
                offset: 0,
                size,
            })),
            None => Err(Fault::new(
                Code::UNSUPPORTED,
                format!(
                    "the {size} bytes at {address:#x} have no file of their own: OTR_MEMORY_EXPORTABLE_FD asks for one when they \
                     are allocated"
                ),
            )),
        }
    }

    /// Where the host reaches what is at an offset.
    fn reached(&self, offset: u64) -> u64 {
        (self.device.start + offset).wrapping_add_signed(self.bias)
    }

    /// Puts the device's own memory back where another file is mapped. Where that fails, the addresses are of no more use.
    fn restore(&self, offset: u64, size: u64) -> bool {
        let at = self.reached(offset);
        // SAFETY: an allocation that nobody uses: it is being made, or was freed (R12).
        let restored = unsafe {
            if self.in_file {
                self.pages.map(at, size, offset)
            } else {
                private(at, size)
            }
        };
        if let Err(error) = &restored {
            tracing::warn!(target: "outrigger::device", %error, size, "addresses were given up");
        }
        restored.is_ok()
    }

    /// Frees an allocation if the address is one's; `false` if it lies outside of where they are. `forget` gives up what is
    /// known of the allocation by its address, which no other has meanwhile.
    pub(super) fn free(&self, address: u64, forget: impl FnOnce()) -> Result<bool, Fault> {
        let Some(offset) = self.offset(address) else {
            return Ok(false);
        };
        let Some(size) = self.space.lock().remove(offset) else {
            return Err(Fault::argument(format!(
                "{address:#x} is not the start of a live allocation: free takes what alloc gave, once"
            )));
        };
        // Before the addresses can be given out again.
        forget();
        let own_file = self.own_files.lock().remove(&offset);
        if own_file.is_some() {
            if !self.restore(offset, size) {
                self.quota.give(size);
                return Ok(true);
            }
        } else if self.in_file {
            self.pages.discard(offset, size);
        } else {
            // SAFETY: these pages are an allocation that has just been freed (R12).
            let returned =
                unsafe { madvise(address as *mut _, size as usize, Advice::LinuxDontNeed) };
            if let Err(error) = returned {
                tracing::debug!(target: "outrigger::device", %error, size, "pages were not given back");
            }
        }
        self.space.lock().free(offset, size);
        self.quota.give(size);
        Ok(true)
    }

    /// The part of the file that an allocation is; `None` if the address lies outside of where they are.
    pub(super) fn part(&self, address: u64) -> Result<Option<Part>, Fault> {
        let Some(offset) = self.offset(address) else {
            return Ok(None);
        };
        let Some(size) = self.space.lock().size(offset) else {
            return Err(Fault::argument(format!(
                "{address:#x} is not the start of a live allocation"
            )));
        };
        if let Some(pages) = self.own_files.lock().get(&offset) {
            return Ok(Some(Part {
                pages: Arc::clone(pages),
                offset: 0,
                size,
            }));
        }
        if !self.in_file {
            return Err(Fault::new(
                Code::UNSUPPORTED,
                "allocations of this device are memory of the process alone, since shared memory has no \
                 huge pages here: share objects of its virtual memory, use face=discrete, or let the \
                 system's administrator set transparent_hugepage/shmem_enabled to advise",
            ));
        }
        Ok(Some(Part {
            pages: Arc::clone(&self.pages),
            offset,
            size,
        }))
    }

    /// The offset of an address where allocations are.
    fn offset(&self, address: u64) -> Option<u64> {
        let offset = address.checked_sub(self.device.start)?;
        (offset < self.plain).then_some(offset)
    }

    /// The host pointer to a range of this device; `None` if it does not lie within it.
    #[inline]
    pub(super) fn resolve(&self, address: u64, size: u64) -> Option<u64> {
        let offset = address.wrapping_sub(self.device.start);
        let whole = self.device.size;
        (offset <= whole && size <= whole - offset).then(|| address.wrapping_add_signed(self.bias))
    }

    /// The device's range of addresses, for messages.
    pub(super) fn range(&self) -> (u64, u64) {
        (self.device.start, self.device.start + self.device.size)
    }
}

#[cfg(test)]
mod tests {
    use super::{Face, GRANULE, HUGE, Memory};

    fn memory(limit: u64, face: Face) -> Memory {
        Memory::new(0, 1, limit, face).unwrap()
    }

    #[test]
    fn bytes_are_reached_through_the_bias_and_are_gone_after_free() {
        for face in [Face::Unified, Face::Discrete] {
            let memory = memory(4 * HUGE, face);
            let address = memory.alloc(HUGE, 0).unwrap();
            let pointer = memory.resolve(address, HUGE).unwrap() as *mut u8;
            // SAFETY: an allocation of HUGE bytes, reached as a kernel would.
            unsafe { pointer.write_bytes(0xa5, HUGE as usize) };
            assert_eq!(memory.bias() == 0, face == Face::Unified);
            memory.free(address, || ()).unwrap();
            let again = memory.alloc(HUGE, 0).unwrap();
            assert_eq!(again, address);
            // SAFETY: as above. The driver promises no value; here it shows that pages were given back.
            assert_eq!(unsafe { pointer.read() }, 0);
        }
    }

    #[test]
    fn the_limit_and_wrong_frees_are_named_with_numbers() {
        let memory = memory(4 * GRANULE, Face::Unified);
        let address = memory.alloc(3 * GRANULE, 0).unwrap();
        let fault = format!("{:?}", memory.alloc(2 * GRANULE, 0).unwrap_err());
        assert!(
            fault.contains("131072") && fault.contains("65536 of 262144"),
            "{fault}"
        );
        assert!(memory.alloc(u64::MAX, 0).is_err());
        let never = || unreachable!("nothing was freed");
        assert!(memory.free(address + 64, never).is_err());
        assert!(!memory.free(16, never).unwrap());
        // The room of what is being freed comes last, so that nobody gets the address before it is forgotten.
        let forget = || assert!(memory.alloc(2 * GRANULE, 0).is_err());
        assert!(memory.free(address, forget).unwrap());
        assert!(memory.free(address, never).is_err());
        assert_eq!(memory.alloc(2 * GRANULE, 0).unwrap(), address);
        assert!(memory.resolve(address, memory.device.size + 1).is_none());
        assert!(memory.resolve(address - 1, 1).is_none());
        assert!(memory.resolve(u64::MAX, 2).is_none());
    }
}
