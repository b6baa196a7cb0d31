//! Pools: allocated from, used by threads, limited, put to sleep and woken.

use std::sync::{Arc, PoisonError};

use outrigger_ffi::otr_pool_info_t;

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, filled, json, made};
use crate::world::{Block, Pool};

/// Pools at most.
const MOST: usize = 8;

pub(crate) const ACTIONS: &[Action] = &[
    action("pools", 4, create),
    action("pools", 2, destroy),
    action("pools", 15, alloc),
    action("pools", 6, begin_use),
    action("pools", 6, end_use),
    action("pools", 6, ask),
    action("pools", 2, limit),
    action("sleep", 3, sleep),
];

fn create(actor: &mut Actor) {
    let device = actor.any_device();
    if actor.world.pools.len() >= MOST {
        return destroy(actor);
    }
    if let Ok(id) = made(|out| call!(pool_create(device, out))) {
        let of_graphs = actor.rng.bool();
        actor.world.pools.add(Pool::new(id, device, of_graphs));
    }
}

fn destroy(actor: &mut Actor) {
    if let Some(pool) = actor.world.pools.take(&mut actor.rng)
        && call!(pool_destroy(pool.id)).is_ok()
    {
        actor.world.gone(pool.id);
    }
}

/// The handle of a pool for graphs of a device, if there is one; or garbage.
pub(crate) fn handle_of(actor: &mut Actor, device: u32) -> u64 {
    let pool = actor.world.pools.pick_where(&mut actor.rng, |pool| {
        pool.of_graphs && pool.device == device
    });
    actor.or_garbage(pool.map(|pool| pool.id))
}

/// A pool that no graphs are recorded into.
fn for_blocks(actor: &mut Actor) -> Option<Arc<Pool>> {
    actor
        .world
        .pools
        .pick_where(&mut actor.rng, |pool| !pool.of_graphs)
}

fn alloc(actor: &mut Actor) {
    let Some(pool) = for_blocks(actor) else {
        return;
    };
    let device = Some(pool.device).filter(|_| !actor.chance(30));
    let Some(stream) = actor.plain(device) else {
        return;
    };
    let size = actor.size().min(8 << 20);
    let id = actor.or_garbage(Some(pool.id));
    if let Ok(address) = made(|out| call!(pool_alloc(id, size, stream.id, out))) {
        actor
            .world
            .blocks
            .add(Block::new(address, size, stream, Some(pool)));
    }
}

fn begin_use(actor: &mut Actor) {
    let Some(pool) = for_blocks(actor) else {
        return;
    };
    if actor.uses.len() >= 3 {
        return end_use(actor);
    }
    let stream = if actor.rng.bool() {
        0
    } else {
        let stream = actor.plain(Some(pool.device)).map(|stream| stream.id);
        actor.or_garbage(stream)
    };
    let id = actor.or_garbage(Some(pool.id));
    if call!(pool_begin_use(id, stream)).is_ok() {
        actor.uses.push(pool);
    }
}

fn end_use(actor: &mut Actor) {
    match actor.uses.pop() {
        Some(pool) => {
            if let Err(code) = call!(pool_end_use(pool.id)) {
                // The handle may have been given up meanwhile: the use goes on, and ends with the thread.
                if actor
                    .world
                    .pools
                    .pick_where(&mut actor.rng, |one| one.id == pool.id)
                    .is_some()
                {
                    crate::library::problem(&format!("pool_end_use: the last use: {code}"));
                }
            }
        }
        None => {
            let garbage = actor.garbage();
            let _ = call!(pool_end_use(garbage));
        }
    }
}

fn ask(actor: &mut Actor) {
    let pool = actor.world.pools.pick(&mut actor.rng).map(|pool| pool.id);
    let pool = actor.or_garbage(pool);
    let whole = size_of::<otr_pool_info_t>();
    let size = if actor.chance(4) {
        actor.rng.usize(..whole + 1)
    } else {
        whole
    };
    if actor.chance(4) {
        let _ = json(|out| call!(pool_snapshot(pool, out)));
    } else {
        let _ = filled::<otr_pool_info_t>(size, |info| call!(pool_info(pool, info)));
    }
}

fn limit(actor: &mut Actor) {
    let pool = actor.world.pools.pick(&mut actor.rng).map(|pool| pool.id);
    let pool = actor.or_garbage(pool);
    let bytes = if actor.rng.bool() {
        u64::MAX
    } else {
        actor.rng.u64(..4 << 20)
    };
    let _ = call!(pool_set_limit(pool, bytes));
}

/// Puts a pool to sleep while nobody submits work on its memory, tries what must be refused, and wakes it.
fn sleep(actor: &mut Actor) {
    let Some(pool) = actor.world.pools.pick(&mut actor.rng) else {
        return;
    };
    if !pool.claim() {
        return;
    }
    // The call waits for all work of all devices, whose failures stay where they are.
    let slept = {
        let lock = &actor.world.falling_asleep;
        let _alone = lock.write().unwrap_or_else(PoisonError::into_inner);
        made::<u64>(|out| call!(pool_sleep(pool.id, out))).is_ok()
    };
    if slept {
        if actor.rng.bool() {
            asleep(actor, &pool);
        }
        let mut tries = 0;
        while call!(pool_wake(pool.id)).is_err() {
            tries += 1;
            if tries == 20 {
                // The pool sleeps on, or its handle was given up: its memory is freed, and not used.
                return;
            }
        }
    }
    pool.unclaim();
}

/// Makes calls that are errors while a pool sleeps.
fn asleep(actor: &mut Actor, pool: &Arc<Pool>) {
    let of = |block: &Block| {
        block
            .pool
            .as_ref()
            .is_some_and(|one| Arc::ptr_eq(one, pool))
    };
    if let Some(block) = actor.world.blocks.pick_where(&mut actor.rng, of) {
        let zero = 0u8;
        let _ = call!(fill(
            block.home.id,
            block.address,
            1,
            (&raw const zero).cast(),
            1
        ));
        if let Ok(address) = made(|out| call!(pool_alloc(pool.id, 512, block.home.id, out))) {
            // Woken by its end, where another thread has given the handle up.
            let _ = call!(memory_free(block.home.device, address));
        }
    }
}
