//! Pinned host memory: handed out, shared with streams, freed by any thread.

use outrigger_ffi::{OTR_HOST_MEMORY, otr_memory_stats_t};

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, filled, ignore, json, made, problem};
use crate::world::Pinned;

/// Allocations at most.
const MOST: usize = 24;

pub(crate) const ACTIONS: &[Action] = &[
    action("pinned", 8, alloc),
    action("pinned", 6, free),
    action("pinned", 4, ask),
    action("pinned", 4, figures),
    action("pinned", 1, manage),
];

fn alloc(actor: &mut Actor) {
    let size = actor.size();
    if actor.world.pinned.len() >= MOST {
        return free(actor);
    }
    if let Ok(pointer) = made(|out| call!(host_alloc(size, out))) {
        actor.world.pinned.add(Pinned {
            address: pointer.addr(),
            size,
        });
    }
}

fn free(actor: &mut Actor) {
    let Some(pinned) = actor.world.pinned.take_unused(&mut actor.rng) else {
        return;
    };
    let pointer = std::ptr::with_exposed_provenance_mut(pinned.address);
    if let Err(code) = call!(host_free(pointer)) {
        problem(&format!("host_free: memory in use cannot be freed: {code}"));
    }
}

fn ask(actor: &mut Actor) {
    let Some(pinned) = actor.world.pinned.pick(&mut actor.rng) else {
        return;
    };
    let within = actor.rng.u64(..pinned.size) as usize;
    let pointer = std::ptr::without_provenance_mut(pinned.address + within);
    if made(|yes| call!(host_is_pinned(pointer, yes))) != Ok(1) {
        problem("host_is_pinned: says no of memory that is");
    }
    let stream = actor.plain(None).map(|stream| stream.id);
    let stream = actor.or_garbage(stream);
    let _ = call!(host_record_stream(
        std::ptr::without_provenance_mut(pinned.address),
        stream
    ));
}

fn figures(actor: &mut Actor) {
    let whole = size_of::<otr_memory_stats_t>();
    let size = if actor.chance(4) {
        actor.rng.usize(..whole + 1)
    } else {
        whole
    };
    if actor.chance(4) {
        ignore(json(|out| call!(memory_holders(OTR_HOST_MEMORY, 3, out))));
    } else {
        ignore(filled::<otr_memory_stats_t>(size, |out| {
            call!(host_stats(out))
        }));
    }
}

fn manage(actor: &mut Actor) {
    let _ = match actor.rng.u32(..5) {
        0 => call!(host_empty_cache()),
        1 => call!(host_reset_peak()),
        2 => call!(host_reset_accumulated()),
        3 => call!(host_set_limit(actor.rng.u64(1 << 20..64 << 20))),
        _ => call!(host_set_limit(u64::MAX)),
    };
}
