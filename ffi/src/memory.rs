//! Device memory, cached and reused in stream order: allocation, statistics, limits.

use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::ptr::null;
use std::sync::{LazyLock, Mutex, PoisonError};

use outrigger_hooks as hooks;
use outrigger_hooks::{ClassStats, Label, Stat, Stats};

use crate::guard::{Out, OutStruct, string, text};
use crate::{otr_pool_t, otr_stream_t};

/// All devices, for a call that takes one device or all.
pub const OTR_ALL_DEVICES: u32 = 0xffff_ffff;

/// Pinned host memory, for a call that takes it instead of a device.
pub const OTR_HOST_MEMORY: u32 = 0xffff_fffe;

/// Facts of an address within an allocation. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_pointer_info_t {
    /// sizeof(otr_pointer_info_t)
    pub struct_size: usize,
    /// The first address of the allocation.
    pub base: u64,
    /// The usable bytes of the allocation.
    pub size: u64,
    /// The stream that the memory was allocated on.
    pub stream: otr_stream_t,
    /// Bytes that were asked for.
    pub requested: u64,
    /// The pool of the allocation; 0 for the memory that all share, and for a pool whose handle was given up.
    pub pool: otr_pool_t,
    /// The number of the pool within its device, as snapshots name it; 0 for the memory that all share.
    pub pool_number: u64,
    /// The label under which the memory was allocated, valid for the life of the process; NULL if none is known.
    pub label: *const c_char,
}

impl From<hooks::PointerInfo> for otr_pointer_info_t {
    fn from(known: hooks::PointerInfo) -> Self {
        Self {
            struct_size: 0,
            base: known.base,
            size: known.size,
            stream: known.stream,
            requested: known.requested,
            pool: known.pool,
            pool_number: known.pool_number,
            label: known.label.map_or(null(), label_text),
        }
    }
}

/// One statistic.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct otr_stat_t {
    /// The value now.
    pub current: u64,
    /// The most since the peaks were reset.
    pub peak: u64,
    /// All that came since the accumulated counts were reset.
    pub allocated: u64,
    /// All that went since the accumulated counts were reset.
    pub freed: u64,
}

/// Statistics of the blocks of one size class. The members mean what those of otr_memory_stats_t mean.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct otr_class_stats_t {
    /// Bytes handed out, rounded up.
    pub allocated_bytes: otr_stat_t,
    /// Bytes taken from the device.
    pub reserved_bytes: otr_stat_t,
    /// Bytes handed out, as they were asked for.
    pub requested_bytes: otr_stat_t,
    /// Bytes handed out or waiting for a stream.
    pub active_bytes: otr_stat_t,
    /// Bytes that are cached.
    pub inactive_split_bytes: otr_stat_t,
    /// Blocks handed out.
    pub allocations: otr_stat_t,
    /// Pieces of memory taken from the device.
    pub segments: otr_stat_t,
    /// Blocks handed out or waiting for a stream.
    pub active: otr_stat_t,
    /// Free blocks.
    pub inactive_split: otr_stat_t,
}

impl From<&ClassStats> for otr_class_stats_t {
    fn from(stats: &ClassStats) -> Self {
        Self {
            allocated_bytes: stat(&stats.allocated_bytes),
            reserved_bytes: stat(&stats.reserved_bytes),
            requested_bytes: stat(&stats.requested_bytes),
            active_bytes: stat(&stats.active_bytes),
            inactive_split_bytes: stat(&stats.inactive_split_bytes),
            allocations: stat(&stats.allocations),
            segments: stat(&stats.segments),
            active: stat(&stats.active),
            inactive_split: stat(&stats.inactive_split),
        }
    }
}

