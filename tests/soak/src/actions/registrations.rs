//! Operators that the host registers, and withdraws while other threads call them. Their functions call the library.

use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_device::Code;
use outrigger_device::sys::otr_operator_call_t;
use outrigger_ffi::*;

use super::operators::number_of;
use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, ignore, json, made, plain_call, problem};
use crate::world::World;

pub(crate) const ACTIONS: &[Action] = &[
    action("registrations", 3, register),
    action("registrations", 2, withdraw),
    action("registrations", 1, list),
];

/// Registered operators that `operators` calls, with one output and what `fill` takes.
pub(crate) const NAMES: [&CStr; 2] = [c"soak::fill", c"soak::fill_too"];

/// Functions that were registered, and those that were given back.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);

fn register(actor: &mut Actor) {
    let name = *actor.rng.choice(&NAMES).unwrap_or(&c"soak::fill");
    let device = match actor.chance(2) {
        true => OTR_ALL_DEVICES,
        false => actor.any_device(),
    };
    let params = otr_operator_registration_t {
        struct_size: size_of::<otr_operator_registration_t>(),
        next: null(),
        name: name.as_ptr(),
        owner: c"soak".as_ptr(),
        function: Some(serve),
        user: null_mut(),
        destroy: Some(ended),
        device,
        flags: actor.rng.u32(..2) * OTR_REGISTER_REPLACE,
    };
    if let Ok(id) = made(|out| call!(operator_register(&params, out))) {
        BEGUN.fetch_add(1, Ordering::SeqCst);
        actor.world.registrations.add(id);
    }
}

fn withdraw(actor: &mut Actor) {
    // One that is taken is withdrawn: each function has to be given back in the end.
    let id = match actor.chance(40) {
        true => None,
        false => actor.world.registrations.take(&mut actor.rng),
    };
    let id = id.map_or_else(|| actor.garbage(), |id| *id);
    if call!(operator_withdraw(id)).is_ok() {
        actor.world.gone(id);
    }
}

fn list(_: &mut Actor) {
    ignore(json(|out| call!(operator_list(out))));
}

unsafe extern "C" fn ended(_: *mut c_void) {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

/// Passes the call on to what comes after it, or to `fill`; sometimes it declines.
unsafe extern "C" fn serve(
    _: *mut c_void,
    stream: otr_stream_t,
    operator: otr_operator_id_t,
    call: *const otr_operator_call_t,
) -> *mut otr_status_t {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let to = match CALLS.fetch_add(1, Ordering::Relaxed) % 4 {
        0 => return plain_call!(status_new(Code::UNSUPPORTED.0, c"not this time".as_ptr())),
        1 => operator,
        _ => number_of(c"fill").unwrap_or(operator),
    };
    match call!(operator_call(stream, to, call)) {
        Ok(()) => null_mut(),
        Err(code) => plain_call!(status_new(code.0, c"a part has failed".as_ptr())),
    }
}

/// Ends all registrations of a round, when no thread calls any more.
pub(crate) fn end_all(world: &World) {
    for id in world.registrations.take_all() {
        // Registrations that were replaced have ended before.
        let _ = call!(operator_withdraw(*id));
    }
    let (begun, ended) = (BEGUN.load(Ordering::SeqCst), ENDED.load(Ordering::SeqCst));
    if begun != ended {
        problem(&format!(
            "operator_register: {begun} functions were registered, and {ended} given back"
        ));
    }
}
