//! Observers: functions of the host that are told of memory and fallbacks, or asked to release memory.

use std::ffi::{CString, c_char, c_void};

use outrigger_device::foreign_call;
use outrigger_hooks as hooks;
use outrigger_hooks::{Code, Error, ObservationKinds};

use crate::guard::{Out, null};
use crate::otr_observer_t;

/// Memory was handed out.
pub const OTR_OBSERVE_ALLOC: u32 = 1;
/// Memory was given back to the cache.
pub const OTR_OBSERVE_FREE: u32 = 2;
/// The cache took memory from the device.
pub const OTR_OBSERVE_SEGMENT_ALLOC: u32 = 4;
/// The cache gave memory back to the device.
pub const OTR_OBSERVE_SEGMENT_FREE: u32 = 8;
/// A request could not be met.
pub const OTR_OBSERVE_OUT_OF_MEMORY: u32 = 16;
/// An operator ran on the CPU in place of the device.
pub const OTR_OBSERVE_FALLBACK: u32 = 32;
/// A host kernel served an operator on a device that is not the CPU. Seen in the mode OTR_FALLBACK_WARN, the first
/// time for each operator.
pub const OTR_OBSERVE_HOST_KERNEL: u32 = 64;

// Literals above, so that they reach the header; the runtime's must be the same.
const _: () = assert!(
    ObservationKinds::ALLOC.0 == OTR_OBSERVE_ALLOC
        && ObservationKinds::FREE.0 == OTR_OBSERVE_FREE
        && ObservationKinds::SEGMENT_ALLOC.0 == OTR_OBSERVE_SEGMENT_ALLOC
        && ObservationKinds::SEGMENT_FREE.0 == OTR_OBSERVE_SEGMENT_FREE
        && ObservationKinds::OUT_OF_MEMORY.0 == OTR_OBSERVE_OUT_OF_MEMORY
        && ObservationKinds::FALLBACK.0 == OTR_OBSERVE_FALLBACK
        && ObservationKinds::HOST_KERNEL.0 == OTR_OBSERVE_HOST_KERNEL
);

/// One event. It lives as long as the observer's call.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_observation_t {
    /// sizeof(otr_observation_t), of the library
    pub struct_size: usize,
    /// One of OTR_OBSERVE_*.
    pub kind: u32,
    /// The device that the observation concerns.
    pub device: u32,
    /// The address, for memory; else 0.
    pub address: u64,
    /// Bytes: of the block, of the segment, requested, or staged by a fallback.
    pub size: u64,
    /// Bytes handed out, for memory.
    pub allocated_bytes: u64,
    /// Bytes that the cache holds, for memory.
    pub reserved_bytes: u64,
    /// The operator, for a fallback; else "".
    pub name: *const c_char,
    /// The time that a fallback took.
    pub nanoseconds: u64,
    /// The text of the error if a request could not be met; else "".
    pub text: *const c_char,
    /// If a request could not be met: bytes that the device has left, if it tells them; else 0.
    pub device_free: u64,
    /// If a request could not be met: bytes that the device has in all, if it tells them; else 0.
    pub device_total: u64,
}

/// Called on the thread that caused the event, outside of all locks of the runtime. It must not throw.
pub type otr_observer_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, observation: *const otr_observation_t)>;

/// Asked to release memory: a device has no `needed` bytes, although caches were given back and pending
/// frees were waited for. Returns 0 if it released nothing; otherwise the allocation is tried once
/// more. Called on the thread that allocates, outside of all locks of the runtime. It may call the
/// runtime and may allocate; an allocation of its own that cannot be met is an error. It must not
/// throw.
pub type otr_pressure_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, device: u32, needed: u64) -> u32>;

/// A pointer that the host lets us use from any thread.
struct User(*mut c_void);

// SAFETY: `otr_observer_add` documents that the function is called with it from any thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

api! {
    /// Adds an observer: `function` is called for every event of the given kinds (OTR_OBSERVE_*,
    /// or-ed), from any thread, until the observer is removed. The host keeps `user` valid until
    /// otr_observer_remove has returned.
    fn otr_observer_add(
        kinds: u32,
        function: otr_observer_fn,
        user: *mut c_void,
        observer: *mut otr_observer_t,
    ) {
        let out = Out::new(observer, "observer")?;
        let function = function.ok_or_else(|| null("function"))?;
        if kinds == 0 || kinds & !ObservationKinds::ALL.0 != 0 {
            return Err(Error::new(
                Code::INVALID_ARGUMENT,
                format!("kinds {kinds:#x} is not a combination of OTR_OBSERVE_*"),
            ));
        }
        let user = User(user);
        out.set(hooks::add_observer(ObservationKinds(kinds), move |seen| {
            let user = &user;
            let name = CString::new(seen.name).unwrap_or_default();
            let text = CString::new(seen.text).unwrap_or_default();
            let observation = otr_observation_t {
                struct_size: size_of::<otr_observation_t>(),
                kind: seen.kind.0,
                device: seen.device,
                address: seen.address,
                size: seen.size,
                allocated_bytes: seen.allocated_bytes,
                reserved_bytes: seen.reserved_bytes,
                name: name.as_ptr(),
                nanoseconds: seen.nanoseconds,
                text: text.as_ptr(),
                device_free: seen.device_free,
                device_total: seen.device_total,
            };
            // SAFETY: the host lets this be called from any thread until the observer is removed.
            unsafe { foreign_call!(function, user.0, &raw const observation) }
        })?);
        Ok(())
    }

    /// Adds an observer of memory pressure: `function` is called when an allocation on any device is
    /// about to fail, until otr_observer_remove.
    fn otr_observer_add_pressure(
        function: otr_pressure_fn,
        user: *mut c_void,
        observer: *mut otr_observer_t,
    ) {
        let out = Out::new(observer, "observer")?;
        let function = function.ok_or_else(|| null("function"))?;
        let user = User(user);
        out.set(hooks::add_pressure_observer(move |pressure| {
            let user = &user;
            // SAFETY: the host lets this be called from any thread until the observer is removed.
            unsafe { foreign_call!(function, user.0, pressure.device, pressure.needed) != 0 }
        })?);
        Ok(())
    }

    /// Removes an observer, and waits for its running calls. After the return none is running, and none
    /// will start. OTR_ERR_BUSY from within an observer, if a call of the observer to be removed is
    /// running.
    fn otr_observer_remove(observer: otr_observer_t) {
        hooks::remove_observer(observer)
    }
}
