//! Observers that call the library: some query objects that are in use, and allocate. Others are asked
//! for memory, and free some. They are removed while they run on other threads.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use fastrand::Rng;
use outrigger_ffi::*;

use super::memory::pointed;
use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, filled, ignore, made, problem, text};
use crate::world::World;

/// Observers at most: each slows down all.
const MOST: usize = 4;

pub(crate) const ACTIONS: &[Action] =
    &[action("observers", 4, add), action("observers", 3, remove)];

thread_local! {
    /// Observers that run on this thread: what one does is not told to itself without end.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

fn add(actor: &mut Actor) {
    if actor.world.observers.len() >= MOST {
        return remove(actor);
    }
    let user = std::ptr::from_ref(actor.world).cast_mut().cast();
    let observer = if actor.chance(3) {
        made(|out| call!(observer_add_pressure(Some(asked), user, out)))
    } else {
        // No kinds, and kinds that are none, are errors.
        let kinds = actor.rng.u32(..2 * OTR_OBSERVE_HOST_KERNEL + 4);
        made(|out| call!(observer_add(kinds, Some(told), user, out)))
    };
    if let Ok(observer) = observer {
        actor.world.observers.add(observer);
    }
}

fn remove(actor: &mut Actor) {
    let observer = actor
        .world
        .observers
        .take(&mut actor.rng)
        .map(|observer| *observer);
    let observer = actor.or_garbage(observer);
    if call!(observer_remove(observer)).is_ok() {
        actor.world.gone(observer);
    }
}

/// Runs in an observer, but not in one of a call that an observer makes.
fn once(user: *mut c_void, act: impl FnOnce(&'static World, &mut Rng)) {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    if DEPTH.get() > 0 {
        return;
    }
    DEPTH.set(1);
    // SAFETY: the world of a round lives as long as the process.
    let world = unsafe { &*user.cast::<World>() };
    act(
        world,
        &mut Rng::with_seed(CALLS.fetch_add(1, Ordering::Relaxed)),
    );
    DEPTH.set(0);
}

unsafe extern "C" fn told(user: *mut c_void, observation: *const otr_observation_t) {
    // SAFETY: an observation lives as long as the call.
    let seen = unsafe { &*observation };
    let known = seen.kind.is_power_of_two() && seen.kind <= OTR_OBSERVE_HOST_KERNEL;
    if !known || seen.struct_size < size_of::<otr_observation_t>() {
        problem("an observation is of no kind, or has no size");
    }
    once(user, |world, rng| match rng.u32(..12) {
        0 => allocate(world, rng),
        1..10 => ask(world, rng, seen),
        _ => (),
    });
}

unsafe extern "C" fn asked(user: *mut c_void, _device: u32, _needed: u64) -> u32 {
    let mut released = 0;
    once(user, |world, rng| {
        ask_of_work(world, rng);
        if let Some(block) = world.blocks.take_unused(rng) {
            if block.is_spoiled() {
                world.blocks.add(block);
            } else {
                let freed = call!(memory_free(block.home.device, block.address));
                released = u32::from(freed.is_ok());
            }
        }
    });
    released
}

/// Asks about memory, or about what may be at work.
fn ask(world: &World, rng: &mut Rng, seen: &otr_observation_t) {
    match rng.u32(..8) {
        0 => ignore(filled::<otr_memory_stats_t>(
            size_of::<otr_memory_stats_t>(),
            |out| call!(memory_stats(seen.device, out)),
        )),
        1 if seen.address != 0 => {
            let size = size_of::<otr_pointer_info_t>();
            ignore(pointed(size, seen.device, seen.address));
        }
        2 if rng.u32(..20) == 0 => ignore(text(|out| call!(memory_snapshot(seen.device, out)))),
        _ => ask_of_work(world, rng),
    }
}

/// Asks about graphs, captures, pools and streams, of which one may be at work on this very thread.
fn ask_of_work(world: &World, rng: &mut Rng) {
    match rng.u32(..7) {
        0 => {
            if let Some(graph) = world.graphs.pick(rng) {
                ignore(filled::<otr_graph_info_t>(
                    size_of::<otr_graph_info_t>(),
                    |out| call!(graph_info(graph.id, out)),
                ));
            }
        }
        1 => {
            if let Some(exec) = world.execs.pick(rng) {
                ignore(filled::<otr_graph_exec_info_t>(
                    size_of::<otr_graph_exec_info_t>(),
                    |out| call!(graph_exec_info(exec.id, out)),
                ));
            }
        }
        2 | 3 => {
            let stream = world.sessions.pick(rng).or_else(|| world.chaos.pick(rng));
            if let Some(stream) = stream {
                ignore(filled::<otr_capture_info_t>(
                    size_of::<otr_capture_info_t>(),
                    |out| call!(capture_info(stream.id, out)),
                ));
            }
        }
        4 => {
            if let Some(pool) = world.pools.pick(rng) {
                ignore(filled::<otr_pool_info_t>(
                    size_of::<otr_pool_info_t>(),
                    |out| call!(pool_info(pool.id, out)),
                ));
            }
        }
        5 => {
            if let Some(stream) = world.plain.pick(rng) {
                let _ = made::<u32>(|out| call!(stream_query(stream.id, out)));
            }
        }
        _ => {
            if let Some(event) = world.points.pick(rng) {
                let _ = made::<u32>(|out| call!(event_query(event.id, out)));
            }
        }
    }
}

fn allocate(world: &World, rng: &mut Rng) {
    let Some(stream) = world.plain.pick(rng) else {
        return;
    };
    let bytes = rng.u64(1..1 << 14);
    if let Ok(address) = made(|out| call!(memory_alloc(stream.device, bytes, stream.id, out)))
        && let Err(code) = call!(memory_free(stream.device, address))
    {
        problem(&format!(
            "memory_free: memory of an observer cannot be freed: {code}"
        ));
    }
}
