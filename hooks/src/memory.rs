//! Device memory: allocations over the caching allocator, figures, and what observers are told. Memory goes back to a
//! driver only after all submitted work that may use it has finished.

pub(crate) mod backend;
pub(crate) mod history;
pub(crate) mod imports;
mod ipc;
pub(crate) mod limit;
pub(crate) mod route;
pub(crate) mod sleep;
pub(crate) mod sleeping;
pub(crate) mod snapshot;
pub(crate) mod statistics;
pub(crate) mod trim;

use std::sync::atomic::Ordering;

use outrigger_allocator::{
    AllocError, Allocation, FreeError, Freed, Label, PoolAllocError, PoolError, Snapshot, Stats,
    StreamId,
};
use outrigger_device::Code;
use outrigger_graph::{PoolRef, Recording};

use crate::memory::limit::{process_memory_held, process_memory_limit};
use crate::observer::{self, Observation, ObservationKinds};
use crate::{Device, Error, Pool, Result, pool};

/// The allocation around an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// The start of the allocation.
    pub base: u64,
    /// The usable size in bytes: the requested size, rounded up.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// The stream that the allocation was made on.
    pub stream: u64,
    /// The handle of the allocation's pool; 0 for the memory that all share, and for pools whose handle was destroyed.
    pub pool: u64,
    /// The number of the pool within its device, as snapshots name it; 0 for the memory that all share.
    pub pool_number: u64,
    /// The label under which the allocation was made, if labels are kept.
    pub label: Option<Label>,
}

