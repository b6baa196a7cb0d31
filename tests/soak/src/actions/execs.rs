//! Executable graphs: replayed, bound, updated, measured and destroyed, all at the same time.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outrigger_ffi::otr_graph_exec_info_t;

use super::capture::{BYTES, free, settled};
use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, filled, ignore, json, made};
use crate::world::{Exec, Stream};

/// Executable graphs at most.
const MOST: usize = 16;

pub(crate) const ACTIONS: &[Action] = &[
    action("graphs", 10, instantiate),
    action("graphs", 3, destroy_graph),
    action("graphs", 3, destroy),
    action("graphs", 30, replay),
    action("graphs", 6, bind),
    action("graphs", 4, update),
    action("graphs", 8, look),
    action("graphs", 1, measure),
];

fn instantiate(actor: &mut Actor) {
    if actor.world.execs.len() >= MOST {
        return destroy(actor);
    }
    let Some(graph) = actor.world.graphs.pick(&mut actor.rng) else {
        return;
    };
    // Two executables of one graph use the same memory: their replays may not overlap.
    if graph.recipe.is_some() && graph.used.swap(true, Ordering::AcqRel) {
        return;
    }
    let flags = *actor
        .rng
        .choice(&[0, 0, 0, 1, 2, 3, 4, 6, 99])
        .unwrap_or(&0);
    let id = actor.or_garbage(Some(graph.id));
    match made(|out| call!(graph_instantiate(id, flags, out))) {
        Ok(id) => {
            let (device, recipe) = (graph.device, graph.recipe);
            actor.world.execs.add(Exec { id, device, recipe });
        }
        Err(_) => graph.used.store(false, Ordering::Release),
    }
}

pub(crate) fn destroy_graph(actor: &mut Actor) {
    if let Some(graph) = actor.world.graphs.take(&mut actor.rng)
        && call!(graph_destroy(graph.id)).is_ok()
    {
        actor.world.gone(graph.id);
    }
}

fn destroy(actor: &mut Actor) {
    if let Some(exec) = actor.world.execs.take(&mut actor.rng)
        && call!(graph_exec_destroy(exec.id)).is_ok()
    {
        actor.world.gone(exec.id);
    }
}

/// Any executable graph, and a stream that may replay it: never one that captures, for what has memory
/// would run in the other graph's replays, too.
fn any(actor: &mut Actor) -> Option<(Arc<Exec>, Arc<Stream>)> {
    let exec = actor.world.execs.pick(&mut actor.rng)?;
    let chaos = exec.recipe.is_none() && actor.rng.bool();
    let stream = if chaos {
        actor.world.chaos.pick(&mut actor.rng)?
    } else {
        let device = Some(exec.device).filter(|_| !actor.chance(30));
        actor.plain(device)?
    };
    Some((exec, stream))
}

fn replay(actor: &mut Actor) {
    let Some((exec, stream)) = any(actor) else {
        return;
    };
    for _ in 0..actor.rng.u32(1..4) {
        let (exec, stream) = (
            actor.or_garbage(Some(exec.id)),
            actor.or_garbage(Some(stream.id)),
        );
        let _ = call!(graph_replay(exec, stream));
    }
}

/// Puts other memory or another number in the place of what has a name. The memory is freed at once: the
/// graph keeps it.
fn bind(actor: &mut Actor) {
    let Some(exec) = actor.world.execs.pick(&mut actor.rng) else {
        return;
    };
    let id = actor.or_garbage(Some(exec.id));
    if actor.rng.bool() {
        let slot = made::<u32>(|out| call!(graph_slot(id, c"alpha".as_ptr(), out)));
        let value = super::operators::number(2.0);
        let _ = call!(graph_bind_scalar(id, slot.unwrap_or(77), &value));
        return;
    }
    let Some(stream) = actor.private(exec.device) else {
        return;
    };
    // Too little now and then, which is an error.
    let bytes = if actor.chance(8) { 64 } else { BYTES };
    let Some(memory) = settled(&stream, bytes) else {
        return;
    };
    let slot = made::<u32>(|out| call!(graph_slot(id, c"x".as_ptr(), out)));
    let _ = call!(graph_bind(id, slot.unwrap_or(77), memory));
    free(exec.device, memory);
}

/// Takes over a graph of the same shape; now and then of another one.
fn update(actor: &mut Actor) {
    let Some(exec) = actor.world.execs.pick(&mut actor.rng) else {
        return;
    };
    let Some(mut recipe) = exec.recipe else {
        return;
    };
    if actor.chance(6) {
        recipe = actor.rng.u64(..);
    }
    let graph = if recipe % 2 == 0 {
        super::capture::record(actor, recipe, exec.device)
    } else {
        super::build::construct(actor, recipe, exec.device)
    };
    let Some(graph) = graph else { return };
    let _ = call!(graph_update(exec.id, graph));
    if call!(graph_destroy(graph)).is_ok() {
        actor.world.gone(graph);
    }
}

fn look(actor: &mut Actor) {
    let exec = actor.world.execs.pick(&mut actor.rng).map(|exec| exec.id);
    let exec = actor.or_garbage(exec);
    let whole = size_of::<otr_graph_exec_info_t>();
    let size = if actor.chance(4) {
        actor.rng.usize(..whole + 1)
    } else {
        whole
    };
    let _ = filled::<otr_graph_exec_info_t>(size, |info| call!(graph_exec_info(exec, info)));
}

fn measure(actor: &mut Actor) {
    let Some((exec, stream)) = any(actor) else {
        return;
    };
    let (exec, stream) = (
        actor.or_garbage(Some(exec.id)),
        actor.or_garbage(Some(stream.id)),
    );
    match actor.rng.u32(..3) {
        0 => ignore(json(|out| call!(graph_profile(exec, stream, out)))),
        1 => ignore(json(|out| call!(graph_cost(exec, stream, out)))),
        _ => drop(call!(graph_check(exec, stream))),
    }
}
