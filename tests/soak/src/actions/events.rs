//! Events of streams that do not capture: points of streams, of the same device and of others.

use outrigger_ffi::OTR_EVENT_TIMED;

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, made};
use crate::world::Event;

/// Events at most.
const MOST: usize = 24;

pub(crate) const ACTIONS: &[Action] = &[
    action("events", 8, create),
    action("events", 4, destroy),
    action("events", 20, record),
    action("events", 20, wait),
    action("events", 10, ask),
    action("events", 3, elapsed),
];

fn create(actor: &mut Actor) {
    let device = actor.any_device();
    let flags = actor.rng.u32(..3);
    if actor.world.events.len() >= MOST {
        return destroy(actor);
    }
    if let Ok(id) = made(|out| call!(event_create(device, flags, out))) {
        actor.world.events.add(Event { id, device });
    }
}

fn destroy(actor: &mut Actor) {
    if let Some(event) = actor.world.events.take(&mut actor.rng)
        && call!(event_destroy(event.id)).is_ok()
    {
        actor.world.gone(event.id);
    }
}

fn record(actor: &mut Actor) {
    let event = actor.world.events.pick(&mut actor.rng);
    // Now and then of another device, which is an error.
    let device = event
        .as_ref()
        .map(|event| event.device)
        .filter(|_| !actor.chance(30));
    let stream = actor.plain(device).map(|stream| stream.id);
    let (event, stream) = (
        actor.or_garbage(event.map(|event| event.id)),
        actor.or_garbage(stream),
    );
    let _ = call!(event_record(event, stream));
}

fn wait(actor: &mut Actor) {
    let event = actor
        .world
        .events
        .pick(&mut actor.rng)
        .map(|event| event.id);
    let stream = actor.plain(None).map(|stream| stream.id);
    let (event, stream) = (actor.or_garbage(event), actor.or_garbage(stream));
    let _ = call!(stream_wait_event(stream, event));
}

fn ask(actor: &mut Actor) {
    let event = actor
        .world
        .events
        .pick(&mut actor.rng)
        .map(|event| event.id);
    let event = actor.or_garbage(event);
    if actor.chance(3) {
        let _ = call!(event_synchronize(event));
    } else {
        let _ = made::<u32>(|out| call!(event_query(event, out)));
    }
}

/// Between two that were recorded and have passed, or between any.
fn elapsed(actor: &mut Actor) {
    let device = actor.device();
    let Some(stream) = actor.plain(Some(device)) else {
        return;
    };
    let mut pair = [0; 2];
    for event in &mut pair {
        let Ok(made) = made(|out| call!(event_create(device, OTR_EVENT_TIMED, out))) else {
            return;
        };
        *event = made;
        let _ = call!(event_record(made, stream.id));
    }
    let _ = call!(event_synchronize(pair[1]));
    let _ = made::<f64>(|out| call!(event_elapsed(pair[0], pair[1], out)));
    for event in pair {
        if call!(event_destroy(event)).is_ok() {
            actor.world.gone(event);
        }
    }
}
