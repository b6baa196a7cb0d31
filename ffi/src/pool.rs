//! Pools: memory that is separate from what all share, for graphs and for allocations of a host.

use std::ffi::c_char;

use outrigger_hooks as hooks;
use outrigger_hooks::Result;

use crate::guard::{Out, OutStruct, string};
use crate::{otr_pool_t, otr_stream_t};

/// Figures of a pool. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct otr_pool_info_t {
    /// sizeof(otr_pool_info_t)
    pub struct_size: usize,
    /// Bytes taken from the device.
    pub reserved_bytes: u64,
    /// Bytes in use, rounded up.
    pub allocated_bytes: u64,
    /// The most that were in use.
    pub peak_allocated_bytes: u64,
    /// The device.
    pub device: u32,
    /// Captures, graphs, executable graphs, and uses by threads, that refer to it.
    pub users: u32,
    /// The number of the pool within the device, as snapshots name it.
    pub number: u64,
    /// Segments taken from the device.
    pub segments: u64,
    /// The most bytes that may be in use; UINT64_MAX if there is no limit.
    pub limit: u64,
    /// The bytes that the device has got back while the pool sleeps; else 0.
    pub asleep_bytes: u64,
    /// 1 while the pool sleeps, else 0.
    pub asleep: u32,
    /// 0
    pub reserved: u32,
}

/// The pool of a handle; `None` for 0.
pub(crate) fn optional_pool(pool: otr_pool_t) -> Result<Option<hooks::Ref<hooks::Pool>>> {
    if pool == 0 {
        Ok(None)
    } else {
        hooks::pool(pool).map(Some)
    }
}

api! {
    /// Makes a pool: memory of a device that serves only those who name it. There is one exception: the
    /// free memory of an executable graph's pool may serve others between replays. Graphs can share a
    /// pool. They may then use the same memory for intermediate results, so their replays must not
    /// overlap. A host can allocate in a pool, too. Memory that it allocates after a graph was recorded
    /// may lie where the graph works; replays then overwrite it.
    fn otr_pool_create(device: u32, pool: *mut otr_pool_t) {
        let out = Out::new(pool, "pool")?;
        out.set(hooks::create_pool(device)?.id());
        Ok(())
    }

    /// Gives the handle up. The memory goes back to the device when the last graph and the last
    /// allocation that use it are gone.
    fn otr_pool_destroy(pool: otr_pool_t) {
        hooks::destroy_pool(pool)
    }

    /// Tells the figures of a pool as they are now.
    fn otr_pool_info(pool: otr_pool_t, info: *mut otr_pool_info_t) {
        let out = OutStruct::new(info, "info")?;
        let pool = hooks::pool(pool)?;
        let (stats, asleep) = (pool.stats(), pool.asleep());
        out.set(&otr_pool_info_t {
            struct_size: 0,
            reserved_bytes: stats.reserved,
            allocated_bytes: stats.allocated,
            peak_allocated_bytes: stats.allocated_peak,
            device: pool.device().index(),
            users: pool.users() as u32,
            number: pool.number(),
            segments: stats.segments,
            limit: pool.limit(),
            asleep_bytes: asleep.unwrap_or(0),
            asleep: asleep.is_some().into(),
            reserved: 0,
        });
        Ok(())
    }

    /// Allocates from a pool, whatever pool the calling thread uses; otherwise as otr_memory_alloc.
    /// otr_memory_free returns the memory to the pool.
    fn otr_pool_alloc(pool: otr_pool_t, size: u64, stream: otr_stream_t, address: *mut u64) {
        let out = Out::new(address, "address")?;
        let pool = hooks::pool(pool)?;
        out.set(pool.device().alloc_from(&pool, size, stream)?);
        Ok(())
    }

    /// Until otr_pool_end_use, the calling thread allocates from this pool on the pool's device: on any
    /// stream, or only on `stream` if it is not 0. Uses nest; the innermost one that fits an allocation
    /// decides. A stream that captures always allocates from the pool of its graph. The pool lives at
    /// least until otr_pool_end_use.
    fn otr_pool_begin_use(pool: otr_pool_t, stream: otr_stream_t) {
        hooks::begin_pool_use(pool, stream)
    }

    /// Ends the use that the calling thread has begun last. It must be of this pool. Memory that was
    /// allocated stays in the pool.
    fn otr_pool_end_use(pool: otr_pool_t) {
        hooks::end_pool_use(pool)
    }

    /// Limits the bytes of a pool that may be in use, rounded up; UINT64_MAX lifts the limit. Memory in
    /// use stays. A request beyond the limit is OTR_ERR_OUT_OF_MEMORY, after observers of pressure were
    /// asked.
    fn otr_pool_set_limit(pool: otr_pool_t, bytes: u64) {
        hooks::pool(pool)?.set_limit(bytes);
        Ok(())
    }

    /// Puts a pool to sleep: its memory in use is copied to the host, and the device gets the pool's
    /// memory back. Waits for all work of all devices. During the call nobody may submit work on the
    /// pool's memory, not even by replays. Until otr_pool_wake, allocations from the pool are
    /// OTR_ERR_BUSY, and so are replays, copies and operators that use its memory, and instantiations
    /// that make a driver's own graph over it (OTR_GRAPH_NATIVE, or the library's choice). Frees still
    /// work. `released` gets the number of bytes that the device has got back, 0 if the pool slept
    /// already; it may be NULL. OTR_ERR_UNSUPPORTED on a driver without virtual memory;
    /// OTR_ERR_CAPTURE while a graph is recorded into the pool; OTR_ERR_BUSY while another thread
    /// allocates from it, puts it to sleep or wakes it. If the call fails, the pool is as it was.
    fn otr_pool_sleep(pool: otr_pool_t, released: *mut u64) {
        let bytes = hooks::pool(pool)?.sleep()?;
        if let Ok(out) = Out::new(released, "released") {
            out.set(bytes);
        }
        Ok(())
    }

    /// Brings the memory of a pool back to its addresses, with its contents. If there is not enough
    /// memory, caches are given back and observers of pressure are asked; then it is
    /// OTR_ERR_OUT_OF_MEMORY. If the call fails, the pool still sleeps, and nothing is lost. For a pool
    /// that is awake it does nothing.
    fn otr_pool_wake(pool: otr_pool_t) {
        hooks::pool(pool)?.wake()
    }

    /// The segments of a pool and their blocks, as JSON in the form of otr_memory_snapshot, without
    /// events. Free it with otr_string_free.
    fn otr_pool_snapshot(pool: otr_pool_t, json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        out.set(string(hooks::pool(pool)?.snapshot_json()));
        Ok(())
    }
}
