//! Device memory over the caching allocator, with its accounting, and observers told of what happens.
//! It must never give memory back to a driver while work that was submitted may still use it.

mod backend;
mod history;
mod ipc;
mod limit;
mod route;
mod sleep;
mod snapshot;
mod statistics;
mod trim;

use outrigger_allocator::{
    AllocError, Allocation, FreeError, Freed, Label, PoolAllocError, Snapshot, Stats, StreamId,
};
use outrigger_device::Code;

use crate::graph::PoolRef;
use crate::observer::{self, Observation, ObservationKinds};
use crate::{Device, Error, Pool, Result, current_device, graph};

pub(crate) use backend::{DeviceMemory, Fence, fence_of};
pub(crate) use history::follow;
pub use history::{pop_label, push_label};
pub(crate) use ipc::Imports;
pub use limit::{process_memory_held, process_memory_limit, set_process_memory_limit};
pub use route::{begin_pool_use, end_pool_use};
pub(crate) use sleep::Sleep;
pub(crate) use snapshot::pool_snapshot_json;
pub use snapshot::snapshot_json;
pub(crate) use statistics::json as stats_json;
pub(crate) use trim::start_trimming;

/// What is known of an address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PointerInfo {
    /// Where the allocation starts.
    pub base: u64,
    /// Its usable size in bytes: what was asked for, rounded up.
    pub size: u64,
    /// Bytes that were asked for.
    pub requested: u64,
    /// The stream that it was allocated on.
    pub stream: u64,
    /// The device.
    pub device: u32,
    /// The handle of the pool that it is of; 0 for the memory that all share, and for pools whose handle
    /// was given up.
    pub pool: u64,
    /// The number of the pool within its device, as snapshots name it; 0 for the memory that all share.
    pub pool_number: u64,
    /// The label under which it was allocated, where labels are kept.
    pub label: Option<Label>,
}

impl Device {
    /// Hands out at least `size` bytes, ordered for `stream`: memory that was freed may be handed out
    /// again while the work before the free is still running on that stream. 0 bytes are address 0.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` with a summary of where the memory is; `INVALID_HANDLE`, or
    /// `INVALID_ARGUMENT` if the stream is of another device.
    #[inline]
    pub fn alloc(&self, size: u64, stream: u64) -> Result<u64> {
        let found = crate::stream(stream)?;
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
        let allocation = if found.is_capturing() {
            found.alloc_captured(|pool, stream| {
                let allocation = self.alloc_in(pool, size, stream)?;
                Ok((allocation.address, allocation))
            })?
        } else if let Some(pool) = route::chosen(self.index(), stream) {
            self.alloc_in(&pool, size, StreamId(stream))?
        } else {
            self.allocator()
                .alloc(size, StreamId(stream))
                .map_err(|error| self.alloc_failed(error))?
        };
        if observer::listening(ObservationKinds::ALLOC) {
            self.tell(ObservationKinds::ALLOC, allocation.address, allocation.size);
        }
        Ok(allocation.address)
    }

