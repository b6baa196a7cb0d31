//! Copies, fills, kernels and host functions on streams that do not capture.

use std::sync::Arc;

use outrigger_device::sys::otr_host_fn;
use outrigger_ffi::*;

use super::{Action, action};
use crate::actor::Actor;
use crate::guest;
use crate::library::{call, made};
use crate::world::{Block, Pinned};

pub(crate) const HOST_TO_DEVICE: u32 = 1;
pub(crate) const DEVICE_TO_HOST: u32 = 2;
pub(crate) const DEVICE_TO_DEVICE: u32 = 3;
const HOST_TO_HOST: u32 = 4;

/// Host memory that copies read and nobody writes.
pub(crate) static SOURCE: [u8; 1 << 16] = [0x3c; 1 << 16];

pub(crate) const ACTIONS: &[Action] = &[
    action("commands", 20, fill),
    action("commands", 20, upload),
    action("commands", 15, download),
    action("commands", 15, between),
    action("commands", 8, peer),
    action("commands", 20, kernel),
    action("commands", 8, kernel_elsewhere),
    action("commands", 8, host_call),
    action("commands", 10, host_node),
];

fn fill(actor: &mut Actor) {
    let Some(held) = actor.block(16, |_| true) else {
        return;
    };
    let pattern = [actor.rng.u8(..); 16];
    let width = *actor.rng.choice(&[1, 2, 4, 8, 16, 3, 0]).unwrap_or(&1);
    let most = held.block.size & !15;
    let (start, size) = (actor.rng.u64(..most) & !15, actor.rng.u64(..most + 1) & !15);
    let (dst, stream) = (held.block.address + start, held.block.home.id);
    // Beyond the end is an error.
    let size = if actor.chance(20) {
        size
    } else {
        size.min(most - start)
    };
    let _ = call!(fill(stream, dst, size, pattern.as_ptr().cast(), width));
}

fn upload(actor: &mut Actor) {
    let Some(held) = actor.block(1, |_| true) else {
        return;
    };
    let size = actor
        .rng
        .u64(..(SOURCE.len() as u64 + 1).min(held.block.size + 1));
    let kind = if actor.chance(30) {
        actor.rng.u32(..) | 8
    } else {
        HOST_TO_DEVICE
    };
    let (dst, src) = (held.block.address, SOURCE.as_ptr() as u64);
    let _ = call!(copy(held.block.home.id, dst, src, size, kind));
}

/// Into pinned memory, which is freed at once: in the order of the streams that were told of.
fn download(actor: &mut Actor) {
    let Some(held) = actor.block(1, |_| true) else {
        return;
    };
    let size = actor.rng.u64(1..(1 << 18).min(held.block.size + 1).max(2));
    let Ok(pinned) = made(|out| call!(host_alloc(size, out))) else {
        return;
    };
    let (src, stream) = (held.block.address, held.block.home.id);
    let copied = if actor.chance(8) {
        let size = size.min(SOURCE.len() as u64);
        call!(copy(
            stream,
            pinned as u64,
            SOURCE.as_ptr() as u64,
            size,
            HOST_TO_HOST
        ))
    } else {
        call!(copy(stream, pinned as u64, src, size, DEVICE_TO_HOST))
    };
    let told = copied.is_err() || call!(host_record_stream(pinned, stream)).is_ok();
    if !told || call!(host_free(pinned)).is_err() {
        actor.world.pinned.add(Pinned {
            address: pinned.addr(),
            size,
        });
    }
}

fn between(actor: &mut Actor) {
    let Some(a) = actor.block(1, |_| true) else {
        return;
    };
    let home = Arc::clone(&a.block.home);
    let same = |block: &Block| block.home.id == home.id && block.address != a.block.address;
    let Some(b) = actor.block(1, same) else {
        return;
    };
    let size = actor.rng.u64(..a.block.size.min(b.block.size) + 1);
    let (dst, src) = (a.block.address, b.block.address);
    let _ = call!(copy(home.id, dst, src, size, DEVICE_TO_DEVICE));
}

/// Between two devices, on the stream of one of them, in the order of both.
fn peer(actor: &mut Actor) {
    let Some(a) = actor.block(1, |_| true) else {
        return;
    };
    let device = a.block.home.device;
    let Some(b) = actor.block(1, |block| block.home.device != device) else {
        return;
    };
    let size = actor.rng.u64(..a.block.size.min(b.block.size) + 1);
    let home = Arc::clone(&a.block.home);
    let (to, from) = if actor.rng.bool() {
        (&a.block, &b.block)
    } else {
        (&b.block, &a.block)
    };
    let (dst, src) = (to.address, from.address);
    actor.visit(&b, &home, |_| {
        let (there, here) = (to.home.device, from.home.device);
        call!(copy_peer(home.id, there, dst, here, src, size)).is_ok()
    });
}

fn kernel(actor: &mut Actor) {
    let Some(held) = actor.block(4, |_| true) else {
        return;
    };
    let words = actor.rng.u64(..(held.block.size / 4).min(16) + 1);
    let stream = actor.or_garbage(Some(held.block.home.id));
    guest::kernel(&mut actor.rng, held.block.address, words, |kernel| {
        let _ = call!(host_kernel_launch(stream, kernel));
    });
}

/// A kernel of another stream of the device, which is told of and freed in its order.
fn kernel_elsewhere(actor: &mut Actor) {
    let Some(held) = actor.block(4, |_| true) else {
        return;
    };
    let block = Arc::clone(&held.block);
    let Some(stream) = actor.plain(Some(block.home.device)) else {
        return;
    };
    actor.visit(&held, &stream, |actor| {
        let launched = guest::kernel(&mut actor.rng, block.address, 1, |kernel| {
            call!(host_kernel_launch(stream.id, kernel))
        });
        let (device, address) = (block.home.device, block.address);
        if launched.is_ok() && call!(memory_record_stream(device, address, stream.id)).is_err() {
            block.spoil();
        }
        launched.is_ok()
    });
}

fn host_call(actor: &mut Actor) {
    let stream = actor.plain(None).map(|stream| stream.id);
    let stream = actor.or_garbage(stream);
    let fails = actor.chance(40);
    let function: otr_host_fn = Some(if fails {
        guest::failing
    } else {
        guest::counted
    });
    let _ = call!(host_call(stream, function, std::ptr::null_mut()));
}

fn host_node(actor: &mut Actor) {
    let stream = actor.plain(None).map(|stream| stream.id);
    let stream = actor.or_garbage(stream);
    let _ = guest::host_node(
        actor.world,
        &mut actor.rng,
        1,
        &[],
        |node: &otr_host_node_t| call!(host_node(stream, node)),
    );
}
