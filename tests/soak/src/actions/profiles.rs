//! Profiles: any thread starts and ends one, while the others submit work that is noted in it.

use std::ffi::{CStr, c_void};

use outrigger_ffi::otr_profiled_work_t;

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, ignore, made, problem};

pub(crate) const ACTIONS: &[Action] = &[
    action("profiles", 3, correlate),
    action("profiles", 2, start),
    action("profiles", 2, stop),
];

fn correlate(actor: &mut Actor) {
    let id = actor.rng.u64(..);
    ignore(made::<u64>(|out| call!(profile_correlate(id, out))));
}

/// Fails where a profile runs.
fn start(_: &mut Actor) {
    let _ = call!(profile_start());
}

/// Fails where none does.
fn stop(actor: &mut Actor) {
    let mut devices = 0;
    let user: *mut u32 = &mut devices;
    let _ = call!(profile_stop(Some(told), user.cast()));
    if devices > actor.world.devices {
        problem("profile_stop: work of a device that is none");
    }
}

/// Is told a piece of work; `user` is how many devices there are at least.
unsafe extern "C" fn told(user: *mut c_void, work: *const otr_profiled_work_t) {
    // SAFETY: both live as long as the call.
    let (devices, work) = unsafe { (&mut *user.cast::<u32>(), &*work) };
    // SAFETY: as above; a name is a string.
    let name = unsafe { CStr::from_ptr(work.name) };
    if name.is_empty() || work.submit_end < work.submit_begin || work.end < work.begin {
        problem("profile_stop: work without a name, or that ends before it begins");
    }
    *devices = (*devices).max(work.device + 1);
}
