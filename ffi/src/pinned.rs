//! Pinned host memory. It is cached, and reused only after the streams that were recorded on it have
//! passed.

use std::ffi::c_void;

use outrigger_hooks as hooks;

use crate::guard::{Out, OutStruct};
use crate::{otr_memory_stats_t, otr_stream_t};

api! {
    /// Allocates at least `size` bytes of pinned host memory. For 0 bytes the pointer is NULL.
    fn otr_host_alloc(size: u64, pointer: *mut *mut c_void) {
        let out = Out::new(pointer, "pointer")?;
        out.set(hooks::host_memory()?.alloc(size)?);
        Ok(())
    }

    /// Frees pinned memory, at any time. NULL is ignored.
    fn otr_host_free(pointer: *mut c_void) {
        hooks::host_memory()?.free(pointer)
    }

    /// Says that work of a stream, such as an asynchronous copy, uses pinned memory.
    fn otr_host_record_stream(pointer: *mut c_void, stream: otr_stream_t) {
        hooks::host_memory()?.record_stream(pointer, stream)
    }

    /// Sets `yes` to 1 if a pointer lies within live pinned memory of this runtime, else to 0.
    fn otr_host_is_pinned(pointer: *const c_void, yes: *mut u32) {
        let out = Out::new(yes, "yes")?;
        out.set(hooks::is_pinned(pointer).into());
        Ok(())
    }

    /// Gives all idle pinned memory of the cache back.
    fn otr_host_empty_cache() {
        hooks::host_memory()?.empty_cache();
        Ok(())
    }

    /// Statistics of pinned memory.
    fn otr_host_stats(stats: *mut otr_memory_stats_t) {
        let out = OutStruct::new(stats, "stats")?;
        out.set(&otr_memory_stats_t::from(&hooks::host_memory()?.stats()));
        Ok(())
    }

    /// Resets all peaks of pinned memory to the current values.
    fn otr_host_reset_peak() {
        hooks::host_memory()?.reset_peak();
        Ok(())
    }

    /// Resets all accumulated counts of pinned memory to 0.
    fn otr_host_reset_accumulated() {
        hooks::host_memory()?.reset_accumulated();
        Ok(())
    }

    /// Limits the bytes of pinned memory that are held, in use or cached; UINT64_MAX lifts the limit.
    fn otr_host_set_limit(bytes: u64) {
        hooks::host_memory()?.set_limit(bytes);
        Ok(())
    }
}