/// Statistics of a device's memory; names and meanings are PyTorch's. Set `struct_size` before the
/// call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct otr_memory_stats_t {
    /// sizeof(otr_memory_stats_t)
    pub struct_size: usize,
    /// Bytes handed out, rounded up.
    pub allocated_bytes: otr_stat_t,
    /// Bytes taken from the device.
    pub reserved_bytes: otr_stat_t,
    /// Bytes handed out, as they were asked for.
    pub requested_bytes: otr_stat_t,
    /// Bytes handed out or waiting for a stream.
    pub active_bytes: otr_stat_t,
    /// Bytes that are cached: free, and taken from the device.
    pub inactive_split_bytes: otr_stat_t,
    /// Blocks handed out.
    pub allocations: otr_stat_t,
    /// Pieces of memory taken from the device: segments, or chunks of physical memory.
    pub segments: otr_stat_t,
    /// Blocks handed out or waiting for a stream.
    pub active: otr_stat_t,
    /// Free blocks.
    pub inactive_split: otr_stat_t,
    /// Calls of the driver that allocate.
    pub device_allocs: u64,
    /// Calls of the driver that free.
    pub device_frees: u64,
    /// Requests that were met only after caches had been given back.
    pub alloc_retries: u64,
    /// Requests that could not be met.
    pub ooms: u64,
    /// Times that all streams were waited for to get memory back.
    pub sync_all_streams: u64,
    /// Times that memory was mapped.
    pub maps: u64,
    /// Times that memory was unmapped.
    pub unmaps: u64,
    /// Large requests that were met by idle memory that lies apart, which was mapped a second time.
    pub views: u64,
    /// Large requests that were met by such memory that was mapped already.
    pub view_reuses: u64,
    /// Times that a stream was made to wait on the device for another, to use memory that the other had
    /// freed.
    pub stream_waits: u64,
    /// Times that a thread had to wait for a stream.
    pub host_waits: u64,
    /// The counts of blocks up to 1 MiB.
    pub small: otr_class_stats_t,
    /// The counts of blocks above 1 MiB.
    pub large: otr_class_stats_t,
}

fn stat(of: &Stat) -> otr_stat_t {
    otr_stat_t {
        current: of.current,
        peak: of.peak,
        allocated: of.allocated,
        freed: of.freed,
    }
}

impl From<&Stats> for otr_memory_stats_t {
    fn from(stats: &Stats) -> Self {
        Self {
            struct_size: size_of::<Self>(),
            allocated_bytes: stat(&stats.all.allocated_bytes),
            reserved_bytes: stat(&stats.all.reserved_bytes),
            requested_bytes: stat(&stats.all.requested_bytes),
            active_bytes: stat(&stats.all.active_bytes),
            inactive_split_bytes: stat(&stats.all.inactive_split_bytes),
            allocations: stat(&stats.all.allocations),
            segments: stat(&stats.all.segments),
            active: stat(&stats.all.active),
            inactive_split: stat(&stats.all.inactive_split),
            device_allocs: stats.device_allocs,
            device_frees: stats.device_frees,
            alloc_retries: stats.alloc_retries,
            ooms: stats.ooms,
            sync_all_streams: stats.sync_all_streams,
            maps: stats.maps,
            unmaps: stats.unmaps,
            views: stats.views,
            view_reuses: stats.view_reuses,
            stream_waits: stats.stream_waits,
            host_waits: stats.host_waits,
            small: (&stats.small).into(),
            large: (&stats.large).into(),
        }
    }
}

