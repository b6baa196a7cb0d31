//! Device memory: handed out, freed by any thread, asked about.

use outrigger_ffi::{OTR_ALL_DEVICES, otr_memory_stats_t, otr_pointer_info_t};

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, filled, ignore, json, made, problem};
use crate::world::{Block, Pool};
use std::sync::Arc;

/// Blocks at most.
const MOST: usize = 96;

pub(crate) const ACTIONS: &[Action] = &[
    action("memory", 40, alloc),
    action("memory", 25, free),
    action("memory", 8, record_stream),
    action("memory", 10, pointer_info),
    action("memory", 6, figures),
    action("memory", 2, pictures),
    action("memory", 1, resets),
];

/// Asks about memory, for a struct of so many bytes.
pub(crate) fn pointed(size: usize, device: u32, address: u64) -> Option<otr_pointer_info_t> {
    filled(size, |info| {
        call!(memory_pointer_info(device, address, info))
    })
}

fn alloc(actor: &mut Actor) {
    if actor.world.blocks.len() >= MOST {
        return free(actor);
    }
    let Some(stream) = actor.plain(None) else {
        return;
    };
    let size = actor.size();
    let id = actor.or_garbage(Some(stream.id));
    let Ok(address) = made(|out| call!(memory_alloc(stream.device, size, id, out))) else {
        return;
    };
    if address == 0 {
        problem(&format!("memory_alloc: {size} bytes are address 0"));
        return;
    }
    let mut block = Block::new(address, size, stream, None);
    if !actor.uses.is_empty() {
        block = within_use(actor, block);
    }
    actor.world.blocks.add(block);
}

/// A block that was allocated while this thread uses pools: it may be of one of them.
fn within_use(actor: &mut Actor, block: Block) -> Block {
    let whole = size_of::<otr_pointer_info_t>();
    let info = pointed(whole, block.home.device, block.address);
    let of = |id: u64| {
        actor
            .uses
            .iter()
            .find(|pool| pool.id == id)
            .map(Arc::<Pool>::clone)
    };
    match info.and_then(|info| of(info.pool)) {
        Some(pool) => Block::new(block.address, block.size, block.home, Some(pool)),
        // Of no pool, or of one whose handle was given up meanwhile, maybe while it went to sleep.
        None => {
            block.spoil();
            block
        }
    }
}

/// Frees a block that nobody submits work on just now. Work that was submitted goes on.
pub(crate) fn free(actor: &mut Actor) {
    let Some(block) = actor.world.blocks.take_unused(&mut actor.rng) else {
        return;
    };
    if block.is_spoiled() {
        // Work of streams that the library does not know may use it: it is freed when all have ended.
        actor.world.blocks.add(block);
        return;
    }
    if let Err(code) = call!(memory_free(block.home.device, block.address)) {
        problem(&format!(
            "memory_free: memory in use cannot be freed: {code}"
        ));
    }
}

fn record_stream(actor: &mut Actor) {
    let block = actor.world.blocks.pick(&mut actor.rng);
    let home = block.as_ref().map(|block| block.home.device);
    let device = home.filter(|_| !actor.chance(20));
    let stream = actor.plain(device).map(|stream| stream.id);
    let stream = actor.or_garbage(stream);
    let address = block.as_ref().map_or(7, |block| block.address);
    let _ = call!(memory_record_stream(home.unwrap_or(0), address, stream));
}

fn pointer_info(actor: &mut Actor) {
    let Some(block) = actor.world.blocks.pick(&mut actor.rng) else {
        return;
    };
    let within = actor.rng.u64(..block.size);
    let whole = size_of::<otr_pointer_info_t>();
    let size = if actor.chance(4) {
        actor.rng.usize(..whole + 1)
    } else {
        whole
    };
    let (device, address) = (block.home.device, block.address + within);
    let told = pointed(size, device, address);
    let right = told.is_none_or(|info| {
        info.base == block.address && info.size >= block.size && info.requested == block.size
    });
    if !right {
        problem("memory_pointer_info: tells of another allocation");
    }
    // The call is refused where another device has the address, too.
    if made(|out| call!(memory_find(address, out))).is_ok_and(|found| found != device) {
        problem("memory_find: tells of another device");
    }
}

fn figures(actor: &mut Actor) {
    let device = actor.any_device();
    let whole = size_of::<otr_memory_stats_t>();
    let size = if actor.chance(8) {
        actor.rng.usize(..whole + 1)
    } else {
        whole
    };
    match actor.rng.u32(..5) {
        0..3 => {
            let stats = filled::<otr_memory_stats_t>(size, |out| call!(memory_stats(device, out)));
            let wrong = stats.is_some_and(|stats| {
                let (allocated, active) = (stats.allocated_bytes, stats.active_bytes);
                allocated.current > allocated.peak || active.current > active.peak
            });
            if wrong {
                problem("memory_stats: more than the peak");
            }
        }
        3 => {
            let (mut free, mut total) = (0, 0);
            let _ = call!(memory_info(device, &mut free, &mut total));
            if free > total {
                problem("memory_info: more is free than there is");
            }
        }
        _ => {
            let (mut held, mut limit) = (0, 0);
            let _ = call!(memory_process_info(&mut held, &mut limit));
        }
    }
}

fn pictures(actor: &mut Actor) {
    let device = if actor.chance(3) {
        OTR_ALL_DEVICES
    } else {
        actor.any_device()
    };
    let count = actor.rng.u32(..5);
    if actor.rng.bool() {
        ignore(json(|out| call!(memory_snapshot(device, out))));
    } else {
        ignore(json(|out| call!(memory_holders(device, count, out))));
    }
}

fn resets(actor: &mut Actor) {
    let device = actor.any_device();
    if actor.rng.bool() {
        let _ = call!(memory_reset_peak(device));
    } else {
        let _ = call!(memory_reset_accumulated(device));
    }
}
