//! The calls that a device was given, counted by kind, and their cost by a model. The count must never hide a
//! stall: whatever makes the host or a stream wait is counted here and printed.

use std::ops::Sub;

use clap::Args;

/// Calls of a device's driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Calls {
    /// Whole segments allocated and freed, as by `cudaMalloc` and `cudaFree`.
    pub(crate) allocs: u64,
    pub(crate) frees: u64,
    /// Ranges of addresses reserved and released.
    pub(crate) reserves: u64,
    pub(crate) releases: u64,
    /// Objects of physical memory made and given back.
    pub(crate) creates: u64,
    pub(crate) destroys: u64,
    /// Objects that were mapped, and the ranges that became accessible by that: one or more objects each.
    pub(crate) maps: u64,
    pub(crate) accesses: u64,
    /// Ranges unmapped.
    pub(crate) unmaps: u64,
    /// Fences recorded on streams.
    pub(crate) fences: u64,
    /// Times that the host waited for a fence that had not passed.
    pub(crate) waits: u64,
    /// Waits of one stream for another, on the device.
    pub(crate) orders: u64,
}

impl Calls {
    /// Calls that take, give or map memory: what the first touch of memory costs.
    pub(crate) fn memory(&self) -> u64 {
        self.allocs
            + self.frees
            + self.reserves
            + self.releases
            + self.creates
            + self.destroys
            + self.maps
            + self.accesses
            + self.unmaps
    }
}

impl Sub for Calls {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            allocs: self.allocs - before.allocs,
            frees: self.frees - before.frees,
            reserves: self.reserves - before.reserves,
            releases: self.releases - before.releases,
            creates: self.creates - before.creates,
            destroys: self.destroys - before.destroys,
            maps: self.maps - before.maps,
            accesses: self.accesses - before.accesses,
            unmaps: self.unmaps - before.unmaps,
            fences: self.fences - before.fences,
            waits: self.waits - before.waits,
            orders: self.orders - before.orders,
        }
    }
}

/// Microseconds per call. The defaults are figures for CUDA; docs/benchmarks.md names their sources.
#[derive(Args, Clone, Debug)]
pub(crate) struct Costs {
    /// Microseconds to allocate a segment (`cudaMalloc`)
    #[arg(long, default_value_t = 120.0, value_name = "US")]
    malloc_us: f64,
    /// Microseconds to free a segment (`cudaFree`)
    #[arg(long, default_value_t = 120.0, value_name = "US")]
    free_us: f64,
    /// Microseconds to reserve addresses (`cuMemAddressReserve`)
    #[arg(long, default_value_t = 2.0, value_name = "US")]
    reserve_us: f64,
    /// Microseconds to give addresses back (`cuMemAddressFree`)
    #[arg(long, default_value_t = 1.0, value_name = "US")]
    release_us: f64,
    /// Microseconds to make an object of physical memory (`cuMemCreate`)
    #[arg(long, default_value_t = 29.0, value_name = "US")]
    create_us: f64,
    /// Microseconds to give an object back (`cuMemRelease`)
    #[arg(long, default_value_t = 23.0, value_name = "US")]
    destroy_us: f64,
    /// Microseconds to map an object (`cuMemMap`)
    #[arg(long, default_value_t = 2.0, value_name = "US")]
    map_us: f64,
    /// Microseconds to make a range accessible (`cuMemSetAccess`)
    #[arg(long, default_value_t = 38.0, value_name = "US")]
    access_us: f64,
    /// Microseconds to unmap a range (`cuMemUnmap`)
    #[arg(long, default_value_t = 34.0, value_name = "US")]
    unmap_us: f64,
    /// Microseconds that the host waits for a fence that has not passed
    #[arg(long, default_value_t = 1000.0, value_name = "US")]
    wait_us: f64,
    /// Microseconds to record an event, or to make one stream wait for another
    #[arg(long, default_value_t = 1.0, value_name = "US")]
    event_us: f64,
}

impl Costs {
    /// Milliseconds that these calls hold up the host.
    pub(crate) fn stall_ms(&self, calls: &Calls) -> f64 {
        let parts = [
            (calls.allocs, self.malloc_us),
            (calls.frees, self.free_us),
            (calls.reserves, self.reserve_us),
            (calls.releases, self.release_us),
            (calls.creates, self.create_us),
            (calls.destroys, self.destroy_us),
            (calls.maps, self.map_us),
            (calls.accesses, self.access_us),
            (calls.unmaps, self.unmap_us),
            (calls.waits, self.wait_us),
            (calls.fences + calls.orders, self.event_us),
        ];
        let microseconds: f64 = parts.iter().map(|&(count, us)| count as f64 * us).sum();
        microseconds / 1000.0
    }
}
