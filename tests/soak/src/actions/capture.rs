//! Captures with memory, by one thread each. Meanwhile other threads query these streams, join them to
//! their captures, make them fail and destroy them. A recipe is a number: the same number records the
//! same nodes with other memory.

use std::ptr::null;
use std::sync::atomic::AtomicBool;

use fastrand::Rng;

use super::commands::{DEVICE_TO_DEVICE, HOST_TO_DEVICE, SOURCE};
use super::{Action, action};
use crate::actor::Actor;
use crate::guest;
use crate::library::{call, made};
use crate::world::{Graph, Stream};

pub(crate) const ACTIONS: &[Action] = &[action("capture", 10, capture)];

/// Bytes of what a recipe's graph works on.
pub(crate) const BYTES: u64 = 4096;
pub(crate) const I64: u32 = 6;
pub(crate) const IF: u32 = 1;
pub(crate) const WHILE: u32 = 2;

fn capture(actor: &mut Actor) {
    let device = actor.device();
    // An even number, so that it is known how the graph was made.
    let recipe = actor.rng.u64(..) & !1;
    if actor.world.graphs.len() >= super::chaos::GRAPHS {
        return super::execs::destroy_graph(actor);
    }
    if let Some(id) = record(actor, recipe, device) {
        let used = AtomicBool::new(false);
        actor.world.graphs.add(Graph {
            id,
            device,
            recipe: Some(recipe),
            used,
        });
    }
}

/// Memory that no work uses any more, on a stream of the caller's.
pub(crate) fn settled(stream: &Stream, bytes: u64) -> Option<u64> {
    let address = made(|out| call!(memory_alloc(stream.device, bytes, stream.id, out))).ok()?;
    if super::private::settle(stream.id) {
        return Some(address);
    }
    free(stream.device, address);
    None
}

pub(crate) fn free(device: u32, address: u64) {
    if let Err(code) = call!(memory_free(device, address)) {
        crate::library::problem(&format!(
            "memory_free: memory in use cannot be freed: {code}"
        ));
    }
}

/// A graph that was recorded as the recipe says.
pub(crate) fn record(actor: &mut Actor, recipe: u64, device: u32) -> Option<u64> {
    let stream = actor.world.stream(device, 0)?;
    let graph = settled(&stream, BYTES).and_then(|memory| {
        let graph = record_on(actor, recipe, &stream, memory);
        // The graph that was recorded keeps the memory.
        free(device, memory);
        graph
    });
    if call!(stream_destroy(stream.id)).is_ok() {
        actor.world.gone(stream.id);
    }
    graph
}

fn record_on(actor: &mut Actor, recipe: u64, stream: &Stream, memory: u64) -> Option<u64> {
    let mut shape = Rng::with_seed(recipe);
    let (id, device) = (stream.id, stream.device);
    let mode = actor.rng.u32(..3);
    let pool = if actor.chance(4) {
        super::pools::handle_of(actor, device)
    } else {
        0
    };
    call!(capture_begin(id, mode, pool)).ok()?;
    let seen = actor.world.sessions.add(Stream {
        id,
        device,
        owned: true,
    });
    let inner = made(|out| call!(memory_alloc(device, BYTES, id, out))).ok();
    let mut freed = false;
    for _ in 0..shape.u32(1..8) {
        match shape.u32(..10) {
            9 => fork(actor, &mut shape, device, id),
            8 if inner.is_some() && !freed => {
                // The order of the capture: what was recorded before may use it.
                freed = call!(memory_free(device, inner.unwrap_or(0))).is_ok();
            }
            _ => node(actor, &mut shape, id, memory, inner.filter(|_| !freed)),
        }
    }
    let graph = made(|out| call!(capture_end(id, out)));
    actor.world.sessions.remove(&seen);
    // Memory that was handed out is the host's, however the capture has ended (H11).
    if let Some(inner) = inner.filter(|_| !freed) {
        free(device, inner);
    }
    let graph = graph.ok()?;
    let _ = call!(graph_name_buffer(graph, c"x".as_ptr(), memory, BYTES));
    for node in 0..3 {
        if call!(graph_name_scalar(graph, c"alpha".as_ptr(), node, 0)).is_ok() {
            break;
        }
    }
    Some(graph)
}