impl Device {
    /// Hands out at least `size` bytes for work of `stream`. Memory that was freed on that stream may be handed out
    /// while the work before the free is still running. The result for 0 bytes is address 0.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` with a summary of where the memory is; `INVALID_HANDLE`, or
    /// `INVALID_ARGUMENT` if the stream is of another device.
    #[inline]
    pub fn alloc(&self, size: u64, stream: u64) -> Result<u64> {
        let found = crate::stream::stream(stream)?;
        if found.device().index() != self.index() {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "memory of device {} cannot be allocated on a stream of device {}",
                    self.index(),
                    found.device().index()
                ),
            ));
        }
        if size == 0 {
            return Ok(0);
        }
        if found.is_capturing()
            && let Some(place) = found.recording()
            && let Some(allocated) = self.alloc_recorded(size, &place)
        {
            return allocated;
        }
        self.alloc_now(size, stream)
    }

    /// Allocates for work of a stream that runs now, whether another thread begins a capture there or not.
    #[inline]
    pub(crate) fn alloc_now(&self, size: u64, stream: u64) -> Result<u64> {
        if size == 0 {
            return Ok(0);
        }
        let allocation = match route::chosen(self.index(), stream) {
            Some(pool) => self.alloc_in(&pool, size, StreamId(stream))?,
            None => self
                .allocator()
                .alloc(size, StreamId(stream))
                .map_err(|error| self.alloc_failed(error))?,
        };
        Ok(self.allocated(&allocation))
    }

    /// Allocates from the pool of a capture. `None` if the capture has ended.
    #[cold]
    pub(crate) fn alloc_recorded(&self, size: u64, place: &Recording<'_>) -> Option<Result<u64>> {
        if size == 0 {
            return Some(Ok(0));
        }
        let allocated = place.alloc(|pool, stream| {
            let allocation = self.alloc_in(pool, size, stream)?;
            Ok((allocation.address, allocation))
        })?;
        Some(allocated.map(|allocation| self.allocated(&allocation)))
    }

    /// Tells observers of an allocation. Returns its address.
    #[inline]
    fn allocated(&self, allocation: &Allocation) -> u64 {
        if observer::listening(ObservationKinds::ALLOC) {
            self.tell(ObservationKinds::ALLOC, allocation.address, allocation.size);
        }
        allocation.address
    }

    /// Allocates from this pool, whatever pool the calling thread uses; otherwise as [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc); `INVALID_ARGUMENT` for a pool of another device.
    pub fn alloc_from(&self, pool: &Pool, size: u64, stream: u64) -> Result<u64> {
        let (ours, theirs) = (self.index(), pool.device().index());
        let of_stream = crate::stream::stream(stream)?.device().index();
        if ours != theirs || ours != of_stream {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!(
                    "memory of device {ours} cannot come from a pool of device {theirs} for a stream \
                     of device {of_stream}"
                ),
            ));
        }
        if size == 0 {
            return Ok(0);
        }
        let allocation = self.alloc_in(pool.memory(), size, StreamId(stream))?;
        Ok(self.allocated(&allocation))
    }

    /// Allocates from a pool, within its limit.
    pub(crate) fn alloc_in(
        &self,
        pool: &PoolRef,
        size: u64,
        stream: StreamId,
    ) -> Result<Allocation> {
        let mut claim = pool.claim(size);
        if claim.is_none() && self.relieve(size) {
            claim = pool.claim(size);
        }
        let claim = claim.ok_or_else(|| self.pool_full(pool, size))?;
        let found = match self.allocator().alloc_in(pool.pool(), size, stream) {
            Ok(found) => found,
            Err(PoolAllocError::Alloc(error)) => return Err(self.alloc_failed(error)),
            Err(PoolAllocError::Pool(error)) => return Err(pool_refused(error)),
        };
        drop(claim);
        if pool.limit() != u64::MAX && pool.stats().allocated > pool.limit() {
            // Only now is the rounded size known, and it is more than the limit.
            self.free_block(found.address);
            return Err(self.pool_full(pool, size));
        }
        Ok(found)
    }

    /// Asks other caches and the host to release memory. Returns true if another try may succeed.
    #[cold]
    fn relieve(&self, needed: u64) -> bool {
        self.allocator().backend().relieve(needed)
    }

    /// Keeps the allocation that contains an address alive, whoever frees it, and returns its base.
    pub(crate) fn hold(&self, address: u64) -> Result<u64> {
        self.allocator()
            .hold(address)
            .map_err(|error| self.not_allocated(&error))
    }

    /// Ends a [`hold`](Self::hold).
    pub(crate) fn unhold(&self, base: u64) {
        if let Err(error) = self.allocator().unhold(base) {
            tracing::error!(target: "outrigger::graph", %error, "memory was held less often than thought");
        }
    }

    /// Frees a block that a graph allocated.
    pub(crate) fn free_block(&self, address: u64) {
        if let Err(error) = self.allocator().free(address) {
            tracing::error!(target: "outrigger::graph", %error, "memory of a graph was freed by another");
        }
    }

    /// Frees an address. If it is of a pool that a capture uses, the capture is told.
    fn free_address(&self, address: u64) -> Result<Freed, FreeError> {
        if self.captures().any()
            && let Some(block) = self.allocator().lookup(address)
            && let Some(pool) = block.pool
            && let Some(capture) = self.captures().of_pool(pool)
        {
            capture.freed(address);
        }
        self.allocator().free(address)
    }

    /// The error of an allocation that failed. Observers of out of memory are told.
    #[cold]
    pub(crate) fn alloc_failed(&self, error: AllocError<Error>) -> Error {
        let figures = match error {
            AllocError::Backend(error) => return error,
            AllocError::OutOfMemory(figures) => figures,
            error @ AllocError::BadSegment { .. } => {
                let text = format!("device {}: {error}", self.index());
                return Error::new(Code::INTERNAL, text);
            }
        };
        let mut text = format!("device {}: {figures}", self.index());
        if limit::in_the_way(figures.requested) {
            text += &format!(
                " All devices of this process hold {} bytes together, and the limit of the process is {}.",
                process_memory_held(),
                process_memory_limit()
            );
        }
        self.out_of_memory(&Observation {
            size: figures.requested,
            allocated_bytes: figures.allocated,
            reserved_bytes: figures.reserved,
            text: &text,
            device_free: figures.device.map_or(0, |device| device.free),
            device_total: figures.device.map_or(0, |device| device.total),
            ..Observation::default()
        })
    }

    /// The error of an allocation that does not fit into the limit of its pool. Observers of out of memory are told.
    #[cold]
    fn pool_full(&self, pool: &PoolRef, size: u64) -> Error {
        let stats = pool.stats();
        let text = format!(
            "device {}: out of memory. Pool {} has {} bytes in use, its limit is {}, and {size} more \
             were requested",
            self.index(),
            pool.pool(),
            stats.allocated,
            pool.limit()
        );
        self.out_of_memory(&Observation {
            size,
            allocated_bytes: stats.allocated,
            reserved_bytes: stats.reserved,
            text: &text,
            ..Observation::default()
        })
    }

    /// Tells observers that a request cannot be met, and makes the error.
    fn out_of_memory(&self, observation: &Observation<'_>) -> Error {
        observer::observe(&Observation {
            kind: ObservationKinds::OUT_OF_MEMORY,
            device: self.index(),
            ..*observation
        });
        Error::new(Code::OUT_OF_MEMORY, observation.text)
    }

    /// Tells observers that memory was handed out or freed.
    #[cold]
    fn tell(&self, kind: ObservationKinds, address: u64, size: u64) {
        let stats = self.allocator().stats();
        observer::observe(&Observation {
            kind,
            device: self.index(),
            address,
            size,
            allocated_bytes: stats.all.allocated_bytes.current,
            reserved_bytes: stats.all.reserved_bytes.current,
            ..Observation::default()
        });
    }

    /// Frees an allocation of this device, at any time. It is reused in stream order. Address 0 is ignored.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says whether the address was never allocated or was freed before.
    #[inline]
    pub fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let freed = self
            .free_address(address)
            .map_err(|error| self.not_allocated(&error))?;
        if observer::listening(ObservationKinds::FREE) {
            self.tell(ObservationKinds::FREE, address, freed.size);
        }
        Ok(())
    }

    /// Notes that work of another stream uses the allocation around `address`. After a free, the allocation is reused only
    /// when the work that the stream was given by then has finished. Address 0 is ignored, and so is imported memory, which
    /// nobody frees here.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is in no allocation; `INVALID_HANDLE`.
    pub fn record_stream(&self, address: u64, stream: u64) -> Result<()> {
        crate::stream::stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        self.record(address, stream)
            .map_err(|error| self.not_allocated(&error))
    }

    pub(crate) fn record(&self, address: u64, stream: u64) -> Result<(), FreeError> {
        match self.allocator().record_stream(address, StreamId(stream)) {
            Err(FreeError::Unknown { .. }) if self.imports().around(address).is_some() => Ok(()),
            outcome => outcome,
        }
    }

    /// Whether an address lies in a live allocation, or in imported memory.
    pub(crate) fn has(&self, address: u64) -> bool {
        let block = self.allocator().lookup(address);
        block.is_some_and(|block| !block.free) || self.imports().around(address).is_some()
    }

    /// The place and the size of the allocation of this device around an address.
    ///
    /// # Errors
    /// `NOT_FOUND` if the address is in no live allocation of this device.
    pub fn pointer_info(&self, address: u64) -> Result<PointerInfo> {
        let block = match self.allocator().lookup(address) {
            Some(block) if !block.free => block,
            Some(_) => return Err(self.nowhere(address)),
            None => {
                let known = self.imported_info(address);
                return known.ok_or_else(|| self.nowhere(address));
            }
        };
        let note = self
            .history()
            .is_on()
            .then(|| self.history().note(block.base));
        Ok(PointerInfo {
            base: block.base,
            size: block.size,
            requested: block.requested,
            stream: block.stream.0,
            pool: block.pool.map_or(0, |number| pool::handle_of(self, number)),
            pool_number: block.pool.map_or(0, |pool| pool.get()),
            label: note.flatten().and_then(|note| note.label),
        })
    }

    /// The most bytes that the cache may take from the device; `u64::MAX` is no limit.
    pub fn memory_limit(&self) -> u64 {
        self.allocator().backend().limit.load(Ordering::Relaxed)
    }

    /// Limits the bytes that the cache may take from the device; `u64::MAX` lifts the limit. Memory above a new limit
    /// stays until it is idle and more is needed.
    pub fn set_memory_limit(&self, bytes: u64) {
        let limit = &self.allocator().backend().limit;
        limit.store(bytes, Ordering::Relaxed);
        self.allocator().set_limit(bytes);
    }

    /// The limit as a fraction of the device's memory; 1 if there is no limit.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn memory_fraction(&self) -> Result<f64> {
        let (_, total) = self.memory_info()?;
        let fraction = self.memory_limit() as f64 / total.max(1) as f64;
        Ok(fraction.min(1.0))
    }

    /// Limits the bytes that the cache may take to this fraction of the device's memory, 0 to 1.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for another fraction; what the driver reports.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("{fraction} is not a fraction of the device's memory: give 0 to 1"),
            ));
        }
        let (_, total) = self.memory_info()?;
        self.set_memory_limit((total as f64 * fraction) as u64);
        Ok(())
    }

    /// Free and total bytes of the device. If the driver does not know the free bytes, they are what the cache has not
    /// taken.
    ///
    /// # Errors
    /// What the driver reports.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        if let Some(known) = self.driver().memory_info(self.ordinal())? {
            return Ok(known);
        }
        let total = self.properties().total_memory;
        Ok((
            total.saturating_sub(self.memory_stats().all.reserved_bytes.current),
            total,
        ))
    }

    /// Statistics of the device's memory.
    pub fn memory_stats(&self) -> Stats {
        self.allocator().stats()
    }

    /// Sets all peaks to the current values.
    pub fn reset_peak_memory(&self) {
        self.allocator().reset_peak();
    }

    /// Sets all accumulated counts to 0.
    pub fn reset_accumulated_memory(&self) {
        self.allocator().reset_accumulated();
    }

    /// Statistics of the device's memory as JSON, under the names of PyTorch's `memory_stats`, such as
    /// `allocated_bytes.all.current`.
    pub fn memory_stats_json(&self) -> String {
        statistics::json(&self.memory_stats())
    }

    /// All segments and their blocks at this moment.
    pub fn memory_snapshot(&self) -> Snapshot {
        self.allocator().snapshot()
    }

    #[cold]
    pub(crate) fn nowhere(&self, address: u64) -> Error {
        let device = self.index();
        Error::new(
            Code::NOT_FOUND,
            format!("{address:#x} is not in the live memory of device {device}"),
        )
    }

    #[cold]
    fn not_allocated(&self, error: &FreeError) -> Error {
        let text = format!("device {}: {error}", self.index());
        Error::new(Code::INVALID_ARGUMENT, text)
    }
}

#[cold]
pub(crate) fn pool_refused(error: PoolError) -> Error {
    let code = match error {
        PoolError::NotMapped { .. } => Code::UNSUPPORTED,
        PoolError::Busy { .. } | PoolError::Asleep { .. } | PoolError::Awake { .. } => Code::BUSY,
        PoolError::Unknown { .. } | PoolError::Released { .. } => Code::INTERNAL,
    };
    Error::new(code, error.to_string())
}
