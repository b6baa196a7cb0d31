//! The runtime itself: its drivers, its devices, and waiting for a whole device.

use std::ffi::CStr;
use std::ptr::null;

use outrigger_ffi::{OTR_ALL_DEVICES, OTR_TUNE_AGAIN, otr_device_info_t, otr_tune_params_t};

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, filled, ignore, json, made, plain_call, problem};

pub(crate) const ACTIONS: &[Action] = &[
    action("runtime", 4, ask),
    action("runtime", 1, load),
    action("runtime", 1, choose),
    action("runtime", 1, keep),
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

/// Variants that nobody can measure: there is no worker, or it does not start.
fn choose(actor: &mut Actor) {
    let sizes = [c"small", c"large", c""];
    let candidates = [c"one".as_ptr(), c"two".as_ptr()];
    let worker = [c"/nowhere/worker".as_ptr(), null()];
    let params = otr_tune_params_t {
        struct_size: size_of::<otr_tune_params_t>(),
        next: null(),
        flags: actor.rng.u32(..OTR_TUNE_AGAIN + 3),
        reserved: 0,
        operation: c"soak".as_ptr(),
        sizes: actor.rng.choice(&sizes).unwrap_or(&c"").as_ptr(),
        dtype: c"f32".as_ptr(),
        code: c"0".as_ptr(),
        candidates: candidates.as_ptr(),
        candidate_count: candidates.len() as u32,
        limit_ms: 10,
        worker: if actor.chance(4) {
            worker.as_ptr()
        } else {
            null()
        },
        task: c"[]".as_ptr(),
    };
    let (device, mut times) = (actor.any_device(), [7_u64; 2]);
    let chosen = made::<u32>(|out| call!(tune_choose(device, &params, out, times.as_mut_ptr())));
    let right = match chosen {
        Ok(chosen) => (chosen, times) == (0, [0; 2]),
        Err(_) => times == [7; 2],
    };
    if !right {
        problem(&format!(
            "tune_choose: {chosen:?} with {times:?} of nothing"
        ));
    }
}

/// Values that tell their key, kept by all threads at once.
fn keep(actor: &mut Actor) {
    let mark = actor.rng.u8(..8);
    let (key, value) = (
        [b's', b'o', b'a', b'k', mark],
        vec![mark; 8 * usize::from(mark)],
    );
    let (place, bytes) = (key.as_ptr().cast(), value.len() as u64);
    if actor.chance(2) {
        let kept = made::<u32>(|out| call!(store_put(place, 5, value.as_ptr().cast(), bytes, out)));
        if kept.is_ok_and(|kept| kept > 1) {
            problem("store_put: it is neither kept nor not kept");
        }
        return;
    }
    let mut found = vec![0xEE; actor.rng.usize(..80)];
    let room = found.len() as u64;
    let into = found.as_mut_ptr().cast();
    let size = made::<u64>(|out| call!(store_get(place, 5, into, room, out)));
    let filled = match size {
        Ok(size) if size != bytes => {
            problem("store_get: a value has another size than the one that was kept");
            return;
        }
        Ok(size) if size <= room => value.len(),
        _ => 0,
    };
    if found[..filled] != value[..filled] || found[filled..].iter().any(|byte| *byte != 0xEE) {
        problem("store_get: other bytes were written than those of the value");
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