/// Records one node on `memory`, and on memory of the capture.
fn node(actor: &mut Actor, shape: &mut Rng, stream: u64, memory: u64, inner: Option<u64>) {
    let other = inner.unwrap_or(memory);
    match shape.u32(..9) {
        0 => {
            let pattern = 7u64;
            let _ = call!(fill(stream, other, BYTES, (&raw const pattern).cast(), 8));
        }
        1 => guest::kernel(shape, memory, 4, |kernel| {
            let _ = call!(host_kernel_launch(stream, kernel));
        }),
        2 if other != memory => drop(call!(copy(stream, other, memory, BYTES, DEVICE_TO_DEVICE))),
        3 => {
            let source = SOURCE.as_ptr() as u64;
            let _ = call!(copy(stream, memory, source, BYTES, HOST_TO_DEVICE));
        }
        4 => {
            let world = actor.world;
            let _ = guest::host_node(world, shape, u32::MAX, &[memory], |node| {
                call!(host_node(stream, node))
            });
        }
        5 => conditional(actor, shape, stream, memory),
        6 => {
            let label = if shape.bool() {
                c"phase".as_ptr()
            } else {
                null()
            };
            let _ = call!(capture_label(stream, label));
        }
        _ => operator(actor, shape, &[memory, memory, other], |id, operator| {
            let _ = call!(operator_call(stream, id, operator));
        }),
    }
}

/// An operator of the recipe, whatever the thread's own numbers are.
pub(crate) fn operator(
    actor: &mut Actor,
    shape: &mut Rng,
    addresses: &[u64],
    take: impl FnOnce(u32, &outrigger_device::sys::otr_operator_call_t),
) {
    std::mem::swap(&mut actor.rng, shape);
    super::operators::vectors(actor, addresses, BYTES / 8, take);
    std::mem::swap(&mut actor.rng, shape);
}

/// A stream that joins the capture and is joined again, with work that needs no memory.
fn fork(actor: &mut Actor, shape: &mut Rng, device: u32, stream: u64) {
    let Some(other) = actor.world.stream(device, 0) else {
        return;
    };
    let event = made(|out| call!(event_create(device, 0, out)));
    if let Ok(event) = event {
        let _ = call!(event_record(event, stream));
        if call!(stream_wait_event(other.id, event)).is_ok() {
            let seen = actor.world.sessions.add(Stream {
                id: other.id,
                device,
                owned: true,
            });
            for _ in 0..shape.u32(1..3) {
                guest::kernel(shape, 0, 0, |kernel| {
                    let _ = call!(host_kernel_launch(other.id, kernel));
                });
            }
            let _ = call!(event_record(event, other.id));
            let _ = call!(stream_wait_event(stream, event));
            actor.world.sessions.remove(&seen);
        }
        let _ = call!(event_destroy(event));
    }
    let _ = call!(stream_destroy(other.id));
}

/// A graph that sets the predicate to 0, so that a loop around it ends.
pub(crate) fn body(device: u32, predicate: u64) -> Option<u64> {
    let graph = made(|out| call!(graph_create(device, 0, out))).ok()?;
    let zero = 0u64;
    let pattern = (&raw const zero).cast();
    let filled = made(|out| {
        call!(graph_add_fill(
            graph,
            null(),
            0,
            predicate,
            8,
            pattern,
            8,
            out
        ))
    });
    if filled.is_ok() {
        return Some(graph);
    }
    let _ = call!(graph_destroy(graph));
    None
}

fn conditional(actor: &mut Actor, shape: &mut Rng, stream: u64, predicate: u64) {
    let set = u64::from(shape.bool());
    let kind = *shape.choice(&[IF, WHILE, 3]).unwrap_or(&IF);
    let _ = call!(fill(stream, predicate, 8, (&raw const set).cast(), 8));
    let device = made::<u32>(|out| call!(stream_device(stream, out)));
    let Some(body) = device.ok().and_then(|device| body(device, predicate)) else {
        return;
    };
    let bodies = [body];
    let _ = call!(capture_conditional(
        stream,
        kind,
        predicate,
        I64,
        bodies.as_ptr(),
        1
    ));
    if call!(graph_destroy(body)).is_ok() {
        actor.world.gone(body);
    }
}
