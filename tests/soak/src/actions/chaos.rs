//! Captures that nobody coordinates: any thread begins and ends them on any of these streams, joins
//! streams to them, and destroys streams that record. They use only memory that is not freed before the
//! round ends.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use outrigger_ffi::otr_capture_info_t;

use super::{Action, action};
use crate::actor::Actor;
use crate::guest;
use crate::library::{call, filled, made};
use crate::world::{Event, Graph, Stream};

/// Streams of a device, events, and graphs at most.
const STREAMS: usize = 4;
const EVENTS: usize = 12;
pub(crate) const GRAPHS: usize = 32;

pub(crate) const ACTIONS: &[Action] = &[
    action("chaos", 4, streams),
    action("chaos", 4, events),
    action("chaos", 12, begin),
    action("chaos", 12, end),
    action("chaos", 20, record),
    action("chaos", 20, join),
    action("chaos", 12, submit),
    action("chaos", 10, look),
    action("chaos", 8, wait),
];

/// A stream that may capture at any moment: of these, or one on which another thread captures memory.
fn any(actor: &mut Actor) -> Option<Arc<Stream>> {
    if actor.chance(3)
        && let Some(stream) = actor.world.sessions.pick(&mut actor.rng)
    {
        return Some(stream);
    }
    actor.world.chaos.pick(&mut actor.rng)
}

fn handle(actor: &mut Actor) -> u64 {
    let stream = any(actor).map(|stream| stream.id);
    actor.or_garbage(stream)
}

fn streams(actor: &mut Actor) {
    let device = actor.device();
    let chaos = &actor.world.chaos;
    if chaos.len() < STREAMS * actor.world.devices as usize {
        if let Some(stream) = actor.world.stream(device, 0) {
            chaos.add(stream);
        }
        return;
    }
    let gone = if actor.chance(4) {
        any(actor)
    } else {
        chaos.take(&mut actor.rng)
    };
    if let Some(stream) = gone
        && call!(stream_destroy(stream.id)).is_ok()
    {
        actor.world.gone(stream.id);
        chaos.remove(&stream);
    }
}

fn events(actor: &mut Actor) {
    let device = actor.device();
    let points = &actor.world.points;
    if points.len() < EVENTS {
        if let Ok(id) = made(|out| call!(event_create(device, 0, out))) {
            points.add(Event { id, device });
        }
    } else if let Some(event) = points.take(&mut actor.rng)
        && call!(event_destroy(event.id)).is_ok()
    {
        actor.world.gone(event.id);
    }
}

fn begin(actor: &mut Actor) {
    // A session's stream captures already, or is about to be destroyed.
    let Some(stream) = actor.world.chaos.pick(&mut actor.rng) else {
        return;
    };
    let mode = actor.rng.u32(..4);
    let pool = if actor.chance(3) {
        super::pools::handle_of(actor, stream.device)
    } else {
        0
    };
    let id = actor.or_garbage(Some(stream.id));
    let _ = call!(capture_begin(id, mode, pool));
}

fn end(actor: &mut Actor) {
    let Some(stream) = actor.world.chaos.pick(&mut actor.rng) else {
        return;
    };
    let id = actor.or_garbage(Some(stream.id));
    if actor.chance(6) {
        let _ = call!(capture_abort(id, c"a thread has changed its mind".as_ptr()));
    }
    if let Ok(graph) = made(|out| call!(capture_end(id, out))) {
        keep(actor, graph, stream.device);
    }
}

/// Keeps a graph without memory, or destroys it.
fn keep(actor: &mut Actor, id: u64, device: u32) {
    if actor.world.graphs.len() < GRAPHS {
        let used = AtomicBool::new(false);
        actor.world.graphs.add(Graph {
            id,
            device,
            recipe: None,
            used,
        });
    } else {
        let _ = call!(graph_destroy(id));
    }
}

fn record(actor: &mut Actor) {
    let event = actor
        .world
        .points
        .pick(&mut actor.rng)
        .map(|event| event.id);
    let (event, stream) = (actor.or_garbage(event), handle(actor));
    let _ = call!(event_record(event, stream));
}

fn join(actor: &mut Actor) {
    let event = actor
        .world
        .points
        .pick(&mut actor.rng)
        .map(|event| event.id);
    let (event, stream) = (actor.or_garbage(event), handle(actor));
    let _ = call!(stream_wait_event(stream, event));
}

fn submit(actor: &mut Actor) {
    let stream = handle(actor);
    match actor.rng.u32(..5) {
        0 => {
            let _ = call!(host_call(
                stream,
                Some(guest::counted),
                std::ptr::null_mut()
            ));
        }
        1 => {
            // A graph that is captured here may be replayed by several executables at a time.
            let _ = call!(copy(stream, 0, 0, 0, super::commands::DEVICE_TO_DEVICE));
        }
        2 => {
            let label = if actor.rng.bool() {
                c"part".as_ptr()
            } else {
                std::ptr::null()
            };
            let _ = call!(capture_label(stream, label));
        }
        _ => guest::kernel(&mut actor.rng, 0, 0, |kernel| {
            let _ = call!(host_kernel_launch(stream, kernel));
        }),
    }
}

fn look(actor: &mut Actor) {
    let Some(stream) = any(actor) else { return };
    let id = actor.or_garbage(Some(stream.id));
    let whole = size_of::<otr_capture_info_t>();
    let size = if actor.chance(4) {
        actor.rng.usize(..whole + 1)
    } else {
        whole
    };
    if actor.chance(4)
        && let Ok(graph) = made(|out| call!(capture_partial(id, out)))
    {
        keep(actor, graph, stream.device);
    }
    let _ = filled::<otr_capture_info_t>(size, |info| call!(capture_info(id, info)));
}

fn wait(actor: &mut Actor) {
    let stream = handle(actor);
    let event = actor
        .world
        .points
        .pick(&mut actor.rng)
        .map(|event| event.id);
    let event = actor.or_garbage(event);
    let _ = match actor.rng.u32(..6) {
        0 => call!(stream_synchronize(stream)),
        1 => call!(event_synchronize(event)),
        2 => made::<u32>(|out| call!(event_query(event, out))).map(drop),
        3 => call!(stream_set_current(stream)),
        4 => call!(stream_flush(stream)),
        _ => made::<u32>(|out| call!(stream_query(stream, out))).map(drop),
    };
}
