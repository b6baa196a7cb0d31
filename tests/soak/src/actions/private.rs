//! Objects that only one thread uses, so that it knows the right results: memory that must keep what
//! was written there, and graphs whose replays must compute known values. Memory that was handed out
//! twice shows here.

use std::sync::Arc;

use super::commands::{DEVICE_TO_DEVICE, DEVICE_TO_HOST, HOST_TO_DEVICE};
use super::{Action, action};
use crate::actor::Actor;
use crate::library::{call, made, problem};
use crate::world::Stream;

pub(crate) const ACTIONS: &[Action] = &[
    action("private", 8, keep),
    action("private", 12, compare),
    action("private", 8, round_trip),
    action("private", 4, replay),
];

/// Memory with a number that stands at each of its 8 bytes.
pub(crate) struct Kept {
    address: u64,
    bytes: u64,
    pattern: u64,
    stream: Arc<Stream>,
}

impl Kept {
    pub(crate) fn give_back(self) {
        super::capture::free(self.stream.device, self.address);
    }
}

/// Waits until all work of a stream has ended, whatever of it has failed.
pub(crate) fn settle(stream: u64) -> bool {
    (0..64).any(|_| call!(stream_synchronize(stream)).is_ok())
}

/// Makes calls on a private stream, and waits. Whether all of it has run: no call has failed, nor has work,
/// and no other thread can have cleared a failure.
fn ran(actor: &mut Actor, stream: u64, calls: impl FnOnce(&mut Actor) -> bool) -> bool {
    let mark = actor.world.cleared();
    let submitted = calls(actor);
    let ended = call!(stream_synchronize(stream)).is_ok();
    if !ended {
        settle(stream);
    }
    submitted && ended && actor.world.undisturbed(mark)
}

fn keep(actor: &mut Actor) {
    if actor.kept.len() >= 8 {
        let index = actor.rng.usize(..actor.kept.len());
        return actor.kept.swap_remove(index).give_back();
    }
    let device = actor.device();
    let Some(stream) = actor.private(device) else {
        return;
    };
    let bytes = actor.size().min(4 << 20).next_multiple_of(8);
    let Ok(address) = made(|out| call!(memory_alloc(device, bytes, stream.id, out))) else {
        return;
    };
    let pattern = actor.rng.u64(..);
    let id = stream.id;
    let filled = ran(actor, id, |_| {
        call!(fill(id, address, bytes, (&raw const pattern).cast(), 8)).is_ok()
    });
    if filled {
        actor.kept.push(Kept {
            address,
            bytes,
            pattern,
            stream,
        });
    } else {
        super::capture::free(device, address);
    }
}

/// Copies to the host, and says what is there; `None` if that cannot be known.
fn read(actor: &mut Actor, stream: u64, address: u64, bytes: u64) -> Option<Vec<u64>> {
    let mut words = vec![0u64; bytes as usize / 8].into_boxed_slice();
    let to = words.as_mut_ptr() as u64;
    let done = ran(actor, stream, |_| {
        call!(copy(stream, to, address, bytes, DEVICE_TO_HOST)).is_ok()
    });
    if done {
        return Some(words.into_vec());
    }
    if !settle(stream) {
        // The copy may run yet.
        std::mem::forget(words);
    }
    None
}

/// Looks at memory of another process, which must hold what that process has written.
pub(crate) fn read_import(actor: &mut Actor, device: u32, address: u64) {
    let Some(stream) = actor.private(device).map(|stream| stream.id) else {
        return;
    };
    let all = u64::from_ne_bytes([super::sharing::BYTE; 8]);
    if read(actor, stream, address, 4096).is_some_and(|seen| seen.iter().any(|word| *word != all)) {
        problem("imported memory does not hold what the other process has written");
    }
}

fn compare(actor: &mut Actor) {
    let Some(index) = actor.kept.len().checked_sub(1) else {
        return;
    };
    let index = actor.rng.usize(..index + 1);
    let kept = actor.kept.swap_remove(index);
    if let Some(words) = read(actor, kept.stream.id, kept.address, kept.bytes)
        && let Some(at) = words.iter().position(|word| *word != kept.pattern)
    {
        problem(&format!(
            "memory at {:#x} + {}: {:#018x} stands where {:#018x} was written",
            kept.address,
            at * 8,
            words[at],
            kept.pattern
        ));
    }
    actor.kept.push(kept);
}

/// Uploads numbers, copies them on the device, and reads them back.
fn round_trip(actor: &mut Actor) {
    let device = actor.device();
    let Some(stream) = actor.private(device).map(|stream| stream.id) else {
        return;
    };
    let bytes = actor.rng.u64(1..1 << 14) * 8;
    let mut addresses = Vec::new();
    for _ in 0..2 {
        if let Ok(address) = made(|out| call!(memory_alloc(device, bytes, stream, out))) {
            addresses.push(address);
        }
    }
    if let [a, b] = addresses[..] {
        let words: Vec<u64> = (0..bytes / 8).map(|_| actor.rng.u64(..)).collect();
        let from = words.as_ptr() as u64;
        let done = ran(actor, stream, |_| {
            call!(copy(stream, a, from, bytes, HOST_TO_DEVICE)).is_ok()
                && call!(copy(stream, b, a, bytes, DEVICE_TO_DEVICE)).is_ok()
        });
        if done {
            if read(actor, stream, b, bytes).is_some_and(|seen| seen != words) {
                problem("what was uploaded and copied is not what is read back");
            }
        } else if !settle(stream) {
            std::mem::forget(words);
        }
    }
    for address in addresses {
        super::capture::free(device, address);
    }
}

/// Captures a fill and a copy, and replays them: twice, with the memory set to something else before.
fn replay(actor: &mut Actor) {
    let device = actor.device();
    let Some(stream) = actor.private(device).map(|stream| stream.id) else {
        return;
    };
    const BYTES: u64 = 4096;
    let mut addresses = Vec::new();
    for _ in 0..2 {
        if let Ok(address) = made(|out| call!(memory_alloc(device, BYTES, stream, out))) {
            addresses.push(address);
        }
    }
    if let [a, b] = addresses[..]
        && settle(stream)
        && call!(capture_begin(stream, 1, 0)).is_ok()
    {
        let (first, second) = (actor.rng.u64(..), actor.rng.u64(..));
        let _ = call!(fill(stream, a, BYTES, (&raw const first).cast(), 8));
        let _ = call!(copy(stream, b, a, BYTES, DEVICE_TO_DEVICE));
        if let Ok(graph) = made(|out| call!(capture_end(stream, out))) {
            let flags = *actor.rng.choice(&[0, 1, 2]).unwrap_or(&0);
            if let Ok(exec) = made(|out| call!(graph_instantiate(graph, flags, out))) {
                let done = ran(actor, stream, |_| {
                    let other = (&raw const second).cast();
                    call!(graph_replay(exec, stream)).is_ok()
                        && call!(fill(stream, b, BYTES, other, 8)).is_ok()
                        && call!(graph_replay(exec, stream)).is_ok()
                });
                let seen = if done {
                    read(actor, stream, b, BYTES)
                } else {
                    None
                };
                if seen.is_some_and(|seen| seen.iter().any(|word| *word != first)) {
                    problem("a replay did not leave what its nodes compute");
                }
                let _ = call!(graph_exec_destroy(exec));
            }
            let _ = call!(graph_destroy(graph));
        }
    }
    for address in addresses {
        super::capture::free(device, address);
    }
}
