//! Actions that make memory scarce: limits, and caches that are given back.

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, made};

pub(crate) const ACTIONS: &[Action] = &[
    action("pressure", 2, empty_cache),
    action("pressure", 2, trim),
    action("pressure", 2, limit),
    action("pressure", 2, lift),
    action("pressure", 2, ask),
];

fn empty_cache(actor: &mut Actor) {
    let device = actor.any_device();
    let _ = call!(memory_empty_cache(device));
}

fn trim(actor: &mut Actor) {
    let device = actor.any_device();
    let keep = actor.rng.u64(..32 << 20);
    if actor.rng.bool() {
        let _ = made::<u64>(|out| call!(memory_trim(device, keep, out)));
    } else {
        let _ = call!(memory_trim(device, keep, std::ptr::null_mut()));
    }
}

fn limit(actor: &mut Actor) {
    let device = actor.any_device();
    let bytes = actor.rng.u64(16 << 20..128 << 20);
    match actor.rng.u32(..3) {
        0 => drop(call!(memory_set_limit(device, bytes))),
        1 => {
            let fraction = *actor
                .rng
                .choice(&[0.25, 0.5, 1.0, -1.0, 2.0, f64::NAN])
                .unwrap_or(&1.0);
            let _ = call!(memory_set_fraction(device, fraction));
        }
        _ => drop(call!(memory_set_process_limit(bytes))),
    }
    // Most of the time there is room.
    if actor.rng.bool() {
        lift(actor);
    }
}

fn lift(actor: &mut Actor) {
    for device in 0..actor.world.devices {
        let _ = call!(memory_set_limit(device, u64::MAX));
    }
    let _ = call!(memory_set_process_limit(u64::MAX));
}

fn ask(actor: &mut Actor) {
    let device = actor.any_device();
    let _ = made::<u64>(|out| call!(memory_limit(device, out)));
    let _ = made::<f64>(|out| call!(memory_fraction(device, out)));
}
