//! Allocators of the crates registry as peers: they know no streams and give nothing back, so that what is
//! theirs to win is the price of a pair. They must never be slowed down by what a device allocator needs and
//! they do not: no rounding, the alignment of a `malloc`, one lock where they have none.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{NonNull, null_mut};

use anyhow::Context;
use mimalloc::MiMalloc;
use parking_lot::Mutex;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::calls::Calls;
use crate::device::UNLIMITED;
use crate::replay::Subject;
use crate::timing::Shared;

const ALIGNMENT: usize = 16;
/// Addresses that a pool in memory has: more than any trace needs on two threads.
const POOL: usize = 512 << 30;
/// `offset-allocator` counts in units, of which it can have less than 2^32.
const UNIT: u64 = 512;

/// Memory that is a pointer with the size that was asked for.
#[derive(Clone, Copy)]
pub(crate) struct Pointer(*mut u8, usize);

impl Default for Pointer {
    fn default() -> Self {
        Self(null_mut(), 0)
    }
}

// SAFETY: it is only handed back to an allocator that any thread may use.
unsafe impl Send for Pointer {}

fn layout(size: u64) -> Layout {
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    Layout::from_size_align(size.max(1), ALIGNMENT).unwrap_or(Layout::new::<u128>())
}

/// mimalloc on the host's memory, which nobody touches.
pub(crate) struct Mimalloc;

impl Shared for Mimalloc {
    type Memory = Pointer;

    #[inline]
    fn alloc(&self, size: u64, _: u16) -> Option<Pointer> {
        let layout = layout(size);
        // SAFETY: `layout` makes no layout of size 0.
        let pointer = unsafe { MiMalloc.alloc(layout) };
        (!pointer.is_null()).then_some(Pointer(pointer, layout.size()))
    }

    #[inline]
    fn free(&self, memory: Pointer) {
        // SAFETY: `alloc` above has made it with this layout, and the replay frees it once; a null pointer
        // is what was never allocated, which mimalloc ignores.
        unsafe { MiMalloc.dealloc(memory.0, layout(memory.1 as u64)) }
    }

    fn record(&self, _: Pointer, _: u16) {}
}

type Tlsf = rlsf::Tlsf<'static, u64, u16, 36, 16>;

/// rlsf under a lock, in a pool of addresses: it touches the heads of blocks only.
pub(crate) struct Rlsf {
    tlsf: Mutex<Tlsf>,
    pool: NonNull<[u8]>,
}

// SAFETY: the pool is reached through the lock only.
unsafe impl Sync for Rlsf {}

impl Rlsf {
    /// # Errors
    /// If the host has not so many addresses.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at an address that the system chooses.
        let start = unsafe { mmap_anonymous(null_mut(), POOL, access, flags) }
            .context("addresses for rlsf's pool")?;
        let start = NonNull::new(start.cast::<u8>()).context("addresses for rlsf's pool")?;
        let pool = NonNull::slice_from_raw_parts(start, POOL);
        let mut tlsf = Tlsf::new();
        // SAFETY: the pool was mapped above, for this allocator alone, and outlives it.
        unsafe { tlsf.insert_free_block_ptr(pool) }.context("rlsf took no pool")?;
        Ok(Self {
            tlsf: Mutex::new(tlsf),
            pool,
        })
    }
}

impl Drop for Rlsf {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`; nobody uses the allocator any more, nor memory of it. If it fails, the
        // addresses stay.
        let _ = unsafe { munmap(self.pool.as_ptr().cast(), POOL) };
    }
}

impl Shared for Rlsf {
    type Memory = Pointer;

    #[inline]
    fn alloc(&self, size: u64, _: u16) -> Option<Pointer> {
        let found = self.tlsf.lock().allocate(layout(size))?;
        Some(Pointer(found.as_ptr(), 0))
    }

    #[inline]
    fn free(&self, memory: Pointer) {
        if let Some(pointer) = NonNull::new(memory.0) {
            // SAFETY: `alloc` above has made it with this alignment, and the replay frees it once.
            unsafe { self.tlsf.lock().deallocate(pointer, ALIGNMENT) }
        }
    }

    fn record(&self, _: Pointer, _: u16) {}
}

/// `offset-allocator` under a lock: numbers only, freed by the handle that it gives.
pub(crate) struct Offsets(Mutex<offset_allocator::Allocator>);

impl Offsets {
    /// For so many allocations at a time.
    pub(crate) fn new(capacity: u64, allocations: usize) -> Self {
        let units = capacity.min(UNLIMITED) / UNIT;
        // Free blocks take room in its list, too: at most one beside each that is in use.
        let nodes = u32::try_from(2 * allocations + 2).unwrap_or(u32::MAX / 2);
        Self(Mutex::new(offset_allocator::Allocator::with_max_allocs(
            units as u32,
            nodes,
        )))
    }

    fn units(size: u64) -> u32 {
        u32::try_from(size.div_ceil(UNIT).max(1)).unwrap_or(u32::MAX)
    }
}

impl Shared for Offsets {
    type Memory = Option<offset_allocator::Allocation>;

    #[inline]
    fn alloc(&self, size: u64, _: u16) -> Option<Self::Memory> {
        self.0.lock().allocate(Self::units(size)).map(Some)
    }

    #[inline]
    fn free(&self, memory: Self::Memory) {
        if let Some(allocation) = memory {
            self.0.lock().free(allocation);
        }
    }

    fn record(&self, _: Self::Memory, _: u16) {}
}

/// `offset-allocator` in a replay: the whole device is its one arena. It knows no streams, so that what
/// others use is free at once: no worse for it.
pub(crate) struct Arena {
    offsets: Offsets,
    allocations: Vec<offset_allocator::Allocation>,
    capacity: u64,
}

impl Arena {
    pub(crate) fn new(capacity: u64, allocations: usize) -> Self {
        Self {
            offsets: Offsets::new(capacity, allocations),
            allocations: Vec::new(),
            capacity,
        }
    }
}

impl Subject for Arena {
    fn tick(&mut self, _: u64) {}

    fn alloc(&mut self, size: u64, stream: u16) -> Option<u64> {
        let allocation = self.offsets.alloc(size, stream)??;
        self.allocations.push(allocation);
        Some(self.allocations.len() as u64 - 1)
    }

    fn free(&mut self, memory: u64) {
        self.offsets.free(Some(self.allocations[memory as usize]));
    }

    fn record(&mut self, _: u64, _: u16) {}

    fn idle(&mut self) {}

    fn peak(&self) -> u64 {
        self.capacity
    }

    fn calls(&self) -> Calls {
        Calls::default()
    }
}
