//! Pinned host memory: cached, and reused only after the streams recorded on it have passed.

use std::ffi::c_void;

use outrigger_hooks as hooks;

use crate::guard::Out;
use crate::otr_stream_t;

api! {
    /// Hands out at least `size` bytes of pinned host memory. 0 bytes are NULL.
    fn otr_host_alloc(size: u64, pointer: *mut *mut c_void) {
        let out = Out::new(pointer, "pointer")?;
        out.set(hooks::host_memory()?.alloc(size)?);
        Ok(())
    }

    /// Frees pinned memory, at any time. NULL is ignored.
    fn otr_host_free(pointer: *mut c_void) {
        hooks::host_memory()?.free(pointer)
    }

    /// Says that work of a stream uses pinned memory, as an asynchronous copy does.
    fn otr_host_record_stream(pointer: *mut c_void, stream: otr_stream_t) {
        hooks::host_memory()?.record_stream(pointer, stream)
    }

    /// Sets `yes` to 1 if a pointer lies within live pinned memory of this runtime, else to 0.
    fn otr_host_is_pinned(pointer: *const c_void, yes: *mut u32) {
        let out = Out::new(yes, "yes")?;
        out.set(hooks::host_memory()?.lookup(pointer).is_some().into());
        Ok(())
    }

    /// Gives all cached pinned memory that is not in use back.
    fn otr_host_empty_cache() {
        hooks::host_memory()?.empty_cache();
        Ok(())
    }
}
