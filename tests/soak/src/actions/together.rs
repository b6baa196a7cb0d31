//! Communicators of one rank each: they need nobody else, so that threads, streams and failures may come in any order.

use std::ffi::CString;
use std::ptr::null;

use outrigger_device::sys;
use outrigger_ffi::otr_communicator_params_t;

use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, made, text};

pub(crate) const ACTIONS: &[Action] = &[action("together", 4, work)];

/// Elements of f32.
const COUNT: u64 = 256;
const SIZE: u64 = 4 * COUNT;

/// A communicator on the device of a block, some calls on its memory, and the end.
fn work(actor: &mut Actor) {
    let Some(held) = actor.block(2 * SIZE, |_| true) else {
        return;
    };
    let (home, memory) = (&held.block.home, held.block.address);
    let Some(id) = text(|out| call!(communicator_id(home.device, out))) else {
        return;
    };
    let id = CString::new(id).unwrap_or_default();
    let params = otr_communicator_params_t {
        struct_size: size_of::<otr_communicator_params_t>(),
        next: null(),
        id: id.as_ptr(),
        rank_count: 1,
        rank: 0,
        timeout_ms: 1000,
    };
    let Ok(comm) = made(|out| call!(communicator_create(home.device, &params, out))) else {
        return;
    };
    let (stream, other) = (home.id, memory + SIZE);
    let (dtype, sum) = (sys::OTR_DTYPE_F32, sys::OTR_REDUCE_SUM);
    for _ in 0..actor.rng.u32(1..6) {
        let _ = match actor.rng.u32(..7) {
            0 => call!(all_reduce(stream, comm, memory, other, COUNT, dtype, sum)),
            1 => call!(reduce(stream, comm, memory, memory, COUNT, dtype, sum, 0)),
            2 => call!(reduce_scatter(
                stream, comm, other, memory, COUNT, dtype, sum
            )),
            3 => call!(broadcast(stream, comm, memory, SIZE, 0)),
            4 => call!(all_gather(stream, comm, memory, other, SIZE)),
            5 => {
                let out = sys::otr_transfer {
                    address: memory,
                    size: SIZE,
                    peer: 0,
                    direction: sys::OTR_TRANSFER_SEND,
                };
                let back = sys::otr_transfer {
                    address: other,
                    direction: sys::OTR_TRANSFER_RECEIVE,
                    ..out
                };
                call!(exchange(stream, comm, [out, back].as_ptr(), 2))
            }
            _ => call!(communicator_query(comm)),
        };
    }
    if actor.chance(4) {
        let _ = call!(communicator_abort(comm));
    }
    let _ = call!(communicator_destroy(comm));
    actor.world.gone(comm);
}
