//! The runtime itself: its drivers, its devices, and waiting for a whole device.

use std::ffi::CStr;

use outrigger_ffi::{OTR_ALL_DEVICES, otr_device_info_t};

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, filled, ignore, json, made, plain_call, problem};

pub(crate) const ACTIONS: &[Action] = &[
    action("runtime", 4, ask),
    action("runtime", 1, load),
    action("synchronize", 3, synchronize),
];

fn ask(actor: &mut Actor) {
    let device = actor.any_device();
    let whole = size_of::<otr_device_info_t>();
    let size = if actor.chance(4) {
        actor.rng.usize(..whole + 1)
    } else {
        whole
    };
    match actor.rng.u32(..5) {
        0 => drop(call!(runtime_init())),
        1 => ignore(json(|out| call!(load_report(out)))),
        2 => {
            let count = made::<u32>(|out| call!(device_count(out)));
            if count.is_ok_and(|count| count < actor.world.devices) {
                problem("device_count: devices are gone");
            }
        }
        3 => {
            // SAFETY: it lives as long as the process.
            let version = unsafe { CStr::from_ptr(plain_call!(version())) };
            if version.to_bytes().is_empty() {
                problem("version: no text");
            }
        }
        _ => ignore(filled::<otr_device_info_t>(size, |info| {
            call!(device_info(device, info))
        })),
    }
}

/// Drivers that are none. One that is a driver is loaded when a round begins, since its devices stay. Default drivers are
/// named too late.
fn load(actor: &mut Actor) {
    let specs = [c"no_such_driver", c"host?face=transparent", c"", c"\xff"];
    let spec = *actor.rng.choice(&specs).unwrap_or(&c"no_such_driver");
    if actor.chance(4) {
        let _ = call!(driver_default(spec.as_ptr()));
    } else {
        let _ = call!(driver_load(spec.as_ptr()));
    }
}

fn synchronize(actor: &mut Actor) {
    let device = if actor.chance(4) {
        OTR_ALL_DEVICES
    } else {
        actor.device()
    };
    actor.world.synchronize(device);
}