    /// Hands out memory of a pool, whatever pool the calling thread uses; else as
    /// [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc); `INVALID_ARGUMENT` for a pool of another device.
    pub fn alloc_from(&self, pool: &Pool, size: u64, stream: u64) -> Result<u64> {
        let (ours, theirs) = (self.index(), pool.device().index());
        let of_stream = crate::stream(stream)?.device().index();
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
        if observer::listening(ObservationKinds::ALLOC) {
            self.tell(ObservationKinds::ALLOC, allocation.address, allocation.size);
        }
        Ok(allocation.address)
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
            Err(PoolAllocError::Pool(error)) => return Err(sleep::refused(error)),
        };
        drop(claim);
        if pool.limit() != u64::MAX && pool.stats().allocated > pool.limit() {
            // Rounded up, it is too much after all.
            self.free_block(found.address);
            return Err(self.pool_full(pool, size));
        }
        Ok(found)
    }

    /// Makes room for an allocation that would fail; true if it is worth another try.
    #[cold]
    fn relieve(&self, needed: u64) -> bool {
        self.allocator().backend().relieve(needed)
    }

    /// Keeps the allocation around an address alive, whoever frees it; gives its base.
    pub(crate) fn hold(&self, address: u64) -> Result<u64> {
        self.allocator().hold(address).map_err(not_allocated)
    }

    /// Gives a hold back.
    pub(crate) fn unhold(&self, base: u64) {
        if let Err(error) = self.allocator().unhold(base) {
            tracing::error!(target: "outrigger::graph", %error, "memory was held less often than thought");
        }
    }

    /// Frees a block that a graph has allocated.
    pub(crate) fn free_block(&self, address: u64) {
        if let Err(error) = self.allocator().free(address) {
            tracing::error!(target: "outrigger::graph", %error, "memory of a graph was freed by another");
        }
    }

    /// Frees an address, also one of the pool of a capture, which then learns of it.
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

    /// The error of an allocation that failed; tells those who want to hear of it.
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
                " All devices of this process hold {} bytes of the {} that it may.",
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

    /// The error of an allocation that the limit of its pool has no room for.
    #[cold]
    fn pool_full(&self, pool: &PoolRef, size: u64) -> Error {
        let stats = pool.stats();
        let text = format!(
            "device {}: out of memory: pool {} has {} bytes in use of the {} that it may, and {size} \
             more were asked for",
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

    /// Tells observers that memory was handed out or came back.
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

    /// Frees an allocation of this device, at any time: it is reused in stream order. Address 0 is ignored.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says whether the address was never allocated or was freed before.
    #[inline]
    pub fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let freed = self.free_address(address).map_err(not_allocated)?;
        self.tell_freed(address, &freed);
        Ok(())
    }

    fn tell_freed(&self, address: u64, freed: &Freed) {
        if observer::listening(ObservationKinds::FREE) {
            self.tell(ObservationKinds::FREE, address, freed.size);
        }
    }

    /// Says that work of another stream uses the allocation at `address`: after it is freed it is
    /// reused only when what that stream had been given by then has finished. Address 0 is ignored.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the address is not one that was allocated; `INVALID_HANDLE`.
    pub fn record_stream(&self, address: u64, stream: u64) -> Result<()> {
        crate::stream(stream)?;
        if address == 0 {
            return Ok(());
        }
        self.record(address, stream).map_err(not_allocated)
    }

    fn record(&self, address: u64, stream: u64) -> Result<(), FreeError> {
        self.allocator().record_stream(address, StreamId(stream))
    }

    /// What is known of an address within an allocation.
    pub fn pointer_info(&self, address: u64) -> Option<PointerInfo> {
        let Some(block) = self.allocator().lookup(address) else {
            return self.imported_info(address);
        };
        if block.free {
            return None;
        }
        let note = self
            .history()
            .is_on()
            .then(|| self.history().note(block.base));
        Some(PointerInfo {
            base: block.base,
            size: block.size,
            requested: block.requested,
            stream: block.stream.0,
            device: self.index(),
            pool: block.pool.map_or(0, |pool| graph::handle_of(self, pool)),
            pool_number: block.pool.map_or(0, |pool| pool.get()),
            label: note.flatten().and_then(|note| note.label),
        })
    }

    /// Gives all cached memory that is not in use back to the driver. Returns how many bytes.
    pub fn empty_cache(&self) -> u64 {
        self.sweep_retired();
        self.allocator().empty_cache()
    }

    /// Gives cached memory that is not in use back to the driver until at most `keep` bytes stay cached,
    /// as far as whole pieces of memory are idle. Waits for the streams that it was of. Returns how many
    /// bytes.
    pub fn trim_cache(&self, keep: u64) -> u64 {
        self.sweep_retired();
        self.allocator().trim(keep)
    }

    /// Free and total bytes of the device. Where the driver does not know: what the cache has not
    /// taken of the whole.
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

    /// Starts all peaks anew from the current values.
    pub fn reset_peak_memory(&self) {
        self.allocator().reset_peak();
    }

    /// Starts all accumulated counts anew from 0.
    pub fn reset_accumulated_memory(&self) {
        self.allocator().reset_accumulated();
    }

    /// Statistics of the device's memory as JSON, under the names of PyTorch's `memory_stats`, such as
    /// `allocated_bytes.all.current`.
    pub fn memory_stats_json(&self) -> String {
        statistics::json(&self.memory_stats())
    }

    /// All segments and their blocks, now.
    pub fn memory_snapshot(&self) -> Snapshot {
        self.allocator().snapshot()
    }
}

/// A number that two drivers have given for memory of theirs.
#[cold]
fn ambiguous(address: u64, first: &Device, second: &Device) -> Error {
    let (first, second) = (first.index(), second.index());
    Error::new(
        Code::INVALID_ARGUMENT,
        format!(
            "{address:#x} is an address of device {first} and of device {second}: say of which device it is"
        ),
    )
}

