//! The structs in which calls get what they need, each filled in for the plain case. They lie on the stack of the caller.

use std::ffi::c_void;

use crate as sys;

/// Memory of the device itself, aligned as the device aligns it.
#[inline]
pub const fn memory(size: u64) -> sys::otr_memory_params {
    sys::otr_memory_params {
        struct_size: size_of::<sys::otr_memory_params>(),
        next: std::ptr::null(),
        size,
        alignment: 0,
        kind: sys::OTR_MEMORY_DEVICE,
        flags: 0,
    }
}

/// An event with flags, of `OTR_EVENT_*`.
#[inline]
pub const fn event(flags: u32) -> sys::otr_event_params {
    sys::otr_event_params {
        struct_size: size_of::<sys::otr_event_params>(),
        next: std::ptr::null(),
        flags,
        reserved: 0,
    }
}

/// A copy of one row, on the device of its queue.
#[inline]
pub const fn copy(dst: u64, src: u64, size: u64, kind: u32) -> sys::otr_copy {
    sys::otr_copy {
        struct_size: size_of::<sys::otr_copy>(),
        next: std::ptr::null(),
        dst,
        src,
        size,
        kind,
        rows: 1,
        dst_pitch: 0,
        src_pitch: 0,
        dst_device: 0,
        src_device: 0,
    }
}

/// A copy of one row between two devices. Each end is a pair of device and address.
#[inline]
pub const fn peer_copy(dst: (u32, u64), src: (u32, u64), size: u64) -> sys::otr_copy {
    sys::otr_copy {
        dst_device: dst.0,
        src_device: src.0,
        ..copy(dst.1, src.1, size, sys::OTR_COPY_DEVICE_TO_DEVICE)
    }
}

/// A fill with the bytes of a pattern.
#[inline]
pub const fn fill(dst: u64, size: u64, pattern: *const c_void, pattern_size: u32) -> sys::otr_fill {
    sys::otr_fill {
        struct_size: size_of::<sys::otr_fill>(),
        next: std::ptr::null(),
        dst,
        size,
        pattern,
        pattern_size,
        reserved: 0,
    }
}

/// A host call with flags, of `OTR_HOST_CALL_*`.
#[inline]
pub const fn host_call(
    function: sys::otr_host_fn,
    user: *mut c_void,
    flags: u32,
) -> sys::otr_host_call {
    sys::otr_host_call {
        struct_size: size_of::<sys::otr_host_call>(),
        next: std::ptr::null(),
        function,
        user,
        flags,
        reserved: 0,
    }
}

/// A range of addresses; an alignment of 0 is the granularity.
#[inline]
pub const fn reserve(size: u64, alignment: u64) -> sys::otr_reserve_params {
    sys::otr_reserve_params {
        struct_size: size_of::<sys::otr_reserve_params>(),
        next: std::ptr::null(),
        size,
        alignment,
        flags: 0,
        reserved: 0,
    }
}

/// So many objects, one behind the other from an address on.
#[inline]
pub const fn map(
    address: u64,
    physical: *const *mut sys::otr_physical,
    count: u32,
) -> sys::otr_map_params {
    sys::otr_map_params {
        struct_size: size_of::<sys::otr_map_params>(),
        next: std::ptr::null(),
        address,
        physical,
        count,
        flags: 0,
    }
}

/// A handle of another process, or the place for one.
pub const fn ipc_handle(bytes: [u8; sys::OTR_IPC_HANDLE_BYTES]) -> sys::otr_ipc_handle {
    sys::otr_ipc_handle {
        struct_size: size_of::<sys::otr_ipc_handle>(),
        bytes,
    }
}

/// The place for what an import finds.
pub const fn imported() -> sys::otr_imported {
    sys::otr_imported {
        struct_size: size_of::<sys::otr_imported>(),
        next: std::ptr::null_mut(),
        address: 0,
        size: 0,
    }
}

/// A file descriptor of a kind, of `OTR_FD_*`; or, with -1, the place for one.
pub const fn fd(fd: i32, kind: u32) -> sys::otr_fd {
    sys::otr_fd {
        struct_size: size_of::<sys::otr_fd>(),
        next: std::ptr::null_mut(),
        fd,
        kind,
        offset: 0,
        size: 0,
    }
}

/// A semaphore that begins with a number.
pub const fn semaphore(initial: u64) -> sys::otr_semaphore_params {
    sys::otr_semaphore_params {
        struct_size: size_of::<sys::otr_semaphore_params>(),
        next: std::ptr::null(),
        initial,
        flags: 0,
        reserved: 0,
    }
}
