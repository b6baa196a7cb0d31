//! Operators that a host registers: functions of the host that are asked before the driver.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outrigger_device::foreign_call;
use outrigger_device::sys::otr_operator_call_t;
use outrigger_hooks as hooks;
use outrigger_hooks::ops::{Call, OperatorId, with_raw};
use outrigger_hooks::{Code, Error, Result, Stream};

use crate::guard::{Out, c_str, null, sized, string, text, unused};
use crate::{
    OTR_ALL_DEVICES, OTR_CALL_DEVICE_ONLY, OTR_SCALARS_MAX, otr_destroy_fn, otr_operator_id_t,
    otr_registration_t, otr_status_t, otr_stream_t,
};

/// `flags` of a registration: it replaces the one that is there for the same operator and the same device, or for
/// all.
pub const OTR_REGISTER_REPLACE: u32 = 1;

/// Serves a call of an operator by giving work to the stream: copies, fills, kernels, host nodes, other operators. It
/// is called on the thread that calls the operator, outside of all locks of the runtime, and from several threads at
/// a time. Returns NULL, or a status, which the runtime frees: one that a call gave it, or one of otr_status_new. The
/// code OTR_ERR_UNSUPPORTED passes the call on; it is right only while the function has given no work to the stream. A
/// call of the same operator from within the function goes to what comes after it. `call` lives as long as the
/// function runs. The function must not throw.
pub type otr_operator_fn = Option<
    unsafe extern "C" fn(
        user: *mut c_void,
        stream: otr_stream_t,
        operator_id: otr_operator_id_t,
        call: *const otr_operator_call_t,
    ) -> *mut otr_status_t,
>;

/// A function that serves an operator.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct otr_operator_registration_t {
    /// sizeof(otr_operator_registration_t)
    pub struct_size: usize,
    /// NULL
    pub next: *const c_void,
    /// The operator: a name that otr_operator_find takes, such as "mylib::scale_add".
    pub name: *const c_char,
    /// The owner of the registration, for texts. Copied.
    pub owner: *const c_char,
    /// The function.
    pub function: otr_operator_fn,
    /// The argument of the function.
    pub user: *mut c_void,
    /// Called once with `user` when the registration has ended and its last call is over, on whichever thread that
    /// is; or NULL. It is not called if otr_operator_register fails.
    pub destroy: otr_destroy_fn,
    /// The device that the function serves, or OTR_ALL_DEVICES.
    pub device: u32,
    /// 0 or OTR_REGISTER_REPLACE.
    pub flags: u32,
}

/// The user data of a function.
struct User {
    pointer: *mut c_void,
    destroy: otr_destroy_fn,
    /// Whether the pointer is the runtime's to give back.
    taken: AtomicBool,
}

// SAFETY: `otr_operator_fn` and `destroy` are documented to be called from any thread.
unsafe impl Send for User {}
// SAFETY: as above.
unsafe impl Sync for User {}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(destroy) = self.destroy
            && self.taken.load(Ordering::Acquire)
        {
            // SAFETY: the host lets it be called once, when the function will not be called again.
            unsafe { foreign_call!(destroy, self.pointer) }
        }
    }
}

/// Calls the function of a registration.
fn serve(
    function: unsafe extern "C" fn(
        *mut c_void,
        otr_stream_t,
        otr_operator_id_t,
        *const otr_operator_call_t,
    ) -> *mut otr_status_t,
    user: &User,
    stream: &Stream,
    operator: OperatorId,
    call: &Call<'_>,
) -> Result<()> {
    if call.scalars.len() > OTR_SCALARS_MAX {
        let text = format!("a function of a C host takes at most {OTR_SCALARS_MAX} scalars");
        return Err(Error::new(Code::UNSUPPORTED, text));
    }
    with_raw(operator, call, |raw| {
        let mut raw = *raw;
        if call.device_only {
            raw.flags |= OTR_CALL_DEVICE_ONLY;
        }
        // SAFETY: the host lets this be called from any thread until `destroy`; the raw call points into `call`.
        let status = unsafe {
            foreign_call!(
                function,
                user.pointer,
                stream.id(),
                operator.index(),
                &raw const raw
            )
        };
        // SAFETY: NULL, or a status that the function hands over.
        unsafe { otr_status_t::outcome(status) }
    })
}

api! {
    /// Registers a function for an operator, which is asked before the driver. A call asks the registration for its
    /// device first, then the one for all devices, then the driver, then a host kernel. OTR_ERR_BUSY if there is one
    /// for the same device, or for all, already; the text names both owners. With OTR_REGISTER_REPLACE that one ends,
    /// and its id with it. Calls that were served count for the device (otr_operator_report), or as a host kernel if
    /// an operator that the function called ran as one; what the function calls is not counted on its own. A stream
    /// that captures records what the function submits. Nodes of otr_graph_add_operator are not served: they have
    /// no stream.
    fn otr_operator_register(
        params: *const otr_operator_registration_t,
        registration: *mut otr_registration_t,
    ) {
        let out = Out::new(registration, "registration")?;
        let params = sized(params, "params")?;
        unused(params.next, 0, "params")?;
        let name = c_str(params.name, "params->name")?;
        let owner = text(params.owner, "params->owner")?;
        let function = params.function.ok_or_else(|| null("params->function"))?;
        if params.flags & !OTR_REGISTER_REPLACE != 0 {
            let text = format!(
                "params->flags {:#x} has bits without a meaning: it is 0 or OTR_REGISTER_REPLACE",
                params.flags
            );
            return Err(Error::new(Code::INVALID_ARGUMENT, text));
        }
        let device = match params.device {
            OTR_ALL_DEVICES => None,
            device => Some(hooks::runtime()?.device(device)?),
        };
        let user = Arc::new(User {
            pointer: params.user,
            destroy: params.destroy,
            taken: AtomicBool::new(false),
        });
        let called = Arc::clone(&user);
        let function = move |stream: &Stream, operator: OperatorId, call: &Call<'_>| {
            serve(function, &called, stream, operator, call)
        };
        let made = if params.flags & OTR_REGISTER_REPLACE == 0 {
            hooks::register_operator(name, device, owner, function)
        } else {
            hooks::replace_operator(name, device, owner, function)
        }?;
        user.taken.store(true, Ordering::Release);
        out.set(made.keep());
        Ok(())
    }

    /// Ends a registration. No call of its function begins after that. Calls that are running on other threads go on,
    /// and `destroy` is called when the last one is over; this call does not wait for them.
    fn otr_operator_withdraw(registration: otr_registration_t) {
        hooks::withdraw_operator(registration)
    }

    /// All registrations in force, as JSON: [{"operator", "owner", "device", "calls", "replaced"}]. `device` is null
    /// for all devices, `calls` the number of calls that were served, `replaced` the owner of the registration that
    /// it replaced, or null. Free it with otr_string_free.
    fn otr_operator_list(json: *mut *mut c_char) {
        let out = Out::new(json, "json")?;
        let json = serde_json::to_string(&hooks::operator_registrations());
        out.set(string(json.map_err(|error| Error::new(Code::INTERNAL, error.to_string()))?));
        Ok(())
    }
}