#[cold]
fn nowhere(address: u64) -> Error {
    Error::new(
        Code::NOT_FOUND,
        format!("{address:#x} is not in the live memory of any device"),
    )
}

impl crate::Runtime {
    /// All devices, the current one first: memory mostly is of that one.
    fn by_likelihood(&self) -> impl Iterator<Item = &'static Device> {
        let current = self.device(current_device()).ok();
        let rest = self
            .devices()
            .filter(move |one| Some(one.index()) != current.map(Device::index));
        current.into_iter().chain(rest)
    }

    /// What the one device answers that knows an address; `None` if none does.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that names two devices that know it.
    fn only<T>(
        &self,
        address: u64,
        ask: impl Fn(&'static Device) -> Option<T>,
    ) -> Result<Option<(&'static Device, T)>> {
        let mut known = self
            .by_likelihood()
            .filter_map(|device| Some((device, ask(device)?)));
        let found = known.next();
        if self.addresses_may_repeat()
            && let Some((first, _)) = found
            && let Some((second, _)) = known.next()
        {
            return Err(ambiguous(address, first, second));
        }
        Ok(found)
    }

    /// The one device that has an address in a live allocation.
    fn only_owner(&self, address: u64) -> Result<Option<&'static Device>> {
        let live = |device: &Device| {
            device
                .allocator()
                .lookup(address)
                .filter(|block| !block.free)
        };
        Ok(self.only(address, live)?.map(|(device, _)| device))
    }

    /// Frees an allocation of whichever device, at any time: it is reused in stream order. Address 0 is
    /// ignored. [`Device::free`] is for those who know the device.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` that says whether the address was never allocated or was freed before, or which
    /// two devices have it.
    pub fn free(&self, address: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        if self.addresses_may_repeat()
            && let Some(device) = self.only_owner(address)?
        {
            return device.free(address);
        }
        let mut refusal = None;
        for device in self.by_likelihood() {
            match device.free_address(address) {
                Ok(freed) => {
                    device.tell_freed(address, &freed);
                    return Ok(());
                }
                Err(FreeError::Unknown { .. }) => {}
                Err(error) => refusal = Some(error),
            }
        }
        Err(not_allocated(
            refusal.unwrap_or(FreeError::Unknown { address }),
        ))
    }

    /// Says that work of `stream` uses the allocation at `address`, of the stream's device or else of
    /// another one; see [`Device::record_stream`].
    ///
    /// # Errors
    /// `NOT_FOUND` if no device has the address; `INVALID_ARGUMENT` if two others have it; `INVALID_HANDLE`.
    pub fn record_stream(&self, address: u64, stream: u64) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        let own = crate::stream(stream)?.device();
        match own.record(address, stream) {
            Ok(()) => Ok(()),
            Err(_) => self.record_elsewhere(address, stream),
        }
    }

    #[cold]
    fn record_elsewhere(&self, address: u64, stream: u64) -> Result<()> {
        let held = |device: &&'static Device| device.allocator().lookup(address).is_some();
        let owner = match self.only_owner(address)? {
            None => self.devices().find(held),
            owner => owner,
        };
        let owner = owner.ok_or_else(|| nowhere(address))?;
        owner.record(address, stream).map_err(not_allocated)
    }

    /// What is known of an address within an allocation of any device. [`Device::pointer_info`] is for those
    /// who know the device.
    ///
    /// # Errors
    /// `NOT_FOUND` if it is in no live allocation; `INVALID_ARGUMENT` if two devices have it.
    pub fn pointer_info(&self, address: u64) -> Result<PointerInfo> {
        let known = self.only(address, |device| device.pointer_info(address))?;
        known.map(|(_, info)| info).ok_or_else(|| nowhere(address))
    }

    /// The allocation around an address of whichever device as a text; see [`Device::export_memory`].
    ///
    /// # Errors
    /// Those of [`Device::export_memory`]; `INVALID_ARGUMENT` if two devices have the address.
    pub fn export_memory(&self, address: u64) -> Result<String> {
        let owner = self.only_owner(address)?;
        owner
            .ok_or_else(|| nowhere(address))?
            .export_memory(address)
    }
}

#[cold]
pub(crate) fn not_allocated(error: FreeError) -> Error {
    Error::new(Code::INVALID_ARGUMENT, error.to_string())
}
