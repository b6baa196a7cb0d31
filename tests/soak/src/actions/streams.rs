//! Streams: created, queried, waited for, and destroyed while other threads use them.

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, ignore, made};

pub(crate) const ACTIONS: &[Action] = &[
    action("streams", 6, create),
    action("streams", 3, destroy),
    action("streams", 12, ask),
    action("streams", 6, synchronize),
    action("streams", 8, current),
    action("streams", 3, shared),
];

fn create(actor: &mut Actor) {
    actor.add_plain(None);
}

/// Destroys one, whoever else is about to use it. Blocks that it is home to can still be freed.
fn destroy(actor: &mut Actor) {
    let Some(stream) = actor.world.plain.take(&mut actor.rng) else {
        return;
    };
    if call!(stream_destroy(stream.id)).is_ok() {
        actor.world.gone(stream.id);
    } else if stream.owned {
        actor.world.plain.put(stream);
    }
}

fn ask(actor: &mut Actor) {
    let stream = actor.plain(None).map(|stream| stream.id);
    let stream = actor.or_garbage(stream);
    let _ = match actor.rng.u32(..5) {
        0 => made::<u32>(|out| call!(stream_device(stream, out))).map(drop),
        1 => made::<i32>(|out| call!(stream_priority(stream, out))).map(drop),
        2 => call!(stream_flush(stream)),
        _ => made::<u32>(|out| call!(stream_query(stream, out))).map(drop),
    };
}

fn synchronize(actor: &mut Actor) {
    let stream = actor.plain(None).map(|stream| stream.id);
    let stream = actor.or_garbage(stream);
    let _ = call!(stream_synchronize(stream));
}

fn current(actor: &mut Actor) {
    let device = actor.any_device();
    match actor.rng.u32(..4) {
        0 => {
            let stream = actor.plain(None).map(|stream| stream.id);
            let stream = actor.or_garbage(stream);
            let _ = call!(stream_set_current(stream));
        }
        1 => ignore(made::<u64>(|out| call!(stream_current(device, out)))),
        2 => drop(call!(device_set_current(device))),
        _ => ignore(made::<u32>(|out| call!(device_current(out)))),
    }
}

/// A second stream over the queue of another one, as another library has it, with work in it.
fn shared(actor: &mut Actor) {
    let device = actor.any_device();
    ignore(made::<u32>(|out| {
        call!(device_can_access_peer(device, 0, out))
    }));
    // The queue lives as long as the second stream: meanwhile nobody else destroys the first one.
    let first = actor.world.plain.take(&mut actor.rng);
    let stream = actor.or_garbage(first.as_ref().map(|stream| stream.id));
    if let Ok(native) = made::<u64>(|out| call!(stream_native(stream, out)))
        // The queue may be one of another device.
        && let Ok(second) = made::<u64>(|out| call!(stream_from_native(device, native, out)))
    {
        let _ = call!(stream_flush(second));
        let _ = call!(stream_destroy(second));
    }
    if let Some(first) = first {
        actor.world.plain.put(first);
    }
}
