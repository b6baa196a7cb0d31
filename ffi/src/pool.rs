//! Pools: memory apart from what all share, for graphs and for what a host allocates there.

use std::ffi::c_char;

use outrigger_hooks as hooks;
use outrigger_hooks::Result;

use crate::guard::{Out, OutStruct, string};
use crate::{otr_pool_t, otr_stream_t};

/// What a pool holds. Set `struct_size` before the call.
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
    /// Its number within the device, as snapshots name it.
    pub number: u64,
    /// Segments taken from the device.
    pub segments: u64,
    /// The most bytes that may be in use; UINT64_MAX if there is no limit.
    pub limit: u64,
    /// Bytes that the device has got back while it sleeps, else 0.
    pub asleep_bytes: u64,
    /// 1 while it sleeps, else 0.
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
    /// Makes a pool: memory of a device that serves only those who name it; but what is free in the
    /// pool of an executable graph may serve others between its replays. Graphs can share a pool:
    /// they may then use the same memory for what they need in between, so that their replays must not
    /// overlap. A host can allocate there, too: what it has there since a graph was recorded may lie where
    /// the graph works, and replays overwrite it.
    fn otr_pool_create(device: u32, pool: *mut otr_pool_t) {
        let out = Out::new(pool, "pool")?;
        out.set(hooks::create_pool(device)?.id());
        Ok(())
    }

    /// Gives the handle up. The memory goes back to the device with the last graph and the last
    /// allocation that use it.
    fn otr_pool_destroy(pool: otr_pool_t) {
        hooks::destroy_pool(pool)
    }

    /// What a pool holds now.
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

    /// Hands out memory of a pool, whatever pool the calling thread uses; else as otr_memory_alloc.
    /// otr_memory_free takes it back to the pool.
    fn otr_pool_alloc(pool: otr_pool_t, size: u64, stream: otr_stream_t, address: *mut u64) {
        let out = Out::new(address, "address")?;
        let pool = hooks::pool(pool)?;
        out.set(pool.device().alloc_from(&pool, size, stream)?);
        Ok(())
    }

    /// From now on until otr_pool_end_use, what the calling thread allocates on the pool's device comes
    /// from this pool: on any stream, or with a `stream` other than 0 on that one only. Uses nest, and
    /// the innermost that fits an allocation decides; a stream that captures allocates from the pool of
    /// its graph all the same. The pool lives at least until then.
    fn otr_pool_begin_use(pool: otr_pool_t, stream: otr_stream_t) {
        hooks::begin_pool_use(pool, stream)
    }

    /// Ends the last use that the calling thread has begun, which must be of this pool. Memory that was
    /// allocated stays the pool's.
    fn otr_pool_end_use(pool: otr_pool_t) {
        hooks::end_pool_use(pool)
    }

    /// Limits the bytes of a pool that may be in use, rounded up; UINT64_MAX lifts the limit. What is in
    /// use stays. A request beyond it is OTR_ERR_OUT_OF_MEMORY, after observers of pressure were asked.
    fn otr_pool_set_limit(pool: otr_pool_t, bytes: u64) {
        hooks::pool(pool)?.set_limit(bytes);
        Ok(())
    }

    /// Puts a pool to sleep: what is in use of it moves to memory of the host, and the device gets the
    /// pool's memory back. Waits for all work of all devices; nobody may submit work on the pool's memory
    /// during the call, be it by replays. Then, until otr_pool_wake, allocations from the pool, replays of
    /// graphs, copies and operators that use its memory are OTR_ERR_BUSY; frees go on. `released` gets how
    /// many bytes the device has got back, 0 if the pool slept already; NULL if that does not matter.
    /// OTR_ERR_UNSUPPORTED on a driver without virtual memory, OTR_ERR_CAPTURE while a graph is recorded into
    /// the pool, OTR_ERR_BUSY while another thread allocates from it, puts it to sleep or wakes it. Where it
    /// fails the pool is as it was.
    fn otr_pool_sleep(pool: otr_pool_t, released: *mut u64) {
        let bytes = hooks::pool(pool)?.sleep()?;
        if let Ok(out) = Out::new(released, "released") {
            out.set(bytes);
        }
        Ok(())
    }

    /// Brings the memory of a pool back to its addresses, with what it has held. OTR_ERR_OUT_OF_MEMORY,
    /// after caches were given back and observers of pressure were asked; where it fails the pool still
    /// sleeps, and nothing is lost. A pool that is awake stays so.
    fn otr_pool_wake(pool: otr_pool_t) {
        hooks::pool(pool)?.wake()
    }

    /// The segments of a pool and their blocks as JSON, as otr_memory_snapshot writes them, without
    /// events. Free it with otr_string_free.
    fn otr_pool_snapshot(pool: otr_pool_t, json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        out.set(string(hooks::pool(pool)?.snapshot_json()));
        Ok(())
    }
}
