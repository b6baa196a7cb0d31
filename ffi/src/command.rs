//! Commands of a stream: copies, fills and host calls.

use std::ffi::c_void;

use outrigger_device::CopyKind;
use outrigger_device::sys::otr_host_fn;
use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error};

use crate::guard::{null, slice};
use crate::otr_stream_t;

api! {
    /// Copies `size` bytes in stream order. `kind` says which addresses are device addresses of the
    /// stream's device, and which are host pointers. The host keeps its memory valid and untouched
    /// until the copy has finished. Device ranges must lie in live allocations (H22). Source and
    /// destination must not overlap. A size of 0 is allowed with any addresses.
    fn otr_copy(stream: otr_stream_t, dst: u64, src: u64, size: u64, kind: u32) {
        let kind = CopyKind::from_raw(kind).ok_or_else(|| {
            let text = format!("copy kind {kind} is unknown: it is one of OTR_COPY_*, 1 to 4");
            Error::new(Code::INVALID_ARGUMENT, text)
        })?;
        let stream = hooks::stream(stream)?;
        // SAFETY: the stream checks device ranges (H22); the host keeps its own memory valid and
        // untouched until the copy has finished, as the entry says.
        unsafe { stream.copy(dst, src, size, kind) }
    }

    /// Copies `size` bytes between live allocations of two devices, of any drivers. The stream belongs
    /// to one of the two devices, and the copy is in its order. If the drivers have no better way, the
    /// call waits and copies through the host.
    fn otr_copy_peer(
        stream: otr_stream_t,
        dst_device: u32,
        dst: u64,
        src_device: u32,
        src: u64,
        size: u64,
    ) {
        // SAFETY: the order of uses and frees is the host's to see to (H23).
        unsafe { hooks::stream(stream)?.copy_peer((dst_device, dst), (src_device, src), size) }
    }

    /// Fills `size` bytes with a repeated pattern of 1, 2, 4, 8 or 16 bytes, in stream order. The
    /// pattern is copied during the call. The size is a multiple of the pattern's.
    fn otr_fill(
        stream: otr_stream_t,
        dst: u64,
        size: u64,
        pattern: *const c_void,
        pattern_size: u32,
    ) {
        let pattern = slice(pattern.cast::<u8>(), pattern_size as usize, "pattern")?;
        let stream = hooks::stream(stream)?;
        // SAFETY: the order of uses and frees is the host's to see to (H23).
        unsafe { stream.fill(dst, size, pattern) }
    }

    /// Runs a function on the host in stream order, on a thread of the library's choice: exactly once,
    /// or at every replay if the stream captures. It also runs after a failure of the work before it,
    /// and is given this failure. It must not call the library. Any result other than OTR_OK makes the
    /// stream fail with it. The host keeps `user` valid until the function has run for the last time;
    /// otr_host_node tells when that is. If this call fails, the function does not run.
    fn otr_host_call(stream: otr_stream_t, function: otr_host_fn, user: *mut c_void) {
        let function = function.ok_or_else(|| null("function"))?;
        let stream = hooks::stream(stream)?;
        // SAFETY: H11: the host keeps `user` until `function` was called; it may be called once, on any
        // thread.
        unsafe { stream.host_call_raw(function, user) }
    }
}
