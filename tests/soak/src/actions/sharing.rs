//! Memory of two processes: exports of this process, and imports from another process.

use std::ffi::CString;

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, text};
use crate::world::Import;

/// The byte that the other process has written everywhere in its memory, and the number of bytes.
pub(crate) const BYTE: u8 = 0x6b;
pub(crate) const BYTES: u64 = 1 << 20;

pub(crate) const ACTIONS: &[Action] = &[
    action("sharing", 2, export),
    action("sharing", 3, import),
    action("sharing", 2, close),
];

/// Exports a block, and tries to import it where it is.
fn export(actor: &mut Actor) {
    let Some(block) = actor.world.blocks.pick(&mut actor.rng) else {
        return;
    };
    let exported = text(|out| call!(memory_export(block.home.device, block.address, out)));
    let Some(exported) = exported else {
        return;
    };
    let exported = CString::new(exported).unwrap_or_default();
    let (device, mut address, mut size) = (actor.any_device(), 0, 0);
    let imported = call!(memory_import(
        device,
        exported.as_ptr(),
        &mut address,
        &mut size
    ));
    if imported.is_ok() {
        // The block is held until it is closed again, which waits for the device.
        let close = || call!(memory_close(device, address)).is_ok();
        let _ = actor.world.clearing(close);
    }
}

fn import(actor: &mut Actor) {
    let Some(exported) = &actor.world.exported else {
        return;
    };
    let text = if actor.chance(8) {
        "otr-memory-1 nonsense"
    } else {
        exported
    };
    let text = CString::new(text).unwrap_or_default();
    if actor.world.imports.len() >= 8 {
        return close(actor);
    }
    let (device, mut address, mut size) = (actor.any_device(), 0, 0);
    if call!(memory_import(
        device,
        text.as_ptr(),
        &mut address,
        &mut size
    ))
    .is_ok()
    {
        if size != BYTES {
            crate::library::problem(&format!("memory_import: {size} bytes of {BYTES}"));
        }
        super::private::read_import(actor, device, address);
        actor.world.imports.add(Import { device, address });
    }
}

fn close(actor: &mut Actor) {
    let Some(import) = actor.world.imports.take_unused(&mut actor.rng) else {
        return;
    };
    // The call waits for the device.
    let close = || call!(memory_close(import.device, import.address)).is_ok();
    if !actor.world.clearing(close) {
        actor.world.imports.add(import);
    }
}
