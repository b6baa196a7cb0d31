//! Histories with contexts, labels, traces of memory, and traces of everything.

use std::ffi::{CString, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use outrigger_ffi::*;

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, problem};

pub(crate) const ACTIONS: &[Action] = &[
    action("history", 3, start),
    action("history", 2, stop),
    action("labels", 6, label),
    action("traces", 1, trace_memory),
    action("traces", 1, trace_all),
];

/// Contexts that were captured, and those that were released.
static CAPTURED: AtomicU64 = AtomicU64::new(0);
static RELEASED: AtomicU64 = AtomicU64::new(0);

/// Contexts that nobody has released.
pub(crate) fn contexts() -> u64 {
    CAPTURED
        .load(Ordering::SeqCst)
        .wrapping_sub(RELEASED.load(Ordering::SeqCst))
}

unsafe extern "C" fn capture(_user: *mut c_void) -> u64 {
    CAPTURED.fetch_add(1, Ordering::SeqCst) + 1
}

unsafe extern "C" fn release(_user: *mut c_void, context: u64) {
    if context == 0 || context > CAPTURED.load(Ordering::SeqCst) {
        problem("a context is released that was not captured");
    }
    RELEASED.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn frames(
    _user: *mut c_void,
    context: u64,
    frame: otr_frame_fn,
    to: *mut c_void,
) {
    let Some(frame) = frame else { return };
    // SAFETY: called with what it was given, and strings that live as long as the process.
    unsafe {
        frame(to, c"soak.rs".as_ptr(), context as u32, c"outer".as_ptr());
        frame(to, std::ptr::null(), 0, std::ptr::null());
    }
}

fn start(actor: &mut Actor) {
    let device = if actor.chance(4) {
        OTR_HOST_MEMORY
    } else {
        actor.any_device()
    };
    let contexts = actor.rng.bool();
    let options = otr_history_options_t {
        struct_size: size_of::<otr_history_options_t>(),
        entries: actor.rng.u64(..2000),
        flags: actor.rng.u32(..3),
        reserved: u32::from(actor.chance(20)),
        capture: contexts.then_some(capture),
        release: contexts.then_some(release),
        frames: contexts.then_some(frames),
        user: std::ptr::null_mut(),
    };
    let _ = call!(memory_history_start(device, &options));
}

fn stop(actor: &mut Actor) {
    let device = if actor.chance(4) {
        OTR_HOST_MEMORY
    } else {
        actor.any_device()
    };
    if actor.rng.bool() {
        let _ = call!(memory_history_stop(device));
    } else {
        let _ = call!(memory_history_clear(device));
    }
}

fn label(actor: &mut Actor) {
    let names = [c"weights", c"activations", c"", c"\xff"];
    let name = *actor.rng.choice(&names).unwrap_or(&c"weights");
    if actor.rng.bool() && actor.labels < 8 {
        if call!(memory_label_push(name.as_ptr())).is_ok() {
            actor.labels += 1;
        }
        return;
    }
    match call!(memory_label_pop()) {
        Ok(()) if actor.labels == 0 => problem("memory_label_pop: pops what was not pushed"),
        Ok(()) => actor.labels -= 1,
        Err(_) if actor.labels > 0 => problem("memory_label_pop: a label that was pushed is gone"),
        Err(_) => (),
    }
}

/// A file of this thread, or one in a folder that is not there.
fn path(actor: &mut Actor, kind: &str) -> CString {
    let folder = if actor.chance(6) {
        "/no such folder"
    } else {
        &actor.world.folder
    };
    CString::new(format!("{folder}/{kind}-{}", actor.rng.u32(..4))).expect("no NUL")
}

fn trace_memory(actor: &mut Actor) {
    let device = actor.any_device();
    let path = path(actor, "memory");
    match actor.rng.u32(..3) {
        0 => drop(call!(memory_trace_start(device, path.as_ptr()))),
        1 => drop(call!(memory_trace_stop(device))),
        _ => {
            // The mark waits for the device.
            let mark = || call!(memory_trace_mark(device, c"step".as_ptr())).is_ok();
            actor.world.clearing(mark);
        }
    }
}

fn trace_all(actor: &mut Actor) {
    let path = path(actor, "trace");
    let _ = if actor.rng.bool() {
        call!(trace_begin(path.as_ptr()))
    } else {
        call!(trace_end())
    };
}