api! {
    /// Allocates at least `size` bytes of a device, in the order of `stream`: freed memory may be
    /// handed out again while the work before its free still runs on that stream. For 0 bytes the
    /// address is 0. The text of OTR_ERR_OUT_OF_MEMORY says where the memory is.
    fn otr_memory_alloc(device: u32, size: u64, stream: otr_stream_t, address: *mut u64) {
        let out = Out::new(address, "address")?;
        out.set(hooks::runtime()?.device(device)?.alloc(size, stream)?);
        Ok(())
    }

    /// Frees an allocation of a device, at any time: it is reused in stream order. 0 is ignored.
    fn otr_memory_free(device: u32, address: u64) {
        hooks::runtime()?.device(device)?.free(address)
    }

    /// Says that work of another stream, of any device, uses the allocation around an address of a device. Once
    /// the allocation is freed, it is reused only after the work that this stream had been given until then has
    /// finished. OTR_ERR_INVALID_ARGUMENT if the address lies in no allocation of the device; 0 is ignored.
    fn otr_memory_record_stream(device: u32, address: u64, stream: otr_stream_t) {
        hooks::runtime()?.device(device)?.record_stream(address, stream)
    }

    /// The device that has an address, for a host that was given the number alone. OTR_ERR_NOT_FOUND if no
    /// device has it; OTR_ERR_INVALID_ARGUMENT, which names both, if two devices have it (H21).
    fn otr_memory_find(address: u64, device: *mut u32) {
        let out = Out::new(device, "device")?;
        out.set(hooks::runtime()?.find(address)?.index());
        Ok(())
    }

    /// Tells the facts of an address of a device. OTR_ERR_NOT_FOUND if it lies in no allocation of the device.
    fn otr_memory_pointer_info(device: u32, address: u64, info: *mut otr_pointer_info_t) {
        let out = OutStruct::new(info, "info")?;
        out.set(&hooks::runtime()?.device(device)?.pointer_info(address)?.into());
        Ok(())
    }

    /// Exports the allocation around an address of a device as a text. Other processes of the same user pass the
    /// text to otr_memory_import, and then reach all bytes of the allocation. Keep the allocation until
    /// all of them have closed it. Free the text with otr_string_free. OTR_ERR_UNSUPPORTED if the
    /// driver shares no memory.
    fn otr_memory_export(device: u32, address: u64, exported: *mut *mut c_char) {
        let out = Out::new(exported, "exported")?;
        out.set(string(hooks::runtime()?.device(device)?.export_memory(address)?));
        Ok(())
    }

    /// Imports an allocation that another process has exported, as memory of a device. Returns its
    /// address and its size. It can be used as any memory, but graphs cannot capture it.
    /// otr_memory_close gives it back. The two processes order their work themselves.
    /// OTR_ERR_INVALID_HANDLE for a text of another driver, and for any other text; OTR_ERR_NOT_FOUND
    /// if the exporter has given the memory up; OTR_ERR_UNSUPPORTED if the driver shares no memory, or
    /// none within one process.
    fn otr_memory_import(
        device: u32,
        exported: *const c_char,
        address: *mut u64,
        size: *mut u64,
    ) {
        let (address_out, size_out) = (Out::new(address, "address")?, Out::new(size, "size")?);
        let exported = text(exported, "exported")?;
        let (address, size) = hooks::runtime()?.device(device)?.import_memory(exported)?;
        address_out.set(address);
        size_out.set(size);
        Ok(())
    }

    /// Gives imported memory back, by the address of otr_memory_import. Waits for all work of all
    /// devices, whose failures stay with its streams. Where that is not known to be over, the call fails,
    /// and the memory is still there.
    fn otr_memory_close(device: u32, address: u64) {
        hooks::runtime()?.device(device)?.close_memory(address)
    }

    /// Gives all idle memory of the cache back to the driver, except that of live pools.
    fn otr_memory_empty_cache(device: u32) {
        if let Some(device) = hooks::runtime()?.opened(device)? {
            device.empty_cache();
        }
        Ok(())
    }

    /// Gives idle memory of the cache back to the driver until at most `keep` bytes of it stay. It
    /// gives back only whole pieces of memory, and none of live pools. Waits for the streams of this
    /// memory. `released` gets the number of bytes; it may be NULL.
    fn otr_memory_trim(device: u32, keep: u64, released: *mut u64) {
        let device = hooks::runtime()?.opened(device)?;
        let bytes = device.map_or(0, |device| device.trim_cache(keep));
        if let Ok(out) = Out::new(released, "released") {
            out.set(bytes);
        }
        Ok(())
    }

    /// Free and total bytes of a device.
    fn otr_memory_info(device: u32, free_bytes: *mut u64, total_bytes: *mut u64) {
        let (free_out, total_out) =
            (Out::new(free_bytes, "free_bytes")?, Out::new(total_bytes, "total_bytes")?);
        let (free, total) = hooks::runtime()?.device(device)?.memory_info()?;
        free_out.set(free);
        total_out.set(total);
        Ok(())
    }

    /// Statistics of a device's memory.
    fn otr_memory_stats(device: u32, stats: *mut otr_memory_stats_t) {
        let out = OutStruct::new(stats, "stats")?;
        let device = hooks::runtime()?.opened(device)?;
        let stats = device.map(hooks::Device::memory_stats).unwrap_or_default();
        out.set(&otr_memory_stats_t::from(&stats));
        Ok(())
    }

    /// Resets all peaks to the current values.
    fn otr_memory_reset_peak(device: u32) {
        if let Some(device) = hooks::runtime()?.opened(device)? {
            device.reset_peak_memory();
        }
        Ok(())
    }

    /// Resets all accumulated counts to 0.
    fn otr_memory_reset_accumulated(device: u32) {
        if let Some(device) = hooks::runtime()?.opened(device)? {
            device.reset_accumulated_memory();
        }
        Ok(())
    }

    /// Limits the bytes that the cache may take from a device; UINT64_MAX lifts the limit. Memory that
    /// is already held above the limit stays. As it becomes idle and more is needed, it is given back.
    fn otr_memory_set_limit(device: u32, bytes: u64) {
        hooks::runtime()?.device(device)?.set_memory_limit(bytes);
        Ok(())
    }

    /// The most bytes that the cache may take from a device; UINT64_MAX if there is no limit.
    fn otr_memory_limit(device: u32, bytes: *mut u64) {
        let out = Out::new(bytes, "bytes")?;
        out.set(hooks::runtime()?.device(device)?.memory_limit());
        Ok(())
    }

    /// Limits the bytes that the cache may take to a fraction of the device's memory, 0 to 1.
    fn otr_memory_set_fraction(device: u32, fraction: f64) {
        hooks::runtime()?.device(device)?.set_memory_fraction(fraction)
    }

    /// The limit of a device as a fraction of its memory: 1 if there is none.
    fn otr_memory_fraction(device: u32, fraction: *mut f64) {
        let out = Out::new(fraction, "fraction")?;
        out.set(hooks::runtime()?.device(device)?.memory_fraction()?);
        Ok(())
    }

    /// Limits the bytes that the caches of all devices together may hold; UINT64_MAX lifts the limit.
    fn otr_memory_set_process_limit(bytes: u64) {
        hooks::set_process_memory_limit(bytes);
        Ok(())
    }

    /// Bytes that the caches of all devices hold, and the most that they may; UINT64_MAX if there is no
    /// limit.
    fn otr_memory_process_info(held_bytes: *mut u64, limit_bytes: *mut u64) {
        let (held, limit) =
            (Out::new(held_bytes, "held_bytes")?, Out::new(limit_bytes, "limit_bytes")?);
        held.set(hooks::process_memory_held());
        limit.set(hooks::process_memory_limit());
        Ok(())
    }

    /// All segments of a device, or of OTR_ALL_DEVICES, with their blocks, and the events that were
    /// kept (otr_memory_history_start). The result is JSON with the names of PyTorch's memory
    /// snapshots: "segments", "device_traces" (a list per device) and "allocator_settings". For all
    /// devices it also has "host_segments" and "host_traces" of pinned memory. Blocks and events also
    /// have their "label". Free it with otr_string_free.
    fn otr_memory_snapshot(device: u32, json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        let device = (device != OTR_ALL_DEVICES).then_some(device);
        out.set(string(hooks::snapshot_json(device)?));
        Ok(())
    }
}

/// The name of a label as a C string that is never freed. Labels are few, and their names live as long
/// as the process, too.
fn label_text(label: Label) -> *const c_char {
    static TEXTS: LazyLock<Mutex<HashMap<Label, &'static CString>>> = LazyLock::new(Mutex::default);
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    texts
        .entry(label)
        .or_insert_with(|| {
            let name = CString::new(&*label.name()).unwrap_or_default();
            Box::leak(Box::new(name))
        })
        .as_ptr()
}
